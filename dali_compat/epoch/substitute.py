"""Replaces samples that cannot be made, if on_error is "replace"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..data.lookup import Listed
from ..errors import ImageReadError
from ..randoms import replacement
from .epoch import Epoch
from .on_error import ATTEMPTS, reason_of
from .part import in_order


class Substitute:
    """Samples of the data set that stand in, one after another until one can be read, for the one at a position of the
    epoch. Which ones depends on the epoch's seed and the position alone. ``make`` gives the batch of an index."""

    def __init__(self, epoch: Epoch, position: int, make: Callable[[Any], Any]):
        self._epoch, self._position, self._make, self._attempts = epoch, position, make, 0
        self._try_another()

    def outcome(self) -> tuple[Listed, Any]:
        """The sample that stands in, and its image.

        Raises:
            ImageReadError: too many samples cannot be read.
        """
        while True:
            errors, index = self._epoch.errors, self._batch.indices[0]
            try:
                sample, image, bad = self._batch.alone()
                if bad is None:
                    return sample, image
                source, why = bad
                if self._attempts == ATTEMPTS:
                    raise why if isinstance(why, Exception) else ImageReadError(f"cannot make index {index}: {why}")
                errors.add(str(source), index, why if isinstance(why, str) else reason_of(why))
            except Exception as error:
                if self._attempts == ATTEMPTS or not errors.in_python:
                    raise
                errors.add(type(self._epoch.dataset).__name__, index, reason_of(error))
            finally:
                bad = why = None  # an error refers to its traceback, and that to this frame
            self._try_another()

    def _try_another(self) -> None:
        self.discard()
        among = self._epoch.among
        index = among[replacement(self._epoch.seed, self._position, self._attempts, len(among))]
        self._attempts += 1
        self._batch = self._make(index)
        self._batch.start()

    def discard(self) -> None:
        if self._attempts:
            self._batch.discard()
            self._batch.forget_errors()


def replaced(
    samples: Listed, images: Any, good: list[int], others: dict[int, tuple[Listed, Any]]
) -> tuple[Listed, Any]:
    """The samples with others in the places of some, and their images. ``images`` are of the ``good`` ones."""
    for row, (sample, _) in others.items():
        samples.places[row], samples.targets[row] = sample.places[0], sample.targets[0]
        samples.sources[row] = sample.sources[0]
    return samples, _joined(images, good, {row: image for row, (_, image) in others.items()})


def _joined(images: Any, good: list[int], others: dict[int, Any]) -> Any:
    """``images`` of the ``good`` rows and those of others, in the order of rows: stacked where all have one shape."""
    first = next(iter(others.values()))
    one = {(image.shape, image.dtype) if isinstance(image, torch.Tensor) else None for image in others.values()}
    if not (
        isinstance(images, torch.Tensor) and one == {(images.shape[1:], images.dtype)} and type(first) is torch.Tensor
    ):
        return in_order([(good, images), *(([row], [image]) for row, image in others.items())])
    last = images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    form = torch.channels_last if last else torch.contiguous_format
    shape = len(good) + len(others), *images.shape[1:]
    whole = torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=form)
    taken = 0  # of images; in runs, for a GPU would be waited for where a list says which
    for begin, end in zip([-1, *sorted(others)], [*sorted(others), len(whole)], strict=True):
        run = end - begin - 1
        whole[begin + 1 : end] = images[taken : taken + run]
        taken += run
    for row, image in others.items():
        whole[row] = image
    return whole
