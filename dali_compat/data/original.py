"""Whether a function is the one that torchvision, or this package, has written."""

from __future__ import annotations

from typing import Any

_WRITTEN_BY = "torchvision", __name__.partition(".")[0]


def is_original(function: Any) -> bool:
    """False where somebody has put another one in its place, before this package was imported or after."""
    return str(getattr(function, "__globals__", {}).get("__name__")).partition(".")[0] in _WRITTEN_BY
