"""Register kernels, and apply steps to batches.

Kernels run on every device, on images (N, C, H, W) in uint8 0..255 or floating point, and do not modify their
arguments. run() selects images by ``arrays["flag"]`` and groups them by size. Only kernels with ``takes_lists`` receive
images of different sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import functional as F1

from ..plan import OPERATIONS, Operation, Step
from ..runtime.device import on_the_cpu, to_device
from .arguments import functions
from .pixels.lists import assign, each, stack_if_uniform
from .pixels.values import in_parts, is_half, one_by_one

Function = TypeVar("Function", bound=Callable)


def always(*_: Any) -> bool:
    return True


def define(op: str, **traits: Any) -> None:
    """Set fields of an operation in OPERATIONS. Other fields are kept."""
    before = OPERATIONS.get(op, Operation(op))
    for name in traits.keys() & {"kernel", "image"}:
        if (had := getattr(before, name)) is not None:
            had, has = (f"{one.__module__}.{one.__qualname__}" for one in (had, traits[name]))
            raise ValueError(f"{op!r} has two kernels: {had} and {has}; rename one of them")
    OPERATIONS[op] = replace(before, **traits)


def kernel(function: Any = None, *, torchvision: str = "", parts: bool = False, **traits: Any) -> Any:
    """Register ``op(images, arrays, **args)`` as the kernel of the operation ``op``.

    ``images`` is (N, C, H, W), and ``arrays`` contains the per-sample arguments, NumPy arrays of length N. The kernel
    returns (N, C, H, W), or a list of N images if their sizes differ.

    Args:
        torchvision: name of torchvision's function for single images (Operation.image), followed by the names of the
            arrays that the function takes. A function that takes arrays also replaces the kernel for 16-bit floats.
        parts: whether to call the kernel on a few images at a time.
        **traits: other fields of Operation.
    """
    if function is None:
        return functools.partial(kernel, torchvision=torchvision, parts=parts, **traits)
    run = function
    if torchvision:
        name, *columns = torchvision.split()

        @functools.wraps(function)
        def run(images, arrays, *, like):
            if columns and is_half(images):  # torchvision rounds every intermediate result
                return one_by_one(getattr(functions(like), name), images, *(arrays[column] for column in columns))
            return function(images, arrays, like=like)

        @functools.wraps(function)
        def image(image, row, *, like):
            return getattr(functions(like), name)(image, *(np.asarray(row[column]).item() for column in columns))

        traits["image"] = image
    run = in_parts(run) if parts else run
    define(function.__name__, kernel=run, **traits)
    return run


def image_kernel(op: str, **traits: Any) -> Callable[[Function], Function]:
    """Register ``function(image, row, **args)``, torchvision's implementation of an operation for one image.

    ``image`` is a PIL image or a CHW tensor, and ``row`` contains its random arguments. The function is used for files
    that DALI decodes differently from Pillow.
    """

    def registered(function: Function) -> Function:
        define(op, image=function, **traits)
        return function

    return registered


def kernel_of(op: str) -> Callable:
    """Return the kernel of an operation. Raise LookupError if it has none."""
    found = OPERATIONS[op].kernel if op in OPERATIONS else None
    if found is None:
        raise LookupError(f"no kernel is registered for {op!r}: define it in ops/<kind>.py with @kernel")
    return found


def run(step: Step, images, arrays: dict[str, np.ndarray]):
    """Apply a step to a batch, and return the new batch. A batch is a tensor (N, C, H, W), or a list of N tensors if
    sizes differ.

    Images with ``arrays["flag"]`` 0 are left unchanged.
    """
    with nullcontext() if step.operation.calls_user else on_the_cpu():
        return apply_step(step, images, arrays)


def apply_step(step: Step, images, arrays: dict[str, np.ndarray]):
    """Apply a step as run() does, but do not change torch's default device."""
    arrays = dict(arrays)
    flag = arrays.pop("flag", None)
    if flag is None or flag.all():
        return _all(step, images, arrays)
    rows = np.flatnonzero(flag)
    if not len(rows):
        return images
    arrays = rows_of(arrays, rows)
    if isinstance(images, list):
        return stack_if_uniform(assign(list(images), rows, _all(step, [images[row] for row in rows], arrays)))
    index = to_device(rows, images.device)
    made = _all(step, images[index], arrays)
    if isinstance(made, torch.Tensor) and made.shape[1:] == images.shape[1:] and made.dtype == images.dtype:
        return images.index_copy(0, index, made)
    return assign(list(images), rows, made)


def _all(step: Step, images, arrays):
    """Apply a step to all images. Images of the same size are processed together."""
    if isinstance(images, torch.Tensor):
        return kernel_of(step.op)(images, arrays, **step.kwargs)
    if step.operation.takes_lists:
        return kernel_of(step.op)(images, arrays, **step.kwargs)
    by_shape: dict[tuple, list[int]] = {}
    for row, image in enumerate(images):
        by_shape.setdefault((image.dtype, *image.shape), []).append(row)
    changed: list = [None] * len(images)
    for rows in by_shape.values():
        same = images[rows[0]][None] if len(rows) == 1 else stack_if_uniform([images[row] for row in rows])
        assign(changed, rows, kernel_of(step.op)(same, rows_of(arrays, rows), **step.kwargs))
    return stack_if_uniform(changed)


def rows_of(arrays: dict[str, np.ndarray], rows) -> dict[str, np.ndarray]:
    return {name: array[rows] for name, array in arrays.items()}


def on_image(op: str, image, row: dict[str, Any], **args):
    """Apply an operation to a PIL image or a CHW tensor. If torchvision has no function for the operation, use the
    kernel."""
    operation = OPERATIONS[op]
    if operation.image is not None:
        return operation.image(image, row, **args)
    if operation.unchanged:
        return image
    rows = {name: np.asarray(value)[None] for name, value in row.items() if name != "flag"}
    # cloned, because crops of one tensor share its memory
    made = kernel_of(op)(as_tensor(image)[None].clone(), rows, **args)[0]
    return as_picture(made) if isinstance(image, Image.Image) else made


def as_tensor(image) -> torch.Tensor:
    """Return a PIL image as a contiguous tensor (C, H, W), and a tensor unchanged."""
    if not isinstance(image, Image.Image):
        return image
    if image.mode != "RGB":
        return F1.pil_to_tensor(image).contiguous()
    planes = [np.frombuffer(band.tobytes(), np.uint8) for band in image.split()]  # faster than a transposed copy
    return torch.from_numpy(np.concatenate(planes)).view(3, image.height, image.width)


def as_picture(image: torch.Tensor) -> Image.Image:
    """Return a uint8 CPU tensor (C, H, W) as a PIL image. With three channels, this is several times as fast as
    torchvision's to_pil_image()."""
    channels, height, width = image.shape
    if channels != 3 or image.dtype != torch.uint8:
        return F1.to_pil_image(image)
    planes = image.contiguous().numpy()
    return Image.merge("RGB", [Image.frombuffer("L", (width, height), plane, "raw", "L", 0, 1) for plane in planes])


def each_by_pillow(op: str, images, arrays: dict[str, np.ndarray], **args) -> list[torch.Tensor]:
    """Apply an operation to each CPU image (C, H, W) as a PIL image, in threads."""

    def made(image, *row):
        return as_tensor(on_image(op, as_picture(image), dict(zip(arrays, row, strict=True)), **args))

    return each(made, images, *arrays.values())
