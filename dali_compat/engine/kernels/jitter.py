"""Colours changed in an order of each sample's own."""

from __future__ import annotations

import numpy as np

from . import operations
from .color import in_parts, permute_channels, permute_channels_image
from .images import functions
from .lists import selected, with_rows
from .registry import image_kernel, kernel

_ADJUSTED = ("brightness", "contrast", "saturation", "hue")
_DISTORT = ("brightness", "contrast_before", "saturation", "hue", "contrast_after")


@kernel
@in_parts
def color_jitter(images, arrays, *, like):
    """torchvision.transforms.ColorJitter.forward."""
    for place in arrays["order"].T:
        chosen, numbers = operations.nothing_for(images)
        for number, name in enumerate(_ADJUSTED):
            if name in arrays:
                rows = place == number
                chosen[rows], numbers[rows, 0] = operations.CODES[name], arrays[name][rows]
        images = operations.run(images, chosen, numbers, like=like, area=arrays.get("area"))
    return images


@kernel
@in_parts
def photometric_distort(images, arrays, *, like):
    """torchvision.transforms.v2.RandomPhotometricDistort.transform."""
    for name in _DISTORT:
        chosen, numbers = operations.nothing_for(images)
        rows = ~np.isnan(arrays[name])
        chosen[rows], numbers[rows, 0] = operations.CODES[name.split("_")[0]], arrays[name][rows]
        images = operations.run(images, chosen, numbers, like=like, area=arrays.get("area"))
    rows = np.flatnonzero(arrays["order"][:, 0] >= 0)
    if not len(rows):
        return images
    return with_rows(images, [(rows, permute_channels(selected(images, rows), {"order": arrays["order"][rows]}))])


# ---- one image


@image_kernel("color_jitter")
def color_jitter_image(image, row, *, like):
    for i in row["order"]:
        name = _ADJUSTED[i]
        if name in row:
            image = _adjusted_image(name, image, row[name], like)
    return image


@image_kernel("photometric_distort")
def photometric_distort_image(image, row, *, like):
    for name in _DISTORT:
        if not np.isnan(row[name]):
            image = _adjusted_image(name.split("_")[0], image, row[name], like)
    return image if row["order"][0] < 0 else permute_channels_image(image, row)


def _adjusted_image(name: str, image, factor, like):
    return getattr(functions(like), f"adjust_{name}")(image, float(factor))
