"""Rows of text in columns, numbers of bytes, and a repr that does not raise."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any


def in_columns(rows: Sequence[tuple[str, ...]], left: int | None = None) -> str:
    """Returns one line a row, in aligned columns: the first ``left`` (default all) to the left, the others right."""
    aligned = [
        [f"{cell:{'<' if left is None or number < left else '>'}{max(map(len, column))}}" for cell in column]
        for number, column in enumerate(zip(*rows, strict=True))
    ]
    return "\n".join("  ".join(row).rstrip() for row in zip(*aligned, strict=True))


def terminal_columns() -> int:
    """Returns the width of the terminal that output goes to; 0 if it goes elsewhere."""
    is_terminal = getattr(sys.stdout, "isatty", bool)()
    return shutil.get_terminal_size((0, 0)).columns if is_terminal else 0


def wrapped(text: str, columns: int) -> str:
    """Returns the text with its lines broken to so many columns; what follows a line is indented by 4 more."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(line, columns, subsequent_indent=indent, break_on_hyphens=False) or [""]
    return "\n".join(lines)


def in_bytes(count: float) -> str:
    """ "0.3 MB", "20.1 GB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def repr_of(thing: Any) -> str:
    """Its repr; object's where that raises, because a class of somebody's does not expect what its object holds."""
    try:
        return repr(thing)
    except Exception:
        return object.__repr__(thing)
