"""How far images are from those that torchvision gives, in uint8 levels."""

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
        """False, too, where a value is not a number."""
        return self.mean <= mean and self.max <= max

    def __str__(self) -> str:
        return f"mean {self.mean:.2g}, max {self.max:.3g}"


def error(mine, theirs, std=None, levels=None) -> Error:
    """Compare images (or batches of them), one by one.

    Args:
        mine, theirs: sequences of tensors (C, H, W), or (N, C, H, W).
        std: one number a channel where images were normalised; multiplying by it undoes that for differences.
        levels: what one unit of the values is in levels; None is 1 of integers and 255 of floating point.

    Raises:
        AssertionError: counts, shapes or dtypes differ, or there is nothing to compare.
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
        largest = np.maximum(largest, difference.max())  # which keeps a NaN
    return Error(float(total / count), float(largest))


def assert_same(mine, theirs) -> None:
    """Bit for bit."""
    found = error(mine, theirs, levels=1)
    assert found.within(0, 0), str(found)


def as_tensors(images) -> list[torch.Tensor]:
    """Plain tensors, on the CPU, of what a transform or a loader gives: tensors, PIL images, or tuples of either."""
    return [_as_tensor(image) for image in images]


def _as_tensor(image) -> torch.Tensor:
    if isinstance(image, (tuple, list)):
        return torch.stack([_as_tensor(view) for view in image])
    if isinstance(image, Image.Image):
        return functional.pil_to_tensor(image)
    return torch.as_tensor(image).detach().cpu().as_subclass(torch.Tensor)
