"""Operations on the values of pixels, filters included, and the batch steps that give the same result."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from PIL import Image, ImageFilter
from torchvision import tv_tensors

from ..ops.policy import AUGMENTATIONS
from .geometry import WINDOW, warp, whole
from .nodes import HERE
from .operations import OPERATIONS, Outcome, State, UnknownOperation, flagged, is_plain, operation, step

_JITTER = "brightness", "contrast", "saturation", "hue"  # numbered as in ops/jitter.py
_OF_JITTER = ("order", (4,), "int32"), *((name, (), "float64") for name in _JITTER)


def _jittered(op: str) -> Callable[..., Outcome]:
    """Return the operation that adjusts ``op``.

    All four use the same kind of step, so that their order does not change the key of a plan. canonical() in plans.py
    joins consecutive ones.
    """

    def adjust(s: State, like: str, *factors, **named) -> Outcome:
        (factor,) = map(float, (*factors, *named.values()))
        if not (-0.5 <= factor <= 0.5 if op == "hue" else factor >= 0):
            raise UnknownOperation
        if op == "hue" and s.kind == "pil" and s.mode == "L":
            return Outcome(s, (), same=True)
        if op == "contrast" and like == "v2" and _depends_on_memory(s):
            return Outcome(s)
        return _changed(s, like, "color_jitter", (_JITTER.index(op), -1, -1, -1, *(factor,) * 4), _OF_JITTER)

    return adjust


for _op in _JITTER:
    operation(f"adjust_{_op}")(_jittered(_op))


def _changed(s: State, like: str, op: str, numbers=(), layout=(), fits: bool = True) -> Outcome:
    """Return the outcome of an operation on values.

    It has a step only for bytes and for floating point images that are not normalized.
    """
    _refuse_palettes(s)
    fits = fits and is_plain(s) and not s.normalized and (s.dtype == torch.uint8 or s.dtype.is_floating_point)
    return Outcome(s, flagged(op, s, numbers, layout, like=like) if fits else None)


def _depends_on_memory(s: State) -> bool:
    """Return True if the last bit has to be torch's, which depends on a value's place in memory and on threads."""
    return HERE.exact and s.dtype.is_floating_point


def _refuse_palettes(s: State) -> None:
    """Refuse palettes, for which Pillow changes the mode or raises an error."""
    if s.kind == "pil" and s.mode not in ("RGB", "L"):
        raise UnknownOperation


@operation("adjust_sharpness")
def sharpness(s: State, like: str, sharpness_factor) -> Outcome:
    if sharpness_factor < 0:
        raise UnknownOperation
    return _changed(s, like, "sharpness", (sharpness_factor,), (("factor", (), "float64"),))


@operation("adjust_gamma")
def gamma(s: State, like: str, gamma, gain=1) -> Outcome:
    if gamma < 0:
        raise UnknownOperation
    layout = ("gamma", (), "float64"), ("gain", (), "float64")
    return _changed(s, like, "gamma", (gamma, gain), layout, not _depends_on_memory(s))


@operation("posterize", "ImageOps.posterize")
def posterize(s: State, like: str, bits) -> Outcome:
    (bits,) = whole(bits)
    if like == "v2" and bits == 8 and s.dtype == torch.uint8:
        return Outcome(s, (), same=True)
    fits = 1 <= bits <= 8 and s.dtype == torch.uint8
    return _changed(s, like, "posterize", (bits,), (("bits", (), "int32"),), fits)


@operation("solarize", "ImageOps.solarize")
def solarize(s: State, like: str, threshold=128) -> Outcome:
    fits = s.kind == "pil" or 0 <= threshold <= (255 if s.dtype == torch.uint8 else 1)
    return _changed(s, like, "solarize", (threshold,), (("threshold", (), "float64"),), fits)


for _op in ("autocontrast", "equalize", "invert"):
    operation(_op, f"ImageOps.{_op}")(
        lambda s, like, *, op=_op: _changed(s, like, op, fits=op != "equalize" or s.dtype == torch.uint8)
    )


@operation("permute_channels")
def permute_channels(s: State, like: str, permutation) -> Outcome:
    _refuse_palettes(s)
    order = whole(*(permutation.tolist() if isinstance(permutation, torch.Tensor) else permutation))
    if sorted(order) != list(range(s.channels)):
        raise UnknownOperation
    fits = is_plain(s) and s.channels == 3
    return Outcome(s, flagged("permute_channels", s, order, (("order", (3,), "int32"),)) if fits else None)


@operation("gaussian_blur")
def gaussian_blur(s: State, like: str, kernel_size, sigma=None, version: str = "v1") -> Outcome:
    _refuse_palettes(s)
    sides = whole(*((kernel_size,) * 2 if isinstance(kernel_size, Integral) else kernel_size))
    if sigma is None:
        sigma = [side * 0.15 + 0.35 for side in sides]
    sigmas = [sigma] if isinstance(sigma, (int, float)) else list(sigma)
    sigmas = sigmas * 2 if len(sigmas) == 1 else sigmas
    if len(sides) != 2 or len(sigmas) != 2 or min(sides) < 1 or not sides[0] % 2 == sides[1] % 2 == 1:
        raise UnknownOperation
    fits = is_plain(s) and (s.dtype == torch.uint8 or s.dtype.is_floating_point)
    if not fits or min(sigmas) <= 0 or sides[0] // 2 >= s.size[1] or sides[1] // 2 >= s.size[0]:
        return Outcome(s)
    layout = (("sigma", (2,), "float64"),)
    return Outcome(s, flagged("gaussian_blur", s, sigmas, layout, kernel_size=sides, like=version))


def pillow_filter(s: State, like: str, filter: Any) -> Outcome:
    """Return the outcome of PIL.Image.Image.filter() with a GaussianBlur."""
    _refuse_palettes(s)
    if type(filter) is not ImageFilter.GaussianBlur or not isinstance(filter.radius, (int, float)) or filter.radius < 0:
        raise UnknownOperation
    return Outcome(s, flagged("pillow_blur", s, (filter.radius,), (("radius", (), "float64"),)))


@operation("augment")
def augment(s: State, like: str, op_name: str, magnitude, interpolation, fill, version: str = "v1") -> Outcome:
    """Return the outcome of one operation of AutoAugment or another policy."""
    if op_name == "Identity":
        return Outcome(s, (), same=True)
    _refuse_palettes(s)
    how = warp(s, like, interpolation, _fill_of(s, fill) if isinstance(fill, dict) else fill)
    transposes = like == "v2" and op_name == "Rotate" and magnitude % 90 == 0
    if how is None or s.dtype != torch.uint8 or s.channels != 3 or transposes:
        return Outcome(s)
    layout = ("which", (), "int32"), ("magnitude", (), "float64")
    numbers = AUGMENTATIONS.index(op_name), float(magnitude)
    return Outcome(s, flagged("augment", s, numbers, layout, version=version, **how))


def _fill_of(s: State, fills: dict[Any, Any]) -> Any:
    """Return the fill that v2 uses for the exact class of an image."""
    if any(isinstance(kind, type) and issubclass(kind, Image.Image) for kind in fills):
        raise UnknownOperation
    kind = tv_tensors.Image if s.kind == "Image" else torch.Tensor
    return fills[kind] if s.kind != "pil" and kind in fills else fills["others"]


@operation("jpeg")
def jpeg(s: State, like: str, quality) -> Outcome:
    _refuse_palettes(s)
    fits = is_plain(s) and s.dtype == torch.uint8 and 1 <= quality <= 100
    layout = (("quality", (), "int32"),)
    return Outcome(s, (step("jpeg", s, whole(quality), layout, like=like),) if fits else None)


@operation("erase")
def erase(s: State, like: str, i, j, h, w, v, inplace=False) -> Outcome:
    _refuse_palettes(s)
    i, j, h, w = whole(i, j, h, w)
    if inplace or not isinstance(v, torch.Tensor):
        raise UnknownOperation
    values, (height, width) = v.flatten().tolist(), s.size
    fits = is_plain(s) and s.kind != "pil" and tuple(v.shape) in ((1, 1, 1), (s.channels, 1, 1))
    if not fits or min(i, j, h, w) < 0 or i + h > height or j + w > width or v.dtype != torch.float32:
        return Outcome(s)
    value = tuple(values * (s.channels // len(values)))
    return Outcome(s, flagged("erase", s, (i, j, h, w), WINDOW, value=value))


@operation("to_grayscale", "rgb_to_grayscale")
def grayscale(s: State, like: str, num_output_channels=1) -> Outcome:
    if num_output_channels not in (1, 3) or not is_plain(s):
        raise UnknownOperation
    after = s._replace(shape=(num_output_channels, *s.shape[1:]), mode="L" if num_output_channels == 1 else "RGB")
    if s.channels == 1 or s.normalized:
        if s.kind != "pil":
            raise UnknownOperation
        alike = () if num_output_channels == 1 else OPERATIONS["grayscale_to_rgb"](s, like).steps
        return Outcome(after, alike if s.mode == "L" else None)
    args = {"like": like, "dtype": s.dtype, "channels": num_output_channels}
    if num_output_channels == 3:
        return Outcome(after, flagged("grayscale", after, **args))
    return Outcome(after, (step("grayscale", after, **args),))
