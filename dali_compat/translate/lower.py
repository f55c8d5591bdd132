"""Lowers the chain that torchvision would run onto DALI and onto batched torch.

DALI takes every step while images are ragged, and geometry always. Once every image of a batch has one size, pixel
arithmetic belongs to torch operations on the whole batch: they are torchvision's own, exact, and the same on every
device. One exception pays for itself: at the end of a chain DALI's crop_mirror_normalize does flip, conversion to
float32, normalisation and transposition in one kernel (within 7e-7 of torchvision), so the default uses it. The other
way about, DALI can neither resize nor warp to the last bit: where that is asked for, torch's part begins before the
first of these. Floats are never resized by DALI, and a CPU's DALI resizes nothing: at the rim its filters repeat pixels
that torchvision's leave out. PyTorch resizes bytes in a quarter of its time there, and nearly as Pillow does.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch

from ..ops.arguments import BY_TORCH, is_in_whole_numbers, passes_of
from ..ops.draws import is_given, is_random
from ..ops.warp import as_kernels_do
from ..plan import Call, Draw, ImageSpec, Line, Options, Plan, Step, draw
from .chain import NOWHERE, Chain, lines_of, translate
from .planes import NO_CHANGE, NO_KERNEL, from_planes

# steps that DALI can do, and those among them that torch does as well once the batch is uniform
_DALI_OPS = {"crop", "pad", "flip", "resize", "resize_by_choice", "grayscale", "to_dtype", "jpeg"}
_DALI_OPS |= {"warp_affine", "warp_perspective"}
_BATCH_OPS = {"pil_to_tensor", "identity", "to_dtype", "normalize", "grayscale", "flip"}
_BY_PIXEL = {"to_dtype", "normalize", "grayscale", *NO_CHANGE}


def lower(chain: Chain, options: Options = Options(), decoded: bool = False) -> Plan:
    """Decide for every step whether DALI or torch runs it, and fuse what DALI does better in one operator.

    ``decoded``: the images are in torch's hands already (they come from a Call), so torch runs all of it.
    """
    if chain.views:
        views = tuple(lower(view, options, decoded) for view in chain.views)
        line = Line(chain.wrapper, f"{len(views)} views of one image", NOWHERE, "")
        shared = (options.exact, options.channels_last, chain.takes)
        return Plan((), (), (), *shared, lines=(line,), views=views, structure=chain.structure)
    steps = tuple(s for t in chain.translated for s in t.steps)
    ordered = tuple(map(as_kernels_do, _geometry_first(steps)))
    if options.exact:
        ordered = tuple(map(_by_torchvision, ordered))
    split = 0 if decoded else _first_batch_step(ordered, options)
    if not options.exact and not decoded:
        split = _after_float32(ordered, split)
    if not (options.exact or options.gpu or decoded):
        ordered = (*ordered[:split], *map(_in_whole_numbers, ordered[split:]))
    dali = tuple(s for s in ordered[:split] if s.op not in NO_KERNEL)
    two_pass = options.gpu and not any(is_random(s) and not is_given(s) for s in steps)
    dali = tuple(map(_warp_in_dali, _lower_resize(dali, two_pass)))
    if not options.exact:
        dali = _fuse_tail(dali, "HWC" if options.channels_last else "CHW")
    batch = tuple(s for s in ordered[split:] if s.op not in NO_CHANGE)
    if not (options.exact or options.gpu):
        batch = _fuse_resize(batch)
    call = None
    if chain.functions:
        reasons, names = (tuple(map(said, chain.refusals)) for said in (str, attrgetter("name")))
        call = Call(chain.functions, reasons, chain.rest, chain.streams, chain.view, names)
    lines = lines_of(chain, ordered, split, options, two_pass)
    plan = Plan(steps, dali, batch, options.exact, options.channels_last, chain.takes, call, lines)
    if not options.exact or decoded or chain.takes.channels != 3:
        return plan
    at = from_planes(ordered, split)
    if at is None:
        return plan
    planes, after = (tuple(s for s in part if s.op not in NO_CHANGE) for part in (ordered[:at], ordered[at:]))
    return replace(plan, planes=planes, after=after)


def continued(plan: Plan, spec: ImageSpec) -> Plan:
    """The plan of what comes after a plan's call, once it is known what the call gives."""
    call = plan.call
    assert call is not None
    if spec not in call.plans:
        chain = replace(translate(call.rest, spec, call.stream + 1), view=call.view)
        call.plans[spec] = lower(chain, Options(plan.exact, plan.channels_last), decoded=True)
    return call.plans[spec]


