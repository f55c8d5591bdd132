"""Asks a data set of the user's for samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .chains import Chain
from .hooks import hooked, unasked
from .samples import Sample, settled, taken
from .tracer import Tracer

_FEW, _SHARE = 20, 0.5  # samples after which it is said that too many are real, and how many that is


class Asker:
    """Asks for samples, as torch's fetcher does.

    Args:
        dataset: the user's.
        roots: the chains without transforms, by what images are given as.
        since, whole, sets: as Tracer's.

    Attributes:
        asked, real: how many samples so far, and how many of them were made by the data set itself, or by PIL.
        why: what it did with the first of these.
        sets: as Tracer's, by now.
    """

    def __init__(
        self, dataset: Any, roots: dict[str, Chain], since: int, whole: set[int] | None = None, sets: str = ""
    ):
        self.dataset, self.roots, self.since, self._whole, self.sets = dataset, roots, since, whole, sets
        self.asked = self.real = 0
        self.why = ""

    def ask(self, indices: Sequence[Any], bad: Callable[[int, Exception], None] | None = None) -> list[Sample]:
        """The samples of a batch. ``bad`` takes what a sample raises, and its row; the sample is empty then.

        Raises:
            Exception: what the data set raises.
        """
        tracer = Tracer(self.roots, self.since, self._whole, self.sets)
        with hooked(tracer):
            many = getattr(self.dataset, "__getitems__", None)
            if many and bad is None:
                samples = taken(list(many(list(indices))), tracer.notes)
            else:
                samples = [self._one(tracer, row, index, bad) for row, index in enumerate(indices)]
            tracer.look()
            self.sets = tracer.sets
            samples = list(map(settled, samples))
        self.count(samples, tracer.notes.why)
        return samples

    def count(self, samples: list[Sample], why: str) -> None:
        """These samples came; ``why`` one of them is real."""
        self.asked += len(samples)
        self.real += sum(not one.images or any(image.chain.by_pil for image in one.images) for one in samples)
        self.why = self.why or why

    def really(self, index: Any) -> Sample:
        """A sample that the data set makes itself."""
        return Sample(self.dataset[index])

    @property
    def is_worth_it(self) -> bool:
        """Whether most samples are left to DALI."""
        return self.asked < _FEW or self.real <= _SHARE * self.asked

    def _one(self, tracer: Tracer, row: int, index: Any, bad: Callable[[int, Exception], None] | None) -> Sample:
        before, met = tracer.notes.count, None
        try:
            (sample,) = taken([self.dataset[index]], tracer.notes)
            return sample
        except Exception as error:
            met = error
        try:
            if tracer.notes.count == before:
                raise met
            with unasked():  # its stand-in may not have been what the user's code needs
                return self.really(index)
        except Exception as error:
            if bad is None:
                raise
            bad(row, error)
            return Sample(None)
        finally:
            met = None  # whose traceback holds the stand-in
