"""Assign the steps of a chain to DALI and to torch.

DALI runs the leading steps that it supports, except for pixel arithmetic at their end. torch runs this arithmetic, to
get torchvision's exact pixels. torch also runs all later steps, on all images of a batch together if they have the same
size. Unless exact=True, DALI's crop_mirror_normalize flips, converts to float32, normalizes and transposes at the end
of a chain, in one kernel and within 7e-7 of torchvision.

DALI's resizes and warps are not exact, so with exact=True torch runs the first of them and all later steps. DALI never
resizes floats. On the CPU, DALI resizes nothing, because its filters treat the image's border differently from
torchvision's. Unless exact=True, PyTorch resizes uint8 images on the CPU, nearly as Pillow does but in less time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..errors import Unsupported
from ..ops.arguments import is_integer_resize, passes_of
from ..ops.draws import is_given, is_random
from ..plan import NOWHERE, Draw, Line, Options, Plan, Step, draw
from .chain import Chain, lines_of
from .planes import from_planes


def lower(chain: Chain, options: Options = Options(), decoded: bool = False) -> Plan:
    """Return the plan of a chain. If ``decoded`` is True, the images are tensors already, and torch runs all steps.

    Raises:
        Unsupported: a transform has no translation.
    """
    if chain.refused:
        raise Unsupported(str(chain.refused))
    if chain.views:
        views = tuple(lower(view, options, decoded) for view in chain.views)
        line = Line(chain.wrapper, f"{len(views)} views of one image", NOWHERE, "")
        shared = (options.exact, options.channels_last, chain.takes)
        return Plan((), (), (), *shared, lines=(line,), views=views, structure=chain.structure)
    steps = tuple(s for t in chain.translated for s in t.steps)
    ordered = tuple(s.operation.lowered(s, options, decoded) for s in _geometry_first(steps))
    split = 0 if decoded else _first_batch_step(ordered, options)
    if not options.exact and not decoded:
        split = _after_float32(ordered, split)
    dali = _changing(ordered[:split])
    # two passes make training steps on a GPU 1.5% slower, but not evaluation
    two_pass = options.gpu and not any(is_random(s) and not is_given(s) for s in steps)
    dali = tuple(s.operation.for_dali(s) for s in _lower_resize(dali, two_pass))
    if not options.exact:
        dali = _fuse_tail(dali, "HWC" if options.channels_last else "CHW")
    batch = _changing(ordered[split:])
    if not (options.exact or options.gpu):
        batch = _fuse_resize(batch)
    lines = lines_of(chain, ordered, split, options, two_pass)
    plan = Plan(steps, dali, batch, options.exact, options.channels_last, chain.takes, lines)
    if not options.exact or decoded or chain.takes.channels != 3:
        return plan
    at = from_planes(ordered, split)
    if at is None:
        return plan
    return replace(plan, planes=_changing(ordered[:at]), after=_changing(ordered[at:]))


def _changing(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(s for s in steps if not s.operation.unchanged)


def _geometry_first(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Move crops, pads and flips before the pixelwise steps that they commute with.

    DALI then runs the moved steps on uint8 images.
    """
    ordered: list[Step] = []
    for s in steps:
        at = len(ordered)
        # translators refuse other steps, such as a pad with a nonzero fill after a conversion
        while at and s.operation.moves and _commutes(s, ordered[at - 1]):
            at -= 1
        ordered.insert(at, s)
    return tuple(ordered)


def _commutes(geometry: Step, before: Step) -> bool:
    if before.op == "grayscale" and geometry.op == "pad":
        return not any(geometry.kwargs["fill"])  # grayscale would change the fill color
    return before.operation.commutes


def _dtype_before(steps, i: int) -> torch.dtype:
    # a step that was moved before a conversion still states the dtype after the conversion
    return next((s.gives.dtype for s in reversed(steps[:i]) if not s.operation.moves), torch.uint8)


def _first_batch_step(steps, options: Options) -> int:
    able = 0
    while able < len(steps) and _dali_can(steps, able, options):
        able += 1
    split = able
    while split and (steps[split - 1].operation.commutes or steps[split - 1].op == "flip"):
        split -= 1
    # DALI's flips are exact, and the images are already in DALI
    while split < able and (steps[split].op == "flip" or steps[split].operation.unchanged):
        split += 1
    return split


