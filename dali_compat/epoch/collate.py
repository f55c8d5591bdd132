"""Collate a batch on the device, by default_collate or a custom collate_fn."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ..data.lookup import Samples
from ..randoms import generator_states, set_generators
from ..runtime.decorators import named
from ..runtime.device import ViewBatches, filled, mapped, moved, on_the_cpu
from ..runtime.internals import leaves_by_path
from ..runtime.messages import report_fallback
from .decode import in_memory_format
from .epoch import COLLATE, Epoch

_CPU = torch.device("cpu")


class UserCollate:
    """Wrapper that calls a custom collate_fn, with images on the GPU if possible.

    A function that creates NumPy arrays or CPU tensors may raise an error for images on a GPU. This batch and all later
    ones are then collated with images on the CPU. The loader's ``fallback`` determines how this is reported.
    """

    def __init__(self, fallback: str):
        self._fallback = fallback
        self._known: Callable[[Any], Any] | None = None  # the function that ``_on_cpu`` refers to
        self._on_cpu = False  # whether it needs images on the CPU

    def __call__(
        self,
        function: Callable[[Any], Any],
        samples: Callable[[Any], Any],
        images: Any,
        device: torch.device,
        generators: Callable[[], AbstractContextManager],
    ) -> Any:
        """Return ``function(samples(images))``, called inside the context ``generators()``. Raise RuntimeError if the
        function does not accept images on a GPU and ``fallback`` is "error"."""
        if self._known is function or device.type != "cuda":
            with generators(), _default_device(function, device):
                return function(samples(moved(images, _CPU) if self._on_cpu else images))
        before = generator_states()
        try:
            with generators(), _default_device(function, device):
                made = function(samples(mapped(images, torch.Tensor.clone)))  # it may modify them before it raises
            self._known, self._on_cpu = function, False
            return made
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, torch.cuda.OutOfMemoryError) or not re.search("cuda|device", str(error)):
                raise
            name = getattr(function, "__qualname__", type(function).__name__)
            what = f"collate_fn {name} cannot take samples on a GPU ({error}); every batch is copied to the CPU for it"
            report_fallback(what, self._fallback, set())
        set_generators(before)
        with generators():
            made = function(samples(moved(images, _CPU)))
        self._known, self._on_cpu = function, True
        return made


def _default_device(function: Callable[[Any], Any], device: torch.device) -> AbstractContextManager:
    """Return a context that sets torch's default device to ``device`` if ``function`` is one of timm's collate
    functions."""
    loader, mixup = sys.modules.get("timm.data.loader"), sys.modules.get("timm.data.mixup")
    of_timm = loader is not None and function is loader.fast_collate
    of_timm = of_timm or (mixup is not None and type(function) is mixup.FastCollateMixup)
    return torch.device(device) if of_timm else nullcontext()


@named("collate")
def collate(epoch: Epoch[Any], samples: Samples, images: Any, begin: int, name: Callable[[int], str]) -> Any:
    """Return the collated batch, on the device. ``name`` returns the name of a row for error messages."""
    with_index = {getattr(leaf, "return_index", False) for leaf in samples.leaves}
    fast = not epoch.default_collate and epoch.fast_collate
    fast = fast and isinstance(images, torch.Tensor) and images.dtype == torch.uint8
    if not (epoch.default_collate or fast) or not len(samples.targets) or len(with_index) != 1:
        return call_collate_fn(epoch, partial(_samples, samples), images, begin)
    columns = [samples.targets]
    if with_index == {True}:
        columns.append([local for _, local in samples.locations])
    images = _stacked(epoch, images, name)
    made = [moved(_column(column, name), epoch.route.device) for column in columns]
    return (images, made[0].long() if made[0].ndim == 1 else made[0]) if fast else [images, *made]


def call_collate_fn(epoch: Epoch[Any], samples: Callable[[Any], list], images: Any, begin: int) -> Any:
    """Call the custom collate_fn with ``samples(images)``, and move the result to the device."""
    given = samples if epoch.batched else lambda images: samples(images)[0]
    generators = partial(epoch.worker_generators, begin, COLLATE)
    made = epoch.user_collate(epoch.collate_fn, given, images, epoch.route.device, generators)
    return moved(made, epoch.route.device)


def _samples(samples: Samples, images: Any) -> list[tuple]:
    """Return a list of samples with these images, in the form that ``dataset[index]`` has."""
    return [
        (image, target, local) if getattr(leaf, "return_index", False) else (image, target)
        for image, target, (leaf, local) in zip(images, samples.targets, samples.locations, strict=True)
    ]


def _stacked(epoch: Epoch[Any], images: Any, name: Callable[[int], str]) -> Any:
    """Return the batch of images that default_collate would return, on the device."""
    route = epoch.route
    if isinstance(images, torch.Tensor):
        return images
    if isinstance(images, ViewBatches):
        return moved(collated_views(images), route.device)
    made = moved(collated(tuple(images), name), route.device)  # a tuple, as in torch's fetcher
    has_images = isinstance(made, torch.Tensor) or any(plan.views for plan in route.plans)
    return (
        mapped(made, lambda one: in_memory_format(one, route.plans[0]) if one.ndim == 4 else one)
        if has_images
        else made
    )


_NOTHING = object()
_ENTRY = "sample {} of the batch"
_SIZES = "Resize(n) keeps the ratio of height and width: add CenterCrop(n), or write Resize((n, n))"
_GRAY = "Convert the images, as in Image.open(path).convert('RGB')"
_LISTS = "Pass a collate_fn that returns lists or tuples, such as lambda batch: tuple(zip(*batch))"
_NONE = "Return a sample without None for every index"
_TYPES = "Return the same types and structure for every index"
_TENSOR = "Put ToTensor(), or v2.ToImage() and v2.ToDtype(torch.float32, scale=True), before this transform"
_REMEDIES = {  # remedies by patterns in error messages
    r"found <class 'PIL\.": "Add ToTensor() or v2.ToImage() to the transform",
    r"(found|Got) <class 'NoneType'>": "Return a value instead of None for every index and in every transform",
    r"pic should be PIL Image .* Got <class 'torch": "The image is a tensor already; remove this ToTensor()",
    r"img should be Tensor Image|Normalize\(\) does not|'Image' .* attribute 'shape'|Got torch\.uint8": _TENSOR,
    r"match the broadcast shape|\(\d\) must match .* dimension 0": f"Normalize() needs one mean per channel. {_GRAY}",
    r"(\w+)\.__init__\(\) takes 1 positional .* 2 were given": r"If \1 is a transform, write \1(), not \1",
    r"'(list|tuple)' object is not callable": r"If a transform is a \1, write Compose(\1)",
    r"got \(generator=": "The generator must be a torch.Generator, such as torch.Generator().manual_seed(0)",
    r"of type 'type' has no len": "Pass a data set, such as ImageFolder(root), instead of its class",
    r"of type '((?!NoneType|int|float)\w+)' has no len": r"If \1 is the data set's class, define its __len__()",
    r"[Cc]an(no|')t (get local|pickle)": "Define it in a module, create it in the worker, or use num_workers=0",
}


def explain_mismatch(samples: Sequence[Any], error: Exception, name: Callable[[int], str] = _ENTRY.format) -> Exception:
    """Return default_collate's ``error`` with a better message. It names two samples that cannot be collated together,
    and a remedy."""
    leaves = [leaves_by_path(one) for one in samples]
    for row, place in ((row, place) for row, one in enumerate(leaves) for place in leaves[0] | one):
        first, other = leaves[0].get(place, _NOTHING), leaves[row].get(place, _NOTHING)
        if (words := _description(first)) == (others := _description(other)):
            continue
        remedy = _TYPES if {type(first), type(other)} & {str, object} else _LISTS
        remedy = _NONE if any(one is None for one in (first, other, samples[0], samples[row])) else remedy
        if getattr(first, "ndim", 0) == getattr(other, "ndim", 0) == 3:
            remedy = _GRAY if first.shape[0] != other.shape[0] else _SIZES
        if remedy is _SIZES and first.shape[1:] != other.shape[1:]:
            pair = (f"{name(i)}: {one.shape[1]} x {one.shape[2]}" for i, one in ((0, first), (row, other)))
            what = f"the images of a batch must have the same height x width ({'; '.join(pair)})"
        else:
            what = f"{name(0)} has {words}, {name(row)} has {others}" + (place and f" at {place}")
        error.args = ("; ".join(map(str, (*error.args, f"{what}. {remedy}"))),)
        break
    return error


def _description(leaf: Any) -> str:
    """Return text such as "torch.uint8 of shape (9,)". Leaves can be collated only if their descriptions are equal."""
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        return f"{leaf.dtype} of shape {tuple(leaf.shape)}"
    if isinstance(leaf, (int, float, np.generic)):
        return "a number"
    return "no value" if leaf is _NOTHING else type(leaf).__name__


def add_remedy(error: Exception, dataset: Any, indices: Sequence[Any] = (), name: Any = str) -> None:
    """Append a remedy to the error's message if its cause is known. Replace "sample 3 of the batch" with
    ``name(indices[3])``."""
    if not error.args or not isinstance(text := error.args[0], str):
        return
    last = text.strip().rpartition("\n")[2] if "Original Traceback" in text else text
    hits = ((re.search(pattern, last), remedy) for pattern, remedy in _REMEDIES.items())
    default = _out_of_range(dataset, indices) if isinstance(error, IndexError) else ""
    if re.search("ind(ex|ices)", last) and not all(isinstance(index, (int, np.integer)) for index in indices):
        returned = indices[0] if len(indices) == 1 else indices
        default = f"The sampler must return integers, but it returned {returned!r:.80}"
    remedy = next((hit.expand(remedy) for hit, remedy in hits if hit), default)
    for row, index in enumerate(indices):
        text = text.replace(_ENTRY.format(row), name(index)) if "of the batch" in text else text
    text = f"{text.rstrip().rstrip('.')}. {remedy}" if remedy and remedy not in text else text
    error.args = (type(error.args[0])(text), *error.args[1:])


def _out_of_range(dataset: Any, indices: Sequence[Any]) -> str:
    """Return a remedy for the data set's IndexError, or "" if none is known."""
    with suppress(Exception):  # the caller raises another error
        while True:
            size, last = len(dataset), max(indices, key=abs)
            if not -size <= last < size:
                return f"Index {last} is out of range for {size} samples. Check the sampler, or the indices of Subset"
            if type(dataset) is not torch.utils.data.Subset:
                break
            indices, dataset = [dataset.indices[index] for index in indices], dataset.dataset
        if not type(dataset).__module__.startswith(("torch", "dali_compat")):
            which = f"index {last}" if len(indices) == 1 else "an index of this batch"
            return f"If {which} has no sample, correct {type(dataset).__name__}.__len__(), which returns {size}"
    return ""


