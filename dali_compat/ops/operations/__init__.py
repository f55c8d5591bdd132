"""An operation of each image's own, as policies and ColorJitter choose it.

By torch, where samples whose turn it is for an operation go together, these are hundreds of launches a batch, and a
host that is busy with a model's launches has no time for them. So on a GPU two launches of Triton's (kernels.py) do
those of PIL's images, where Triton and its compiler are there, and a few images become what torch makes of them.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch

from ...runtime.device import to_device
from ...runtime.forks import new_lock
from .. import warp
from ..kernels import kernel_of
from ..pixels.lists import in_groups
from ..pixels.transform import fill_like, is_fixed
from ..pixels.values import hsv_tables

OPERATIONS = (
    "identity",
    *("brightness", "contrast", "posterize", "solarize", "solarize_add", "invert", "autocontrast", "equalize"),
    *("saturation", "sharpness", "hue", "warp"),
)
"""The second line's operations are tables of 256 values, for each channel of an image."""
CODES = {name: code for code, name in enumerate(OPERATIONS)}
WARP = CODES["warp"]
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")

_NUMBERS = {"posterize": "bits", "solarize": "threshold"}  # of others "factor"


def interpolation_code(name: str) -> int:
    return INTERPOLATIONS.index(name.removesuffix("-exact"))


def run(images, chosen, numbers, *, like, interpolations=0, fill=None, area=None):
    """An operation of each of N images (N, C, H, W).

    Args:
        chosen: (N,) codes of operations; 0 is none.
        numbers: (N,), the factor, the bits or the threshold of an operation; or (N, 6), the matrix of a warp, from
            output to input, in whose first place those stand.
        interpolations: codes of warps' interpolations, (N,) or of all; 0 is nearest.
        fill: outside of a warp.
        area: (N,) how many pixels of an image count for its mean; None is all.
    """
    if numbers.ndim == 1:
        firsts, numbers = numbers, np.zeros((len(images), 6))
        numbers[:, 0] = firsts
    given = numbers, np.zeros(len(images), np.int64) + interpolations, fill, area
    # asked even where nothing is chosen: the first batch, and no later one, waits for the compiler
    launches = like == "pil" and _is_for_launches(images) and launches_agree(images.device, images.shape[1])
    if not chosen.any():
        return images
    if not launches:
        return by_torch(images, chosen, *given, like)
    left = (chosen == WARP) & (given[1] == 0)  # to torch: those whose coordinates Pillow adds up
    left[left] = ~is_fixed(numbers[left], images.shape[-2:])
    made = by_launches(images, np.where(left, 0, chosen), *given)
    return by_torch(made, np.where(left, chosen, 0), *given) if left.any() else made


def by_torch(images, chosen, numbers, interpolations, fill, area, like="pil"):
    """Does what run() does, with its arguments."""
    groups = []
    for code in np.unique(chosen[chosen > 0]).tolist():
        rows = np.flatnonzero(chosen == code)
        if code != WARP:
            name = OPERATIONS[code]
            given = {_NUMBERS.get(name, "factor"): numbers[rows, 0].astype(np.int32 if name == "posterize" else float)}
            if area is not None:
                given["area"] = np.broadcast_to(area, len(images))[rows]
            groups.append((rows, functools.partial(kernel_of(name), arrays=given, like=like)))
            continue
        for mode in np.unique(interpolations[rows]).tolist():
            of_mode = rows[interpolations[rows] == mode]
            size = np.tile(np.array(images.shape[-2:], np.int32), (len(of_mode), 1))
            given = {"matrix": numbers[of_mode], "size": size}
            how = {"arrays": given, "interpolation": INTERPOLATIONS[mode], "fill": fill, "like": like}
            groups.append((of_mode, functools.partial(warp.warp_affine, **how)))
    return in_groups(images, groups)


# ---- the launches

_LARGEST = 2**20  # pixels of an image: of a larger one a launch has too little to do side by side
_BLOCK, _TABLE_BLOCK = 1024, 2048  # pixels that a program takes at a time

# as ops/color.py and ops/jitter.py round them
_ROUNDED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    CODES["posterize"]: lambda bits: 256 - 2.0 ** (8 - bits.astype(np.int32)),
    CODES["solarize"]: lambda threshold: np.clip(np.ceil(threshold), 0, 256),
    CODES["solarize_add"]: np.trunc,
    CODES["hue"]: lambda factor: (np.trunc(factor * 255).astype(np.int32) & 255) << 8,
}


