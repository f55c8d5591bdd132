"""Colour.

``like`` "pil" is torchvision on PIL images, bit for bit: uint8 in and out, in the float arithmetic of Pillow's C code.
"v1" and "v2" are torchvision's tensor functionals, with one factor a sample; where they take batches as they are, they
are called.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from ..device import to_device
from .images import functions, ints
from .registry import image_kernel, kernel

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
    """Of 16-bit images torchvision rounds every intermediate: they go through its own functions, one by one."""
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


# ---- enhancers: adjust_brightness and so on, ImageEnhance


@kernel
@in_parts
def brightness(images, arrays, *, like):
    """ImageEnhance.Brightness: blended with black."""
    if is_half(images):
        return one_by_one(functions(like).adjust_brightness, images, arrays["factor"])
    return _by_value(images, lambda values: bounded(values * to(images, arrays["factor"]), images))


@kernel
def gamma(images, arrays, *, like):
    """adjust_gamma: of PIL's images by a table of 256 levels."""
    if like != "pil":
        return one_by_one(functions(like).adjust_gamma, images, arrays["gamma"], arrays["gain"])
    rows = zip(arrays["gamma"].tolist(), arrays["gain"].tolist(), strict=True)
    tables = [[int((255 + 1 - 1e-3) * gain * pow(level / 255, own)) for level in range(256)] for own, gain in rows]
    table = to_device(np.clip(tables, 0, 255).astype(np.uint8), images.device)
    return table.gather(1, images.flatten(1).long()).view_as(images)


@image_kernel("gamma")
def gamma_image(image, row, *, like):
    return functions(like).adjust_gamma(image, float(row["gamma"]), float(row["gain"]))


@kernel
@in_parts
def contrast(images, arrays, *, like):
    """ImageEnhance.Contrast: blended with the mean of the image's gray. Of framed() images ``area`` pixels count."""
    if is_half(images):
        return one_by_one(functions(like).adjust_contrast, images, arrays["factor"])
    mean = _mean(_gray(images, like), like, arrays.get("area"))
    return _by_value(images, lambda values: blend(values, mean, arrays["factor"], like))


