"""The iterator of a loader. It draws indices from torch's sampler, and returns batches in that order."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections import deque
from functools import partial
from itertools import islice
from threading import RLock
from time import perf_counter
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..errors import InconsistentEngine, with_remedy
from ..runtime.decorators import named, no_compile, one_at_a_time
from ..runtime.forks import at_fork, end_daemons_at_exit, leak_in_child, unlock_all, wait_for_daemons
from ..runtime.internals import callers
from .collate import add_remedy
from .dali_batch import DaliBatch
from .epoch import DaliEpoch, Epoch
from .on_error import NOTHING
from .prefetch_thread import PrefetchThread
from .progress import Loaded, Progress, skipped
from .samplers import Indices, loop_dependent, max_draw_ahead

_PACKAGE = __name__.partition(".")[0] + "."
PARENTS_ITERATOR = "this iterator belongs to the parent process; call iter(loader) in the child"
_INTERRUPTED = "an interrupt has stopped this epoch in the middle of a batch; iter(loader) starts another epoch"


class OrderedIterator(_BaseDataLoaderIter):
    """The iterator that ``iter(loader)`` returns.

    If num_workers > 0, indices are drawn num_workers * prefetch_factor batches ahead, as in torch, but at least
    ``route.depth``. If it is 0, they are drawn up to ``route.depth`` batches ahead, from the first next() on. Batches
    are then loaded one by one if a custom sampler or a target_transform may depend on the training loop, and are
    started again if the user has changed their paths or targets. A thread (prefetch_thread.py) prepares batches unless
    this runs user code.

    If an exception such as KeyboardInterrupt interrupts next(), the batches in flight are discarded, and further calls
    of next() raise RuntimeError.
    """

    _batch: Any = DaliBatch  # class of the batches
    _skipped: Any = staticmethod(skipped)
    _prefetch_thread: PrefetchThread | None = None

    def __init__(self, loader, route: Any):
        if loader.num_workers and loader.prefetch_factor == 0:
            raise AssertionError("prefetch_factor must be greater than 0")  # as torch's iterator does
        self.progress: Progress = loader._history.begin(loader)
        pinned, loader.pin_memory = loader.pin_memory, False  # has no effect, and torch may warn about it
        try:
            super().__init__(loader)
        finally:
            loader.pin_memory = pinned
        self.progress.seeded(int(self._base_seed))
        if loader.num_workers:  # torch also calls iter() of the sampler twice
            self._sampler_iter = iter(self._index_sampler)
        self._ahead = max(loader.num_workers * (loader.prefetch_factor or 0), route.depth)
        self._max_draw_ahead = 0 if loop_dependent(loader) else max_draw_ahead(self._index_sampler)
        self._drawn: deque[Any] = deque()
        self._begin(loader, route)

    def _reset(self, loader, first_iter=False) -> None:
        """Start the next epoch of a persistent iterator, which keeps its base seed."""
        self.progress = loader._history.begin(loader, before=self.progress)
        super()._reset(loader, first_iter)
        if self._pid == os.getpid():
            self._abandon()
        else:  # forked child: batches in flight belong to the parent
            leak_in_child((self._drawn, self._prefetch_thread))
            self._drawn, self._prefetch_thread = deque(), None
        self._begin(loader, loader._route)  # just chosen by iter()

    def _begin(self, loader, route: Any) -> None:
        # torch's persistent workers continue their RNG; this loader advances the seed instead
        unlock_all()  # an interrupt may have left locks held
        self._pid, self.next_lock = os.getpid(), RLock()
        self._epoch = self._epoch_of(loader, route)
        live_iterators.add(self)
        self._position = 0  # number of indices drawn
        self._consumed = 0  # batches that were returned, have failed, or were dropped by on_error
        self._first = 0  # initial value of ``_consumed``
        self._interrupted = False  # True during next(), and after an interrupt
        self._epoch.meter.follow(self)
        if self.progress.resumes:
            self._resume(loader)
        self.progress.finish_resume()
        if self._num_workers:
            self._draw_indices()

    def _resume(self, loader) -> None:
        """Skip the batches returned before the checkpoint. Draw again the indices that had been drawn ahead."""
        progress = self.progress
        self._sampler_iter = progress.resumed_batches(loader, self._sampler_iter, self._skipped)
        drawn, exhausted = progress.drawn, progress.exhausted
        self._position, self._consumed, self._first = progress.samples, progress.given, progress.given
        progress.drawn, progress.exhausted = progress.given, False
        while progress.drawn < drawn + exhausted and not progress.exhausted:
            self._draw_one()

    def _epoch_of(self, loader, route: Any) -> Epoch[Any]:
        return DaliEpoch(loader, route, self.progress)

    def _indices(self, index) -> Indices:
        """Return the indices of one batch as a list. Tensors are cloned, because a sampler may reuse them."""
        index = index.clone() if isinstance(index, torch.Tensor) else index
        return list(index) if self._auto_collation else [index]

    @no_compile
    @end_daemons_at_exit
    @with_remedy()
    @named("next")
    @one_at_a_time
    def _next_data(self):
        if self._pid != os.getpid():
            raise RuntimeError(PARENTS_ITERATOR)
        if self._interrupted:
            raise RuntimeError(_INTERRUPTED)
        self._interrupted = True  # set to False if this call completes
        try:
            made = self._next_batch()
        except InconsistentEngine as error:  # a later batch may have stored the exception of a signal handler
            stored = (batch.error for batch in self._drawn if batch.error is not None)
            raise next(stored, RuntimeError(str(error))) from None
        finally:
            if self._interrupted:  # release what the next epoch needs
                unlock_all()
                self._abandon()
        return made

    def _next_batch(self) -> Any:
        """Return the next batch that has samples, and count it."""
        meter = self._epoch.meter
        since = meter.clocks()
        try:
            made = NOTHING
            while made is NOTHING:  # on_error has left no sample
                batch, made = self._make()
        except BaseException as error:
            meter.add_time(since)
            if isinstance(error, StopIteration):
                meter.exhausted(self._epoch.route)
            else:
                self.progress.ended_by = type(error)
            raise
        meter.count_batch(len(batch.indices), made)
        meter.add_time(since)
        samples = batch.begin + len(batch.given_indices)
        self.progress.record_returned(Loaded(self._consumed, samples, indices=batch.given_indices))
        self._interrupted = False
        return made

    def _make(self) -> tuple[Any, Any]:
        """Return (Batch, collated samples) of the next batch, and submit the following batches to DALI. The samples are
        NOTHING if on_error has skipped all."""
        if self._prefetch_thread is not None:
            begin = perf_counter()
            self._prefetch_thread.wait()
            self._epoch.meter.waited_for_dali(perf_counter() - begin)
        if not self._num_workers and self._drawn:
            self._drawn[0].refresh()
        self._draw_indices()
        self._start_batches()
        self._stop_at_the_end()
        return self._finish_first()

    def _stop_at_the_end(self) -> None:
        if not self._drawn:
            self._interrupted = False  # next() may be called again if errors.end() raises a warning
            self._epoch.errors.end(self._position)
            self._epoch.end()
            self.progress.over = True
            raise StopIteration

    def _finish_first(self) -> tuple[Any, Any]:
        """Return (Batch, collated samples) of the first batch in flight. If the batch fails, raise its error. The next
        call then returns the following batch."""
        batch = self._drawn[0]
        try:
            made = batch.finish()
        except Exception as error:
            add_remedy(error, self._dataset, batch.given_indices)
            self._drop_first(batch)
            self._interrupted = False
            raise
        self._drop_first(batch)
        return batch, made

    def _drop_first(self, batch: Any) -> None:
        """Remove the first batch in flight, and start later batches."""
        self._drawn.popleft()
        batch.forget_errors()
        self._consumed += 1
        self._work_ahead()

    def _work_ahead(self) -> None:
        epoch: Any = self._epoch
        if not epoch.prefetches:
            if self._num_workers:
                self._draw_indices()
            self._start_batches()
            if epoch.engine is not None:
                for batch in islice(self._drawn, epoch.route.depth - 1):  # the last one's files are not read yet
                    batch.decode()
            return
        self._draw_indices(least=0)  # not so far ahead that user code might notice
        batches = list(islice(self._drawn, epoch.route.depth + 1))
        if batches:
            self._prefetch_thread = self._prefetch_thread or PrefetchThread(epoch.route.device)
            self._prefetch_thread.submit(partial(_prefetch_batches, batches, epoch))

    def _draw_indices(self, ahead: int = 0, least: int = 1) -> None:
        """Draw indices ahead, for as many batches as the prefetch settings allow, but for at least
        max(``least``, ``ahead``) batches."""
        torchs = self._ahead if self._num_workers else min(self._ahead, self._max_draw_ahead - self._consumed)
        ahead = max(least, ahead, torchs)
        while not self.progress.exhausted and len(self._drawn) < ahead and self._draw_one():
            pass
        if self._epoch.fetcher is not None:
            for batch in self._drawn:
                batch.request()

    def _draw_one(self) -> bool:
        """Draw the indices of the next batch. Return False if there are none. With workers, raise the sampler's error
        at once. Without workers, return False, and raise it in a later next()."""
        try:
            index = self.progress.draw(self._sampler_iter)
        except StopIteration:
            return False
        except Exception as error:
            if self._num_workers:  # torch also raises this at once, and drops the current batch
                self._interrupted = False
                raise
            # raised by next() after the batches that were drawn before
            self._drawn.append(self._batch(self._epoch, [], self._position, error))
            return False
        batch = self._batch(self._epoch, self._indices(index), self._position)
        self._position += len(batch.indices)
        self._drawn.append(batch)
        return True

    def _start_batches(self) -> None:
        """Start the first batches, up to the number that the route may have in flight."""
        for batch in islice(self._drawn, self._epoch.route.depth):
            if not batch.started:
                batch.start()

    @property
    def route(self) -> Any:
        return self._epoch.route

    def end(self) -> None:
        """Discard the batches in flight, because another iterator replaces this one."""
        self._abandon()
        self.progress.exhausted = True

    @property
    def in_flight(self) -> int:
        """Number of batches in flight. Thread-safe."""
        return min(self._epoch.route.depth, len(self._drawn))

    def _abandon(self, may_hold_lock: bool = False) -> None:
        """Discard the batches in flight, and end the epoch and the prefetch thread. Do not wait for the thread if the
        caller may hold a lock."""
        if self._epoch.fetcher is not None:
            self._epoch.fetcher.close()  # the prefetch thread may be waiting for objects
        if self._prefetch_thread is None:
            _discard(self._drawn, self._epoch)
            return
        drawn, self._drawn = self._drawn, deque()
        self._prefetch_thread.end(partial(_discard, drawn, self._epoch), waits=not may_hold_lock)
        self._prefetch_thread = None

    def __del__(self, getpid=os.getpid, ending=sys.is_finalizing):  # defaults, as modules are cleared at shutdown
        if hasattr(self, "_epoch") and self._pid == getpid() and not ending():
            self._abandon(may_hold_lock=in_the_package())


live_iterators: weakref.WeakSet[Any] = weakref.WeakSet()
"""All iterators. A forked child leaks them, because it must not free their GPU resources."""


@atexit.register
def _abandon_all() -> None:
    """End this process's OrderedIterators at exit, before modules are cleared."""
    wait_for_daemons()
    for iterator in list(live_iterators):
        if isinstance(iterator, OrderedIterator) and iterator._pid == os.getpid():
            iterator._abandon()


