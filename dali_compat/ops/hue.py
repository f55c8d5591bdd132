"""Hue, of PIL images in 8 bits by Pillow's tables, of tensors in torchvision's floating point."""

from __future__ import annotations

import functools

import numpy as np
import torch

from .convert import to_dtype
from .kernels import kernel, torchvisions
from .pixels.values import in_parts, to


@kernel
@in_parts
@torchvisions("adjust_hue", factor=float)
def hue(images, arrays, *, like):
    if images.shape[1] == 1:
        return images
    if like == "pil":
        return _hue_pil(images.contiguous(), arrays["factor"])
    return _hue(images.contiguous(), arrays["factor"], like)


def _hue_pil(images, factors):
    """adjust_hue of PIL images: to Pillow's 8-bit HSV, where hues wrap, and back.

    H is a function of r - g and g - b, as max - min is; S one of that and the maximum; each of R, G and B the
    maximum, V, times a function of H and S, rounded.
    """
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


@functools.cache
def hsv_tables(device):
    """rgb2hsv_row and hsv2rgb of Pillow's Convert.c, float for float.

    By (r - g, g - b): H * 256, and (max - min) * 256. By (max - min, max): S. By (H, S), three times, H up to 510: what
    V is multiplied by. tests/unit/test_batch_color.py compares all colours.
    """
    f32 = np.float32
    r_g, g_b = np.meshgrid(np.arange(-255, 256), np.arange(-255, 256), indexing="ij")
    rgb = np.stack([r_g + g_b, g_b, np.zeros_like(g_b)])
    rgb -= rgb.min(0)  # any colour with these differences
    span = rgb.max(0)
    with np.errstate(all="ignore"):
        rc, gc, bc = ((span - c).astype(f32) / span.astype(f32) for c in rgb)
        r, g, _ = rgb
        otherwise = np.where(g == span, 2.0 + rc.astype(float) - bc, 4.0 + gc.astype(float) - rc)
        h = np.where(r == span, bc - gc, otherwise.astype(f32))
        h = np.fmod(h.astype(float) / 6.0 + 1.0, 1.0).astype(f32)
        hues = np.where(span > 0, np.trunc(h * 255.0), 0)
        spans, values = np.meshgrid(np.arange(256, dtype=f32), np.arange(256, dtype=f32), indexing="ij")
        saturations = np.where(spans > 0, np.clip(np.trunc((spans / values).astype(float) * 255.0), 0, 255), 0)

    h, s = np.arange(256, dtype=f32)[:, None].astype(float), (np.arange(256) / 255.0).astype(f32)
    sector = np.floor(h * 6.0 / 255.0)
    f = (h * 6.0 / 255.0 - sector).astype(f32)
    p = np.broadcast_to(1.0 - s.astype(float), (256, 256))
    q, t = 1.0 - (s * f).astype(float), 1.0 - s * (1.0 - f.astype(float))
    v = np.ones((256, 256))
    rows = np.arange(256), (sector[:, 0] % 6).astype(int)
    by_hue = [np.stack(six, 1)[rows] for six in ((v, q, p, p, t, v), (t, v, v, q, p, p), (p, p, t, v, v, q))]
    weights = np.concatenate([by_hue, by_hue], 1)[:, :511].reshape(3, -1)

    found = hues * 256, np.minimum(span, 255) * 256, saturations
    tables = [torch.from_numpy(np.nan_to_num(table).astype(np.int32).reshape(-1)).to(device) for table in found]
    return *tables, torch.from_numpy(weights.astype(f32)).to(device)


def _hue(images, factors, like):
    """adjust_hue of torchvision's tensor functionals (_rgb2hsv, _hsv2rgb; v2: _rgb_to_hsv, _hsv_to_rgb)."""
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
    # by a plain number a GPU does not divide, as the CPU does, but multiplies by the reciprocal
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
    slope = torch.where((sector & 1).bool(), q, t).clamp_(0, 1)  # the channel between the largest and the smallest
    made = torch.empty_like(images)
    for channel, (largest, between) in zip(made.unbind(1), _SECTORS, strict=True):
        x = torch.where(_among(sector, largest), value, torch.where(_among(sector, between), slope, p))
        channel.copy_(x if images.is_floating_point() else x.mul_(255 + 1.0 - 1e-3))
    return made


_SECTORS = ((0, 5, 6), (1, 4)), ((1, 2), (0, 3, 6)), ((3, 4), (2, 5))  # of R, G and B: where it is largest, and between


def _among(sector, numbers):
    return functools.reduce(torch.logical_or, (sector == n for n in numbers))
