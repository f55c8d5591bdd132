"""State shared by the batches of one epoch: its seed, pipelines, threads, processes, and what on_error has done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from PIL import Image
from torch.utils.data import default_collate
from torch.utils.data._utils import collate
from torch.utils.data._utils.collate import default_collate_fn_map

from ..data.base_datasets import leaves_of, objects_of
from ..data.headers import headers_of
from ..data.lookup import PLAIN, is_plain
from ..data.prefetch import HeaderPrefetcher
from ..data.sources import Form, current_folder
from ..data.table import SampleTable, table_of
from ..plan import Plan
from ..randoms import Randoms, own_generators
from ..remote.fetcher import Fetcher
from ..routes import available_threads
from ..routes.dali import DaliRoute
from ..translate.lower import plans_ahead
from ..workers import Calls
from .progress import Progress
from .samplers import indices_among
from .stats import Meter

if TYPE_CHECKING:
    from ..engine.dali.pipeline import DecodePipeline
    from ..engine.planes.verified import VerifiedEngine

TARGETS, COLLATE = 2**32 - 1, 2**32 - 2  # random streams of the user's functions that are no transforms
_SAMPLED = (tuple, list, dict, torch.Tensor, Image.Image, int, float, str)  # what samples consist of


def _is_torchs() -> bool:
    """Returns whether default_collate treats these types as torch ships it: a program may extend its table, or change
    it."""
    torchs = vars(collate)
    others = [kind for kind, made in default_collate_fn_map.items() if getattr(made, "__globals__", None) is not torchs]
    return not any(issubclass(one, kind) for kind in others for one in _SAMPLED)


R = TypeVar("R", bound=Any)  # a DaliRoute or a ResidentRoute


class Epoch(Generic[R]):
    """State shared by the batches of one epoch. It refers to no batch, so that the last reference to an iterator ends
    it.

    Attributes:
        dataset, collate_fn: the loader's.
        user_collate: calls that function, where it is a user's.
        batched: whether torch's automatic batching is on.
        default_collate: whether torch's default_collate, as torch has it, makes the batches.
        route: of the loader at iter().
        seed, rank_order: of this epoch; a sample's random numbers follow from the seed and its place in that order.
        in_workers: whether there are workers, as torch counts them.
        calls: runs the functions without a translation.
        calls_processes: whether batches go from DALI to processes.
        calls_here: whether functions without a translation are called in the caller's thread.
        errors: what on_error does, and has done.
        among: indices of the samples that may stand in for others.
        over: whether it has ended.
        meter: counts what it gives.
        advances: whether batches have something to do in advance().
        prefetches: whether another thread (prefetch_thread.py) starts batches.
        prepares: whether it may make the next batch, too: no function of the user's has a part.
        fetcher, engine: of the DALI route.
    """

    advances, prefetches = True, False
    fetcher: Fetcher | None = None
    engine: VerifiedEngine | None = None

    def __init__(self, loader, route: R, progress: Progress):
        self.dataset, self.collate_fn, self.batched = loader.dataset, loader.collate_fn, loader._auto_collation
        self.user_collate = loader._user_collate
        self.default_collate = self.batched and self.collate_fn is default_collate and _is_torchs()
        self.in_workers = loader.num_workers > 0
        self.route, self.seed, self.rank_order, self.over = route, progress.seed, progress.rank_order, False
        self.meter: Meter = loader._stats.begin(loader.collate_fn)
        self.errors, self.among = loader._errors, indices_among(loader)
        self.errors.begin()
        views = max((len(plan.chains) for plan in route.all_plans), default=1)
        self.calls = Calls(self.seed, loader, route.device, views * route.depth)
        ahead = [plan for first in route.all_plans for plan in plans_ahead(first)]
        calls = [plan.call for plan in ahead if plan.call]
        self.prepares = not calls and not any(step.op == "apply" for plan in ahead for step in plan.steps)  # on_batch()
        for call in calls:
            self.calls.prepare(call)
        self.calls_processes = bool(calls) and self.in_workers
        self.calls_here = bool(calls) and not self.in_workers

    def randoms(self, position: int, count: int) -> Randoms:
        """The random numbers of ``count`` consecutive samples of this rank, of which the first has a place in the order
        over all ranks."""
        return Randoms(self.seed, position, count, self.rank_order.world)

    def as_in_a_worker(self, begin: int, stream: int = TARGETS) -> AbstractContextManager[None]:
        """Within it the user's own functions draw from generators of their own, as in torch's workers, and not from
        this process's. ``begin``: how many samples of the epoch come before theirs."""
        if not self.in_workers:
            return nullcontext()
        return own_generators(self.seed, stream, 0, self.rank_order.place_of(begin))

    def as_in_its_copy(self, targets: list[Any], transformed: bool) -> list[Any]:
        """Returns targets that the user's functions may change in place, as in a worker, whose data set is a copy; they
        are those before target_transform where the data set is ``transformed``."""
        if self.in_workers and (transformed or not self.default_collate):
            with suppress(Exception):  # of objects that nobody can copy
                return deepcopy(targets)
        return targets

    @property
    def fast_collate(self) -> bool:
        """True if collate_fn is timm's: as the default one, of uint8 images, in a tuple."""
        timm = sys.modules.get("timm.data.loader")
        return timm is not None and self.collate_fn is timm.fast_collate and self.batched

    def end(self) -> None:
        """Releases what the epoch holds: nobody asks for another batch."""
        self.over = True
        self.calls.close()