def _mean(gray, like, area=None):
    if gray.is_floating_point():
        return gray.mean((-3, -2, -1), keepdim=True)
    total, count = gray.sum((-3, -2, -1), keepdim=True), gray[0].numel()
    if area is not None:
        count = to(gray, area, np.int64)
    if like == "pil":  # int(mean + 0.5)
        return ((2 * total + count) // (2 * count)).to(torch.float32)
    return total.to(torch.float32) / torch.full_like(total, count, dtype=torch.float32)


@kernel
@in_parts
def saturation(images, arrays, *, like):
    """ImageEnhance.Color: blended with gray."""
    if images.shape[1] == 1:
        return images
    if is_half(images):
        return one_by_one(functions(like).adjust_saturation, images, arrays["factor"])
    images = images.contiguous()
    gray = _gray(images, like)
    return blend(images, gray.to(torch.promote_types(images.dtype, torch.float32)), arrays["factor"], like)


def _gray(images, like):
    """(N, 1, H, W); of uint8 images whole numbers."""
    if images.shape[1] == 1:
        return images
    if like == "pil":
        return _l24(images)
    if like == "v1":
        return v1.rgb_to_grayscale(images)
    r, g, b = images.split(1, 1)
    gray = r.mul(0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114)
    return gray if images.is_floating_point() else gray.to(images.dtype)


def _l24(images):
    """Pillow's L24 (Convert.c): 16-bit fixed point, rounded."""
    r, g, b = images.split(1, 1)
    half = torch.full((1, 1, 1, 1), 0x8000, dtype=torch.int32, device=images.device)
    total = half.add(r, alpha=19595).add_(g, alpha=38470).add_(b, alpha=7471)
    return total.bitwise_right_shift_(16)


@kernel
def grayscale(images, arrays, *, formula, channels):
    if formula != "pil":
        return v2.rgb_to_grayscale(images, channels)
    gray = images if images.shape[1] == 1 else _l24(images).to(images.dtype)
    return gray.expand(-1, channels, -1, -1)


# ---- values on their own


@kernel
@in_parts
def posterize(images, arrays, *, like):
    bits = arrays["bits"]
    if images.dtype == torch.uint8:
        return images & to(images, 256 - 2 ** (8 - bits), np.uint8)
    if is_half(images):
        return one_by_one(functions(like).posterize, images, bits)
    levels = to(images, 2.0**bits)
    made = images.mul(levels).floor_().clamp_(min=0)
    return torch.minimum(made, levels - 1, out=made).mul_(to(images, 0.5**bits))


@kernel
@in_parts
def solarize(images, arrays, *, like):
    threshold = arrays["threshold"]
    if is_half(images):
        return one_by_one(functions(like).solarize, images, threshold)
    if like != "pil":
        threshold = threshold.astype(np.float32)
    if images.dtype != torch.uint8:
        return torch.where(images >= to(images, threshold), 1 - images, images)
    least = np.clip(np.ceil(threshold), 0, 256)
    change = to(images, np.where(least < 256, 255, 0), np.uint8)
    return (images >= to(images, np.minimum(least, 255), np.uint8)).mul(change).bitwise_xor_(images)


@kernel
def invert(images, arrays, *, like):
    return 1 - images if images.is_floating_point() else ~images


@kernel
def permute_channels(images, arrays):
    rows = np.arange(len(images))[:, None]
    index = [to_device(a, images.device) for a in (rows, arrays["order"].astype(np.int64))]
    return images[index[0], index[1]]


# ---- tables of 256 values


def _by_value(images, function):
    """``function`` of each pixel, by way of a table where there are but 256 values."""
    if images.dtype != torch.uint8:
        return function(images)
    levels = torch.arange(256, dtype=torch.uint8, device=images.device).view(1, 1, 1, 256)
    return _look_up(_indices(images), function(levels)[:, 0], images)


@kernel
@in_parts
def autocontrast(images, arrays, *, like):
    """ImageOps.autocontrast: each channel from its least value to its greatest."""
    if like != "pil":
        return functions(like).autocontrast(images)
    low, high = (extreme((-2, -1)).to(torch.float64)[..., None] for extreme in (images.amin, images.amax))
    levels = torch.arange(256, dtype=torch.float64, device=images.device)
    scale = torch.full_like(low, 255) / (high - low)
    tables = (levels * scale).add_(-low * scale).clamp_(0, 255)
    return _look_up(_indices(images), torch.where(high > low, tables, levels), images)


@kernel
@in_parts
def equalize(images, arrays, *, like):
    """ImageOps.equalize; of uint8 images torchvision's functionals give the same."""
    if images.is_floating_point():
        return functions(like).equalize(images)
    indices = _indices(images)
    histogram = _histogram(indices)
    until = histogram.cumsum(-1)
    last = (until < indices.shape[-1]).sum(-1, keepdim=True)  # the greatest value
    step = (indices.shape[-1] - histogram.gather(-1, last)) // 255
    tables = ((until - histogram + step // 2) // step.clamp(min=1)).clamp_(max=255)
    levels = torch.arange(256, device=images.device)
    return _look_up(indices, torch.where(step > 0, tables, levels), images)


def _indices(images):
    """(N, C, H * W) int64, for gather and scatter."""
    return images.contiguous().flatten(2).to(torch.int64)


def _histogram(indices):
    """(N, C, 256) int64 of indices (N, C, pixels)."""
    n, channels, pixels = indices.shape
    # A GPU adds to one number at a time, and a sky is of one colour: it has several counters for each value.
    counters = 1 if indices.device.type == "cpu" else 32
    first = torch.arange(0, n * channels * counters * 256, counters * 256, device=indices.device).view(n, channels, 1)
    if counters == 1:
        return torch.bincount((indices + first).view(-1), minlength=n * channels * 256).view(n, channels, 256)
    flat = indices.add(torch.arange(pixels, device=indices.device) % counters * 256).add_(first)
    ones = torch.ones(1, dtype=torch.int32, device=indices.device)
    counts = ones.new_zeros(n * channels * counters * 256)
    counts.scatter_add_(0, flat.view(-1), ones.expand(flat.numel()))  # bincount would wait for the GPU
    return counts.view(n, channels, counters, 256).sum(2)


def _look_up(indices, tables, images):
    """Each pixel's value in its channel's table, (N, C, 256), or in its image's, (N, 1, 256)."""
    return tables.to(images.dtype).expand(-1, images.shape[1], -1).gather(-1, indices).view(images.shape)


@kernel
def repeat_channels(images, arrays):
    return images.expand(-1, 3, -1, -1)


# ---- one image


@image_kernel("grayscale")
def grayscale_image(image, row, *, formula, channels):
    return v2.rgb_to_grayscale(image, channels)


@image_kernel("posterize")
def posterize_image(image, row, *, like):
    return functions(like).posterize(image, int(row["bits"]))


@image_kernel("solarize")
def solarize_image(image, row, *, like):
    return functions(like).solarize(image, float(row["threshold"]))


@image_kernel("invert")
def invert_image(image, row, *, like):
    return functions(like).invert(image)


@image_kernel("autocontrast")
def autocontrast_image(image, row, *, like):
    return functions(like).autocontrast(image)


@image_kernel("equalize")
def equalize_image(image, row, *, like):
    return functions(like).equalize(image)


@image_kernel("repeat_channels")
def repeat_channels_image(image, row):
    return v2.grayscale_to_rgb(image)


@image_kernel("permute_channels")
def permute_channels_image(image, row):
    return v2.permute_channels(image, ints(row["order"]))
