"""A program that takes batches to be on the CPU, where torch's loader has them, and ours gives them on a GPU."""

from __future__ import annotations

import weakref

from ..loader import DataLoader

_KINDS = TypeError, RuntimeError, ValueError
_OTHERS = "cpu", "numpy", "torch.floattensor"  # what is on the other side, in torch's words

made: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()
"""Loaders that install() has replaced."""


def remedy(error: BaseException) -> str:
    """Returns what to do about an error that ended the program; "" if it has nothing to do with the batches' device."""
    text = str(error).lower()
    if not isinstance(error, _KINDS) or "cuda" not in text or not any(other in text for other in _OTHERS):
        return ""
    places = sorted({str(one._route.device) for one in made if one._route is not None} - {"cpu"})
    if not places:
        return ""
    where = " and ".join(places)
    return (
        f"dali_compat: its loaders give batches on {where} already, where torch's give them on the CPU. If the program "
        "does not expect that, run it with --device cpu"
    )
