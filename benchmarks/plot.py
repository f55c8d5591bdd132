"""Draws the pictures of the pages from the files in benchmarks/results: docs/speed.svg of README.md; docs/toolkit.svg
and docs/two-gpus.svg of the configs of examples/imagenet.

All are bars of one family. A bar is the median of a case's rounds, a dot one round; the number behind a bar is what its
length shows. A picture has a light and a dark look, by what the reader's system prefers, on a card of its own, and is
readable on a phone. The same files always give the same bytes.

Command.
    python benchmarks/plot.py
"""

import argparse
import json
import pathlib
import statistics
from html import escape
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
OUT = HERE.parent / "docs"
RESULTS = HERE / "results"

NAMES = {"torchvision": "torchvision", "handwritten": "DALI by hand", "ours": "dali_compat"}
COLOURS = {"torchvision": "#8b949e", "handwritten": "#2f81d6", "ours": "#3d9a3a"}
CARDS = {"light": ("#ffffff", "#1f2328", "#656d76"), "dark": ("#0d1117", "#e6edf3", "#9198a1")}  # behind, text, rule
STYLE = ".card{{fill:{0};stroke:{2}}}text{{fill:{1}}}line{{stroke:{2}}}circle{{fill:{0};stroke:{1}}}"

WIDTH, MARGIN, FONT = 640, 14, 16  # pixels; on a phone a picture is half as wide
COLUMN = (WIDTH - 3 * MARGIN) // 2
LINE, BAR = 25, 17
NAME, NUMBER = 118, 78  # the room before and behind a bar


class Bar(NamedTuple):
    """A bar's name, the case whose colour it has, and the values of its rounds."""

    name: str
    case: str
    values: list[float]


class Group(NamedTuple):
    """Bars below a title, up to ``end``, with numbers of this format."""

    title: str
    bars: list[Bar]
    end: float
    form: str


def text(x: float, y: float, what: str, anchor: str = "start", weight: int = 400, size: int = FONT) -> str:
    look = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {look}>{escape(what)}</text>'


def drawn(group: Group, left: float, top: float) -> tuple[list[str], float]:
    """Lines of SVG, and where the next group begins."""
    lines, begin, room = [text(left, top + 14, group.title, weight=600)], left + NAME, COLUMN - NAME - NUMBER
    y = top + 23
    for bar in group.bars:
        middle, weight = statistics.median(bar.values), 600 if bar.case == "ours" else 400
        lines.append(text(begin - 8, y + 14, bar.name, "end", weight))
        look = f'width="{room * min(middle / group.end, 1):.1f}" height="{BAR}" rx="2" fill="{COLOURS[bar.case]}"'
        lines.append(f'<rect x="{begin:.1f}" y="{y:.0f}" {look}/>')
        for value in bar.values:
            centre = f'cx="{begin + room * min(value / group.end, 1):.1f}" cy="{y + BAR / 2:.1f}"'
            lines.append(f'<circle {centre} r="2.5"/>')
        behind = begin + room * min(max(bar.values) / group.end, 1) + 7
        lines.append(text(behind, y + 14, format(middle, group.form), weight=weight))
        y += LINE
    lines.append(f'<line x1="{begin:.0f}" y1="{top + 21:.0f}" x2="{begin:.0f}" y2="{y - 4:.0f}"/>')
    return lines, y + 9


def picture(title: str, columns: list[tuple[list[str], list[Group]]], said: str) -> str:
    """An SVG of two columns, each with lines of a heading and its groups, and a last line."""
    lines, bottom = [], 0.0
    for number, (heading, groups) in enumerate(columns):
        left, y = MARGIN + number * (COLUMN + MARGIN), 12.0
        for words in heading:
            lines.append(text(left, y + 14, words, size=FONT - 1))
            y += 21
        y += 8
        for group in groups:
            more, y = drawn(group, left, y)
            lines += more
        bottom = max(bottom, y)
    height = int(bottom) + 30
    lines.append(text(MARGIN, bottom + 14, said, size=FONT - 2))
    light, dark = (STYLE.format(*CARDS[look]) for look in ("light", "dark"))
    begin = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{light}@media(prefers-color-scheme:dark){{{dark}}}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
    ]
    return "\n".join([*begin, *lines, "</svg>", ""])


def rounds_of(name: str, **where) -> dict[str, list[float]]:
    """{case: images/s of its rounds} of a file in results/."""
    found: dict[str, list[float]] = {}
    for row in json.loads((RESULTS / f"{name}.json").read_text())["rounds"]:
        if all(row[key] == value for key, value in where.items()):
            found.setdefault(row["case"], []).append(row["images_per_s"])
    return found


def shares(name: str, case: str, **where) -> list[float]:
    """Shares of the speed on synthetic data, of the case's rounds."""
    found = rounds_of(name, **where)
    return [value / statistics.median(found["synthetic"]) for value in found[case]]


# ---- README: loading and training

OFF = "DALI_COMPAT_JPEG_ENGINE=0"
SPEED = "Loading and training speed: torchvision, DALI by hand and dali_compat"


def loading() -> list[Group]:
    """Images a second of loading alone; the first two groups are of one run."""
    one, few, cpu = (rounds_of(f"imagefolder_{name}") for name in ("no_engine_h200", "no_engine_4_h200", "cpu"))
    groups = {
        "H200, 16 cores": (one["torchvision"], one["handwritten"], one["ours"]),
        "the same, no JPEG engine": (
            *(one["torchvision"], one["handwritten:16@hw_decoder_load=0.0"], one[f"ours@{OFF}"]),
        ),
        "4 cores, no JPEG engine": (
            *(few["torchvision"], few["handwritten:4@hw_decoder_load=0.0"], few[f"ours@{OFF}"]),
        ),
        "2 cores, no GPU": (cpu["torchvision"], cpu["handwritten"], cpu["ours"]),
    }
    return [of_names(title, values, max(map(max, values)), ",.0f") for title, values in groups.items()]


