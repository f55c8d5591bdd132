"""Results of `measure.py --json`: rows to measure, reading, writing and merging."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .catalogue import OTHERS, RECIPES, TRANSFORMS, Entry

KINDS = ("transforms", "recipes")


def rows(only: str | None = None) -> list[tuple[str, str, Entry]]:
    """Return (kind, name, entry) of every row of the catalogue, or of the rows named ``only``.

    Raises:
        SystemExit: There is no such row.
    """
    of_all = [("transforms", entry.name, entry) for entry in TRANSFORMS]
    of_all += [("recipes", name, entry) for name, entry in RECIPES.items()]
    chosen = [row for row in of_all if only in (None, row[1])]
    if not chosen:
        why = OTHERS.get(str(only)) or "tests/parity/catalogue.py has no row of that name"
        raise SystemExit(f"parity: --only {only}: {why}")
    return chosen


def read(path: Path, device: str) -> dict[str, Any] | None:
    """Read the results of a device; return None if there is no file.

    Raises:
        SystemExit: The results are of another device.
    """
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    if result["device"] != device:
        raise SystemExit(f"parity: {path} has what {result['device']} gave, and this is {device}: name another file")
    return result


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def merged(result: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Replace rows of the same name by new ones, in the catalogue's order.

    The new rows record when they were measured and on which images.
    """
    whole = dict(result)
    for kind in KINDS:
        names = {row["name"] for row in new[kind]}
        measured = {"measured": {"facts": new["facts"], "images": new["images"]}}
        kept = [row for row in result[kind] if row["name"] not in names]
        order = [entry.expression for of_kind, _, entry in rows() if of_kind == kind]
        whole[kind] = sorted([*kept, *(row | measured for row in new[kind])], key=lambda row: _place(row, order))
    return whole


def _place(row: dict[str, Any], order: list[str]) -> int:
    return order.index(row["of"]) if row["of"] in order else len(order)
