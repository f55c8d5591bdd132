"""AutoAugment and its kin.

This is the one module of the engine that builds torchvision's transforms: of one image, RandAugment's rules are methods
of its own there.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode, autoaugment, v2
from torchvision.transforms import functional as F1

from ...draws.matrices import affine, rotation, rotation_of_tensors
from ..device import to_device
from . import operations
from .images import fill_list
from .registry import image_kernel, kernel


@kernel
def augment(images, arrays, *, names, interpolation, fill, like, version):
    """``_apply_op`` of torchvision.transforms.autoaugment, or v2's ``_apply_image_or_video_transform``.

    ``which`` counts in ``names``, and -1 is nothing. ``version`` says whose magnitudes they are: v2's
    Solarize counts from 0 to 1.
    """
    which, magnitude = arrays["which"], arrays["magnitude"]
    operation, factor, offset = _laws(tuple(names), version == "v2" and not images.is_floating_point())
    chosen, numbers = operations.nothing_for(images)
    chosen[:] = operation[which]
    numbers[:, 0] = magnitude * factor[which] + offset[which]
    size = tuple(images.shape[-2:])
    for row in np.flatnonzero(chosen == operations.WARP).tolist():
        numbers[row] = _matrix(names[which[row]], float(magnitude[row]), size, like, version)
    code = operations.interpolation_code(interpolation)
    return operations.run(images, chosen, numbers, like=like, interpolations=code, fill=fill)


_OPERATIONS = {
    "Brightness": "brightness",
    "Color": "saturation",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
    "Invert": "invert",
    "Identity": "identity",
} | dict.fromkeys(("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"), "warp")
_ENHANCERS = {"Brightness", "Color", "Contrast", "Sharpness"}


@functools.lru_cache(64)
def _laws(names, counts_to_255: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each name, and of -1: its operation; and what its number is, a multiple of the magnitude and an offset."""
    operation = [operations.CODES[_OPERATIONS[name]] for name in names]
    factor = [255.0 if name == "Solarize" and counts_to_255 else 1.0 for name in names]
    offset = [float(name in _ENHANCERS) for name in names]
    return np.array([*operation, 0]), np.array([*factor, 0.0]), np.array([*offset, 0.0])


@functools.lru_cache(4096)  # a policy has few magnitudes
def _matrix(name, magnitude, size, like, version) -> list[float]:
    """From output to input, as torchvision's affine and rotate have it."""
    if name == "Rotate" and like == "pil":
        return rotation(magnitude, size, size)
    if name == "Rotate":
        return rotation_of_tensors(magnitude, size, size, like=like)
    degrees, shift = math.degrees(math.atan(magnitude)), int(magnitude)
    translate, shear, center = {
        "ShearX": ([0, 0], [degrees, 0.0], [0, 0]),
        "ShearY": ([0, 0], [0.0, degrees], [0, 0]),
        "TranslateX": ([shift, 0], [0.0, 0.0], None),
        "TranslateY": ([0, shift], [0.0, 0.0], None),
    }[name]
    return affine(0.0, translate, 1.0, shear, size, center, like, version)


@kernel
def augmix(images, arrays, *, names, interpolation, fill, like):
    """AugMix.forward: chains of operations, mixed with the image in float32. torchvision turns PIL images into tensors
    for it, so ``like`` is "v1" or "v2"."""
    which, magnitude = arrays["which"], arrays["magnitude"]
    n, width, depth = which.shape
    chains = images.repeat(width, 1, 1, 1)  # all first chains, all second ones, ...
    for place in range(depth):
        rows = {"which": which[:, :, place].T.reshape(-1), "magnitude": magnitude[:, :, place].T.reshape(-1)}
        chains = augment(chains, rows, names=names, interpolation=interpolation, fill=fill, like=like, version=like)
    weights = to_device(arrays["mix"].T.copy(), images.device).view(1 + width, n, 1, 1, 1)
    mixed = images * weights[0]
    for weight, chain in zip(weights[1:], chains.split(n), strict=True):
        mixed.add_(chain * weight)
    return mixed.to(images.dtype)


# ---- one image

_V2 = v2.RandAugment()


@image_kernel("augment")
def augment_image(image, row, *, names, interpolation, fill, like, version):
    return _augmented(image, names[row["which"]], float(row["magnitude"]), interpolation, fill, version)


@image_kernel("augmix")
def augmix_image(image, row, *, names, interpolation, fill, like):
    """torchvision.transforms.AugMix.forward, from its chains on: on tensors, in floating point."""
    pixels = F1.pil_to_tensor(image) if isinstance(image, Image.Image) else image
    mixed = float(row["mix"][0]) * pixels[None]
    for weight, chain, magnitudes in zip(row["mix"][1:], row["which"], row["magnitude"], strict=True):
        made = pixels[None]
        for which, magnitude in zip(chain, magnitudes, strict=True):
            if which >= 0:
                made = _augmented(made, names[which], float(magnitude), interpolation, fill, like)
        mixed = mixed + float(weight) * made
    mixed = mixed[0].to(pixels.dtype)
    return F1.to_pil_image(mixed) if isinstance(image, Image.Image) else mixed


def _augmented(image, name: str, magnitude: float, interpolation: str, fill, version: str):
    mode, fill = InterpolationMode(interpolation), fill_list(fill)
    if version == "v2":
        kinds: dict = {type(image): fill}
        return _V2._apply_image_or_video_transform(image, name, magnitude, interpolation=mode, fill=kinds)
    return autoaugment._apply_op(image, name, magnitude, interpolation=mode, fill=fill)
