"""Base class of a batch, from indices to tensors. The routes implement the steps in between (dali_batch, resident)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from .epoch import Epoch
from .samplers import Indices

F = TypeVar("F", bound=Callable[..., None])


def stage(method: F) -> F:
    """Decorator that makes a method a stage of a Batch.

    The stage is skipped if an earlier one has failed. Its exception is stored and raised by finish(), so that the
    caller gets it in place of the batch that it belongs to.
    """

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
        indices: as the sampler gave them.
        begin: number of samples of the epoch before this batch.
        error: exception that the sampler raised instead of giving indices. That of a stage replaces it, and finish()
            raises it.
    """

    def __init__(self, epoch: Epoch[Any], indices: Indices, begin: int, error: Exception | None = None):
        self.epoch = epoch
        self.indices = self.given_indices = indices  # on_error may remove some from ``indices``
        self.begin, self.error = begin, error

    def __len__(self) -> int:
        return len(self.indices)

    def advance(self) -> None:
        """Start what does not need the caller's thread."""

    def discard(self) -> None:
        """Cancel the batch and release its resources."""
        raise NotImplementedError

    def _images(self) -> Any:
        """Return images (N, C, H, W), or a list of N if sizes differ, several parts made them, or they are not
        images."""
        raise NotImplementedError

    def _collate(self, images: Any) -> Any:
        """Collate the samples of the batch. Return NOTHING if on_error leaves no sample."""
        raise NotImplementedError

    def finish(self) -> Any:
        """Return what torch's loader would return for these indices, on the device.

        NOTHING if on_error leaves no sample.
        """
        try:
            return self._collate(self.outcome())
        except BaseException:
            self.discard()
            raise
        finally:
            self.error = None

    def outcome(self) -> Any:
        """Return the images, or raise the stored error."""
        with torch.autocast(self.epoch.route.device.type, enabled=False):  # autocast is for models
            self.advance()
            if self.error is not None:
                raise self.error
            return self._images()

    def forget_errors(self) -> None:
        """Drop stored exceptions, whose tracebacks refer to this batch."""
        self.error = None
