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

_PART = 2**17  # numbers that a CPU thread takes at a time


def in_parts(kernel):
    """On a CPU a kernel goes through a few rows at a time: what lies between two passes then stays in its cache."""

    @functools.wraps(kernel)
    def run(images, arrays, **args):
        rows = max(1, _PART * torch.get_num_threads() // max(1, images[0].numel()))
        if images.device.type != "cpu" or len(images) <= rows:
            return kernel(images, arrays, **args)
        parts = [slice(start, start + rows) for start in range(0, len(images), rows)]
        return torch.cat([kernel(images[p], {k: a[p] for k, a in arrays.items()}, **args) for p in parts])

    return run


def to(images, array, dtype=np.float32):
    """One number a row, to multiply images (N, C, H, W) by."""
    column = torch.from_numpy(np.ascontiguousarray(array, dtype))
    return column.to(images.device, non_blocking=True).view(-1, 1, 1, 1)


def _as_factors(images, array):
    return to(images, array, np.float64 if images.dtype == torch.float64 else np.float32)


def is_half(images) -> bool:
    """Of 16-bit images torchvision rounds every intermediate: they go through its own functions, one by one."""
    return images.dtype in (torch.float16, torch.bfloat16)


def one_by_one(function, images, *columns):
    rows = zip(images, *(np.asarray(column).tolist() for column in columns))
    return torch.stack([function(image, *values) for image, *values in rows])


def of(like: str):
    """torchvision's functions on tensors."""
    return v1 if like == "v1" else v2


def bounded(values, images):
    """Clipped and truncated to what images hold; ``values`` is changed in place."""
    values = values.clamp_(0, 1 if images.is_floating_point() else 255)
    return values.to(images.dtype)


def blend(images, other, factors, like):
    """Image.blend(other, images, factor) (Blend.c), or _blend(images, other, factor) of torchvision's functionals."""
    ratio = _as_factors(images, factors)
    if like == "pil":
        return bounded(torch.sub(images, other).mul_(ratio).add_(other), images)
    rest = _as_factors(images, 1.0 - factors)
    if like == "v1":
        return bounded((images * ratio).add_(other * rest), images)
    return bounded((images * ratio).addcmul_(other, rest), images)  # torchvision's add(alpha=) rounds once, as this does


# ---- enhancers: adjust_brightness and so on, ImageEnhance


@in_parts
def brightness(images, arrays, *, like):
    """ImageEnhance.Brightness: blended with black."""
    if is_half(images):
        return one_by_one(of(like).adjust_brightness, images, arrays["factor"])
    return bounded(images * _as_factors(images, arrays["factor"]), images)


@in_parts
def contrast(images, arrays, *, like):
    """ImageEnhance.Contrast: blended with the mean of the image's gray."""
    if is_half(images):
        return one_by_one(of(like).adjust_contrast, images, arrays["factor"])
    return blend(images, _mean(_gray(images, like), like), arrays["factor"], like)


def _mean(gray, like):
    if gray.is_floating_point():
        return gray.mean((-3, -2, -1), keepdim=True)
    total, count = gray.sum((-3, -2, -1), keepdim=True), gray[0].numel()
    if like == "pil":  # int(mean + 0.5)
        return ((2 * total + count) // (2 * count)).to(torch.float32)
    return total.to(torch.float32) / torch.full_like(total, count, dtype=torch.float32)


@in_parts
def saturation(images, arrays, *, like):
    """ImageEnhance.Color: blended with gray."""
    if images.shape[1] == 1:
        return images
    if is_half(images):
        return one_by_one(of(like).adjust_saturation, images, arrays["factor"])
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


def grayscale(images, arrays, *, formula, channels):
    if formula != "pil":
        return v2.rgb_to_grayscale(images, channels)
    gray = images if images.shape[1] == 1 else _l24(images).to(images.dtype)
    return gray.expand(-1, channels, -1, -1)


# ---- hue


@in_parts
def hue(images, arrays, *, like):
    if images.shape[1] == 1:
        return images
    if like == "pil":
        return _hue_pil(images.contiguous(), arrays["factor"])
    if is_half(images):
        return one_by_one(of(like).adjust_hue, images, arrays["factor"])
    return _hue(images.contiguous(), arrays["factor"], like)


def _hue_pil(images, factors):
    """adjust_hue of PIL images: to Pillow's 8-bit HSV, where hues wrap, and back.

    H is a function of r - g and g - b, as max - min is; S one of that and the maximum; each of R, G and B the
    maximum, V, times a function of H and S, rounded.
    """
    hue_of, range_of, saturation_of, weights = _hsv_tables(images.device)
    shift = to(images, (np.trunc(factors * 255).astype(np.int32) & 255) << 8, np.int32)[:, 0]
    r, g, b = images.unbind(1)
    zero = torch.full((1, 1, 1), 255 * 512, dtype=torch.int32, device=images.device)
    key = zero.add(r, alpha=511).sub_(g, alpha=510).sub_(b).view(-1)  # 511 * (r - g + 255) + (g - b + 255)
    value = torch.maximum(torch.maximum(r, g), b)
    by_range = range_of.index_select(0, key).view_as(value).add_(value)
    key = hue_of.index_select(0, key).add_(saturation_of.index_select(0, by_range.view(-1)))
    key = key.view_as(value).add_(shift).view(-1)
    made = torch.empty_like(images)
    for channel, weight in zip(made.unbind(1), weights):
        channel.copy_(weight.index_select(0, key).view_as(value).mul_(value).round_())
    return made


@functools.cache
def _hsv_tables(device):
    """rgb2hsv_row and hsv2rgb of Pillow's Convert.c, float for float.

    By (r - g, g - b): H * 256, and (max - min) * 256. By (max - min, max): S. By (H, S), three times, H up to 510: what V
    is multiplied by. tests/unit/test_batch_color.py compares all colours.
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
    weights = [np.stack(six, 1)[rows] for six in ((v, q, p, p, t, v), (t, v, v, q, p, p), (p, p, t, v, v, q))]
    weights = np.concatenate([weights, weights], 1)[:, :511].reshape(3, -1)

    tables = hues * 256, np.minimum(span, 255) * 256, saturations
    tables = [torch.from_numpy(np.nan_to_num(table).astype(np.int32).reshape(-1)).to(device) for table in tables]
    return *tables, torch.from_numpy(weights.astype(f32)).to(device)


def _hue(images, factors, like):
    """adjust_hue of torchvision's tensor functionals (_rgb2hsv, _hsv2rgb; v2: _rgb_to_hsv, _hsv_to_rgb)."""
    rgb = _to_float(images, like)
    r, g, b = rgb.unbind(1)
    value = torch.maximum(torch.maximum(r, g), b)
    span = value - torch.minimum(torch.minimum(r, g), b)
    gray = span == 0
    s = span / value.masked_fill(gray, 1)
    span.masked_fill_(gray, 1)
    rc, gc, bc = (value.sub(c).div_(span) for c in (r, g, b))
    h = torch.where(value == g, rc.add(2).sub_(bc), gc.add(4).sub_(rc))
    h = torch.where(value == r, bc.sub_(gc), h)
    h = h.div_(6) if like == "v1" else h.mul_(1.0 / 6.0)
    h = h.add_(1).fmod_(1).add_(to(images, factors)[:, 0]).remainder_(1)

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
    for channel, (largest, between) in zip(made.unbind(1), _SECTORS):
        x = torch.where(_among(sector, largest), value, torch.where(_among(sector, between), slope, p))
        channel.copy_(x if images.is_floating_point() else x.mul_(255 + 1.0 - 1e-3))
    return made


_SECTORS = ((0, 5, 6), (1, 4)), ((1, 2), (0, 3, 6)), ((3, 4), (2, 5))  # of R, G and B: where it is largest, and between


def _among(sector, numbers):
    return functools.reduce(torch.logical_or, (sector == n for n in numbers))


def _to_float(images, like):
    if images.is_floating_point():
        return images.to(torch.float32)
    return v1.convert_image_dtype(images) if like == "v1" else v2.to_dtype(images, torch.float32, scale=True)


# ---- values on their own


@in_parts
def posterize(images, arrays, *, like):
    bits = arrays["bits"]
    if images.dtype == torch.uint8:
        return images & to(images, 256 - 2 ** (8 - bits), np.uint8)
    if is_half(images):
        return one_by_one(of(like).posterize, images, bits)
    levels = _as_factors(images, 2.0**bits)
    made = images.mul(levels).floor_().clamp_(min=0)
    return torch.minimum(made, levels - 1, out=made).mul_(_as_factors(images, 0.5**bits))


@in_parts
def solarize(images, arrays, *, like):
    threshold = arrays["threshold"]
    if like != "pil":
        threshold = threshold.astype(np.float32)
    if images.dtype != torch.uint8:
        return torch.where(images >= _as_factors(images, threshold), 1 - images, images)
    least = np.clip(np.ceil(threshold), 0, 256)
    change = to(images, np.where(least < 256, 255, 0), np.uint8)
    return (images >= to(images, np.minimum(least, 255), np.uint8)).mul(change).bitwise_xor_(images)


def invert(images, arrays, *, like):
    return 1 - images if images.is_floating_point() else ~images


def permute_channels(images, arrays):
    rows = np.arange(len(images))[:, None]
    index = [torch.from_numpy(a).to(images.device, non_blocking=True) for a in (rows, arrays["order"].astype(np.int64))]
    return images[index[0], index[1]]


# ---- histograms


@in_parts
def autocontrast(images, arrays, *, like):
    """ImageOps.autocontrast: each channel from its least value to its greatest."""
    if like != "pil":
        return of(like).autocontrast(images)
    low, high = (extreme((-2, -1)).to(torch.float64)[..., None] for extreme in (images.amin, images.amax))
    levels = torch.arange(256, dtype=torch.float64, device=images.device)
    scale = torch.full_like(low, 255) / (high - low)
    tables = (levels * scale).add_(-low * scale).clamp_(0, 255)
    return _look_up(_indices(images), torch.where(high > low, tables, levels), images)


@in_parts
def equalize(images, arrays, *, like):
    """ImageOps.equalize; of uint8 images torchvision's functionals give the same."""
    if images.is_floating_point():
        return of(like).equalize(images)
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
    # a GPU adds to one number at a time, and skies are of one colour: it has several counters for each
    spread = 1 if indices.device.type == "cpu" else 32
    rows = torch.arange(0, n * channels * spread, spread, device=indices.device).view(n, channels, 1)
    columns = torch.arange(pixels, device=indices.device) % spread
    flat = (indices + rows.add(columns).mul_(256) if spread > 1 else indices + rows * 256).view(-1)
    if spread == 1:
        return torch.bincount(flat, minlength=n * channels * 256).view(n, channels, 256)
    # bincount would wait for the GPU
    ones = torch.ones(1, dtype=torch.int32, device=indices.device).expand(len(flat))
    counts = ones.new_zeros(n * channels * spread * 256).scatter_add_(0, flat, ones)
    return counts.view(n, channels, spread, 256).sum(2)


def _look_up(indices, tables, images):
    """Each pixel's value in its channel's table, (N, C, 256)."""
    return tables.to(images.dtype).gather(-1, indices).view(images.shape)
