"""Draws and kernels of timm's RandAugment and AutoAugment.

In the arrays of a step, ``which`` is an index into OPERATIONS, or -1 for none. ``value`` is the signed number that
timm's function takes. ``choice`` is an index into the interpolations.

On a CPU, timm's own functions process the images in threads, because Pillow is faster than torch at any size. On a GPU,
ops/operations processes the images, unless its results differ from those of the installed timm and Pillow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F1

from ..runtime.device import to_device
from . import operations
from .draws import draws, randint
from .filters import box_blur
from .kernels import each_by_pillow, image_kernel, kernel, rows_of
from .matrices import rotation
from .pixels.lists import in_groups, stack_if_uniform

timm: Any = import_module("timm.data.auto_augment")

OPERATIONS = (
    *("auto_contrast", "equalize", "invert", "posterize", "solarize", "solarize_add", "color", "contrast"),
    *("brightness", "sharpness", "desaturate", "gaussian_blur", "rotate", "shear_x", "shear_y"),
    *("translate_x_abs", "translate_y_abs", "translate_x_rel", "translate_y_rel"),
)
"""Names of functions in timm.data.auto_augment."""
WITHOUT_VALUE = {"auto_contrast", "equalize", "invert"}
UNIFORMS = 6
"""Number of uniform numbers per operation: one for whether it is applied, two for its magnitude, one each for its sign,
its interpolation, and the radius of a blur."""


class Operation(NamedTuple):
    """The settings of timm's AugmentOp."""

    name: str  # key of CONVERSIONS
    prob: float  # probability of applying it
    magnitude: float  # mean magnitude
    deviation: float  # standard deviation of the magnitude; inf means uniform from 0 to ``magnitude``
    bound: float  # maximum magnitude
    reach: float  # for translations: distance at magnitude 10, in pixels or as a fraction of the image; otherwise 0
    choices: int  # number of interpolations to choose from


# ---- from magnitude to value


class Conversion(NamedTuple):
    """The conversion of a magnitude to the value that a function of timm takes."""

    function: str  # name in timm: one of OPERATIONS, or gaussian_blur_rand
    # called as value(magnitude, negative, reach); the first two are arrays. None if the function takes no value
    value: Callable[[np.ndarray, np.ndarray, float], np.ndarray] | None = None
    signed: bool = False  # whether the value has a random sign


def _signed(value, negative):
    return np.where(negative, -value, value)


def _turned(most: float):
    return lambda level, negative, reach: _signed(level / 10.0 * most, negative)


def _translated(level, negative, reach):
    return _signed(level / 10.0 * reach, negative)


def _increasing(level, negative, reach):
    return np.maximum(0.1, 1.0 + _signed(level / 10.0 * 0.9, negative))


def _bits(level, *_):
    return np.trunc(level / 10.0 * 4)


def _threshold(level, *_):
    return np.minimum(256, np.trunc(level / 10.0 * 256))


def _between(low: float, high: float):
    return lambda level, *_: np.clip(low + (high - low) * (level / 10.0), low, high)


CONVERSIONS = {
    "AutoContrast": Conversion("auto_contrast"),
    "Equalize": Conversion("equalize"),
    "Invert": Conversion("invert"),
    "Rotate": Conversion("rotate", _turned(30.0), True),
    "Posterize": Conversion("posterize", _bits),
    "PosterizeIncreasing": Conversion("posterize", lambda *given: 4 - _bits(*given)),
    "PosterizeOriginal": Conversion("posterize", lambda *given: _bits(*given) + 4),
    "Solarize": Conversion("solarize", _threshold),
    "SolarizeIncreasing": Conversion("solarize", lambda *given: 256 - _threshold(*given)),
    "SolarizeAdd": Conversion("solarize_add", lambda level, *_: np.minimum(128, np.trunc(level / 10.0 * 110))),
    "Desaturate": Conversion("desaturate", _between(0.5, 1.0)),
    "GaussianBlur": Conversion("gaussian_blur", _between(0.1, 2.0)),
    "GaussianBlurRand": Conversion("gaussian_blur_rand", _between(0.0, 1.0)),
    "ShearX": Conversion("shear_x", _turned(0.3), True),
    "ShearY": Conversion("shear_y", _turned(0.3), True),
    "TranslateX": Conversion("translate_x_abs", _translated, True),
    "TranslateY": Conversion("translate_y_abs", _translated, True),
    "TranslateXRel": Conversion("translate_x_rel", _translated, True),
    "TranslateYRel": Conversion("translate_y_rel", _translated, True),
}
for _name in ("Color", "Contrast", "Brightness", "Sharpness"):
    CONVERSIONS[_name] = Conversion(_name.lower(), lambda level, *_: level / 10.0 * 1.8 + 0.1)
    CONVERSIONS[f"{_name}Increasing"] = Conversion(_name.lower(), _increasing, True)


