"""One epoch on the DALI route: torch's sampler gives indices, DALI and torch give batches, in the sampler's order."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from torch.utils.data.dataloader import _BaseDataLoaderIter

from .batch import Batch
from .plan import Plan

if TYPE_CHECKING:
    from .engine.pipeline import DecodePipeline
    from .route import DaliRoute


class DALIIterator(_BaseDataLoaderIter):
    """Iterates once over a loader; made by ``iter(loader)``.

    Indices are drawn on torch's own schedule: with workers, num_workers * prefetch_factor batches ahead, otherwise as
    batches are asked for. DALI works on ``route.depth`` batches at a time.
    """

    def __init__(self, loader, route: DaliRoute):
        super().__init__(loader)
        self.route = route
        self.replays: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._ahead = max(loader.num_workers * (loader.prefetch_factor or 0), route.depth)
        self._pipelines: dict[Plan, DecodePipeline] = {}
        self._drawn: deque[Batch] = deque()
        self._epochs = 0
        self._begin()

    def _reset(self, loader, first_iter=False) -> None:
        """persistent_workers: torch keeps the iterator, and its base seed, for the next epoch."""
        super()._reset(loader, first_iter)
        self._abandon()
        self._epochs += 1
        self._begin()

    def _begin(self) -> None:
        # torch's persistent workers draw on where they were; here the next epoch takes the next seed
        self.seed = self._base_seed + self._epochs
        self._position = 0
        self._exhausted = False
        if self._num_workers:
            self._draw_indices()

    def _next_data(self):
        if self._pid != os.getpid():
            raise RuntimeError("this iterator belongs to the parent process; call iter(loader) in the child")
        self._draw_indices()
        self._start_batches()
        if not self._drawn:
            self._give_back()
            raise StopIteration
        batch = self._drawn.popleft()
        try:
            return batch.finish()
        finally:  # DALI works on the next batches while the caller uses this one
            if self._num_workers:
                self._draw_indices()
            self._start_batches()

    def _draw_indices(self) -> None:
        while not self._exhausted and len(self._drawn) < self._ahead:
            try:
                index = self._next_index()
            except StopIteration:
                self._exhausted = True
                return
            batch = Batch(self, list(index) if self._auto_collation else [index], self._position)
            self._position += len(batch)
            self._drawn.append(batch)

    def _start_batches(self) -> None:
        for i in range(min(self.route.depth, len(self._drawn))):
            self._drawn[i].start()

    def pipeline(self, plan: Plan, batch_size: int) -> DecodePipeline:
        """This iterator's pipeline for a plan, large enough for the batch."""
        pipeline = self._pipelines.get(plan)
        if pipeline is None or pipeline.batch_size < batch_size:
            pipeline = self._pipelines[plan] = self.route.take_pipeline(plan, batch_size)
        return pipeline

    def replay_later(self, function, *args):
        """A future of what must go through PIL, one image a call."""
        if self.replays is None:
            self.replays = ThreadPoolExecutor(self.route.threads, thread_name_prefix="dali_compat-replay")
        return self.replays.submit(function, *args)

    def _abandon(self) -> None:
        for batch in self._drawn:
            batch.discard()
        self._drawn.clear()

    def _give_back(self) -> None:
        """The pipelines serve the next epoch."""
        while self._pipelines:
            self.route.return_pipeline(self._pipelines.popitem()[1])
        if self.replays is not None:
            self.replays.shutdown(wait=False, cancel_futures=True)
            self.replays = None

    def __del__(self):
        if getattr(self, "_pipelines", None) and self._pid == os.getpid():
            self._abandon()
            self._give_back()
