"""Operations that policies and ColorJitter choose for each image of PIL's, in two launches a batch. In torch they are
some hundred, and a host that is busy with a model's launches has no time for these.

kernels has the two, in Triton. Here are the codes of operations, and the launches, where they can be used: Triton and
its compiler are there, and a few images become what torch makes of them. ops/operations uses them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch

from ...runtime.device import to_device
from ...runtime.forks import new_lock

OPERATIONS = (
    "identity",
    *("brightness", "contrast", "posterize", "solarize", "solarize_add", "invert", "autocontrast", "equalize"),
    *("saturation", "sharpness", "hue", "warp"),
)
"""The second line's operations are tables of 256 values, for each channel of an image."""
CODES = {name: code for code, name in enumerate(OPERATIONS)}
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")

_PATIENCE = 60  # seconds, of a fork
_SIZE = 61, 71  # several programs an image
_NUMBERS = {"posterize": 3, "solarize": 99.5, "solarize_add": 77.7, "hue": -0.3}  # of others a factor
_MATRIX = 0.9, 0.25, -3.3, -0.2, 1.1, 4.7

_log = logging.getLogger("dali_compat")

_BLOCK, _TABLE_BLOCK = 1024, 2048  # pixels that a program takes at a time

# as ops/color.py and ops/hue.py round them
_ROUNDED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    CODES["posterize"]: lambda bits: 256 - 2.0 ** (8 - bits.astype(np.int32)),
    CODES["solarize"]: lambda threshold: np.clip(np.ceil(threshold), 0, 256),
    CODES["solarize_add"]: np.trunc,
    CODES["hue"]: lambda factor: (np.trunc(factor * 255).astype(np.int32) & 255) << 8,
}

Launched = Callable[..., torch.Tensor]
_found: dict[tuple[torch.device, int], Launched | None] = {}
_trying = new_lock()


def launcher(device: torch.device, channels: int, hue_tables: tuple | None, reference: Launched) -> Launched | None:
    """launched(), or None where it cannot be used. The first call for a device and so many channels waits for the
    compiler: seconds, once on a machine; less in later programs. ``reference`` does the same by torch."""
    key = device, channels
    if key not in _found:
        with _trying:
            if key not in _found:
                _found[key] = _tried(device, channels, hue_tables, reference)
    return _found[key]


def _tried(device, channels, hue_tables, reference) -> Launched | None:
    try:
        if device.type == "cuda" and os.environ.get("TRITON_INTERPRET") == "1":
            why = "TRITON_INTERPRET is set"
        elif all(map(torch.equal, *compared(launched, device, channels, hue_tables, reference))):
            return launched
        else:
            why = "they do not give what torch gives"
    except Exception as error:  # Triton's, its compiler's: torch does the same work without them
        why = f"{type(error).__name__}: {error}".splitlines()[0]
    _log.info("augmentations on %s take more time of the host, without kernels in Triton: %s", device, why)
    return None


def compared(launched, device, channels, hue_tables, reference) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what both make of an image for each operation, and for each interpolation of a warp, on the CPU."""
    chosen = np.array([*CODES.values(), CODES["warp"], CODES["warp"]])
    warps = chosen == CODES["warp"]
    numbers = np.tile(_MATRIX, (len(chosen), 1))
    numbers[~warps, 0] = [_NUMBERS.get(OPERATIONS[code], 1.37) for code in chosen[~warps]]
    interpolations = np.zeros(len(chosen), np.int64)
    interpolations[warps] = 0, 1, 2
    images = made(len(chosen), channels)
    fill = torch.tensor([3, 77, 200][:channels], dtype=torch.uint8, device="cpu")
    given = chosen, numbers, interpolations, fill, _SIZE[0] * _SIZE[1]
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        ours = launched(images.to(device), *given, hue_tables).cpu()
    return ours, reference(images, *given)


def made(count: int, channels: int) -> torch.Tensor:
    """Noise whose values are not all there, nor equally often: autocontrast and equalize change it."""
    images = np.random.default_rng(0).integers(9, 240, (count, channels, *_SIZE), dtype=np.uint8)
    images[:, :, :20] = images[:, :, :20] // 8 + 40
    return torch.from_numpy(images)


def _before_fork() -> None:
    """A child must not copy a locked compiler."""
    if _trying.acquire(timeout=_PATIENCE):
        _trying.release()


os.register_at_fork(before=_before_fork)


# ---- the launches


def launched(
    images: torch.Tensor,
    chosen: np.ndarray,
    numbers: np.ndarray,
    interpolations: np.ndarray,
    fill: torch.Tensor,
    area: np.ndarray | int,
    hue_tables: tuple[torch.Tensor, ...] | None,
) -> torch.Tensor:
    """Does the operations that ``chosen`` says.

    Args:
        images: (N, C, H, W) uint8 of 1 or 3 channels.
        chosen: (N,) codes of operations.
        numbers: (N, 6) float64: a factor, bits or a threshold first, or the matrix of a warp.
        interpolations: (N,) codes of interpolations.
        fill: (1 or C,) uint8 on the CPU, outside of a warp.
        area: how many pixels count for the mean of an image, (N,) or of all: the second number of contrast.
        hue_tables: hue_of, range_of, saturation_of, weights of ops/hue.py; None of images of one channel.
    """
    from .kernels import ROW, levels, operate  # Triton starts with them

    images = images.contiguous()
    count, channels, height, width = images.shape
    rows = np.zeros((count, ROW))
    rows[:, 0], rows[:, 1:7], rows[:, 7], rows[:, 8 : 8 + channels] = chosen, numbers, interpolations, fill.numpy()
    for operation, rounded in _ROUNDED.items():
        of = chosen == operation
        if of.any():
            rows[of, 1] = rounded(rows[of, 1])
    rows[:, 2] = np.where(chosen == CODES["contrast"], area, rows[:, 2])
    on_device = to_device(rows, images.device)
    tables = torch.empty((count, channels, 256), dtype=torch.uint8, device=images.device)
    if ((chosen > 0) & (chosen < CODES["saturation"])).any():
        levels[(count, channels)](
            images, on_device, tables, height, width, channels, _TABLE_BLOCK, enable_fp_fusion=False
        )
    made = torch.empty_like(images)
    given = images, made, on_device, tables, *(hue_tables or [tables] * 4)
    how = height, width, channels, _BLOCK
    operate[(count, -(-height * width // _BLOCK))](*given, *how, enable_fp_fusion=False)
    return made
