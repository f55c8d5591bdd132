"""Collates a batch as torch's fetchers do: by default_collate, where what is stacked already stays so, or by a
collate_fn of the user's, which gets samples on the GPU, where it can take them there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import keystr, tree_flatten_with_path
from torch.utils.data import default_collate

from ..data.lookup import Listed, Tabled
from ..randoms import generator_states, set_generators
from ..runtime.decorators import named
from ..runtime.device import ViewBatches, filled, mapped, moved, on_the_cpu
from ..runtime.messages import tell_of_fallback
from .decode import in_format
from .epoch import COLLATE, Epoch

_CPU = torch.device("cpu")


class UserCollate:
    """Calls a loader's collate_fn. A function that makes arrays, or tensors of its own on the CPU, fails on samples on
    a GPU. The first batch shows it; the function then gets that batch again, and all later ones, on the CPU.

    Args:
        fallback: the loader's: whether a FallbackWarning says so, nothing, or an error.
    """

    def __init__(self, fallback: str):
        self._fallback = fallback
        self._known: Callable[[Any], Any] | None = None  # the function that was tried
        self._on_cpu = False

    def __call__(
        self,
        function: Callable[[Any], Any],
        samples: Callable[[Any], Any],
        images: Any,
        device: torch.device,
        generators: Callable[[], AbstractContextManager],
    ) -> Any:
        """Returns what ``function`` makes of ``samples(images)``, wherever that lies. ``generators``: what the function
        draws from while it runs.

        Raises:
            RuntimeError: fallback="error", and the function cannot take samples on the GPU.
        """
        if self._known is function or device.type != "cuda":
            with generators(), _place(function, device):
                return function(samples(moved(images, _CPU) if self._on_cpu else images))
        before = generator_states()
        try:
            with generators(), _place(function, device):
                made = function(samples(mapped(images, torch.Tensor.clone)))  # it may change them before it raises
            self._known, self._on_cpu = function, False
            return made
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, torch.cuda.OutOfMemoryError) or not re.search("cuda|device", str(error)):
                raise
            name = getattr(function, "__qualname__", type(function).__name__)
            what = f"collate_fn {name} cannot take samples on a GPU ({error}): every batch is copied to the CPU for it"
            tell_of_fallback(what, self._fallback, set())
        set_generators(before)
        with generators():
            made = function(samples(moved(images, _CPU)))
        self._known, self._on_cpu = function, True
        return made


def _place(function: Callable[[Any], Any], device: torch.device) -> AbstractContextManager:
    """Returns the device on which torch makes the tensors of a function that names none. timm's functions mix images
    into a tensor of their own, which is then on the GPU, too; they draw from numpy alone."""
    loader, mixup = sys.modules.get("timm.data.loader"), sys.modules.get("timm.data.mixup")
    of_timm = loader is not None and function is loader.fast_collate
    of_timm = of_timm or (mixup is not None and type(function) is mixup.FastCollateMixup)
    return torch.device(device) if of_timm else nullcontext()


@named("collate")
def collate(epoch: Epoch[Any], samples: Listed | Tabled, images: Any, begin: int, name: Callable[[int], str]) -> Any:
    """Returns what samples become in collate_fn, on the device.

    Args:
        images: of the samples.
        begin: how many samples of the epoch come before them.
        name: gives what a message calls a sample.
    """
    with_index = {getattr(leaf, "return_index", False) for leaf in samples.leaves}
    fast = not epoch.default_collate and epoch.fast_collate
    fast = fast and isinstance(images, torch.Tensor) and images.dtype == torch.uint8
    if not (epoch.default_collate or fast) or not len(samples.targets) or len(with_index) != 1:
        return collated_by_the_user(epoch, partial(_samples, samples), images, begin)
    columns = [samples.targets, samples.locals] if with_index == {True} else [samples.targets]
    images = _stacked(epoch, images, name)
    made = [moved(_column(column), epoch.route.device) for column in columns]
    return (images, made[0].long() if made[0].ndim == 1 else made[0]) if fast else [images, *made]


def collated_by_the_user(epoch: Epoch[Any], samples: Callable[[Any], list], images: Any, begin: int) -> Any:
    """Returns what the user's collate_fn makes of ``samples(images)``, on the device."""
    given = samples if epoch.batched else lambda images: samples(images)[0]
    generators = partial(epoch.as_in_a_worker, begin, COLLATE)
    made = epoch.user_collate(epoch.collate_fn, given, images, epoch.route.device, generators)
    return moved(made, epoch.route.device)


def _samples(samples: Listed | Tabled, images: Any) -> list[tuple]:
    """Returns what ``dataset[index]`` gives for each row, with these images."""
    targets = samples.targets.tolist() if isinstance(samples.targets, np.ndarray) else samples.targets
    made: list[tuple] = []
    for image, target, (leaf, local) in zip(images, targets, samples.places, strict=True):
        with_index = getattr(leaf, "return_index", False)
        made.append((image, target, local) if with_index else (image, target))
    return made


