"""Read the arguments of transforms, and determine how torchvision resizes."""

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
from ..plan import ImageSpec, Step, draw, step

TORCHVISION = tuple(int(number) for number in torchvision.__version__.split(".")[:2])
"""The installed version, for example (0, 26)."""

# Pillow's numbers, as in torchvision.transforms.functional._interpolation_modes_from_int
_FROM_INT = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def like_of(t, spec: ImageSpec) -> str:
    """Return the kind of arithmetic to use: "pil" for a PIL image, otherwise the transform's version, "v1" or "v2"."""
    if spec.kind == "pil":
        return "pil"
    return version_of(t)


def version_of(t) -> str:
    return "v2" if isinstance(t, v2.Transform) else "v1"


def interpolation_of(t) -> str:
    return interpolation_named(t.interpolation)


def interpolation_named(mode: Any) -> str:
    """Return the name of an interpolation, from an InterpolationMode, a name or Pillow's number."""
    if type(mode) is InterpolationMode:
        return mode.value
    if isinstance(mode, Integral):
        return _FROM_INT[int(mode)]
    return InterpolationMode(mode).value


def fill_of(t, spec: ImageSpec) -> tuple | None:
    """Return one fill value per channel, or None if the transform's fill is None."""
    fill = t.fill
    if isinstance(fill, dict):
        raise Untranslatable(t, "fill is a dict", "pass the fill for images as a number or a sequence")
    if fill is None:
        return None
    return per_channel(t, "fill", spec)


def per_channel(t, name: str, spec: ImageSpec) -> tuple:
    """Return the argument ``name`` of a transform as one value per channel."""
    value = getattr(t, name)
    values = tuple(value) if hasattr(value, "__iter__") else (value,)
    values *= spec.channels if len(values) == 1 else 1
    if len(values) != spec.channels:
        raise Untranslatable(t, f"{name}={value} does not fit an image with {spec.channels} channel(s)")
    return values


def refuse_pil(t, spec: ImageSpec, before: str) -> None:
    if spec.kind == "pil":
        raise Untranslatable(t, "it takes tensors, but gets a PIL image here", f"put {before} before it")


def refuse_tensors(t, spec: ImageSpec, remedy: str = "put it before the conversion") -> None:
    if spec.kind != "pil":
        raise Untranslatable(t, "it takes PIL images, but gets a tensor here", remedy)


def maybe(t, spec, op: str, **values):
    """Return a step that applies the operation ``op`` to each sample with probability t.p. All samples share the
    arguments ``values``."""
    return step(op, spec, draw("bernoulli", p=t.p, values=tuple(values.items())), like=like_of(t, spec))


def functions(like: str):
    """Return torchvision.transforms.v2.functional if ``like`` is "v2", otherwise torchvision.transforms.functional."""
    return F2 if like == "v2" else F1


def ints(row) -> list[int]:
    return [int(value) for value in row]


def fill_list(fill) -> list | None:
    return None if fill is None else list(fill)


# ---- how torchvision resizes


def resizes_in_integers(interpolation: str) -> bool:
    """Return True if v2 resizes uint8 tensors on a CPU in integer arithmetic, and rounds after each axis."""
    # before torchvision 0.21, a bilinear resize on a CPU with AVX512 uses floats and rounds once
    native = getattr(_geometry, "_do_native_uint8_resize_on_cpu", None)
    return native is None or bool(native(InterpolationMode(interpolation)))


def passes_of(resize: Step) -> str:
    """Return how torchvision's resize treats the two axes: "as Pillow", "width first" or "one".

    With "as Pillow" and "width first", it resizes one axis after the other, and rounds to 8 bits after each. Pillow
    chooses the first axis by the sizes. With "one", it resizes both axes at once.
    """
    interpolation, like = resize.kwargs["interpolation"], resize.kwargs["like"]
    if interpolation.startswith("nearest") or resize.gives.dtype != torch.uint8 or like == "v1":
        return "one"
    if like == "pil":
        return "as Pillow"
    return "width first" if resizes_in_integers(interpolation) else "one"


def is_in_two_passes(resize: Step) -> bool:
    how = resize.kwargs
    usual = how["interpolation"] in ("bilinear", "bicubic") and how["antialias"] is True
    return usual and passes_of(resize) != "one"


def is_integer_resize(s: Step) -> bool:
    """Return True if PyTorch can run a resize step in integer arithmetic. The pixels then differ from Pillow's only by
    the rounding of weights."""
    if s.op == "resize_by_choice":
        names = s.kwargs["interpolations"]
        return {*names} <= {"bilinear", "bicubic"} and all(map(resizes_in_integers, names))
    fits = s.op == "resize" and not s.when and is_in_two_passes(s)
    return fits and resizes_in_integers(s.kwargs["interpolation"])
