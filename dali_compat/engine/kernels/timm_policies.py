"""timm's RandAugment, AutoAugment and AugMixAugment: the samples whose turn it is for an operation go together.

An operation whose kernel gives something else than timm's own function, of whichever version of timm and Pillow, is
left to that function, image by image.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as v1

from ...draws.matrices import rotation
from ...draws.timm_policies import OPERATIONS, WITHOUT_VALUE
from . import color, filters, warp
from .blur import box_blur, pillow_blur
from .lists import each, selected, uniform, with_rows
from .registry import image_kernel, kernel

_WHOLE = {"posterize", "solarize", "solarize_add"}


@kernel
def timm_augment(images, arrays, *, interpolations, fill):
    """AugmentOp.__call__ of ``value``; ``which`` counts in OPERATIONS, -1 is nothing; ``choice`` in
    ``interpolations``."""
    which, value, choice = arrays["which"], arrays["value"], arrays["choice"]
    ours, made = _as_timm(), []
    for number in np.unique(which[which >= 0]).tolist():
        name, rows = OPERATIONS[number], np.flatnonzero(which == number)
        alone = _by_timm_alone(name, value[rows]) if name in ours else np.ones(len(rows), bool)
        if alone.any():
            some = rows[alone]
            made.append((some, _each(name, selected(images, some), value[some], choice[some], interpolations, fill)))
        if name in _VALUED and not alone.all():
            rows = rows[~alone]
            made.append((rows, _VALUED[name](selected(images, rows), value[rows])))
    warps = [number for number, name in enumerate(OPERATIONS) if name in _MATRICES and name in ours]
    for number, interpolation in enumerate(interpolations):
        rows = np.flatnonzero(np.isin(which, warps) & (choice == number))
        if len(rows):
            made.append((rows, _warped(selected(images, rows), which[rows], value[rows], interpolation, fill)))
    return with_rows(images, made)


def _by_timm_alone(name, value):
    """What Pillow refuses from 13 on: to keep no bits."""
    return value < 1 if name == "posterize" else np.zeros(len(value), bool)


@kernel
def timm_augmix(images, arrays, *, interpolations, fill, blended):
    """AugMixAugment.__call__: chains of operations, mixed in float32 and laid over the image, or laid over it one by
    one."""
    n, width, depth = arrays["which"].shape
    chains = images.repeat(width, 1, 1, 1)  # all first chains, all second ones, ...
    for place in range(depth):
        rows = {name: arrays[name][:, :, place].T.reshape(-1) for name in ("which", "value", "choice")}
        chains = timm_augment(chains, rows, interpolations=interpolations, fill=fill)
    made = images
    if blended:
        for weight, chain in zip(arrays["mix"].T, chains.split(n), strict=True):
            made = _blend(made, chain, weight)
        return made
    mixed = torch.zeros_like(images, dtype=torch.float32)
    for weight, chain in zip(arrays["mix"].T, chains.split(n), strict=True):
        mixed.add_(chain * color.to(images, weight))
    return _blend(images, mixed.clamp_(0, 255).to(torch.uint8), arrays["m"])


def _blend(images, others, weights):
    """Image.blend(image, other, weight) of each."""
    return color.blend(others, images.to(torch.float32), weights, "pil")


# ---- operations on values


def _desaturate(images, value):
    return color.saturation(images, {"factor": np.clip(1.0 - value, 0.0, 1.0)}, like="pil")


def _posterize(images, value):
    return color.posterize(images, {"bits": np.minimum(value, 8).astype(np.int32)}, like="pil")


def _solarize_add(images, value):
    """``value`` is not above 128."""
    return (images < 128).mul(color.to(images, value, np.uint8)).add_(images)


def _of_factor(function):
    return lambda images, value: function(images, {"factor": value}, like="pil")


def _of_nothing(function):
    return lambda images, value: function(images, {}, like="pil")


_VALUED = {
    "auto_contrast": _of_nothing(color.autocontrast),
    "equalize": _of_nothing(color.equalize),
    "invert": _of_nothing(color.invert),
    "posterize": _posterize,
    "solarize": lambda images, value: color.solarize(images, {"threshold": value}, like="pil"),
    "solarize_add": _solarize_add,
    "color": _of_factor(color.saturation),
    "contrast": _of_factor(color.contrast),
    "brightness": _of_factor(color.brightness),
    "sharpness": _of_factor(filters.sharpness),
    "desaturate": _desaturate,
    "gaussian_blur": pillow_blur,
}


# ---- warps


def _matrix(at: int):
    """The identity, from output to input, with a value in one place."""

    def made(value, size):
        matrix = np.tile([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], (len(value), 1))
        matrix[:, at] = value
        return matrix

    return made


def _rotations(value, size):
    return np.array([rotation(degrees, size, size) for degrees in value.tolist()])


_MATRICES = {
    "rotate": _rotations,
    "shear_x": _matrix(1),
    "shear_y": _matrix(3),
    "translate_x_abs": _matrix(2),
    "translate_y_abs": _matrix(5),
    "translate_x_rel": lambda value, size: _matrix(2)(value * size[1], size),
    "translate_y_rel": lambda value, size: _matrix(5)(value * size[0], size),
}


def _warped(images, which, value, interpolation, fill):
    size = tuple(images.shape[-2:])
    matrix = np.empty((len(images), 6))
    for number in np.unique(which).tolist():
        rows = which == number
        matrix[rows] = _MATRICES[OPERATIONS[number]](value[rows], size)
    given = {"matrix": matrix, "size": np.tile(np.array(size, np.int32), (len(images), 1))}
    return warp.warp_affine(images, given, interpolation=interpolation, fill=fill)


# ---- one image


def by_timm(image: Image.Image, name: str, value: float, interpolation: str, fill) -> Image.Image:
    """timm's own function of that name.

    Raises:
        ValueError: Pillow refuses it, as it would refuse timm.
    """
    function: Any = getattr(import_module("timm.data.auto_augment"), name)
    args = () if name in WITHOUT_VALUE else (int(value) if name in _WHOLE else value,)
    resample = Image.Resampling(v1.pil_modes_mapping[InterpolationMode(interpolation)])
    try:
        return function(image, *args, fillcolor=tuple(fill), resample=resample)
    except ValueError as error:
        what = f"timm's {name}({', '.join(map(str, args))}): {error}"
        if name == "posterize":
            what += "; take Pillow before 13, which makes such an image black, or another magnitude"
        raise ValueError(what) from error


def _each(name, images, value, choice, interpolations, fill):
    def made(image, value, choice):
        return v1.pil_to_tensor(by_timm(v1.to_pil_image(image), name, value, interpolations[choice], fill))

    return uniform(each(made, images.cpu(), value.tolist(), choice.tolist())).to(images.device)


@image_kernel("timm_augment")
def timm_augment_image(image, row, *, interpolations, fill):
    return _augmented(image, row["which"], row["value"], row["choice"], interpolations, fill)


@image_kernel("timm_augmix")
def timm_augmix_image(image, row, *, interpolations, fill, blended):
    """AugMixAugment.__call__, from its chains on."""
    made, mixed = image, np.zeros_like(image, dtype=np.float32)
    for weight, *chain in zip(row["mix"], row["which"], row["value"], row["choice"], strict=True):
        other = image
        for which, value, choice in zip(*chain, strict=True):
            other = _augmented(other, which, value, choice, interpolations, fill)
        if blended:
            made = Image.blend(made, other, weight)
        else:
            mixed += weight * np.asarray(other, dtype=np.float32)
    if blended:
        return made
    return Image.blend(image, Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8)), row["m"])


def _augmented(image, which, value, choice, interpolations, fill):
    if which < 0:
        return image
    return by_timm(image, OPERATIONS[which], float(value), interpolations[int(choice)], fill)


# ---- whether they are timm's

_TRIED = {"posterize": (1, 3, 8), "solarize": (0, 100, 256), "solarize_add": (0, 60, 128), "rotate": (-17.0, 0.0, 30.0)}
_TRIED |= dict.fromkeys(("gaussian_blur", "desaturate", "translate_x_rel", "translate_y_rel"), (0.1, 0.33, 0.9))
_OTHERS_TRIED = (0.1, 0.95, 1.9)


@functools.cache
def _as_timm() -> frozenset[str]:
    """The operations of this timm, and this Pillow, that kernels do alike: each is tried on a few pixels."""
    names = [name for name in (*_VALUED, *_MATRICES) if hasattr(import_module("timm.data.auto_augment"), name)]
    return frozenset(name for name in names if _agrees(name))


def _agrees(name: str) -> bool:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 12, 17, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    value, fill = np.array(_TRIED.get(name, _OTHERS_TRIED), float), (1, 2, 3)
    which, choice = np.full(3, OPERATIONS.index(name)), np.zeros(3, np.int32)
    for interpolation in ("bilinear", "bicubic") if name in _MATRICES else ("bilinear",):
        if name in _MATRICES:
            ours = _warped(images, which, value, interpolation, fill)
        else:
            ours = (_VALUED | {"gaussian_blur": box_blur})[name](images, value)
        if not torch.equal(ours, _each(name, images, value, choice, (interpolation,), fill)):
            return False
    return True
