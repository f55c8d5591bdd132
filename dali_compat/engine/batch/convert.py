"""Conversions are torchvision's own kernels, which take batches as they take images."""

from __future__ import annotations

from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2


def to_dtype(images, arrays, *, dtype, like):
    if like == "v1":  # ToTensor and ConvertImageDtype divide by 255, v2 multiplies by 1/255
        return v1.convert_image_dtype(images, dtype)
    return v2.to_dtype(images, dtype, scale=like == "v2")


def normalize(images, arrays, *, mean, std):
    return v1.normalize(images, mean, std)
