"""Runs steps on batches: ``run(step, images, arrays)``. Registers the functions that do so, and those for one image.

``images`` is (N, C, H, W) on any device, uint8 0..255 or floating point. The same code runs on every device; nothing is
changed in place. Which rows a step is for (``arrays["flag"]``), and images of different sizes, are run()'s affair:
kernels see neither, but for those of _LISTS.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar, cast

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import functional as F1

from ..plan import Step
from ..runtime.device import on_the_cpu, to_device
from .arguments import functions
from .pixels.lists import assign, each, of_similar_size, put, uniform
from .pixels.values import is_half, one_by_one

Function = TypeVar("Function", bound=Callable)

_kernels: dict[str, Callable] = {}
_image: dict[str, Callable] = {}


def kernel(function: Function) -> Function:
    """Registers ``op(images, arrays, **args)``: ``images`` (N, C, H, W), ``arrays`` the step's per-sample arguments as
    numpy arrays of N rows; gives (N, C, H, W), or a list of N images (C, H, W) where their sizes differ."""
    return _add(_kernels, function.__name__, function)


def image_kernel(op: str) -> Callable[[Function], Function]:
    """Registers torchvision's own way for an op: ``function(image, row, **args)`` of a PIL image or a CHW tensor.
    ``row`` is one row of the step's per-sample arguments. Files that DALI decodes differently from PIL go this way;
    where an op has none, by the kernel."""
    return functools.partial(_add, _image, op)


def torchvisions(name: str, **columns: Callable) -> Callable[[Function], Function]:
    """Registers torchvision's function of that name for the kernel's op on one image, which it decorates. ``columns``:
    the function's arguments after the image, in its order, and what converts them. The kernel calls it, too, for each
    of a batch of 16-bit floats, whose every intermediate torchvision rounds."""

    def registered(function: Function) -> Function:
        def own_way(image, row, *, like):
            return getattr(functions(like), name)(image, *(convert(row[column]) for column, convert in columns.items()))

        @functools.wraps(function)
        def run(images, arrays, *, like):
            if columns and is_half(images):
                return one_by_one(getattr(functions(like), name), images, *(arrays[column] for column in columns))
            return function(images, arrays, like=like)

        image_kernel(function.__name__)(functools.update_wrapper(own_way, function))
        return cast(Function, run)

    return registered


def kernel_of(op: str) -> Callable:
    """The function that does an op on batches. Raises LookupError if there is none, or another op does it
    (warp.as_kernels_do)."""
    if op not in _kernels:
        raise LookupError(f"no kernel is called {op!r}: write it in ops/<kind>.py, with @kernel")
    return _kernels[op]


def _add(registry: dict[str, Callable], op: str, function: Function) -> Function:
    if op in registry:
        before, now = (f"{one.__module__}.{one.__qualname__}" for one in (registry[op], function))
        raise ValueError(f"{op!r} has two kernels: {before} and {now}; give one of them another name")
    registry[op] = function
    return function


# What framed() may do: it works pixel by pixel and leaves black as it is. Contrast needs the mean of an image without
# its frame: it is told each image's own number of pixels ("area").
_FRAMED = {"brightness", "contrast", "saturation", "hue", "color_jitter", "photometric_distort"}


_LISTS = {"resize", "resize_by_choice", "resize_mirror_normalize"}  # whose kernels take lists of images (C, H, W), too


def run(step: Step, images, arrays: dict[str, np.ndarray]):
    """One step on images: a tensor (N, C, H, W) or, where sizes differ, a list of N tensors (C, H, W); gives the same.

    Rows whose flag is not set stay as they are.
    """
    with nullcontext() if step.op == "apply" else on_the_cpu():  # that is the user's own
        return _run(step, images, arrays)


def _run(step: Step, images, arrays):
    arrays = dict(arrays)
    flag = arrays.pop("flag", None)
    if flag is None or flag.all():
        return _all(step, images, arrays)
    rows = np.flatnonzero(flag)
    if not len(rows):
        return images
    arrays = rows_of(arrays, rows)
    if isinstance(images, list):
        return uniform(assign(list(images), rows, _all(step, [images[row] for row in rows], arrays)))
    index = to_device(rows, images.device)
    made = _all(step, images[index], arrays)
    if isinstance(made, torch.Tensor) and made.shape[1:] == images.shape[1:] and made.dtype == images.dtype:
        return images.index_copy(0, index, made)
    return assign(list(images), rows, made)


def _all(step: Step, images, arrays):
    """The step on every row; images of one size go together."""
    if isinstance(images, torch.Tensor):
        return kernel_of(step.op)(images, arrays, **step.kwargs)
    if images[0].is_cuda and step.op in _FRAMED and step.kwargs["like"] == "pil":
        return uniform(framed(step, images, arrays))
    if step.op in _LISTS:
        return kernel_of(step.op)(images, arrays, **step.kwargs)
    by_shape: dict[tuple, list[int]] = {}
    for row, image in enumerate(images):
        by_shape.setdefault((image.dtype, *image.shape), []).append(row)
    changed: list = [None] * len(images)
    for rows in by_shape.values():
        same = images[rows[0]][None] if len(rows) == 1 else uniform([images[row] for row in rows])
        assign(changed, rows, kernel_of(step.op)(same, rows_of(arrays, rows), **step.kwargs))
    return uniform(changed)


def framed(step: Step, images: list[torch.Tensor], arrays) -> list[torch.Tensor]:
    """A step of _FRAMED, on PIL's terms, on images of different sizes: on a few batches in which each has black to
    its right and below. A GPU takes longer to begin the operations on one image than to do them."""
    changed: list = [None] * len(images)
    for rows, height, width in of_similar_size(images):
        some = [images[row] for row in rows]
        frames = some[0].new_zeros(len(some), len(some[0]), height, width)
        put(frames, some)
        area = np.array([image[0].numel() for image in some])
        made = kernel_of(step.op)(frames, rows_of(arrays, rows) | {"area": area}, **step.kwargs)
        for row, image, frame in zip(rows, some, made, strict=True):
            changed[row] = frame[:, : image.shape[1], : image.shape[2]].contiguous()
    return changed


def rows_of(arrays: dict[str, np.ndarray], rows) -> dict[str, np.ndarray]:
    return {name: array[rows] for name, array in arrays.items()}


def on_image(op: str, image, row: dict[str, Any], **args):
    """A step on one image, of PIL or a CHW tensor, that is for it: torchvision's own way, or the kernel's where that
    has none."""
    if op in _image:
        return _image[op](image, row, **args)
    rows = {name: np.asarray(value)[None] for name, value in row.items() if name != "flag"}
    made = kernel_of(op)(as_tensor(image)[None].clone(), rows, **args)[0]  # crops of one tensor share its memory
    return F1.to_pil_image(made) if isinstance(image, Image.Image) else made


def as_tensor(image) -> torch.Tensor:
    return F1.pil_to_tensor(image) if isinstance(image, Image.Image) else image


def each_by_pillow(op: str, images, arrays: dict[str, np.ndarray], **args) -> list[torch.Tensor]:
    """A step on images (C, H, W) of a CPU, as on_image() does it on PIL images, by threads."""

    def made(image, *row):
        picture = F1.to_pil_image(image)
        return F1.pil_to_tensor(on_image(op, picture, dict(zip(arrays, row, strict=True)), **args))

    return each(made, images, *arrays.values())
