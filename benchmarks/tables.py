"""Write tables of benchmarks/results into docs/measurements.md, docs/examples.md, docs/comparison.md and
benchmarks/results/README.md, and sentences of told.py into the docstrings of examples.

A table is between two comments of the page, "written, by benchmarks/tables.py: NAME" and "until here". If its result is
missing, a sentence replaces it. An example's paragraph begins with "Measured: " and ends with an empty line or with the
docstring.

Command.
    python benchmarks/tables.py
"""

import argparse
import pathlib
import re
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

import measured
import plot
from measured import FIGURES, FIRST, LARGE, LATER, OFF, OWN, SMALL, over, reaches
from told import CONFIGS, EXAMPLES, PETS, machine, of_an_epoch, pets, result, with_measured

HERE = pathlib.Path(__file__).parent
IMAGENET = 1_281_167  # images per epoch
PAGES = ("docs/comparison.md", "docs/examples.md", "docs/measurements.md", "benchmarks/results/README.md")
TABLE = re.compile(r"(<!-- written, by benchmarks/tables\.py: (\w+) -->\n).*?(<!-- until here -->)", re.DOTALL)
NOT_YET = "Not measured yet.\n"
EXACT = {"torchvision": "torchvision", "ours": "default", "ours_exact@BY_DEFAULT=False": "`exact=True`, engine off"}
EXACT |= {"ours_exact@BY_DEFAULT=True": "`exact=True`"}


