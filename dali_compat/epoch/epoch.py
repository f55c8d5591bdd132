"""State shared by the batches of one epoch: seed, pipelines, threads, processes and on_error."""

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
from ..runtime.internals import collate_functions
from .progress import Progress
from .samplers import replacement_indices
from .stats import Meter

if TYPE_CHECKING:
    from ..engine.dali.pipeline import DecodePipeline
    from ..engine.planes.verified import VerifiedEngine

TARGETS, COLLATE = 2**32 - 1, 2**32 - 2  # random streams for user functions that are not transforms
_SAMPLED = (tuple, list, dict, torch.Tensor, Image.Image, int, float, str)  # types that samples consist of


def _is_original_collate() -> bool:
    """Return True if default_collate has torch's own behavior for these types. A program may extend or change its
    table."""
    return not any(issubclass(one, kind) for kind in collate_functions() for one in _SAMPLED)


R = TypeVar("R", bound=Any)  # DaliRoute or ResidentRoute


class Epoch(Generic[R]):
    """State shared by the batches of one epoch. It does not refer to batches, so that dropping the last reference to an
    iterator frees it.

    Attributes:
        dataset, collate_fn: the loader's.
        user_collate: calls collate_fn if it is a custom one.
        batched: whether torch's automatic batching is on.
        default_collate: whether torch's unmodified default_collate makes the batches.
        route: the loader's route at iter().
        seed, rank_order: of this epoch; a sample's random numbers depend on the seed and its place in that order.
        in_workers: whether num_workers > 0.
        errors: on_error's policy and the failures so far.
        candidates: indices of samples that may replace others.
        over: whether the epoch has ended.
        meter: counts the batches returned.
        advances: whether advance() of its batches has anything to do.
        prefetches: whether another thread (prefetch_thread.py) starts batches.
        prepares: whether that thread may also finish the next batch, because no user code takes part.
    """

    advances = prefetches = False
    fetcher: Fetcher | None = None  # fetches objects, if images of a leaf are in object storage
    engine: VerifiedEngine | None = None  # the GPU's JPEG engine, if it has one and a plan can use it

    def __init__(self, loader, route: R, progress: Progress):
        self.dataset, self.collate_fn, self.batched = loader.dataset, loader.collate_fn, loader._auto_collation
        self.user_collate = loader._user_collate
        self.default_collate = self.batched and self.collate_fn is default_collate and _is_original_collate()
        self.in_workers = loader.num_workers > 0
        self.route, self.seed, self.rank_order, self.over = route, progress.seed, progress.rank_order, False
        self.meter: Meter = loader._stats.begin(loader.collate_fn)
        self.errors, self.candidates = loader._errors, replacement_indices(loader)
        self.errors.begin()
        steps = (step for plan in route.plans for one in plan.chains for step in one.steps)
        self.prepares = not any(step.operation.calls_user for step in steps)

    def randoms(self, position: int, count: int) -> Randoms:
        """Return the random numbers of ``count`` consecutive samples of this rank. ``position`` is the place of the
        first in the order over all ranks."""
        return Randoms(self.seed, position, count, self.rank_order.world)

    def worker_generators(self, begin: int, stream: int = TARGETS) -> AbstractContextManager[None]:
        """Context in which user functions draw from separate generators, as in torch's workers, rather than from those
        of this process. ``begin`` is the number of samples of the epoch before theirs."""
        if not self.in_workers:
            return nullcontext()
        return own_generators(self.seed, stream, 0, self.rank_order.place_of(begin))

    def copied_targets(self, targets: list[Any], transformed: bool) -> list[Any]:
        """Return targets that user functions may modify in place, as in a worker, which has a copy of the data set.

        ``transformed`` means that these are targets before target_transform.
        """
        if self.in_workers and (transformed or not self.default_collate):
            with suppress(Exception):  # objects that cannot be copied
                return deepcopy(targets)
        return targets

    @property
    def fast_collate(self) -> bool:
        """True if collate_fn is timm's: default_collate for uint8 images, as a tuple."""
        timm = sys.modules.get("timm.data.loader")
        return timm is not None and self.collate_fn is timm.fast_collate and self.batched

    def end(self) -> None:
        """Release the epoch's resources. No further batch is requested."""
        self.over = True


# Samples before a second pipeline is opened, over all epochs. Opening it stops all Python threads for .55 s, which it
# saves in about 100,000 samples (H200)
_SAMPLES_BEFORE_SECOND = 1 << 17
_MIN_UNREAD, _MAX_PROCESSES = 4096, 8  # unread files that justify processes to read headers; most processes


