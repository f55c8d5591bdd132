"""The fields of a loader's state, so that a wrong one is refused by name before anything is changed."""

from __future__ import annotations

from typing import Any

import torch

from .generators import of_indices, of_loader
from .progress import users_states

_MAYBE = dict | None
_EPOCH = {"number": int, "seed": [int, int], "places": [int] * 3, "at_iter": _MAYBE, "at_first": _MAYBE}
_EPOCH |= {"given": int, "samples": int, "drawn": int, "exhausted": bool, "last": [int, int], "sampler": object}
_STATE = {
    "of": {"data set": str, "batch_size": int | None, "drop_last": bool, "sampler": str, "route": str},
    "ranks": [int, int],
    "begun": int,
    "epoch": _MAYBE,
    "laps": list | tuple | None,
    "sampler": object,
    "now": dict,
    "errors": {"epoch": int, "count": int, "found": [[str, object, int, str]]},
}


def check_state(state: Any, loader: Any = None) -> None:
    """
    Raises:
        ValueError: a field is not what state_dict() gives; the text names it. With ``loader`` generators are looked at.
    """
    _check(state, _STATE, "")
    for name, kind in (("epoch", _EPOCH), ("laps", [int, int])):
        if state[name] is not None:
            _check(state[name], kind, name)
    epoch = state["epoch"] or {}
    _check(users := epoch.get("users", {}), dict, "epoch.users")
    if loader is None:
        return
    for name in [name for name, now in users_states(loader).items() if isinstance(now, dict)]:
        for field, one in (("", state), ("epoch.", epoch), ("epoch.users.", users)):
            _check(one.get(name), _MAYBE, field + name)  # what is in it is the user's
    drawn_from = of_indices(loader, True).states() | of_loader(loader, True).states()
    found = {"now": state["now"]} | {f"epoch.{name}": epoch.get(name) or {} for name in ("at_iter", "at_first")}
    for field, states in found.items():
        for name in states.keys() & drawn_from.keys():
            kind = drawn_from[name]
            is_pythons = isinstance(kind, list) and len(kind) == 3  # of a pair of normal numbers the second, or None
            _check(states[name], [*kind[:2], float | None] if is_pythons else kind, f"{field}.{name}")


def _check(value: Any, kind: Any, field: str) -> None:
    """``kind``: a class; a dictionary of kinds; a list of one kind for any number, or of one for each; else a value of
    the same type, or tensor of the same shape."""
    parts: list[tuple[Any, Any, Any]] = []
    if isinstance(kind, dict):
        right = isinstance(value, dict) and kind.keys() <= value.keys()
        parts = [(value[name], one, f".{name}") for name, one in kind.items()] if right else []
    elif isinstance(kind, list):
        right = isinstance(value, (list, tuple)) and len(kind) in (1, len(value))
        kinds = kind * len(value) if right and len(kind) == 1 else kind
        parts = [(one, kinds[row], f"[{row}]") for row, one in enumerate(value)] if right else []
    elif isinstance(kind, torch.Tensor):
        right = isinstance(value, torch.Tensor) and (value.dtype, value.shape) == (kind.dtype, kind.shape)
    elif isinstance(kind, str):
        right = isinstance(value, str) and value == kind
    else:
        right = isinstance(value, type(kind) if isinstance(kind, (int, float)) else kind)
    if not right:
        raise ValueError(f"no state that state_dict() gave: its {field.lstrip('.') or 'whole'} is {value!r:.80}")
    for one, its, name in parts:
        _check(one, its, field + name)
