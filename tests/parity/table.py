"""Write the table of docs/transforms.md from the results of measure.py, between two comments."""

import json
import os
import re
from pathlib import Path
from typing import Any

from .catalogue import OTHERS
from .results import KINDS
from .results import rows as catalogued

BEGIN = "<!-- written, in this folder, by: python ../tests/parity/measure.py --readme transforms.md --results "
END = "<!-- until here -->"
NOT_YET = "not measured yet"


def rewrite(readme: Path, results: list[Path]) -> None:
    """Write the table of results into a file, between its two comments."""
    try:
        text = readme.read_text()
        block = written(readme, results)
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"parity: {type(error).__name__}: {error}") from None
    if BEGIN not in text or END not in text:
        raise SystemExit(f"parity: {readme} has no line that begins with {BEGIN!r}, or none that is {END!r}")
    before, after = text.split(BEGIN)[0], text.split(END)[-1]
    readme.write_text(before + block + after)


def written(readme: Path, results: list[Path]) -> str:
    """Return the table with its two comments.

    Raises:
        ValueError: A row failed, or CPU results, which can be measured anywhere, do not match the catalogue.
    """
    files = [json.loads(path.read_text()) for path in results]
    on_cpu = [result["device"] == "CPU" for result in files]
    for path, result, complete in zip(results, files, on_cpu if any(on_cpu) else [True] * len(files), strict=True):
        _check(path, result, complete)
    named = [os.path.relpath(path, readme.parent) for path in results]
    titles = [*(_short_name(result["device"]) for result in files), "`exact=True`"]
    head = ["transform", "runs in", *titles]
    rows = []
    for found in _of_files(files, "transforms"):
        row = next(filter(None, found))
        of_v2 = " (v2)" if row["versions"] == ["v2"] else ""
        rows.append([f"`{row['of']}`{of_v2}", row["where"].replace("torch, on the batch", "torch"), *_cells(found)])
    recipes = [[next(filter(None, found))["name"], *_cells(found)] for found in _of_files(files, "recipes")]
    others: dict[str, list[str]] = {}
    for name, handling in OTHERS.items():
        others.setdefault(handling, []).append(f"`{name}`")
    lines = [
        BEGIN + " ".join(named) + " -->",
        markdown(head, rows),
        "",
        markdown(["recipe", *titles], recipes),
        "",
        *(f"- {_short_name(result['device'])}: {_account(result)}" for result in files),
        "",
        markdown(["torchvision's other transforms", "what happens"], [[", ".join(v), k] for k, v in others.items()]),
        END,
    ]
    return "\n".join(lines)


def _check(path: Path, result: dict[str, Any], complete: bool) -> None:
    """Raise ValueError if a row failed, or if ``complete`` results do not match the catalogue."""
    wrong = []
    for kind in KINDS:
        wrong += [f"{row['of']}: {row['error']}" for row in result[kind] if "error" in row]
        known = {entry.expression for of_kind, _, entry in catalogued() if of_kind == kind}
        wrong += [
            f"{row['of']} is not in tests/parity/catalogue.py"
            for row in result[kind]
            if complete and row["of"] not in known
        ]
    wrong += [f"not measured: {of}" for of in (_missing(path, result) if complete else [])]
    if wrong:
        raise ValueError(f"{path} is not of this version, measure again: {'; '.join(wrong)}")


def missing(results: list[Path]) -> list[str]:
    """Return the rows that are not measured yet, with the command that measures them."""
    return [of for path in results for of in _missing(path, json.loads(path.read_text()))]


def _missing(path: Path, result: dict[str, Any]) -> list[str]:
    return [
        f"python tests/parity/measure.py --only '{name}' --data PHOTOS --json {path} ({_short_name(result['device'])})"
        for kind, name, entry in catalogued()
        if entry.expression not in {row["of"] for row in result[kind]}
    ]


def _of_files(files: list[dict[str, Any]], kind: str) -> list[list[dict[str, Any] | None]]:
    """Return, for each row of the catalogue, its entry in each file or None."""
    by_file = [{row["of"]: row for row in result[kind]} for result in files]
    return [[of.get(entry.expression) for of in by_file] for of_kind, _, entry in catalogued() if of_kind == kind]


def _cells(rows) -> list[str]:
    """Return the default's errors on each device, and the largest errors with exact=True."""
    default = [numbers(row["default"]) if row else NOT_YET for row in rows]
    if not all(rows):
        return [*default, NOT_YET]
    return [*default, numbers({key: max(row["exact"][key] for row in rows) for key in ("mean", "max")})]


def _short_name(device: str) -> str:
    """Return 'H100' for 'NVIDIA H100 80GB HBM3'."""
    return device.removeprefix("NVIDIA ").split()[0]


def _account(result) -> str:
    facts, images = result["facts"], result["images"]
    versions = ", ".join(f"{name} {facts[name].split()[0]}" for name in ("DALI", "torch", "torchvision", "Pillow"))
    later = [
        f"; `{row['of']}`: {row['measured']['images']['images']} photos, {row['measured']['facts']['date']}"
        for kind in KINDS
        for row in result[kind]
        if "measured" in row
    ]
    return (
        f"{images['images']} photos of {images['mean_bytes'] // 1000} KB on average, {versions}, {facts['date']}"
        f"{''.join(later)}"
    )


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Format a table, with numeric columns aligned to the right."""
    right = [
        "---:" if rows and all(re.fullmatch(rf"[-<.\d/ ]+|{NOT_YET}", row[i]) for row in rows) else "---"
        for i in range(len(head))
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, right, *rows))


def numbers(errors: dict | None) -> str:
    """Format a mean and a maximum as '.0049 / 10', or as '0' if both are 0."""
    if errors is None:
        return "-"
    return f"{_short(errors['mean'])} / {_short(errors['max'])}" if errors["max"] else "0"


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if value < 1e-4:
        return "<.0001"
    if value >= 10:
        return f"{value:.0f}"
    text = f"{value:.2g}"
    return (f"{value:.6f}".rstrip("0") if "e" in text else text).removeprefix("0")
