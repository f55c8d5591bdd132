"""Reads transforms' arguments; says whose arithmetic torchvision uses, Pillow's or that of tensors in v1 or v2, and how
far from it each step is."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
import torchvision
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2
from torchvision.transforms.v2.functional import _geometry

from ..inspection.untranslatable import Untranslatable
from ..plan import CONVERSIONS, DALI, ImageSpec, Options, Step, draw, step

TORCHVISION = tuple(int(number) for number in torchvision.__version__.split(".")[:2])
"""(0, 26), for example."""

EXACT = "exact"
BY_TORCH = "pil, by torch"  # Pillow's order of passes, and PyTorch's rounding of weights

# Pillow's numbers, as torchvision.transforms.functional._interpolation_modes_from_int
_FROM_INT = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def like_of(t, spec: ImageSpec) -> str:
    """Returns whose arithmetic torchvision uses on this image: Pillow's, or that of its tensor functions, old or
    new."""
    if spec.kind == "pil":
        return "pil"
    return version_of(t)


def version_of(t) -> str:
    """Returns the version of torchvision's transforms that it is of: "v1" or "v2"."""
    return "v2" if isinstance(t, v2.Transform) else "v1"


def interpolation_of(t) -> str:
    """The name of a transform's interpolation."""
    return interpolation_named(t.interpolation)


def interpolation_named(mode: Any) -> str:
    """The name of an interpolation, which may be given as an enum, by name or as Pillow's number."""
    if isinstance(mode, Integral):
        return _FROM_INT[int(mode)]
    return InterpolationMode(mode).value


def fill_of(t, spec: ImageSpec) -> tuple | None:
    """One value a channel, or None where torchvision gets None."""
    fill = t.fill
    if isinstance(fill, dict):
        raise Untranslatable(t, "fill as a dict", "pass the fill of images alone")
    if fill is None:
        return None
    return per_channel(t, "fill", spec)


def per_channel(t, name: str, spec: ImageSpec) -> tuple:
    """An argument, which is one value or several, as one value a channel."""
    value = getattr(t, name)
    values = tuple(value) if hasattr(value, "__iter__") else (value,)
    values *= spec.channels if len(values) == 1 else 1
    if len(values) != spec.channels:
        raise Untranslatable(t, f"{name}={value} for an image of {spec.channels} channels")
    return values


def refuse_pil(t, spec: ImageSpec, before: str) -> None:
    if spec.kind == "pil":
        raise Untranslatable(t, "it takes tensors, and gets a PIL image here", f"put {before} before it")


def refuse_tensors(t, spec: ImageSpec, remedy: str = "put it before the conversion") -> None:
    if spec.kind != "pil":
        raise Untranslatable(t, "it takes PIL images, and gets a tensor here", remedy)


def maybe(t, spec, op: str, **values):
    """An operation with probability t.p; ``values`` are the same for every sample."""
    return step(op, spec, draw("bernoulli", p=t.p, values=tuple(values.items())), like=like_of(t, spec))


def functions(like: str):
    """torchvision's functions: v2's, or v1's. PIL images go through v1's."""
    return F2 if like == "v2" else F1


def ints(row) -> list[int]:
    return [int(value) for value in row]


def fill_list(fill) -> list | None:
    return None if fill is None else list(fill)


def resizes_in_whole_numbers(interpolation: str) -> bool:
    """Returns whether torchvision's v2 resizes uint8 tensors on a CPU by fixed-point sums, rounded after each axis.
    Before 0.21 it does not where bilinear meets AVX512: there it resizes floats and rounds once."""
    asked = getattr(_geometry, "_do_native_uint8_resize_on_cpu", None)
    return asked is None or bool(asked(InterpolationMode(interpolation)))


def passes_of(resize: Step) -> str:
    """Says how torchvision resizes: PIL in two passes rounded to 8 bits, v2 on uint8 tensors likewise but always width
    first, v1 on tensors (and v2 on floats) in floating point."""
    interpolation, like = resize.kwargs["interpolation"], resize.kwargs["like"]
    if interpolation.startswith("nearest") or resize.gives.dtype != torch.uint8 or like == "v1":
        return "one"
    if like == "pil":
        return "as Pillow"
    return "width first" if resizes_in_whole_numbers(interpolation) else "one"


def is_in_two_passes(resize: Step) -> bool:
    """Return True if a resize is by one of the usual filters, in two passes."""
    how = resize.kwargs
    usual = how["interpolation"] in ("bilinear", "bicubic") and how["antialias"] is True
    return usual and passes_of(resize) != "one"


def is_in_whole_numbers(s: Step) -> bool:
    """Return True if it is a resize that PyTorch does as Pillow does, but for the rounding of weights."""
    if s.op == "resize_by_choice":
        names = s.kwargs["interpolations"]
        return {*names} <= {"bilinear", "bicubic"} and all(map(resizes_in_whole_numbers, names))
    fits = s.op == "resize" and not s.when and is_in_two_passes(s)
    return fits and resizes_in_whole_numbers(s.kwargs["interpolation"])


# ---- how far a step is from torchvision, in words that the parity tests bear out


def fidelity_of(s: Step, where: str, options: Options, two_pass: bool) -> str:
    """Says how far a step is from torchvision. ``where`` it runs is DALI, TORCH, EACH or HOST; ``two_pass``: DALI
    resizes in two passes."""
    by_dali, how = where == DALI, s.kwargs
    if s.op == "apply":
        return "yours, not measured"
    if s.op == "gaussian_blur":
        return "mean error .0001 of 255 and maximum 1"
    if s.op == "jpeg" and by_dali and options.gpu:  # which is arithmetic of its own
        return "mean error 1 of 255 (exact=True: 0)"
    if s.op in ("affine", "perspective", "rotate") and by_dali:
        mean, most = (".002", "255 at edges") if s.op == "perspective" else (".001", "1")
        return f"mean error {mean} of 255" + ("" if options.gpu else f" and maximum {most}")
    # DALI multiplies in float32 where torchvision divides, and so does a CPU's kernel by default
    if s.op in CONVERSIONS and (by_dali or not (options.exact or options.gpu)):
        return "within 1e-6"
    if s.op == "resize_by_choice" and by_dali:
        return _resized_by_dali(how["interpolations"][0], "pil", False)
    if s.op == "resize" and by_dali:
        return _resized_by_dali(how["interpolation"], how["like"], two_pass)
    if is_in_whole_numbers(s) and how["like"] == "pil" and not (options.exact or options.gpu):
        return "mean error .02 of 255 and maximum 2 on photos (exact=True: 0)"
    in_floats = s.op == "resize" and passes_of(s) == "one" and not how["interpolation"].startswith("nearest")
    return "exact but for the order of additions" if options.gpu and in_floats else EXACT


def _resized_by_dali(interpolation: str, like: str, two_pass: bool) -> str:
    if interpolation.startswith("nearest"):
        return "nearest pixel; a rounding tie may differ (exact=True: 0)"
    if like != "pil":
        close = two_pass or like == "v1"
        return "mean error .05 of 255 (exact=True: 0)" if close else "mean error .2 of 255 (exact=True: 0)"
    if two_pass:
        return "two passes as Pillow: mean error .01 of 255 (exact=True: 0)"
    return "one pass: mean error .2 of 255 (exact=True: 0)"
