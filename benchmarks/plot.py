"""Draws the plots of the pages from the files in benchmarks/results: docs/speed.svg, that of README.md, and of the
configs of examples/imagenet docs/toolkit.svg and, on two GPUs, docs/two-gpus.svg.

A bar, or a line's point, is the median of a case's rounds, a dot one round. Text and bars have colours that are
readable on white and on black. The same files always give the same bytes.

Command.
    python benchmarks/plot.py
"""

import argparse
import json
import pathlib
import statistics
from html import escape

HERE = pathlib.Path(__file__).parent
OUT = HERE.parent / "docs"
RESULTS = HERE / "results"

NAMES = {"torchvision": "torchvision", "handwritten": "DALI by hand", "ours": "dali_compat"}
COLOURS = {"torchvision": "#768390", "handwritten": "#2f81d6", "ours": "#3d9a3a"}
TEXT, RULE = "#6e7781", "#8c959f"

WIDTH, LABELS, BAR, GAP = 900, 96, 18, 8  # pixels
PANEL, BETWEEN = 192, 16


def rounds_of(name: str, **where) -> dict[str, list[float]]:
    """{case: images/s of its rounds} of a file in results/."""
    found: dict[str, list[float]] = {}
    for row in json.loads((RESULTS / f"{name}.json").read_text())["rounds"]:
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


def speed() -> str:
    """Panels side by side, with a bar for each of NAMES."""
    height = 48 + len(NAMES) * (BAR + GAP) + 26
    lines = []
    for number, (case, name) in enumerate(NAMES.items()):
        weight = 600 if case == "ours" else 400
        lines.append(text(LABELS - 8, 48 + number * (BAR + GAP) + 13, name, anchor="end", weight=weight))
    for number, contents in enumerate(panels()):
        lines += panel(LABELS + number * (PANEL + BETWEEN / 2), *contents)
    lines.append(text(LABELS, height - 8, "bars: medians of rounds in turn; dots: rounds", size=11))
    return svg(height, "Images a second, and share of synthetic training speed", lines)


def svg(height: int, title: str, lines: list[str]) -> str:
    """A picture with these lines."""
    begin = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" role="img">',
        f"<title>{escape(title)}</title>",
    ]
    return "\n".join([*begin, *lines, "</svg>", ""])


# ---- the toolkit: lines by cores, and bars of configs

LOADERS = {"torchvision": "torchvision", "dali": "dali_compat"}  # those of the toolkit's --loader
CONFIGS = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "mobilenet_v2": "MobileNetV2",
    "mobilenet_v3_large": "MobileNetV3-L",
    "ghostnet": "GhostNet",
    "efficientnet_b0": "EfficientNet-B0",
    "vit_s_16": "ViT-S/16",
}
SOURCES = {"folder": "photos in a folder", "rec": "the same in a .rec"}
TOOLKIT = "Training speed of the toolkit's configs with both loaders, and by CPU cores"
# what toolkit.py measured on one GPU with the most cores: of a config and a source in two of them the later one counts
RUNS = "toolkit_h200", "toolkit_models_h200", "toolkit_rec_h200", "toolkit_vit_h200"
CORES = "toolkit_cores_h200", "toolkit_resnet50_8_h200"  # the same with fewer cores
# the same on two GPUs, a picture's panel and a table of the pages for each kind of GPU
TWO_GPUS = ("toolkit_h200x2", "toolkit_resnet50_h200x2", "toolkit_models_h200x2"), ("toolkit_rec_h100x2",)
ON_TWO = "Training speed of the toolkit's configs on two GPUs with both loaders"
HALF, LOW = 400, 150  # pixels: a panel's width, a line plot's height
ROW = 30