def _leak_in_child() -> None:
    for iterator in list(live_iterators):
        leak_in_child(iterator)


at_fork("iterators", after_in_child=_leak_in_child)


def in_the_package() -> bool:
    """Return True if the garbage collector has interrupted this package's code to call __del__()."""
    calls = islice(callers(), 1, None)  # without __del__() itself
    return any(call.f_globals.get("__name__", "").startswith(_PACKAGE) for call in calls)


def _discard(drawn: deque[Any], epoch: Epoch) -> None:
    while drawn:
        batch = drawn.popleft()
        batch.discard()
        batch.forget_errors()
    epoch.meter.close()
    epoch.end()


def _prefetch_batches(batches: list[DaliBatch], epoch: DaliEpoch) -> None:
    """Start the next batches, and prepare the first of them, in the prefetch thread. For batches beyond the route's
    depth, only request the headers."""
    epoch.prefetches = epoch.may_prefetch()
    if not epoch.prefetches:  # the user has changed the data set, so next() starts batches
        return
    batches, later = batches[: epoch.route.depth], batches[epoch.route.depth :]
    new = [batch for batch in batches if not batch.started]
    for batch in new + (later if epoch.prefetcher is not None else []):
        batch.announce()  # later stages do not depend on the data set
    if batches[-1].waits_for_headers and batches[0].started and epoch.prepares:
        batches[0].prepare()  # other processes read headers meanwhile
    for batch in new:
        batch.start()
    for batch in batches[:-1]:  # the last one's files are not read yet
        batch.decode()
    if epoch.prepares:
        batches[0].prepare()
