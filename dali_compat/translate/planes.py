"""Which steps kernels do on the planes of luma and chroma that a GPU's JPEG engine gives (engine/planes)."""

from __future__ import annotations

from ..ops.arguments import resizes_in_whole_numbers
from ..plan import CONVERSIONS, UPRIGHT, Step

NO_CHANGE = ("pil_to_tensor", "identity", UPRIGHT)  # of the values
NO_KERNEL = {*NO_CHANGE, "choose"}
# which of [crop] [resize] [crop] [flips] [conversion to floating point] [normalize] a step may be
_STAGES = {"crop": (1, 3), "resize": (2,), "flip": (4,), "to_dtype": (5,), "normalize": (6,)}
_STAGES |= dict.fromkeys(NO_CHANGE, ())
_STAGES_OF_SIZE = {"crop", "resize"}


def from_planes(ordered: tuple[Step, ...], split: int) -> int | None:
    """Returns how many of the first steps kernels do on a JPEG's planes. The others torch does; None if there are steps
    before ``split`` among these that are for images of several sizes: DALI does them at once, torch one by one."""
    at = _resized_from_planes(ordered) or _picked_from_planes(ordered)
    ragged = not at or ordered[at - 1].gives.size is None
    return None if ragged and any(s.op not in NO_KERNEL for s in ordered[at:split]) else at


def _resized_from_planes(ordered: tuple[Step, ...]) -> int:
    """Counts the first steps that are [crop] [resize] [crop] [flips] [conversions] with a filter, to one size, or
    returns 0."""
    at, stage, size, filters = 0, 0, None, False
    for s in ordered:
        if s.op not in _STAGES or s.when or (s.op == "resize" and not _exact_in_planes(s)):
            break
        if s.op in _STAGES_OF_SIZE:
            allowed = [one for one in _STAGES[s.op] if one > stage and (one != 1 or s.kwargs["inside"])]
            if not allowed:
                break
            stage, size, filters = allowed[0], s.gives.size, filters or s.op == "resize"
        elif _STAGES[s.op]:
            if size is None or _STAGES[s.op][0] < stage:
                break
            stage = _STAGES[s.op][0]
        at += 1
    return at if filters and size is not None else 0


def _picked_from_planes(ordered: tuple[Step, ...]) -> int:
    """Counts the first steps that choose pixels of each image, and conversions after them."""
    at, converts = 0, False
    for s in ordered:
        if s.when or not (_picks(s) or s.op in (*CONVERSIONS, *NO_CHANGE)) or (converts and _picks(s)):
            break
        converts |= s.op in CONVERSIONS
        at += 1
    return at


def _picks(s: Step) -> bool:
    if s.op == "pad":
        return s.kwargs["mode"] == "constant" and not any(s.kwargs["fill"])
    nearest = s.op == "resize" and s.kwargs["like"] == "pil" and s.kwargs["interpolation"].startswith("nearest")
    return nearest or s.op in ("crop", "flip")


def _exact_in_planes(s: Step) -> bool:
    how = s.kwargs
    if how["interpolation"] not in ("bilinear", "bicubic") or how["antialias"] is not True:
        return False
    return how["like"] == "pil" or (how["like"] == "v2" and resizes_in_whole_numbers(how["interpolation"]))
