"""Colours changed in an order of each sample's own: the samples whose turn it is for an operation go together."""

from __future__ import annotations

import functools

import numpy as np

from .color import brightness, contrast, in_parts, permute_channels, permute_channels_image, saturation
from .hue import hue
from .images import functions
from .lists import in_groups, selected, with_rows
from .registry import image_kernel, kernel

_ADJUST = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
_DISTORT = ("brightness", "contrast_before", "saturation", "hue", "contrast_after")


@kernel
@in_parts
def color_jitter(images, arrays, *, like):
    """torchvision.transforms.ColorJitter.forward."""
    for place in arrays["order"].T:
        groups = []
        for number, name in enumerate(_ADJUST):
            rows = np.flatnonzero(place == number)
            if name in arrays and len(rows):
                groups.append((rows, functools.partial(_ADJUST[name], arrays=_given(name, arrays, rows), like=like)))
        images = in_groups(images, groups)
    return images


@kernel
@in_parts
def photometric_distort(images, arrays, *, like):
    """torchvision.transforms.v2.RandomPhotometricDistort.transform."""
    for name in _DISTORT:
        rows = np.flatnonzero(~np.isnan(arrays[name]))
        if len(rows):
            adjust = _ADJUST[name.split("_")[0]]
            images = with_rows(images, [(rows, adjust(selected(images, rows), _given(name, arrays, rows), like=like))])
    rows = np.flatnonzero(arrays["order"][:, 0] >= 0)
    if not len(rows):
        return images
    return with_rows(images, [(rows, permute_channels(selected(images, rows), {"order": arrays["order"][rows]}))])


def _given(name, arrays, rows):
    return {"factor": arrays[name][rows]} | ({"area": arrays["area"][rows]} if "area" in arrays else {})


# ---- one image


@image_kernel("color_jitter")
def color_jitter_image(image, row, *, like):
    for i in row["order"]:
        name = list(_ADJUST)[i]
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
