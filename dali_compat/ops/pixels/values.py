"""Arithmetic on a batch's values with one number an image, and by tables of 256 values."""

from __future__ import annotations

import functools

import numpy as np
import torch

from ...runtime.device import to_device

_CPU_PART, _GPU_PART = 2**17, 2**26  # numbers


def in_parts(kernel):
    """A kernel goes through a few rows at a time: on a CPU what lies between two passes then stays in the caches of its
    threads, and on a GPU it takes no more than a gigabyte."""

    @functools.wraps(kernel)
    def run(images, arrays, **args):
        numbers = _CPU_PART * torch.get_num_threads() if images.device.type == "cpu" else _GPU_PART
        rows = max(1, numbers // max(1, images.shape[1:].numel()))
        if len(images) <= rows:
            return kernel(images, arrays, **args)
        parts = [slice(start, start + rows) for start in range(0, len(images), rows)]
        return torch.cat([kernel(images[p], {k: a[p] for k, a in arrays.items()}, **args) for p in parts])

    return run


def to(images, array, dtype=None):
    """One number a row, for arithmetic with images (N, C, H, W); in floating point unless another dtype is asked
    for."""
    dtype = dtype or (np.float64 if images.dtype == torch.float64 else np.float32)
    column = torch.from_numpy(np.ascontiguousarray(array, dtype))
    return to_device(column, images.device).view(-1, 1, 1, 1)


def is_half(images) -> bool:
    """Returns whether images are of 16 bits: torchvision rounds their every intermediate, so they go through its
    functions."""
    return images.dtype in (torch.float16, torch.bfloat16)


def one_by_one(function, images, *columns):
    rows = zip(images.contiguous(), *(np.asarray(column).tolist() for column in columns), strict=True)
    return torch.stack([function(image, *values) for image, *values in rows])


def bounded(values, images):
    """Clipped and truncated to what images hold; ``values`` is changed in place."""
    values = values.clamp_(0, 1 if images.is_floating_point() else 255)
    return values.to(images.dtype)


def blend(images, other, factors, like):
    """Image.blend(other, images, factor) (Blend.c), or _blend(images, other, factor) of torchvision's functionals."""
    ratio = to(images, factors)
    if like == "pil":
        return bounded(torch.sub(images, other).mul_(ratio).add_(other), images)
    rest = to(images, 1.0 - factors)
    if like == "v1":
        return bounded((images * ratio).add_(other * rest), images)
    # torchvision's add(alpha=) multiplies and adds in one rounding, where the device can, and so does this
    return bounded((images * ratio).addcmul_(other, rest), images)


# ---- tables, by which a value of uint8 images becomes another one


def by_value(images, function):
    """``function`` of each pixel, by way of a table where there are but 256 values."""
    if images.dtype != torch.uint8:
        return function(images)
    levels = torch.arange(256, dtype=torch.uint8, device=images.device).view(1, 1, 1, 256)
    return look_up(as_indices(images), function(levels)[:, 0], images)


def as_indices(images):
    """(N, C, H * W) int64, for gather and scatter."""
    return images.contiguous().flatten(2).to(torch.int64)


def look_up(indices, tables, images):
    """Each pixel's value in its channel's table, (N, C, 256), or in its image's, (N, 1, 256)."""
    return tables.to(images.dtype).expand(-1, images.shape[1], -1).gather(-1, indices).view(images.shape)