def _stacked(epoch: Epoch[Any], images: Any, name: Callable[[int], str]) -> Any:
    """The images as default_collate gives them, on the device."""
    route = epoch.route
    if isinstance(images, torch.Tensor):
        return images
    if isinstance(images, ViewBatches):
        return moved(collated_views(images), route.device)
    column: Any = tuple(images)  # as torch has it
    try:
        made = moved(collated(column), route.device)
    except RuntimeError as error:
        raise unlike(column, error, name) from None
    has_images = isinstance(made, torch.Tensor) or any(plan.views for plan in route.plans)
    return mapped(made, partial(in_the_routes_format, epoch)) if has_images else made


def in_the_routes_format(epoch: Epoch[Any], images: torch.Tensor) -> torch.Tensor:
    """Images in the memory format that all plans have."""
    return in_format(images, epoch.route.plans[0]) if images.ndim == 4 else images


_NOTHING = object()
_ENTRY = "sample {} of the batch"
_SIZES = "Resize(n) keeps the ratio of height and width: add CenterCrop(n), or write Resize((n, n))"
_GRAY = "Convert the images, as by Image.open(path).convert('RGB')"
_LISTS = "Keep what differs in lists, by a collate_fn such as lambda batch: tuple(zip(*batch))"
_REFUSED = {"PIL.": "Add ToTensor() or v2.ToImage() to the transform", "NoneType": "Return a sample for every index"}


def unlike(samples: Sequence[Any], error: Exception, name: Callable[[int], str] = _ENTRY.format) -> Exception:
    """Return default_collate's error. Its text names two samples that do not go together, and says what to do."""
    leaves = [{keystr(path): leaf for path, leaf in tree_flatten_with_path(one)[0]} for one in samples]
    for row, place in ((row, place) for row, one in enumerate(leaves) for place in leaves[0] | one):
        first, other = leaves[0].get(place, _NOTHING), leaves[row].get(place, _NOTHING)
        if (words := _words(first)) == (others := _words(other)):
            continue
        remedy = _LISTS if first is not None and other is not None else _REFUSED["NoneType"]
        if getattr(first, "ndim", 0) == getattr(other, "ndim", 0) == 3:
            remedy = _GRAY if first.shape[0] != other.shape[0] else _SIZES
        if remedy is _SIZES and first.shape[1:] != other.shape[1:]:
            pair = (f"{name(i)}: {one.shape[1]} x {one.shape[2]}" for i, one in ((0, first), (row, other)))
            what = f"the images of a batch need one height x width ({'; '.join(pair)})"
        else:
            what = f"{name(0)} has {words}, {name(row)} has {others}" + (place and f" at {place}")
        error.args = (f"{error.args[0]}; {what}. {remedy}",)
        return error
    remedies = [remedy for kind, remedy in _REFUSED.items() if f"found <class '{kind}" in str(error)]
    error.args = ("; ".join(map(str, (*error.args, *remedies))),)
    return error


def _words(leaf: Any) -> str:
    """Return what default_collate requires of all samples at a place."""
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        return f"{leaf.dtype} of shape {tuple(leaf.shape)}"
    if isinstance(leaf, (int, float, np.generic)):
        return "a number"
    return "nothing" if leaf is _NOTHING else type(leaf).__name__


def with_indices(error: Exception, indices: Sequence[Any], name: Callable[[Any], str]) -> None:
    """Name the samples in the text of an error of ``unlike`` by their indices in the data set."""

    def named(found: re.Match[str]) -> str:
        row = int(found[1])
        return name(indices[row]) if row < len(indices) else found[0]

    if error.args and isinstance(text := error.args[0], str):
        error.args = (type(text)(re.sub(_ENTRY.format(r"(\d+)"), named, text)), *error.args[1:])


def collate_by_default(samples: list[Any]) -> Any:
    """Return what default_collate makes of samples. Its errors name the samples that do not go together."""
    try:
        return default_collate(samples)
    except Exception as error:
        raise unlike(samples, error) from error.__cause__


def collated_views(views: ViewBatches) -> Any:
    """Returns what default_collate would make of samples of several views."""
    numbers = [torch.tensor(i, device="cpu") for i in range(len(views.batches))]
    numbered = collated([filled(views.structure, numbers)])
    batches = [batch if isinstance(batch, torch.Tensor) else collated(batch) for batch in views.batches]
    return mapped(numbered, lambda number: batches[int(number)])


def collated(samples: Any) -> Any:
    """Returns what default_collate makes of them in one of torch's workers."""
    with on_the_cpu():
        return default_collate(samples)


def _column(values: Any) -> Any:
    """Returns what default_collate would make of the values."""
    if isinstance(values, torch.Tensor):
        return values
    batch: Any = values if isinstance(values, np.ndarray) else tuple(values)
    return torch.from_numpy(batch) if isinstance(batch, np.ndarray) else collated(batch)
