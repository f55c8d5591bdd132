"""One batch on its way from indices to tensors.

start() sets to work whoever makes its images; advance() gives what has no translation to Python, if there is such a
thing; finish() waits and collates. What lies between indices and images is its subclasses' affair.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ..randoms import own_generators
from ..runtime.decorators import named
from ..runtime.device import ViewBatches, filled, mapped, moved, on_the_cpu
from .epoch import Epoch
from .part import in_format
from .samplers import Indices

_TARGETS, _COLLATE = 2**32 - 1, 2**32 - 2  # random streams of the user's functions that are no transforms


class Batch:
    """``indices`` as the sampler gave them; ``position`` counts the samples of the epoch before them; ``error`` is one
    that the sampler raised instead.

    Attributes:
        begin: how many samples the sampler gave before it.
        given_indices: as the sampler gave them; on_error may leave fewer.
        places: (leaf of the data set, index there) of each row, once it is known.
        targets: of each row.
    """

    places: list[tuple[Any, int]]
    targets: Any

    def __init__(self, epoch: Epoch[Any], indices: Indices, position: int, error: Exception | None = None):
        self.epoch = epoch
        self.indices = self.given_indices = indices
        self.begin, self._error = position, error

    def __len__(self) -> int:
        return len(self.indices)

    def start(self) -> None:
        """Sets whoever makes the images to work, once."""
        raise NotImplementedError

    def advance(self) -> None:
        """After start(): sets functions without a translation to work, once."""
        raise NotImplementedError

    def _stage(self, function: Callable[[], None]) -> None:
        """Calls a function, unless one before it has failed. Its exception is stored and raised by finish(), so that it
        reaches the caller with the batch that it belongs to."""
        if self._error is None:
            try:
                function()
            except Exception as error:
                self._error = error

    def discard(self) -> None:
        """Cancels it and releases its resources."""
        raise NotImplementedError

    def _images(self) -> Any:
        """(N, C, H, W), or a list of N where sizes differ, several parts made them, or they are no images."""
        raise NotImplementedError

    def finish(self) -> Any:
        """Returns what torch's loader would give for these indices, on the device; NOTHING where on_error leaves no
        sample."""
        try:
            return self._collate(self._outcome())
        except BaseException:
            self.discard()
            raise
        finally:
            self._error = None

    def _outcome(self):
        with torch.autocast(self.epoch.route.device.type, enabled=False):  # that is for models
            self.advance()
            if self._error is not None:
                raise self._error
            return self._images()

    def forget_errors(self) -> None:
        """They refer to their tracebacks, and these to this batch."""
        self._error = None

    def _as_in_a_worker(self, needed: bool = True, stream: int = _TARGETS):
        """The user's own functions draw where torch's workers would: not from this process's generators."""
        if not (needed and self.epoch.in_workers):
            return nullcontext()
        return own_generators(self.epoch.seed, stream, 0, self.position(0))

    def _as_in_its_copy(self, targets: list[Any], transformed: bool) -> list[Any]:
        """Targets, before target_transform where it has one, as a worker's copy of the data set has them: the user's
        functions may change them in place."""
        if self.epoch.in_workers and (transformed or not self.epoch.default_collate):
            with suppress(Exception):  # of objects that nobody can copy
                return deepcopy(targets)
        return targets

    def position(self, row: int) -> int:
        """Returns how many samples of the epoch come before this row, those of all ranks."""
        return self.epoch.rank_order.place_of(self.begin + row)

    def _leaves(self) -> list[Any]:
        """Returns those of the data set that its samples come from."""
        return [leaf for leaf, _ in self.places]

    def _locals(self) -> Any:
        """The index of each row there."""
        return [local for _, local in self.places]

    @named("collate")
    def _collate(self, images) -> Any:
        """Returns what the batch's samples become in collate_fn, as torch's fetchers call it. Where that is
        default_collate, what is stacked already stays so."""
        epoch = self.epoch
        with_index = {getattr(leaf, "return_index", False) for leaf in self._leaves()}
        fast = epoch.fast_collate and isinstance(images, torch.Tensor) and images.dtype == torch.uint8
        if not (epoch.default_collate or fast) or not len(self) or len(with_index) != 1:
            return self._collated_by_the_user(images)
        columns = [self.targets, self._locals()] if with_index == {True} else [self.targets]
        images = self._stacked(images)
        made = [moved(_column(column), epoch.route.device) for column in columns]
        return (images, made[0].long() if made[0].ndim == 1 else made[0]) if fast else [images, *made]

    def _stacked(self, images: Any) -> Any:
        """The images as default_collate gives them, on the device."""
        route = self.epoch.route
        if isinstance(images, torch.Tensor):
            return images
        if isinstance(images, ViewBatches):
            return moved(collated_views(images), route.device)
        column: Any = tuple(images)  # as torch has it
        try:
            made = moved(collated(column), route.device)
        except RuntimeError as error:
            if sizes := self._sizes(column):
                raise RuntimeError(f"{error}; {sizes}") from None
            raise
        has_images = isinstance(made, torch.Tensor) or any(plan.views for plan in route.plans)
        return mapped(made, self._in_format) if has_images else made

    def _sizes(self, images: tuple[Any, ...]) -> str:
        """Names two images of different sizes and what to do about that; "" if there are none."""
        if not all(isinstance(image, torch.Tensor) and image.ndim == 3 for image in images):
            return ""
        of_rows = [tuple(image.shape[1:]) for image in images]
        other = next((row for row, size in enumerate(of_rows) if size != of_rows[0]), None)
        if other is None:
            return ""
        first, second = (f"{self.sample_name(row)}: {of_rows[row][0]} x {of_rows[row][1]}" for row in (0, other))
        remedy = "Resize(n) keeps the ratio of height and width: add CenterCrop(n), or write Resize((n, n))"
        return f"the images of a batch need one height x width ({first}; {second}). {remedy}"

    def sample_name(self, row: int) -> str:
        """Returns what a message calls the row's sample."""
        return f"index {self.indices[row]}"

    def _collated_by_the_user(self, images: Any) -> Any:
        """Returns what the user's collate_fn makes of the samples, on the device."""
        epoch = self.epoch
        given = self._samples if epoch.batched else lambda images: self._samples(images)[0]
        generators = partial(self._as_in_a_worker, stream=_COLLATE)
        made = epoch.user_collate(epoch.collate_fn, given, images, epoch.route.device, generators)
        return moved(made, epoch.route.device)

    def _in_format(self, images: torch.Tensor) -> torch.Tensor:
        """All plans have one format."""
        return in_format(images, self.epoch.route.plans[0]) if images.ndim == 4 else images

    def _samples(self, images) -> list[tuple]:
        """Returns what ``dataset[index]`` gives for each row, with these images."""
        targets = self.targets.tolist() if isinstance(self.targets, np.ndarray) else self.targets
        samples: list[tuple] = []
        for image, target, (leaf, local) in zip(images, targets, self.places, strict=True):
            with_index = getattr(leaf, "return_index", False)
            samples.append((image, target, local) if with_index else (image, target))
        return samples


def collated_views(views: ViewBatches) -> Any:
    """Returns what default_collate would make of samples of several views."""
    numbers = [torch.tensor(i, device="cpu") for i in range(len(views.batches))]
    numbered = collated([filled(views.structure, numbers)])
    batches = [batch if isinstance(batch, torch.Tensor) else collated(batch) for batch in views.batches]
    return mapped(numbered, lambda number: batches[int(number)])


def collated(samples: Any) -> Any:
    """Returns what default_collate makes of them in one of torch's workers."""
    with on_the_cpu():
        return default_collate(samples)


def _column(values: Any) -> Any:
    """Returns what default_collate would make of the values."""
    if isinstance(values, torch.Tensor):
        return values
    batch: Any = values if isinstance(values, np.ndarray) else tuple(values)
    return torch.from_numpy(batch) if isinstance(batch, np.ndarray) else collated(batch)
