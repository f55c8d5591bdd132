"""Random numbers for whole images. Each number depends only on the sample's key and on its own index in the image.

The numbers are therefore the same on every device and in every batch, up to the rounding of logarithms and cosines. The
generator is that of Widynski, "Squares: a fast counter-based RNG", 2020 (arXiv:2004.06278).
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ...runtime.device import to_device


def uniforms(keys: np.ndarray, count: int, device) -> torch.Tensor:
    """Return uniform numbers (N, count) float32 in [0, 1), multiples of 2**-24."""
    return (_bits(keys, count, device) >> 40).bitwise_and_(0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def normals(keys: np.ndarray, count: int, device) -> torch.Tensor:
    """Return normally distributed numbers (N, count) float32 with mean 0 and standard deviation 1."""
    return torch.stack(_box_muller(_bits(keys, (count + 1) // 2, device)), -1).flatten(1)[:, :count]


def _bits(keys, count, device):
    key = to_device(mixed(keys)[:, None], device)
    return squares(torch.arange(count, device=device), key)


def normals_at(index: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return normals() at the given indices. ``keys`` are results of mixed()."""
    even, odd = _box_muller(squares(index >> 1, keys))
    return torch.where((index & 1).bool(), odd, even)


def _box_muller(bits):
    """Return two normal numbers for each 64-bit number, by the method of Box and Muller (1958)."""
    radius = (bits & 0xFFFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    angle = ((bits >> 40) & 0xFFFFFF).to(torch.float32).mul_(2 * math.pi * 2.0**-24)
    return angle.cos().mul_(radius), angle.sin_().mul_(radius)


def squares(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the random bits of squares64(counter, key). int64 values represent uint64."""
    x = counter * key
    y, z = x, x + key
    for added in (y, z, y):
        x = _halves_swapped(torch.addcmul(added, x, x))
    last = torch.addcmul(z, x, x)
    x = _halves_swapped(last)
    return torch.addcmul(y, x, x).bitwise_right_shift_(32).bitwise_and_(0xFFFFFFFF).bitwise_xor_(last)


def _halves_swapped(x):
    return x.view(torch.int32).unflatten(-1, (-1, 2)).roll(1, -1).view(torch.int64).squeeze(-1)


def mixed(keys: np.ndarray) -> np.ndarray:
    """Return odd int64 keys with random-looking bits, as Squares requires (splitmix64; Steele, Lea and Flood, 2014)."""
    z = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64)
