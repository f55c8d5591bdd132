"""Plans of deferred images, divided into a DALI pipeline and steps that torch runs afterwards.

The steps of an image are brought into a canonical order and divided in two. The *head* moves and converts pixels. It
becomes a DALI pipeline. The *tail* begins with the first step that computes with colors, or that is often applied at
random. torch runs it. Both depend only on the steps of the image and of the other images of its file, so that its
pixels do not depend on the rest of the batch.

Building a pipeline takes a second, so that heads have few variants. Tails may have many, as with RandAugment. They are
merged into one plan, in which a step is disabled for the images that do not have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import starmap
from typing import Any

import torch

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
_OFTEN_RANDOM = frozenset(("warp_affine", "warp_perspective"))  # after a resize
_OTHER_NUMBERS = frozenset(("to_dtype", "tensor_to_pil", "arithmetic"))
_VIEW = 1 << 16  # random streams of one view
_MOST_KNOWN = 4096  # plans of a loader

Kind = tuple[Given, bool]
"""A step without its numbers, and whether its window lies within the image."""
Key = tuple[Kind, ...]
"""Images with equal keys can be computed together."""
Entry = tuple[Kind, Numbers]
"""A step of a tail, and its numbers."""
Gives = tuple[str, torch.dtype, bool, int]
"""Kind, dtype, whether it is normalized, and channels of an image."""
_DECODED: Gives = "pil", torch.uint8, False, 3
(_NO_FLIP,) = flagged("flip", State("pil", "RGB", (3, 1, 1)), axis="horizontal")


def divided(steps: Sequence[Step], alone: bool = True) -> tuple[Key, list[float], list[Entry]]:
    """Return the key and numbers of an image's head, and its tail.

    Args:
        steps: the image's steps.
        alone: whether it is the only image of its file. Others leave conversions to the tail, because the heads of all
            images of a file form one pipeline.
    """
    made = canonical(steps)
    at = next((number for number in range(len(made)) if _begins_tail(made, number)), len(made))
    while not alone and at and made[at - 1][0].op in _CONVERSIONS:
        at -= 1
    head, tail = made[:at], made[at:]
    _add_flip(head)
    key, numbers = _numbered(head)
    return key, numbers, [_disableable(*one) for one in tail]


def _begins_tail(steps: Sequence[Step], at: int) -> bool:
    one = steps[at][0]
    if one.op in _OFTEN_RANDOM:
        return any(before.op == "resize" for before, _ in steps[:at])
    return one.op not in _HEAD or (one.op == "grayscale" and one.off == FLAG)


def _disableable(one: Given, numbers: Numbers) -> Entry:
    """Return a step of a tail, with a flag if it can be disabled."""
    if one.op in _OFTEN_RANDOM and one.off != FLAG and numbers[:2] == numbers[2:4]:
        layout = (("flag", (), "int32"), *one.layout)
        one = operations.given(one.op, one.args, one.gives, layout, FLAG)
        numbers = *numbers[:4], 1.0, *numbers[4:]
    return _kind(one, numbers), numbers


def _kind(one: Given, numbers: Numbers) -> Kind:
    return one, one.op == "crop" and is_inside(numbers)


def _numbered(steps: Sequence[Step]) -> tuple[Key, list[float]]:
    return tuple(starmap(_kind, steps)), [number for _, numbers in steps for number in numbers]


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
    before = head[at - 1][0].gives if at else _DECODED
    flip = operations.given("flip", _NO_FLIP[0].args, before, _NO_FLIP[0].layout, FLAG)
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
            made[-1] = operations.given("to_dtype", args, made[-1][0].gives, (), NEVER), ()
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


# ---- tails of a batch


def size_after(key: Key, numbers: Sequence[float], size: Any) -> Any:
    """Return the (height, width) of an image after its steps. ``size``: before them."""
    at = 0
    for one, _ in key:
        if one.sized:
            size = numbers[at + 2], numbers[at + 3]
        at += one.width
    return size


def skeleton(tail: Sequence[Entry]) -> Key:
    """Return the steps that cannot be disabled. Tails with equal ones can be merged."""
    return tuple(kind for kind, _ in tail if kind[0].off != FLAG)


def merged(tails: Sequence[Sequence[Entry]], sizes: Sequence[tuple[int, int]]) -> tuple[Key, list[list[float]]]:
    """Merge tails that have the same skeleton().

    Args:
        tails: the tails.
        sizes: (height, width) of each image before its tail.

    Returns:
        The key of a tail that contains all others, and each image's numbers for it.
    """
    keys = [tuple(kind for kind, _ in tail) for tail in tails]
    whole: list[Kind] = [*skeleton(tails[0])]
    for key, _ in Counter(keys).most_common():
        _include(whole, key)
    some = {kind: numbers for tail in tails for kind, numbers in tail}
    return tuple(whole), [_numbers_of(whole, tail, size, some) for tail, size in zip(tails, sizes, strict=True)]


def _include(whole: list[Kind], key: Key) -> None:
    """Insert steps, so that the key is a subsequence of ``whole``."""
    at = 0
    for kind in key:
        end = next((place for place in range(at, len(whole)) if whole[place][0].off != FLAG), len(whole))
        if kind[0].off != FLAG:
            at = end
        elif kind in whole[at:end]:
            at = whole.index(kind, at)
        else:
            whole.insert(at, kind)
        at += 1


def _numbers_of(
    whole: Sequence[Kind], tail: Sequence[Entry], size: tuple[int, int], some: dict[Kind, Numbers]
) -> list[float]:
    """Return an image's numbers for a merged tail. ``some`` has numbers of an image for each step."""
    made: list[float] = []
    waiting = list(reversed(tail))
    for kind in whole:
        one, at = kind[0], 4 * kind[0].sized  # place of the flag
        if waiting and waiting[-1][0] == kind:
            numbers = waiting.pop()[1]
            size = numbers[2:4] if one.sized else size  # type: ignore[assignment]  # two of them
        else:
            numbers = *(*size, *size)[:at], 0.0, *some[kind][at + 1 :]
        made += numbers
    return made


