"""State shared by the batches of one epoch, such as the seed, pipelines, threads and processes."""

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
from ..data.lookup import PLAIN, has_plain_samples, is_plain, paths_digest
from ..data.prefetch import HeaderPrefetcher
from ..data.sources import Form, current_folder
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

TARGETS, COLLATE = 2**32 - 1, 2**32 - 2  # random streams of target_transform and collate_fn
_SAMPLED = (tuple, list, dict, torch.Tensor, Image.Image, int, float, str)  # types that samples consist of


def _is_original_collate() -> bool:
    """Return True if default_collate treats common types as torch does. Programs may register other functions."""
    return not any(issubclass(one, kind) for kind in collate_functions() for one in _SAMPLED)


R = TypeVar("R", bound=Any)  # DaliRoute or ResidentRoute


class Epoch(Generic[R]):
    """State shared by the batches of one epoch. It does not refer to batches, because a cycle would keep deleted
    iterators alive.

    Attributes:
        dataset, collate_fn: the loader's.
        batched: whether torch's automatic batching is on.
        default_collate: whether collate_fn is torch's unmodified default_collate.
        route: the loader's route at iter().
        seed, rank_order: determine random numbers.
        in_workers: whether num_workers > 0.
        errors: policy of on_error, and the samples that have failed.
        candidates: indices of samples that may replace others.
        prefetches: whether the prefetch thread starts batches.
        prepares: whether the prefetch thread may call prepare(), because no step calls user code.
    """

    prefetches = False
    fetcher: Fetcher | None = None  # None if no image is in object storage
    engine: VerifiedEngine | None = None  # the GPU's JPEG engine; None if it is not used

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
        """Return the random numbers of ``count`` samples of this rank. ``position`` is the first sample's place in the
        order of all ranks' samples."""
        return Randoms(self.seed, position, count, self.rank_order.world)

    def worker_generators(self, begin: int, stream: int = TARGETS) -> AbstractContextManager[None]:
        """Return a context that seeds the global generators for user functions, as a worker does. ``begin`` is the
        number of earlier samples of the epoch. Without workers, the context does nothing."""
        if not self.in_workers:
            return nullcontext()
        return own_generators(self.seed, stream, 0, self.rank_order.place_of(begin))

    def copied_targets(self, targets: list[Any], transformed: bool) -> list[Any]:
        """Return copies of the targets if torch would pass them to user functions in workers. Otherwise, or if copying
        fails, return the targets themselves. ``transformed`` is whether target_transform will be called."""
        # in torch's workers, user functions can modify only copies
        needed = self.in_workers and (transformed or not self.default_collate)
        if needed and not {int, float, str}.issuperset(map(type, targets)):  # immutable, and deepcopy() is slow
            with suppress(Exception):  # some objects cannot be copied
                return deepcopy(targets)
        return targets

    @property
    def fast_collate(self) -> bool:
        """True if collate_fn is timm's fast_collate. It returns the result of default_collate as a tuple."""
        timm = sys.modules.get("timm.data.loader")
        return timm is not None and self.collate_fn is timm.fast_collate and self.batched

    def end(self) -> None:
        self.over = True


# Number of samples after which a second pipeline is opened. Opening a pipeline stops all Python threads for .55 s
# (H200). The second pipeline saves this time within about 100,000 samples.
_SAMPLES_BEFORE_SECOND = 1 << 17
_MIN_UNREAD, _MAX_PROCESSES = 4096, 8  # minimum number of unread headers, maximum number of processes that read them


class DaliEpoch(Epoch[DaliRoute]):
    """State shared by the batches of an epoch on the DALI route."""

    plain: set[int]  # id() of each leaf whose look-up ran no user code at the start of the epoch; see is_plain()
    prefetcher: HeaderPrefetcher | None = None  # used if a GPU decodes and many headers are unread

    def __init__(self, loader, route: DaliRoute, progress: Progress):
        self._pipelines: dict[tuple[Plan, Form, int], DecodePipeline] = {}  # int: number of the pipeline, 0 or 1
        self._batch_counts: dict[tuple[Plan, Form], int] = {}
        self._threads: ThreadPoolExecutor | None = None
        super().__init__(loader, route, progress)
        known = leaves_of(loader.dataset)
        self.folder = current_folder()  # user code may change the working directory
        self.plain = {key for key, leaf in {id(leaf): leaf for leaf in known}.items() if has_plain_samples(leaf)}
        self.prefetches = self.may_prefetch()
        self.prefetcher = self._new_prefetcher(loader)
        self.fetcher = Fetcher() if any(objects_of(leaf) is not None for leaf in known) else None
        self.meter.fetcher = self.fetcher
        self.engine = self.route.jpeg_engine()
        if self.engine is not None:  # not in end(), which the garbage collector may call at any time
            self._share(self.engine.name, leaves_of(loader.dataset))

    def is_upright(self, leaf: Any) -> bool:
        """Return True if a leaf's images are rotated by their EXIF orientation when they are decoded."""
        return self.route.plan_of(leaf).takes.upright

    def _share(self, engine: str, leaves: list[Any]) -> None:
        """Share a JPEG engine's verdicts with other processes, for data sets that have an index file."""
        for leaf in leaves:
            file = getattr(leaf, "_index_file", None)
            if file is not None and id(leaf) in self.plain:
                with suppress(TypeError, ValueError):  # invalid samples
                    digest = paths_digest(leaf, self.folder)
                    headers_of(leaf).verdicts(engine).share(file, digest, len(leaf.samples))

    def _new_prefetcher(self, loader) -> HeaderPrefetcher | None:
        if self.route.device.type != "cuda" or not loader.num_workers or not self.prefetches:
            return None
        known = [(headers_of(leaf), len(leaf)) for leaf in leaves_of(loader.dataset) if id(leaf) in self.plain]
        if sum(headers.unseen(count) for headers, count in known) < _MIN_UNREAD:
            return None
        try:
            return HeaderPrefetcher(max(1, min(_MAX_PROCESSES, available_threads(loader) // 2)))
        except OSError:  # process limit reached
            return None

    def may_prefetch(self) -> bool:
        """Return True if the prefetch thread may start batches, because this runs no user code. The user may change the
        data set at any time, so check again for each batch."""
        substitutes = self.errors.policy != "replace" or type(self.candidates) in PLAIN
        return substitutes and is_plain(self.dataset, self.plain)

    def pipeline(self, plan: Plan, batch_size: int, form: Form) -> DecodePipeline:
        """Return the pipeline for the next batch of a plan and form."""
        key = plan, form, self._next_number(plan, form)
        known = self._pipelines.get(key)
        if known is None or known.batch_size < batch_size:
            size = batch_size if known is None else 2 * batch_size
            known = self._pipelines[key] = self.route.borrow(plan, size, form, self)
            known.meter = self.meter
        return known

    def _next_number(self, plan: Plan, form: Form) -> int:
        """Return the index, 0 or 1, of the pipeline that decodes the next batch. Open pipelines alternate."""
        self._batch_counts[plan, form] = count = self._batch_counts.get((plan, form), -1) + 1
        if self.route.alternating_pipelines == 1:
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
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.route.threads, thread_name_prefix="dali_compat")
        try:
            return self._threads.submit(function, *args)
        except RuntimeError:  # Python shuts executors down when the main thread ends
            future: Future = Future()
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)
            return future
        except BaseException:
            self._threads.shutdown(wait=False)  # an interrupt may come after a thread has started
            self._threads = None
            raise

    def end(self) -> None:
        """End the epoch and release its threads, processes and requests. Its pipelines go back to the route."""
        super().end()  # pipelines are idle only after this
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
