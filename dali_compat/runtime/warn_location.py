"""Which line of the user's has called; and a warning there."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

from ..errors import FallbackWarning

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
_announced: set[str] = set()


def tell_of_fallback(what: str, fallback: str, told: set[str]) -> None:
    """Says that something does not run in DALI, as DataLoader's ``fallback`` has it: "warn" does so once for a text,
    which ``told`` remembers, and "silent" not at all.

    Raises:
        RuntimeError: fallback is "error".
    """
    if fallback == "error":
        raise RuntimeError(f"fallback='error', but {what}")
    if fallback == "warn" and what not in told:
        told.add(what)
        warnings.warn(what, FallbackWarning, stacklevel=stack_level())


def announce(became: str) -> None:
    """Prints what the loader that the user's line makes became, to stderr; once where several are alike."""
    line = f"{users_line()} runs on {became}"
    if line not in _announced:
        _announced.add(line)
        print(line, file=sys.stderr)


def is_installed(path: str) -> bool:
    """Returns whether a file of code belongs to an installed package."""
    return any(folder in path for folder in _INSTALLED)


def stack_level() -> int:
    """For warnings.warn() in the function that asks: the user's line."""
    return _users()[0]


def users_line() -> str:
    """File and number of the user's line: "train.py:31"."""
    frame = _users()[1]
    path = frame.f_code.co_filename
    inside = os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path
    return f"{inside}:{frame.f_lineno}"


def _users() -> tuple[int, FrameType]:
    """The first call that comes from no installed package, or at least from neither this one nor torch; how many there
    are up to it, from the caller's caller on."""
    level, first, other = 1, sys._getframe(2), None
    frame: FrameType | None = first
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_HERE) and not str(frame.f_globals.get("__name__")).startswith("torch."):
            if not is_installed(path):
                return level, frame
            other = other or (level, frame)
        level, frame = level + 1, frame.f_back
    return other or (1, first)
