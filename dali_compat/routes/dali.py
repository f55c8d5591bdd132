"""Which way a loader goes: DALI, or torchvision and why."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.utils.data import IterableDataset

from ..data.arrays import holds_arrays
from ..data.parts import Images, folders
from ..data.parts import parts as parts_of
from ..data.survey import mostly_jpeg, mostly_small
from ..errors import Unsupported
from ..install import dali_problem, dali_version, max_connections, max_connections_note
from ..lower import Options, lower, plans_ahead
from ..plan import Plan, table
from ..translate import translate
from .decoded_cache import DecodedCache
from .resident import ResidentRoute, resident_route

if TYPE_CHECKING:
    from ..data.sources import Form
    from ..engine.dali.pipeline import DecodePipeline
    from ..epoch.iterator import Epoch

_DEPTH = 2  # batches in flight; deeper queues measured no faster (FIELD.md)
_MOST_THREADS = 16
# Loading alone, 4 threads give 22,000 images/s and 8 give 24,500; beside ResNet-18 training they give .93 and .89 of the
# speed of synthetic data (H100, benchmarks/results)
_GPU_JPEG_THREADS = 4


@dataclass
class StockRoute:
    """torch's own loader and torchvision's transforms, then a copy to the device."""

    device: torch.device
    reason: str


@dataclass
class DaliRoute:
    """DALI reads, decodes and transforms.

    Attributes:
        device: where batches come out.
        threads: CPU threads of each pipeline.
        depth: batches in flight.
        batch_size: the most samples that a pipeline is made for at first.
        plans: one a distinct transform, in the order of the data set's parts.
        fancy: whether a GPU's decoder interpolates chroma as libjpeg does.
        cache: of decoded images, where the loader has one.
    """

    device: torch.device
    threads: int
    depth: int
    batch_size: int
    plans: list[Plan]
    _plan_of: dict[int, tuple[Images, Plan]] = field(repr=False)
    fancy: bool = False
    cache: DecodedCache | None = None
    # owns all pipelines, lent ones too: whatever an iterator's end looks like, it cannot take one with it
    _pipelines: list[DecodePipeline] = field(default_factory=list, repr=False)
    # re-entrant: the garbage collector ends epochs, too, and may do so in a thread that is just borrowing; and whoever stops
    # this thread between the end of a block and the lock's own (a debugger, a trace function) stops it alone
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def iterate(self, loader):
        from ..epoch.iterator import DALIIterator

        return DALIIterator(loader, self)

    def plan_of(self, folder: Images) -> Plan:
        return self._plan_of[id(folder)][1]

    def borrow(self, plan: Plan, batch_size: int, form: Form, epoch: Epoch) -> DecodePipeline:
        """An idle pipeline for the plan, or a new one. It is idle again when the epoch is over, or gone."""
        from ..engine.dali.pipeline import DecodePipeline

        batch_size = max(batch_size, self.batch_size)
        with self._lock:
            self._tidy()
            for pipeline in list(self._pipelines):
                same = pipeline.plan is plan and pipeline.form == form
                if same and pipeline.idle and pipeline.batch_size >= batch_size:
                    pipeline.user = weakref.ref(epoch)
                    pipeline.discard_all()  # of the epoch before
                    if pipeline.usable:  # another epoch may have ended just now, as garbage, and closed it
                        return pipeline
            pipeline = DecodePipeline(plan, self.device, self.threads, self.depth, batch_size, form)
            pipeline.user = weakref.ref(epoch)
            self._pipelines.append(pipeline)
            return pipeline

    def take_over(self, before: DaliRoute) -> None:
        """Share the pipelines of the route so far, for as long as its iterators live; idle ones of other plans go."""
        self._pipelines, self._lock = before._pipelines, before._lock
        with self._lock:
            for pipeline in self._pipelines:
                if pipeline.plan not in self.plans and pipeline.idle:
                    pipeline.close()

    def epoch_is_over(self) -> None:
        """Keeps one idle pipeline a plan for the next epoch and frees the rest."""
        with self._lock:
            kept: dict[tuple[Plan, Form], DecodePipeline] = {}
            for pipeline in [pipeline for pipeline in self._pipelines if pipeline.idle]:
                smaller = kept.get((pipeline.plan, pipeline.form))
                if smaller is not None:
                    smaller.close()
                kept[pipeline.plan, pipeline.form] = pipeline
            self._tidy()

    def _tidy(self) -> None:
        """Without idle ones that cannot be used any more: closed, of another process, or interrupted."""
        gone = [pipeline for pipeline in self._pipelines if pipeline.idle and not pipeline.usable]
        self._pipelines[:] = [pipeline for pipeline in self._pipelines if pipeline not in gone]
        for pipeline in gone:
            pipeline.close()

    def close(self) -> None:
        if self.cache is not None:
            self.cache.clear()  # rather than forget it: iterators that live on have this route
        while self._pipelines:
            self._pipelines.pop().close()


Route = DaliRoute | ResidentRoute | StockRoute


def choose(loader, before: Route | None, start: bool = False) -> Route:
    """The route for a loader as it is now: its data set's transform, samples and loader may have changed.

    ``before`` is the route so far; what it has built serves on where it still fits. ``start``: an epoch begins, and CUDA
    may start; until then it must not, for a script may fork, or choose its device, after it has made its loaders.
    """
    device = resolve_device(loader.device, start)
    depth = loader.prefetch_factor or _DEPTH
    if any(map(holds_arrays, parts_of(loader.dataset))):
        try:
            return resident_route(loader, device, depth, before, start)
        except Unsupported as error:
            return StockRoute(device, str(error))
    problem = dali_problem(gpu=device.type == "cuda")
    if problem:
        return StockRoute(device, problem)
    same = isinstance(before, DaliRoute) and (before.device, before.depth) == (device, depth)
    known = {plan.key: plan for plan in before.plans} if same else {}
    try:
        parts = folders(loader.dataset)
        plan_of = _plans(parts, loader, device, known)
    except Unsupported as error:
        return StockRoute(device, str(error))
    plans = list(dict.fromkeys(plan for _, plan in plan_of.values()))
    fancy = device.type == "cuda" and not loader.exact and mostly_small(parts)
    cache, threads = _cache(loader, device, before), _threads(loader, device, parts)
    route = DaliRoute(device, threads, depth, loader.batch_size or 1, plans, plan_of, fancy, cache)
    if same and before.threads == route.threads:
        route.take_over(before)
    return route


def _cache(loader, device: torch.device, before) -> DecodedCache | None:
    """The cache so far, if it holds what this loader would decode."""
    if loader.cache is None:
        return None
    settings = loader.cache, device, loader.exact, loader.cache_device
    kept = before.cache if isinstance(before, DaliRoute) else None
    return kept if kept is not None and kept.settings == settings else DecodedCache(*settings)


def resolve_device(device, start: bool) -> torch.device:
    """None is the current CUDA device, or the CPU where there is none; "cuda" is the current one, too. It has no index
    before CUDA has started, which ``start`` allows."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type == "cuda" and device.index is None and (start or torch.cuda.is_initialized()):
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _plans(
    parts: list[Images], loader, device: torch.device, known: dict[tuple, Plan]
) -> dict[int, tuple[Images, Plan]]:
    """The plan of each part, by its id(); equal plans are one object."""
    from ..engine.dali.graph import unsupported

    channels_last = loader.memory_format == torch.channels_last
    options = Options(loader.exact, channels_last, device.type == "cuda", lambda step: unsupported(step) is None)
    plan_of: dict[int, tuple[Images, Plan]] = {}
    for folder in parts:
        plan = lower(translate(folder.transform), options)
        plan_of[id(folder)] = folder, known.setdefault(plan.key, plan)
    return plan_of