def markdown(header: list[str], rows: list[list[str]], left: int = 1) -> str:
    """Format a table; the first ``left`` columns are text, the others numbers."""
    if not rows:
        return NOT_YET
    lines = ["| " + " | ".join(header) + " |", "|---" * left + "|---:" * (len(header) - left) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def spread(values: list[float], form: str) -> str:
    """Format the median and the range."""
    return "{} ({} - {})".format(*(format(of, form) for of in measured.spread(values))) if values else "-"


def medians(files: dict[str, list[float]]) -> list[float]:
    return [statistics.median(values) for values in files.values()]


def of_files(files: dict[str, list[float]], form: str) -> str:
    """Format the range of the files' medians."""
    return reaches(medians(files), form) if files else "-"


def values(key: str, **where) -> dict[str, list[float]]:
    """Return {file: values} of rows."""
    found: dict[str, list[float]] = {}
    for row in measured.rows(**where):
        if row.get(key) is not None:
            found.setdefault(row["file"], []).append(row[key])
    return found


# ---- will it help?


class Case(NamedTuple):
    """A row of the table: the data set, its use, the machine, and the measurement."""

    data: str
    work: str
    machine: str
    where: dict[str, Any]
    loader: str = "ours"
    base: str = "torchvision"


GPU, MEMORY = "H100 or H200, 16 cores", {"benchmark": "cifar10"}
KINDS, JOINT = {"benchmark": "own_kinds"}, {"benchmark": "joint"}
ON_CPU = JOINT | {"gpu": None, "case": ("own:2", "torch:2")}
HELPS = [
    Case("folder", "loading", GPU, FIGURES["loading"].where),
    Case(
        "folder",
        "loading, without JPEG engines",
        "H100 or H200, 2 to 16 cores",
        FIGURES["no engine"].where,
        f"ours{OFF}",
    ),
    Case("folder", "loading", "2 cores, no GPU", FIGURES["cpu"].where),
    Case("folder", "loading, with ColorJitter", "H100, 16 cores", {"transform": "ColorJitter"}),
    Case("folder", "loading, SimCLR's two views", "H200, 16 cores", {"benchmark": "views", "recipe": "simclr"}),
    Case("folder", "training ResNet-18", GPU, SMALL),
    Case("folder", "training ResNet-18, without JPEG engines", GPU, SMALL, f"ours{OFF}"),
    Case("folder", "training ResNet-50", "H200, 2 cores", LARGE | {"cores": 2}),
    Case("folder", "training ResNet-50", GPU, LARGE | {"cores": 16}),
    Case("folder", "training EfficientNet-B0", "H200, 16 cores", SMALL | {"model": "efficientnet_b0"}),
    Case("arrays", "CIFAR-10", "H100, 16 cores", MEMORY | {"gpu": "H100", "case": ("ours", "torchvision:16")}),
    Case("arrays", "CIFAR-10", "2 cores, no GPU", MEMORY | {"gpu": None}),
    Case("custom", "training ResNet-18, first epoch", "H200, 16 cores", OWN | FIRST, "own"),
    Case("custom", "training ResNet-18, later epochs", "H200, 16 cores", OWN | LATER, "own"),
    Case("custom", "training ResNet-18, later epochs", "H200, 4 cores", OWN | LATER | {"cores": 4}, "own"),
    Case("custom", "training ResNet-50", "H200, 16 cores", OWN | {"train": "resnet50"}, "own", "torchstream"),
    Case(
        "custom",
        "loading, dali_compat without workers",
        "H200, 16 cores",
        OWN | {"seen": False, "case": ("own:0", "torch:16")},
        "own",
    ),
    Case("custom", "loading, SimCLR's two views", "H200, 16 cores", {"benchmark": "views", "recipe": "simclr"}, "own"),
    Case("custom", "loading, DINO's eight views", "H200, 16 cores", {"benchmark": "views", "recipe": "dino"}, "own"),
    Case("custom stream", "training ResNet-50", "H200, 16 cores", OWN | {"train": "resnet50"}, "stream", "torchstream"),
    Case("custom stream", "loading", "H200, 16 cores", OWN, "stream", "torchstream"),
    Case("custom, with masks", "training U-Net", "H200, 16 cores", JOINT | {"train": "unet", "cores": 16}, "own"),
    Case(
        "custom, with boxes",
        "training SSDlite",
        "H200, 16 cores",
        JOINT | {"train": "ssdlite320_mobilenet_v3_large", "cores": 16},
        "own",
    ),
    Case("custom, with masks", "loading", "2 cores, no GPU", ON_CPU | {"kind": "segmentation"}, "own"),
    Case("custom, with boxes", "loading", "2 cores, no GPU", ON_CPU | {"kind": "detection"}, "own"),
    Case("custom", "processor time", "2 cores, no GPU", KINDS | {"kind": "ImageNet's training"}),
    Case("custom", "processor time, batches of 4", "2 cores, no GPU", KINDS | {"kind": "batches of 4"}),
    Case("custom", "processor time, RandAugment", "2 cores, no GPU", KINDS | {"kind": "RandAugment"}),
    Case("custom, with boxes", "processor time", "2 cores, no GPU", KINDS | {"kind": "boxes"}),
]


def scripts() -> dict[str, tuple[dict, list[float]]]:
    """Return public scripts as (case, processor time per sample in ms by torch's loader, by default and with
    exact=True)."""
    return {
        name: (case, [median_of(case["rounds"], "cpu_ms", loader=kind) for kind in ("torch", "default", "exact")])
        for name, case in (result("public_scripts_cpu") or {"cases": {}})["cases"].items()
    }


def median_of(rows: Iterable[dict], key: str, **where) -> float:
    return statistics.median(row[key] for row in rows if measured.meets(row, where))


def helps() -> str:
    table = []
    for case in HELPS:
        times = measured.ratios(case.loader, case.base, **case.where)
        shares = measured.ratios(case.loader, "synthetic", **case.where)
        if times or shares:
            form = ".1f" if not times or min(medians(times)) < 10 else ".0f"
            table.append([case.data, case.work, case.machine, over(times, form), over(shares, ".0%")])
    for data, on_dali in (("public scripts on DALI", True), ("public scripts with NumPy or OpenCV", False)):
        if times := [theirs / ours for case, (theirs, ours, _) in scripts().values() if case["on_dali"] is on_dali]:
            table.append([data, "processor time", "2 cores, no GPU", reaches(times, ".1f"), "-"])
    for kind in ("folder", "custom"):
        if times := small_work(kind):
            work = "one epoch of 100 small files, including the loader's start"
            table.append([kind, work, "2 cores, no GPU", reaches(times, ".1f"), "-"])
    return markdown(["data set", "work", "machine", "times PyTorch's loader", "share of synthetic"], table, 3)


def small_work(kind: str) -> list[float]:
    """Return torch's median seconds divided by ours, for each size of images and batches."""
    seconds: dict[tuple, dict[str, list[float]]] = {}
    for row in (result("small_work_cpu") or {"rounds": []})["rounds"]:
        if row["of"][0] == kind:
            seconds.setdefault(tuple(row["of"]), {}).setdefault(row["case"], []).append(row["seconds"])
    return [statistics.median(of["torch"]) / statistics.median(of["ours"]) for of in seconds.values()]


# ---- the files of README's figures and of the pictures


def commit_of(name: str) -> str:
    """Return the measured commit."""
    return measured.facts(measured.read(name)).get("commit") or "-"


def linked(names: Iterable[str]) -> str:
    """Format files, each with its commit."""
    return ", ".join(f"[{name}]({name}.json) ({commit_of(name)})" for name in names)


def photos(name: str) -> str:
    images = measured.read(name).get("images", {})
    return str(images.get("different_images", "-")) if isinstance(images, dict) else str(images)


def hardware(found: dict) -> str:
    """Return GPUs and cores of a result."""
    gpus = found.get("ranks") or found.get("processes") or 1
    gpu = measured.gpu_of(found) or str(found.get("device", "no GPU")).removeprefix("NVIDIA ")
    return f"{gpus} {gpu}" if gpus > 1 else gpu


def others() -> list[tuple[str, str, int | str, str]]:
    """Return the README's figures that are not ratios of loaders, as (name, file, rounds or images, value)."""
    found = []
    rows = measured.rows(file="on_error_h200", case="raise")
    found.append(("first epoch, share of the next one", rows, "first to second"))
    for name in ("frameworks_h200", "frameworks_h200x2"):
        rows = [row for row in measured.rows(file=name) if len(row["images_per_s"]) > 1]
        rows = [row | {"ratio": row["images_per_s"][0] / row["images_per_s"][1]} for row in rows]
        found.append(("first epoch of the examples, share of the next one", rows, "ratio"))
    table = [(what, of[0]["file"], len(of), spread([row[key] for row in of], ".0%")) for what, of, key in found if of]
    for name in ("parity_cpu", "parity_h200"):
        if whole := result(name):
            (of,) = (row["default"] for row in whole["recipes"] if row["name"] == "ImageNet, training")
            value = f"{of['mean']:.3f} (at most {of['max']:.0f})"
            table.append(("values, difference of 255", name, whole["images"]["images"], value))
    if whole := result("answers_h200"):
        kinds = {what: of for what, of in whole["agreement"].items() if what.endswith("default")}
        table += [(f"same answers, {what}", "answers_h200", "-", f"{of:.2%}") for what, of in kinds.items()]
    if whole := result("environment_cpu"):
        table.append(("a new environment", "environment_cpu", 1, f"{whole['bytes'] / 1e9:.1f} GB"))
    return table


def figures() -> str:
    """Return a row for each file of the README's figures."""
    table = []
    for figure in FIGURES.values():
        for name, of in figure.files().items():
            row = next(row for row in measured.rows_of(name) if measured.meets(row, figure.where))
            where = f"{row['gpu'] or 'no GPU'}, {row['cores']} cores, batch {row.get('batch_size', 256)}"
            form = figure.form if figure.form.endswith("%") else ".1f"
            table.append([figure.what, where, linked([name]), photos(name), str(len(of)), spread(of, form)])
    for what, name, count, value in others():
        table.append([what, hardware(measured.read(name)), linked([name]), photos(name), str(count), value])
    return markdown(["figure", "machine", "file (commit)", "photos", "rounds", "median (range)"], table, 3)


def pictures() -> str:
    """Return a row for each group of bars."""
    columns = {"speed": [plot.loading(), plot.training()], "two-gpus": plot.on_two()}
    columns["toolkit"] = [plot.by_cores(), plot.by_configs("", gpus=1, cores=16)]
    table = []
    for picture, of in columns.items():
        for column in of:
            for group in column.groups:
                bars = {bar.name: format(statistics.median(bar.values), column.form) for bar in group.bars}
                cells = [bars.get(name, "-") for name in plot.NAMES.values()]
                title = (
                    f"{column.heading[0].removesuffix(',')}: {group.title}" if picture == "two-gpus" else group.title
                )
                table.append([f"{picture}.svg", title, linked(group.files), *cells])
    return markdown(["picture", "group", "files (commit)", *plot.NAMES.values()], table, 3)


# ---- tables of single benchmarks


def configs() -> str:
    """Return a row for every config, from a folder and from a .rec."""
    table, counts = [], set()
    for source, model in [(source, model) for source in plot.SOURCES for model in plot.CONFIGS]:
        where = CONFIGS | {"model": model, "source": (source, None)}
        speeds = {loader: values("speed", **where, loader=loader) for loader in ("synthetic", "ours", "torchvision")}
        if not (speeds["ours"] or speeds["torchvision"]):
            continue
        speeds["synthetic"] = {name: of for name, of in speeds["synthetic"].items() if name in speeds["ours"]}
        waits = {loader: of_files(values("waiting", **where, loader=loader), ".0%") for loader in speeds}
        cells = [of_files(speeds["synthetic"], ",.0f")]
        cells += [f"{of_files(speeds[loader], ',.0f')} ({waits[loader]})" for loader in ("ours", "torchvision")]
        minutes = [
            reaches([IMAGENET / value / 60 for value in medians(speeds[loader])], ".1f") if speeds[loader] else "-"
            for loader in ("ours", "torchvision")
        ]
        batch = str(measured.rows(**where)[0]["batch_size"])
        times = of_files(measured.ratios("ours", "torchvision", **where), ".1f")
        kind = "" if source == "folder" else f", .{source}"
        table.append([plot.CONFIGS[model] + kind, batch, *cells, times, " / ".join(minutes)])
        counts |= {len(of) for of in speeds.values() if of}
    gpus = {row["gpu"] for row in measured.rows(**CONFIGS)}
    header = ["config", "batch", "synthetic data", "dali_compat (waits)", "torchvision (waits)", "times"]
    said = (
        f"The GPU is an NVIDIA {reaches(gpus, '')}, with {CONFIGS['cores']} CPU cores. Each config was measured in "
        f"{reaches(counts, 'd')} {'run' if counts == {1} else 'runs'}.\n\n"
        if table
        else ""
    )
    return said + markdown([*header, "minutes per epoch"], table)


def dogs_cats() -> str:
    """Return the seconds and accuracies that examples/dogs_cats.py printed, for all seeds."""
    tables = []
    for found in filter(None, map(result, PETS)):
        table = []
        for name, of in pets(found).items():
            accuracies = ", ".join(f"{accuracy:.1%}" for accuracy in of.accuracies)
            table.append([name, f"{of.first:.2f}", f"{of.later:.2f}", f"{of.rate:,.0f}", accuracies])
        epochs, words = len(found["rounds"][0]["seconds"]), " ".join(found["settings"]["options"][1:])
        said = f"{machine(found)}, {epochs} epochs of about {of_an_epoch(found)} photos (`{words}`):\n\n"
        tables.append(
            said + markdown(["", "first epoch, s", "later epochs, s", "images/s", "accuracy of each seed"], table)
        )
    return "\n".join(tables) or NOT_YET


def exact_loading() -> str:
    """Return loading speeds by CPU cores, without training."""
    table, gpus = [], set()
    for count in (2, 4, 8, 16):
        where = {"benchmark": "imagefolder", "gpu": "H200", "cores": count, "recipe": "train"}
        times = measured.ratios("ours_exact@BY_DEFAULT=True", "torchvision", **where)
        files = values("speed", **where, loader="ours_exact@BY_DEFAULT=True")
        if files:
            cells = [of_files(values("speed", **where, loader=case, file=tuple(files)), ",.0f") for case in EXACT]
            rounds = reaches(map(len, files.values()), "d")
            table.append([str(count), rounds, *cells, spread(sum(times.values(), []), ".0f")])
            gpus |= {row["gpu"] for row in measured.rows(**where)}
    said = f"The GPU is an NVIDIA {reaches(gpus, '')}.\n\n" if table else ""
    return said + markdown(["CPU cores", "rounds", *EXACT.values(), "times torchvision"], table)


def exact_training() -> str:
    """Return shares of the speed on synthetic data, as ranges of the medians of all runs."""
    exact = "ours_exact", "ours_exact@BY_DEFAULT=True"
    where = {"benchmark": "training", "gpu": "H200", "loader": exact, "batch_size": (256, None)}
    kinds = dict.fromkeys((row["model"], row["kind"]) for row in measured.rows(**where))
    table = []
    for model, kind in sorted(kinds, key=lambda of: (of[0], ["eager", "compiled", "graphs"].index(of[1]))):
        of = {"benchmark": "training", "gpu": "H200", "model": model, "kind": kind}
        of["file"] = tuple({row["file"] for row in measured.rows(**where, model=model, kind=kind)})
        called = plot.CONFIGS[model] + {"eager": "", "graphs": " in CUDA graphs"}.get(kind, f", {kind}")
        shares = [measured.ratios(case, "synthetic", **of) for case in ("ours", *exact, plot.BY_HAND)]
        cells = [of_files(found, ".3f") for found in (shares[0], shares[1] | shares[2], shares[3])]
        speed = of_files(values("speed", **of, loader="synthetic"), ",.0f")
        table.append([f"{called} ({len(of['file'])})", speed, *cells])
    header = ["model (runs)", "synthetic, images/s", "default", "`exact=True`", "DALI pipeline by hand"]
    return markdown(header, table)


def public_scripts() -> str:
    """Return the processor time per sample of public training scripts."""
    table = []
    for name, (case, times) in scripts().items():
        script = f"[{name}](https://github.com/{case['source']}/tree/{case['commit']})"
        table.append([script, "DALI" if case["on_dali"] else "PyTorch", *(f"{time:.1f}" for time in times)])
    return markdown(["script", "pixels by", "PyTorch's loader", "default", "`exact=True`"], table, 2)


def frameworks() -> str:
    """Return images/s and the share of the time in next(), for each figure that an example prints."""
    table = []
    for name in ("frameworks_h200", "frameworks_h200x2"):
        rows = (result(name) or {"rounds": []})["rounds"]
        for case in dict.fromkeys(row["case"] for row in rows):
            of = [row for row in rows if row["case"] == case]
            figures = zip(*([*zip(row["images_per_s"], row["in_next"], strict=True)] for row in of), strict=True)
            medians = [map(statistics.median, zip(*figure, strict=True)) for figure in figures]
            cells = [f"{rate:,.0f} ({share:.0%})" for rate, share in medians]
            table.append([case, "2" if name.endswith("x2") else "1", *cells, *["-"] * (2 - len(cells))])
    return markdown(["example", "GPUs", "first figure (waits)", "second figure (waits)"], table)


def policies() -> str:
    """Return the host time and the launches that each policy or ColorJitter takes for a batch."""
    rows = (result("policies_h100") or {"rounds": []})["rounds"]
    table = [
        [transform, *(f"{median_of(rows, 'host_ms', case=case, transform=transform):.1f}" for case in _BY)]
        + [f"{median_of(rows, 'launches', case=case, transform=transform):.0f}" for case in _BY]
        for transform in dict.fromkeys(row["transform"] for row in rows)
    ]
    return markdown(["", "Triton, ms", "torch, ms", "Triton, launches", "torch, launches"], table)


def gpu_time() -> str:
    """Return the GPU time that a batch adds to a step of ResNet-18."""
    table = []
    for name in ("training_resnet18_h200", "training_exact_profile_h200"):
        for row in (result(name) or {"gpu_time": []})["gpu_time"]:
            spent = [sum(of["ms"] for of in row["kernels"] if word in of["name"]) for word in _KERNELS.values()]
            cells = [row["added_ms"] - spent[0], *spent, row["longer_ms"]]
            table.append([row["program"], f"`{row['case']}`", *(f"{cell:.1f}" for cell in cells)])
    return markdown(["step", "case", "kernels", *_KERNELS, "the model's own kernels, slower by"], table, 2)


_BY = "launches", "torch"  # Triton's kernels, and torch
_KERNELS = {"copies": "Memcpy", "nvJPEG's RGB": "rgba2rgb", "resize": "Resample", "normalization": "Normalize"}


def files() -> str:
    """Return a row for every JSON file, with its machine and command."""
    table = []
    for path in sorted(measured.RESULTS.glob("*.json")):
        found = measured.read(path.stem)
        if isinstance(found, list):
            continue
        of = measured.facts(found)
        command = re.sub(r"python (\S*benchmarks/)?| --(json|data|out) \S+", "", str(of.get("command")))
        machine_ = f"{hardware(found)}, {of.get('cores', '-')} cores"
        table.append(
            [path.stem, machine_, photos(path.stem), f"{of.get('torchvision')}", commit_of(path.stem), f"`{command}`"]
        )
    return markdown(["file", "machine", "photos", "torchvision", "code", "command"], table, 6)


def transforms() -> str:
    """Return a row for each transform, measured after ImageNet's training transform."""
    table = []
    for name in dict.fromkeys(row["transform"] for row in measured.rows(benchmark="transforms")):
        of = [values("speed", benchmark="transforms", transform=name, loader=case) for case in ("torchvision", "ours")]
        times = of_files(measured.ratios("ours", "torchvision", benchmark="transforms", transform=name), ".1f")
        table.append([name, *(of_files(found, ",.0f") for found in of), times])
    return markdown(["", "torchvision", "dali_compat", "times"], table)


PEERS = {
    "torchvision": "torchvision",
    "ours": "dali_compat",
    "ours_exact": "dali_compat, `exact=True`",
    "handwritten": "DALI by hand",
    "torchcodec": "torchcodec",
    "spdl": "SPDL",
    "litdata_raw": "LitData, raw files",
    "litdata": "LitData, converted",
    "webdataset": "WebDataset",
    "timm": "timm",
    "turboloader": "TurboLoader",
    "ffcv": "FFCV",
    "huggingface": "Hugging Face datasets",
}


def peers(found: dict | None = None) -> str:
    """Return a row for each loader that was measured on a CPU, and the reasons why others were not."""
    found = found or result("peers_cpu")
    if not found or not found["peers"]:
        return NOT_YET
    speeds: dict[str, dict[int, float]] = {name: {} for name in found["peers"]}
    for row in found["rounds"]:
        speeds[row["case"]][row["round"]] = row["images_per_s"]
    base = speeds.get("torchvision", {})
    table = []
    for name, about in found["peers"].items():
        times = [speed / base[number] for number, speed in speeds[name].items() if number in base]
        cells = [spread(list(speeds[name].values()), ",.0f"), spread(times, ".2f"), "-", "-"]
        if "convert_s" in about:
            cells[2:] = [f"{about['converted_bytes'] / 1e6:,.0f}", f"{about['convert_s']:.1f}"]
        table.append([PEERS[name], about["version"], *cells])
    header = ["loader", "version", "images/s", "times torchvision", "converted, MB", "conversion, s"]
    of, images = found["facts"], found["images"]
    command = re.sub(r"--data \S+", "--data PHOTOS", re.sub(r" --json \S+", "", of["command"]))
    said = (
        f"{of['cpu']}, {of['cores']} cores, {of['date']}, torch {of['torch']}. The {images['files']:,} files total "
        f"{images['bytes'] / 1e6:,.0f} MB and are loaded in batches of {found['settings']['batch_size']}. "
        f"Values are medians (ranges) of {reaches(map(len, speeds.values()), 'd')} rounds of `{command}`.\n\n"
    )
    missing = [f"{PEERS[name]} was not measured: {reason}.\n" for name, reason in found["not_measured"].items()]
    return said + markdown(header, table, 2) + "".join(f"\n{line}" for line in missing)


def first_epochs() -> str:
    """Return the start and the first epoch of each loader."""
    table = []
    for name in "first_epoch_h200", "first_epoch_cpu":
        found = result(name)
        for case in dict.fromkeys(row["case"] for row in found["rounds"]) if found else ():
            rows = [row for row in found["rounds"] if row["case"] == case]
            start = spread([row["open_s"] + row["first_s"] for row in rows], ".1f")
            cells = [spread([row[key] for row in rows], form) for key, form in _FIRST.items()]
            table.append(
                [f"{hardware(measured.read(name))}, {found['facts']['cores']} cores", NAMES[case], start, *cells]
            )
    header = ["machine", "loader", "first batch, s", "first epoch", "next epoch's first batch, s", "next epoch"]
    return markdown(header, table, 2)


_FIRST = {"images_s": ",.0f", "again_s": ".2f", "later": ",.0f"}
NAMES = {"ours": "dali_compat", "ours_exact": "dali_compat, `exact=True`", "handwritten": "DALI by hand"}
NAMES |= {"torchvision": "torchvision"}

TABLES = {
    function.__name__: function
    for function in (
        *(helps, configs, exact_loading, exact_training, figures, pictures, dogs_cats, files, transforms),
        *(public_scripts, frameworks, policies, gpu_time, peers, first_epochs),
    )
}


def written(text: str) -> str:
    """Return a page with its tables regenerated from the results."""

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}"

    return TABLE.sub(table, text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for page in PAGES:
        path = HERE.parent / page
        path.write_text(written(path.read_text()))
        print(path)
    for example, say in EXAMPLES.items():
        path = HERE.parent / example
        path.write_text(with_measured(path.read_text(), say()))
        print(path)
