"""Sizes, windows and flips. Geometry is exactly torchvision's; draws/geometry.py holds the arithmetic."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from ..plan import Draw, ImageSpec, Step, draw, step
from .fidelity import EXACT, resized
from .registry import register
from .untranslatable import Untranslatable

# Pillow's numbers, as torchvision.transforms.functional._interpolation_modes_from_int
_FROM_INT = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


@register(v1.Resize, v2.Resize, consumes="size interpolation max_size antialias")
def resize(t, spec):
    size = t.size if t.size is None or not isinstance(t.size, int) else [t.size]
    return (_resize(t, spec, None if size is None else tuple(size), t.max_size),)


@register(v1.CenterCrop, v2.CenterCrop, consumes="size")
def center_crop(t, spec):
    size = _pair(t)
    inside = _covers(spec, size)
    if spec.normalized and not inside:
        raise Untranslatable(t, "it may pad with zeros, after Normalize", "move it before Normalize")
    return (step("crop", spec.but(size=size), draw("center_crop", size=size), inside=inside, fidelity=EXACT),)


@register(v1.RandomCrop, v2.RandomCrop, consumes="size padding pad_if_needed fill padding_mode")
def random_crop(t, spec):
    size, steps = _pair(t), []
    padding: Any
    if isinstance(t, v2.RandomCrop):
        # v2 stores (left, right, top, bottom) and adds the padding of pad_if_needed in the same call
        padding = t.padding and (t.padding[0], t.padding[2], t.padding[1], t.padding[3])
        if padding and t.pad_if_needed and t.padding_mode in ("reflect", "symmetric"):
            raise Untranslatable(t, f"padding together with pad_if_needed in padding_mode={t.padding_mode!r}")
    else:
        padding = t.padding is not None and _ltrb(t.padding)
    if padding:
        steps.append(_pad(t, spec, padding))
    if t.pad_if_needed:
        for axis in (1, 0):  # torchvision pads the width first
            missing = draw("pad_if_needed", size=size, axis=axis)
            steps.append(step("pad", spec.but(size=None), missing, fidelity=EXACT, **_border(t, spec)))
    steps.append(step("crop", spec.but(size=size), draw("random_crop", size=size), inside=True, fidelity=EXACT))
    return steps


@register(v1.RandomResizedCrop, v2.RandomResizedCrop, consumes="size scale ratio interpolation antialias")
def random_resized_crop(t, spec):
    window = draw("random_resized_crop", scale=tuple(t.scale), ratio=tuple(t.ratio))
    return (step("crop", spec.but(size=None), window, inside=True, fidelity=EXACT), _resize(t, spec, tuple(t.size)))


@register(v1.FiveCrop, v2.FiveCrop, consumes="size")
def five_crop(t, spec):
    return (_crops(t, spec, 5),)


@register(v1.TenCrop, v2.TenCrop, consumes="size vertical_flip")
def ten_crop(t, spec):
    return (_crops(t, spec, 10, axis="vertical" if t.vertical_flip else "horizontal"),)


def _crops(t, spec: ImageSpec, views: int, **args) -> Step:
    if spec.views:
        raise Untranslatable(t, "crops of crops")
    size = _pair(t)
    return step(
        f"{'five' if views == 5 else 'ten'}_crop",
        spec.but(size=size, views=views),
        draw("five_crop", size=size),
        size=size,
        **args,
        fidelity=EXACT,
    )


@register(v1.Pad, v2.Pad, consumes="padding fill padding_mode")
def pad(t, spec):
    return (_pad(t, spec, _ltrb(t.padding)),)


@register(v2.RandomZoomOut, consumes="fill side_range p")
def random_zoom_out(t, spec):
    window = draw("zoom_out", side_range=tuple(t.side_range), p=t.p)
    return (step("pad", spec.but(size=None), window, fidelity=EXACT, **_border(t, spec, "constant")),)


@register(v2.ScaleJitter, consumes="target_size scale_range interpolation antialias")
def scale_jitter(t, spec):
    sizes = draw("scale_jitter", target_size=tuple(t.target_size), scale_range=tuple(t.scale_range))
    return (_resize_to(t, spec, sizes),)


@register(v2.RandomShortestSize, consumes="min_size max_size interpolation antialias")
def random_shortest_size(t, spec):
    return (_resize_to(t, spec, draw("random_shortest_size", min_size=tuple(t.min_size), max_size=t.max_size)),)


@register(v2.RandomResize, consumes="min_size max_size interpolation antialias")
def random_resize(t, spec):
    return (_resize_to(t, spec, draw("random_resize", min_size=t.min_size, max_size=t.max_size)),)


@register(v1.RandomHorizontalFlip, v2.RandomHorizontalFlip, consumes="p")
def random_horizontal_flip(t, spec):
    return (step("flip", spec, draw("bernoulli", p=t.p), axis="horizontal", fidelity=EXACT),)


@register(v1.RandomVerticalFlip, v2.RandomVerticalFlip, consumes="p")
def random_vertical_flip(t, spec):
    return (step("flip", spec, draw("bernoulli", p=t.p), axis="vertical", fidelity=EXACT),)


def _resize(t, spec: ImageSpec, size, max_size=None) -> Step:
    if max_size is not None and size is not None and (len(size) == 2 or max_size <= size[0]):
        raise Untranslatable(t, f"max_size={max_size} does not go with size={t.size}")
    known = size if size is not None and len(size) == 2 else None
    return _resize_to(t, spec, draw("resize", size=size, max_size=max_size), known)


def _resize_to(t, spec: ImageSpec, sizes: Draw, known: tuple[int, int] | None = None) -> Step:
    like, antialias = like_of(t, spec), spec.kind == "pil" or t.antialias  # PIL always does
    return step(
        "resize",
        spec.but(size=known),
        sizes,
        interpolation=interpolation_of(t),
        like=like,
        antialias=antialias,
        fidelity=resized,
    )


def like_of(t, spec: ImageSpec) -> str:
    """Whose arithmetic torchvision uses on this image: Pillow's, or that of its tensor functions, old or new."""
    if spec.kind == "pil":
        return "pil"
    return version_of(t)