def plans_ahead(plan: Plan) -> list[Plan]:
    """A plan and those that follow its calls; of several views one view after another. A call gives the kind of image
    that it takes, as far as anybody knows, or a tensor as ToTensor's, where more is translated then."""
    if plan.views:
        return [plan, *(ahead for view in plan.views for ahead in plans_ahead(view))]
    if plan.call is None:
        return [plan]
    guesses = [plan.gives] + [plan.gives.but(kind="tensor", dtype=torch.float32)] * (plan.gives.kind == "pil")
    ways = [plans_ahead(continued(plan, guess)) for guess in guesses]
    return [plan, *min(ways, key=lambda way: sum(ahead.call is not None for ahead in way))]


def key_of(plan: Plan) -> tuple:
    """Returns a key that equal plans share; those after their calls are equal, too: settings may have changed there."""
    return tuple(ahead.key for ahead in plans_ahead(plan))


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


def _warp_in_dali(s: Step) -> Step:
    if s.op not in ("warp_affine", "warp_perspective"):
        return s
    how = {name: s.kwargs[name] for name in ("interpolation", "fill")}
    return s.but(args=tuple(how.items()), draw=draw("dali_matrix", of=s.draw, interpolation=how["interpolation"]))


def _dtype_before(steps, i: int) -> torch.dtype:
    """dtype of the image that reaches step i. Only conversions change it."""
    return next((s.gives.dtype for s in reversed(steps[:i]) if s.op in ("to_dtype", "tensor_to_pil")), torch.uint8)


def _first_batch_step(steps, options: Options) -> int:
    """Index of the first step that torch runs."""
    able = 0
    while able < len(steps) and _dali_can(steps, able, options):
        able += 1
    split = able
    while split and steps[split - 1].op in _BATCH_OPS:
        split -= 1
    # DALI flips as exactly as torch does and is there already
    while split < able and (steps[split].op == "flip" or steps[split].op in NO_KERNEL):
        split += 1
    return split


def _by_torchvision(s: Step) -> Step:
    """Returns what only torchvision's own function does to the last bit."""
    if s.op != "gaussian_blur" or not is_given(s):
        return s
    return s.but(args=(*s.args, ("by_torchvision", True)))


def _in_whole_numbers(s: Step) -> Step:
    """A step as a CPU's torch does it; a resize that goes in whole numbers does so, of PIL images, too."""
    by_torch = is_in_whole_numbers(s) and s.kwargs["like"] == "pil"
    return s.but(args=tuple((s.kwargs | {"like": BY_TORCH}).items())) if by_torch else s


