"""Plans of deferred images, divided into a DALI pipeline and steps that torch runs afterwards.

The steps of an image are brought into a canonical order and divided in two. The *head* moves and converts pixels. It
becomes a DALI pipeline. The *tail* begins with the first step that computes with colors. torch runs it on all images
that share it. Both depend only on the steps of the image, never on other images, so that its pixels do not depend on
the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ..ops.draws import uniforms_of, width_of
from ..plan import Draw, ImageSpec, Options, Plan
from ..plan import Step as PlanStep
from ..translate.chain import Chain, Translated
from ..translate.lower import lower
from . import operations
from .operations import FLAG, NEVER, Given, Numbers, State, Step, flagged

_WINDOWS = frozenset(("crop", "pad"))
_SIZED = frozenset(("crop", "pad", "resize", "warp_affine", "warp_perspective", "rotate", "affine", "perspective"))
_HEAD = _SIZED - {"rotate", "affine", "perspective"}
_HEAD |= {"flip", "grayscale", "identity", "normalize", "pil_to_tensor", "repeat_channels", "to_dtype"}
_CONVERSIONS = frozenset(("identity", "normalize", "pil_to_tensor", "to_dtype"))
_OTHER_NUMBERS = frozenset(("to_dtype", "tensor_to_pil", "arithmetic"))
_VIEW = 1 << 16  # random streams of one view
_MOST_KNOWN = 4096  # plans of a loader

Kind = tuple[Given, bool]
"""A step without its numbers, and whether its window lies within the image."""
Key = tuple[Kind, ...]
"""Images with equal keys can be computed together."""
(_NO_FLIP,) = flagged("flip", State("pil", "RGB", (3, 1, 1)), axis="horizontal")


def divided(steps: Sequence[Step]) -> tuple[Key, list[float], Key, list[float]]:
    """Return the key and numbers of an image's head, and the key and numbers of its tail."""
    made = canonical(steps)
    at = next((number for number, (one, _) in enumerate(made) if one.op not in _HEAD), len(made))
    head, tail = made[:at], made[at:]
    _add_flip(head)
    return *_numbered(head), *_numbered(tail)


def _numbered(steps: Sequence[Step]) -> tuple[Key, list[float]]:
    numbers: list[float] = []
    kinds = []
    for one, values in steps:
        kinds.append((one, one.op == "crop" and is_inside(values)))
        numbers += values
    return tuple(kinds), numbers


def _add_flip(head: list[Step]) -> None:
    """Add a disabled flip to an image without one, so that mirrored and other images share a pipeline."""
    at = len(head)
    while at and head[at - 1][0].op in _CONVERSIONS:
        at -= 1
    last = at
    while last and head[last - 1][0].op == "flip":
        last -= 1
        if ("axis", "horizontal") in head[last][0].args:
            return
    kind, dtype, normalized, channels = head[at - 1][0].gives if at else ("pil", torch.uint8, False, 3)
    gives = kind, dtype, normalized, channels
    flip = operations.given("flip", _NO_FLIP[0].args, gives, _NO_FLIP[0].layout, FLAG, None)
    head.insert(last, (flip, (0.0,)))


def canonical(steps: Sequence[Step]) -> list[Step]:
    """Return bit-identical steps that more images have in common.

    Nested windows become one window, flips come after it, and consecutive adjustments of ColorJitter become one step.
    """
    made: list[Step] = []
    for one in steps:
        op = one[0].op
        if op in _WINDOWS:
            _add_window(made, one)
        elif made and one[0].args == (("name", "div"),) and one[1] == (1.0, 255.0) and _is_cast_of_bytes(made):
            args = (("dtype", torch.float32), ("like", "v1"))
            made[-1] = operations.given("to_dtype", args, made[-1][0].gives, (), NEVER, None), ()
        elif made and op == "color_jitter" and one[0] == made[-1][0] and one[1][1] not in made[-1][1][1:5]:
            made[-1] = one[0], _jittered(made[-1][1], one[1])
        else:
            made.append(one)
    return made


def _jittered(first: Numbers, second: Numbers) -> Numbers:
    """Add an adjustment in the first free place of the order."""
    numbers, added = list(first), int(second[1])
    numbers[numbers.index(-1.0, 1, 5)] = second[1]
    numbers[5 + added] = second[5 + added]
    return tuple(numbers)


def _is_cast_of_bytes(made: Sequence[Step]) -> bool:
    *before, (last, _) = made
    cast = last.op == "to_dtype" and dict(last.args) == {"dtype": torch.float32, "like": "cast"}
    return cast and not any(one.op in _OTHER_NUMBERS for one, _ in before)


