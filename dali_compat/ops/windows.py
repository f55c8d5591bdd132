"""Crops, pads and flips."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from torchvision import transforms as v1
from torchvision.transforms import functional as F1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

from ..inspection.method_calls import ExifTranspose
from ..inspection.untranslatable import Untranslatable
from ..plan import UPRIGHT, ImageSpec, Step, draw, step
from ..runtime.device import to_device
from .arguments import fill_of, ints
from .draws import Arrays, ImageTooSmall, draws, rand, rand_between
from .kernels import always, define, kernel
from .pixels import transform
from .pixels.lists import by_size
from .translators import register

define(UPRIGHT, unchanged=True, commutes=True, keeps_info=True)


@register(ExifTranspose)
def translate_turn(t, spec):
    """Refuse exif_transpose(), which only the decoder applies."""
    # translate() does not call this translator if exif_transpose() is the first transform
    raise Untranslatable(t, "DALI rotates images only while decoding files", "put it first")


@register(v1.CenterCrop, v2.CenterCrop, consumes="size")
def translate_center_crop(t, spec):
    size = _pair(t)
    inside = _covers(spec, size)
    if spec.normalized and not inside:
        raise Untranslatable(t, "it may pad normalized images with zeros", "move it before Normalize")
    return (step("crop", spec.but(size=size), draw("center_crop", size=size), inside=inside),)


@register(v1.RandomCrop, v2.RandomCrop, consumes="size padding pad_if_needed fill padding_mode")
def translate_random_crop(t, spec):
    size, steps = _pair(t), []
    padding: Any
    if isinstance(t, v2.RandomCrop):
        # v2 stores (left, right, top, bottom) and adds the padding of pad_if_needed in the same call
        padding = t.padding and (t.padding[0], t.padding[2], t.padding[1], t.padding[3])
        if padding and t.pad_if_needed and t.padding_mode in ("reflect", "symmetric"):
            raise Untranslatable(t, f"padding cannot be combined with pad_if_needed in padding_mode={t.padding_mode!r}")
    else:
        padding = t.padding is not None and _ltrb(t.padding)
    if padding:
        steps.append(_pad_step(t, spec, padding))
    if t.pad_if_needed:
        for axis in (1, 0):  # torchvision pads the width first
            missing = draw("pad_if_needed", size=size, axis=axis)
            steps.append(step("pad", spec.but(size=None), missing, **_border(t, spec)))
    steps.append(step("crop", spec.but(size=size), draw("random_crop", size=size), inside=True))
    return steps


@register(v1.Pad, v2.Pad, consumes="padding fill padding_mode")
def translate_pad(t, spec):
    return (_pad_step(t, spec, _ltrb(t.padding)),)


@register(v2.RandomZoomOut, consumes="fill side_range p")
def translate_random_zoom_out(t, spec):
    window = draw("zoom_out", side_range=tuple(t.side_range), p=t.p)
    return (step("pad", spec.but(size=None), window, **_border(t, spec, "constant")),)


@register(v1.RandomHorizontalFlip, v2.RandomHorizontalFlip, v1.RandomVerticalFlip, v2.RandomVerticalFlip, consumes="p")
def translate_random_flip(t, spec):
    axis = "vertical" if isinstance(t, (v1.RandomVerticalFlip, v2.RandomVerticalFlip)) else "horizontal"
    return (step("flip", spec, draw("bernoulli", p=t.p), axis=axis),)


def _covers(spec: ImageSpec, size) -> bool:
    """Return True if a window of ``size`` always lies within the image."""
    return spec.size is not None and spec.size[0] >= size[0] and spec.size[1] >= size[1]


def _pair(t) -> tuple[int, int]:
    size = t.size
    if isinstance(size, Integral):
        return int(size), int(size)
    if not all(isinstance(edge, Integral) for edge in size):
        raise Untranslatable(t, f"size={size} contains a non-integer")
    return (int(size[0]), int(size[0])) if len(size) == 1 else (int(size[0]), int(size[1]))


def _ltrb(padding) -> tuple[int, int, int, int]:
    """Return torchvision's padding argument as (left, top, right, bottom)."""
    if isinstance(padding, Integral):
        return (int(padding),) * 4
    padding = tuple(int(p) for p in padding)
    return padding * 4 if len(padding) == 1 else padding * 2 if len(padding) == 2 else padding