def in_python(route: DaliRoute | ResidentRoute) -> list[str]:
    """What has no translation and why, one line each."""
    calls = [ahead.call for plan in route.plans for ahead in plans_ahead(plan) if ahead.call]
    return [call.reason for call in calls]


def _available_threads(loader) -> int:
    if loader.num_workers:
        return loader.num_workers
    processes = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    return max(1, min(len(os.sched_getaffinity(0)) // processes, _MOST_THREADS))


def _threads(loader, device: torch.device, parts: list[Images]) -> int:
    """CPU threads of a pipeline. Where the GPU decodes, few load as fast as many and disturb a training step less."""
    available = _available_threads(loader)
    on_gpu = device.type == "cuda" and not loader.exact and mostly_jpeg(parts)
    return min(available, _GPU_JPEG_THREADS) if on_gpu else available


def explain(loader, route: Route) -> str:
    """One line a step: what it became, where it runs, how faithful it is."""
    tolerant = not isinstance(loader.dataset, IterableDataset)  # whose errors end it
    if isinstance(route, StockRoute):
        lines = [f"torchvision route, then a copy to {route.device}", f"  because {route.reason}"]
        ours = {"exact": False, "memory_format": torch.contiguous_format, "cache": None, "cache_device": None}
        if not tolerant:
            ours["on_error"] = "raise"
        ignored = [f"{name}={getattr(loader, name)}" for name, plain in ours.items() if getattr(loader, name) != plain]
    elif isinstance(route, ResidentRoute):
        lines = [route.describe(), *_plan_lines(route)]
        ignored = _without_effect(loader, route)
        ignored += [
            f"{name}={value}" for name in ("cache", "cache_device") if (value := getattr(loader, name)) is not None
        ]
    else:
        threads = f"{route.threads} CPU threads"
        if route.threads < _available_threads(loader):
            threads += f" (of {_available_threads(loader)}: the GPU decodes JPEG, and more would slow a training step)"
        depth = f"{threads}, {route.depth} batches in flight, DALI {dali_version()}"
        kernels = "exact=True" if loader.exact else "exact=False, the fastest kernels"
        lines = [f"DALI route on {route.device}: {depth}; {kernels}"]
        lines += _plan_lines(route, _decode_fidelity(route, loader.exact))
        lines.append("  files that DALI decodes differently from PIL go through PIL, one by one, in the same batch")
        if route.cache is not None:
            lines.append(f"  {route.cache}")
        ignored = _without_effect(loader, route)
    if loader.on_error != "raise" and tolerant:
        what = "raises an error" if loader.on_error_in_python else "cannot be read"
        lines.append(f"  a sample that {what} is {'skipped' if loader.on_error == 'skip' else 'replaced by another'}")
    if ignored:
        lines.append(f"  without effect: {', '.join(ignored)}")
    if route.device.type == "cuda":
        lines.append(f"  {max_connections_note() or f'CUDA has {max_connections()} hardware queues'}")
    return "\n".join(lines)


def _plan_lines(route: DaliRoute | ResidentRoute, decode: str | None = None) -> list[str]:
    lines = []
    for number, plan in enumerate(route.plans, 1):
        if len(route.plans) > 1:
            lines.append(f"part {number} of the data set:")
        lines += ["  " + line for line in _account(plan, route.device, decode).splitlines()]
    if any(plans_ahead(plan)[-1].gives.kind == "pil" for plan in route.plans):
        lines.append("  samples are PIL images, for a collate_fn that takes them; end with ToTensor() to have tensors")
    return lines


def _account(plan: Plan, device: torch.device, decode: str | None) -> str:
    """One line a transform; ``decode`` says how faithful decoding is on this device, where there is any."""
    dali = f"DALI on {'GPU' if device.type == 'cuda' else 'CPU'}"
    rows = [("(decode)", "decode", dali, decode)] if decode else []
    for ahead in plans_ahead(plan):
        rows += [(x.transform, x.becomes, x.where.replace("DALI", dali), x.fidelity) for x in ahead.lines]
    return table(rows) if rows else ""


def _decode_fidelity(route: DaliRoute, exact: bool) -> str:
    if route.device.type == "cpu":
        return "exact"
    if exact:
        return "exact, on the CPU"
    if route.fancy:
        return "small images, chroma as libjpeg: mean error .01 of 255 (exact=True: 0)"
    return "mean error .2 of 255 (exact=True: 0)"


def _without_effect(loader, route: DaliRoute | ResidentRoute) -> list[str]:
    """Arguments that torch takes and that have nothing to do here."""
    names = {"pin_memory": False, "pin_memory_device": "", "persistent_workers": False, "in_order": True}
    if not (loader.num_workers and in_python(route)):
        names |= {"timeout": 0, "worker_init_fn": None, "multiprocessing_context": None}  # of processes
    given = {name: getattr(loader, name, default) for name, default in names.items()}
    shown = {name: getattr(value, "__name__", value) for name, value in given.items() if value != names[name]}
    return [f"{name}={value}" for name, value in shown.items()]
