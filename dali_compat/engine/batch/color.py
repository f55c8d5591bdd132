"""Colour."""

from __future__ import annotations

import torch
from torchvision.transforms.v2 import functional as v2


def grayscale(images, arrays, *, formula, channels):
    if formula != "pil":
        return v2.rgb_to_grayscale(images, channels)
    # Pillow's L24: 16-bit fixed point, rounded
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32, device=images.device)[:, None, None]
    gray = ((images * weights).sum(1, keepdim=True, dtype=torch.int32) + 0x8000 >> 16).to(images.dtype)
    return gray.expand(-1, channels, -1, -1)