def _pad_step(t, spec: ImageSpec, padding) -> Step:
    if min(padding) < 0:
        raise Untranslatable(t, "padding is negative", "use a crop")
    left, top, right, bottom = padding
    size = spec.size and (spec.size[0] + top + bottom, spec.size[1] + left + right)
    return step("pad", spec.but(size=size), draw("pad", padding=padding), **_border(t, spec))


def _border(t, spec: ImageSpec, mode: Any = None) -> dict:
    """Return the arguments of a pad: its ``mode``, and its ``fill`` with one value per channel in the image's range."""
    if isinstance(t.fill, (tuple, list)) and spec.kind != "pil" and not isinstance(t, v2.Transform):
        raise Untranslatable(t, f"fill={t.fill} must be a number for tensors")
    fill = fill_of(t, spec) or (0,) * spec.channels
    if spec.dtype == torch.uint8 and not all(isinstance(value, Integral) and 0 <= int(value) <= 255 for value in fill):
        raise Untranslatable(t, f"fill={t.fill} must consist of integers from 0 to 255")
    mode = mode or getattr(t.padding_mode, "value", t.padding_mode)
    if mode == "constant" and spec.dtype.is_floating_point and (any(fill) or spec.normalized):
        raise Untranslatable(
            t, f"it pads with fill={t.fill} after the conversion to {spec.dtype}", "move it before the conversions"
        )
    if spec.kind != "pil" and mode in ("reflect", "symmetric"):
        raise Untranslatable(t, f"padding_mode={mode!r} is not supported on tensors", "move it before ToTensor/ToImage")
    return {"mode": mode, "fill": fill}


def window_arrays(start, shape) -> tuple[Arrays, np.ndarray]:
    """Return the arrays of a crop or a pad with windows ``start`` and ``shape`` (N, 2), and the output sizes."""
    start, shape = np.asarray(start).astype(np.int32), np.asarray(shape).astype(np.int64, copy=False)
    return {"start": start, "shape": shape.astype(np.int32)}, shape