def _fuse_resize(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Fuse leading steps into resize_mirror_normalize, if all results have one size.

    The steps are resize [pad] [crop] [flip] to_dtype(float32) [normalize] of uint8 images. Steps in brackets are
    optional.
    """
    if not steps or steps[0].op != "resize" or not is_integer_resize(steps[0]) or steps[0].kwargs["like"] == "pil":
        return steps
    resize, *rest = steps
    pad = _popped(rest, "pad", mode="constant")
    inside = rest and rest[0].op == "crop" and (rest[0].kwargs["inside"] if pad else _is_inside(resize.draw, rest[0]))
    crop = _popped(rest, "crop") if inside else None
    mirror, convert = _popped(rest, "flip", axis="horizontal"), _popped(rest, "to_dtype", dtype=torch.float32)
    if convert is None or convert.kwargs["like"] == "cast" or convert.gives.size is None:
        return steps
    normalize = _popped(rest, "normalize")
    drawn = [one for one in (resize, pad, crop, mirror) if one is not None and is_random(one)]
    if len(drawn) > 1 and not all(map(is_given, drawn)):
        return steps
    values = normalize.kwargs if normalize else {"mean": (0.0,), "std": (1.0,)}
    fill = pad.kwargs["fill"] if pad else ()
    how = tuple((name, resize.kwargs[name]) for name in ("interpolation", "like"))
    args = (*how, *values.items(), ("fill", fill))
    parts = {"pad": pad and pad.draw, "crop": crop and crop.draw, "mirror": mirror and mirror.draw}
    numbers, stream = draw("resized_window", resize=resize.draw, **parts), (drawn or [resize])[0].stream
    return (Step("resize_mirror_normalize", (normalize or convert).gives, args, numbers, stream=stream), *rest)


def _popped(steps: list[Step], op: str, **how: Any) -> Step | None:
    """Remove and return the first step if it is an unconditional ``op`` with the arguments ``how``. Otherwise
    return None."""
    taken = steps and steps[0].op == op and not steps[0].when and how.items() <= steps[0].kwargs.items()
    return steps.pop(0) if taken else None


def _dali_can(steps, i: int, options: Options) -> bool:
    s = steps[i]
    if s.operation.unchanged:
        return True
    if s.when or not s.operation.in_dali(s, _dtype_before(steps, i), options) or not options.can(s):
        return False
    # in a mask, the neighboring pixel that DALI sometimes picks may belong to another class
    return not (is_given(s) and str(s.kwargs.get("interpolation")).startswith("nearest"))


def _after_float32(steps, split: int) -> int:
    """Return ``split``, increased by the steps that DALI's crop_mirror_normalize can also run. These are a
    to_dtype(float32) of uint8 images, and a normalize directly after it."""
    i = split
    while i < len(steps) and steps[i].operation.unchanged:
        i += 1
    if i == len(steps) or steps[i].op != "to_dtype" or steps[i].when:
        return split
    if steps[i].gives.dtype != torch.float32 or steps[i].kwargs["like"] == "cast":
        return split
    if _dtype_before(steps, i) != torch.uint8:
        return split
    while i + 1 < len(steps) and steps[i + 1].operation.unchanged:
        i += 1
    return i + 2 if i + 1 < len(steps) and steps[i + 1].op == "normalize" and not steps[i + 1].when else i + 1


def _lower_resize(steps: tuple[Step, ...], two_pass: bool) -> tuple[Step, ...]:
    """Choose one or two passes for each resize. If possible, make the next crop a part of the resize."""
    lowered: list[Step] = []
    for s in steps:
        before = lowered[-1] if lowered else None
        if s.op == "resize":
            s = s.but(draw=draw("resize_lowered", resize=s.draw, crop=None, passes=passes_of(s) if two_pass else "one"))
        elif before is not None and before.op == "resize" and _crops_inside(before, s):
            # computing only the window is closer to Pillow and takes 40% less time
            args = dict(before.draw.args) | {"crop": s.draw}  # type: ignore[union-attr]  # a resize always has a draw
            lowered[-1] = before.but(gives=s.gives, draw=draw("resize_lowered", **args), stream=s.stream)
            continue
        lowered.append(s)
    return tuple(lowered)


def _crops_inside(resize: Step, crop: Step) -> bool:
    args = dict(resize.draw.args)  # type: ignore[union-attr]  # a resize always has a draw
    if crop.op != "crop" or args["crop"] is not None:
        return False
    if is_random(resize) and not (is_given(crop) and args["resize"].name.startswith("given")):
        return False
    return _is_inside(args["resize"], crop)


def _is_inside(resize: Draw | None, crop: Step) -> bool:
    """Return True if a crop lies within the result of the preceding resize. ``resize`` is the Draw of the resize."""
    if crop.kwargs["inside"]:
        return True
    size, max_size = (dict(resize.args).get(name) if resize else None for name in ("size", "max_size"))
    return size is not None and len(size) == 1 and max_size is None and size[0] >= max(crop.gives.size or ())


def _fuse_tail(steps: tuple[Step, ...], layout: str) -> tuple[Step, ...]:
    """Fuse final steps into crop_mirror_normalize.

    The steps are [flip] to_dtype [normalize]. Steps in brackets are optional.
    """
    kept = list(reversed(steps))
    normalize, convert = _popped(kept, "normalize"), _popped(kept, "to_dtype")
    if convert is None:
        return steps
    mirror = _popped(kept, "flip", axis="horizontal")
    channels = convert.gives.channels
    values = normalize.kwargs if normalize else {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    args = (*values.items(), ("layout", layout))
    last = Step("crop_mirror_normalize", convert.gives, args)
    if mirror:
        last = last.but(draw=mirror.draw, stream=mirror.stream)
    return (*reversed(kept), last)
