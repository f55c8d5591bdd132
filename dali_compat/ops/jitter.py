"""Hue, ColorJitter and RandomPhotometricDistort. The last two draw the order of their operations for each image."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from ..plan import draw, step
from . import operations
from .arguments import like_of
from .color import permute_channels
from .convert import to_dtype
from .draws import draws, permutation, uniform
from .kernels import kernel, kernel_of, on_image
from .pixels.lists import in_groups
from .pixels.values import hsv_tables, to
from .translators import register

_ADJUSTED = ("brightness", "contrast", "saturation", "hue")


@register(v1.ColorJitter, v2.ColorJitter, consumes="brightness contrast saturation hue")
def translate_color_jitter(t, spec):
    intervals = {name: getattr(t, name) and tuple(getattr(t, name)) for name in _ADJUSTED}
    return (step("color_jitter", spec, draw("color_jitter", **intervals), like=like_of(t, spec)),)


@register(v2.RandomPhotometricDistort, consumes="brightness contrast saturation hue p")
def translate_random_photometric_distort(t, spec):
    intervals = {name: tuple(getattr(t, name)) for name in _ADJUSTED}
    params = draw("photometric_distort", **intervals, p=t.p, channels=spec.channels)
    return (step("photometric_distort", spec, params, like=like_of(t, spec)),)


@draws(uniforms=8)
def draw_color_jitter(sizes, u, **ranges):
    """Draw the order of the adjustments and their factors. ``ranges`` contains (low, high) of each factor, or None for
    an adjustment that is not used."""
    factors = {n: uniform(u[:, 4 + i], *ranges[n]) for i, n in enumerate(_ADJUSTED) if ranges[n] is not None}
    return {"order": permutation(u[:, :4]), **factors}, sizes


@draws(uniforms=lambda channels=3, **ranges: 10 + channels)
def draw_photometric_distort(sizes, u, *, p, channels=3, **ranges):
    """Draw factors and a channel permutation.

    The factor of an adjustment that is not applied is NaN. If channels are not permuted, ``order`` is -1. Contrast is
    applied either before or after saturation and hue.
    """
    applied = u[:, :4] < p
    factors = {n: np.where(applied[:, i], uniform(u[:, 4 + i], *ranges[n]), np.nan) for i, n in enumerate(_ADJUSTED)}
    before, any_contrast = u[:, 8] < 0.5, factors.pop("contrast")
    factors["contrast_before"] = np.where(before, any_contrast, np.nan)
    factors["contrast_after"] = np.where(before, np.nan, any_contrast)
    order = np.where(u[:, 9:10] < p, permutation(u[:, 10:]), np.int32(-1))
    return {**factors, "order": order}, sizes


_DISTORT = ("brightness", "contrast_before", "saturation", "hue", "contrast_after")


def _jittered(image, row, *, like):
    for name in [_ADJUSTED[number] for number in row["order"] if number >= 0]:
        if name in row:
            image = on_image(name, image, {"factor": row[name]}, like=like)
    return image


def _distorted(image, row, *, like):
    for name in _DISTORT:
        if not np.isnan(row[name]):
            image = on_image(name.split("_")[0], image, {"factor": row[name]}, like=like)
    return image if row["order"][0] < 0 else on_image("permute_channels", image, row)


@kernel(parts=True, takes_frames=True, image=_jittered)
def color_jitter(images, arrays, *, like):
    """Apply the adjustments to each image in the order ``arrays["order"]``. An entry of -1 means no adjustment."""
    if len(images) == 1 and not images.is_cuda:  # there is nothing to group
        for number in arrays["order"][0][arrays["order"][0] >= 0].tolist():
            if (name := _ADJUSTED[number]) in arrays:
                images = kernel_of(name)(images, {"factor": arrays[name]}, like=like)
        return images
    codes = np.array([operations.CODES[name] if name in arrays else 0 for name in _ADJUSTED])
    factors = np.stack([arrays.get(name, np.ones(len(images))) for name in _ADJUSTED])
    for place in arrays["order"].T:
        chosen = np.where(place < 0, 0, codes[place])
        own = factors[place, np.arange(len(images))]
        images = operations.run(images, chosen, own, like=like, area=arrays.get("area"))
    return images


@kernel(parts=True, takes_frames=True, image=_distorted)
def photometric_distort(images, arrays, *, like):
    for name in _DISTORT:
        chosen = np.where(np.isnan(arrays[name]), 0, operations.CODES[name.split("_")[0]])
        images = operations.run(images, chosen, arrays[name], like=like, area=arrays.get("area"))
    rows = np.flatnonzero(arrays["order"][:, 0] >= 0)
    if not len(rows):
        return images
    return in_groups(images, [(rows, functools.partial(permute_channels, arrays={"order": arrays["order"][rows]}))])


# ---- hue, in 8 bits for PIL images and in floating point for tensors


@kernel(torchvision="adjust_hue factor", parts=True, takes_frames=True)
def hue(images, arrays, *, like):
    if images.shape[1] == 1:
        return images
    if like == "pil":
        return _hue_pil(images.contiguous(), arrays["factor"])
    return _hue(images.contiguous(), arrays["factor"], like)


def _hue_pil(images, factors):
    """Shift the hue of uint8 images in Pillow's 8-bit HSV."""
    # H and max - min are functions of r - g and g - b. S is a function of max - min and max. Each of R, G and B is the
    # maximum, V, times a function of H and S, rounded.
    hue_of, range_of, saturation_of, weights = hsv_tables(images.device)
    shift = to(images, (np.trunc(factors * 255).astype(np.int32) & 255) << 8, np.int32)[:, 0]
    r, g, b = images.unbind(1)
    zero = torch.full((1, 1, 1), 255 * 512, dtype=torch.int32, device=images.device)
    key = zero.add(r, alpha=511).sub_(g, alpha=510).sub_(b).view(-1)  # 511 * (r - g + 255) + (g - b + 255)
    value = torch.maximum(torch.maximum(r, g), b)
    by_range = range_of.index_select(0, key).view_as(value).add_(value)
    key = hue_of.index_select(0, key).add_(saturation_of.index_select(0, by_range.view(-1)))
    key = key.view_as(value).add_(shift).view(-1)
    made = torch.empty_like(images)
    for channel, weight in zip(made.unbind(1), weights, strict=True):
        channel.copy_(weight.index_select(0, key).view_as(value).mul_(value).round_())
    return made


