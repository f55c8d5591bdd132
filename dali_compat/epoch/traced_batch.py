"""One batch of a data set of the user's, whose own code says what its samples are made of (lazy/).

The data set is asked in worker processes, or, without any, in the thread that iterates. It gives what was done to each
image, with which numbers. DALI does that to those of which it can do all; of others, masks for example, torchvision's
own functions do it once more, in threads. A sample of which an image cannot be made is asked for once more, and its own
code makes it, or raises torch's error.

Rows are images here: a sample may have several (sample_batch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ..errors import ImageReadError, read_error
from ..lazy.samples import Sample, Stack, at, exchanged, put
from ..lazy.workers import Request, Ticket
from ..ops.pixels.lists import uniform
from ..randoms import generator_states, set_generators
from ..runtime.device import ViewBatches, mapped, moved
from .batch import collated
from .dali_batch import DaliBatch
from .fallback import path_of
from .on_error import NOTHING, UNREADABLE, reason_of
from .part import in_order
from .sample_batch import SampleBatch


class TracedBatch(DaliBatch):
    """A batch of a data set that is asked."""

    _samples_of: SampleBatch
    targets: list[Sample]
    _files: Mapping[int, str] = {}  # of samples that the data set could not make
    _settled = False  # whether the data set itself was asked for those that are bad
    _asked_of: Ticket | None = None  # what workers are to answer
    _replays: dict[int, Future] | None = None  # by their rows

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._states: dict[int, Any] = {}  # of the generators, before each sample

    @property
    def count(self) -> int:
        return len(self.places)

    def name(self, row: int) -> str:
        return f"{self.sources[row]}, index {self.indices[self._samples_of.of[row]]}"

    def give_up(self, row: int, error: Exception) -> None:
        """A row's image cannot be made by DALI or PIL: the data set itself may."""
        if self._stands_in:
            self._samples_of.sources[0] = self.sources[row]  # which is named
            super().give_up(row, error)
        self.bad[row] = error

    def request(self) -> None:
        """Workers are asked for its samples, if there are any, and were not yet. Errors wait."""
        workers = self.epoch.asked_workers
        if workers is not None and self._asked_of is None and not self._located:
            try:
                self._asked_of = workers.ask(self._request(self.indices, self._places()))
            except TimeoutError:  # a signal's handler has raised it
                raise
            except (RuntimeError, OSError):  # which _look_up() meets again
                pass

    def _request(self, indices: list[Any], places: list[int], really: bool = False) -> Request:
        errors = self.epoch.errors
        covers = (Exception,) if errors.in_python else UNREADABLE
        return Request(indices, self.epoch.seed, places, () if really or errors.policy == "raise" else covers, really)

    def _places(self) -> list[int]:
        return [self.position(row) for row in range(len(self.indices))]

    def _look_up(self) -> SampleBatch:
        samples = self._samples_here() if self.epoch.asked_workers is None else self._samples_there()
        assert self.epoch.asker is not None  # whose batch this is
        return SampleBatch(samples, self.indices, self._named, self.epoch.asker)

    def _named(self, row: int) -> str:
        """For messages, what stands for the image of a sample that has none."""
        dataset = self.epoch.dataset
        return (
            self._files.get(row) or path_of(dataset, self.indices[row]) if row in self.bad else type(dataset).__name__
        )

    def _samples_here(self) -> list[Sample]:
        asker, tolerant = self.epoch.asker, self.epoch.errors.policy != "raise"
        assert asker is not None  # whose batch this is
        with self._as_in_a_worker():
            return asker.ask(self.indices, self._failed_here if tolerant else None, self._begin)

    def _begin(self, row: int) -> None:
        """A sample that is asked for once more draws the same numbers."""
        if row in self._states:
            set_generators(self._states[row])
        else:
            self._states[row] = generator_states()

    def _samples_there(self) -> list[Sample]:
        workers = self.epoch.asked_workers
        assert workers is not None
        if self._asked_of is None:
            self._asked_of = workers.ask(self._request(self.indices, self._places()))
        return workers.samples(self._asked_of, self._failed)

    def _failed_here(self, row: int, error: Exception) -> None:
        if not isinstance(error, Exception if self.epoch.errors.in_python else UNREADABLE):
            raise error
        self._files = {**self._files, row: path_of(self.epoch.dataset, self.indices[row], error)}
        self._failed(row, reason_of(error))

    def _failed(self, row: int, reason: str, file: str = "") -> None:
        """The data set has raised that."""
        if file:
            self._files = {**self._files, row: file}
        self.bad[row] = reason
        if self._stands_in:
            assert self.epoch.asker is not None
            self._samples_of = SampleBatch(
                [Sample(None)], self.indices, self._named, self.epoch.asker
            )  # for who lists it
            raise ImageReadError(f"cannot make index {self.indices[row]}: {reason}")

    def _really(self, row: int) -> Sample:
        """A sample that the data set makes itself."""
        asker, workers = self.epoch.asker, self.epoch.asked_workers
        assert asker is not None
        if workers is not None:
            return workers.samples(workers.ask(self._request([self.indices[row]], [self.position(row)], really=True)))[
                0
            ]
        now = generator_states()
        try:
            with self._as_in_a_worker():
                self._begin(row)
                return asker.really(self.indices[row])
        finally:
            set_generators(now)

    def _randoms(self, begin: int, count: int) -> Callable[[int, int], np.ndarray]:
        return self._samples_of.randoms(begin, count)

    def _group(self) -> None:
        super()._group()
        if self._replays is None:
            threads = self.epoch.in_thread
            self._replays = {row: threads(one.made) for row, one in self._samples_of.replayed.items()}

    def _made(self) -> list[tuple[Sequence[int], Any]]:
        return super()._made() + self._replayed()

    def _replayed(self) -> list[tuple[Sequence[int], Any]]:
        """(rows, images) that torchvision's own functions have made."""
        made: dict[int, Any] = {}
        for row, future in (self._replays or {}).items():
            error = future.exception()
            if error is None:
                made[row] = future.result()
            elif row not in self.bad:
                self.give_up(row, read_error(f"cannot make {self.name(row)}: {error}", error))
        self._replays = {}
        return [(list(made), list(made.values()))] if made else []

    def discard(self) -> None:
        super().discard()
        for future in (self._replays or {}).values():
            future.cancel()
        self._replays = {}

    def _images(self) -> Any:
        """Returns images as a batch of files does, for samples with one image; ViewBatches where all have several. Else
        a list, with a tuple of several images, and None for samples that are real."""
        told, made = self._samples_of, self._made()
        if self.count == len(self) and all(chain is not None for chain, _ in self.places):
            return made[0][1] if len(made) == 1 else in_order(made)
        columns = None if self.bad else told.columns(made)
        if columns is not None:
            return ViewBatches(columns)
        bad = {told.of[row] for row in self.bad}
        return [image for row, image in enumerate(told.of_samples(made)) if row not in bad]

    def _collate(self, images: Any) -> Any:
        if self.bad:
            self._gather_bad()
            images, self._settled = self._mended(images), True
        if self.bad:
            images = self._without_bad(images)
            if not len(self):
                return NOTHING
        epoch, samples = self.epoch, self.targets
        if not epoch.default_collate:
            return self._collated_by_the_user(images)
        layouts = {one.layout for one in samples}
        columns = [_stacked(one) for one in (images.batches if isinstance(images, ViewBatches) else [images])]
        if len(layouts) == 1 and all(isinstance(column, torch.Tensor) for column in columns):
            columns = list(map(self._in_format, columns))
            return _collated(samples, columns, layouts.pop(), epoch.route.device)
        made = moved(collated(_filled(samples, images, epoch.route.device, len(layouts) > 1)), epoch.route.device)
        if any(one.stacked for one in samples):
            return made
        for path in {path for layout in layouts for paths in layout for path in paths}:
            with suppress(LookupError, TypeError):  # default_collate takes the keys that the first sample has
                whole = at(made, path)
                made = put(made, path, self._in_format(whole)) if isinstance(whole, torch.Tensor) else made
        return made

    def _gather_bad(self) -> None:
        """``bad`` has samples from now on, and each the source of the image that is bad."""
        for row in sorted(row for row in self.bad if row >= len(self)):
            error, sample = self.bad.pop(row), self._samples_of.of[row]
            if sample not in self.bad:
                self.bad[sample], self._samples_of.sources[sample] = error, self.sources[row]

    def _samples(self, images: Any) -> list[Any]:
        return _filled(self.targets, images, self.epoch.route.device)

    def _substitute(self) -> None:
        if self._settled:
            super()._substitute()

    def _mended(self, images: Any) -> Any:
        """The images, with rows that the data set itself can make; ``bad`` are the others.

        Raises:
            Exception: what the data set raises, unless on_error is for it.
        """
        errors, made = self.epoch.errors, list(images)
        for row in sorted(row for row in self.bad if self.places[row][0] is not None):
            error = self.bad[row]
            try:
                sample = self._really(row)
            except Exception as own:
                unreadable = isinstance(error, (ImageReadError, str)) or errors.in_python
                if self._stands_in or errors.policy == "raise" or not unreadable:
                    raise
                self.bad[row] = reason_of(own)
                continue
            del self.bad[row]
            self._samples_of.put(row, sample)
            made.insert(sum(other not in self.bad for other in range(row)), None)
        return images if len(made) == len(images) else made


