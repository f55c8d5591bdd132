"""Steps -> batched torch operations: one function a step, called ``op(images, arrays, **args)``.

``images`` is (N, C, H, W) on any device, uint8 0..255 or floating point; ``arrays`` the step's per-sample arguments as
numpy arrays of N rows. Conversions are torchvision's own kernels, which take batches as they take images.
"""

from __future__ import annotations

import torch
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2


def to_dtype(images, arrays, *, dtype, like):
    if like == "v1":  # ToTensor and ConvertImageDtype divide by 255, v2 multiplies by 1/255
        return v1.convert_image_dtype(images, dtype)
    return v2.to_dtype(images, dtype, scale=like == "v2")


def normalize(images, arrays, *, mean, std):
    return v1.normalize(images, mean, std)


def flip(images, arrays, *, axis):
    return _where(arrays["flag"], images.flip(-1 if axis == "horizontal" else -2), images)


def grayscale(images, arrays, *, formula, channels):
    if formula == "pil":  # Pillow's L24: 16-bit fixed point, rounded
        weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32, device=images.device)[:, None, None]
        gray = ((images * weights).sum(1, keepdim=True, dtype=torch.int32) + 0x8000 >> 16).to(images.dtype)
        gray = gray.expand(-1, channels, -1, -1)
    else:
        gray = v2.rgb_to_grayscale(images, channels)
    return _where(arrays["flag"], gray, images) if "flag" in arrays else gray


def _where(flag, changed, images):
    flag = torch.from_numpy(flag).to(images.device, torch.bool, non_blocking=True)
    return torch.where(flag[:, None, None, None], changed, images)
