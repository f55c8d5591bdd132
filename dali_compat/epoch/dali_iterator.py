"""iter() of a loader on the DALI route."""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from ..lazy.workers import TracingWorkers
from ..routes.dali import DaliRoute
from ..runtime.forks import leak_in_child
from .dali_batch import DaliBatch
from .dali_epoch import DaliEpoch
from .iterator import OrderedIterator, abandon
from .prefetch_thread import PrefetchThread


class DaliIterator(OrderedIterator[DaliRoute, DaliBatch]):
    """Iterates once over files. Where no code of the user's has a part in it, a thread (prefetch_thread.py) starts
    batches and makes the next one while the caller works."""

    _epoch: DaliEpoch
    _aside: PrefetchThread | None = None
    _workers: TracingWorkers | None = None  # between two epochs

    def _reset(self, loader, first_iter=False) -> None:
        self._workers, self._epoch.asked_workers = self._epoch.asked_workers, None
        super()._reset(loader, first_iter)

    def _epoch_of(self, loader, route: DaliRoute) -> DaliEpoch:
        workers, self._workers = self._workers, None
        return DaliEpoch(loader, route, self._progress, workers)

    def _batch(self, *args) -> DaliBatch:
        return DaliBatch(*args)

    def _draw_indices(self, ahead: int = 0, least: int = 1) -> None:
        super()._draw_indices(ahead, least)
        if self._epoch.asked_workers is not None or self._epoch.fetcher is not None:
            for batch in self._drawn:
                batch.request()

    def _make(self) -> tuple[DaliBatch, Any]:
        if self._aside is not None:
            begin = perf_counter()
            self._aside.wait()
            self._epoch.meter.waited_for_dali(perf_counter() - begin)
        return super()._make()

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
            self._aside = self._aside or PrefetchThread(self._epoch.route.device)
            self._aside.do(partial(_work, batches, self._epoch))

    def _leave_to_the_parent(self) -> None:
        super()._leave_to_the_parent()
        leak_in_child(self._aside)
        self._aside = None

    def _abandon(self, within: bool = False) -> None:
        if self._epoch.fetcher is not None:
            self._epoch.fetcher.close()  # which the thread may wait for
        if self._aside is None:
            super()._abandon()
            return
        drawn, self._drawn = self._drawn, deque()
        self._aside.end(partial(abandon, drawn, self._epoch), waits=not within)
        self._aside = None


def _work(batches: list[DaliBatch], epoch: DaliEpoch) -> None:
    if not epoch.starts_aside:  # any more: the caller does it
        return
    for batch in batches:
        batch.announce()  # which finds the samples; what follows runs nothing of the user's
    if batches[-1].waits and batches[0].started and epoch.prepares:
        batches[0].prepare()  # meanwhile
    for batch in batches:
        batch.start()
    for batch in batches[:-1]:  # the last has just begun to read
        batch.decode()
    if epoch.prepares:
        batches[0].prepare()
