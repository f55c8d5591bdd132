"""Which line of the user's has called."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

_HERE = os.path.dirname(os.path.abspath(__file__))
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


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
    """The first call that is no installed package's, or at least neither this one's nor torch's; how many there are up
    to it, from the caller's caller on."""
    return _outside((_HERE, *_torch(), *_INSTALLED)) or _outside((_HERE, *_torch())) or (1, sys._getframe(2))


def _torch() -> tuple[str, ...]:
    torch = sys.modules.get("torch")
    return () if torch is None or torch.__file__ is None else (os.path.dirname(torch.__file__),)


def _outside(folders: tuple[str, ...]) -> tuple[int, FrameType] | None:
    level = 1
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename.startswith(folders):
        level, frame = level + 1, frame.f_back
    return None if frame is None else (level, frame)