def joined(results: list[dict]) -> dict:
    """Results of toolkit.py as one. A run's turns on synthetic data count for each of its sources, and are named so."""
    rows: dict[tuple[str, str, int], list[dict]] = {}
    for result in results:
        for config, source, cores in dict.fromkeys((r["config"], r["source"], r["cores"]) for r in result["rounds"]):
            if source is not None:
                of = [row for row in result["rounds"] if (row["config"], row["cores"]) == (config, cores)]
                rows[config, source, cores] = [r | {"source": source} for r in of if r["source"] in (source, None)]
    return results[0] | {"rounds": [row for of in rows.values() for row in of]}


def of_turns(rows: list[dict], key: str = "images_per_s", **where) -> list[float]:
    """The values of the rows that have this."""
    return [row[key] for row in rows if all(row[name] == value for name, value in where.items())]


def by_cores(left: float, top: float, config: str, rows: list[dict]) -> list[str]:
    """Images a second by cores a GPU: a line for each loader, and a dashed one of synthetic data."""
    rows = [row for row in rows if row["config"] == config]
    counts = sorted({row["cores"] for row in rows})
    end = 1.05 * max(row["images_per_s"] for row in rows)
    room = HALF - 160  # names stand behind the lines
    across = {count: left + 30 + (room - 30) * number / max(1, len(counts) - 1) for number, count in enumerate(counts)}
    lines = [text(left, top + 14, f"{CONFIGS[config]}, images/s by CPU cores", size=13, weight=600)]
    floor = top + 28 + LOW

    def height(value: float) -> float:
        return floor - LOW * value / end

    taken: list[float] = []
    for case, name in {"synthetic": "synthetic data", "dali": "dali_compat", "torchvision": "torchvision"}.items():
        values = {count: of_turns(rows, case=case, cores=count) for count in counts}
        middles = {count: statistics.median(found) for count, found in values.items() if found}
        if not middles:
            continue
        colour = COLOURS.get({"dali": "ours"}.get(case, case), RULE)
        points = " ".join(f"{across[count]:.1f},{height(middle):.1f}" for count, middle in middles.items())
        dashes = ' stroke-dasharray="5 4"' if case == "synthetic" else ""
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        for count, found in values.items():
            for value in found if case in LOADERS else []:
                centre = f'cx="{across[count]:.1f}" cy="{height(value):.1f}"'
                lines.append(f'<circle {centre} r="2.5" fill="#ffffff" stroke="{TEXT}"/>')
        last = max(middles)
        beside = height(middles[last]) + 4
        while any(abs(beside - other) < 13 for other in taken):
            beside += 1
        taken.append(beside)
        said = f"{name} {middles[last]:,.0f}"
        lines.append(text(across[last] + 8, beside, said, size=11, weight=600 if case == "dali" else 400))
    lines.append(f'<line x1="{left}" y1="{floor}" x2="{left + room + 4}" y2="{floor}" stroke="{RULE}"/>')
    return lines + [text(x, floor + 15, str(count), anchor="middle", size=11) for count, x in across.items()]


def of_configs(left: float, top: float, source: str, rows: list[dict], where: str = "") -> list[str]:
    """For each config a bar a loader: its share of the speed on synthetic data, with images a second behind it."""
    title = f"Share of synthetic data's speed, {where or SOURCES[source]}"
    lines = [text(left, top + 14, title, size=13, weight=600)]
    room, begin = HALF - 170, left + 105
    for number, (config, name) in enumerate(CONFIGS.items()):
        ceiling = of_turns(rows, config=config, source=source, case="synthetic")
        y = top + 28 + ROW * number
        lines.append(text(begin - 8, y + 16, name, anchor="end"))
        for place, (case, loader) in enumerate(LOADERS.items()):
            found = of_turns(rows, config=config, case=case, source=source)
            if not found or not ceiling:
                lines.append(text(begin + 7, y + 10 + 12 * place, f"{loader} not measured", size=10))
                continue
            share = statistics.median(found) / statistics.median(ceiling)
            colour = COLOURS[{"dali": "ours"}.get(case, case)]
            look = f'width="{room * min(share, 1):.1f}" height="10" rx="2" fill="{colour}"'
            lines.append(f'<rect x="{begin:.1f}" y="{y + 1 + 12 * place}" {look}/>')
            behind = begin + room * min(share, 1) + 6
            behind = behind if behind + 36 < begin + room else begin + room + 7  # not across the ceiling's line
            said = f"{statistics.median(found):,.0f}"
            lines.append(text(behind, y + 10 + 12 * place, said, size=10, weight=600 if case == "dali" else 400))
    lines.append(
        f'<line x1="{begin + room}" y1="{top + 24}" x2="{begin + room}" y2="{top + 28 + ROW * len(CONFIGS)}" '
        f'stroke="{RULE}" stroke-dasharray="5 4"/>'
    )
    return lines


