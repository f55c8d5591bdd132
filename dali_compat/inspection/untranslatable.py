"""The error for a transform without a translation, and descriptions of transforms for messages."""

from __future__ import annotations

import re

from ..runtime.messages import repr_of

_ADDRESS = re.compile(r"<(?:function |class ')?(?:[\w<>]+\.)*([\w<>]+)(?: object)?(?: at 0x[0-9a-f]+|')>")


class Untranslatable(Exception):
    """Raised if a transform has no faithful translation.

    Attributes:
        transform: the transform's repr, on one line.
        reason: the reason, with the name of the argument if one is at fault.
        remedy: what the user can do, or ''.
        name: name of the class or function at fault, such as a transform inside a Compose.
    """

    def __init__(self, transform, reason: str, remedy: str = "", within: Untranslatable | None = None):
        self.transform = describe(transform)
        self.reason = reason
        self.remedy = remedy
        self.name: str = within.name if within is not None else _name(transform)
        super().__init__(f"{self.transform}: {reason}" + (f"; {remedy}" if remedy else ""))


def _name(transform) -> str:
    if isinstance(transform, str):
        return transform.partition("(")[0]
    return str(getattr(transform, "__qualname__", type(transform).__name__))


def describe(transform) -> str:
    """Return a one-line description of a transform for messages. A string is returned unchanged."""
    if isinstance(transform, str):
        return transform
    if type(transform).__name__ == "Lambda" and hasattr(transform, "lambd"):
        return f"Lambda({describe(transform.lambd)})"
    if transform is not None and not hasattr(type(transform), "forward") and hasattr(transform, "__qualname__"):
        return str(transform.__qualname__)
    if getattr(type(transform), "__repr__", None) is object.__repr__:
        return type(transform).__name__
    return " ".join(_ADDRESS.sub(r"\1", repr_of(transform)).split())
