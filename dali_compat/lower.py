"""Where each step runs: the chain that torchvision would run, lowered onto DALI and onto batched torch.

DALI takes every step while images are ragged, and geometry always. Once every image of a batch has one size, pixel
arithmetic belongs to torch operations on the whole batch: they are torchvision's own, exact, and the same on every
device. One exception pays for itself: at the end of a chain DALI's crop_mirror_normalize does flip, conversion to
float32, normalisation and transposition in one kernel (within 7e-7 of torchvision), so the default uses it.
"""

from __future__ import annotations

import torch

from .plan import Line, Plan, Step, draw
from .translate.registry import Translated

DALI, TORCH, NOTHING = "DALI", "torch, on the batch", "-"

# steps that torch runs on the batch once it is uniform
_BATCH_OPS = {"pil_to_tensor", "identity", "to_dtype", "normalize", "grayscale", "flip"}
_GEOMETRY = {"crop", "pad", "resize", "flip"}
_NO_KERNEL = {"pil_to_tensor", "identity"}


def lower(translated: tuple[Translated, ...], exact: bool = False, channels_last: bool = False) -> Plan:
    """Decide for every step whether DALI or torch runs it, and fuse what DALI does better in one operator.

    Args:
        translated: what translate() gave, one entry a transform.
        exact: two-pass resizing and torch's own conversions, instead of the fastest kernels.
        channels_last: batches in ``torch.channels_last``.
    """
    steps = tuple(s.but(stream=i) for i, s in enumerate(s for t in translated for s in t.steps))
    split = _first_batch_step(steps)
    if not exact and _is_float32_tail(steps[split:]):
        split = len(steps)
    dali = tuple(s for s in steps[:split] if s.op not in _NO_KERNEL)
    dali = _lower_resize(dali, exact)
    if not exact:
        dali = _fuse_tail(dali, "HWC" if channels_last else "CHW")
    batch = tuple(s for s in steps[split:] if s.op not in _NO_KERNEL)
    return Plan(steps, dali, batch, exact, channels_last, _lines(translated, split, exact))


def _first_batch_step(steps) -> int:
    """Index of the first step that torch runs on the batch."""
    split = len(steps)
    while split and steps[split - 1].op in _BATCH_OPS:
        split -= 1
    # DALI flips as exactly as torch does and is there already
    while split < len(steps) and (steps[split].op == "flip" or steps[split].op in _NO_KERNEL):
        split += 1
    return split


def _is_float32_tail(tail) -> bool:
    """to_dtype(float32), perhaps normalize, and nothing else: what crop_mirror_normalize does."""
    ops = [s.op for s in tail if s.op not in _NO_KERNEL]
    return ops in (["to_dtype"], ["to_dtype", "normalize"], ["to_dtype", "flip"], ["to_dtype", "flip", "normalize"]) and all(
        s.gives.dtype == torch.float32 and s.kwargs.get("like") != "cast" for s in tail if s.op == "to_dtype"
    )


def _lower_resize(steps: tuple[Step, ...], exact: bool) -> tuple[Step, ...]:
    """One pass or two; of a resize followed by a crop within it only the window is computed.

    PARITY: that is closer to Pillow, too, and 40% cheaper.
    """
    lowered: list[Step] = []
    for s in steps:
        before = lowered[-1] if lowered else None
        if s.op == "resize":
            two_pass = exact and s.kwargs["interpolation"] != "nearest" and s.gives.dtype == torch.uint8
            s = s.but(draw=draw("resize_lowered", resize=s.draw, crop=None, two_pass=two_pass))
        elif before is not None and before.op == "resize" and _crops_inside(before, s):
            args = dict(before.draw.args) | {"crop": s.draw}
            lowered[-1] = before.but(gives=s.gives, draw=draw("resize_lowered", **args), stream=s.stream)
            continue
        lowered.append(s)
    return tuple(lowered)


def _crops_inside(resize: Step, crop: Step) -> bool:
    args = dict(resize.draw.args)
    if crop.op != "crop" or args["crop"] is not None:
        return False
    if crop.kwargs["inside"]:
        return True
    size, max_size = (dict(args["resize"].args)[name] for name in ("size", "max_size"))
    return size is not None and len(size) == 1 and max_size is None and size[0] >= max(crop.gives.size)


def _fuse_tail(steps: tuple[Step, ...], layout: str) -> tuple[Step, ...]:
    """[flip] to_dtype [flip] [normalize] at the end -> crop_mirror_normalize."""
    steps = list(steps)
    normalize = steps.pop() if steps and steps[-1].op == "normalize" else None
    mirror = steps.pop() if steps and _is_mirror(steps[-1]) else None
    if not steps or steps[-1].op != "to_dtype" or steps[-1].gives.dtype != torch.float32:
        return tuple(steps + [s for s in (mirror, normalize) if s])
    convert = steps.pop()
    if mirror is None and steps and _is_mirror(steps[-1]):
        mirror = steps.pop()
    channels = convert.gives.channels
    values = normalize.kwargs if normalize else {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    values |= {"layout": layout}
    last = Step("crop_mirror_normalize", convert.gives, tuple(values.items()))
    if mirror:
        last = last.but(draw=mirror.draw, stream=mirror.stream)
    return (*steps, last)


def _is_mirror(s: Step) -> bool:
    return s.op == "flip" and s.kwargs["axis"] == "horizontal"


# ---- the account of it

_EXACT = "exact"


def _lines(translated, split: int, exact: bool) -> tuple[Line, ...]:
    lines, i = [], 0
    for t in translated:
        places, ops, fidelity = [], [], []
        for s in t.steps:
            where = NOTHING if s.op in _NO_KERNEL else DALI if i < split else TORCH
            if where != NOTHING:
                places.append(where)
                ops.append(s.op if s.draw is None or s.draw.name in (s.op, "bernoulli") else f"{s.op} ({s.draw.name})")
                fidelity.append(_fidelity(s, where, exact))
            i += 1
        where = " + ".join(dict.fromkeys(places)) or NOTHING
        notes = ", ".join(dict.fromkeys(f for f in fidelity if f != _EXACT)) or _EXACT
        lines.append(Line(t.transform, ", ".join(ops) or "nothing to do", where, notes))
    return tuple(lines)


def _fidelity(s: Step, where: str, exact: bool) -> str:
    """How far from torchvision, in words that PARITY.md and the parity tests bear out."""
    if s.op == "resize":
        if s.kwargs["interpolation"] == "nearest":
            return "nearest pixel; a rounding tie may differ"
        return "two passes as Pillow: mean error .01 of 255" if exact else "one pass: mean error .2 of 255 (exact=True: .01)"
    if where == DALI and s.op in ("to_dtype", "normalize"):
        return "within 1e-6"
    return _EXACT
