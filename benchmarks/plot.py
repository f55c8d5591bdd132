"""Draws docs/speed.svg, the plot of README.md, from the files in benchmarks/results.

A bar is the median of a case's rounds, a dot one round. Text and bars have colours that are readable on white and on
black. The same files always give the same bytes.

Command.
    python benchmarks/plot.py
"""

import argparse
import json
import pathlib
import statistics
from html import escape

HERE = pathlib.Path(__file__).parent
OUT = HERE.parent / "docs" / "speed.svg"

NAMES = {"torchvision": "torchvision", "handwritten": "DALI by hand", "ours": "dali_compat"}
COLOURS = {"torchvision": "#768390", "handwritten": "#2f81d6", "ours": "#3d9a3a"}
TEXT, RULE = "#6e7781", "#8c959f"

WIDTH, LABELS, BAR, GAP = 900, 96, 18, 8  # pixels
PANEL, BETWEEN = 192, 16


def rounds_of(name: str, **where) -> dict[str, list[float]]:
    """{case: images/s of its rounds} of a file in results/."""
    found: dict[str, list[float]] = {}
    for row in json.loads((HERE / "results" / f"{name}.json").read_text())["rounds"]:
        if all(row[key] == value for key, value in where.items()):
            found.setdefault(row["case"], []).append(row["images_per_s"])
    return found


def shares_of(model: str) -> dict[str, list[float]]:
    """{case: share of the speed of training on synthetic data, of its rounds}."""
    found = rounds_of("training_h100", model=model)
    ceiling = statistics.median(found["synthetic"])
    return {case: [value / ceiling for value in values] for case, values in found.items()}


def panels() -> list[tuple[str, str, dict[str, list[float]], float, str]]:
    """(title, second line, values, the end of the scale, format of a value) of each panel."""
    gpu, cpu = rounds_of("imagefolder_h100"), rounds_of("imagefolder_cpu")
    return [
        ("Loading alone, images/s", "H100, 16 cores", gpu, max(map(max, gpu.values())), ",.0f"),
        ("Loading alone, images/s", "2 cores, no GPU", cpu, max(map(max, cpu.values())), ",.0f"),
        ("Training ResNet-18", "share of synthetic data's speed", shares_of("resnet18"), 1.0, ".0%"),
        ("Training ResNet-50", "share of synthetic data's speed", shares_of("resnet50"), 1.0, ".0%"),
    ]


def text(x: float, y: float, what: str, anchor: str = "start", size: int = 12, weight: int = 400) -> str:
    look = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{TEXT}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {look}>{escape(what)}</text>'


def panel(left: float, title: str, second: str, values: dict[str, list[float]], end: float, form: str) -> list[str]:
    """One panel: a bar for each of NAMES, or a word where it was not measured."""
    room = PANEL - 52  # the number stands behind the bar
    lines = [text(left, 18, title, size=13, weight=600), text(left, 34, second)]
    for number, case in enumerate(NAMES):
        top = 48 + number * (BAR + GAP)
        if case not in values:
            lines.append(text(left, top + 13, "not measured"))
            continue
        middle = statistics.median(values[case])
        length, colour = room * middle / end, COLOURS[case]
        lines.append(f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2" fill="{colour}"/>')
        for value in values[case]:
            centre = f'cx="{left + room * value / end:.1f}" cy="{top + BAR / 2:.0f}"'
            lines.append(f'<circle {centre} r="2.5" fill="#ffffff" stroke="{TEXT}"/>')
        behind = left + room * max(middle, *values[case]) / end + 7
        lines.append(text(behind, top + 13, format(middle, form), weight=600 if case == "ours" else 400))
    bottom = 48 + len(NAMES) * (BAR + GAP) - GAP + 3
    lines.append(f'<line x1="{left:.0f}" y1="45" x2="{left:.0f}" y2="{bottom}" stroke="{RULE}"/>')
    return lines


def drawn() -> str:
    """The SVG."""
    height = 48 + len(NAMES) * (BAR + GAP) + 26
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" role="img">',
        "<title>Images a second, and share of synthetic training speed</title>",
    ]
    for number, (case, name) in enumerate(NAMES.items()):
        weight = 600 if case == "ours" else 400
        lines.append(text(LABELS - 8, 48 + number * (BAR + GAP) + 13, name, anchor="end", weight=weight))
    for number, contents in enumerate(panels()):
        lines += panel(LABELS + number * (PANEL + BETWEEN / 2), *contents)
    lines.append(text(LABELS, height - 8, "bars: medians of rounds in turn; dots: rounds", size=11))
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, default=OUT)
    out = options.parse_args().out
    out.write_text(drawn())
    print(out)
