"""Random parameters of what spoils images."""

from __future__ import annotations

import numpy as np

from .geometry import window
from .laws import coin, key, whole
from .registry import dictates, draws


@draws(uniforms=24)
def erasing(sizes, u, *, p, scale, ratio, random_value):
    """torchvision.transforms.RandomErasing.get_params: ten tries, then nothing is erased. ``random_value``: the window
    is filled with random pixels, for which it takes a key."""
    arrays, some = erased(sizes, u[:, 1:23], scale, (np.log(ratio[0]), np.log(ratio[1])))
    arrays["flag"] = ((u[:, 0] < p) & some).astype(np.int32)
    if random_value:
        arrays["key"] = key(u[:, 23])
    return arrays, sizes


def erased(sizes, u, area, log_ratio, parts=1):
    """A window of ``area`` (low, high) of each image over ``parts``, and whether one has fitted within ten tries; ``u``
    has 22 numbers."""
    area = sizes.prod(1)[:, None] * (area[0] + (area[1] - area[0]) * u[:, :10]) / parts
    aspect = np.exp(log_ratio[0] + (log_ratio[1] - log_ratio[0]) * u[:, 10:20])
    h, w = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (h < sizes[:, :1]) & (w < sizes[:, 1:])
    rows, first, some = np.arange(len(sizes)), fits.argmax(1), fits.any(1)
    shape = np.stack([h[rows, first], w[rows, first]], 1) * some[:, None]
    return window(np.floor(u[:, 20:22] * (sizes - shape + 1)), shape)[0], some


@dictates(erasing)
def erasing_answers(row, step):
    return [coin(row["flag"]), *([("window", row)] if row["flag"] else [])]


@draws(uniforms=1)
def jpeg_quality(sizes, u, *, quality):
    """torchvision.transforms.v2.JPEG.make_params: from ``quality[0]`` to ``quality[1]``, both included."""
    return {"quality": whole(u[:, 0], quality[0], quality[1] + 1).astype(np.int32)}, sizes


@dictates(jpeg_quality)
def jpeg_quality_answers(row, step):
    return [("whole", int(row["quality"]))]