def collate_by_default(samples: Any, name: Callable[[int], str] = _ENTRY.format) -> Any:
    """Return default_collate(samples). Errors name the samples that cannot be collated together."""
    try:
        return default_collate(samples)
    except Exception as error:
        raise explain_mismatch(samples, error, name) from error.__cause__


def collated_views(views: ViewBatches) -> Any:
    """Return the batch that default_collate makes of samples with several views."""
    numbers = [torch.tensor(i, device="cpu") for i in range(len(views.batches))]
    numbered = collated([filled(views.structure, numbers)])
    batches = [batch if isinstance(batch, torch.Tensor) else collated(batch) for batch in views.batches]
    return mapped(numbered, lambda number: batches[int(number)])


def collated(samples: Any, name: Callable[[int], str] = _ENTRY.format) -> Any:
    """Call default_collate(samples) with the CPU as torch's default device. Errors name the samples that cannot be
    collated together."""
    with on_the_cpu():
        return collate_by_default(samples, name)


def _column(values: Any, name: Callable[[int], str]) -> Any:
    if isinstance(values, torch.Tensor):
        return values
    if set(map(type, values)) == {int}:
        with suppress(OverflowError):  # default_collate then raises torch's error
            return torch.from_numpy(np.array(values, np.int64))  # faster than torch.tensor()
    return collated(tuple(values), name)
