"""torchvision's own functions on one image, one a step: ``op(image, row, **args)``.

``image`` is a PIL image or a CHW tensor, ``row`` one row of the step's per-sample arguments. This is the one module of
the engine that builds torchvision's transforms: RandAugment's rules are methods of its own there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, autoaugment, v2
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2


def on_tensor(op: str, image: torch.Tensor, row: dict, *, like: str, **args) -> torch.Tensor:
    """A step on one image (C, H, W) of a batch."""
    given = F1.to_pil_image(image.cpu()) if like == "pil" else image
    made = function_of(op)(given, row, like=like, **args)
    return F1.pil_to_tensor(made).to(image.device) if like == "pil" else made


def function_of(op: str) -> Callable:
    """The function that does an op.

    Raises:
        KeyError: there is none.
    """
    return globals()[op]


def _of(like: str):
    return F2 if like == "v2" else F1


def _ints(row) -> list[int]:
    return [int(value) for value in row]


def _fill(fill):
    return None if fill is None else list(fill)


# ---- geometry


def crop(image, row, *, inside):
    return F1.crop(image, *_ints(row["start"]), *_ints(row["shape"]))


def pad(image, row, *, mode, fill):
    (top, left), (height, width) = _ints(-row["start"]), _ints(row["shape"])
    _, h, w = F1.get_dimensions(image)
    padding = [left, top, width - w - left, height - h - top]
    return F2.pad(image, padding, fill=list(fill) if mode == "constant" else 0, padding_mode=mode)


def resize(image, row, *, interpolation, like, antialias):
    return _of(like).resize(image, _ints(row["size"]), InterpolationMode(interpolation), antialias=antialias)


def five_crop(image, row, *, size):
    return F1.five_crop(image, list(size))


def ten_crop(image, row, *, size, axis):
    return F1.ten_crop(image, list(size), vertical_flip=axis == "vertical")


def flip(image, row, *, axis):
    return F1.hflip(image) if axis == "horizontal" else F1.vflip(image)


def rotate(image, row, *, interpolation, expand, center, fill, like):
    options = {"expand": expand, "center": center, "fill": _fill(fill)}
    return _of(like).rotate(image, float(row["angle"]), InterpolationMode(interpolation), **options)


def affine(image, row, *, interpolation, center, fill, like, version):
    return _of(version).affine(
        image,
        float(row["angle"]),
        _ints(row["translate"]),
        float(row["scale"]),
        [float(s) for s in row["shear"]],
        InterpolationMode(interpolation),
        fill=_fill(fill),
        center=center,
    )


def perspective(image, row, *, interpolation, fill, like):
    _, height, width = F1.get_dimensions(image)
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    endpoints = [_ints(point) for point in row["endpoints"]]
    return _of(like).perspective(image, corners, endpoints, InterpolationMode(interpolation), _fill(fill))


# ---- colour


def grayscale(image, row, *, formula, channels):
    return F2.rgb_to_grayscale(image, channels)


def brightness(image, row, *, like):
    return _of(like).adjust_brightness(image, float(row["factor"]))


def contrast(image, row, *, like):
    return _of(like).adjust_contrast(image, float(row["factor"]))


def saturation(image, row, *, like):
    return _of(like).adjust_saturation(image, float(row["factor"]))


def hue(image, row, *, like):
    return _of(like).adjust_hue(image, float(row["factor"]))


def sharpness(image, row, *, like):
    return _of(like).adjust_sharpness(image, float(row["factor"]))


def posterize(image, row, *, like):
    return _of(like).posterize(image, int(row["bits"]))


def solarize(image, row, *, like):
    return _of(like).solarize(image, float(row["threshold"]))


def invert(image, row, *, like):
    return _of(like).invert(image)


def autocontrast(image, row, *, like):
    return _of(like).autocontrast(image)


def equalize(image, row, *, like):
    return _of(like).equalize(image)


_JITTER = (("brightness", brightness), ("contrast", contrast), ("saturation", saturation), ("hue", hue))


def color_jitter(image, row, *, like):
    for i in row["order"]:
        name, function = _JITTER[i]
        if name in row:
            image = function(image, {"factor": row[name]}, like=like)
    return image


def photometric_distort(image, row, *, like):
    steps = ("brightness", brightness), ("contrast_before", contrast), ("saturation", saturation), ("hue", hue)
    for name, function in (*steps, ("contrast_after", contrast)):
        if not np.isnan(row[name]):
            image = function(image, {"factor": row[name]}, like=like)
    return image if row["order"][0] < 0 else permute_channels(image, row)


def repeat_channels(image, row):
    return F2.grayscale_to_rgb(image)


def permute_channels(image, row):
    return F2.permute_channels(image, _ints(row["order"]))


def gaussian_blur(image, row, *, kernel_size, like):
    return _of(like).gaussian_blur(image, list(kernel_size), [float(s) for s in row["sigma"]])


# ---- policies

_V2 = v2.RandAugment()


def _augmented(image, name: str, magnitude: float, interpolation: str, fill, version: str):
    mode, fill = InterpolationMode(interpolation), _fill(fill)
    if version == "v2":
        kinds: dict[type | str, Any] = {type(image): fill}
        return _V2._apply_image_or_video_transform(image, name, magnitude, interpolation=mode, fill=kinds)
    return autoaugment._apply_op(image, name, magnitude, interpolation=mode, fill=fill)


def augment(image, row, *, names, interpolation, fill, like, version):
    return _augmented(image, names[row["which"]], float(row["magnitude"]), interpolation, fill, version)


def augmix(image, row, *, names, interpolation, fill, like):
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


# ---- conversions


def pil_to_tensor(image, row):
    return F1.pil_to_tensor(image)


def tensor_to_pil(image, row):
    return F1.to_pil_image(image)


def to_dtype(image, row, *, dtype, like):
    if like == "v1":
        return F1.convert_image_dtype(image, dtype)
    return F2.to_dtype(image, dtype, scale=like == "v2")


def normalize(image, row, *, mean, std):
    return F1.normalize(image, mean, std)


def jpeg(image, row, *, like):
    return F2.jpeg(image, int(row["quality"]))