def _fuse_resize(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """resize [pad] [crop] [flip] uint8 to_dtype(float32) [normalize] to one size -> resize_mirror_normalize."""
    if not steps or steps[0].op != "resize" or not is_in_whole_numbers(steps[0]) or steps[0].kwargs["like"] == "pil":
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
    """Takes the first step off, if it is this one, with these arguments, and for all images."""
    taken = steps and steps[0].op == op and not steps[0].when and how.items() <= steps[0].kwargs.items()
    return steps.pop(0) if taken else None


def _dali_can(steps, i: int, options: Options) -> bool:
    s = steps[i]
    if s.op in NO_KERNEL:
        return s.op != "choose"
    if s.op not in _DALI_OPS or s.when or not options.can(s):
        return False
    if s.op == "resize" and not _dali_resizes(s):
        return False
    if s.op in ("resize", "resize_by_choice") and (options.exact or not options.gpu):
        return False
    if is_given(s) and str(s.kwargs.get("interpolation")).startswith("nearest"):
        return False  # it may be a mask: DALI takes another pixel at times, which may be of another class
    if s.op.startswith("warp_") and (options.exact or s.kwargs["like"] != "pil"):
        return False
    if s.op == "jpeg" and (s.gives.channels != 3 or (options.exact and options.gpu)):
        return False  # a GPU's is arithmetic of its own
    # it converts uint8 to float32 alone
    return s.op != "to_dtype" or (_dtype_before(steps, i), s.gives.dtype) == (torch.uint8, torch.float32)


def _dali_resizes(s: Step) -> bool:
    """DALI has no close form of Pillow's box and hamming filters (measured), of nearest and lanczos as
    torchvision has them on tensors, of filters without antialiasing, and of floats, where its rim is off by 40 levels
    (measured)."""
    if s.gives.dtype != torch.uint8:
        return False
    if s.kwargs["like"] == "pil":
        return s.kwargs["interpolation"] in ("nearest", "nearest-exact", "bilinear", "bicubic", "lanczos")
    return s.kwargs["interpolation"] in ("bilinear", "bicubic") and s.kwargs["antialias"] is True


def _after_float32(steps, split: int) -> int:
    """Returns the index of what comes after [uint8 to_dtype(float32), perhaps normalize], where that is what torch
    would begin with: crop_mirror_normalize does it."""
    i = split
    while i < len(steps) and steps[i].op in NO_KERNEL and steps[i].op != "choose":
        i += 1
    if i == len(steps) or steps[i].op != "to_dtype" or steps[i].when:
        return split
    if steps[i].gives.dtype != torch.float32 or steps[i].kwargs["like"] == "cast":
        return split
    if _dtype_before(steps, i) != torch.uint8:
        return split
    while i + 1 < len(steps) and steps[i + 1].op in NO_CHANGE:
        i += 1
    return i + 2 if i + 1 < len(steps) and steps[i + 1].op == "normalize" and not steps[i + 1].when else i + 1


def _lower_resize(steps: tuple[Step, ...], two_pass: bool) -> tuple[Step, ...]:
    """One pass or two; of a resize followed by a crop within it only the window is computed.

    That is closer to Pillow, too, and 40% cheaper.
    """
    lowered: list[Step] = []
    for s in steps:
        before = lowered[-1] if lowered else None
        if s.op == "resize":
            s = s.but(draw=draw("resize_lowered", resize=s.draw, crop=None, passes=passes_of(s) if two_pass else "one"))
        elif before is not None and before.op == "resize" and _crops_inside(before, s):
            args = dict(before.draw.args) | {"crop": s.draw}  # type: ignore[union-attr]  # a resize has one
            lowered[-1] = before.but(gives=s.gives, draw=draw("resize_lowered", **args), stream=s.stream)
            continue
        lowered.append(s)
    return tuple(lowered)


def _crops_inside(resize: Step, crop: Step) -> bool:
    args = dict(resize.draw.args)  # type: ignore[union-attr]  # a resize has one
    if crop.op != "crop" or args["crop"] is not None:
        return False
    if is_random(resize) and not (is_given(crop) and args["resize"].name.startswith("given")):
        return False
    return _is_inside(args["resize"], crop)


def _is_inside(resize: Draw | None, crop: Step) -> bool:
    """Returns whether a crop's windows lie within what the draw of a resize gives."""
    if crop.kwargs["inside"]:
        return True
    size, max_size = (dict(resize.args).get(name) if resize else None for name in ("size", "max_size"))
    return size is not None and len(size) == 1 and max_size is None and size[0] >= max(crop.gives.size or ())


def _fuse_tail(steps: tuple[Step, ...], layout: str) -> tuple[Step, ...]:
    """[flip] to_dtype [normalize] at the end -> crop_mirror_normalize."""
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