class DaliEpoch(Epoch[DaliRoute]):
    """State shared by the batches of an epoch on the DALI route, with pipelines, and threads for images that PIL
    decodes."""

    tables: dict[int, SampleTable]  # of the data set's leaves, by id(), with the samples at the start of the epoch
    # reads headers, if a GPU decodes and many files of the data set are still unread
    prefetcher: HeaderPrefetcher | None = None

    def __init__(self, loader, route: DaliRoute, progress: Progress):
        self._pipelines: dict[tuple[Plan, Form, int], DecodePipeline] = {}  # int: 0 or 1, alternating
        self._batch_counts: dict[tuple[Plan, Form], int] = {}  # batches so far
        self._threads: ThreadPoolExecutor | None = None
        super().__init__(loader, route, progress)
        known = leaves_of(loader.dataset)
        self.folder = current_folder()  # of relative paths; user code may change it while batches are prepared ahead
        made = {id(leaf): table_of(leaf, self.folder) for leaf in known}
        self.tables = {key: table for key, table in made.items() if table is not None}
        self.advances = self.errors.policy == "replace"
        self.prefetches = self.may_prefetch()
        self.prefetcher = self._new_prefetcher(loader)
        self.fetcher = Fetcher() if any(objects_of(leaf) is not None for leaf in known) else None
        self.meter.fetcher = self.fetcher
        self.engine = self.route.jpeg_engine()
        if self.engine is not None:
            self._share(self.engine.name, leaves_of(loader.dataset))

    def _share(self, engine: str, leaves: list[Any]) -> None:
        """Share the known facts about JPEGs with other processes, for data sets with a file to keep them in.

        Not done at the end of an epoch, since the garbage collector may run that.
        """
        for leaf in leaves:
            file, table = getattr(leaf, "_index_file", None), self.tables.get(id(leaf))
            if file is not None and table is not None:
                headers_of(leaf).verdicts(engine).share(file, table.digest, len(table))

    def _new_prefetcher(self, loader) -> HeaderPrefetcher | None:
        if self.route.device.type != "cuda" or not loader.num_workers or not self.prefetches:
            return None
        known = [(headers_of(leaf), len(leaf)) for leaf in leaves_of(loader.dataset) if id(leaf) in self.tables]
        if sum(headers.unseen(count) for headers, count in known) < _MIN_UNREAD:
            return None
        try:
            return HeaderPrefetcher(max(1, min(_MAX_PROCESSES, available_threads(loader) // 2)))
        except OSError:  # process limit reached; slower without them
            return None

    def may_prefetch(self) -> bool:
        """Return True if batches may be started in another thread, because no user code takes part. Called repeatedly,
        since users may change data sets during an epoch."""
        substitutes = self.errors.policy != "replace" or type(self.candidates) in PLAIN
        return substitutes and is_plain(self.dataset, self.tables)

    def pipeline(self, plan: Plan, batch_size: int, form: Form) -> DecodePipeline:
        """Return this epoch's next pipeline for a plan, large enough for the batch."""
        key = plan, form, self._next_number(plan, form)
        known = self._pipelines.get(key)
        if known is None or known.batch_size < batch_size:
            size = batch_size if known is None else 2 * batch_size
            known = self._pipelines[key] = self.route.borrow(plan, size, form, self)
            known.meter = self.meter
        return known

    def _next_number(self, plan: Plan, form: Form) -> int:
        """Return which of two alternating pipelines decodes the next batch. The first takes all until the second is
        open."""
        self._batch_counts[plan, form] = count = self._batch_counts.get((plan, form), -1) + 1
        if self.route.alternating_pipelines(form) == 1:
            return 0
        if (plan, form, 1) not in self._pipelines and not self.route.idle(plan, form):
            alone = self._pipelines.get((plan, form, 0))
            if alone is not None and alone.samples >= _SAMPLES_BEFORE_SECOND:
                self.route.open_another(alone)
            return 0
        return count % 2

    def check_open(self) -> None:
        """Raise RuntimeError if the loader was closed."""
        for pipeline in self._pipelines.values():
            pipeline.check_open()

    def in_thread(self, function: Callable, *args) -> Future:
        """Run a call in a thread and return its future."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.route.threads, thread_name_prefix="dali_compat")
        try:
            return self._threads.submit(function, *args)
        except RuntimeError:  # executors are shut down with the main thread, but this thread is still running
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
        """Release the epoch's resources. The route keeps the pipelines for the next epoch."""
        super().end()  # before the route looks for unused pipelines
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
