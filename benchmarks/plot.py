"""Draw the pictures of the pages from benchmarks/results: docs/speed.svg for README.md, and docs/toolkit.svg and
docs/two-gpus.svg for the configs of examples/imagenet.

All bars of a column share one scale. A bar is the median of rounds, followed by its value, and a dot is one round.
A group has the rounds of every file that measured all of its bars, so several machines may be in one group. A picture
has a light and a dark look, chosen by the reader's system, with a background card, and is readable on a phone. The
same files always give the same bytes.

Command.
    python benchmarks/plot.py
"""

import argparse
import pathlib
import statistics
from html import escape
from typing import Any, NamedTuple

import measured
from measured import FIRST, FOLDER, LARGE, LATER, OFF, OWN, SMALL

OUT = pathlib.Path(__file__).parent.parent / "docs"

NAMES = {"torchvision": "torchvision", "handwritten": "DALI by hand", "ours": "dali_compat"}
COLOURS = {"torchvision": "#8b949e", "handwritten": "#2f81d6", "ours": "#3d9a3a"}
CARDS = {"light": ("#ffffff", "#1f2328", "#656d76"), "dark": ("#0d1117", "#e6edf3", "#9198a1")}  # card, text, rule
STYLE = ".card{{fill:{0};stroke:{2}}}text{{fill:{1}}}line{{stroke:{2}}}circle{{fill:{0};stroke:{1}}}"

WIDTH, MARGIN, FONT = 640, 14, 16  # pixels; on a phone a picture has half this width
COLUMN = (WIDTH - 3 * MARGIN) // 2
LINE, BAR = 25, 17
NAME, NUMBER = 118, 68  # space before and after a bar
ROOM = COLUMN - NAME - NUMBER


class Bar(NamedTuple):
    """A bar's name, the loader that determines its colour, and the values of its rounds."""

    name: str
    loader: str
    values: list[float]


class Group(NamedTuple):
    """Bars under a title, and the names of the files with their values."""

    title: str
    bars: list[Bar]
    files: list[str]


class Column(NamedTuple):
    """Groups under the lines of a heading, on one scale with these ticks."""

    heading: list[str]
    groups: list[Group]
    ticks: list[float]
    form: str

    def long(self, value: float) -> float:
        """Return the distance from the axis in pixels."""
        return (
            ROOM
            * value
            / max(self.ticks[-1], *(value for group in self.groups for bar in group.bars for value in bar.values))
        )


def text(x: float, y: float, what: str, anchor: str = "start", weight: int = 400, size: int = FONT) -> str:
    look = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {look}>{escape(what)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, opacity: float = 1) -> str:
    return f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke-opacity="{opacity}"/>'


def drawn(group: Group, column: Column, left: float, top: float) -> tuple[list[str], float]:
    """Return lines of SVG, and the position of the next group."""
    begin, y = left + NAME, top + 23
    lines = [text(left, top + 14, group.title, weight=600)]
    for tick in column.ticks:
        x = begin + column.long(tick)
        lines.append(line(x, y - 2, x, y + LINE * len(group.bars) - 4, 0.35 if tick else 1))
    for bar in group.bars:
        middle, weight = statistics.median(bar.values), 600 if bar.loader == "ours" else 400
        lines.append(text(begin - 8, y + 14, bar.name, "end", weight))
        long = [column.long(value) for value in (middle, *bar.values)]
        look = f'width="{long[0]:.1f}" height="{BAR}" rx="2" fill="{COLOURS[bar.loader]}"'
        lines.append(f'<rect x="{begin:.1f}" y="{y:.0f}" {look}/>')
        lines += [f'<circle cx="{begin + one:.1f}" cy="{y + BAR / 2:.1f}" r="2.5"/>' for one in long[1:]]
        lines.append(text(begin + max(long) + 7, y + 14, format(middle, column.form), weight=weight))
        y += LINE
    return lines, y + 9


def of_column(column: Column, left: float) -> tuple[list[str], float]:
    """Return lines of SVG for the heading, groups and axis with ticks, and the position of the column's end."""
    lines, y, begin = [], 12.0, left + NAME
    for words in column.heading:
        lines.append(text(left, y + 14, words, size=FONT - 1))
        y += 21
    y += 8
    for group in column.groups:
        more, y = drawn(group, column, left, y)
        lines += more
    lines.append(line(begin, y - 9, begin + ROOM, y - 9))
    for tick in column.ticks:
        x = begin + column.long(tick)
        lines += [line(x, y - 9, x, y - 5), text(x, y + 9, format(tick, column.form), "middle", size=FONT - 2)]
    return lines, y + 19


def picture(title: str, columns: list[Column], said: str) -> str:
    """Return an SVG of two columns and a last line."""
    made = [of_column(column, MARGIN + number * (COLUMN + MARGIN)) for number, column in enumerate(columns)]
    bottom = max(end for _, end in made)
    height = int(bottom) + 30
    light, dark = (STYLE.format(*CARDS[look]) for look in ("light", "dark"))
    begin = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{light}@media(prefers-color-scheme:dark){{{dark}}}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
    ]
    lines = [words for drawn_, _ in made for words in drawn_]
    return "\n".join([*begin, *lines, text(MARGIN, bottom + 14, said, size=FONT - 2), "</svg>", ""])


def of_speeds(title: str, *loaders: str, **where: Any) -> Group:
    """Return a group of speeds in images per second, without training."""
    runs = measured.runs(*loaders, **where)
    return Group(title, bars_of(loaders, zip(*sum(runs.values(), []), strict=True)), list(runs))


