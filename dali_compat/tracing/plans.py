"""Plans that compute deferred images in batches.

The steps of an image are brought into a canonical order and split in two. The *head* moves and converts pixels, in a
DALI pipeline. The *tail* begins with the first step that computes with colors or is often random, and runs in torch.
The split depends only on the images of one file. Pixels therefore do not depend on the rest of the batch.

A *key* is a head or tail without numbers such as the position of a crop window. Building a pipeline takes a second, so
steps that vary a lot are left to the tail, and heads have few keys. Tails may have many keys, as with RandAugment. One
plan with flags for its steps runs several tails.
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
from .operations import FLAG, WITH_SIZES, Numbers, PixelFormat, State, Step, StepKind, flagged, step_kind

_WINDOWS = frozenset(("crop", "pad"))
_HEAD = WITH_SIZES - {"rotate", "affine", "perspective"}
_HEAD |= {"flip", "grayscale", "identity", "normalize", "pil_to_tensor", "repeat_channels", "to_dtype"}
_CONVERSIONS = frozenset(("identity", "normalize", "pil_to_tensor", "to_dtype"))
_OFTEN_RANDOM = frozenset(("warp_affine", "warp_perspective"))  # in the tail if they follow a resize
_CHANGE_RANGE = frozenset(("to_dtype", "tensor_to_pil", "arithmetic"))  # results need not be integers from 0 to 255
_STREAMS_PER_VIEW = 1 << 16  # random streams reserved for each image
_CACHE_SIZE = 4096  # plans

KeyStep = tuple[StepKind, bool]
"""The kind of a step, and whether it is a crop whose window lies within the image."""
Key = tuple[KeyStep, ...]
"""Images whose heads or tails have equal keys can be computed as a batch."""
TailStep = tuple[KeyStep, Numbers]
_DECODED: PixelFormat = "pil", torch.uint8, False, 3
((_FLIP, _),) = flagged("flip", State("pil", "RGB", (3, 1, 1)), axis="horizontal")


def split_steps(steps: Sequence[Step], is_only_image: bool = True) -> tuple[Key, list[float], list[TailStep]]:
    """Split an image's steps. Return (key of the head, numbers of the head, tail).

    If several images are made from the file, one pipeline runs all their heads. Conversions at the end of a head then
    belong to the tail.
    """
    steps = canonical(steps)
    end = next((at for at in range(len(steps)) if _begins_tail(steps, at)), len(steps))
    while not is_only_image and end and steps[end - 1][0].op in _CONVERSIONS:
        end -= 1
    head, tail = steps[:end], steps[end:]
    _add_flip(head)
    numbers = [number for _, of_step in head for number in of_step]
    return tuple(starmap(_key_step, head)), numbers, [_tail_step(*step) for step in tail]


def _begins_tail(steps: Sequence[Step], at: int) -> bool:
    kind = steps[at][0]
    if kind.op in _OFTEN_RANDOM:
        return any(before.op == "resize" for before, _ in steps[:at])
    return kind.op not in _HEAD or (kind.op == "grayscale" and kind.has_flag)


def _tail_step(kind: StepKind, numbers: Numbers) -> TailStep:
    """Return a step for a tail. A warp that keeps the image size gets a flag to skip it."""
    if kind.op in _OFTEN_RANDOM and not kind.has_flag and numbers[:2] == numbers[2:4]:
        kind = step_kind(kind.op, kind.args, kind.pixel_format, (FLAG, *kind.layout))
        numbers = *numbers[:4], 1.0, *numbers[4:]
    return _key_step(kind, numbers), numbers


def _key_step(kind: StepKind, numbers: Numbers) -> KeyStep:
    return kind, kind.op == "crop" and is_inside(numbers)


def _add_flip(head: list[Step]) -> None:
    """Insert a disabled flip if the head has none."""
    end = len(head)
    while end and head[end - 1][0].op in _CONVERSIONS:
        end -= 1
    begin = end
    while begin and head[begin - 1][0].op == "flip":
        begin -= 1
        if ("axis", "horizontal") in head[begin][0].args:
            return
    pixel_format = head[end - 1][0].pixel_format if end else _DECODED
    # flipped and unflipped images then share a pipeline
    head.insert(begin, (step_kind("flip", _FLIP.args, pixel_format, _FLIP.layout), (0.0,)))


def canonical(steps: Sequence[Step]) -> list[Step]:
    """Return equivalent steps in a canonical form. More images then have the same key.

    Nested crop and pad windows become one window, and flips come after it. Consecutive adjustments of ColorJitter
    become one step.
    """
    result: list[Step] = []
    for kind, numbers in steps:
        last, last_numbers = result[-1] if result else (None, ())
        if kind.op in _WINDOWS:
            _add_window(result, kind, numbers)
        elif last and kind.args == (("name", "div"),) and numbers == (1.0, 255.0) and _is_cast_of_bytes(result):
            args = (("dtype", torch.float32), ("like", "v1"))
            result[-1] = step_kind("to_dtype", args, last.pixel_format, ()), ()
        elif kind.op == "color_jitter" and kind == last and numbers[1] not in last_numbers[1:5]:
            result[-1] = kind, _with_adjustment(last_numbers, numbers)
        else:
            result.append((kind, numbers))
    return result


def _with_adjustment(first: Numbers, second: Numbers) -> Numbers:
    """Return the numbers of one color_jitter step that replaces two. The second step has a single adjustment.

    The numbers are a flag, the order of the adjustments (-1 for none), and four factors.
    """
    flag, order, factors, added = first[0], list(first[1:5]), list(first[5:]), int(second[1])
    order[order.index(-1.0)] = second[1]
    factors[added] = second[5 + added]
    return flag, *order, *factors


def _is_cast_of_bytes(steps: Sequence[Step]) -> bool:
    """Return True if the last step casts values from 0 to 255 to float32 without scaling them."""
    *before, (last, _) = steps
    is_cast = last.op == "to_dtype" and dict(last.args) == {"dtype": torch.float32, "like": "cast"}
    return is_cast and not any(kind.op in _CHANGE_RANGE for kind, _ in before)


def _add_window(steps: list[Step], kind: StepKind, numbers: Numbers) -> None:
    """Insert a window before the flips at the end of ``steps``. If possible, merge it with the preceding window."""
    at = len(steps)
    while at and steps[at - 1][0].op == "flip":
        at -= 1
        numbers = _mirrored(numbers, dict(steps[at][0].args)["axis"])
    if at and steps[at - 1][0].op in _WINDOWS and is_inside(numbers):
        first, (height, width, _, _, outer_top, outer_left, *_) = steps[at - 1]
        _, _, h, w, top, left, *_ = numbers
        steps[at - 1] = first, (height, width, h, w, outer_top + top, outer_left + left, h, w)
    else:
        steps.insert(at, (kind, numbers))


def _mirrored(numbers: Numbers, axis: str) -> Numbers:
    """Return the numbers of a window in the mirrored image."""
    height, width, h, w, top, left, *_ = numbers
    if axis == "horizontal":
        return height, width, h, w, top, width - left - w, h, w
    return height, width, h, w, height - top - h, left, h, w


# ---- tails of a batch


def size_after(key: Key, numbers: Any, size: Any) -> Any:
    """Return the (height, width) of an image after the steps with this ``key`` and these ``numbers``.

    ``size`` is the size before the steps. Each number may be an array with an entry per image.
    """
    at = 0
    for kind, _ in key:
        if kind.has_sizes:
            size = numbers[at + 2], numbers[at + 3]
        at += kind.number_count
    return size


def steps_without_flag(tail: Sequence[TailStep]) -> Key:
    """Return the key of a tail's steps that have no flag. Images cannot skip these steps."""
    return tuple(key_step for key_step, _ in tail if not key_step[0].has_flag)


