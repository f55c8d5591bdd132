"""One batch on its way from indices to tensors. What lies between them is the routes' affair: dali_batch, resident."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from .epoch import Epoch
from .samplers import Indices

F = TypeVar("F", bound=Callable[..., None])


def stage(method: F) -> F:
    """Makes a method a stage of a Batch. It is skipped where an earlier one has failed. Its exception is stored, and
    finish() raises it, so that it reaches the caller with the batch that it belongs to."""

    @functools.wraps(method)
    def run(self: Batch, *args: Any) -> None:
        if self.error is None:
            try:
                method(self, *args)
            except Exception as error:
                self.error = error

    return cast(F, run)


class Batch:
    """``indices`` as the sampler gave them; ``begin`` counts the samples of the epoch before them; ``error`` is one
    that the sampler raised instead.

    Attributes:
        given_indices: as the sampler gave them; on_error may leave fewer.
        error: that a stage has met, or the sampler; finish() raises it.
    """

    def __init__(self, epoch: Epoch[Any], indices: Indices, begin: int, error: Exception | None = None):
        self.epoch = epoch
        self.indices = self.given_indices = indices
        self.begin, self.error = begin, error

    def __len__(self) -> int:
        return len(self.indices)

    def advance(self) -> None:
        """Sets functions without a translation to work, once."""
        raise NotImplementedError

    def discard(self) -> None:
        """Cancels it and releases its resources."""
        raise NotImplementedError

    def _images(self) -> Any:
        """(N, C, H, W), or a list of N where sizes differ, several parts made them, or they are no images."""
        raise NotImplementedError

    def _collate(self, images: Any) -> Any:
        """Returns what the batch's samples become in collate_fn; NOTHING where on_error leaves no sample."""
        raise NotImplementedError

    def finish(self) -> Any:
        """Returns what torch's loader would give for these indices, on the device; NOTHING where on_error leaves no
        sample."""
        try:
            return self._collate(self.outcome())
        except BaseException:
            self.discard()
            raise
        finally:
            self.error = None

    def outcome(self) -> Any:
        """Returns the images."""
        with torch.autocast(self.epoch.route.device.type, enabled=False):  # that is for models
            self.advance()
            if self.error is not None:
                raise self.error
            return self._images()

    def forget_errors(self) -> None:
        """Drops stored exceptions, whose tracebacks refer to this batch."""
        self.error = None
