"""Samples of a data set of the user's, whose own code says what they are made of (lazy/).

The data set is asked in worker processes, or, without any, in the thread that iterates. It gives what was done to each
image, with which numbers. DALI does that to those of which it can do all; of others, masks for example, torchvision's
own functions do it once more, in threads. A sample of which an image cannot be made is asked for once more, and its own
code makes it, or raises torch's error.

Rows are images here: a sample may have several.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from ..data.lookup import Found, Listed
from ..data.sources import is_record
from ..errors import ImageReadError, read_error
from ..lazy.asker import Asker
from ..lazy.record import Recording
from ..lazy.samples import Sample, Wanted
from ..lazy.workers import Request, Ticket
from ..randoms import generator_states, set_generators
from ..runtime.device import ViewBatches
from .decode import RowImages, in_order
from .epoch import DaliEpoch
from .fallback import path_of
from .on_error import reason_of
from .rows import Rows


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

    def replayed(self, rows: Rows) -> list[RowImages]:
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

    def images(self, made: Sequence[RowImages]) -> Any:
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


class SampleBatch(Listed):
    """Samples, and their images. Rows are images: the first one of each sample, or nothing where all of that is real;
    behind them the second ones of those that have several, then the third. Where each sample has as many images, all of
    one file, a row is a sample, with these as its views.

    Args:
        samples: as the data set gave them.
        indices: of each.
        named: for messages, what stands for the image of a sample that has none.
        asker: who has asked for them.

    Attributes:
        targets: a Sample each.
        of: of each row its sample.
        replayed: the images that DALI does not make, by their rows.
    """

    def __init__(self, samples: list[Sample], indices: Sequence[Any], named: Callable[[int], str], asker: Asker):
        self.of: list[int] = []
        self.replayed: dict[int, Recording] = {}
        self._most = max([len(one.images) for one in samples], default=0)
        self._asker, self._numbers = asker, list[tuple[float, ...]]()
        super().__init__([], [], samples)
        views = self._views()
        for sample, (chain, numbers) in enumerate(views):
            record = samples[sample].images[0].record
            self._put(sample, chain, _place(record, 0, indices[sample], len(chain)), record.source, numbers)
        for number in range(0 if views else max(1, self._most)):
            for sample, index in enumerate(indices):
                images = samples[sample].images
                if len(images) > number:
                    self._add(sample, images[number], number, index)
                elif not number:
                    self._put(sample, None, 0, named(sample), ())
        by_dali = {self.of[row] for row, (chain, _) in enumerate(self.places) if _is_for_dali(chain)}
        there = sum(bool(one.images) or one.value is not None for one in samples)  # others it could not make
        asker.asked += there
        asker.real += there - len(by_dali)

    def _views(self) -> list[tuple[Any, tuple[float, ...]]]:
        """The chain of each sample, and its numbers there; empty where rows are images."""
        if self._most < 2 or any(len(one.images) != self._most for one in self.targets):
            return []
        placed = []
        for one in self.targets:
            of_views = self._asker.place_views([image.record for image in one.images])
            if of_views is None:
                return []
            placed.append(of_views)
        return placed

    def _add(self, sample: int, image: Wanted, number: int, index: Any) -> None:
        chain, numbers = self._asker.place(image.record)
        if chain.is_replayed:
            self.replayed[len(self.of)] = image.record
        self._put(sample, chain, _place(image.record, number, index, len(chain)), image.record.source, numbers)

    def _put(self, sample: int, chain: Any, place: int, source: Any, numbers: tuple[float, ...]) -> None:
        self.places.append((chain, place))
        self.sources.append(source)
        self.of.append(sample)
        self._numbers.append(numbers)

    @property
    def leaves(self) -> list[Any]:
        """The chains, each once."""
        return [chain for chain in super().leaves if chain is not None]

    def found(self, chosen: Sequence[int] | None = None) -> list[Found]:
        """Rows by their chains, without those that are real, or replayed."""
        return super().found([row for row, (chain, _) in enumerate(self.places) if _is_for_dali(chain)])

    def put(self, row: int, sample: Sample) -> None:
        """A real sample takes a row's place."""
        self.places[row] = (None, 0)  # type: ignore[assignment]  # nobody asks for it any more
        self.targets[row] = sample
        self.replayed.pop(row, None)

    def randoms(self, begin: int, count: int) -> Callable[[int, int], np.ndarray]:
        """In the place of random numbers those that the rows from ``begin`` on were given."""
        given = self._numbers[begin : begin + count]
        made = np.zeros((count, max(map(len, given), default=0)))
        for row, numbers in enumerate(given):
            made[row, : len(numbers)] = numbers
        return lambda stream, k: made[:, :k]

    def columns(self, made: Sequence[tuple[Sequence[int], Any]]) -> list[Any] | None:
        """Returns, of (rows, images) of all rows, the first image of every sample, the second one, and so on, (N, C, H,
        W) each, or a list of N; None where samples have different numbers of images."""
        each = len(self.targets)
        if not self._most or any(len(sample.images) != self._most for sample in self.targets):
            return None
        if len(self.places) == each and self._most > 1:
            return [_run([(rows, _view(one, i)) for rows, one in made], 0, each) for i in range(self._most)]
        return [_run(made, begin, each) for begin in range(0, len(self.places), each)]

    def of_samples(self, made: Sequence[tuple[Sequence[int], Any]]) -> list[Any]:
        """Returns each sample's image, a tuple if there are several, and None if there is none."""
        images = {row: image for rows, several in made for row, image in zip(rows, several, strict=True)}
        by_sample: list[list[Any]] = [[] for _ in self.targets]
        for row, sample in enumerate(self.of):
            if row in images:
                by_sample[sample] += images[row] if type(images[row]) is tuple else (images[row],)
        return [several[0] if len(several) == 1 else tuple(several) or None for several in by_sample]


def _view(images: Any, number: int) -> Any:
    """Returns the images of this number, of rows that have several."""
    return images.batches[number] if isinstance(images, ViewBatches) else [views[number] for views in images]


def _is_for_dali(chain: Any) -> bool:
    return chain is not None and not chain.is_replayed


def _place(recording: Recording, number: int, index: Any, count: int) -> int:
    """The place of a sample's image of this number among the headers. What is in memory is another image each time."""
    if is_record(recording.source):
        return recording.source.index % count
    try:
        place = operator.index(index) * 4 + number
    except TypeError:  # a sampler of the user's may give anything
        place = hash(recording.source)
    return place % count


def _run(made: Sequence[tuple[Sequence[int], Any]], begin: int, count: int) -> Any:
    """The images of rows that follow each other: of a tensor, a part of it."""
    for rows, images in made:
        at = bisect_left(rows, begin)
        run = rows[at : at + count]
        if len(run) == count and run[0] == begin and run[-1] == begin + count - 1:
            # .data: who changes one image of a sample in place has not changed the others, to autograd
            return images[at : at + count].data if isinstance(images, torch.Tensor) else images[at : at + count]
    found = {row: image for rows, images in made for row, image in zip(rows, images, strict=True)}
    return [found[row] for row in range(begin, begin + count)]
