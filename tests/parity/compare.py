"""Difference between images and torchvision's, in uint8 levels."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import functional


@dataclass(frozen=True)
class Error:
    """Mean and largest absolute difference over all values of all images, in levels of 0..255."""

    mean: float
    max: float

    def within(self, mean: float, max: float) -> bool:
        """Return True if both are within the limits; False if a value is NaN."""
        return self.mean <= mean and self.max <= max

    def __str__(self) -> str:
        return f"mean {self.mean:.2g}, max {self.max:.3g}"


def error(mine, theirs, std=None, levels=None) -> Error:
    """Compare images, or batches of images, one by one.

    Args:
        mine, theirs: Sequences of tensors (C, H, W), or (N, C, H, W).
        std: One number for each channel if the images were normalized; differences are multiplied by it.
        levels: Levels per unit of the values; the default is 1 for integers and 255 for floating point.

    Raises:
        AssertionError: Counts, shapes or dtypes differ, or there is nothing to compare.
    """
    mine, theirs = list(mine), list(theirs)
    assert len(mine) == len(theirs) > 0, f"{len(mine)} images instead of {len(theirs)}"
    total, count, largest = 0.0, 0, 0.0
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert a.shape == b.shape, f"image {i}: shape {tuple(a.shape)} instead of {tuple(b.shape)}"
        assert a.dtype == b.dtype, f"image {i}: {a.dtype} instead of {b.dtype}"
        assert a.numel(), f"image {i} is empty"
        unit = levels or (255 if b.dtype.is_floating_point else 1)
        difference = (a.detach().cpu().double() - b.detach().cpu().double()).abs().numpy() * unit
        if std is not None:
            difference = difference * np.asarray(std)[:, None, None]
        total, count = total + difference.sum(), count + difference.size
        largest = np.maximum(largest, difference.max())  # propagates NaN
    return Error(float(total / count), float(largest))


def assert_same(mine, theirs) -> None:
    """Assert that the images are equal bit for bit."""
    found = error(mine, theirs, levels=1)
    assert found.within(0, 0), str(found)


def as_tensors(images) -> list[torch.Tensor]:
    """Convert the results of a transform or a loader (tensors, PIL images, or tuples of these) to plain CPU tensors."""
    return [_as_tensor(image) for image in images]


def _as_tensor(image) -> torch.Tensor:
    if isinstance(image, (tuple, list)):
        return torch.stack([_as_tensor(view) for view in image])
    if isinstance(image, Image.Image):
        return functional.pil_to_tensor(image)
    return torch.as_tensor(image).detach().cpu().as_subclass(torch.Tensor)
