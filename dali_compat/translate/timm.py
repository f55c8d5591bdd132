"""timm's transforms. Imported where timm is; python's random numbers are drawn by the epoch's seed, as all others."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from ..plan import DALI, Draw, ImageSpec, Options, Step, draw, step
from . import timm_policies  # noqa: F401  # it registers these
from .convert import pil_to_tensor, to_tensor
from .fidelity import EXACT, converted, resized
from .geometry import _border, _resize_to, interpolation_named
from .registry import T, register
from .untranslatable import Untranslatable

timm: Any = import_module("timm.data.transforms")
random_erasing: Any = import_module("timm.data.random_erasing")


def _known(name: str, consumes: str = "") -> Callable[[T], T]:
    """register(), of a class that not every timm has."""
    kind = getattr(timm, name, None)
    return register(*(() if kind is None else (kind,)), consumes=consumes)


@_known("MaybeToTensor")
def maybe_to_tensor(t, spec):
    return to_tensor(t, spec) if spec.kind == "pil" else ()


@_known("MaybePILToTensor")
def maybe_pil_to_tensor(t, spec):
    return pil_to_tensor(t, spec) if spec.kind == "pil" else ()


@_known("ToTensor", consumes="dtype")
def plain_to_tensor(t, spec):
    steps = pil_to_tensor(t, spec)
    if t.dtype == torch.uint8:
        return steps
    if not t.dtype.is_floating_point:
        raise Untranslatable(t, f"dtype={t.dtype}")
    gives = steps[-1].gives.but(dtype=t.dtype)
    return (*steps, step("to_dtype", gives, dtype=t.dtype, like="cast", fidelity=converted))


@_known("ToNumpy")
def to_numpy(t, spec):
    """Of a batch default_collate and fast_collate make the same tensor as of tensors."""
    if spec.kind != "pil":
        raise Untranslatable(t, "it takes PIL images, and gets a tensor here")
    return (step("pil_to_tensor", spec.but(kind="array"), fidelity=EXACT),)


@_known("RandomResizedCropAndInterpolation", consumes="size scale ratio interpolation")
def random_resized_crop_and_interpolation(t, spec):
    _refuse_tensors(t, spec)
    window = draw("random_resized_crop", scale=tuple(t.scale), ratio=tuple(t.ratio))
    size = tuple(t.size)
    whole = draw("resize", size=size, max_size=None)
    return (step("crop", spec.but(size=None), window, inside=True, fidelity=EXACT), _resize(t, spec, whole, size))


@_known(
    "ResizeKeepRatio",
    consumes="size longest interpolation random_scale_prob random_scale_range random_scale_area random_aspect_prob "
    "random_aspect_range",
)
def resize_keep_ratio(t, spec):
    _refuse_tensors(t, spec)
    sizes = draw(
        "resize_keep_ratio",
        size=tuple(t.size),
        longest=t.longest,
        scale=(t.random_scale_prob, *t.random_scale_range, t.random_scale_area),
        aspect=(t.random_aspect_prob, *t.random_aspect_range),
    )
    return (_resize(t, spec, sizes, None),)


@_known("CenterCropOrPad", consumes="size fill padding_mode")
def center_crop_or_pad(t, spec):
    size = tuple(t.size)
    pad = step("pad", spec.but(size=None), draw("pad_to_center", size=size), fidelity=EXACT, **_border(t, spec))
    return pad, step("crop", spec.but(size=size), draw("center_crop", size=size), inside=True, fidelity=EXACT)


@_known("RandomCropOrPad", consumes="size fill padding_mode")
def random_crop_or_pad(t, spec):
    size = tuple(t.size)
    return (step("pad", spec.but(size=size), draw("crop_or_pad", size=size), fidelity=EXACT, **_border(t, spec)),)


@_known("TrimBorder", consumes="border_size")
def trim_border(t, spec):
    window = draw("trim_border", border=t.border_size)
    return (step("crop", spec.but(size=None), window, inside=True, fidelity=EXACT),)


@register(
    random_erasing.RandomErasing,
    consumes="probability min_area max_area min_aspect max_aspect mode min_count max_count num_splits device",
)
def erase(t, spec):
    """Of an image; those of a batch, in which num_splits counts, are timm's PrefetchLoader's."""
    names = {"probability", "min_area", "max_area", "log_aspect_ratio", "min_count", "max_count", "num_splits"}
    names |= {"rand_color", "per_pixel", "device"}
    if vars(t).keys() - {"mode"} != names:
        raise Untranslatable(t, "it is not the RandomErasing that this version of dali_compat knows")
    if spec.kind == "pil":
        raise Untranslatable(t, "it takes tensors, and gets a PIL image here", "put it after the conversion")
    if torch.device(t.device).type != "cpu" and not torch.cuda.is_available():
        raise Untranslatable(t, f"device={t.device} is not there", "pass device='cpu'")
    random = t.rand_color or t.per_pixel
    if (random and not spec.dtype.is_floating_point) or not 0 <= t.min_count <= t.max_count:
        raise Untranslatable(t, f"{t.min_count} to {t.max_count} windows of random color in {spec.dtype}")
    law = {"p": float(t.probability), "area": (t.min_area, t.max_area), "log_ratio": tuple(t.log_aspect_ratio)}
    if t.rand_color and not t.per_pixel:
        op, how = "erase_with_color", {}
    else:
        op, how = "erase", {"value": None if t.per_pixel else (0.0,) * spec.channels}
    counts = t.min_count, t.max_count
    windows = [draw("timm_erasing", **law, counts=counts, at=at) for at in range(t.max_count)]
    return [step(op, spec, window, at > 0, **how, fidelity=EXACT) for at, window in enumerate(windows)]


def _refuse_tensors(t, spec: ImageSpec) -> None:
    if spec.kind != "pil":
        raise Untranslatable(t, "of tensors", "put it before the conversion")


def _resize(t, spec: ImageSpec, sizes: Draw, known: tuple[int, int] | None) -> Step:
    if not isinstance(t.interpolation, (tuple, list)):
        return _resize_to(t, spec, sizes, known)
    names = tuple(map(interpolation_named, t.interpolation))
    chosen = draw("with_choice", of=sizes, count=len(names))
    gives = spec.but(size=known)
    return step("resize_by_choice", gives, chosen, interpolations=names, like="pil", fidelity=_resized_by_choice)


def _resized_by_choice(s: Step, where: str, options: Options, two_pass: bool) -> str:
    if where != DALI:
        return EXACT
    one = step("resize", s.gives, interpolation=s.kwargs["interpolations"][0], like="pil", fidelity=resized)
    return resized(one, where, options, False)