def by_launches(images, chosen, numbers, interpolations, fill, area):
    """Does the same to PIL's images, uint8 of 1 or 3 channels."""
    from .kernels import ROW, levels, operate  # Triton starts with them

    images = images.contiguous()
    (count, channels, height, width), device = images.shape, images.device
    color = fill_like(images.new_empty(0, device="cpu"), fill).flatten()
    rows = np.zeros((count, ROW))
    rows[:, 0], rows[:, 1:7], rows[:, 7], rows[:, 8 : 8 + channels] = chosen, numbers, interpolations, color.numpy()
    for operation, rounded in _ROUNDED.items():
        of = chosen == operation
        if of.any():
            rows[of, 1] = rounded(rows[of, 1])
    rows[:, 2] = np.where(chosen == CODES["contrast"], height * width if area is None else area, rows[:, 2])
    with torch.cuda.device(device) if images.is_cuda else nullcontext():  # Triton asks which is current
        on_device = to_device(rows, device)
        tables = torch.empty((count, channels, 256), dtype=torch.uint8, device=device)
        size = height, width, channels
        if ((chosen > 0) & (chosen < CODES["saturation"])).any():
            levels[(count, channels)](images, on_device, tables, *size, _TABLE_BLOCK, enable_fp_fusion=False)
        made = torch.empty_like(images)
        hue_tables = hsv_tables(device) if channels == 3 else [tables] * 4
        given = images, made, on_device, tables, *hue_tables
        operate[(count, -(-height * width // _BLOCK))](*given, *size, _BLOCK, enable_fp_fusion=False)
    return made


def _is_for_launches(images) -> bool:
    channels, (height, width) = images.shape[1], images.shape[-2:]
    fits = images.dtype == torch.uint8 and channels in (1, 3) and height * width <= _LARGEST
    return fits and _has_launches(images.device)


def _has_launches(device: torch.device) -> bool:
    return device.type == "cuda"


# ---- whether they give what torch gives

_PATIENCE = 60  # seconds, of a fork
_SIZE = 61, 71  # several programs an image
_TRIED = {"posterize": 3, "solarize": 99.5, "solarize_add": 77.7, "hue": -0.3}  # of others a factor
_MATRIX = 0.9, 0.25, -3.3, -0.2, 1.1, 4.7

_log = logging.getLogger("dali_compat")
_found: dict[tuple[torch.device, int], bool] = {}
_trying = new_lock()


def launches_agree(device: torch.device, channels: int) -> bool:
    """Returns whether by_launches() can be used. The first call for a device and a number of channels waits for the
    compiler: seconds, once on a machine; less in later programs."""
    key = device, channels
    if key not in _found:
        with _trying:
            if key not in _found:
                _found[key] = _tried(device, channels)
    return _found[key]


def _tried(device, channels) -> bool:
    try:
        if device.type == "cuda" and os.environ.get("TRITON_INTERPRET") == "1":
            why = "TRITON_INTERPRET is set"
        elif all(map(torch.equal, *compared(device, channels))):
            return True
        else:
            why = "they do not give what torch gives"
    except Exception as error:  # Triton's, its compiler's: torch does the same work without them
        why = f"{type(error).__name__}: {error}".splitlines()[0]
    _log.info("augmentations on %s take more time of the host, without kernels in Triton: %s", device, why)
    return False


def compared(device, channels) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what launches and torch make of an image for each operation, and for each interpolation of a warp, on the
    CPU."""
    chosen = np.array([*CODES.values(), WARP, WARP])
    warps = chosen == WARP
    numbers = np.tile(_MATRIX, (len(chosen), 1))
    numbers[~warps, 0] = [_TRIED.get(OPERATIONS[code], 1.37) for code in chosen[~warps]]
    interpolations = np.zeros(len(chosen), np.int64)
    interpolations[warps] = 0, 1, 2
    images = noise(len(chosen), channels)
    given = chosen, numbers, interpolations, (3, 77, 200)[:channels], None
    return by_launches(images.to(device), *given).cpu(), by_torch(images, *given)


def noise(count: int, channels: int) -> torch.Tensor:
    """Images whose values are not all there, nor equally often: autocontrast and equalize change them."""
    images = np.random.default_rng(0).integers(9, 240, (count, channels, *_SIZE), dtype=np.uint8)
    images[:, :, :20] = images[:, :, :20] // 8 + 40
    return torch.from_numpy(images)


def _before_fork() -> None:
    """A child must not copy a locked compiler."""
    if _trying.acquire(timeout=_PATIENCE):
        _trying.release()


os.register_at_fork(before=_before_fork)
