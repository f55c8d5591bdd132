"""One epoch on the DALI route: torch's sampler gives indices, DALI and torch give batches, in the sampler's order."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Callable

from torch.utils.data import default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .batch import Batch
from .calls import Calls
from .lower import plans_ahead
from .plan import Plan

if TYPE_CHECKING:
    from .engine.pipeline import DecodePipeline
    from .route import DaliRoute
    from .sources import Form


class Epoch:
    """What the batches of one epoch share. It refers to no batch, so that the last reference to an iterator ends it.

    Attributes:
        dataset, collate_fn: the loader's.
        batched: whether torch's automatic batching is on.
        route: of the loader at iter().
        seed: of this epoch's random parameters.
        calls_processes: whether batches go from DALI to processes.
    """

    def __init__(self, loader, route: DaliRoute, seed: int):
        self.dataset, self.collate_fn, self.batched = loader.dataset, loader.collate_fn, loader._auto_collation
        self.in_workers = loader.num_workers > 0
        self.route, self.seed = route, seed
        self._pipelines: dict[tuple[Plan, Form], list[DecodePipeline]] = {}  # the last of a list is the one in use
        self._replays: ThreadPoolExecutor | None = None
        self.calls = Calls(seed, loader, route.device, route.depth)
        calls = [ahead.call for plan in route.plans for ahead in plans_ahead(plan) if ahead.call]
        for call in calls:
            self.calls.prepare(call)
        self.calls_processes = bool(calls) and self.in_workers

    @property
    def default_collate(self) -> bool:
        return self.collate_fn is default_collate and self.batched

    def pipeline(self, plan: Plan, batch_size: int, form: Form) -> DecodePipeline:
        """This epoch's pipeline for a plan, large enough for the batch."""
        pipelines = self._pipelines.setdefault((plan, form), [])
        if not pipelines or pipelines[-1].batch_size < batch_size:
            pipelines.append(self.route.borrow(plan, 2 * batch_size if pipelines else batch_size, form))
        return pipelines[-1]

    def replay_later(self, function: Callable, *args):
        """A future of what must go through PIL, one image a call."""
        if self._replays is None:
            self._replays = ThreadPoolExecutor(self.route.threads, thread_name_prefix="dali_compat-replay")
        try:
            return self._replays.submit(function, *args)
        except RuntimeError:  # the main thread has ended, and with it every executor; this thread lives on
            future = Future()
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)
            return future

    def end(self) -> None:
        """The pipelines serve the next epoch."""
        while self._pipelines:
            for pipeline in self._pipelines.popitem()[1]:
                self.route.give_back(pipeline)
        if self._replays is not None:
            self._replays.shutdown(wait=False, cancel_futures=True)
            self._replays = None
        self.calls.close()


class DALIIterator(_BaseDataLoaderIter):
    """Iterates once over a loader; made by ``iter(loader)``.

    With workers, indices are drawn on torch's own schedule: num_workers * prefetch_factor batches ahead. Without, they are
    drawn from the first next() on, ``route.depth`` batches ahead (torch: none ahead), for DALI works on as many at a time.
    """

    def __init__(self, loader, route: DaliRoute):
        super().__init__(loader)
        self._ahead = max(loader.num_workers * (loader.prefetch_factor or 0), route.depth)
        self._drawn: deque[Batch] = deque()
        self._epochs = 0
        self._begin(loader, route)

    def _reset(self, loader, first_iter=False) -> None:
        """persistent_workers: torch keeps the iterator, and its base seed, for the next epoch."""
        super()._reset(loader, first_iter)
        self._abandon()
        self._epochs += 1
        self._begin(loader, loader._choose_dali_route())

    def _begin(self, loader, route: DaliRoute) -> None:
        # torch's persistent workers draw on where they were; here the next epoch takes the next seed
        self._pid = os.getpid()
        self._epoch = Epoch(loader, route, self._base_seed + self._epochs)
        self._position = 0
        self._exhausted = False
        if self._num_workers:
            self._draw_indices()

    def _batch(self, *args) -> Batch:
        return Batch(*args)

    def _indices(self, index) -> list:
        """Of one batch, from what the sampler gave."""
        return list(index) if self._auto_collation else [index]

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError("this iterator belongs to the parent process; call iter(loader) in the child")

    def _next_data(self):
        self._check_process()
        self._draw_indices()
        self._start_batches()
        if not self._drawn:
            self._epoch.end()
            raise StopIteration
        for called, batch in enumerate(islice(self._drawn, self._epoch.route.depth), 1):
            batch.advance()
            if self._epoch.calls_processes:  # DALI is done with this one, and must not wait for the processes
                self._start_batches(called)
        batch = self._drawn.popleft()
        try:
            return batch.finish()
        finally:  # DALI works on the next batches while the caller uses this one
            if self._num_workers:
                self._draw_indices()
            self._start_batches()

    def _draw_indices(self, ahead: int = 0) -> None:
        while not self._exhausted and len(self._drawn) < max(self._ahead, ahead):
            try:
                index = self._next_index()
            except StopIteration:
                self._exhausted = True
                return
            except Exception as error:
                if self._num_workers:  # torch raises at once, too, where it draws ahead
                    raise
                # it belongs after the batches that were drawn before it
                self._drawn.append(self._batch(self._epoch, [], self._position, error))
                return
            batch = self._batch(self._epoch, self._indices(index), self._position)
            self._position += len(batch)
            self._drawn.append(batch)

    def _start_batches(self, called: int = 0) -> None:
        """``called``: how many of the first have left DALI."""
        for i in range(min(self._epoch.route.depth + called, len(self._drawn))):
            self._drawn[i].start()

    def _abandon(self) -> None:
        while self._drawn:
            self._drawn.popleft().discard()
        self._epoch.end()

    def __del__(self):
        if hasattr(self, "_epoch") and self._pid == os.getpid():
            self._abandon()