def toolkit(cores: dict, configs: dict) -> str:
    """The picture of two results of toolkit.py: by cores, and of all configs with the most cores."""
    models = [name for name in CONFIGS if any(row["config"] == name for row in cores["rounds"])]
    lines = []
    for number, name in enumerate(models[:2]):
        lines += by_cores(10 + number * (HALF + 60), 4, name, cores["rounds"])
    below = 28 + LOW + 40
    measured = {row["source"] for row in configs["rounds"]}
    for number, source in enumerate(source for source in SOURCES if source in measured):
        lines += of_configs(10 + number * (HALF + 60), below, source, configs["rounds"])
    height = below + 28 + ROW * len(CONFIGS) + 30
    said = f"{gpu_of(configs)}, {max(row['cores'] for row in configs['rounds'])} cores, numbers are images/s"
    return svg(height, TOOLKIT, lines + legend(height, said))


def legend(height: int, said: str) -> list[str]:
    """The last line of a picture."""
    lines = []
    for number, (colour, name) in enumerate(
        [(COLOURS["ours"], "dali_compat"), (COLOURS["torchvision"], "torchvision")]
    ):
        lines.append(f'<rect x="{10 + 110 * number}" y="{height - 19}" width="10" height="10" rx="2" fill="{colour}"/>')
        lines.append(text(25 + 110 * number, height - 10, name, size=11))
    return [*lines, text(240, height - 10, said, size=11)]


def gpu_of(result: dict) -> str:
    return str(result["facts"]["gpu"]).split(",")[0]


def two_gpus(results: list[dict]) -> str:
    """The picture of results on two GPUs: a panel for each, of the source with most configs."""
    lines, height = [], 28 + ROW * len(CONFIGS) + 40
    for number, result in enumerate(results):
        configs = {source: {row["config"] for row in result["rounds"] if row["source"] == source} for source in SOURCES}
        source = max(SOURCES, key=lambda name: len(configs[name]))
        where = f"{'.rec' if source == 'rec' else source}, {result['ranks']} {gpu_of(result).split()[1]}"
        lines += of_configs(10 + number * (HALF + 60), 4, source, result["rounds"], where)
    return svg(height, ON_TWO, lines + legend(height, "numbers are images/s of both GPUs"))


def of_toolkit(*names: str) -> dict | None:
    """These files, or RUNS, joined, as far as they are there."""
    paths = [RESULTS / f"{name}.json" for name in names or RUNS]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    return joined(results) if results else None


def pictures() -> dict[str, str]:
    """{file: picture} of all whose results are there."""
    drawn = {"speed.svg": speed()}
    cores, configs = of_toolkit(*CORES), of_toolkit()
    if cores and configs:
        drawn["toolkit.svg"] = toolkit(cores, configs)
    if both := [result for names in TWO_GPUS if (result := of_toolkit(*names))]:
        drawn["two-gpus.svg"] = two_gpus(both)
    return drawn


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, default=OUT, help="folder of the pictures")
    folder = options.parse_args().out
    for name, picture in pictures().items():
        (folder / name).write_text(picture)
        print(folder / name)
