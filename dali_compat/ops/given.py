"""Numbers that nobody draws here. The data set's own code, or a transform that it calls, has chosen them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..plan import Step
from .draws import ImageTooSmall, draws, lookup, run

_SIDES = 4  # (height, width) of the image before, and after


def width_of(layout: Any, sized: bool) -> int:
    """Returns how many numbers a step takes of each image's."""
    return _SIDES * sized + sum(int(np.prod(shape)) for _, shape, _ in layout)


@draws(uniforms=lambda at, layout, sized: at + width_of(layout, sized))
def draw_given(sizes, u, *, at, layout, sized):
    """The arrays of a step, which stand in the rows of ``u`` from place ``at`` on. ``layout``: (name, shape of a row,
    dtype) of each. ``sized``: before them stand the size of the image that the numbers are for, and of what it
    becomes."""
    after = sizes
    if sized:
        after = _after(sizes, u[:, at : at + _SIDES])
        at += _SIDES
    arrays = {}
    for name, shape, dtype in layout:
        count = int(np.prod(shape))
        arrays[name] = u[:, at : at + count].reshape(-1, *shape).astype(dtype)
        at += count
    return arrays, after


@draws(uniforms=lambda at, of: at + _SIDES + lookup(of)[0])
def draw_given_uniforms(sizes, u, *, at, of):
    """Returns what another draw (``of``) makes of random numbers that stand in the rows of ``u``, behind sizes as
    given()'s."""
    first = at + _SIDES
    values, after = run(of, sizes, u[:, first : first + lookup(of)[0]])
    _after(sizes, u[:, at:first])
    return values, after


def _after(sizes, sides) -> np.ndarray:
    """(height, width) after a step, of (height, width) before it and after."""
    other = (sides[:, :2] != sizes).any(1)
    if other.any():
        row = int(other.argmax())
        have, meant = (tuple(one[row].astype(int).tolist()) for one in (sizes, sides))
        raise ImageTooSmall(row, f"an image of {have} has come to the place of one of {meant[:2]}")
    return sides[:, 2:].astype(np.int64)


def is_given(step: Step) -> bool:
    """Returns whether the data set's own code has chosen what a step does to each image."""
    return step.draw is not None and step.draw.name.startswith("given")
