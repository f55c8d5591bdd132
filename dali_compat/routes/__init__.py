"""Choice of a loader's route: DALI, arrays on the device, or torch's own loader. Each call of iter() chooses again.

- dali: the DALI route. It keeps pipelines between epochs.
- resident: the route for arrays. It keeps them on the device.
- explain: DataLoader.explain(). batched: batched().
"""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass
from typing import Any

import torch

from ..data.arrays import holds_arrays
from ..data.base_datasets import image_leaves_of, leaves_of, survey
from ..data.readers import can_rotate, transforms_of
from ..errors import Unsupported
from ..inspection.replaced import refuse_replaced_functions
from ..plan import ImageSpec, Options, Plan, Step
from ..runtime.cores import usable_cores
from ..runtime.installation import dali_problem
from ..tracing.plans import whole_plan
from ..tracing.trial import Reader, TrialImage, run_trial, table_of
from ..translate import translate
from ..translate.lower import lower
from .dali import DaliRoute
from .resident import ResidentRoute, resident_route

_DEPTH = 2  # batches in flight on a CPU; more were not faster
# Batches in flight on a GPU. With a hand-written pipeline on an H200, a compiled ResNet-18 trains at .64 of its speed
# on synthetic data with 2 batches in flight, and at .78 with 5.
_GPU_DEPTH = 4
_MOST_THREADS = 16
# Largest size in bytes of small files, which have up to about 128 pixels a side. A GPU decodes small files with
# libjpeg's interpolation of chroma. On an H100, this interpolation multiplies the speed by 1.7 at 32 pixels a side, by
# .9 to 1.04 at 64 to 160, and by .5 for photos.
_SMALL = 8 << 10
# Smallest size in bytes of large files, for which CPU threads help the JPEG engines (routes/dali.py). At a megapixel
# (240 KB), four more threads do not make decoding on an H100 faster yet.
_LARGE = 256 << 10

# Remedies, keyed by substrings of the reason for a fallback
_REMEDIES = {
    ("webdataset/autodecode.py",): "use decode('pil') and torchvision's transforms",
    ("datasets/formatting/",): "use map() with torchvision's transforms, without with_format()",
    ("uses the tensor's", "sets requires_grad"): "do this on the batch, in the training loop",
    ("uses the image's",): "do this with torchvision's transforms, or on the batch, in the training loop",
    ("makes several images from one",): "move their common transforms to the batch",
    ("compares the class",): "use isinstance()",
    ("returns images in an object",): "return them in a tuple, list or dict",
    ("returns images, not tensors",): "convert them to tensors with ToTensor()",
    ("opens no image file in",): "pass images in memory to DALIArrayDataset",
    ("opens no image",): "open images with Image.open(file).convert('RGB'), in the thread that reads the samples",
    ("of cv2",): "open them with Image.open(path).convert('RGB'), in RGB, not BGR",
    ("opens images with",): "open them with Image.open(path).convert('RGB')",
}


@dataclass
class FallbackRoute:
    """torch's own loader and torchvision's transforms, followed by a copy to the device."""

    device: torch.device
    reason: str


Route = DaliRoute | ResidentRoute | FallbackRoute


def choose(loader, before: Route | None, start: bool = False) -> Route:
    """Return the route for a loader with its current transform, samples and settings.

    Args:
        before: the previous route. Its pipelines and copies on the device are reused if possible.
        start: whether an epoch begins. CUDA is initialized only then, because a script may fork or choose its device
            after it has created its loaders.
    """
    device = resolve_device(loader.device, start)
    try:
        if any(map(holds_arrays, leaves_of(loader.dataset))):
            refuse_replaced_functions(opens=False)
            return resident_route(loader, device, loader.prefetch_factor or _DEPTH, before, start)
        return _dali_route(loader, device, before)
    except Unsupported as error:
        return FallbackRoute(device, str(error))


def _dali_route(loader, device: torch.device, before: Route | None) -> DaliRoute:
    """Return the DALI route. Reuse pipelines and the cache of the previous route if possible. Raise Unsupported if DALI
    cannot load the data set."""
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
        settings = {}
    else:  # torch's own loader reads the data set
        images = _traced_images(loader, unknown)
        plans = [None if one is None else whole_plan(one.head, one.tail, one.size, options) for one in images]
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
    """Return (innermost data sets, "") if their files and transforms are known, otherwise ([], reason). Raise
    Unsupported if a function of Pillow was replaced."""
    try:
        leaves = image_leaves_of(dataset)
        for leaf in leaves:
            transforms_of(leaf)
    except Unsupported as error:
        return [], str(error)
    refuse_replaced_functions(opens=True)
    return leaves, ""


def refuse_unknown(dataset) -> None:
    """Raise Unsupported, with the reason, if DALI cannot load a data set."""
    _, unknown = known_leaves(dataset)
    if unknown:
        _traced_images(Reader(dataset), unknown)


def _traced_images(loader, unknown: str) -> tuple[TrialImage | None, ...]:
    """Run a trial of a custom data set. Return the images of one sample, with None for those that torchvision has to
    compute. Raise Unsupported if the trial fails. ``unknown`` is the reason from known_leaves()."""
    try:
        images = run_trial(loader)
    except Unsupported as error:
        raise type(error)(_reason(unknown, str(error))) from None
    if images is None:
        raise Unsupported(unknown)
    return images


def _reason(unknown: str, seen: str) -> str:
    """Return the reason, with a remedy, why a custom data set falls back to torch's loader. ``unknown`` is the reason
    from known_leaves(), and ``seen`` the reason from the trial."""
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
    # torch's default with workers is 2
    if loader._prefetch_given or loader.prefetch_factor not in (None, 2):
        return loader.prefetch_factor
    return _GPU_DEPTH if device.type == "cuda" else _DEPTH


def resolve_device(device, start: bool) -> torch.device:
    """Return the torch.device for a loader's ``device``. The default is the current CUDA device, or the CPU if there is
    none. "cuda" without an index becomes the current device if CUDA is initialized or ``start`` is True."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError):  # its text lists two dozen other devices
        raise ValueError(f"device must be 'cpu', 'cuda', or one GPU such as 'cuda:1', got {device!r}") from None
    if device.type == "cuda" and start and (device.index or 0) >= (count := torch.cuda.device_count()):
        what = f"device={str(device)!r} does not exist (number of GPUs: {count})"
        raise RuntimeError(f"{what}; pass device='cpu' or another GPU")
    if device.type == "cuda" and device.index is None and (start or torch.cuda.is_initialized()):
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _plan(leaf: Any, options: Options, plans_by_key: dict[tuple, Plan]) -> Plan:
    """Return the plan of an innermost data set. Reuse an equal plan in ``plans_by_key``, or add the new one."""
    plan = lower(translate(transforms_of(leaf)[0], ImageSpec(), views=True, turns=can_rotate(leaf)), options)
    return plans_by_key.setdefault(plan.key, plan)


def _options(loader, device: torch.device) -> Options:
    channels_last = loader.memory_format == torch.channels_last
    return Options(loader.exact, channels_last, device.type == "cuda", _dali_can)


def _dali_can(step: Step) -> bool:
    from ..engine.dali.graph import supports

    return supports(step)


def in_processes(route: Route) -> bool:
    """Return True if num_workers counts worker processes on this route, not DALI's threads."""
    return isinstance(route, FallbackRoute) or (isinstance(route, DaliRoute) and route.table is not None)


def available_threads(loader) -> int:
    if loader.num_workers:
        return operator.index(loader.num_workers)
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    processes = max(1, int(text) if text.isdigit() else 1)
    return min(usable_cores(processes), _MOST_THREADS)
