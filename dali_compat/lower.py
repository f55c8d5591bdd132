"""Where each step runs: the chain that torchvision would run, lowered onto DALI and onto batched torch.

DALI takes every step while images are ragged, and geometry always. Once every image of a batch has one size, pixel
arithmetic belongs to torch operations on the whole batch: they are torchvision's own, exact, and the same on every
device. One exception pays for itself: at the end of a chain DALI's crop_mirror_normalize does flip, conversion to
float32, normalisation and transposition in one kernel (within 7e-7 of torchvision), so the default uses it.
"""

from __future__ import annotations

import torch

from .params import is_random
from .plan import Line, Plan, Step, draw
from .translate.registry import Translated, Untranslatable

DALI, TORCH, NOTHING = "DALI", "torch, on the batch", "-"

# steps that torch runs on the batch once it is uniform
_BATCH_OPS = {"pil_to_tensor", "identity", "to_dtype", "normalize", "grayscale", "flip"}
_NO_KERNEL = {"pil_to_tensor", "identity"}
_BY_PIXEL = {"to_dtype", "normalize", "grayscale", *_NO_KERNEL}


def lower(
    translated: tuple[Translated, ...], exact: bool = False, channels_last: bool = False, gpu: bool = False
) -> Plan:
    """Decide for every step whether DALI or torch runs it, and fuse what DALI does better in one operator.

    Args:
        translated: what translate() gave, one entry a transform.
        exact: two-pass resizing and torch's own conversions, instead of the fastest kernels.
        channels_last: batches in ``torch.channels_last``.
        gpu: whether it will run there. On a GPU two-pass resizing costs a training step 1.5% and evaluation nothing, so
            a chain without random steps has it by default.
    """
    steps = tuple(s.but(stream=i) for i, s in enumerate(s for t in translated for s in t.steps))
    ordered = _geometry_first(steps)
    split = _first_batch_step(ordered)
    if not exact and _is_float32_tail(ordered, split):
        split = len(ordered)
    dali = tuple(s for s in ordered[:split] if s.op not in _NO_KERNEL)
    _refuse_conversions(dali, translated)
    two_pass = exact or (gpu and not any(map(is_random, steps)))
    dali = _lower_resize(dali, two_pass)
    if not exact:
        dali = _fuse_tail(dali, "HWC" if channels_last else "CHW")
    batch = tuple(s for s in ordered[split:] if s.op not in _NO_KERNEL)
    on_batch = {s.stream for s in batch}
    return Plan(steps, dali, batch, exact, channels_last, _lines(translated, on_batch, exact, two_pass))


