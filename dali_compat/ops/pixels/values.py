"""Arithmetic with one number per image, and with tables of 256 values."""

from __future__ import annotations

import functools

import numpy as np
import torch
from PIL import Image

from ...runtime.device import to_device

_CPU_PART, _GPU_PART = 2**17, 2**26  # values


def in_parts(kernel):
    """Decorate a kernel to process a few images at a time.

    Intermediate results then fit into the caches of a CPU's threads, and take at most a gigabyte on a GPU.
    """

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
    """Return numbers (N,) as a tensor (N, 1, 1, 1) on the images' device. By default, ``dtype`` is float64 for float64
    images, and float32 for others."""
    dtype = dtype or (np.float64 if images.dtype == torch.float64 else np.float32)
    column = torch.from_numpy(np.ascontiguousarray(array, dtype))
    return to_device(column, images.device).view(-1, 1, 1, 1)


def is_half(images) -> bool:
    """Return True if images are 16-bit floats. Kernels then call torchvision's functions, which round every
    intermediate result."""
    return images.dtype in (torch.float16, torch.bfloat16)


def one_by_one(function, images, *columns):
    rows = zip(images.contiguous(), *(np.asarray(column).tolist() for column in columns), strict=True)
    return torch.stack([function(image, *values) for image, *values in rows])


def bounded(values, images):
    """Clip ``values`` in place to the range of the images' dtype, 0..1 or 0..255. Return them in this dtype."""
    values = values.clamp_(0, 1 if images.is_floating_point() else 255)
    return values.to(images.dtype)


def blend(images, other, factors, like):
    """Blend as Image.blend(other, images, factor) does (Blend.c). If ``like`` is not "pil", blend as torchvision's
    _blend does."""
    ratio = to(images, factors)
    if like == "pil":
        return bounded(torch.sub(images, other).mul_(ratio).add_(other), images)
    rest = to(images, 1.0 - factors)
    if like == "v1":
        return bounded((images * ratio).add_(other * rest), images)
    # one by one as in torchvision, because the position of a value in a tensor may affect its rounding
    if not images.is_cuda and len(images) == len(other):
        rows = zip(images, other, np.asarray(factors).tolist(), strict=True)
        made = torch.stack([image.mul(own).add_(one, alpha=1.0 - own) for image, one, own in rows])
        return bounded(made, images)
    # a fused multiply-add if the device has one, like torchvision's add(alpha=)
    return bounded((images * ratio).addcmul_(other, rest), images)


# ---- tables that map the values of uint8 images


def by_value(images, function):
    """Apply ``function`` to each pixel. For uint8 images, apply it to all 256 values, and look up each pixel."""
    if images.dtype != torch.uint8:
        return function(images)
    levels = torch.arange(256, dtype=torch.uint8, device=images.device).view(1, 1, 1, 256)
    return look_up(function(levels)[:, 0], images)


def look_up(tables, images):
    """Look up each pixel of uint8 images in the table of its channel, (N, C, 256), or of its image, (N, 1, 256)."""
    tables, images = tables.to(torch.uint8), images.contiguous()
    if images.is_cuda:
        indices = images.flatten(2).to(torch.int64)
        return tables.expand(-1, images.shape[1], -1).gather(-1, indices).view(images.shape)
    tables = tables.expand(len(images), -1, -1).flatten(0, 1)
    planes = zip(images.view(len(tables), -1, images.shape[-1]).numpy(), tables.numpy(), strict=True)
    # both take less than half of gather()'s time
    look = _by_pillow if len(images) == 1 else _by_translate
    rows = [look(plane, table) for plane, table in planes]
    return torch.from_numpy(rows[0] if len(rows) == 1 else np.stack(rows)).view(images.shape)


def _by_pillow(plane: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Look up values without the GIL, because other threads may do the same for other images."""
    picture = Image.frombuffer("L", plane.shape[::-1], plane, "raw", "L", 0, 1)
    return np.array(picture.point(table.tolist()))


def _by_translate(plane: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Look up values with the smallest overhead, because a batch may have many small images."""
    return np.frombuffer(bytearray(plane.data).translate(table.tobytes()), np.uint8).reshape(plane.shape)


@functools.cache
def hsv_tables(device):
    """Return tables that convert between RGB and HSV exactly as Pillow's rgb2hsv_row and hsv2rgb do (Convert.c).

    The first two contain H * 256 and (max - min) * 256, indexed by (r - g, g - b). The third contains S, indexed by
    (max - min, max). The last contains the factors of V for R, G and B, indexed by (H, S) with H up to 510.
    """
    f32 = np.float32
    r_g, g_b = np.meshgrid(np.arange(-255, 256), np.arange(-255, 256), indexing="ij")
    rgb = np.stack([r_g + g_b, g_b, np.zeros_like(g_b)])
    rgb -= rgb.min(0)  # any color with these differences
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