_ALONE = 16  # batches, before a second pipeline is opened: a short epoch needs none
_MANY, _PROCESSES = 4096, 4  # unseen files that are worth a process, and how many processes at most


class DaliEpoch(Epoch[DaliRoute]):
    """State shared by the batches of an epoch, with pipelines, and threads for what goes through PIL.

    Attributes:
        engine: of the GPU, for JPEGs, where it has one and a plan can use it.
        prefetcher: of headers, where a GPU decodes and many files of the data set were never looked at.
        folder: the working directory when it began, where relative paths are: the user's code may change to another
            while batches are made ahead.
        tables: of the data set's leaves, by their id(), as their samples were when it began.
        fetcher: of objects, where a leaf's images are in object storage.
    """

    tables: dict[int, SampleTable]

    def __init__(self, loader, route: DaliRoute, progress: Progress):
        self._pipelines: dict[tuple[Plan, Form, int], DecodePipeline] = {}  # by their turn, too
        self._turns: dict[tuple[Plan, Form], int] = {}  # batches so far
        self._threads: ThreadPoolExecutor | None = None
        super().__init__(loader, route, progress)
        known = leaves_of(loader.dataset)
        self.folder = current_folder()
        made = {id(leaf): table_of(leaf, self.folder) for leaf in known}
        self.tables = {key: table for key, table in made.items() if table is not None}
        self.advances = self.calls_here or self.calls_processes or self.errors.policy == "replace"
        self.prefetches = self.may_prefetch()
        self.prefetcher = self._new_prefetcher(loader)
        self.fetcher = Fetcher() if any(objects_of(leaf) is not None for leaf in known) else None
        self.meter.fetcher = self.fetcher
        self.engine = self.route.jpeg_engine()
        if self.engine is not None:
            self._share(self.engine.name, leaves_of(loader.dataset))

    def _share(self, engine: str, among: list[Any]) -> None:
        """Shares what is known of JPEGs with other processes, for data sets that have a place for it. Here, and not
        when an epoch ends: the garbage collector may end one."""
        for leaf in among:
            file, table = getattr(leaf, "_index_file", None), self.tables.get(id(leaf))
            if file is not None and table is not None:
                headers_of(leaf).verdicts(engine).share(file, table.digest, len(table))

    def _new_prefetcher(self, loader) -> HeaderPrefetcher | None:
        if self.route.device.type != "cuda" or not loader.num_workers or not self.prefetches:
            return None
        known = [(headers_of(leaf), len(leaf)) for leaf in leaves_of(loader.dataset) if id(leaf) in self.tables]
        if sum(headers.unseen(count) for headers, count in known) < _MANY:
            return None
        try:
            return HeaderPrefetcher(max(1, min(_PROCESSES, available_threads(loader) // 2)))
        except OSError:  # no more processes are allowed: it is slower without
            return None

    def may_prefetch(self) -> bool:
        """Returns whether batches may be started in another thread: none of the user's code takes part. Users change
        data sets in the middle of an epoch, too."""
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
        """Releases what the epoch holds; the route keeps the pipelines for the next one."""
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
