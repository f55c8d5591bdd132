"""An operation of each image's own, as policies and ColorJitter choose it.

On a GPU with Triton two launches do those of PIL's images (launches/). Elsewhere torch does them, and the samples
whose turn it is for an operation go together.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext

import numpy as np
import torch

from . import color, warp
from .hue import hsv_tables
from .kernels import kernel_of
from .launches import CODES, INTERPOLATIONS, OPERATIONS, launcher
from .pixels.lists import in_groups
from .pixels.transform import fill_like, is_fixed

WARP = CODES["warp"]
_NUMBERS = {"posterize": "bits", "solarize": "threshold"}  # of others "factor"
_LARGEST = 2**20  # pixels of an image: of a larger one a launch has too little to do side by side


def nothing_for(images) -> tuple[np.ndarray, np.ndarray]:
    """(chosen, numbers) of run() to be filled in: nothing happens to any image."""
    return np.zeros(len(images), np.int64), np.zeros((len(images), 6))


def interpolation_code(name: str) -> int:
    return INTERPOLATIONS.index(name.removesuffix("-exact"))


def run(images, chosen, numbers, *, like, interpolations=0, fill=None, area=None):
    """An operation of each of N images (N, C, H, W).

    Args:
        chosen: (N,) codes of operations (ops/launches); 0 is none.
        numbers: (N, 6): first the factor, the bits or the threshold of an operation, or the matrix of a warp, from
            output to input.
        interpolations: codes of warps' interpolations, (N,) or of all; 0 is nearest.
        fill: outside of a warp.
        area: (N,) how many pixels of an image count for its mean; None is all.
    """
    interpolations = np.zeros(len(images), np.int64) + interpolations
    # asked for even where nothing is chosen: the first batch, and no later one, waits for the compiler
    launched, hue_tables = _launched_for(images) if like == "pil" else (None, None)
    if not chosen.any():
        return images
    if launched is not None:
        return _by_launches(launched, hue_tables, images, chosen, numbers, interpolations, fill, area)
    return _grouped(images, chosen, numbers, interpolations, fill, area, like)


def _launched_for(images):
    """(launched(), its hue_tables), or twice None where torch does the work."""
    channels, (height, width) = images.shape[1], images.shape[-2:]
    fits = images.dtype == torch.uint8 and channels in (1, 3) and height * width <= _LARGEST
    if not (fits and _has_launches(images.device)):
        return None, None
    hue_tables = hsv_tables(images.device) if channels == 3 else None
    return launcher(images.device, channels, hue_tables, _grouped), hue_tables


def _has_launches(device: torch.device) -> bool:
    return device.type == "cuda"


def _by_launches(launched, hue_tables, images, chosen, numbers, interpolations, fill, area):
    """Few warps are left to torch: those by nearest neighbours whose coordinates Pillow adds up."""
    left = (chosen == WARP) & (interpolations == 0)
    left[left] = ~is_fixed(numbers[left], images.shape[-2:])
    background = fill_like(images.new_empty(0, device="cpu"), fill).flatten()
    counted = images[0, 0].numel() if area is None else area
    with torch.cuda.device(images.device) if images.is_cuda else nullcontext():  # Triton asks which is current
        now = np.where(left, 0, chosen)
        made = launched(images, now, numbers, interpolations, background, counted, hue_tables)
    return _grouped(made, np.where(left, chosen, 0), numbers, interpolations, fill, area) if left.any() else made


def _grouped(images, chosen, numbers, interpolations, fill, area, like="pil"):
    """run() by torch."""
    groups = []
    for code in np.unique(chosen[chosen > 0]).tolist():
        rows = np.flatnonzero(chosen == code)
        if code != WARP:
            name = OPERATIONS[code]
            given = {_NUMBERS.get(name, "factor"): numbers[rows, 0].astype(np.int32 if name == "posterize" else float)}
            if area is not None:
                given["area"] = np.broadcast_to(area, len(images))[rows]
            groups.append((rows, functools.partial(kernel_of(name) or _solarize_add, arrays=given, like=like)))
            continue
        for mode in np.unique(interpolations[rows]).tolist():
            of_mode = rows[interpolations[rows] == mode]
            size = np.tile(np.array(images.shape[-2:], np.int32), (len(of_mode), 1))
            given = {"matrix": numbers[of_mode], "size": size}
            how = {"arrays": given, "interpolation": INTERPOLATIONS[mode], "fill": fill, "like": like}
            groups.append((of_mode, functools.partial(warp.warp_affine, **how)))
    return in_groups(images, groups)


def _solarize_add(images, arrays, *, like):
    """timm's, of a number that is not above 128."""
    return (images < 128).mul(color.to(images, arrays["factor"], np.uint8)).add_(images)
