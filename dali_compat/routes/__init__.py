"""Choice of the route that loads a data set: DALI, arrays on the device, or torch's own loader. It is made again at
every iter().

- dali: the DALI route with its plans and pipelines, kept between epochs. decoded_cache: the images of ``cache=``.
- resident: the arrays on the device.
- explain: the text of explain(). translate/chain writes the lines of a plan.
- batched: transforms of batches that are already tensors.
"""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass
from typing import Any

import torch

from ..data.arrays import holds_arrays
from ..data.base_datasets import image_leaves_of, leaves_of, survey
from ..data.readers import can_rotate, set_upright, transforms_of
from ..errors import Unsupported
from ..inspection.replaced import refuse_replaced_pillow
from ..plan import ImageSpec, Options, Plan, Step
from ..runtime.cores import usable_cores
from ..runtime.installation import dali_problem
from ..tracing.plans import whole_plan
from ..tracing.trial import Reader, TracedImage, table_of, tried
from ..translate import translate
from ..translate.lower import lower
from .dali import DaliRoute
from .decoded_cache import DecodedCache
from .resident import ResidentRoute, resident_route

_DEPTH = 2  # batches in flight; deeper queues on the CPU measured no faster
# Next to a compiled ResNet-18, a hand-written pipeline reaches .64 of the speed of synthetic data with 2, .78 with 5
# (H200)
_GPU_DEPTH = 4
_MOST_THREADS = 16
# Bytes, up to about 128 pixels a side. The decoder of an H100 is not the bottleneck for such images. With libjpeg's
# interpolation of chroma, it has 1.7 times the speed at 32 pixels, .9 to 1.04 at 64 to 160, and .5 for photos.
_SMALL = 8 << 10
# Bytes. At a megapixel, 240 KB, an H100's engines decode as many images as four more with the help of threads
# (routes/dali.py)
_LARGE = 256 << 10

# Remedies, keyed by parts of the reason why no image of a custom data set is deferred
_REMEDIES = {
    ("webdataset/autodecode.py",): "write decode('pil') and torchvision's transforms",
    ("datasets/formatting/",): "write map() with torchvision's transforms, without a format",
    ("uses the tensor's", "asks for gradients"): "do this on the batch, in the training loop",
    ("uses the image's",): "do this by torchvision's transforms, or on the batch, in the training loop",
    ("makes several images of one",): "move their common transforms to the batch",
    ("compares the class",): "use isinstance()",
    ("gives images, not tensors",): "convert them to tensors with ToTensor()",
    ("opens no image",): "open images with Image.open(file).convert('RGB'), in the thread that reads the samples",
    ("opens images with",): "open them with Image.open(path).convert('RGB'), in RGB, not BGR",
}


@dataclass
class FallbackRoute:
    """torch's own loader and torchvision's transforms, followed by a copy to the device."""

    device: torch.device
    reason: str


Route = DaliRoute | ResidentRoute | FallbackRoute


def choose(loader, before: Route | None, start: bool = False) -> Route:
    """Return the route for a loader in its current state, since its transform, samples and settings may have changed.

    Args:
        before: the previous route, whose pipelines and copies are reused if they still fit.
        start: whether an epoch begins, so that CUDA may be initialized. It must not be initialized earlier, because a
            script may fork or choose its device after it has made its loaders.
    """
    device = resolve_device(loader.device, start)
    try:
        if any(map(holds_arrays, leaves_of(loader.dataset))):
            refuse_replaced_pillow(opens=False)
            return resident_route(loader, device, loader.prefetch_factor or _DEPTH, before, start)
        return _dali_route(loader, device, before)
    except Unsupported as error:
        return FallbackRoute(device, str(error))


def _dali_route(loader, device: torch.device, before: Route | None) -> DaliRoute:
    """Return the DALI route, with whatever still fits of the route ``before``.

    Raises:
        Unsupported: with the reason why DALI cannot load the data set.
    """
    problem = dali_problem(gpu=device.type == "cuda")
    if problem:
        raise Unsupported(problem)
    depth, available, options = _depth(loader, device), available_threads(loader), _options(loader, device)
    same = before if isinstance(before, DaliRoute) and (before.device, before.depth) == (device, depth) else None
    known = {plan.key: plan for plan in same.plans} if same is not None else {}
    on_gpu = device.type == "cuda" and not loader.exact
    leaves, unknown = known_leaves(loader.dataset)
    plan_of, why = {}, ""
    try:
        plan_of = {id(leaf): (leaf, _plan(leaf, options, known)) for leaf in leaves}
    except Unsupported as error:
        unknown = why = str(error)
    settings: dict[str, Any]
    plans: list[Plan | None]
    if not unknown:
        plans = [plan for _, plan in plan_of.values()]
        is_jpeg, size = survey(leaves) if on_gpu else (False, 0)
        settings = {"cache": _cache(loader, device, before)}
    else:  # torch's own loader reads the data set
        images = _images(loader, unknown)
        plans = [
            None if one is None else whole_plan(one.head, one.tail, one.size, one.final, options) for one in images
        ]
        first = next(one for one in images if one is not None)
        is_jpeg, size = on_gpu and first.is_jpeg, first.length
        settings = {"images": plans, "table": table_of(loader.dataset), "options": options, "why": why}
    route = DaliRoute(
        device,
        available=available,
        depth=depth,
        batch_size=loader.batch_size or 1,
        plans=list(dict.fromkeys(plan for plan in plans if plan is not None)),
        _plan_of=plan_of,
        gpu_jpegs=is_jpeg,
        fancy=on_gpu and size <= _SMALL,
        large=on_gpu and size >= _LARGE,
        **settings,
    )
    if same is not None and same.available == available:
        route.take_over(same)
    return route