def applied(ops: tuple[Operation, ...], chosen: np.ndarray, u: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays for the operation timm_augment, drawn as in AugmentOp.__call__.

    ``chosen`` (N,) are indices into ``ops``, and ``u`` is (N, UNIFORMS). If an operation is not applied, ``which`` is
    -1 and ``flag`` is 0.
    """
    prob, magnitude, deviation, bound, choices = (
        np.array([getattr(op, name) for op in ops])[chosen]
        for name in ("prob", "magnitude", "deviation", "bound", "choices")
    )
    noise = np.cos(u[:, 1] * (2 * math.pi)) * np.sqrt(-2.0 * np.log1p(-u[:, 2]))  # as in random.gauss
    level = np.where(np.isinf(deviation), magnitude * u[:, 1], magnitude)
    spread = (deviation > 0) & np.isfinite(deviation)
    level = np.where(spread, magnitude + noise * np.where(spread, deviation, 0.0), level)
    level, negative = np.maximum(0.0, np.minimum(level, bound)), u[:, 3] > 0.5
    which, value = np.full(chosen.shape, -1, np.int32), np.zeros(chosen.shape)
    flag = (prob >= 1) | (u[:, 0] <= prob)
    for name, reach in dict.fromkeys((op.name, op.reach) for op in ops):
        conversion, alike = CONVERSIONS[name], np.array([(op.name, op.reach) == (name, reach) for op in ops])
        rows = flag & alike[chosen]
        if not rows.any():
            continue
        function = conversion.function
        if conversion.value is not None:
            value[rows] = conversion.value(level[rows], negative[rows], reach)
        if function == "gaussian_blur_rand":  # random.uniform(0.1, 2 * factor)
            function, value[rows] = "gaussian_blur", 0.1 + (2.0 * value[rows] - 0.1) * u[rows, 5]
        which[rows] = OPERATIONS.index(function)
    choice = np.floor(u[:, 4] * choices).astype(np.int32)
    return {"flag": flag.astype(np.int32), "which": which, "value": value, "choice": choice}


# ---- policies


@draws(uniforms=lambda ops, layers, weights, at: layers * (1 + UNIFORMS))
def draw_timm_rand_augment(sizes, u, *, ops, layers, weights, at):
    """Draw operation number ``at`` of RandAugment. If there are weights, a sample gets no operation twice."""
    numbers = u[:, layers + UNIFORMS * at :][:, :UNIFORMS]
    if weights is None:
        return applied(ops, randint(u[:, at], 0, len(ops)), numbers), sizes
    left = np.tile(np.array(weights), (len(sizes), 1))
    for layer in range(at + 1):
        until = np.cumsum(left, 1)
        chosen = (until / until[:, -1:] <= u[:, [layer]]).sum(1)
        left[np.arange(len(sizes)), chosen] = 0
    return applied(ops, chosen, numbers), sizes


@draws(uniforms=lambda policy, at: 1 + UNIFORMS * max(map(len, policy)))
def draw_timm_auto_augment(sizes, u, *, policy, at):
    """Draw operation number ``at`` of the sub-policy that AutoAugment chooses for each sample. If the sub-policy has
    fewer operations, ``which`` is -1 and ``flag`` is 0."""
    row = randint(u[:, 0], 0, len(policy))
    reaching = [number for number, ops in enumerate(policy) if len(ops) > at]
    place = np.full(len(policy), -1)
    place[reaching] = np.arange(len(reaching))
    arrays = applied(
        tuple(policy[number][at] for number in reaching), place[row], u[:, 1 + UNIFORMS * at :][:, :UNIFORMS]
    )
    has = place[row] >= 0
    return arrays | {"flag": arrays["flag"] * has, "which": np.where(has, arrays["which"], -1)}, sizes


# ---- batches

_WHOLE = {"posterize", "solarize", "solarize_add"}


@kernel(in_batches=True)
def timm_augment(images, arrays, *, interpolations, fill):
    if images.is_cuda:
        return augmented(images, arrays, interpolations=interpolations, fill=fill)
    return _by_timm(images, arrays, interpolations=interpolations, fill=fill)


def _by_timm(images, arrays, **how):
    return to_device(stack_if_uniform(each_by_pillow("timm_augment", images.cpu(), arrays, **how)), images.device)


def augmented(images, arrays, *, interpolations, fill):
    """Return the images, each after its drawn operation."""
    which, value = arrays["which"], arrays["value"]
    # timm runs the operations for which kernels return other pixels
    by_timm = ~np.isin(which, [OPERATIONS.index(name) for name in _as_timm()]) & (which >= 0)
    # posterize to 0 bits, which Pillow refuses from version 13 on
    by_timm |= (which == OPERATIONS.index("posterize")) & (value < 1)
    by_kernels = np.where(by_timm, -1, which)
    made = _by_operations(images, arrays | {"which": by_kernels}, interpolations=interpolations, fill=fill)
    if not by_timm.any():
        return made
    rows = np.flatnonzero(by_timm)
    how = {"arrays": rows_of(arrays, rows), "interpolations": interpolations, "fill": fill}
    return in_groups(made, [(rows, functools.partial(_by_timm, **how))])


def _by_operations(images, arrays, *, interpolations, fill):
    which, value = arrays["which"], arrays["value"]
    chosen, numbers = np.zeros(len(images), np.int64), np.zeros((len(images), 6))
    blurred = np.flatnonzero(which == OPERATIONS.index("gaussian_blur"))
    for number in np.unique(which[which >= 0]).tolist():
        name, rows = OPERATIONS[number], which == number
        if name in _MATRICES:
            chosen[rows], numbers[rows] = operations.WARP, _MATRICES[name](value[rows], tuple(images.shape[-2:]))
        elif name in _VALUED:
            operation, to_number = _VALUED[name]
            chosen[rows], numbers[rows, 0] = operations.CODES[operation], to_number(value[rows])
    codes = np.array([operations.interpolation_code(name) for name in interpolations])[arrays["choice"]]
    images = operations.run(images, chosen, numbers, like="pil", interpolations=codes, fill=fill)
    if not len(blurred):
        return images
    return in_groups(images, [(blurred, functools.partial(box_blur, sigmas=value[blurred]))])


# ---- operations on pixel values: (name in ops/operations, conversion of the value to its number)


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
    """Return a function that takes values (N,) and an image size, and returns matrices (N, 6). Each matrix is the
    identity with the value as element ``at``."""

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


@image_kernel("timm_augment")
def timm_augment_image(image, row, *, interpolations, fill):
    if row["which"] < 0:
        return image
    name, value = OPERATIONS[row["which"]], float(row["value"])
    args = () if name in WITHOUT_VALUE else (int(value) if name in _WHOLE else value,)
    mode = InterpolationMode(interpolations[int(row["choice"])])
    resample = Image.Resampling(F1.pil_modes_mapping[mode])
    try:
        return getattr(timm, name)(image, *args, fillcolor=tuple(fill), resample=resample)
    except ValueError as error:
        what = f"timm's {name}({', '.join(map(str, args))}): {error}"
        if name == "posterize":
            what += "; use Pillow before 13, which makes such an image black, or another magnitude"
        raise ValueError(what) from error


# ---- check that the results equal timm's

_TRIED = {"posterize": (1, 3, 8), "solarize": (0, 100, 256), "solarize_add": (0, 60, 128), "rotate": (-17.0, 0.0, 30.0)}
_TRIED |= dict.fromkeys(("gaussian_blur", "desaturate", "translate_x_rel", "translate_y_rel"), (0.1, 0.33, 0.9))
_OTHERS_TRIED = (0.1, 0.95, 1.9)


@functools.cache
def _as_timm() -> frozenset[str]:
    """Return the operations for which kernels and the installed timm return equal pixels on small test images."""
    names = (*_VALUED, "gaussian_blur", *_MATRICES)
    return frozenset(name for name in names if hasattr(timm, name) and _agrees(name))


def _agrees(name: str) -> bool:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 12, 17, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    which, choice = np.full(3, OPERATIONS.index(name)), np.zeros(3, np.int32)
    given = {"which": which, "value": np.array(_TRIED.get(name, _OTHERS_TRIED), float), "choice": choice}
    for interpolation in ("bilinear", "bicubic") if name in _MATRICES else ("bilinear",):
        how = {"interpolations": (interpolation,), "fill": (1, 2, 3)}
        if not torch.equal(_by_operations(images, given, **how), _by_timm(images, given, **how)):
            return False
    return True