@draws()
def draw_center_crop(sizes, u, *, size):
    """Compute the central window, which may be larger than the image."""
    excess = sizes - np.array(size)  # its half is rounded half to even
    start = np.where(excess >= 0, np.rint(excess / 2), -(-excess // 2))
    return window_arrays(start, np.broadcast_to(size, sizes.shape))


@draws()
def draw_pad(sizes, u, *, padding):
    """Compute the window of a pad. ``padding`` is (left, top, right, bottom)."""
    left, top, right, bottom = padding
    start = np.broadcast_to([-top, -left], sizes.shape)
    return window_arrays(start, np.add(sizes, [top + bottom, left + right]))


@draws()
def draw_pad_if_needed(sizes, u, *, size, axis):
    """Compute the padding of RandomCrop(pad_if_needed=True) along one axis: 0 pads top and bottom, 1 left and right."""
    missing = np.zeros_like(sizes)
    missing[:, axis] = np.maximum(size[axis] - sizes[:, axis], 0)
    return window_arrays(-missing, sizes + 2 * missing)


@draws(uniforms=2)
def draw_random_crop(sizes, u, *, size):
    room = sizes - np.array(size)
    if (room < 0).any():
        row = int((room < 0).any(1).argmax())
        have = tuple(sizes[row].tolist())
        raise ImageTooSmall(row, f"Required crop size {tuple(size)} is larger than input image size {have}")
    return window_arrays(np.floor(u * (room + 1)), np.broadcast_to(size, sizes.shape))


# ---- transforms that exist only in v2; they compute with torch.rand in float32


@draws(uniforms=4)
def draw_zoom_out(sizes, u, *, side_range, p):
    """Draw the size of a larger canvas and a position of the image on it, as the window of a pad."""
    canvas = (rand_between(u[:, 1:2], side_range) * sizes.astype(np.float32)).astype(np.int64)
    canvas = np.where(u[:, :1] < p, canvas, sizes)
    left_top = rand(u[:, 2:4]) * (canvas - sizes)[:, ::-1].astype(np.float32)
    return window_arrays(-left_top[:, ::-1].astype(np.int64), canvas)


@kernel(
    moves=True,
    in_dali=always,
    keeps_info=True,
    image=lambda image, row, *, axis: (F1.hflip if axis == "horizontal" else F1.vflip)(image),
)
def flip(images, arrays, *, axis):
    return images.flip(-1 if axis == "horizontal" else -2)


# ---- windows


@kernel(
    moves=True,
    in_dali=always,
    keeps_info=True,
    image=lambda image, row, *, inside: F1.crop(image, *ints(row["start"]), *ints(row["shape"])),
)
def crop(images, arrays, *, inside):
    """Crop the images. Pixels outside of the image are zeros."""
    return _windows(images, arrays, "constant", None)


def _padded(image, row, *, mode, fill):
    (top, left), (height, width) = ints(-row["start"]), ints(row["shape"])
    _, h, w = F1.get_dimensions(image)
    padding = [left, top, width - w - left, height - h - top]
    return F2.pad(image, padding, fill=list(fill) if mode == "constant" else 0, padding_mode=mode)


@kernel(moves=True, in_dali=always, image=_padded)
def pad(images, arrays, *, mode, fill):
    """Pad as torchvision does for PIL images. Modes other than "constant" are numpy.pad's."""
    return _windows(images, arrays, mode, fill)


def _windows(images, arrays, mode, fill):
    start = arrays["start"].astype(np.int64)
    return by_size(images, arrays["shape"], lambda part, rows, size: _window(part, start[rows], size, mode, fill))


def _window(images, start, size, mode, fill):
    """Return a window of each image. ``start`` (N, 2) is its upper left corner."""
    shape = images.shape[-2:]
    same = (start == start[0]).all()
    inside = (start >= 0).all() and (start + size <= shape).all()
    if same and inside:
        (top, left), (height, width) = start[0], size
        return images[..., top : top + height, left : left + width]
    if mode == "constant" and (same or not images.is_cuda):
        return _copy_inside(images, start[:1] if same else start, size, fill)
    lines = [(start[:1] if same else start)[:, [i]] + np.arange(size[i]) for i in (0, 1)]
    y, x = (to_device(border(line, n, mode), images.device) for line, n in zip(lines, shape, strict=True))
    made = (
        images.index_select(-2, y[0]).index_select(-1, x[0])
        if same
        else transform.pixels(images)(y[:, :, None] * shape[1] + x[:, None, :])
    )
    if inside or mode != "constant":
        return made
    in_y, in_x = (to_device((line >= 0) & (line < n), images.device) for line, n in zip(lines, shape, strict=True))
    return torch.where((in_y[:, :, None] & in_x[:, None, :])[:, None], made, transform.fill_like(images, fill))


def _copy_inside(images, start, size, fill):
    """Return a window of each image. Pixels outside of the image are ``fill``.

    ``start`` is (N, 2), or (1, 2) if all images have the same window.
    """
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
    """Map indices outside of an axis of ``size`` pixels to indices inside. ``mode`` is one of numpy.pad's."""
    if mode == "reflect":
        period = max(2 * size - 2, 1)
        return size - 1 - abs(size - 1 - index % period)
    if mode == "symmetric":
        index = index % (2 * size)
        return np.minimum(index, 2 * size - 1 - index)
    return np.clip(index, 0, size - 1)  # also for constant, where pixels outside are filled afterwards
