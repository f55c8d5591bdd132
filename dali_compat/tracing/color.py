"""Functions that compute the Outcome of operations on pixel values: colors, filters, erasing and augmentation
policies."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from PIL import Image, ImageFilter
from torchvision import tv_tensors

from ..ops.policy import AUGMENTATIONS
from .geometry import WINDOW, integers, warp_args
from .nodes import SWITCHES
from .operations import (
    BY_ARGUMENTS,
    LOST,
    OUTCOMES,
    Outcome,
    State,
    UnknownOutcome,
    flagged,
    is_supported,
    operation,
    step,
)

_JITTER = "brightness", "contrast", "saturation", "hue"  # in the order of ops/jitter.py
_JITTER_LAYOUT = ("order", (4,), "int32"), *((name, (), "float64") for name in _JITTER)


def _adjustment(op: str) -> Callable[..., Outcome]:
    """Return the function that computes the outcome of the color adjustment ``op``."""

    def adjust(s: State, backend: str, *factors, **named) -> Outcome:
        (factor,) = map(float, (*factors, *named.values()))
        if named.keys() - {f"{op}_factor"}:
            raise UnknownOutcome
        if not (-0.5 <= factor <= 0.5 if op == "hue" else factor >= 0):
            raise UnknownOutcome
        if op == "hue" and s.kind == "pil" and s.mode == "L":
            return Outcome(s, (), is_same_object=True)
        if op == "contrast" and backend == "v2" and _is_inexact(s):
            return Outcome(s)
        # one kind of step for all adjustments: images adjusted in different orders can share a plan
        numbers = _JITTER.index(op), -1, -1, -1, *(factor,) * 4
        return _value_outcome(s, backend, "color_jitter", numbers, _JITTER_LAYOUT)

    return adjust


for _op in _JITTER:
    _traits = {"info": LOST, "on_pil_images": True} if _op == "hue" else {}
    operation(f"adjust_{_op}", **_traits)(_adjustment(_op))


def _value_outcome(s: State, backend: str, op: str, numbers=(), layout=(), has_kernel: bool = True) -> Outcome:
    """Return the outcome of an operation that changes only pixel values. It has no steps if kernels do not support the
    operation or the image."""
    _refuse_other_modes(s)
    is_in_range = not s.normalized and (s.dtype == torch.uint8 or s.dtype.is_floating_point)
    has_step = has_kernel and is_in_range and is_supported(s)
    return Outcome(s, flagged(op, s, numbers, layout, like=backend) if has_step else None)


def _is_inexact(s: State) -> bool:
    """Return True if results must be bit-exact and the image is floating point. Kernels are then inexact."""
    # the last bit of torch's results depends on a value's position in memory and on the number of threads
    return SWITCHES.tracing is not None and SWITCHES.tracing.exact and s.dtype.is_floating_point


def _refuse_other_modes(s: State) -> None:
    """Raise UnknownOutcome for PIL images in modes other than RGB and L."""
    if s.kind == "pil" and s.mode not in ("RGB", "L"):
        raise UnknownOutcome


@operation("adjust_sharpness")
def sharpness(s: State, backend: str, sharpness_factor) -> Outcome:
    if sharpness_factor < 0:
        raise UnknownOutcome
    return _value_outcome(s, backend, "sharpness", (sharpness_factor,), (("factor", (), "float64"),))


@operation("adjust_gamma", on_pil_images=True)
def gamma(s: State, backend: str, gamma, gain=1) -> Outcome:
    if gamma < 0:
        raise UnknownOutcome
    layout = ("gamma", (), "float64"), ("gain", (), "float64")
    return _value_outcome(s, backend, "gamma", (gamma, gain), layout, not _is_inexact(s))


@operation("posterize", "ImageOps.posterize")
def posterize(s: State, backend: str, bits) -> Outcome:
    (bits,) = integers(bits)
    if backend == "v2" and bits == 8 and s.dtype == torch.uint8:
        return Outcome(s, (), is_same_object=True)
    has_kernel = 1 <= bits <= 8 and s.dtype == torch.uint8
    return _value_outcome(s, backend, "posterize", (bits,), (("bits", (), "int32"),), has_kernel)


@operation("solarize", "ImageOps.solarize")
def solarize(s: State, backend: str, threshold=128) -> Outcome:
    has_kernel = s.kind == "pil" or 0 <= threshold <= (255 if s.dtype == torch.uint8 else 1)
    return _value_outcome(s, backend, "solarize", (threshold,), (("threshold", (), "float64"),), has_kernel)


@operation("invert", "ImageOps.invert")
def invert(s: State, backend: str) -> Outcome:
    return _value_outcome(s, backend, "invert")


@operation("autocontrast")
def autocontrast(s: State, backend: str) -> Outcome:
    return _value_outcome(s, backend, "autocontrast")


@operation("equalize", is_contiguous=True)
def equalize(s: State, backend: str) -> Outcome:
    return _value_outcome(s, backend, "equalize", has_kernel=s.dtype == torch.uint8)


@operation("ImageOps.autocontrast")
def pillow_autocontrast(s: State, backend: str, cutoff=0, ignore=None, mask=None, preserve_tone=False) -> Outcome:
    if cutoff or ignore is not None or mask is not None or preserve_tone:
        raise UnknownOutcome
    return autocontrast(s, backend)


@operation("ImageOps.equalize")
def pillow_equalize(s: State, backend: str, mask=None) -> Outcome:
    if mask is not None:
        raise UnknownOutcome
    return equalize(s, backend)


@operation("permute_channels", info=LOST, is_contiguous=True, on_pil_images=True, readonly_if_gray=True)
def permute_channels(s: State, backend: str, permutation) -> Outcome:
    _refuse_other_modes(s)
    order = integers(*(permutation.tolist() if isinstance(permutation, torch.Tensor) else permutation))
    if sorted(order) != list(range(s.channels)):
        raise UnknownOutcome
    has_step = is_supported(s) and s.channels == 3
    return Outcome(s, flagged("permute_channels", s, order, (("order", (3,), "int32"),)) if has_step else None)


@operation(
    "gaussian_blur", info=LOST, is_contiguous=True, on_pil_images=True, readonly_if_gray=True, takes_version=True
)
def gaussian_blur(s: State, backend: str, kernel_size, sigma=None, version: str = "v1") -> Outcome:
    _refuse_other_modes(s)
    sides = integers(*((kernel_size,) * 2 if isinstance(kernel_size, Integral) else kernel_size))
    if sigma is None:
        sigma = [side * 0.15 + 0.35 for side in sides]
    sigmas = [sigma] if isinstance(sigma, (int, float)) else list(sigma)
    sigmas = sigmas * 2 if len(sigmas) == 1 else sigmas
    if len(sides) != 2 or len(sigmas) != 2 or min(sides) < 1 or not sides[0] % 2 == sides[1] % 2 == 1:
        raise UnknownOutcome
    has_kernel = is_supported(s) and (s.dtype == torch.uint8 or s.dtype.is_floating_point)
    if not has_kernel or min(sigmas) <= 0 or sides[0] // 2 >= s.size[1] or sides[1] // 2 >= s.size[0]:
        return Outcome(s)
    layout = (("sigma", (2,), "float64"),)
    return Outcome(s, flagged("gaussian_blur", s, sigmas, layout, kernel_size=sides, like=version))


def pillow_filter(s: State, backend: str, filter: Any) -> Outcome:
    """Return the outcome of PIL.Image.Image.filter() with a GaussianBlur."""
    _refuse_other_modes(s)
    if type(filter) is not ImageFilter.GaussianBlur or not isinstance(filter.radius, (int, float)) or filter.radius < 0:
        raise UnknownOutcome
    return Outcome(s, flagged("pillow_blur", s, (filter.radius,), (("radius", (), "float64"),)))


@operation("augment", takes_version=True)
def augment(s: State, backend: str, op_name: str, magnitude, interpolation, fill, version: str = "v1") -> Outcome:
    """Return the outcome of one operation of AutoAugment or another policy."""
    if op_name == "Identity":
        return Outcome(s, (), is_same_object=True)
    _refuse_other_modes(s)
    common = warp_args(s, backend, interpolation, _fill_of(s, fill) if isinstance(fill, dict) else fill)
    transposes = backend == "v2" and op_name == "Rotate" and magnitude % 90 == 0
    if common is None or s.dtype != torch.uint8 or s.channels != 3 or transposes:
        return Outcome(s)
    layout = ("which", (), "int32"), ("magnitude", (), "float64")
    numbers = AUGMENTATIONS.index(op_name), float(magnitude)
    return Outcome(s, flagged("augment", s, numbers, layout, version=version, **common))


def _fill_of(s: State, fills: dict[Any, Any]) -> Any:
    """Return the fill value that v2 selects by the class of an image."""
    if any(isinstance(kind, type) and issubclass(kind, Image.Image) for kind in fills):
        raise UnknownOutcome
    kind = tv_tensors.Image if s.kind == "Image" else torch.Tensor
    return fills[kind] if s.kind != "pil" and kind in fills else fills["others"]


@operation("jpeg", info=BY_ARGUMENTS, is_contiguous=True, on_pil_images=True)
def jpeg(s: State, backend: str, quality) -> Outcome:
    _refuse_other_modes(s)
    has_step = is_supported(s) and s.dtype == torch.uint8 and 1 <= quality <= 100
    layout = (("quality", (), "int32"),)
    return Outcome(s, (step("jpeg", s, integers(quality), layout, like=backend),) if has_step else None)


@operation("erase")
def erase(s: State, backend: str, i, j, h, w, v, inplace=False) -> Outcome:
    _refuse_other_modes(s)
    i, j, h, w = integers(i, j, h, w)
    if inplace or not isinstance(v, torch.Tensor):
        raise UnknownOutcome
    values, (height, width) = v.flatten().tolist(), s.size
    has_kernel = is_supported(s) and s.kind != "pil" and tuple(v.shape) in ((1, 1, 1), (s.channels, 1, 1))
    if not has_kernel or min(i, j, h, w) < 0 or i + h > height or j + w > width or v.dtype != torch.float32:
        return Outcome(s)
    value = tuple(values * (s.channels // len(values)))
    return Outcome(s, flagged("erase", s, (i, j, h, w), WINDOW, value=value))


@operation("to_grayscale", "rgb_to_grayscale", info=BY_ARGUMENTS, on_pil_images=True)
def grayscale(s: State, backend: str, num_output_channels=1) -> Outcome:
    if num_output_channels not in (1, 3) or not is_supported(s):
        raise UnknownOutcome
    after = s._replace(shape=(num_output_channels, *s.shape[1:]), mode="L" if num_output_channels == 1 else "RGB")
    if s.channels == 1 or s.normalized:
        if s.kind != "pil":
            raise UnknownOutcome
        steps = () if num_output_channels == 1 else OUTCOMES["grayscale_to_rgb"](s, backend).steps
        return Outcome(after, steps if s.mode == "L" else None)
    args = {"like": backend, "dtype": s.dtype, "channels": num_output_channels}
    if num_output_channels == 3:
        return Outcome(after, flagged("grayscale", after, **args))
    return Outcome(after, (step("grayscale", after, **args),))