def _hue(images, factors, like):
    """Shift the hue in floating point, as torchvision's functions on tensors do."""
    rgb = to_dtype(images, {}, dtype=torch.float32, like=like)
    r, g, b = rgb.unbind(1)
    value = torch.maximum(torch.maximum(r, g), b)
    span = value - torch.minimum(torch.minimum(r, g), b)
    gray = span == 0
    s = span / value.masked_fill(gray, 1)
    span.masked_fill_(gray, 1)
    rc, gc, bc = (value.sub(c).div_(span) for c in (r, g, b))
    h = torch.where(value == g, rc.add(2).sub_(bc), gc.add(4).sub_(rc))
    h = torch.where(value == r, bc.sub_(gc), h)
    # a GPU does not divide by a Python number as the CPU does, but multiplies by its reciprocal
    h = h.div_(torch.full((1,), 6, dtype=h.dtype, device=h.device)) if like == "v1" else h.mul_(1.0 / 6.0)
    h = h.add_(1).fmod_(1).add_(to(images, factors, np.float32)[:, 0]).remainder_(1)

    h.mul_(6)
    sector = h.floor()
    f = h.sub_(sector)
    sector = sector.to(torch.uint8)
    if like == "v1":
        t = (1 - f).mul_(s).neg_().add_(1).mul_(value)
        q = f.mul_(s).neg_().add_(1).mul_(value)
        p = s.neg_().add_(1).mul_(value)
    else:
        f.mul_(s)
        s = s.neg_().add_(1)
        t, q, p = (f + s).mul_(value), (1 - f).mul_(value), s.mul_(value)
    p.clamp_(0, 1)
    slope = torch.where((sector & 1).bool(), q, t).clamp_(0, 1)  # value of the middle one of the three channels
    made = torch.empty_like(images)
    for channel, (largest, between) in zip(made.unbind(1), _SECTORS, strict=True):
        x = torch.where(_among(sector, largest), value, torch.where(_among(sector, between), slope, p))
        channel.copy_(x if images.is_floating_point() else x.mul_(255 + 1.0 - 1e-3))
    return made


# for R, G and B: the sectors of the hue where this channel is the largest, and those where it is the middle one
_SECTORS = ((0, 5, 6), (1, 4)), ((1, 2), (0, 3, 6)), ((3, 4), (2, 5))


def _among(sector, numbers):
    return functools.reduce(torch.logical_or, (sector == n for n in numbers))
