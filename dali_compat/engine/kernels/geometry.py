"""Windows, flips, sizes and views."""

from __future__ import annotations

import numpy as np
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from ...cores import usable_cores
from ...versions import resizes_in_whole_numbers
from . import resample, transform
from .grids import on_device_of
from .images import functions, ints, on_tensor
from .lists import each, float_batch, uniform
from .registry import image_kernel, kernel, ragged_kernel


@kernel
def flip(images, arrays, *, axis):
    return images.flip(-1 if axis == "horizontal" else -2)


# ---- windows


@kernel
def crop(images, arrays, *, inside):
    """torchvision.transforms.functional.crop: zeros where the window leaves the image."""
    return _windows(images, arrays, "constant", None)


@kernel
def pad(images, arrays, *, mode, fill):
    """torchvision.transforms.functional.pad, on PIL images of any size (numpy.pad where not constant)."""
    return _windows(images, arrays, mode, fill)


def _windows(images, arrays, mode, fill):
    start = arrays["start"].astype(np.int64)
    return by_size(images, arrays["shape"], lambda part, rows, size: _window(part, start[rows], size, mode, fill))


def _window(images, start, size, mode, fill):
    """A window of each image; ``start`` (N, 2) is where it begins."""
    shape = images.shape[-2:]
    same = (start == start[0]).all()
    inside = (start >= 0).all() and (start + size <= shape).all()
    if same and inside:
        (top, left), (height, width) = start[0], size
        return images[..., top : top + height, left : left + width]
    if mode == "constant" and (same or not images.is_cuda):
        return _placed(images, start[:1] if same else start, size, fill)
    lines = [(start[:1] if same else start)[:, [i]] + np.arange(size[i]) for i in (0, 1)]
    y, x = (on_device_of(border(line, n, mode), images) for line, n in zip(lines, shape, strict=True))
    made = (
        images.index_select(-2, y[0]).index_select(-1, x[0])
        if same
        else transform.pixels(images)(y[:, :, None] * shape[1] + x[:, None, :])
    )
    if inside or mode != "constant":
        return made
    in_y, in_x = (on_device_of((line >= 0) & (line < n), images) for line, n in zip(lines, shape, strict=True))
    return torch.where((in_y[:, :, None] & in_x[:, None, :])[:, None], made, transform.fill_like(images, fill))


def _placed(images, start, size, fill):
    """The same of constant borders, by copying what lies within: of all images at once where ``start`` is one row."""
    made = transform.fill_like(images, fill).expand(len(images), images.shape[-3], *size).contiguous()
    for row, (top, left) in enumerate(start.tolist()):
        rows = slice(None) if len(start) == 1 else slice(row, row + 1)
        height, width = images.shape[-2:]
        y, x = slice(max(0, top), min(height, top + size[0])), slice(max(0, left), min(width, left + size[1]))
        if y.start < y.stop and x.start < x.stop:
            there = made[rows, :, y.start - top : y.stop - top, x.start - left : x.stop - left]
            there.copy_(images[rows, :, y, x])
    return made


def border(index: np.ndarray, size: int, mode: str) -> np.ndarray:
    """The pixel that stands for each index, which may be outside 0 .. size - 1, in numpy.pad's modes."""
    if mode == "reflect":
        period = max(2 * size - 2, 1)
        return size - 1 - abs(size - 1 - index % period)
    if mode == "symmetric":
        index = index % (2 * size)
        return np.minimum(index, 2 * size - 1 - index)
    return np.clip(index, 0, size - 1)  # constant, too: what is outside is filled afterwards


# ---- sizes


@kernel
def resize(images, arrays, *, interpolation, like, antialias=True):
    """torchvision.transforms.functional.resize; PIL always antialiases."""
    how = {"interpolation": interpolation, "like": like, "antialias": antialias}
    if like == "pil" and not images.is_cuda and not _tiny(images, arrays["size"]):
        return uniform(resize_each(list(images), arrays, **how))
    return by_size(images, arrays["size"], lambda images, rows, size: _resize(images, size, **how))


@ragged_kernel("resize")
def resize_each(images, arrays, *, interpolation, like, antialias=True):
    """The same of a list of images (C, H, W), whose sizes may differ; gives a list."""
    sizes, how = arrays["size"].astype(np.int64), {"interpolation": interpolation, "like": like, "antialias": antialias}
    if images[0].is_cuda and _as_pillow(images[0], sizes[0], interpolation, like):
        return resample.resize_each(images, sizes, interpolation, like, antialias)

    def resize_one(image, size):
        if like == "pil" and not image.is_cuda:
            return on_tensor("resize", image, {"size": size}, **how)
        return _resize(image[None], tuple(size.tolist()), **how)[0]

    if images[0].is_cuda:
        return [resize_one(*row) for row in zip(images, sizes, strict=True)]
    return each(resize_one, images, sizes)


