"""Collate a batch as torch's fetchers do. default_collate leaves stacked images as they are; a custom collate_fn gets
samples on the GPU if it accepts them there."""

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
    """Call a custom collate_fn, with samples on the GPU if possible.

    A function that makes NumPy arrays or CPU tensors fails on samples on a GPU. If it fails on the first batch, it is
    called again with that batch on the CPU, and all later batches are copied to the CPU for it.

    Args:
        fallback: the loader's ``fallback``: whether the copy is reported by a FallbackWarning, not at all, or by an
            error.
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
        """Return ``function(samples(images))``, on the device that the function leaves it on.

        Args:
            samples: builds the list of samples from images.
            generators: returns a context for the call, with the random generators that the function draws from.

        Raises:
            RuntimeError: fallback="error", and the function does not accept samples on the GPU.
        """
        if self._known is function or device.type != "cuda":
            with generators(), _place(function, device):
                return function(samples(moved(images, _CPU) if self._on_cpu else images))
        before = generator_states()
        try:
            with generators(), _place(function, device):
                made = function(samples(mapped(images, torch.Tensor.clone)))  # it may modify them before it raises
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
    """Return a context that sets the default device of torch for timm's collate functions.

    They copy images into a new tensor, which is then created on the GPU. Their random numbers are not affected, since
    they come from NumPy only.
    """
    loader, mixup = sys.modules.get("timm.data.loader"), sys.modules.get("timm.data.mixup")
    of_timm = loader is not None and function is loader.fast_collate
    of_timm = of_timm or (mixup is not None and type(function) is mixup.FastCollateMixup)
    return torch.device(device) if of_timm else nullcontext()


@named("collate")
def collate(epoch: Epoch[Any], samples: Listed | Tabled, images: Any, begin: int, name: Callable[[int], str]) -> Any:
    """Return the collated batch, on the device.

    Args:
        samples: targets and locations of the samples.
        begin: number of samples of the epoch before them.
        name: returns the name of a row for error messages.
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
    """Return the custom collate_fn's result for ``samples(images)``, on the device."""
    given = samples if epoch.batched else lambda images: samples(images)[0]
    generators = partial(epoch.as_in_a_worker, begin, COLLATE)
    made = epoch.user_collate(epoch.collate_fn, given, images, epoch.route.device, generators)
    return moved(made, epoch.route.device)


def _samples(samples: Listed | Tabled, images: Any) -> list[tuple]:
    """Return the values of ``dataset[index]`` for each row, with these images."""
    targets = samples.targets.tolist() if isinstance(samples.targets, np.ndarray) else samples.targets
    made: list[tuple] = []
    for image, target, (leaf, local) in zip(images, targets, samples.places, strict=True):
        with_index = getattr(leaf, "return_index", False)
        made.append((image, target, local) if with_index else (image, target))
    return made


def _stacked(epoch: Epoch[Any], images: Any, name: Callable[[int], str]) -> Any:
    """Stack images as default_collate does, on the device."""
    route = epoch.route
    if isinstance(images, torch.Tensor):
        return images
    if isinstance(images, ViewBatches):
        return moved(collated_views(images), route.device)
    column: Any = tuple(images)  # as in torch's fetcher
    try:
        made = moved(collated(column), route.device)
    except RuntimeError as error:
        raise unlike(column, error, name) from None
    has_images = isinstance(made, torch.Tensor) or any(plan.views for plan in route.plans)
    return mapped(made, partial(in_the_routes_format, epoch)) if has_images else made


def in_the_routes_format(epoch: Epoch[Any], images: torch.Tensor) -> torch.Tensor:
    """Return images in the memory format of the route's plans."""
    return in_format(images, epoch.route.plans[0]) if images.ndim == 4 else images


_NOTHING = object()
_ENTRY = "sample {} of the batch"
_SIZES = "Resize(n) keeps the ratio of height and width: add CenterCrop(n), or write Resize((n, n))"
_GRAY = "Convert the images, as by Image.open(path).convert('RGB')"
_LISTS = "Keep values that differ in lists, by a collate_fn such as lambda batch: tuple(zip(*batch))"
_REFUSED = {"PIL.": "Add ToTensor() or v2.ToImage() to the transform", "NoneType": "Return a sample for every index"}


def unlike(samples: Sequence[Any], error: Exception, name: Callable[[int], str] = _ENTRY.format) -> Exception:
    """Extend the text of default_collate's error by two samples that cannot be collated together, and a remedy."""
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
    """Describe the properties of a leaf that default_collate requires to be equal."""
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        return f"{leaf.dtype} of shape {tuple(leaf.shape)}"
    if isinstance(leaf, (int, float, np.generic)):
        return "a number"
    return "nothing" if leaf is _NOTHING else type(leaf).__name__


def with_indices(error: Exception, indices: Sequence[Any], name: Callable[[Any], str]) -> None:
    """Replace row numbers in the text of an ``unlike`` error by the samples' indices in the data set."""

    def named(found: re.Match[str]) -> str:
        row = int(found[1])
        return name(indices[row]) if row < len(indices) else found[0]

    if error.args and isinstance(text := error.args[0], str):
        error.args = (type(text)(re.sub(_ENTRY.format(r"(\d+)"), named, text)), *error.args[1:])


def collate_by_default(samples: list[Any]) -> Any:
    """Call default_collate. Its errors name the samples that cannot be collated together."""
    try:
        return default_collate(samples)
    except Exception as error:
        raise unlike(samples, error) from error.__cause__


def collated_views(views: ViewBatches) -> Any:
    """Collate samples that consist of several views, as default_collate would."""
    numbers = [torch.tensor(i, device="cpu") for i in range(len(views.batches))]
    numbered = collated([filled(views.structure, numbers)])
    batches = [batch if isinstance(batch, torch.Tensor) else collated(batch) for batch in views.batches]
    return mapped(numbered, lambda number: batches[int(number)])


def collated(samples: Any) -> Any:
    """Call default_collate as in a torch worker, with CPU tensors."""
    with on_the_cpu():
        return default_collate(samples)


def _column(values: Any) -> Any:
    """Collate a column of values as default_collate would."""
    if isinstance(values, torch.Tensor):
        return values
    batch: Any = values if isinstance(values, np.ndarray) else tuple(values)
    return torch.from_numpy(batch) if isinstance(batch, np.ndarray) else collated(batch)
