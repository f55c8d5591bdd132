"""Steps of an image in an order in which less is computed, and which more images have in common: a window of a window
is one window, a flip comes after it, and what ColorJitter does one after the other is one step."""

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
        elif made and step[0].args == (("name", "div"),) and step[1] == (1.0, 255.0) and _is_cast_of_bytes(made):
            (last, _), args = made[-1], (("dtype", torch.float32), ("like", "v1"))
            made[-1] = given("to_dtype", args, last.gives, (), NEVER, None), ()
        elif made and step[0].op == "color_jitter" and step[0] == made[-1][0] and step[1][1] not in made[-1][1][1:5]:
            made[-1] = step[0], _jittered(made[-1][1], step[1])
        else:
            made.append(step)
    return made


def _jittered(first: Numbers, second: Numbers) -> Numbers:
    """One more adjustment, in the first place of the order that is free."""
    numbers, added = list(first), int(second[1])
    numbers[numbers.index(-1.0, 1, 5)] = second[1]
    numbers[5 + added] = second[5 + added]
    return tuple(numbers)


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
        top, left = step[1][4] + numbers[4], step[1][5] + numbers[5]
        made[at - 1] = before, (*numbers[:2], *step[1][2:4], top, left, *step[1][2:4])
    else:
        made.insert(at, step)


def _mirrored(numbers: Numbers, axis: str) -> Numbers:
    height, width, h, w, top, left, *_ = numbers
    if axis == "horizontal":
        return height, width, h, w, top, width - left - w, h, w
    return height, width, h, w, height - top - h, left, h, w


def is_inside(numbers: Numbers) -> bool:
    """Returns whether a window lies within the image."""
    height, width, _, _, top, left, h, w = numbers
    return top >= 0 and left >= 0 and top + h <= height and left + w <= width
