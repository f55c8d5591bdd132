"""Warnings at the user's line, and formatting of messages."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from ..errors import FallbackWarning
from .internals import callers

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
_LIBRARIES = "torch.", "torchvision.", "PIL."
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep  # such as copy.py, which calls user code
_announced: set[tuple[str, int]] = set()  # lines, with the id of the data set


def report_fallback(what: str, fallback: str, reported: set[str]) -> None:
    """Report the message ``what`` about a fallback, as DataLoader's argument ``fallback`` selects.

    "warn" issues a FallbackWarning and adds the message to ``reported``, unless it is already there. "silent" reports
    nothing.

    Raises:
        RuntimeError: fallback is "error". The text contains the message.
    """
    if fallback == "error":
        raise RuntimeError(f"fallback='error', but {what}")
    if fallback == "warn" and what not in reported:
        reported.add(what)
        warnings.warn(what, FallbackWarning, stacklevel=stack_level())


def announce(route: str, dataset: Any) -> None:
    """Print a new loader's route to stderr, once for each data set and line of the user's code."""
    line = f"{user_line()} runs on {route}"
    key = line, id(dataset)
    if key not in _announced:
        _announced.add(key)
        with suppress(TypeError):  # a list cannot have weak references
            weakref.finalize(dataset, _announced.discard, key).atexit = False
        print(line, file=sys.stderr)


def is_installed(path: str) -> bool:
    """Return True if a source file belongs to an installed package, or to this one."""
    return path.startswith(_HERE) or any(folder in path for folder in _INSTALLED)


def stack_level() -> int:
    """Return the ``stacklevel`` with which warnings.warn() in the calling function reports the user's line."""
    return _user_frame()[0]


def user_line(last_module: str = "") -> str:
    """Return the file and line number of the innermost frame of user code, such as "train.py:31".

    If ``last_module`` is given, stop before the first frame of that module. Return "" if all frames up to there belong
    to this package or _LIBRARIES.
    """
    frame = _user_frame(last_module)[1]
    path = frame.f_code.co_filename
    if last_module and path.startswith(_HERE):
        return ""
    with suppress(OSError):  # the working directory may have been deleted
        path = os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path
    return f"{path}:{frame.f_lineno}"


def _user_frame(last_module: str = "") -> tuple[int, FrameType]:
    """Return the stack level and the innermost frame of user code. ``last_module`` is as in user_line().

    If there is no user code, return the innermost frame outside of this package and _LIBRARIES, or else the caller's.
    """
    calls = callers()
    first, other = next(calls), None  # ``first`` is the caller in this module
    for level, frame in enumerate(calls, 1):
        if frame.f_globals.get("__name__") == last_module:
            break
        path = frame.f_code.co_filename
        if not path.startswith(_HERE) and not str(frame.f_globals.get("__name__")).startswith(_LIBRARIES):
            if not is_installed(path) and not path.startswith(_STANDARD):
                return level, frame
            other = other or (level, frame)
    return other or (1, first)


def in_columns(rows: Sequence[tuple[str, ...]], left: int | None = None) -> str:
    """Format rows as lines with aligned columns. The first ``left`` columns (by default all) are left-aligned, the
    others right-aligned."""
    aligned = [
        [f"{cell:{'<' if left is None or number < left else '>'}{max(map(len, column))}}" for cell in column]
        for number, column in enumerate(zip(*rows, strict=True))
    ]
    return "\n".join("  ".join(row).rstrip() for row in zip(*aligned, strict=True))


def terminal_columns() -> int:
    """Return the width of the terminal in characters, or 0 if stdout is not a terminal."""
    is_terminal = getattr(sys.stdout, "isatty", bool)()
    return shutil.get_terminal_size((0, 0)).columns if is_terminal else 0


def wrapped(text: str, columns: int) -> str:
    """Wrap each line of the text to ``columns`` characters. Continuation lines are indented by 4 more characters."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(line, columns, subsequent_indent=indent, break_on_hyphens=False) or [""]
    return "\n".join(lines)


def in_bytes(count: float) -> str:
    """Return a number of bytes as text, such as "0.3 MB" or "20.1 GB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def repr_of(thing: Any) -> str:
    """Return ``repr(thing)``, or object.__repr__() if that raises an error."""
    try:
        return repr(thing)
    except Exception:
        return object.__repr__(thing)