def merge_tails(tails: Sequence[Sequence[TailStep]], sizes: Sequence[tuple[int, int]]) -> tuple[Key, list[list[float]]]:
    """Return the key of a tail that contains the steps of several tails, and each image's numbers for it.

    The tails have equal steps_without_flag(). ``sizes`` are the (height, width) of the images before the tails.
    """
    keys = [tuple(key_step for key_step, _ in tail) for tail in tails]
    union = [*steps_without_flag(tails[0])]
    for key, _ in Counter(keys).most_common():
        _insert_missing(union, key)
    examples = {key_step: numbers for tail in tails for key_step, numbers in tail}
    return tuple(union), [_numbers_of(union, tail, size, examples) for tail, size in zip(tails, sizes, strict=True)]


def _insert_missing(union: list[KeyStep], key: Key) -> None:
    """Insert into ``union`` the steps of ``key`` that are missing, in the order of ``key``."""
    at = 0
    for key_step in key:
        end = next((i for i in range(at, len(union)) if not union[i][0].has_flag), len(union))
        if not key_step[0].has_flag:
            at = end
        elif key_step in union[at:end]:
            at = union.index(key_step, at)
        else:
            union.insert(at, key_step)
        at += 1


def _numbers_of(
    union: Sequence[KeyStep], tail: Sequence[TailStep], size: tuple[int, int], examples: dict[KeyStep, Numbers]
) -> list[float]:
    """Return an image's numbers for a merged tail.

    A step that the image skips gets a flag of 0 and numbers from ``examples``. ``size`` is the (height, width)
    before the tail.
    """
    result: list[float] = []
    remaining = list(reversed(tail))
    for key_step in union:
        kind, flag_at = key_step[0], 4 * key_step[0].has_sizes
        if remaining and remaining[-1][0] == key_step:
            numbers = remaining.pop()[1]
            size = numbers[2:4] if kind.has_sizes else size  # type: ignore[assignment]  # two of them
        else:
            numbers = *(*size, *size)[:flag_at], 0.0, *examples[key_step][flag_at + 1 :]
        result += numbers
    return result


