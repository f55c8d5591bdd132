"""Base class of a batch. dali_batch and resident implement it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from .epoch import Epoch
from .samplers import Indices

F = TypeVar("F", bound=Callable[..., None])


def stage(method: F) -> F:
    """Decorator for a stage of a Batch. After an exception, later stages are skipped, and finish() raises the
    exception."""

    @functools.wraps(method)
    def run(self: Batch, *args: Any) -> None:
        if self.error is None:
            try:
                method(self, *args)
            except Exception as error:
                self.error = error

    return cast(F, run)


class Batch:
    """A batch of one epoch.

    Args:
        indices: indices from the sampler.
        begin: number of samples in earlier batches of the epoch.
        error: exception that the sampler raised instead of returning indices. finish() raises it.
    """

    def __init__(self, epoch: Epoch[Any], indices: Indices, begin: int, error: Exception | None = None):
        self.epoch = epoch
        self.indices = self.given_indices = indices  # on_error="skip" removes some from ``indices``
        self.begin, self.error = begin, error

    def __len__(self) -> int:
        return len(self.indices)

    def discard(self) -> None:
        raise NotImplementedError

    def refresh(self) -> None:
        """Start the batch again if the user has changed its samples since it was started."""

    def _images(self) -> Any:
        """Return the transformed images, (N, C, H, W), or a list of N if they cannot be stacked."""
        raise NotImplementedError

    def _collate(self, images: Any) -> Any:
        """Return the collated batch, or NOTHING if on_error has skipped all samples."""
        raise NotImplementedError

    def finish(self) -> Any:
        """Return the batch, or NOTHING if on_error has skipped all samples. Raise the exception of an earlier stage."""
        try:
            return self._collate(self.outcome())
        except BaseException:
            self.discard()
            raise
        finally:
            self.error = None

    def outcome(self) -> Any:
        """Return the transformed images, or raise the stored error."""
        with torch.autocast(self.epoch.route.device.type, enabled=False):  # a model's autocast must not affect images
            if self.error is not None:
                raise self.error
            return self._images()

    def forget_errors(self) -> None:
        """Drop stored exceptions, because their tracebacks refer to this batch."""
        self.error = None