def known_leaves(dataset) -> tuple[list[Any], str]:
    """Return the leaves of a data set if their files and transforms are known, otherwise an empty list and the reason.

    Raises:
        Unsupported: code of Pillow was replaced.
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
    """Check that DALI makes the images of a data set.

    Raises:
        Unsupported: with the reason why it does not.
    """
    _, unknown = known_leaves(dataset)
    if unknown:
        _images(Reader(dataset), unknown)


def _images(loader, unknown: str) -> tuple[TracedImage | None, ...]:
    """Return the images of a sample of a custom data set. Raises as refuse_unknown()."""
    try:
        images = tried(loader)
    except Unsupported as error:
        raise type(error)(_reason(unknown, str(error))) from None
    if images is None:
        raise Unsupported(unknown)
    return images


def _reason(unknown: str, seen: str) -> str:
    """Return the reason for using torch's loader: what the user's code does, and the remedy.

    Args:
        unknown: why the data set is not a known one, and the remedy.
        seen: what its code did when it was traced.
    """
    what, _, remedy = unknown.partition("; ")
    seen, *_ = seen.split("; ")
    remedy = next((one for parts, one in _REMEDIES.items() if any(part in seen for part in parts)), remedy)
    name, is_no, _ = what.partition(" is not an image folder")
    if not is_no:
        seen = f"{what}, and {seen}"
    elif "." not in seen.partition(" ")[0]:  # as in "PIL.Image.Image.crop was replaced"
        seen = f"{name} {seen}"
    return "; ".join(filter(None, (seen, remedy)))


def _depth(loader, device: torch.device) -> int:
    """Return the number of batches in flight. With workers, torch replaces a missing prefetch_factor by 2."""
    if loader._prefetch_given or loader.prefetch_factor not in (None, 2):
        return loader.prefetch_factor
    return _GPU_DEPTH if device.type == "cuda" else _DEPTH


def _cache(loader, device: torch.device, before) -> DecodedCache | None:
    """Return the previous cache if it contains images as this loader would decode them, otherwise a new one."""
    if loader.cache is None:
        return None
    settings = loader.cache, device, loader.exact, loader.cache_device
    kept = before.cache if isinstance(before, DaliRoute) else None
    return kept if kept is not None and kept.settings == settings else DecodedCache(*settings)


def resolve_device(device, start: bool) -> torch.device:
    """Resolve a device. None is the current CUDA device, or the CPU if there is none; "cuda" is the current CUDA
    device. It has no index until CUDA is initialized, which ``start`` permits."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError):  # whose text lists two dozen other devices
        raise ValueError(f"device must be 'cpu', 'cuda', or one GPU such as 'cuda:1', got {device!r}") from None
    if device.type == "cuda" and start and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise RuntimeError(f"device={str(device)!r} does not exist ({count} GPUs); pass device='cpu' or another")
    if device.type == "cuda" and device.index is None and (start or torch.cuda.is_initialized()):
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _plan(leaf: Any, options: Options, known: dict[tuple, Plan]) -> Plan:
    """Return the plan of a leaf, or an equal plan that is already ``known``."""
    plan = lower(translate(transforms_of(leaf)[0], ImageSpec(), views=True, turns=can_rotate(leaf)), options)
    set_upright(leaf, plan.takes.upright)
    return known.setdefault(plan.key, plan)


def _options(loader, device: torch.device) -> Options:
    channels_last = loader.memory_format == torch.channels_last
    return Options(loader.exact, channels_last, device.type == "cuda", _dali_can)


def _dali_can(step: Step) -> bool:
    from ..engine.dali.graph import supports

    return supports(step)


def in_processes(route: Route) -> bool:
    """Return True if num_workers is a number of processes rather than of DALI's threads."""
    return isinstance(route, FallbackRoute) or (isinstance(route, DaliRoute) and route.table is not None)


def available_threads(loader) -> int:
    if loader.num_workers:
        return operator.index(loader.num_workers)
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    processes = max(1, int(text) if text.isdigit() else 1)
    return max(1, min(usable_cores() // processes, _MOST_THREADS))