def _stacked(images: Any) -> Any:
    """One tensor of images that torchvision's own functions have made, where they are alike; else as they are."""
    if isinstance(images, torch.Tensor) or not images or not all(isinstance(one, torch.Tensor) for one in images):
        return images
    return uniform(images)


def _filled(samples: Sequence[Sample], images: Any, device: torch.device, mixed: bool = False) -> list[Any]:
    """The samples as the data set would give them, images on the device where those are; ``mixed``: whoever
    has made them."""
    flat = (one for image in images for one in (image if type(image) is tuple else (image,)))
    place = next((one.device for one in flat if isinstance(one, torch.Tensor)), device)
    made = []
    for sample, image in zip(samples, images, strict=True):
        count = len(sample.images)
        filled = sample.finished(image) if count == 1 else sample.finished(*image or ())
        moves = place.type != "cpu" and (count != 1 or mixed)
        made.append(mapped(filled, lambda tensor: _on(place, tensor)) if moves else filled)
    return made


def _on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """An image; targets stay where they are."""
    return tensor.to(device) if tensor.ndim >= 3 else tensor


def _collated(samples: Sequence[Sample], columns: Sequence[torch.Tensor], layout: Any, device: torch.device) -> Any:
    """Returns what default_collate makes of them."""
    if layout == (((),),):
        return columns[0]
    made = collated([one.filled(*[number] * len(layout)) for number, one in enumerate(samples)])
    for column, paths in zip(columns, layout, strict=True):
        for path in paths:  # an image that a sample has twice becomes two tensors there
            made = put(made, path, column if path is paths[0] else column.clone())
    if any(one.stacked for one in samples):
        made = exchanged(made, {Stack}, Stack.joined)
    return moved(made, device)
