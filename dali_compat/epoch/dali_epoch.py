"""State shared by the batches of one epoch on the DALI route: pipelines, and threads for what goes through PIL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..data.base_datasets import leaves_of, objects_of
from ..data.headers import headers_of
from ..data.lookup import PLAIN, is_plain
from ..data.prefetch import HeaderPrefetcher
from ..data.sources import Form, current_folder
from ..data.table import SampleTable, table_of
from ..lazy.verdict import give_up
from ..lazy.workers import TracingWorkers
from ..plan import Plan
from ..remote.fetcher import Fetcher
from ..routes.choose import available_threads
from ..routes.dali import MOST_PIPELINES, DaliRoute
from ..translate.lower import plans_ahead
from .epoch import Epoch
from .progress import Progress

if TYPE_CHECKING:
    from ..engine.dali.pipeline import DecodePipeline


_ALONE = 16  # batches, before a second pipeline is opened: a short epoch needs none
_MANY, _PROCESSES = 4096, 4  # unseen files that are worth a process, and how many processes at most


class DaliEpoch(Epoch[DaliRoute]):
    """State shared by the batches of an epoch, with pipelines, and threads for what goes through PIL.

    Args:
        workers: of the epoch before, which live on (persistent_workers).

    Attributes:
        engine: of the GPU, for JPEGs, where it has one and a plan can use it.
        prefetcher: of headers, where a GPU decodes and many files of the data set were never looked at.
        folder: the working directory when it began, where relative paths are: the user's code may change to another
            while batches are made ahead.
        tables: of the data set's leaves, by their id(), as their samples were when it began.
        fetcher: of objects, where a leaf's images are in object storage.
        advances: whether DaliBatch.advance() has something to do.
        prepares: whether another thread (prefetch_thread.py) may make the next batch, too: no function of the user's
            has a part.
        asker: asks the data set, where it is the user's; asked_workers: does so in processes, where there are some.
    """

    tables: dict[int, SampleTable]
    asked_workers: TracingWorkers | None

    def __init__(self, loader, route: DaliRoute, progress: Progress, workers: TracingWorkers | None):
        self._for_dali: list[Plan] = []  # of a data set of the user's
        self._pipelines: dict[tuple[Plan, Form, int], DecodePipeline] = {}  # by their turn, too
        self._turns: dict[tuple[Plan, Form], int] = {}  # batches so far
        self._threads: ThreadPoolExecutor | None = None
        super().__init__(loader, route, progress)
        self.asker, self.asked_workers = route.asker, None
        self._workers_live_on = loader.persistent_workers  # as long as the iterator
        if self.asker is not None and loader.num_workers:
            self.asked_workers = workers or TracingWorkers(self.asker, loader, self.seed)
            self.asked_workers.begin_again(self.asker)
            self.asked_workers.start()
        elif workers is not None:
            workers.close()
        known = [] if self.asker is not None else leaves_of(loader.dataset)
        self.folder = current_folder()
        made = {id(leaf): table_of(leaf, self.folder) for leaf in known}
        self.tables = {key: table for key, table in made.items() if table is not None}
        ahead = [plan for first in route.all_plans for plan in plans_ahead(first)]
        users = any(plan.call or any(step.op == "apply" for step in plan.steps) for plan in ahead)  # apply: on_batch()
        self.prepares = not users
        calls = self.calls_here or self.calls_processes or self.asker is not None  # which may come with new plans
        self.advances = calls or self.errors.policy == "replace"
        self.prefetcher = self._new_prefetcher(loader)
        self.fetcher = Fetcher() if any(objects_of(leaf) is not None for leaf in known) else None
        self.meter.fetcher = self.fetcher
        self.engine = self.route.jpeg_engine()
        if self.engine is not None:
            self._share(self.engine.name, leaves_of(loader.dataset))

    def _share(self, engine: str, among: list[Any]) -> None:
        """Returns what is known of JPEGs, with other processes, for data sets that have a place for it. Here, and not
        when an epoch ends: the garbage collector may end one."""
        for leaf in among:
            file, table = getattr(leaf, "_index_file", None), self.tables.get(id(leaf))
            if file is not None and table is not None:
                headers_of(leaf).verdicts(engine).share(file, table.digest, len(table))

    def _new_prefetcher(self, loader) -> HeaderPrefetcher | None:
        if self.route.device.type != "cuda" or not loader.num_workers or not self.starts_aside:
            return None
        known = [(headers_of(leaf), len(leaf)) for leaf in leaves_of(loader.dataset) if id(leaf) in self.tables]
        if sum(headers.unseen(count) for headers, count in known) < _MANY:
            return None
        try:
            return HeaderPrefetcher(max(1, min(_PROCESSES, available_threads(loader) // 2)))
        except OSError:  # no more processes are allowed: it is slower without
            return None

    @property
    def starts_aside(self) -> bool:
        """True if batches may be started in another thread: none of the user's code takes part. Users change data sets
        in the middle of an epoch, too."""
        if self.asker is not None:
            return False
        substitutes = self.errors.policy != "replace" or type(self.among) in PLAIN
        return substitutes and is_plain(self.dataset, self.tables)

    def pipeline(self, plan: Plan, batch_size: int, form: Form) -> DecodePipeline:
        """This epoch's pipeline for a plan whose turn it is, large enough for the batch."""
        key = plan, form, self._turn(plan, form)
        known = self._pipelines.get(key)
        if known is None or known.batch_size < batch_size:
            size = batch_size if known is None else 2 * batch_size
            known = self._pipelines[key] = self.route.borrow(plan, size, form, self)
            known.meter = self.meter
        return known

    def _turn(self, plan: Plan, form: Form) -> int:
        """Returns which of the pipelines that take turns has the next batch: the first one has all, until a second one
        is open."""
        self._turns[plan, form] = count = self._turns.get((plan, form), -1) + 1
        if self.route.in_turn(form) == 1:
            return 0
        if (plan, form, 1) not in self._pipelines and not self.route.idle(plan, form):
            if count == _ALONE:
                self.route.open_another(self._pipelines[plan, form, 0])
            return 0
        return count % 2

    def may_have_pipeline(self, plan: Plan) -> bool:
        """Returns whether DALI makes a plan's images, and not PIL. Each pipeline has threads of its own, and a data set
        of the user's may come with other transforms for ever."""
        if self.asker is None or any(one is plan for one in self._for_dali):
            return True
        if len(self._for_dali) < MOST_PIPELINES:
            self._for_dali.append(plan)
        return self._for_dali[-1] is plan

    def check_open(self) -> None:
        """Looks whether the loader was closed meanwhile.

        Raises:
            RuntimeError: it was.
        """
        for pipeline in self._pipelines.values():
            pipeline.check_open()

    def in_thread(self, function: Callable, *args) -> Future:
        """A future of a call."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.route.threads, thread_name_prefix="dali_compat")
        try:
            return self._threads.submit(function, *args)
        except RuntimeError:  # the main thread has ended, and with it every executor; this thread lives on
            future: Future = Future()
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)
            return future
        except BaseException:
            self._threads.shutdown(wait=False)  # as in prefetch_thread.py
            self._threads = None
            raise

    def end(self) -> None:
        """The pipelines serve the next epoch."""
        if self.asked_workers is not None and not self._workers_live_on:
            self.asked_workers.close()
        if self.asker is not None and not self.asker.is_worth_it:
            give_up(self.dataset, self.asker.why)
        self.over = True  # before the route looks for pipelines that nobody uses
        if self._pipelines:
            self._pipelines = {}
            self.route.epoch_is_over()
        if self.fetcher is not None:
            self.fetcher.close()
        prefetcher, self.prefetcher = self.prefetcher, None
        if prefetcher is not None:
            prefetcher.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        super().end()