def version_of(t) -> str:
    """Of which torchvision it is: "v1" or "v2"."""
    return "v2" if isinstance(t, v2.Transform) else "v1"


def interpolation_of(t) -> str:
    """The name of a transform's interpolation."""
    return interpolation_named(t.interpolation)


def interpolation_named(mode: Any) -> str:
    """The name of an interpolation, which may be given as an enum, by name or as Pillow's number."""
    if isinstance(mode, Integral):
        return _FROM_INT[int(mode)]
    return InterpolationMode(mode).value


def _covers(spec: ImageSpec, size) -> bool:
    """Whether a window of this size certainly lies within the image."""
    return spec.size is not None and spec.size[0] >= size[0] and spec.size[1] >= size[1]


def _pair(t) -> tuple[int, int]:
    size = t.size
    if isinstance(size, Integral):
        return int(size), int(size)
    if not all(isinstance(edge, Integral) for edge in size):
        raise Untranslatable(t, f"size={size} is not of whole numbers")
    return (int(size[0]), int(size[0])) if len(size) == 1 else (int(size[0]), int(size[1]))


def _ltrb(padding) -> tuple[int, int, int, int]:
    """torchvision's padding argument as (left, top, right, bottom)."""
    if isinstance(padding, Integral):
        return (int(padding),) * 4
    padding = tuple(int(p) for p in padding)
    return padding * 4 if len(padding) == 1 else padding * 2 if len(padding) == 2 else padding


def _pad(t, spec: ImageSpec, padding) -> Step:
    if min(padding) < 0:
        raise Untranslatable(t, "negative padding", "use a crop")
    left, top, right, bottom = padding
    size = spec.size and (spec.size[0] + top + bottom, spec.size[1] + left + right)
    return step("pad", spec.but(size=size), draw("pad", padding=padding), fidelity=EXACT, **_border(t, spec))


def _border(t, spec: ImageSpec, mode: Any = None) -> dict:
    """mode and fill; fill has one value a channel, in the units of the image."""
    if isinstance(t.fill, (tuple, list)) and spec.kind != "pil" and not isinstance(t, v2.Transform):
        raise Untranslatable(t, "fill has to be a number on tensors")
    fill = _whole_fill(t, spec)
    mode = mode or getattr(t.padding_mode, "value", t.padding_mode)
    if mode == "constant" and spec.dtype.is_floating_point and (any(fill) or spec.normalized):
        raise Untranslatable(t, f"fill={t.fill} after the conversion to {spec.dtype}", "move it before the conversions")
    if spec.kind != "pil" and mode in ("reflect", "symmetric"):
        raise Untranslatable(t, f"padding_mode={mode!r} on tensors", "move it before ToTensor/ToImage")
    return {"mode": mode, "fill": fill}


def _whole_fill(t, spec: ImageSpec) -> tuple:
    fill = fill_of(t, spec) or (0,) * spec.channels
    if spec.dtype == torch.uint8 and not all(isinstance(value, Integral) and 0 <= int(value) <= 255 for value in fill):
        raise Untranslatable(t, f"fill={t.fill} is not a whole number of 0 to 255")
    return fill


def fill_of(t, spec: ImageSpec) -> tuple | None:
    """One value a channel, or None where torchvision gets None."""
    fill = t.fill
    if isinstance(fill, dict):
        raise Untranslatable(t, "fill as a dict", "pass the fill of images alone")
    if fill is None:
        return None
    fill = tuple(fill) if isinstance(fill, (tuple, list)) else (fill,)
    if len(fill) == 1:
        fill *= spec.channels
    if len(fill) != spec.channels:
        raise Untranslatable(t, f"fill={t.fill} for an image of {spec.channels} channels")
    return fill
