"""What explain() says of a plan: for each transform what it became, where that runs, and how faithful it is."""

from __future__ import annotations

from .plan import Line, Options, Step
from .translate.registry import Chain, describe

DALI, TORCH, NOTHING = "DALI", "torch, on the batch", "-"
EACH, PYTHON = "torch, image by image", "Python, sample by sample"
_EXACT = "exact"


def lines_of(chain: Chain, ordered, split: int, options: Options, two_pass: bool) -> tuple[Line, ...]:
    """``ordered[split:]`` are the steps that torch runs."""
    on_batch, size = {}, ordered[split - 1].gives.size if split else chain.takes.size
    for s in ordered[split:]:
        on_batch[s.stream, s.gives] = TORCH if size else EACH
        size = s.gives.size
    lines = []
    for t in chain.translated:
        places, ops, fidelity = [], [], []
        for s in t.steps:
            if s.op in ("pil_to_tensor", "identity"):
                continue
            where = "the host" if s.op == "choose" else on_batch.get((s.stream, s.gives), DALI)
            places.append(where)
            ops.append(s.op if s.draw is None or s.draw.name in (s.op, "bernoulli") else f"{s.op} ({s.draw.name})")
            fidelity.append(_fidelity(s, where, options, two_pass))
        where = " + ".join(dict.fromkeys(places)) or NOTHING
        notes = ", ".join(dict.fromkeys(f for f in fidelity if f != _EXACT)) or _EXACT
        if t.transform:
            lines.append(Line(t.transform, ", ".join(dict.fromkeys(ops)) or "nothing to do", where, notes))
    brought, functions = chain.functions[: chain.brought], chain.functions[chain.brought :]
    for function in brought:
        why = "torchvision's own, beside what follows: its views are too many pixels to bring there"
        lines.append(Line(describe(function), "called as it is", PYTHON, why))
    if functions:
        name = ", ".join(map(describe, functions))
        reason = chain.refused.reason if chain.refused is not None else ""
        lines.append(Line(name, "called as it is", PYTHON, f"torchvision's own, because {reason}"))
    return tuple(lines)


def _fidelity(s: Step, where: str, options: Options, two_pass: bool) -> str:
    """How far from torchvision, in words that the parity tests bear out."""
    if s.op == "resize" and where == DALI:
        return _fidelity_of_resize(s, two_pass)
    if s.op == "resize" and options.gpu and _in_floats(s):
        return "exact but for the order of additions"
    if s.op in ("rotate", "affine", "perspective") and where == DALI:
        return "mean error .001 of 255"
    if s.op == "gaussian_blur":
        return "mean error .0001 of 255"
    if s.op == "jpeg" and where == DALI and options.gpu:
        return "mean error 1 of 255 (exact=True: 0)"
    if where == DALI and s.op in ("to_dtype", "normalize"):
        return "within 1e-6"
    return _EXACT


def _in_floats(resize: Step) -> bool:
    """Whether torchvision's sums are of floating point numbers."""
    like, interpolation = resize.kwargs["like"], resize.kwargs["interpolation"]
    if like == "pil" or interpolation.startswith("nearest"):
        return False
    return like == "v1" or resize.gives.dtype.is_floating_point


def _fidelity_of_resize(s: Step, two_pass: bool) -> str:
    if s.kwargs["interpolation"].startswith("nearest"):
        return "nearest pixel; a rounding tie may differ (exact=True: 0)"
    if s.kwargs["like"] != "pil":
        close = two_pass or s.kwargs["like"] == "v1"
        return "mean error .05 of 255 (exact=True: 0)" if close else "mean error .2 of 255 (exact=True: 0)"
    if two_pass:
        return "two passes as Pillow: mean error .01 of 255 (exact=True: 0)"
    return "one pass: mean error .2 of 255 (exact=True: 0)"