def training() -> list[Group]:
    """Shares of the speed on synthetic data; the first two groups are of one run."""
    hands = "handwritten:4:5@hw_decoder_load=1.0", "handwritten:16@hw_decoder_load=0.0"
    theirs, by_hand, by_hand_off, ours, ours_off = (
        shares("training_h200", case) for case in ("torchvision", *hands, "ours", f"ours@{OFF}")
    )
    groups = [
        of_names("ResNet-18, H200, 16 cores", (theirs, by_hand, ours)),
        of_names("the same, no JPEG engine", (theirs, by_hand_off, ours_off)),
    ]
    found = [shares("toolkit_2_h200", case) for case in ("torchvision", "dali")]
    bars = [Bar(NAMES[case], case, values) for case, values in zip(("torchvision", "ours"), found, strict=True)]
    return [*groups, Group("ResNet-50, H200, 2 cores", bars, 1, ".0%")]


def of_names(title: str, values: tuple[list[float], ...], end: float = 1, form: str = ".0%") -> Group:
    """A bar for each of NAMES."""
    bars = [Bar(name, case, found) for (case, name), found in zip(NAMES.items(), values, strict=True)]
    return Group(title, bars, end, form)


def speed() -> str:
    beside = ["Training, % of the speed", "on synthetic data"]
    columns = [(["Loading ImageNet photos,", "images/s"], loading()), (beside, training())]
    return picture(SPEED, columns, "bars: medians; dots: rounds; benchmarks/results has all of them")


# ---- the toolkit: by cores, and by configs

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
SOURCES = {"folder": "from a folder", "rec": "from a .rec"}
TOOLKIT = "Training speed of the toolkit's configs with both loaders, and by CPU cores"
# what toolkit.py measured on one GPU with the most cores: of a config and a source in two of them the later one counts
RUNS = "toolkit_h200", "toolkit_models_h200", "toolkit_rec_h200", "toolkit_vit_h200"
CORES = "toolkit_cores_h200", "toolkit_resnet50_8_h200"  # the same with fewer cores
# the same on two GPUs, a picture's column and a table of the pages for each kind of GPU
TWO_GPUS = ("toolkit_h200x2", "toolkit_resnet50_h200x2", "toolkit_models_h200x2"), ("toolkit_rec_h100x2",)
ON_TWO = "Training speed of the toolkit's configs on two GPUs with both loaders"
SHARE = "% of the speed on synthetic data"


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


def of_loaders(title: str, rows: list[dict], **where) -> list[Group]:
    """A group with a bar for each loader that was measured: its share of the speed on synthetic data. None without."""
    ceiling, bars = of_turns(rows, case="synthetic", **where), []
    for case, name in LOADERS.items():
        if (found := of_turns(rows, case=case, **where)) and ceiling:
            colour = "ours" if case == "dali" else case
            bars.append(Bar(name, colour, [value / statistics.median(ceiling) for value in found]))
    return [Group(title, bars, 1, ".0%")] if bars else []


def by_cores(config: str, rows: list[dict]) -> list[Group]:
    counts = sorted({row["cores"] for row in rows if row["config"] == config})
    return [
        group
        for count in counts
        for group in of_loaders(f"{CONFIGS[config]}, {count} cores", rows, config=config, cores=count)
    ]


def of_configs(source: str, rows: list[dict]) -> list[Group]:
    return [group for config, name in CONFIGS.items() for group in of_loaders(name, rows, config=config, source=source)]


def toolkit(cores: dict, configs: dict) -> str:
    """The picture of two results of toolkit.py: by cores, and of all configs with the most cores."""
    models = [name for name in CONFIGS if any(row["config"] == name for row in cores["rounds"])]
    most = max(row["cores"] for row in configs["rounds"])
    left = [group for name in models[:2] for group in by_cores(name, cores["rounds"])]
    columns = [(["Training by CPU cores,", SHARE], left)]
    columns.append(([f"Training with {most} cores,", SHARE], of_configs("folder", configs["rounds"])))
    return picture(TOOLKIT, columns, f"{gpu_of(configs)}, photos in a folder; bars: medians, dots: rounds")


def gpu_of(result: dict) -> str:
    return str(result["facts"]["gpu"]).split(",")[0]


def two_gpus(results: list[dict]) -> str:
    """The picture of results on two GPUs: a column for each, of the source with most configs."""
    columns = []
    for result in results:
        found = {source: of_configs(source, result["rounds"]) for source in SOURCES}
        source = max(SOURCES, key=lambda name: len(found[name]))
        heading = f"{result['ranks']} {gpu_of(result).split()[1]}, {SOURCES[source]},"
        columns.append(([heading, SHARE], found[source]))
    return picture(ON_TWO, columns, "of both GPUs together; bars: medians, dots: rounds")


def of_toolkit(*names: str) -> dict | None:
    """These files, or RUNS, joined, as far as they are there."""
    paths = [RESULTS / f"{name}.json" for name in names or RUNS]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    return joined(results) if results else None


def pictures() -> dict[str, str]:
    """{file: picture} of all whose results are there."""
    made = {"speed.svg": speed()}
    cores, configs = of_toolkit(*CORES), of_toolkit()
    if cores and configs:
        made["toolkit.svg"] = toolkit(cores, configs)
    if both := [result for names in TWO_GPUS if (result := of_toolkit(*names))]:
        made["two-gpus.svg"] = two_gpus(both)
    return made


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, default=OUT, help="folder of the pictures")
    folder = options.parse_args().out
    for name, made in pictures().items():
        (folder / name).write_text(made)
        print(folder / name)
