"""What a data set that is asked has told of a batch: its samples, and the images that they are made of."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..data.lookup import Found, Listed
from ..data.sources import is_record
from ..draws import Randoms
from ..lazy.samples import Sample, Wanted

_FIRST = ((0, 0),)  # the draws of a sample's first image
_STREAMS = 32  # bits of a stream's number


class Told(Listed):
    """Samples, and their images. Rows are images: the first one of each sample, or nothing where all of that is real;
    behind them the second ones of those that have several, then the third.

    Args:
        samples: as the data set gave them.
        indices: of each.
        named: for messages, what stands for the image of a sample that has none.

    Attributes:
        targets: a Sample each.
        of: of each row its sample.
    """

    def __init__(self, samples: list[Sample], indices: Sequence[Any], named: Callable[[int], str]):
        of_samples = [one.images for one in samples]
        first = [images[0] if images else None for images in of_samples]
        places: list[Any] = [
            (None, 0) if image is None else (image.chain, _place(image, index))
            for image, index in zip(first, indices, strict=True)
        ]
        sources = [named(row) if image is None else image.source for row, image in enumerate(first)]
        super().__init__(places, sources, samples)
        self.of: Sequence[int] = range(len(samples))
        self._images = first
        self._most = max(map(len, of_samples), default=0)
        self._drawn_apart = self._most > 1 or any(
            image is not None and (image.draws != _FIRST or image.windows) for image in first
        )
        for number in range(1, self._most):
            self._add_images(number, indices)

    def _add_images(self, number: int, indices: Sequence[Any]) -> None:
        rows = [row for row, sample in enumerate(self.targets) if len(sample.images) > number]
        images = [self.targets[row].images[number] for row in rows]
        self.places += [
            (image.chain.of_image(number), _place(image, indices[row])) for row, image in zip(rows, images, strict=True)
        ]
        self.sources += [image.source for image in images]
        self.of, self._images = [*self.of, *rows], [*self._images, *images]

    @property
    def leaves(self) -> list[Any]:
        """The chains, each once."""
        return [chain for chain in super().leaves if chain is not None]

    def found(self) -> list[Found]:
        """Rows by their chains, without those that are real."""
        rows_of: dict[int, list[int]] = {}
        for row, (chain, _) in enumerate(self.places):
            if chain is not None:
                rows_of.setdefault(id(chain), []).append(row)
        found = []
        for rows in rows_of.values():
            index = np.array([self.places[row][1] for row in rows], np.int64)
            keys = np.fromiter((hash(self.sources[row]) for row in rows), np.int64, len(rows))
            found.append(Found(self.places[rows[0]][0], np.array(rows), index, keys))
        return found

    def put(self, row: int, sample: Sample) -> None:
        """A real sample takes a row's place."""
        self.places[row] = (None, 0)  # type: ignore[assignment]  # nobody asks for it any more
        self.targets[row] = sample

    def randoms(self, of_samples: Randoms, begin: int, count: int) -> Callable[[int, int], np.ndarray]:
        """The random numbers of rows from ``begin`` on; ``of_samples`` from the first one's sample on."""
        if not self._drawn_apart:
            return of_samples
        samples = np.array(self.of[begin : begin + count])
        return ImageRandoms(of_samples, samples - samples[0], self._images[begin : begin + count])

    def columns(self, made: Sequence[tuple[Sequence[int], Any]]) -> list[Any] | None:
        """Of (rows, images) of all rows: the first image of every sample, the second one, and so on, (N, C, H, W) each,
        or a list of N; None where samples have different numbers of images."""
        each = len(self.targets)
        if not self._most or any(len(sample.images) != self._most for sample in self.targets):
            return None
        return [_run(made, begin, each) for begin in range(0, len(self.places), each)]

    def of_samples(self, made: Sequence[tuple[Sequence[int], Any]]) -> list[Any]:
        """Of each sample its image, a tuple where there are several, and None where there is none."""
        images = {row: image for rows, several in made for row, image in zip(rows, several, strict=True)}
        by_sample: list[list[Any]] = [[] for _ in self.targets]
        for row, sample in enumerate(self.of):
            if row in images:
                by_sample[sample].append(images[row])
        return [several[0] if len(several) == 1 else tuple(several) or None for several in by_sample]


class ImageRandoms:
    """As Randoms, of images instead of samples, and with the windows that their samples' own code has chosen.

    Args:
        of_samples: the random numbers of the samples' first images.
        samples: (N,) int64, whose each image is, as a row of these.
        images: which have draws and windows.
    """

    def __init__(self, of_samples: Randoms, samples: np.ndarray, images: Sequence[Wanted | None]):
        self._of_samples, self._samples = of_samples, samples
        draws = [_FIRST if image is None else image.draws for image in images]
        self._draws = {one: number for number, one in enumerate(dict.fromkeys(draws))}
        self._kinds = np.array([self._draws[one] for one in draws])
        self._windows: dict[int, dict[int, tuple[int, ...]]] = {}  # by stream, then by row
        for row, image in enumerate(images):
            for stream, window in () if image is None else image.windows:
                self._windows.setdefault(stream, {})[row] = window

    def __call__(self, stream: int, k: int) -> np.ndarray:
        """(N, k) float64, of a step's stream."""
        of_kinds = [next(number for first, number in reversed(one) if first <= stream) for one in self._draws]
        numbers = np.array(of_kinds)[self._kinds]
        made = np.empty((len(numbers), k), order="F")
        for number in set(of_kinds):
            rows = np.flatnonzero(numbers == number)
            made[rows] = self._of_samples((number << _STREAMS) + stream, k)[self._samples[rows]]
        windows = self._windows.get(stream)
        if windows:
            numbers = np.array(list(windows.values()))[:, :k]  # of other chains' rows a step may draw fewer
            made[list(windows), : numbers.shape[1]] = numbers
        return made


def _place(image: Wanted, index: Any) -> int:
    """An image's place among the headers of its chain. What is in memory is another image each time."""
    if is_record(image.source):
        return image.source.index % len(image.chain)
    try:
        place = operator.index(index)
    except TypeError:  # a sampler of the user's may give anything
        place = hash(image.source)
    return place % len(image.chain)


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