def _add_window(made: list[Step], one: Step) -> None:
    """Move a window before the flips that precede it, and join it with a window before them."""
    at = len(made)
    while at and made[at - 1][0].op == "flip":
        at -= 1
        one = one[0], _mirrored(one[1], dict(made[at][0].args)["axis"])
    if at and made[at - 1][0].op in _WINDOWS and is_inside(one[1]):
        before, numbers = made[at - 1]
        top, left = one[1][4] + numbers[4], one[1][5] + numbers[5]
        made[at - 1] = before, (*numbers[:2], *one[1][2:4], top, left, *one[1][2:4])
    else:
        made.insert(at, one)


def _mirrored(numbers: Numbers, axis: str) -> Numbers:
    height, width, h, w, top, left, *_ = numbers
    if axis == "horizontal":
        return height, width, h, w, top, width - left - w, h, w
    return height, width, h, w, height - top - h, left, h, w


def is_inside(numbers: Numbers) -> bool:
    """Return True if a window lies within the image."""
    height, width, _, _, top, left, h, w = numbers
    return top >= 0 and left >= 0 and top + h <= height and left + w <= width


# ---- in the loading process


def width(key: Key) -> int:
    """Return how many numbers each image with this key has."""
    return sum(_width(one) for one, _ in key)


def _width(one: Given) -> int:
    if one.draw is not None:
        return uniforms_of(Draw("given_uniforms", (("at", 0), ("of", one.draw))))
    return width_of(one.layout, one.sized) if one.layout else 0


def sizes_after(key: Key, numbers: Any, sizes: Any) -> Any:
    """Return the (height, width) of N images after their steps.

    Args:
        key: the steps.
        numbers: (N, width(key)).
        sizes: (N, 2), sizes before the steps.
    """
    at = 0
    for one, _ in key:
        if one.sized:
            sizes = numbers[:, at + 2 : at + 4]
        at += _width(one)
    return sizes


@lru_cache(_MOST_KNOWN)
def head_plan(keys: tuple[Key, ...], sizes: tuple[Any, ...], options: Options) -> Plan:
    """Return the plan of an image, or of several views of it.

    Args:
        keys: key of each view's head.
        sizes: (height, width) of each view after the head; None if the images differ.
        options: options of the loader.
    """
    chains, at = [], 0
    for number, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        steps = _steps(key, size, at, number * _VIEW)
        chains.append(Chain(ImageSpec(), steps, view=number + 1 if len(keys) > 1 else 0))
        at += width(key)
    if len(keys) == 1:
        return lower(chains[0], options)
    structure = tuple(range(len(keys)))
    return lower(Chain(ImageSpec(), views=tuple(chains), structure=structure, wrapper="images of a sample"), options)


@lru_cache(_MOST_KNOWN)
def tail_plan(head: Key, tail: Key, sizes: tuple[Any, Any], options: Options) -> Plan:
    """Return the plan of a tail. ``sizes``: (height, width) before and after it, None if the images differ."""
    takes = _spec(head[-1][0], sizes[0]) if head else ImageSpec(size=sizes[0])
    return lower(Chain(takes, _steps(tail, sizes[1], 0, 0)), options, decoded=True)


@lru_cache(_MOST_KNOWN)
def whole_plan(head: Key, tail: Key, size: Any, final: Any, options: Options) -> Plan:
    """Return a plan of all steps, for explain(). ``size``, ``final``: (height, width) of the file and of the image."""
    first = head_plan((head,), (final if not any(one.op in _SIZED for one, _ in tail) else None,), options)
    if not tail:
        return first
    rest = tail_plan(head, tail, (None, final), options)
    return replace(first, steps=(*first.steps, *rest.steps), lines=(*first.lines, *rest.lines), planes=None)


def _steps(key: Key, size: Any, at: int, stream: int) -> tuple[Translated, ...]:
    """Return the steps of a plan, whose numbers begin at ``at``."""
    last = max((number for number, (one, _) in enumerate(key) if one.op in _SIZED), default=-1)
    made = []
    for number, (one, inside) in enumerate(key):
        drawn = None
        if one.draw is not None:
            drawn = Draw("given_uniforms", (("at", at), ("of", one.draw)))
        elif one.layout:
            drawn = Draw("given", (("at", at), ("layout", one.layout), ("sized", one.sized)))
        at += _width(one)
        args = (*one.args, ("inside", inside)) if one.op == "crop" else one.args
        gives = _spec(one, size if number >= last else None)
        made.append(Translated(one.op, (PlanStep(one.op, gives, args, drawn, stream=stream + number),)))
    return tuple(made)


def _spec(one: Given, size: Any) -> ImageSpec:
    kind, dtype, normalized, channels = one.gives
    return ImageSpec(kind, dtype, normalized, channels, size)


def pipeline_key(plan: Plan) -> Any:
    """Return the cache key of a plan's DALI pipeline, which does not include the images' sizes."""
    views = tuple(tuple(replace(one, gives=one.gives.but(size=None)) for one in chain.dali) for chain in plan.chains)
    return views, plan.exact, plan.channels_last
