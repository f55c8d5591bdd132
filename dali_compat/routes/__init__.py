"""Chooses who loads a data set: DALI, a device that holds the data set, or torch's own loader and why. Asked at every
iter().

- dali: the DALI route's plans and pipelines, kept between epochs. decoded_cache: the images of ``cache=``.
- resident: the arrays on the device.
- explain: the text of explain(); translate/chain has a plan's lines of it.
- batched: transforms of batches that are tensors already.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from ..data.arrays import holds_arrays
from ..data.base_datasets import image_leaves_of, leaves_of, survey
from ..data.readers import can_turn, transforms_of, turn
from ..errors import Unsupported
from ..inspection.replaced import refuse_replaced_pillow
from ..plan import Call, ImageSpec, Options, Plan, Step
from ..runtime.cores import usable_cores
from ..runtime.installation import dali_problem
from ..tracing.plans import whole_plan
from ..tracing.trial import Reader, TracedImage, table_of, tried
from ..translate import translate
from ..translate.lower import key_of, lower, plans_ahead
from .dali import DaliRoute
from .decoded_cache import DecodedCache
from .resident import ResidentRoute, resident_route

_DEPTH = 2  # batches in flight; on the CPU deeper queues measured no faster
# Beside a compiled ResNet-18 a hand-written pipeline has .64 of the speed of synthetic data with 2, .78 with 5 (H200)
_GPU_DEPTH = 4
_MOST_THREADS = 16
# Bytes: up to about 128 pixels a side. Of such images an H100's decoder is not what limits the speed: it takes as long
# with libjpeg's interpolation of chroma (1.7 times the speed at 32 pixels, .9 to 1.04 at 64 to 160, .5 for photos).
_SMALL = 8 << 10
# Bytes: of a megapixel, 240 KB, an H100's engines decode as many as with the threads' help, of 4 more (routes/dali.py)
_LARGE = 256 << 10

# Remedies, by the beginning of the reason why nothing of a custom data set's images is deferred
_REMEDIES = {
    ("uses the tensor's", "asks for gradients"): "do this on the batch, in the training loop",
    ("uses the image's",): "do this by torchvision's transforms, or on the batch, in the training loop",
    ("makes several images of one",): "leave what they have in common to the batch",
    ("compares the class",): "use isinstance()",
    ("gives images, not tensors",): "make tensors of them in __getitem__()",
    ("opens images with",): "open them with Image.open(path).convert('RGB'), in RGB, not BGR",
}


@dataclass
class StockRoute:
    """torch's own loader and torchvision's transforms, then a copy to the device."""

    device: torch.device
    reason: str


Route = DaliRoute | ResidentRoute | StockRoute


def choose(loader, before: Route | None, start: bool = False) -> Route:
    """The route for a loader as it is now: its data set's transform, samples and loader may have changed.

    ``before`` is the route so far; what it has built serves on where it still fits. ``start``: an epoch begins, and
    CUDA may start; until then it must not, for a script may fork, or choose its device, after it has made its loaders.
    """
    device = resolve_device(loader.device, start)
    try:
        if any(map(holds_arrays, leaves_of(loader.dataset))):
            refuse_replaced_pillow(opens=False)
            return resident_route(loader, device, loader.prefetch_factor or _DEPTH, before, start)
        return _dali_route(loader, device, before)
    except Unsupported as error:
        return StockRoute(device, str(error))


def _dali_route(loader, device: torch.device, before: Route | None) -> DaliRoute:
    """The DALI route, with what still fits of the one ``before``.

    Raises:
        Unsupported: naming what is in the way.
    """
    problem = dali_problem(gpu=device.type == "cuda")
    if problem:
        raise Unsupported(problem)
    leaves, unknown = known_leaves(loader.dataset)
    if unknown:
        return _traced_route(loader, device, before, unknown)
    depth = _depth(loader, device)
    same = before if isinstance(before, DaliRoute) and (before.device, before.depth) == (device, depth) else None
    known = {key_of(plan): plan for plan in same.all_plans} if same is not None else {}
    options = _options(loader, device)
    plan_of = {id(leaf): (leaf, _plan(leaf, options, known)) for leaf in leaves}
    on_gpu = device.type == "cuda" and not loader.exact
    is_jpeg, size = survey(leaves) if on_gpu else (False, 0)
    route = DaliRoute(
        device,
        available=available_threads(loader),
        depth=depth,
        batch_size=loader.batch_size or 1,
        plans=list(dict.fromkeys(plan for _, plan in plan_of.values())),
        _plan_of=plan_of,
        gpu_jpegs=is_jpeg,
        fancy=on_gpu and size <= _SMALL,
        large=size >= _LARGE,
        cache=_cache(loader, device, before),
    )
    if same is not None and same.available == route.available:
        route.take_over(same)
    return route


def known_leaves(dataset) -> tuple[list[Any], str]:
    """Return the leaves of a data set whose files and transforms are known, or why there are none.

    Raises:
        Unsupported: code of Pillow's was replaced.
    """
    try:
        leaves = image_leaves_of(dataset)
        for leaf in leaves:
            transforms_of(leaf)
    except Unsupported as error:
        return [], str(error)
    refuse_replaced_pillow(opens=True)
    return leaves, ""


def refuse_unknown(dataset) -> None:
    """Look whether DALI makes the images of a data set.

    Raises:
        Unsupported: naming what is in the way.
    """
    _, unknown = known_leaves(dataset)
    if unknown:
        _images(Reader(dataset), unknown)


def _images(loader, unknown: str) -> tuple[TracedImage | None, ...]:
    """Return the images of a sample of a custom data set. Raises as refuse_unknown()."""
    try:
        images = tried(loader)
    except Unsupported as error:
        raise Unsupported(_reason(unknown, str(error))) from None
    if images is None:
        raise Unsupported(unknown)
    return images


def _traced_route(loader, device: torch.device, before: Route | None, unknown: str) -> DaliRoute:
    """Return the route of a custom data set. ``unknown``: why it is one.

    Raises:
        Unsupported: naming what is in the way.
    """
    images = _images(loader, unknown)
    depth, available = _depth(loader, device), available_threads(loader)
    same = before if isinstance(before, DaliRoute) and (before.device, before.depth) == (device, depth) else None
    options = _options(loader, device)
    plans = [None if one is None else whole_plan(one.head, one.tail, one.size, one.final, options) for one in images]
    first = next(one for one in images if one is not None)
    on_gpu = device.type == "cuda" and not loader.exact
    route = DaliRoute(
        device,
        available=available,
        depth=depth,
        batch_size=loader.batch_size or 1,
        plans=list(dict.fromkeys(plan for plan in plans if plan is not None)),
        _plan_of={},
        gpu_jpegs=on_gpu and first.is_jpeg,
        fancy=on_gpu and first.length <= _SMALL,
        large=on_gpu and first.length >= _LARGE,
        images=plans,
        table=table_of(loader.dataset),
        options=options,
    )
    if same is not None and same.available == available:
        route.take_over(same)
    return route


def _reason(unknown: str, seen: str) -> str:
    """Return why torch's loader does the work: first what the user's code does, then what helps, then the rest."""
    what, _, remedy = unknown.partition("; ")
    seen, *_ = seen.split("; ")
    remedy = remedy or next((one for begins, one in _REMEDIES.items() if seen.startswith(begins)), "")
    name, is_no, rest = what.partition(" is not an image folder")
    if not is_no:
        return "; ".join(filter(None, (f"{what}, and {seen}", remedy)))
    has_subject = "." in seen.partition(" ")[0]  # "PIL.Image.Image.crop was replaced"
    return "; ".join(filter(None, (seen if has_subject else f"{name} {seen}", remedy, f"{name}{is_no}{rest}")))


def _depth(loader, device: torch.device) -> int:
    """Batches in flight. Where there are workers, torch puts 2 in the place of a prefetch_factor that is left out."""
    if loader._prefetch_given or loader.prefetch_factor not in (None, 2):
        return loader.prefetch_factor
    return _GPU_DEPTH if device.type == "cuda" else _DEPTH


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
    try:
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError:  # whose text names two dozen others
        raise ValueError(f"device must be 'cpu', 'cuda', or 'cuda:1' and the like, got {device!r}") from None
    if device.type == "cuda" and device.index is None and (start or torch.cuda.is_initialized()):
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _plan(leaf: Any, options: Options, known: dict[tuple, Plan]) -> Plan:
    """The plan of a leaf; of equal ones the first that is ``known``."""
    plan = lower(translate(transforms_of(leaf)[0], ImageSpec(), views=True, turns=can_turn(leaf)), options)
    turn(leaf, plan.takes.upright)
    return known.setdefault(key_of(plan), plan)


def _options(loader, device: torch.device) -> Options:
    channels_last = loader.memory_format == torch.channels_last
    return Options(loader.exact, channels_last, device.type == "cuda", _dali_can)


def _dali_can(step: Step) -> bool:
    from ..engine.dali.graph import unsupported

    return unsupported(step) is None


def in_python(route: DaliRoute | ResidentRoute) -> list[str]:
    """Returns what has no translation and why, one line each."""
    return [reason for call in _calls(route) for reason in call.reasons]


def names_in_python(route: DaliRoute | ResidentRoute) -> list[str]:
    """Names of the classes and functions that have no translation, each once."""
    return list(dict.fromkeys(name for call in _calls(route) for name in call.names))


def in_processes(route: Route) -> bool:
    """Returns whether num_workers is a number of processes, and not of DALI's threads."""
    if isinstance(route, StockRoute):
        return True
    return bool(in_python(route)) or (isinstance(route, DaliRoute) and route.table is not None)


def _calls(route: DaliRoute | ResidentRoute) -> list[Call]:
    return [ahead.call for plan in route.plans for ahead in plans_ahead(plan) if ahead.call]


def available_threads(loader) -> int:
    if loader.num_workers:
        return loader.num_workers
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    processes = max(1, int(told) if told.isdigit() else 1)
    return max(1, min(usable_cores() // processes, _MOST_THREADS))
