"""Iterators over a custom data set that torch's loader reads, while DALI and torch compute the images.

torch's samplers, fetchers and worker processes are used unchanged. ``collate_fn`` and ``worker_init_fn`` are wrapped
(tracing/worker.py) to return each batch as a TracedBatch.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

import torch.utils.data as data

from ..data.headers import Headers, headers_of
from ..errors import InconsistentEngine
from ..plan import Options, Plan
from ..routes.dali import MOST_PIPELINES, DaliRoute
from ..tracing.nodes import Tracing, tracing
from ..tracing.sources import FileTable
from ..tracing.worker import SeededIndex, SeededIndices, TracedCollate, TracingWorker, tracing_from_now
from .epoch import DaliEpoch
from .fallback import MultiProcessIterator, SingleProcessIterator, TorchIterator, _OnErrorCollate
from .iterator import PARENTS_ITERATOR, in_the_package, live_iterators
from .prefetch_thread import PrefetchThread
from .progress import Loaded, Progress
from .stats import Meter
from .traced_batch import ReceivedBatch, discard_all, finish_first, start_all


class TracedEpoch(DaliEpoch):
    """Pipelines and threads of an epoch over a custom data set."""

    def __init__(self, route: DaliRoute, meter: Meter, errors: Any):
        assert route.options is not None and route.table is not None
        self.route, self.meter, self.errors = route, meter, errors
        self.table: FileTable = route.table
        self.options: Options = route.options
        self.headers: Headers = headers_of(self.table)  # stores the JPEG engine's verdicts
        self.engine = route.jpeg_engine()
        self.over = False
        self.channels_last = self.options.channels_last
        self._pipelines, self._batch_counts = {}, {}
        self._for_dali: list[Plan] = []
        self._threads: ThreadPoolExecutor | None = None

    def pipeline(self, plan: Plan, batch_size: int, form: Any) -> Any:
        """Return this epoch's pipeline for a plan. Plans with the same DALI steps share a pipeline."""
        return super().pipeline(self.route.representative(plan), batch_size, form)

    def may_have_pipeline(self, plan: Plan) -> bool:
        """Return True if a plan may have a DALI pipeline. Pipelines have threads, so only a few are open at a time."""
        plan = self.route.representative(plan)
        if not any(one is plan for one in self._for_dali) and len(self._for_dali) < MOST_PIPELINES:
            self._for_dali.append(plan)
        return any(one is plan for one in self._for_dali)


class _TracedIterator(TorchIterator):
    """torch's iterator, with images computed by DALI.

    Batches that workers have already sent are submitted to DALI, up to ``route.depth`` ahead. As in torch, indices are
    drawn when a batch is returned.
    """

    _epoch: TracedEpoch | None = None
    _ready: deque[ReceivedBatch] = deque()  # for __del__(), if the constructor fails
    _tracing: Tracing | None = None  # of the calling thread while it loads samples
    _prefetch_thread: PrefetchThread | None = None

    def __init__(self, loader: Any, route: DaliRoute, before: Progress | None):
        assert route.table is not None
        self._route, self._loader, self._table = route, loader, route.table
        self._ready: deque[ReceivedBatch] = deque()
        super().__init__(loader, route, before)
        self._loader = None  # else loader and iterator would form a reference cycle

    # ---- arguments of torch's loader

    def _wrapped(self, loader: Any) -> Any:
        wrapped = super()._wrapped(loader)
        if isinstance(wrapped.collate_fn, _OnErrorCollate):
            wrapped.collate_fn.function = TracedCollate(wrapped.collate_fn.function)
        else:
            wrapped.collate_fn = TracedCollate(wrapped.collate_fn)
        if loader.num_workers:
            wrapped.worker_init_fn = TracingWorker(wrapped.worker_init_fn, self._table, loader.exact)
        return wrapped

    def _begin(self, loader: Any, before: Progress | None = None) -> None:
        self._end_epoch()
        self._indexed = not isinstance(loader.dataset, data.IterableDataset)
        super()._begin(loader, before)
        self._epoch = TracedEpoch(self._route, self._meter, loader._errors)
        self._loader, self._pid = loader, os.getpid()
        live_iterators.add(self)
        self._position: int | None = None  # of the next sample in the epoch; None before the first draw

    def _draws_worker_seeds(self, loader: Any) -> bool:
        return loader.num_workers > 0 and isinstance(loader.dataset, data.IterableDataset)

    def _reloads_batches(self, loader: Any) -> bool:
        return isinstance(loader.dataset, data.IterableDataset)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            self._loader = None

    def _resume(self, loader: Any) -> None:
        if not self._num_workers or not self._indexed:
            super()._resume(loader)
            return
        with contextlib.suppress(StopIteration):
            while self.progress.drawn < self._draw_until:
                self._drawn.append(self._draw())

    def _draw(self) -> Any:
        if self._position is None:
            self._position = 0
            self.progress.seeded(int(self._base_seed))
            if self._num_workers and self._indexed and self.progress.resumes:
                self._skip_drawn(self._loader)  # torch sends indices to workers before _resume()
                self._position = self.progress.samples
        return super()._draw()

    def _seeded(self, index: Any) -> Any:
        if not self._num_workers or not self._indexed:
            return index
        assert self._position is not None
        order, begin, seed = self.progress.rank_order, self._position, self.progress.seed
        if not self._auto_collation:
            self._position += 1
            return SeededIndex(index, seed, order.place_of(begin))
        indices = list(index)
        self._position += len(indices)
        return SeededIndices(indices, seed, range(order.place_of(begin), order.place_of(self._position), order.world))

    # ---- batches

    def _next_one(self) -> Any:
        assert self._epoch is not None
        if self._pid != os.getpid():
            raise RuntimeError(PARENTS_ITERATOR)
        self._epoch.check_open()
        try:
            return super()._next_one()
        except InconsistentEngine as error:  # as in iterator.py
            stored = (received.error for received in self._ready if received.error is not None)
            raise next(stored, RuntimeError(str(error))) from None

    def _receive(self) -> ReceivedBatch:
        """Return torch's next batch, or a ReceivedBatch with torch's error."""
        batch, failure = None, None
        try:
            with tracing(self._tracing):
                batch = super()._fetch()
        except Exception as error:
            failure = error
        try:
            return ReceivedBatch(batch, failure, self._loaded)
        finally:
            # break the reference cycle of error and frame, because collecting the cycle would stop torch's queues
            del failure

    def _finish(self, received: ReceivedBatch) -> Any:
        """Return a received batch with its images, or raise its error."""
        assert self._epoch is not None
        self._loaded = received.loaded
        received.start(self._epoch)
        received.finish()
        batch, error = received.batch, received.error
        del received
        if error is not None:
            try:
                raise error
            finally:
                del error  # as in _receive()
        return batch

    def _fetch(self) -> Any:
        return self._finish(self._receive())

    def _end_epoch(self, may_hold_lock: bool = False) -> None:
        """Discard the batches in flight and end the epoch.

        ``may_hold_lock`` is whether the garbage collector has interrupted code of this package, which may hold a lock.
        """
        work = partial(discard_all, list(self._ready), self._epoch)
        self._ready.clear()
        thread, self._prefetch_thread = self._prefetch_thread, None
        if thread is None:
            work()
        else:
            thread.end(work, waits=not may_hold_lock)

    @property
    def in_flight(self) -> int:
        return super().in_flight + len(self._ready)