def is_inside(numbers: Numbers) -> bool:
    """Return True if the window of a crop or pad lies within the image."""
    height, width, _, _, top, left, h, w = numbers
    return top >= 0 and left >= 0 and top + h <= height and left + w <= width


# ---- in the loading process


def number_count(key: Key) -> int:
    return sum(kind.number_count for kind, _ in key)


@lru_cache(_CACHE_SIZE)
def head_plan(keys: tuple[Key, ...], sizes: tuple[Any, ...], options: Options) -> Plan:
    """Return the plan that decodes one file and runs the heads of all images made from it.

    ``sizes`` has the (height, width) after each head, or None if that size differs between the images of the batch.
    """
    chains, at = [], 0
    for number, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        chains.append(Chain(ImageSpec(), _steps(key, size, at, number * _STREAMS_PER_VIEW)))
        at += number_count(key)
    if len(keys) == 1:
        return lower(chains[0], options)
    structure = tuple(range(len(keys)))
    return lower(Chain(ImageSpec(), views=tuple(chains), structure=structure, wrapper="images of a sample"), options)


@lru_cache(_CACHE_SIZE)
def tail_plan(pixel_format: PixelFormat, tail: Key, sizes: tuple[Any, Any], options: Options) -> Plan:
    """Return the plan of a tail, for images of a ``pixel_format``.

    ``sizes`` has two entries, the (height, width) before and after the tail. An entry is None if that size differs
    between the images of the batch.
    """
    return lower(Chain(ImageSpec(*pixel_format, size=sizes[0]), _steps(tail, sizes[1])), options, decoded=True)


@lru_cache(_CACHE_SIZE)
def whole_plan(head: Key, tail: Key, size: Any, options: Options) -> Plan:
    """Return the plan of an image's head and tail together, for explain(). ``size`` is the (height, width) after the
    tail, if known."""
    between = None if any(kind.has_sizes for kind, _ in tail) else size
    first = head_plan((head,), (between,), options)
    if not tail:
        return first
    rest = tail_plan(format_after(head), tail, (between, size), options)
    return replace(first, steps=(*first.steps, *rest.steps), lines=(*first.lines, *rest.lines), planes=None)


def _steps(key: Key, size: Any, at: int = 0, stream: int = 0) -> tuple[Translated, ...]:
    """Return the steps of a key as steps of a Plan.

    ``at`` is the column of the key's first number. ``stream`` is the first step's random stream.
    ``size`` is the (height, width) after the last step, or None.
    """
    last = max((number for number, (kind, _) in enumerate(key) if kind.has_sizes), default=-1)
    result = []
    for number, (kind, inside) in enumerate(key):
        draw = None
        if kind.layout:
            draw = Draw("given", (("at", at), ("layout", kind.layout), ("sized", kind.has_sizes)))
        at += kind.number_count
        args = (*kind.args, ("inside", inside)) if kind.op == "crop" else kind.args
        spec = ImageSpec(*kind.pixel_format, size=size if number >= last else None)
        result.append(Translated(kind.op, (PlanStep(kind.op, spec, args, draw, stream=stream + number),)))
    return tuple(result)


def format_after(head: Key) -> PixelFormat:
    return head[-1][0].pixel_format if head else _DECODED


def pipeline_key(plan: Plan) -> Any:
    """Return the cache key of a plan's DALI pipeline, without the image sizes."""
    views = tuple(tuple(replace(step, gives=step.gives.but(size=None)) for step in chain.dali) for chain in plan.chains)
    return views, plan.exact, plan.channels_last
