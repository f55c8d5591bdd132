"""Asks a data set of the user's for samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..data.sources import BYTES, PATHS
from ..inspection.objects import root
from .hooks import answer_types, hooked
from .images import later_of
from .operations import Numbers
from .recipes import RecipeChain, Recipes
from .record import Recording
from .samples import Sample, TracedSample, traced
from .static_checks import that_ask_types, with_inner
from .tracer import Tracer

Bad = Callable[[int, Exception], None]
Begin = Callable[[int], None]


class Asker:
    """Asks for samples, as torch's fetcher does.

    Args:
        dataset: the user's.
        recipes: of its images, by what they are read from, PATHS or BYTES.
        since, meets_damage: as Tracer's.

    Attributes:
        asked, real: how many samples so far, and how many of them have no image that goes through DALI.
        why: what the data set did with the first of these.
    """

    def __init__(self, dataset, recipes: dict[str, Recipes], since: int, meets_damage: bool = False):
        self.dataset, self.since = dataset, since
        self._recipes, self._meets_damage = recipes, meets_damage
        self.asked = self.real = 0
        self.why = ""
        for one in with_inner(dataset):
            answer_types(that_ask_types(one))

    def ask(
        self, indices, bad: Bad | None = None, begin: Begin = lambda row: None, finish=TracedSample.sample
    ) -> list[Sample]:
        """The samples of a batch. ``bad`` takes what a sample raises, and its row; the sample is empty then. ``begin``
        sets the generators before the sample of a row, to the same where it is called twice. ``finish`` makes a Sample
        of each TracedSample.

        A stand-in that somebody still has, a cache of the user's perhaps, is made real, so that all have the same one.

        Raises:
            Exception: what the data set raises.
        """
        tracer = Tracer(self.since, self._meets_damage)
        with hooked(tracer):
            many = getattr(self.dataset, "__getitems__", None)
            if many and bad is None and root(getattr(many, "__func__", many)) != "torch":
                begin(0)
                came = [traced(one, tracer.notes) for one in many(list(indices))]
            else:
                came = [self._one(tracer, row, index, bad, begin) for row, index in enumerate(indices)]
            for stand_in in tracer.notes.left():
                later_of(stand_in).value("keeps an image, or gives an object that has it")
            samples = [finish(one) for one in came]
        self.why = self.why or tracer.notes.why
        return samples

    def place(self, recording: Recording) -> tuple[RecipeChain, Numbers]:
        """The chain that an image goes through, and its numbers there."""
        return self._recipes_of(recording).place(recording.batch_steps, recording.size)

    def place_views(self, recordings: Sequence[Recording]) -> tuple[RecipeChain, Numbers] | None:
        """The chain that several images go through together, and their numbers there; None where they are not of one
        file, or go apart."""
        first = recordings[0]
        kind = type(first.source)
        if not all(type(one.source) is kind and one.source == first.source for one in recordings):
            return None
        return self._recipes_of(first).place_views([one.batch_steps for one in recordings], first.size)

    def _recipes_of(self, recording: Recording) -> Recipes:
        return self._recipes[PATHS if isinstance(recording.source, str) else BYTES]

    def really(self, index) -> Sample:
        """A sample that the data set makes itself."""
        return Sample(self.dataset[index])

    def _one(self, tracer: Tracer, row: int, index, bad: Bad | None, begin: Begin) -> TracedSample:
        before, met = tracer.notes.count, None
        begin(row)
        try:
            return traced(self.dataset[index], tracer.notes)
        except Exception as error:
            met = error
        try:
            if tracer.notes.count == before:
                raise met
            begin(row)
            with hooked(None):  # its stand-in may not have been what the user's code needs
                return TracedSample(self.dataset[index])
        except Exception as error:
            if bad is None:
                raise
            bad(row, error)
            return TracedSample(None)
        finally:
            met = None  # whose traceback holds the stand-in
