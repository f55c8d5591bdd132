"""One epoch on the DALI route."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from itertools import islice

from ..routes.dali import DaliRoute
from .aside import Aside
from .dali_batch import DaliBatch
from .dali_epoch import DaliEpoch
from .iterator import OrderedIterator, abandon


class DALIIterator(OrderedIterator[DaliRoute, DaliBatch]):
    """As OrderedIterator. Batches behind the one that is handed out are started aside, in a thread, where nothing of
    the user's has a part in it."""

    _epoch: DaliEpoch
    _aside: Aside | None = None

    def _begin(self, loader, route: DaliRoute) -> None:
        if self._aside is None:
            self._aside = Aside(route.device)
        super()._begin(loader, route)

    def _epoch_of(self, loader, route: DaliRoute, seed: int) -> DaliEpoch:
        return DaliEpoch(loader, route, seed)

    def _batch(self, *args) -> DaliBatch:
        return DaliBatch(*args)

    def _make(self) -> None:
        self._the_thread.wait()
        super()._make()

    def _start_again(self) -> None:
        self._settle()
        super()._start_again()

    def _look_ahead(self) -> None:
        if not self._epoch.starts_aside:
            super()._look_ahead()
            return
        self._draw_indices(least=0)  # the next one is drawn when it is asked for, where somebody may notice
        batches = [batch for batch in islice(self._drawn, self._epoch.route.depth) if not batch.started]
        if batches:
            self._the_thread.do(partial(_start, batches))

    def _abandon(self) -> None:
        drawn, self._drawn = self._drawn, deque()
        if self._aside is not None and self._aside.is_here:  # in the middle of its work
            self._aside.do(partial(abandon, drawn, self._epoch))
            return
        self._settle()
        abandon(drawn, self._epoch)

    @property
    def _the_thread(self) -> Aside:
        assert self._aside is not None  # from the beginning
        return self._aside

    def _settle(self) -> None:
        with suppress(Exception):  # of batches that nobody wants any more
            self._the_thread.wait()


def _start(batches: list[DaliBatch]) -> None:
    for batch in batches:
        batch.start()