def is_inside(numbers: Numbers) -> bool:
    """Return True if a window lies within the image."""
    height, width, _, _, top, left, h, w = numbers
    return top >= 0 and left >= 0 and top + h <= height and left + w <= width


# ---- in the loading process


def width(key: Key) -> int:
    """Return how many numbers each image with this key has."""
    return sum(one.width for one, _ in key)


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
        at += one.width
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
        chains.append(Chain(ImageSpec(), steps))
        at += width(key)
    if len(keys) == 1:
        return lower(chains[0], options)
    structure = tuple(range(len(keys)))
    return lower(Chain(ImageSpec(), views=tuple(chains), structure=structure, wrapper="images of a sample"), options)


@lru_cache(_MOST_KNOWN)
def tail_plan(takes: Gives, tail: Key, sizes: tuple[Any, Any], options: Options) -> Plan:
    """Return the plan of a tail.

    Args:
        takes: the image before it.
        tail: its key.
        sizes: (height, width) before and after it; None if the images differ.
        options: options of the loader.
    """
    return lower(Chain(_spec(takes, sizes[0]), _steps(tail, sizes[1], 0, 0)), options, decoded=True)


@lru_cache(_MOST_KNOWN)
def whole_plan(head: Key, tail: Key, size: Any, final: Any, options: Options) -> Plan:
    """Return a plan of all steps, for explain(). ``size``, ``final``: (height, width) of the file and of the image."""
    first = head_plan((head,), (final if not any(one.op in _SIZED for one, _ in tail) else None,), options)
    if not tail:
        return first
    rest = tail_plan(gives(head), tail, (None, final), options)
    return replace(first, steps=(*first.steps, *rest.steps), lines=(*first.lines, *rest.lines), planes=None)


def _steps(key: Key, size: Any, at: int, stream: int) -> tuple[Translated, ...]:
    """Return the steps of a plan, whose numbers begin at ``at``."""
    last = max((number for number, (one, _) in enumerate(key) if one.op in _SIZED), default=-1)
    made = []
    for number, (one, inside) in enumerate(key):
        drawn = None
        if one.layout:
            drawn = Draw("given", (("at", at), ("layout", one.layout), ("sized", one.sized)))
        at += one.width
        args = (*one.args, ("inside", inside)) if one.op == "crop" else one.args
        spec = _spec(one.gives, size if number >= last else None)
        made.append(Translated(one.op, (PlanStep(one.op, spec, args, drawn, stream=stream + number),)))
    return tuple(made)


def gives(head: Key) -> Gives:
    """Return the image after a head."""
    return head[-1][0].gives if head else _DECODED


def _spec(gives: Gives, size: Any) -> ImageSpec:
    kind, dtype, normalized, channels = gives
    return ImageSpec(kind, dtype, normalized, channels, size)


def pipeline_key(plan: Plan) -> Any:
    """Return the cache key of a plan's DALI pipeline, which does not include the images' sizes."""
    views = tuple(tuple(replace(one, gives=one.gives.but(size=None)) for one in chain.dali) for chain in plan.chains)
    return views, plan.exact, plan.channels_last
