"""Steps of an image in an order in which less is computed, and which more images have in common: a window of a window
is one window, and a flip comes after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .operations import NEVER, Numbers, Step, given

_WINDOWS = ("crop", "pad")
_OTHER_NUMBERS = frozenset(("to_dtype", "tensor_to_pil", "arithmetic"))


def canonical(steps: Sequence[Step]) -> list[Step]:
    """Steps that give the same, to the last bit."""
    made: list[Step] = []
    for step in steps:
        if step[0].op in _WINDOWS:
            _add_window(made, step)
        elif made and _is_255th(step) and _is_cast_of_bytes(made):
            (last, _), args = made[-1], (("dtype", torch.float32), ("like", "v1"))
            made[-1] = given("to_dtype", args, last.gives, (), NEVER, None), ()
        else:
            made.append(step)
    return made


def _is_255th(step: Step) -> bool:
    return step[0].op == "arithmetic" and dict(step[0].args)["name"] == "div" and step[1] == (1.0, 255.0)


def _is_cast_of_bytes(made: Sequence[Step]) -> bool:
    *before, (last, _) = made
    cast = last.op == "to_dtype" and dict(last.args) == {"dtype": torch.float32, "like": "cast"}
    return cast and not any(one.op in _OTHER_NUMBERS for one, _ in before)


def _add_window(made: list[Step], step: Step) -> None:
    """Takes a window before the flips that precede it, and together with a window before these."""
    at = len(made)
    while at and made[at - 1][0].op == "flip":
        at -= 1
        step = step[0], _mirrored(step[1], dict(made[at][0].args)["axis"])
    if at and made[at - 1][0].op in _WINDOWS and is_inside(step[1]):
        before, numbers = made[at - 1]
        made[at - 1] = before, _combined(numbers, step[1])
    else:
        made.insert(at, step)


def _mirrored(numbers: Numbers, axis: str) -> Numbers:
    height, width, h, w, top, left, *_ = numbers
    if axis == "horizontal":
        return height, width, h, w, top, width - left - w, h, w
    return height, width, h, w, height - top - h, left, h, w


def _combined(first: Numbers, second: Numbers) -> Numbers:
    _, _, h, w, top, left, *_ = second
    return *first[:2], h, w, first[4] + top, first[5] + left, h, w


def is_inside(numbers: Numbers) -> bool:
    """Returns whether a window lies within the image."""
    height, width, _, _, top, left, h, w = numbers
    return top >= 0 and left >= 0 and top + h <= height and left + w <= width
