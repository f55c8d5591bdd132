"""Several images of one: a sample becomes (V, C, H, W), a batch (N, V, C, H, W)."""

from __future__ import annotations

import torch


def five_crop(images, arrays, *, size):
    """torchvision.transforms.functional.five_crop: the corners, top left first, and the centre."""
    (height, width), (h, w) = images.shape[-2:], size
    middle = round((height - h) / 2.0), round((width - w) / 2.0)
    starts = (0, 0), (0, width - w), (height - h, 0), (height - h, width - w), middle
    return torch.stack([images[..., top : top + h, left : left + w] for top, left in starts], 1)


def ten_crop(images, arrays, *, size, axis):
    """torchvision.transforms.functional.ten_crop: those of the image, and those of its mirror image."""
    mirrored = images.flip(-1 if axis == "horizontal" else -2)
    return torch.cat([five_crop(images, arrays, size=size), five_crop(mirrored, arrays, size=size)], 1)
