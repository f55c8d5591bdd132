"""A batch's operations as rows of numbers, and the kernels' launches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ...runtime.device import to_device
from . import kernels
from .codes import CODES

_BLOCK, _TABLE_BLOCK = 1024, 2048  # pixels that a program takes at a time

# as ops/color.py and ops/hue.py round them
_ROUNDED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    CODES["posterize"]: lambda bits: 256 - 2.0 ** (8 - bits.astype(np.int32)),
    CODES["solarize"]: lambda threshold: np.clip(np.ceil(threshold), 0, 256),
    CODES["solarize_add"]: np.trunc,
    CODES["hue"]: lambda factor: (np.trunc(factor * 255).astype(np.int32) & 255) << 8,
}


def launched(
    images: torch.Tensor,
    chosen: np.ndarray,
    numbers: np.ndarray,
    interpolations: np.ndarray,
    fill: torch.Tensor,
    area: np.ndarray | int,
    hue_tables: tuple[torch.Tensor, ...] | None,
) -> torch.Tensor:
    """
    Args:
        images: (N, C, H, W) uint8 of 1 or 3 channels.
        chosen: (N,) codes of operations.
        numbers: (N, 6) float64: a factor, bits or a threshold first, or the matrix of a warp.
        interpolations: (N,) codes of interpolations.
        fill: (1 or C,) uint8 on the CPU, outside of a warp.
        area: how many pixels count for the mean of an image, (N,) or of all: the second number of contrast.
        hue_tables: hue_of, range_of, saturation_of, weights of ops/hue.py; None of images of one channel.
    """
    images = images.contiguous()
    count, channels, height, width = images.shape
    rows = np.zeros((count, kernels.ROW))
    rows[:, 0], rows[:, 1:7], rows[:, 7], rows[:, 8 : 8 + channels] = chosen, numbers, interpolations, fill.numpy()
    for operation, rounded in _ROUNDED.items():
        of = chosen == operation
        if of.any():
            rows[of, 1] = rounded(rows[of, 1])
    rows[:, 2] = np.where(chosen == CODES["contrast"], area, rows[:, 2])
    on_device = to_device(rows, images.device)
    tables = torch.empty((count, channels, 256), dtype=torch.uint8, device=images.device)
    if ((chosen > 0) & (chosen < CODES["saturation"])).any():
        kernels.levels[(count, channels)](
            images, on_device, tables, height, width, channels, _TABLE_BLOCK, enable_fp_fusion=False
        )
    made = torch.empty_like(images)
    given = images, made, on_device, tables, *(hue_tables or [tables] * 4)
    how = height, width, channels, _BLOCK
    kernels.operate[(count, -(-height * width // _BLOCK))](*given, *how, enable_fp_fusion=False)
    return made
