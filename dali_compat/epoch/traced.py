"""Samples of a data set of the user's, whose own code says what they are made of (lazy/).

The data set is asked in worker processes, or, without any, in the thread that iterates. It gives what was done to each
image, with which numbers. DALI does that to those of which it can do all; of others, masks for example, torchvision's
own functions do it once more, in threads. A sample of which an image cannot be made is asked for once more, and its own
code makes it, or raises torch's error.

Rows are images here: a sample may have several (sample_batch.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ..errors import ImageReadError, read_error
from ..lazy.samples import Sample, Stack, at, exchanged, put
from ..lazy.workers import Request, Ticket
from ..ops.pixels.lists import uniform
from ..randoms import generator_states, set_generators
from ..runtime.device import ViewBatches, mapped, moved
from .collate import collated, collated_by_the_user, in_the_routes_format
from .epoch import DaliEpoch
from .fallback import path_of
from .on_error import reason_of
from .part import Given, in_order
from .rows import Rows
from .sample_batch import SampleBatch


class Traced:
    """The samples of one batch. ``bad``: the batch's; samples, and after look_up() rows, that cannot be made."""

    samples: SampleBatch

    def __init__(self, epoch: DaliEpoch, indices: list[Any], begin: int, bad: dict[int, Exception | str]):
        self.epoch, self._indices, self._begin, self.bad = epoch, indices, begin, bad
        self._files: dict[int, str] = {}  # of samples that the data set could not make
        self._ticket: Ticket | None = None  # what workers are to answer
        self._replays: dict[int, Future] | None = None  # by their rows
        self._states: dict[int, Any] = {}  # of the generators, before each sample

    # ---- asked

    def request(self) -> None:
        """Workers are asked for the samples, if there are any, and were not yet. An exception waits for look_up()."""
        workers = self.epoch.tracing_workers
        if workers is not None and self._ticket is None:
            try:
                self._ticket = workers.ask(self._request(range(len(self._indices))))
            except TimeoutError:  # a signal's handler has raised it
                raise
            except (RuntimeError, OSError):
                pass

    def _request(self, samples: Sequence[int], really: bool = False) -> Request:
        errors, place_of = self.epoch.errors, self.epoch.rank_order.place_of
        indices, places = ([self._indices[i] for i in samples], [place_of(self._begin + i) for i in samples])
        return Request(
            indices, self.epoch.seed, places, () if really or errors.policy == "raise" else errors.covers, really
        )

    def look_up(self) -> Rows:
        """Returns the images of the samples; the data set is asked."""
        epoch = self.epoch
        assert epoch.asker is not None  # whose batch this is
        workers = epoch.tracing_workers
        if workers is None:
            given = self._samples_here()
        else:
            self._ticket = self._ticket or workers.ask(self._request(range(len(self._indices))))
            given = workers.samples(self._ticket, self._failed)
        self.samples = samples = SampleBatch(given, self._indices, self._named, epoch.asker)
        indices = [self._indices[sample] for sample in samples.of]
        return Rows(epoch, samples, indices, self._begin, self.bad, True, samples.randoms)

    def _named(self, row: int) -> str:
        """For messages, what stands for the image of a sample that has none."""
        return self._files[row] if row in self.bad else type(self.epoch.dataset).__name__

    def _samples_here(self) -> list[Sample]:
        asker, errors = self.epoch.asker, self.epoch.errors
        assert asker is not None

        def failed(row: int, error: Exception) -> None:
            if not isinstance(error, errors.covers):
                raise error
            self._failed(row, reason_of(error), path_of(self.epoch.dataset, self._indices[row], error))

        with self.epoch.as_in_a_worker(self._begin):
            return asker.ask(self._indices, None if errors.policy == "raise" else failed, self._begin_sample)

    def _begin_sample(self, row: int) -> None:
        """A sample that is asked for once more draws the same numbers."""
        if row in self._states:
            set_generators(self._states[row])
        else:
            self._states[row] = generator_states()

    def _failed(self, row: int, reason: str, file: str = "") -> None:
        """The data set has raised that."""
        self.bad[row], self._files[row] = reason, file or path_of(self.epoch.dataset, self._indices[row])

    # ---- made

    def begin_replays(self) -> None:
        """Threads begin with the images that torchvision's own functions make."""
        if self._replays is None:
            threads = self.epoch.in_thread
            self._replays = {row: threads(one.made) for row, one in self.samples.replayed.items()}

    def replayed(self, rows: Rows) -> list[Given]:
        """Rows that torchvision's own functions have made, and their images, unless there are none."""
        made: dict[int, Any] = {}
        for row, future in (self._replays or {}).items():
            error = future.exception()
            if error is None:
                made[row] = future.result()
            elif row not in self.bad:
                self.bad[row] = read_error(f"cannot make {rows.name(row)}: {error}", error)
        self._replays = {}
        return [(list(made), list(made.values()))] if made else []

    def discard(self) -> None:
        for future in (self._replays or {}).values():
            future.cancel()
        self._replays = {}

    def images(self, made: Sequence[Given]) -> Any:
        """Returns, of rows and their images, images as a batch of files has them, for samples with one image;
        ViewBatches where all have several. Else a list, with a tuple of several images, and None for samples that are
        real, or bad."""
        samples = self.samples
        if self.bad:
            return samples.of_samples(made)
        alone = all(len(sample.images) == 1 for sample in samples.targets)
        if alone and len(samples.of) == len(self._indices) and all(chain is not None for chain, _ in samples.places):
            return made[0][1] if len(made) == 1 else in_order(made)
        columns = samples.columns(made)
        return samples.of_samples(made) if columns is None else ViewBatches(columns)

    def mended(self, images: list[Any]) -> list[Any]:
        """The images of samples that are not bad, or that the data set itself can make; ``bad`` has samples from now
        on, and only those that it cannot.

        Raises:
            Exception: what the data set raises, unless on_error is for it.
        """
        self._gather_bad()
        errors, bad = self.epoch.errors, self.bad
        for row in sorted(row for row in bad if self.samples.places[row][0] is not None):
            error = bad[row]
            try:
                sample = self._really(row)
            except Exception as own:
                if errors.policy == "raise" or not (isinstance(error, (ImageReadError, str)) or errors.in_python):
                    raise
                bad[row] = reason_of(own)
                continue
            finally:
                del error  # it may refer to its traceback, and that to this frame
            del bad[row]
            self.samples.put(row, sample)
        return [image for row, image in enumerate(images) if row not in bad]

    def _gather_bad(self) -> None:
        """``bad`` has samples from now on, and each the source of the image that is bad."""
        samples = self.samples
        for row in sorted(row for row in self.bad if row >= len(self._indices)):
            error, sample = self.bad.pop(row), samples.of[row]
            if sample not in self.bad:
                self.bad[sample], samples.sources[sample] = error, samples.sources[row]

    def _really(self, row: int) -> Sample:
        """A sample that the data set makes itself."""
        asker, workers = self.epoch.asker, self.epoch.tracing_workers
        assert asker is not None
        if workers is not None:
            return workers.samples(workers.ask(self._request([row], really=True)))[0]
        now = generator_states()
        try:
            with self.epoch.as_in_a_worker(self._begin):
                self._begin_sample(row)
                return asker.really(self._indices[row])
        finally:
            set_generators(now)


def collate(epoch: DaliEpoch, samples: Sequence[Sample], images: Any, begin: int) -> Any:
    """Returns what samples become in collate_fn, on the device."""
    device = epoch.route.device
    if not epoch.default_collate:
        return collated_by_the_user(epoch, lambda images: _filled(samples, images, device), images, begin)
    layouts = {tuple([wanted.paths for wanted in one.images]) for one in samples}
    columns = [_stacked(one) for one in (images.batches if isinstance(images, ViewBatches) else [images])]
    in_format = partial(in_the_routes_format, epoch)
    if len(layouts) == 1 and all(isinstance(column, torch.Tensor) for column in columns):
        return _collated(samples, list(map(in_format, columns)), layouts.pop(), device)
    made = moved(collated(_filled(samples, images, device, len(layouts) > 1)), device)
    if any(one.stacked for one in samples):
        return made
    for path in {path for layout in layouts for paths in layout for path in paths}:
        with suppress(LookupError, TypeError):  # default_collate takes the keys that the first sample has
            whole = at(made, path)
            made = put(made, path, in_format(whole)) if isinstance(whole, torch.Tensor) else made
    return made


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