def _geometry_first(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Crops, pads and flips move before the conversions that precede them: they commute with what works pixel by pixel.

    So DALI sees them while images are uint8, and conversions meet uniform batches. Translators have refused what does
    not commute (a pad with a fill of its own after a conversion).
    """
    ordered: list[Step] = []
    for s in steps:
        at = len(ordered)
        while at and s.op in ("crop", "pad", "flip") and _commutes(s, ordered[at - 1]):
            at -= 1
        ordered.insert(at, s)
    return tuple(ordered)


def _commutes(geometry: Step, before: Step) -> bool:
    if before.op == "grayscale" and geometry.op == "pad":
        return not any(geometry.kwargs["fill"])  # a fill has another colour, and number of channels, before
    return before.op in _BY_PIXEL


def _dtype_before(steps, i: int) -> torch.dtype:
    """dtype of the image that reaches step i. Only conversions change it."""
    return next((s.gives.dtype for s in reversed(steps[:i]) if s.op == "to_dtype"), torch.uint8)


def _first_batch_step(steps) -> int:
    """Index of the first step that torch runs on the batch."""
    split = len(steps)
    while split and steps[split - 1].op in _BATCH_OPS:
        split -= 1
    # DALI flips as exactly as torch does and is there already
    while split < len(steps) and (steps[split].op == "flip" or steps[split].op in _NO_KERNEL):
        split += 1
    return split


def _refuse_conversions(dali: tuple[Step, ...], translated: tuple[Translated, ...]) -> None:
    """DALI converts uint8 to float32 alone; what stands before a resize and converts otherwise is refused."""
    for i, s in enumerate(dali):
        if s.op == "to_dtype" and (_dtype_before(dali, i), s.gives.dtype) != (torch.uint8, torch.float32):
            owners = [t for t in translated for _ in t.steps]
            reason = f"in DALI it would stand before geometry, as a conversion to {s.gives.dtype}"
            raise Untranslatable(owners[s.stream].transform, reason, "move it to the end")


def _is_float32_tail(steps, split: int) -> bool:
    """uint8 to_dtype(float32), perhaps normalize, and nothing else: what crop_mirror_normalize does."""
    tail = [s for s in steps[split:] if s.op not in _NO_KERNEL]
    return (
        [s.op for s in tail] in (["to_dtype"], ["to_dtype", "normalize"])
        and tail[0].gives.dtype == torch.float32
        and tail[0].kwargs["like"] != "cast"
        and _dtype_before(steps, split) == torch.uint8
    )


def _lower_resize(steps: tuple[Step, ...], two_pass: bool) -> tuple[Step, ...]:
    """One pass or two; of a resize followed by a crop within it only the window is computed.

    PARITY: that is closer to Pillow, too, and 40% cheaper.
    """
    lowered: list[Step] = []
    for s in steps:
        before = lowered[-1] if lowered else None
        if s.op == "resize":
            passes = _passes(s) if two_pass else "one"
            s = s.but(draw=draw("resize_lowered", resize=s.draw, crop=None, passes=passes))
        elif before is not None and before.op == "resize" and _crops_inside(before, s):
            args = dict(before.draw.args) | {"crop": s.draw}
            lowered[-1] = before.but(gives=s.gives, draw=draw("resize_lowered", **args), stream=s.stream)
            continue
        lowered.append(s)
    return tuple(lowered)


def _passes(s: Step) -> str:
    """How torchvision resizes: PIL in two passes rounded to 8 bits, v2 on uint8 tensors likewise but always width first,
    v1 on tensors (and v2 on floats) in floating point."""
    if s.kwargs["interpolation"] == "nearest" or s.gives.dtype != torch.uint8 or s.kwargs["like"] == "v1":
        return "one"
    return "as Pillow" if s.kwargs["like"] == "pil" else "width first"


def _crops_inside(resize: Step, crop: Step) -> bool:
    args = dict(resize.draw.args)
    if crop.op != "crop" or args["crop"] is not None:
        return False
    if crop.kwargs["inside"]:
        return True
    size, max_size = (dict(args["resize"].args)[name] for name in ("size", "max_size"))
    return size is not None and len(size) == 1 and max_size is None and size[0] >= max(crop.gives.size)


def _fuse_tail(steps: tuple[Step, ...], layout: str) -> tuple[Step, ...]:
    """[flip] to_dtype [normalize] at the end -> crop_mirror_normalize."""
    kept = list(steps)
    normalize = kept.pop() if kept and kept[-1].op == "normalize" else None
    if not kept or kept[-1].op != "to_dtype":
        return steps
    convert = kept.pop()
    mirror = kept.pop() if kept and kept[-1].op == "flip" and kept[-1].kwargs["axis"] == "horizontal" else None
    channels = convert.gives.channels
    values = normalize.kwargs if normalize else {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    last = Step("crop_mirror_normalize", convert.gives, (*values.items(), ("layout", layout)))
    if mirror:
        last = last.but(draw=mirror.draw, stream=mirror.stream)
    return (*kept, last)


# ---- the account of it

_EXACT = "exact"


def _lines(translated, on_batch: set[int], exact: bool, two_pass: bool) -> tuple[Line, ...]:
    """``on_batch``: the streams (numbers) of the steps that torch runs."""
    lines, i = [], 0
    for t in translated:
        places, ops, fidelity = [], [], []
        for s in t.steps:
            where = NOTHING if s.op in _NO_KERNEL else TORCH if i in on_batch else DALI
            if where != NOTHING:
                places.append(where)
                ops.append(s.op if s.draw is None or s.draw.name in (s.op, "bernoulli") else f"{s.op} ({s.draw.name})")
                fidelity.append(_fidelity(s, where, exact, two_pass))
            i += 1
        where = " + ".join(dict.fromkeys(places)) or NOTHING
        notes = ", ".join(dict.fromkeys(f for f in fidelity if f != _EXACT)) or _EXACT
        lines.append(Line(t.transform, ", ".join(ops) or "nothing to do", where, notes))
    return tuple(lines)


def _fidelity(s: Step, where: str, exact: bool, two_pass: bool) -> str:
    """How far from torchvision, in words that PARITY.md and the parity tests bear out."""
    if s.op == "resize":
        if s.kwargs["interpolation"] == "nearest":
            return "nearest pixel; a rounding tie may differ"
        if s.kwargs["like"] != "pil":
            close = two_pass or s.kwargs["like"] == "v1"
            return "mean error .05 of 255" if close else "mean error .2 of 255 (exact=True: .05)"
        return (
            "two passes as Pillow: mean error .01 of 255"
            if two_pass
            else "one pass: mean error .2 of 255 (exact=True: .01)"
        )
    if where == DALI and s.op in ("to_dtype", "normalize"):
        return "within 1e-6"
    return _EXACT
