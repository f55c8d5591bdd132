"""Sizes and windows of timm's transforms, vectorised."""

from __future__ import annotations

import numpy as np

from .geometry import resized, window
from .laws import key, whole
from .noise import erased
from .registry import draws, lookup, run


@draws(uniforms=lambda of, count: lookup(of)[0] + 1)
def with_choice(sizes, u, *, of, count):
    """What another draw gives, and ``choice``, one of ``count``, each as likely."""
    values, after = run(of, sizes, u[:, :-1])
    return values | {"choice": np.floor(u[:, -1] * count).astype(np.int32)}, after


def _uniforms(scale, aspect, **args) -> int:
    return 4 if scale[0] > 0 or aspect[0] > 0 else 0


@draws(uniforms=_uniforms)
def resize_keep_ratio(sizes, u, *, size, longest, scale, aspect):
    """timm.data.transforms.ResizeKeepRatio.get_params; ``scale`` is (chance, low, high, whether of the area),
    ``aspect`` (chance, low, high)."""
    ratios = sizes / np.array(size)
    ratio = ratios.max(1, keepdims=True) * longest + ratios.min(1, keepdims=True) * (1.0 - longest)
    factor = np.ones(sizes.shape)
    if scale[0] > 0:
        drawn = scale[1] + (scale[2] - scale[1]) * u[:, 1:2]
        factor = np.where(u[:, :1] < scale[0], 1.0 / np.sqrt(drawn) if scale[3] else drawn, factor)
    if aspect[0] > 0:
        low, high = np.log(aspect[1]), np.log(aspect[2])
        drawn = np.sqrt(np.exp(low + (high - low) * u[:, 3:4]))
        drawn = np.where(u[:, 2:3] < aspect[0], drawn, 1.0)
        factor = factor * np.concatenate([1.0 / drawn, drawn], 1)
    return resized(np.rint(sizes * factor / ratio).astype(np.int64))


@draws()
def pad_to_center(sizes, u, *, size):
    """timm.data.transforms.center_crop_or_pad, as far as it pads."""
    missing = np.maximum(np.array(size) - sizes, 0)
    return window(-(missing // 2), sizes + missing)


@draws(uniforms=2)
def crop_or_pad(sizes, u, *, size):
    """timm.data.transforms.RandomCropOrPad.get_params: a window within a larger image, or around a smaller one."""
    room = sizes - np.array(size)
    start = np.floor(u * (np.abs(room) + 1)) * np.where(room < 0, -1, 1)
    return window(start, np.broadcast_to(size, sizes.shape))


@draws()
def trim_border(sizes, u, *, border):
    """timm.data.transforms.TrimBorder, of images that are larger than two borders."""
    return window(np.broadcast_to(border, sizes.shape), sizes - 2 * border)


_A_WINDOW = 23  # uniform numbers: erased()'s, and a key


@draws(uniforms=lambda p, area, log_ratio, counts, at: 2 + _A_WINDOW * counts[1])
def timm_erasing(sizes, u, *, p, area, log_ratio, counts, at):
    """The window number ``at`` of timm.data.random_erasing.RandomErasing, if there are so many: from ``counts[0]`` to
    ``counts[1]``, which share ``area``. ``key`` is for what fills it."""
    count, own = whole(u[:, 1], counts[0], counts[1] + 1), u[:, 2 + _A_WINDOW * at :]
    arrays, some = erased(sizes, own[:, :22], area, log_ratio, np.maximum(count, 1)[:, None])
    flag = (u[:, 0] <= p) & (at < count) & some
    return arrays | {"flag": flag.astype(np.int32), "key": key(own[:, 22])}, sizes
