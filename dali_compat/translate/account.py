"""Writes explain()'s lines of a plan: for each transform what it became, where it runs, and how faithful it is."""

from __future__ import annotations

from ..inspection.untranslatable import describe
from ..ops.fidelity import EXACT
from ..plan import DALI, EACH, HOST, TORCH, Line, Options, Step
from .chain import Chain

NOWHERE, PYTHON = "-", "Python, sample by sample"


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
            where = HOST if s.op == "choose" else on_batch.get((s.stream, s.gives), DALI)
            places.append(where)
            ops.append(s.op if s.draw is None or s.draw.name in (s.op, "bernoulli") else f"{s.op} ({s.draw.name})")
            fidelity.append(_fidelity(s, where, options, two_pass))
        where = " + ".join(dict.fromkeys(places)) or NOWHERE
        notes = ", ".join(dict.fromkeys(f for f in fidelity if f != EXACT)) or EXACT
        if t.transform:
            lines.append(Line(t.transform, ", ".join(dict.fromkeys(ops)) or "nothing to do", where, notes))
    brought, functions = chain.functions[: chain.brought], chain.functions[chain.brought :]
    for function in brought:
        why = "torchvision's own, beside what follows: its views are too many pixels to bring there"
        lines.append(Line(describe(function), "called as it is", PYTHON, why))
    for function, refusal in zip(functions, chain.refusals, strict=True):
        lines.append(
            Line(describe(function), "called as it is", PYTHON, f"torchvision's own, because {refusal.reason}")
        )
    return tuple(lines)


def _fidelity(s: Step, where: str, options: Options, two_pass: bool) -> str:
    """Returns the step's own words."""
    return s.fidelity(s, where, options, two_pass) if callable(s.fidelity) else s.fidelity
