"""Grids of warps on tensors: torchvision's functionals take one grid, these one an image."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import grid_sample

from ...runtime.device import to_device


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a`` times ``b``: matrices, or batches of matrices."""
    times = torch.bmm if a.ndim == 3 else torch.mm
    if a.dtype == torch.float32 and _may_be_rounded():
        return times(a.double(), b.double()).float()
    return times(a, b)


def _may_be_rounded() -> bool:
    try:
        if torch.get_float32_matmul_precision() != "highest":
            return True
    except RuntimeError:  # the settings that follow are there beside that one
        return True
    backends = torch.backends.cuda, torch.backends.mkldnn
    matmuls = (getattr(backend, "matmul", None) for backend in backends)
    return any(getattr(matmul, "fp32_precision", "none") not in ("none", "ieee") for matmul in matmuls)


def dtype_of(images):
    return images.dtype if images.is_floating_point() else torch.float32


def _base_grid(images, size, first):
    """(1, h * w, 3): x, y and 1 of each pixel; x and y count from ``first(length)``."""
    dtype, (h, w) = dtype_of(images), size
    x, y = (first(n) + torch.arange(n, dtype=dtype, device=images.device) for n in (w, h))
    return torch.stack([x.expand(h, w), y[:, None].expand(h, w), torch.ones_like(x).expand(h, w)], -1).reshape(1, -1, 3)


def affine(images, matrix, size):
    """torchvision's _affine_grid (_gen_affine_grid); ``matrix`` counts from the centres."""
    grid = _base_grid(images, size, lambda n: (1 - n) * 0.5)
    return _times(grid, to_device(matrix.reshape(-1, 2, 3), images.device), images.shape[-2:]).reshape(-1, *size, 2)


def perspective(images, coefficients, size):
    """torchvision's _perspective_grid."""
    h, w = size
    base = _base_grid(images, size, lambda n: 0.5)
    theta = to_device(coefficients[:, :6].reshape(-1, 2, 3), images.device)
    last = np.concatenate([coefficients[:, 6:], np.ones((len(coefficients), 1))], 1)
    below = _times(base, to_device(np.repeat(last[:, None], 2, 1), images.device), (2, 2))
    return (_times(base, theta, size) / below - 1).reshape(-1, h, w, 2)


def _times(base, theta, size):
    """base (1, P, 3) times theta (N, 2, 3), in halves of ``size``."""
    theta = theta.to(base.dtype).transpose(1, 2)
    theta = theta / to_device(torch.tensor([0.5 * size[1], 0.5 * size[0]], dtype=base.dtype), base.device)
    return product(base.expand(len(theta), -1, -1), theta)


def identity(images):
    """torchvision's _create_identity_grid."""
    lines = [
        torch.linspace((1 - n) / n, (n - 1) / n, n, dtype=dtype_of(images), device=images.device)
        for n in images.shape[-2:]
    ]
    y, x = torch.meshgrid(*lines, indexing="ij")
    return torch.stack([x, y], -1)[None]


def sample(images, grid, interpolation, fill, like):
    """torchvision's _apply_grid_transform; a channel of ones says where to fill."""
    x = images.to(grid.dtype)
    if fill is not None:
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    x = grid_sample(x, grid, interpolation, "zeros", align_corners=False)
    if fill is not None:
        x, mask = x[:, :-1], x[:, -1:]
        color = to_device(torch.tensor(fill, dtype=x.dtype), x.device)[:, None, None]
        if interpolation == "nearest":
            x = torch.where(mask < 0.5, color, x)
        elif like == "v1":
            x = x * mask + (1 - mask) * color
        else:
            x = (x - color) * mask + color
    return x if images.is_floating_point() else x.round().to(images.dtype)
