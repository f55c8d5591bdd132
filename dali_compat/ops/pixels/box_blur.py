"""Pillow's GaussianBlur (BoxBlur.c) as batched torch, bit for bit: three box filters along each axis, whose
widths are fractions, in 24-bit fixed point. By P. Gwosdek et al., "Theoretical foundations of Gaussian convolution by
extended box filtering", SSVM 2011.
"""

from __future__ import annotations

import numpy as np
import torch

from ...runtime.device import to_device
from .lists import selected, with_rows
from .resample import chunks

_PASSES, _ONE = 3, 1 << 24


def box_blur(images: torch.Tensor, sigmas: np.ndarray) -> torch.Tensor:
    """``ImageFilter.GaussianBlur(sigma)`` of uint8 images (N, C, H, W), a sigma each."""
    radii = _radii(sigmas)
    reach, made = radii.astype(np.int64), []
    weights = (np.float32(_ONE) / (radii * np.float32(2) + np.float32(1))).astype(np.int64)
    at_ends = (_ONE - (2 * reach + 1) * weights) // 2
    for taps in np.unique(reach).tolist():
        rows = np.flatnonzero(reach == taps)
        some = selected(images, rows)
        for part in chunks(some, 6 * some[0].numel()):
            inner, outer = (
                to_device(numbers[rows[part]], images.device).view(-1, 1, 1, 1) for numbers in (weights, at_ends)
            )
            x = some[part].to(torch.int64)
            for axis in (-1, -2):
                for _ in range(_PASSES):
                    x = _box(x, taps, inner, outer, axis)
            made.append((rows[part], x.to(torch.uint8)))
    return with_rows(images, made)


def _box(x, taps: int, inner, outer, axis: int):
    """The mean of ``taps`` pixels on each side, itself, and a part of the next one on each side."""
    length = x.shape[axis]
    before = x.narrow(axis, 0, 1).repeat_interleave(taps + 1, axis)
    after = x.narrow(axis, length - 1, 1).repeat_interleave(taps + 1, axis)
    padded = torch.cat([before, x, after], axis)
    middle = sum(padded.narrow(axis, 1 + i, length) for i in range(2 * taps + 1))
    ends = padded.narrow(axis, 0, length) + padded.narrow(axis, 2 * taps + 2, length)
    return (middle * inner).add_(ends.mul_(outer)).add_(_ONE // 2).bitwise_right_shift_(24)


def _radii(sigmas: np.ndarray) -> np.ndarray:
    """_gaussian_blur_radius: float32, but for the root."""
    one, two, three, six = map(np.float32, (1, 2, 3, 6))
    sigma = sigmas.astype(np.float32)
    variance = sigma * sigma / np.float32(_PASSES)
    box = np.sqrt(12.0 * variance.astype(np.float64) + 1.0).astype(np.float32)
    whole = np.floor((box.astype(np.float64) - 1.0) / 2.0).astype(np.float32)
    part = (two * whole + one) * (whole * (whole + one) - three * variance)
    part /= six * (variance - (whole + one) * (whole + one))
    return whole + part