def of_shares(title: str, *loaders: str, **where: Any) -> Group:
    """Return a group of speeds relative to synthetic data in the same round."""
    runs = measured.runs("synthetic", *loaders, **where)
    shares = [[speed / synthetic for speed in speeds] for synthetic, *speeds in sum(runs.values(), [])]
    return Group(title, bars_of(loaders, zip(*shares, strict=True)), list(runs))


def bars_of(loaders, values) -> list[Bar]:
    """Return a bar for each loader, or none without ``values``. Cases of a custom data set are named after their
    loader."""
    found = []
    for loader, of in zip(loaders, values, strict=True) if (values := list(values)) else ():
        name = next((name for name in NAMES if loader.startswith(name)), "torchvision" if "torch" in loader else "ours")
        found.append(Bar(NAMES[name], name, list(of)))
    return found


# ---- README: loading and training

SPEED = "Loading and training speed: torchvision, DALI by hand and dali_compat"
BY_HAND, SOFTWARE = "handwritten@hw_decoder_load=1.0", "handwritten@hw_decoder_load=0.0"
SHARE = "% of the speed on synthetic data"
PERCENT = [0, 0.5, 1.0], ".0%"


def first_epochs() -> Group:
    """Return the speeds of first epochs; those of later epochs are in another benchmark's files."""
    rows = measured.rows(benchmark="on_error", case="raise", gpu="H200", cores=16)
    bars = [Bar("dali_compat", "ours", [row["first"] for row in rows])]
    return Group("the same, first epoch", bars, sorted({row["file"] for row in rows}))


def loading() -> Column:
    on_a_gpu = FOLDER | {"gpu": "H200"}
    groups = [
        of_speeds("H200, 16 cores", "torchvision", "handwritten", "ours", **on_a_gpu, cores=16),
        first_epochs(),
        of_speeds("the same, no JPEG engine", "torchvision", SOFTWARE, f"ours{OFF}", **on_a_gpu, cores=16),
        of_speeds("4 cores, no JPEG engine", "torchvision", SOFTWARE, f"ours{OFF}", **on_a_gpu, cores=4),
        of_speeds("custom stream, 16 cores", "torchstream", "stream", **OWN),
        of_speeds("2 cores, no GPU", "torchvision", "handwritten", "ours", **FOLDER, gpu=None, cores=2),
    ]
    return Column(["Loading ImageNet photos,", "images/s"], groups, [0, 10_000, 20_000], ",.0f")


def training() -> Column:
    groups = [
        of_shares(
            "ResNet-18, H200, 16 cores", "torchvision", BY_HAND, "ours", **SMALL | {"gpu": "H200", "batch_size": 256}
        ),
        of_shares("the same, batch 128", "torchvision", "ours", **SMALL | {"batch_size": 128}),
        of_shares("the same, no JPEG engine", "torchvision", SOFTWARE, f"ours{OFF}", **SMALL | {"gpu": "H200"}),
        of_shares("custom data set, first epoch", "torchvision", "own", **OWN | FIRST),
        of_shares("the same, later epochs", "torchvision", "own", **OWN | LATER),
        of_shares("ResNet-50, H200, 2 cores", "torchvision", "ours", **LARGE | {"cores": 2}),
    ]
    return Column(["Training, % of the speed", "on synthetic data"], [of for of in groups if of.files], *PERCENT)


def speed() -> str:
    return picture(SPEED, [loading(), training()], "bars: medians; dots: rounds; benchmarks/results names the files")


# ---- the toolkit: by cores, and by configs

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
ON_TWO = "Training speed of the toolkit's configs on two GPUs with both loaders"
BOTH = "torchvision", "ours"


def of_toolkit(title: str, model: str, source: str = "folder", **where: Any) -> list[Group]:
    """Return a group with a bar for each measured loader, or no group."""
    where |= {"benchmark": "toolkit", "model": model, "source": (source, None)}
    groups = [of_shares(title, loader, **where) for loader in BOTH if measured.runs("synthetic", loader, **where)]
    files = sorted({name for group in groups for name in group.files})
    return [Group(title, [bar for group in groups for bar in group.bars], files)] if groups else []


def by_cores() -> Column:
    groups = []
    for model in CONFIGS:
        counts = sorted({row["cores"] for row in measured.rows(benchmark="toolkit", model=model, gpus=1)})
        for count in counts if len(counts) > 1 else ():
            groups += of_toolkit(f"{CONFIGS[model]}, {count} cores", model, gpus=1, cores=count)
    return Column(["Training by CPU cores,", SHARE], groups, *PERCENT)


def by_configs(heading: str, source: str = "folder", **where: Any) -> Column:
    groups = [group for model, name in CONFIGS.items() for group in of_toolkit(name, model, source, **where)]
    return Column([heading, SHARE], groups, *PERCENT)


def toolkit() -> str:
    columns = [by_cores(), by_configs("Training with 16 cores,", gpus=1, cores=16)]
    return picture(TOOLKIT, columns, "H200, photos in a folder; bars: medians, dots: rounds")


def on_two() -> list[Column]:
    """Return a column for each kind of GPU, for the source with the most configs."""
    columns = []
    for gpu in sorted({row["gpu"] for row in measured.rows(benchmark="toolkit", gpus=2)}, reverse=True):
        of = [by_configs(f"2 {gpu}, {words},", source, gpus=2, gpu=gpu) for source, words in SOURCES.items()]
        columns.append(max(of, key=lambda column: len(column.groups)))
    return columns


def two_gpus() -> str:
    return picture(ON_TWO, on_two(), "of both GPUs together; bars: medians, dots: rounds")


PICTURES = {"speed.svg": speed, "toolkit.svg": toolkit, "two-gpus.svg": two_gpus}


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, default=OUT, help="folder for the pictures")
    folder = options.parse_args().out
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw())
        print(folder / name)
