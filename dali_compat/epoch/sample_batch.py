"""A batch of a traced data set: its samples, and the images that they are made of."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..data.lookup import Found, Listed
from ..data.sources import is_record
from ..lazy.asker import Asker
from ..lazy.record import Recording
from ..lazy.samples import Sample, Wanted
from ..runtime.device import ViewBatches


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
