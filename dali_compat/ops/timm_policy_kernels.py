"""timm's RandAugment and AutoAugment.

On a CPU timm's own functions do them, image by image, in threads: Pillow takes less time than torch does, whatever the
size. On a GPU operations.py does them. An operation that would give something else there than timm's function, of
whichever version of timm and Pillow, is left to that function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F1

from ..runtime.device import to_device
from . import operations
from .filters import box_blur
from .kernels import image_kernel, kernel
from .matrices import rotation
from .pixels.lists import each, in_groups, uniform
from .timm_policy_draws import OPERATIONS, WITHOUT_VALUE

_WHOLE = {"posterize", "solarize", "solarize_add"}


@kernel
def timm_augment(images, arrays, *, interpolations, fill):
    """AugmentOp.__call__ of ``value``; ``which`` counts in OPERATIONS, ``choice`` in ``interpolations``."""
    if images.is_cuda:
        return augmented(images, arrays, interpolations=interpolations, fill=fill)
    return _each(timm_augment_image, images, arrays, interpolations=interpolations, fill=fill)


# ---- batches


def augmented(images, arrays, *, interpolations, fill):
    """timm_augment() on any device; ``which`` -1 is nothing."""
    which, value = arrays["which"], arrays["value"]
    alone = ~np.isin(which, [OPERATIONS.index(name) for name in _as_timm()]) & (which >= 0)
    alone |= (which == OPERATIONS.index("posterize")) & (value < 1)  # to no bits, which Pillow refuses from 13 on
    others = np.where(alone, -1, which)
    made = _by_operations(images, arrays | {"which": others}, interpolations=interpolations, fill=fill)
    if not alone.any():
        return made
    rows = np.flatnonzero(alone)
    some = {name: arrays[name][rows] for name in ("which", "value", "choice")}
    how = {"arrays": some, "interpolations": interpolations, "fill": fill}
    return in_groups(made, [(rows, functools.partial(_each, timm_augment_image, **how))])


def _by_operations(images, arrays, *, interpolations, fill):
    which, value = arrays["which"], arrays["value"]
    chosen, numbers = operations.nothing_for(images)
    blurred = np.flatnonzero(which == OPERATIONS.index("gaussian_blur"))
    for number in np.unique(which[which >= 0]).tolist():
        name, rows = OPERATIONS[number], which == number
        if name in _MATRICES:
            chosen[rows], numbers[rows] = operations.WARP, _MATRICES[name](value[rows], tuple(images.shape[-2:]))
        elif name in _VALUED:
            operation, of_value = _VALUED[name]
            chosen[rows], numbers[rows, 0] = operations.CODES[operation], of_value(value[rows])
    of_each = np.array([operations.interpolation_code(name) for name in interpolations])[arrays["choice"]]
    images = operations.run(images, chosen, numbers, like="pil", interpolations=of_each, fill=fill)
    if not len(blurred):
        return images
    return in_groups(images, [(blurred, functools.partial(box_blur, sigmas=value[blurred]))])


# ---- operations on values: whose they are, and the number that they take


_VALUED: dict[str, tuple[str, Callable]] = {
    "auto_contrast": ("autocontrast", np.positive),
    "color": ("saturation", np.positive),
    "desaturate": ("saturation", lambda value: np.clip(1.0 - value, 0.0, 1.0)),
    "posterize": ("posterize", lambda value: np.minimum(value, 8)),
}
for _name in ("equalize", "invert", "solarize", "solarize_add", "contrast", "brightness", "sharpness"):
    _VALUED[_name] = _name, np.positive


# ---- warps


def _matrix(at: int):
    """The identity, from output to input, with a value in one place."""

    def made(value, size):
        matrix = np.tile([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], (len(value), 1))
        matrix[:, at] = value
        return matrix

    return made


def _rotations(value, size):
    return np.array([rotation(degrees, size)[1] for degrees in value.tolist()])


_MATRICES = {
    "rotate": _rotations,
    "shear_x": _matrix(1),
    "shear_y": _matrix(3),
    "translate_x_abs": _matrix(2),
    "translate_y_abs": _matrix(5),
    "translate_x_rel": lambda value, size: _matrix(2)(value * size[1], size),
    "translate_y_rel": lambda value, size: _matrix(5)(value * size[0], size),
}


# ---- one image


def by_timm(image: Image.Image, name: str, value: float, interpolation: str, fill) -> Image.Image:
    """timm's own function of that name.

    Raises:
        ValueError: Pillow refuses it, as it would refuse timm.
    """
    function: Any = getattr(import_module("timm.data.auto_augment"), name)
    args = () if name in WITHOUT_VALUE else (int(value) if name in _WHOLE else value,)
    resample = Image.Resampling(F1.pil_modes_mapping[InterpolationMode(interpolation)])
    try:
        return function(image, *args, fillcolor=tuple(fill), resample=resample)
    except ValueError as error:
        what = f"timm's {name}({', '.join(map(str, args))}): {error}"
        if name == "posterize":
            what += "; take Pillow before 13, which makes such an image black, or another magnitude"
        raise ValueError(what) from error


def _each(function, images, arrays, **how):
    """An image kernel on each image of a batch."""

    def made(image, *row):
        values = dict(zip(arrays, row, strict=True))
        return F1.pil_to_tensor(function(F1.to_pil_image(image), values, **how))

    return to_device(uniform(each(made, images.cpu(), *arrays.values())), images.device)


@image_kernel("timm_augment")
def timm_augment_image(image, row, *, interpolations, fill):
    if row["which"] < 0:
        return image
    return by_timm(image, OPERATIONS[row["which"]], float(row["value"]), interpolations[int(row["choice"])], fill)


# ---- whether they are timm's

_TRIED = {"posterize": (1, 3, 8), "solarize": (0, 100, 256), "solarize_add": (0, 60, 128), "rotate": (-17.0, 0.0, 30.0)}
_TRIED |= dict.fromkeys(("gaussian_blur", "desaturate", "translate_x_rel", "translate_y_rel"), (0.1, 0.33, 0.9))
_OTHERS_TRIED = (0.1, 0.95, 1.9)


@functools.cache
def _as_timm() -> frozenset[str]:
    """The operations of this timm, and this Pillow, that kernels do alike: each is tried on a few pixels."""
    names = [
        name
        for name in (*_VALUED, "gaussian_blur", *_MATRICES)
        if hasattr(import_module("timm.data.auto_augment"), name)
    ]
    return frozenset(name for name in names if _agrees(name))


def _agrees(name: str) -> bool:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 12, 17, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    which, choice = np.full(3, OPERATIONS.index(name)), np.zeros(3, np.int32)
    given = {"which": which, "value": np.array(_TRIED.get(name, _OTHERS_TRIED), float), "choice": choice}
    for interpolation in ("bilinear", "bicubic") if name in _MATRICES else ("bilinear",):
        how = {"interpolations": (interpolation,), "fill": (1, 2, 3)}
        if not torch.equal(_by_operations(images, given, **how), _each(timm_augment_image, images, given, **how)):
            return False
    return True