@ragged_kernel("resize_mirror_normalize")
@kernel
def resize_mirror_normalize(images, arrays, *, interpolation, mean, std, fill=()):
    """uint8 images (C, H, W) of a CPU, resized, of these a window, mirrored or not, float32 and normalized: each goes
    through a thread's cache once. Around the image is the ``fill``. Within 7e-7 of PyTorch's resize of bytes, and
    torchvision's functions after it."""
    sizes, starts, mirrors = (arrays[name].astype(np.int64).tolist() for name in ("size", "start", "mirror"))
    height, width = arrays["shape"][0].astype(np.int64).tolist()
    made = float_batch((len(images), len(images[0]), height, width))
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (mean, std))
    scale, shift = 1 / (255 * std), -mean / std
    border = np.array(fill or (0,), np.float32)[:, None, None]
    resized = getattr(torch.ops.aten, f"_upsample_{interpolation}2d_aa")

    def convert(first: int, end: int) -> None:
        for image, size, (top, left), mirror, out in rows[first:end]:
            if size == [1, 1]:
                image = resample.resize(image[None], (1, 1), interpolation, "v2")
            else:
                image = resized(image[None], size, False)
            whole, there = image[0].numpy(), out[:, :, ::-1] if mirror else out
            window = whole[:, max(0, top) : max(0, top + height), max(0, left) : max(0, left + width)]
            if window.shape != there.shape:
                there[...] = border
                there = there[:, max(0, -top) :, max(0, -left) :][:, : window.shape[1], : window.shape[2]]
            there[...] = window
            np.multiply(out, scale, out=out)
            np.add(out, shift, out=out)

    rows = list(zip(images, sizes, starts, mirrors, made.numpy(), strict=True))
    bounds = np.linspace(0, len(rows), min(len(rows), 2 * usable_cores()) + 1).astype(int).tolist()
    each(convert, bounds[:-1], bounds[1:])
    return made


def _resize(images, size, *, interpolation, like, antialias):
    if _as_pillow(images, size, interpolation, like):
        return resample.resize(images, size, interpolation, like, antialias)
    if like == "pil":
        return transform.resize_nearest(images, size)
    return (v1 if like == "v1" else v2).resize(
        images, list(size), InterpolationMode(interpolation), antialias=antialias
    )


def _as_pillow(images, size, interpolation, like) -> bool:
    """In two passes, each rounded. So does PyTorch with uint8 for v2, but on a GPU it rounds once, and to a single
    pixel it fails an assertion of its own, unless the channels are last."""
    if like == "pil":
        return not interpolation.startswith("nearest")
    ours = like == "v2" and (images.is_cuda or tuple(size) == (1, 1))
    ours = ours and images.dtype == torch.uint8 and interpolation in ("bilinear", "bicubic")
    return ours and resizes_in_whole_numbers(interpolation)


def _tiny(images, sizes) -> bool:
    """Pillow takes .10 ms to make 40 x 40 pixels of 32 x 32, and a matrix .065; of 224 x 224 from 96 x 96 .6 and
    3.6."""
    return max(images.shape[-2] * images.shape[-1], sizes.prod(1).max()) <= 48**2


# ---- views: a sample becomes (V, C, H, W), a batch (N, V, C, H, W)


@kernel
def five_crop(images, arrays, *, size):
    """torchvision.transforms.functional.five_crop: the corners, top left first, and the centre."""
    (height, width), (h, w) = images.shape[-2:], size
    middle = round((height - h) / 2.0), round((width - w) / 2.0)
    starts = (0, 0), (0, width - w), (height - h, 0), (height - h, width - w), middle
    return torch.stack([images[..., top : top + h, left : left + w] for top, left in starts], 1)


@kernel
def ten_crop(images, arrays, *, size, axis):
    """torchvision.transforms.functional.ten_crop: those of the image, and those of its mirror image."""
    mirrored = images.flip(-1 if axis == "horizontal" else -2)
    return torch.cat([five_crop(images, arrays, size=size), five_crop(mirrored, arrays, size=size)], 1)


# ---- shared


def by_size(images, sizes, function):
    """``function(images, rows, size)`` on all rows of one target size: a tensor, or a list where there are several."""
    sizes = np.asarray(sizes).astype(np.int64)
    if (sizes == sizes[0]).all():
        return function(images, slice(None), tuple(sizes[0].tolist()))
    made = [None] * len(images)
    unique, which = np.unique(sizes, axis=0, return_inverse=True)
    for i, size in enumerate(unique.tolist()):
        rows = np.flatnonzero(which.reshape(-1) == i)
        for row, image in zip(rows, function(images[on_device_of(rows, images)], rows, tuple(size)), strict=True):
            made[row] = image
    return made


# ---- one image


@image_kernel("crop")
def crop_image(image, row, *, inside):
    return v1.crop(image, *ints(row["start"]), *ints(row["shape"]))


@image_kernel("pad")
def pad_image(image, row, *, mode, fill):
    (top, left), (height, width) = ints(-row["start"]), ints(row["shape"])
    _, h, w = v1.get_dimensions(image)
    padding = [left, top, width - w - left, height - h - top]
    return v2.pad(image, padding, fill=list(fill) if mode == "constant" else 0, padding_mode=mode)


@image_kernel("resize")
def resize_image(image, row, *, interpolation, like, antialias):
    return functions(like).resize(image, ints(row["size"]), InterpolationMode(interpolation), antialias=antialias)


@image_kernel("five_crop")
def five_crop_image(image, row, *, size):
    return v1.five_crop(image, list(size))


@image_kernel("ten_crop")
def ten_crop_image(image, row, *, size, axis):
    return v1.ten_crop(image, list(size), vertical_flip=axis == "vertical")


@image_kernel("flip")
def flip_image(image, row, *, axis):
    return v1.hflip(image) if axis == "horizontal" else v1.vflip(image)
