"""Apply a different operation to each image, as policies and ColorJitter require.

With torch, this takes hundreds of kernel launches per batch, too many for a host that also launches a model's kernels.
On a GPU, two Triton kernels (kernels.py) therefore run Pillow's version of the operations on uint8 tensors, if their
results on test images equal torch's.
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
from ...runtime.forks import at_fork, new_lock
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
"""Names of operations. Those from brightness to equalize are lookups in a table of 256 values for each channel."""
CODES = {name: code for code, name in enumerate(OPERATIONS)}
WARP = CODES["warp"]
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")

_NUMBERS = {
    "posterize": "bits",
    "solarize": "threshold",
}  # name of the number that an operation takes; "factor" for all others


def interpolation_code(name: str) -> int:
    return INTERPOLATIONS.index(name.removesuffix("-exact"))


def run(images, chosen, numbers, *, like, interpolations=0, fill=None, area=None):
    """Return N images (N, C, H, W), each after its own operation.

    Args:
        chosen: (N,) codes of operations; 0 for none.
        numbers: (N,) factor, bits or threshold of each operation, or (N, 6) if there are warps. A warp's six columns
            are its matrix from output to input pixels. Other operations use the first column.
        interpolations: codes of the warps' interpolations, (N,) or one for all; 0 is nearest.
        fill: color outside of a warped image; None for black.
        area: (N,) numbers of pixels without padding; None if there is no padding.
    """
    if numbers.ndim == 1:
        firsts, numbers = numbers, np.zeros((len(images), 6))
        numbers[:, 0] = firsts
    given = numbers, np.zeros(len(images), np.int64) + interpolations, fill, area
    # checked even if nothing is chosen, so that only the first batch waits for the compiler
    on_triton = like == "pil" and _fits_triton(images) and triton_agrees(images.device, images.shape[1])
    if not chosen.any():
        return images
    if not on_triton:
        return by_torch(images, chosen, *given, like)
    left = (chosen == WARP) & (given[1] == 0)  # torch runs nearest warps whose coordinates Pillow accumulates
    left[left] = ~is_fixed(numbers[left], images.shape[-2:])
    made = by_triton(images, np.where(left, 0, chosen), *given)
    return by_torch(made, np.where(left, chosen, 0), *given) if left.any() else made


def by_torch(images, chosen, numbers, interpolations, fill, area, like="pil"):
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
            selected = rows[interpolations[rows] == mode]
            size = np.tile(np.array(images.shape[-2:], np.int32), (len(selected), 1))
            given = {"matrix": numbers[selected], "size": size}
            how = {"arrays": given, "interpolation": INTERPOLATIONS[mode], "fill": fill, "like": like}
            groups.append((selected, functools.partial(warp.warp_affine, **how)))
    return in_groups(images, groups)


# ---- launches

_LARGEST = 2**20  # in pixels; one launch does not parallelize larger images well enough
_BLOCK, _TABLE_BLOCK = 1024, 2048  # pixels per program

# numbers, rounded as in ops/color.py and ops/jitter.py
_ROUNDED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    CODES["posterize"]: lambda bits: 256 - 2.0 ** (8 - bits.astype(np.int32)),
    CODES["solarize"]: lambda threshold: np.clip(np.ceil(threshold), 0, 256),
    CODES["solarize_add"]: np.trunc,
    CODES["hue"]: lambda factor: (np.trunc(factor * 255).astype(np.int32) & 255) << 8,
}


def by_triton(images, chosen, numbers, interpolations, fill, area):
    """Do the work of run() in Triton, for Pillow's operations on uint8 images of 1 or 3 channels."""
    from .kernels import ROW, levels, operate  # imports Triton

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
    with torch.cuda.device(device) if images.is_cuda else nullcontext():  # Triton uses the current device
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


def _fits_triton(images) -> bool:
    channels, (height, width) = images.shape[1], images.shape[-2:]
    fits = images.dtype == torch.uint8 and channels in (1, 3) and height * width <= _LARGEST
    return fits and _has_triton(images.device)


def _has_triton(device: torch.device) -> bool:
    return device.type == "cuda"


# ---- comparison with torch

_PATIENCE = 60  # seconds that a fork waits for a compilation
_SIZE = 61, 71  # several Triton programs per image
_TRIED = {"posterize": 3, "solarize": 99.5, "solarize_add": 77.7, "hue": -0.3}  # 1.37 for other operations
_MATRIX = 0.9, 0.25, -3.3, -0.2, 1.1, 4.7

_log = logging.getLogger("dali_compat")
_agreement: dict[tuple[torch.device, int], bool] = {}
_trial_lock = new_lock()


def triton_agrees(device: torch.device, channels: int) -> bool:
    """Return True if by_triton() equals torch on this device. The first call on a machine takes seconds, because it
    compiles the kernels."""
    key = device, channels
    if key not in _agreement:
        with _trial_lock:
            if key not in _agreement:
                _agreement[key] = _agrees(device, channels)
    return _agreement[key]


def _agrees(device, channels) -> bool:
    try:
        if device.type == "cuda" and os.environ.get("TRITON_INTERPRET") == "1":
            why = "TRITON_INTERPRET is set"
        elif all(map(torch.equal, *compared(device, channels))):
            return True
        else:
            why = "their results differ from torch's"
    except Exception as error:  # errors of Triton or its compiler; torch does the same work without them
        why = f"{type(error).__name__}: {error}".splitlines()[0]
    _log.info("augmentations on %s take more host time without Triton kernels: %s", device, why)
    return False


def compared(device, channels) -> tuple[torch.Tensor, torch.Tensor]:
    """Run all operations and interpolations on test images. Return the results of Triton and torch as CPU tensors."""
    chosen = np.array([*CODES.values(), WARP, WARP])
    warps = chosen == WARP
    numbers = np.tile(_MATRIX, (len(chosen), 1))
    numbers[~warps, 0] = [_TRIED.get(OPERATIONS[code], 1.37) for code in chosen[~warps]]
    interpolations = np.zeros(len(chosen), np.int64)
    interpolations[warps] = 0, 1, 2
    images = noise(len(chosen), channels)
    given = chosen, numbers, interpolations, (3, 77, 200)[:channels], None
    return by_triton(images.to(device), *given).cpu(), by_torch(images, *given)


def noise(count: int, channels: int) -> torch.Tensor:
    """Return random images that autocontrast and equalize change, because some values do not occur and others are
    frequent."""
    images = np.random.default_rng(0).integers(9, 240, (count, channels, *_SIZE), dtype=np.uint8)
    images[:, :, :20] = images[:, :, :20] // 8 + 40
    return torch.from_numpy(images)


def _before_fork() -> None:
    """Wait until a running compilation ends, because a forked child would inherit a lock that is never released."""
    if _trial_lock.acquire(timeout=_PATIENCE):
        _trial_lock.release()


at_fork("Triton", before=_before_fork)
