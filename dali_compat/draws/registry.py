"""Which function draws what, and the arguments of a chain of steps for a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..plan import Draw, Step
from .randoms import Randoms

Arrays = dict[str, np.ndarray]

_DRAWS: dict[str, tuple[int | Callable[..., int], Callable]] = {}


class ImageTooSmall(ValueError):
    """An image does not suit a transform; torchvision raises ValueError with the same words.

    ``row`` is its place among the ``rows`` that compute() was given."""

    def __init__(self, row: int, message: str):
        super().__init__(message)
        self.row = row


def compute(
    steps: tuple[Step, ...], sizes: np.ndarray, randoms: Randoms, rows: Sequence[int] | np.ndarray | slice
) -> list[Arrays]:
    """The arrays of each step for ``rows`` of a batch; ``sizes`` is (N, 2) for these rows.

    A step with gates, or with a chance of its own, has a ``flag`` (0 or 1) among its arrays. Where gates are shut, its
    other arrays are zeros.

    Raises:
        ImageTooSmall: of the first step that an image does not suit.
    """
    arrays: list[Arrays] = []
    chosen: dict[int, np.ndarray] = {}
    for step in steps:
        flag = _open(step.when, chosen, len(sizes))
        at = slice(None) if flag is None else np.flatnonzero(flag)
        values, after = {}, sizes[at]
        if step.draw is not None and len(after):
            uniforms, _ = lookup(step.draw)
            u = randoms(step.stream, uniforms)[rows][at] if uniforms else None
            try:
                values, after = run(step.draw, sizes[at], u)
            except ImageTooSmall as error:  # its row counts those that passed the gates
                raise ImageTooSmall(int(np.arange(len(sizes))[at][error.row]), str(error)) from None
        if flag is not None:
            values = {name: _scattered(array, at, len(sizes)) for name, array in values.items()}
            values["flag"] = values.get("flag", flag)
            sizes = sizes.copy()
            sizes[at] = after
        else:
            sizes = after
        if step.op == "choose":
            chosen[step.stream] = next(iter(values.values()))
            values = {}
        arrays.append(values)
    return arrays


def _open(gates, chosen: dict[int, np.ndarray], count: int) -> np.ndarray | None:
    """Which samples pass all gates, int32 (count,); None where there are no gates."""
    if not gates:
        return None
    passed = np.ones(count, np.int32)
    for gate in gates:
        choice = chosen[gate.stream]
        passed &= (choice if choice.ndim == 1 else choice[:, gate.rank]) == gate.value
    return passed


def _scattered(array: np.ndarray, at: np.ndarray | slice, count: int) -> np.ndarray:
    whole = np.zeros((count, *array.shape[1:]), array.dtype)
    whole[at] = array
    return whole


def is_random(step: Step) -> bool:
    """Whether a step's arguments are drawn."""
    return step.draw is not None and lookup(step.draw)[0] > 0


def lookup(draw: Draw) -> tuple[int, Callable]:
    uniforms, function = _DRAWS[draw.name]
    return uniforms(**dict(draw.args)) if callable(uniforms) else uniforms, function


def run(draw: Draw, sizes, u):
    return _DRAWS[draw.name][1](sizes, u, **dict(draw.args))


def draws(uniforms: int | Callable[..., int] = 0):
    """Registers a function under its name; ``uniforms`` is how many numbers a sample takes."""

    def decorate(function):
        _DRAWS[function.__name__] = uniforms, function
        return function

    return decorate
