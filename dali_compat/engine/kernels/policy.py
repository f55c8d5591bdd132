"""AutoAugment and its kin: the samples whose turn it is for an operation go together.

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
from . import color, filters, warp
from .images import fill_list
from .lists import in_groups
from .registry import image_kernel, kernel

_WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


@kernel
def augment(images, arrays, *, names, interpolation, fill, like, version):
    """``_apply_op`` of torchvision.transforms.autoaugment, or v2's ``_apply_image_or_video_transform``.

    ``which`` counts in ``names``, and -1 is nothing. ``version`` says whose magnitudes they are: v2's
    Solarize counts from 0 to 1.
    """
    which, magnitude = arrays["which"], arrays["magnitude"]
    groups = []
    for number, name in enumerate(names):
        rows = np.flatnonzero(which == number)
        if len(rows) and name not in ("Identity", *_WARPS):
            args = {"name": name, "magnitude": magnitude[rows], "like": like, "version": version}
            groups.append((rows, functools.partial(_valued, **args)))
    rows = np.flatnonzero(np.isin(which, [number for number, name in enumerate(names) if name in _WARPS]))
    if len(rows):
        size = images.shape[-2:]
        matrices = [_matrix(names[which[row]], float(magnitude[row]), size, like, version) for row in rows]
        given = {"matrix": np.array(matrices), "size": np.tile(np.array(size, np.int32), (len(rows), 1))}
        args = {"arrays": given, "interpolation": interpolation, "fill": fill, "like": like}
        groups.append((rows, functools.partial(warp.warp_affine, **args)))
    return in_groups(images, groups)


def _valued(images, name, magnitude, like, version):
    """An operation on values."""
    if name in _ENHANCERS:
        return _ENHANCERS[name](images, {"factor": 1.0 + magnitude}, like=like)
    if name == "Posterize":
        return color.posterize(images, {"bits": magnitude.astype(np.int32)}, like=like)
    if name == "Solarize":
        bound = 1 if version != "v2" or images.is_floating_point() else 255
        return color.solarize(images, {"threshold": magnitude * bound}, like=like)
    return _CONSTANT[name](images, {}, like=like)


_ENHANCERS = {
    "Brightness": color.brightness,
    "Color": color.saturation,
    "Contrast": color.contrast,
    "Sharpness": filters.sharpness,
}
_CONSTANT = {"AutoContrast": color.autocontrast, "Equalize": color.equalize, "Invert": color.invert}


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
