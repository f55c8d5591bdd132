"""Reads transforms' arguments, and says whose arithmetic torchvision uses: Pillow's, or that of tensors in v1 or v2."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

from ..inspection.untranslatable import Untranslatable
from ..plan import ImageSpec, draw, step
from .fidelity import EXACT

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
    fill = tuple(fill) if isinstance(fill, (tuple, list)) else (fill,)
    if len(fill) == 1:
        fill *= spec.channels
    if len(fill) != spec.channels:
        raise Untranslatable(t, f"fill={t.fill} for an image of {spec.channels} channels")
    return fill


def maybe(t, spec, op: str, **values):
    """An operation with probability t.p; ``values`` are the same for every sample."""
    return step(
        op, spec, draw("bernoulli_with", p=t.p, values=tuple(values.items())), like=like_of(t, spec), fidelity=EXACT
    )


def functions(like: str):
    """torchvision's functions: v2's, or v1's. PIL images go through v1's."""
    return F2 if like == "v2" else F1


def ints(row) -> list[int]:
    return [int(value) for value in row]


def fill_list(fill) -> list | None:
    return None if fill is None else list(fill)
