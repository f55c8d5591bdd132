"""A helper: an operation of each image's own, as policies and ColorJitter choose it.

On a GPU with Triton two launches do them all (engine/launches). Elsewhere torch does them, and the samples whose turn
it is for an operation go together.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext

import numpy as np
import torch

from ..launches import tried
from ..launches.numbers import AT, INTERPOLATIONS, OPERATIONS
from . import color, filters, warp
from .hue import hsv_tables, hue
from .lists import in_groups
from .transform import fill_like, is_fixed

WARP, HUE, SATURATION = AT["warp"], AT["hue"], AT["saturation"]


def none_of(images) -> tuple[np.ndarray, np.ndarray]:
    """(chosen, numbers) of run() to be filled in: nothing happens to any image."""
    return np.zeros(len(images), np.int64), np.zeros((len(images), 6))


def interpolation_number(name: str) -> int:
    return INTERPOLATIONS.index(name.removesuffix("-exact"))


def run(images, chosen, numbers, *, like, interpolations=0, fill=None, area=None):
    """An operation of each of N images (N, C, H, W).

    Args:
        chosen: (N,) which one, as launches/numbers.py counts; 0 is none.
        numbers: (N, 6): the factor, the bits or the threshold of an operation, or the matrix of a warp, from output to
            input.
        interpolations: numbers of interpolations, (N,) or of all; warps need them.
        fill: outside of a warp.
        area: (N,) how many pixels of an image count for its mean; None is all.
    """
    if not chosen.any():
        return images
    interpolations = np.zeros(len(images), np.int64) + interpolations
    if like == "pil" and images.dtype == torch.uint8 and images.shape[1] in (1, 3) and _has_launches(images.device):
        hue_tables = hsv_tables(images.device) if images.shape[1] == 3 and (chosen == HUE).any() else None
        kind = tried.Kind(images.device, images.shape[1], hue_tables is not None)
        launched = tried.launcher(kind, hue_tables, _grouped)
        if launched is not None:
            return _launched(launched, hue_tables, images, chosen, numbers, interpolations, fill, area)
    return _grouped(images, chosen, numbers, interpolations, fill, area, like)


def _has_launches(device: torch.device) -> bool:
    return device.type == "cuda"


def _launched(launched, hue_tables, images, chosen, numbers, interpolations, fill, area):
    """Few warps are left to torch: those by nearest neighbours whose coordinates Pillow adds up."""
    if images.shape[1] == 1:
        chosen = np.where((chosen == HUE) | (chosen == SATURATION), 0, chosen)
    left = np.flatnonzero((chosen == WARP) & (interpolations == 0))
    left = left[~is_fixed(numbers[left], images.shape[-2:])]
    now = chosen.copy()
    now[left] = 0
    background = fill_like(images.new_empty(0, device="cpu"), fill).flatten()
    counted = images[0, 0].numel() if area is None else area
    with torch.cuda.device(images.device) if images.is_cuda else nullcontext():  # Triton asks which is current
        made = launched(images, now, numbers, interpolations, background, counted, hue_tables)
    return _grouped(made, np.where(now > 0, 0, chosen), numbers, interpolations, fill, area) if len(left) else made


def _grouped(images, chosen, numbers, interpolations, fill, area, like="pil"):
    """run() by torch."""
    groups = []
    for number in np.unique(chosen[chosen > 0]).tolist():
        rows = np.flatnonzero(chosen == number)
        if number != WARP:
            given = {"factor": numbers[rows, 0]}
            if area is not None:
                given["area"] = np.broadcast_to(area, len(images))[rows]
            groups.append((rows, functools.partial(_BY_TORCH[OPERATIONS[number]], arrays=given, like=like)))
            continue
        for mode in np.unique(interpolations[rows]).tolist():
            of_mode = rows[interpolations[rows] == mode]
            size = np.tile(np.array(images.shape[-2:], np.int32), (len(of_mode), 1))
            given = {"matrix": numbers[of_mode], "size": size}
            how = {"arrays": given, "interpolation": INTERPOLATIONS[mode], "fill": fill, "like": like}
            groups.append((of_mode, functools.partial(warp.warp_affine, **how)))
    return in_groups(images, groups)


# ---- by torch: each takes its number as a factor


def _posterize(images, arrays, *, like):
    return color.posterize(images, {"bits": arrays["factor"].astype(np.int32)}, like=like)


def _solarize(images, arrays, *, like):
    return color.solarize(images, {"threshold": arrays["factor"]}, like=like)


def _solarize_add(images, arrays, *, like):
    """timm's, of a number that is not above 128."""
    return (images < 128).mul(color.to(images, arrays["factor"], np.uint8)).add_(images)


_BY_TORCH = {
    "brightness": color.brightness,
    "contrast": color.contrast,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "invert": color.invert,
    "autocontrast": color.autocontrast,
    "equalize": color.equalize,
    "saturation": color.saturation,
    "sharpness": filters.sharpness,
    "hue": hue,
}
