"""iter() of a loader on the DALI route."""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from itertools import islice
from time import perf_counter
from types import FrameType

from ..forked import keep
from ..lazy.workers import AskedWorkers
from ..routes.dali import DaliRoute
from .aside import Aside
from .asked_batch import AskedBatch
from .dali_batch import DaliBatch
from .dali_epoch import DaliEpoch
from .iterator import OrderedIterator, abandon

_PACKAGE = __name__.partition(".")[0] + "."


class DaliIterator(OrderedIterator[DaliRoute, DaliBatch]):
    """Iterates once over files. Where no code of the user's has a part in it, a thread (aside.py) starts batches and
    makes the next one while the caller works."""

    _epoch: DaliEpoch
    _aside: Aside | None = None
    _workers: AskedWorkers | None = None  # between two epochs

    def _reset(self, loader, first_iter=False) -> None:
        self._workers, self._epoch.asked_workers = self._epoch.asked_workers, None
        super()._reset(loader, first_iter)

    def _epoch_of(self, loader, route: DaliRoute) -> DaliEpoch:
        workers, self._workers = self._workers, None
        return DaliEpoch(loader, route, self._progress, workers)

    def _batch(self, *args) -> DaliBatch:
        return (DaliBatch if self._epoch.asker is None else AskedBatch)(*args)

    def _draw_indices(self, ahead: int = 0, least: int = 1) -> None:
        super()._draw_indices(ahead, least)
        if self._epoch.asked_workers is not None or self._epoch.fetcher is not None:
            for batch in self._drawn:
                batch.request()

    def _make(self) -> None:
        if self._aside is not None:
            begin = perf_counter()
            self._aside.wait()
            self._epoch.meter.waited_for_dali(perf_counter() - begin)
        super()._make()

    def _start_again(self) -> None:
        if self._aside is not None:
            self._aside.settle()  # what it has met is of batches that are made again
        super()._start_again()

    def _look_ahead(self) -> None:
        if self._epoch.asker is not None and self._epoch.asked_workers is None:
            return  # without workers torch's loader asks for a batch when it is needed
        if not self._epoch.starts_aside:
            super()._look_ahead()
            for batch in islice(self._drawn, self._epoch.route.depth - 1):  # the last has just begun to read
                batch.decode()
            return
        self._draw_indices(least=0)  # the next one is drawn when it is asked for, where somebody may notice
        batches = list(islice(self._drawn, self._epoch.route.depth))
        if batches:
            self._aside = self._aside or Aside(self._epoch.route.device)
            self._aside.do(partial(_work, batches, self._epoch))

    def _leave_to_the_parent(self) -> None:
        super()._leave_to_the_parent()
        keep(self._aside)
        self._aside = None

    def _abandon(self) -> None:
        if self._epoch.fetcher is not None:
            self._epoch.fetcher.close()  # which the thread may wait for
        aside, self._aside = self._aside, None
        drawn, self._drawn = self._drawn, deque()
        if aside is None:
            abandon(drawn, self._epoch)
            return
        aside.end(partial(abandon, drawn, self._epoch), within=_in_the_package(sys._getframe()))


def _in_the_package(frame: FrameType) -> bool:
    """Whether the garbage collector has ended an iterator, whose frame this is, in the middle of the package's work: a
    lock's block may be around it."""
    outside: FrameType | None = frame
    while outside is not None and outside.f_code.co_name in ("_abandon", "__del__", "_reset"):
        outside = outside.f_back
    while outside is not None:
        if outside.f_globals.get("__name__", "").startswith(_PACKAGE):
            return True
        outside = outside.f_back
    return False


def _work(batches: list[DaliBatch], epoch: DaliEpoch) -> None:
    if not epoch.starts_aside:  # any more: the caller does it
        return
    for batch in batches:
        batch.announce()
    if batches[-1].waits and batches[0].started and epoch.prepares:
        batches[0].prepare()  # meanwhile
    for batch in batches:
        if not epoch.starts_aside:
            return
        batch.start()
    for batch in batches[:-1]:  # the last has just begun to read
        batch.decode()
    if epoch.prepares and epoch.starts_aside:
        batches[0].prepare()