class TracedSingleProcess(_TracedIterator, SingleProcessIterator):
    def __init__(self, loader: Any, route: DaliRoute, before: Progress | None):
        assert route.table is not None
        self._tracing = tracing_from_now(route.table, loader.exact)
        super().__init__(loader, route, before)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be empty by then
        if not is_finalizing():
            self._end_epoch()


class TracedMultiProcess(_TracedIterator, MultiProcessIterator):
    _receives_ahead = False
    _undrawn = 0  # number of indices that were not drawn when batches were received ahead, and still have to be

    def _begin(self, loader: Any, before: Progress | None = None) -> None:
        self._undrawn = 0
        super()._begin(loader, before)
        self._received = self._loaded  # with the batches received ahead

    def _resume(self, loader: Any) -> None:
        super()._resume(loader)
        if self._indexed:  # for a stream, batches that were loaded again are counted already
            self._loaded = self._received = Loaded(self.progress.given, self.progress.samples)

    def _count_loaded(self) -> None:
        self._loaded = self._received
        super()._count_loaded()
        self._received = self._loaded

    def _try_put_index(self) -> None:
        if self._receives_ahead:
            self._undrawn += 1
        else:
            super()._try_put_index()

    def _fetch(self) -> Any:
        assert self._epoch is not None
        if self._prefetch_thread is not None:
            begin = perf_counter()
            self._prefetch_thread.wait()
            self._meter.waited_for_dali(perf_counter() - begin)
        if not self._ready:
            self._ready.append(self._receive())
        elif self._undrawn:
            self._undrawn -= 1
            super()._try_put_index()
        self._receive_ahead()
        if not self._ready[0].is_finished:
            start_all(self._ready, self._epoch)
        batch = self._finish(self._ready.popleft())
        if self._ready:
            self._prefetch_thread = self._prefetch_thread or PrefetchThread(self._route.device)
            self._prefetch_thread.submit(partial(finish_first, list(self._ready), self._epoch))
        return batch

    def _receive_ahead(self) -> None:
        """Receive batches that have arrived, without drawing new indices."""
        before = self._loaded
        self._receives_ahead = True
        try:
            # stop after an error, because its traceback may hold a connection that the worker waits for
            while len(self._ready) < self._route.depth and self._ready[-1].error is None and self._has_arrived():
                self._ready.append(self._receive())
        finally:
            self._receives_ahead = False
            self._loaded = before

    def _has_arrived(self) -> bool:
        """Return True if the next batch can be received without waiting. Store later batches that arrive first."""
        info = self._task_info.get(self._rcvd_idx)
        if info is None:
            return False
        while len(info) == 1 and not self._data_queue.empty():
            if not self._indexed or not getattr(self, "_in_order", True):  # torch returns these in order of arrival
                return True
            success, received = self._try_get_data()
            if not success:
                return False
            number, batch = received
            self._tasks_outstanding -= 1
            self._task_info[number] += (batch,)
            info = self._task_info[self._rcvd_idx]
        return len(info) > 1

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # as in TracedSingleProcess
        if not is_finalizing():
            self._end_epoch(may_hold_lock=in_the_package())
        super().__del__()
