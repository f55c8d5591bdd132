"""A helper: windows of images, each of which its data set's own code has chosen. They are no transforms: who makes a
sample has their numbers (lazy/images.py)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..plan import Step, draw, step
from .fidelity import EXACT
from .registry import register

_DRAW = "given_window"


@dataclass(frozen=True)
class Window:
    """Stands for image.crop() among the transforms of an image.

    Attributes:
        size: (height, width) of all windows; None where they have several.
    """

    size: tuple[int, int] | None

    def __repr__(self) -> str:
        return "Image.crop(box)"


ANY = Window(None)


def has_any_size(transform: object) -> bool:
    """Whether it is ANY."""
    return type(transform) is Window and transform.size is None


@functools.lru_cache(256)
def window_of(size: tuple[int, int]) -> Window:
    """One object for each size."""
    return Window(size)


@register(Window, consumes="size")
def crop(t, spec):
    return (step("crop", spec.but(size=t.size), draw(_DRAW), inside=True, fidelity=EXACT),)


def is_given(step: Step) -> bool:
    """Whether the data set's code has chosen what a step does to each image."""
    return step.draw is not None and step.draw.name == _DRAW
