"""Which function draws what, and the arguments of a chain of steps for a batch."""

from __future__ import annotations

from typing import Callable

import numpy as np

from ..plan import Draw, Step
from .keyed import Randoms

Arrays = dict[str, np.ndarray]

_DRAWS: dict[str, tuple[int | Callable[..., int], Callable]] = {}


class ImageTooSmall(ValueError):
    """An image does not suit a transform; torchvision raises ValueError with the same words.

    ``row`` is its place in the batch."""

    def __init__(self, row: int, message: str):
        super().__init__(message)
        self.row = row


def compute(steps: tuple[Step, ...], sizes: np.ndarray, randoms: Randoms, rows: np.ndarray | slice) -> list[Arrays]:
    """The arrays of each step for ``rows`` of a batch; ``sizes`` is (N, 2) for these rows."""
    arrays = []
    for step in steps:
        if step.draw is None:
            arrays.append({})
            continue
        uniforms, _ = lookup(step.draw)
        u = randoms(step.stream, uniforms)[rows] if uniforms else None
        values, sizes = run(step.draw, sizes, u)
        arrays.append(values)
    return arrays


def is_random(step: Step) -> bool:
    """Whether a step's arguments are drawn."""
    return step.draw is not None and lookup(step.draw)[0] > 0


def lookup(draw: Draw) -> tuple[int, Callable]:
    uniforms, function = _DRAWS[draw.name]
    return uniforms(**dict(draw.args)) if callable(uniforms) else uniforms, function


def run(draw: Draw, sizes, u):
    return _DRAWS[draw.name][1](sizes, u, **dict(draw.args))


def draws(uniforms=0):
    """Registers a function under its name; ``uniforms`` is how many numbers a sample takes."""

    def decorate(function):
        _DRAWS[function.__name__] = uniforms, function
        return function

    return decorate
