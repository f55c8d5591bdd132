"""The table of docs/transforms.md: what `parity` has measured, between two comments."""

import json
import os
import re
from pathlib import Path

from dali_compat.parity.catalogue import OTHERS, RECIPES, TRANSFORMS

BEGIN = "<!-- written, in this folder, by: python -m dali_compat parity --readme transforms.md --results "
END = "<!-- until here -->"


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
    """The comments and what is between them.

    Raises:
        ValueError: a transform of the registry is not in the results, or one of theirs is not in the registry.
    """
    files = [json.loads(path.read_text()) for path in results]
    for path, result in zip(results, files, strict=True):
        for rows, known in ((result["transforms"], [e.expression for e in TRANSFORMS]), (result["recipes"], None)):
            known = known or [entry.expression for entry in RECIPES.values()]
            failed = [f"{row['of']}: {row['error']}" for row in rows if "error" in row]
            if failed or [row["of"] for row in rows] != known:
                raise ValueError(f"{path} is not of this version: measure again ({'; '.join(failed)})")
    named = [os.path.relpath(path, readme.parent) for path in results]
    titles = [f"{_short_name(result['device'])} {mode}" for result in files for mode in ("default", "`exact=True`")]
    head = ["transform", "of", "runs in", *titles, "torchvision on tensors"]
    rows = []
    for found in zip(*(result["transforms"] for result in files), strict=True):
        row = found[0]
        rows.append(
            [f"`{row['of']}`", " ".join(row["versions"]), row["where"], *_cells(found), numbers(row.get("tensors"))]
        )
    recipes = [[row[0]["name"], *_cells(row)] for row in zip(*(result["recipes"] for result in files), strict=True)]
    lines = [
        BEGIN + " ".join(named) + " -->",
        markdown(head, rows),
        "",
        markdown(["recipe", *titles], recipes),
        "",
        *(f"- {_short_name(result['device'])}: {_account(result)}" for result in files),
        "",
        markdown(
            ["torchvision's other transforms", "what becomes of them"], [[f"`{k}`", v] for k, v in OTHERS.items()]
        ),
        END,
    ]
    return "\n".join(lines)


def _cells(rows) -> list[str]:
    return [numbers(row[mode]) for row in rows for mode in ("default", "exact")]


def _short_name(device: str) -> str:
    """'H100' of 'NVIDIA H100 80GB HBM3'."""
    return device.removeprefix("NVIDIA ").split()[0]


def _account(result) -> str:
    facts, images = result["facts"], result["images"]
    versions = ", ".join(f"{name} {facts[name].split()[0]}" for name in ("DALI", "torch", "torchvision", "Pillow"))
    return f"{images['images']} photos of {images['mean_bytes'] // 1000} KB, {versions}, {facts['date']}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table; what has numbers is on the right."""
    right = [
        "---:" if rows and all(re.fullmatch(r"[-<.\d/ ]+", row[i]) for row in rows) else "---" for i in range(len(head))
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, right, *rows))


def numbers(errors: dict | None) -> str:
    """'.0049 / 10' of a mean and a maximum."""
    return "-" if errors is None else f"{_short(errors['mean'])} / {_short(errors['max'])}"


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if value < 1e-4:
        return "<.0001"
    if value >= 10:
        return f"{value:.0f}"
    text = f"{value:.2g}"
    return (f"{value:.6f}".rstrip("0") if "e" in text else text).removeprefix("0")
