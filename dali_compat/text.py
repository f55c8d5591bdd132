"""Rows of text in columns, numbers of bytes, and a repr that does not raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def in_columns(rows: Sequence[tuple[str, ...]]) -> str:
    """One line a row, its cells aligned with those of the others."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def in_bytes(count: float) -> str:
    """ "0.3 MB", "20.1 GB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def repr_of(thing: Any) -> str:
    """Its repr; object's where that raises, because a class of somebody's does not expect what its object holds."""
    try:
        return repr(thing)
    except Exception:
        return object.__repr__(thing)
