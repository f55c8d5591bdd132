"""Writes the tables of trainings into the pages, from the files in benchmarks/results: those of examples/imagenet into
docs/imagenet.md, that of dogs and cats into docs/recipe-dogs-cats.md.

A table stands between two comments of the page, "written, by benchmarks/tables.py: NAME" and "until here". A cell is
the median of rounds. Without its result it is a sentence that says so.

Command.
    python benchmarks/tables.py
"""

import argparse
import json
import pathlib
import re
import statistics

import plot

HERE = pathlib.Path(__file__).parent
IMAGENET = 1_281_167  # images of an epoch
PAGES = ("docs/imagenet.md", "docs/recipe-dogs-cats.md")
TABLE = re.compile(r"(<!-- written, by benchmarks/tables\.py: (\w+) -->\n).*?(<!-- until here -->)", re.DOTALL)
NOT_YET = "Not measured yet.\n"
LOADERS = plot.LOADERS
HEADER = ["synthetic data", *(f"{name} (waits)" for name in reversed(LOADERS.values())), "times"]


def result(name: str) -> dict | None:
    """A file of results/, or None where it is not there."""
    path = plot.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def middle(rows: list[dict], key: str = "images_per_s", **where) -> float | None:
    found = plot.of_turns(rows, key, **where)
    return statistics.median(found) if found else None


def speeds(rows: list[dict], **where) -> list[str]:
    """Cells: images/s of synthetic data and of both loaders, with the share of the time that they were waited for, and
    how many times as fast ours is."""
    theirs, ours = (middle(rows, case=case, **where) for case in LOADERS)
    ceiling = middle(rows, case="synthetic", **{key: value for key, value in where.items() if key != "source"})
    cells = [f"{ceiling:,.0f}" if ceiling else "-"]
    for case, value in (("dali", ours), ("torchvision", theirs)):
        waits = middle(rows, "waiting", case=case, **where)
        cells.append("-" if value is None else f"{value:,.0f} ({waits:.0%})")
    return [*cells, f"{ours / theirs:.1f}" if ours and theirs else "-"]


def about(found: dict) -> str:
    """The line before a table: on what, and how often."""
    gpu, ranks = str(found["facts"]["gpu"]).split(",")[0], found["ranks"]
    cores = max(row["cores"] for row in found["rounds"])
    each = f"{gpu}, {cores} cores" if ranks == 1 else f"{ranks} {gpu}, {cores} cores each"
    return f"{each}, rounds: {len({row['round'] for row in found['rounds']})}.\n\n"


def configs(name: str = "toolkit_h200") -> str:
    """Every config, on a folder and on a .rec."""
    found = result(name)
    if found is None:
        return NOT_YET
    rows, table = found["rounds"], []
    for config, source in [(config, source) for source in plot.SOURCES for config in plot.CONFIGS]:
        of_config = {"config": config, "source": source}
        ours, theirs = (middle(rows, case=case, **of_config) for case in ("dali", "torchvision"))
        if ours is None and theirs is None:
            continue
        batch = str(next(row["batch_size"] for row in rows if row["config"] == config))
        minutes = [f"{IMAGENET / value / 60:.1f}" if value else "-" for value in (ours, theirs)]
        kind = "" if source == "folder" else f", .{source}"
        table.append([plot.CONFIGS[config] + kind, batch, *speeds(rows, **of_config), " / ".join(minutes)])
    return about(found) + markdown(["config", "batch", *HEADER, "minutes an epoch"], table)


def cores() -> str:
    """By CPU cores a GPU, below the picture of both results."""
    found = result("toolkit_cores_h200")
    if found is None:
        return NOT_YET
    rows, table = found["rounds"], []
    for config in plot.CONFIGS:
        for count in sorted({row["cores"] for row in rows if row["config"] == config}):
            cells = speeds(rows, config=config, cores=count, source="folder")
            table.append([f"{plot.CONFIGS[config]}, {count} cores", *cells])
    picture = f"![{plot.TOOLKIT}](toolkit.svg)\n\n" if result("toolkit_h200") else ""
    return picture + about(found) + markdown(["", *HEADER], table)


def two_gpus() -> str:
    """DistributedDataParallel on two GPUs of one host."""
    return configs("toolkit_h200x2")


def dogs_cats() -> str:
    """What examples/dogs_cats.py printed: seconds and accuracies of all seeds."""
    found = result("dogs_cats_h200")
    if found is None:
        return NOT_YET
    table = []
    for case, name in (("dali_compat", "dali_compat"), ("torchvision", "torchvision")):
        runs = [row for row in found["rounds"] if row["case"] == case]
        if not runs:
            continue
        later = statistics.median(seconds for row in runs for seconds in row["seconds"][1:])
        rate = statistics.median(rate for row in runs for rate in row["images_per_s"][1:])
        first = statistics.median(row["seconds"][0] for row in runs)
        accuracies = ", ".join(f"{row['accuracy']:.1%}" for row in runs)
        table.append([name, f"{first:.2f}", f"{later:.2f}", f"{rate:,.0f}", accuracies])
    epochs = len(found["rounds"][0]["seconds"])
    gpu, words = str(found["facts"]["gpu"]).split(",")[0], " ".join(found["settings"]["options"][1:])
    said = f"{gpu}, {found['facts']['cores']} cores, after {epochs} epochs (`{words}`):\n\n"
    return said + markdown(["", "first epoch, s", "later ones, s", "images/s", "accuracy of each seed"], table)


TABLES = {"configs": configs, "cores": cores, "two_gpus": two_gpus, "dogs_cats": dogs_cats}


def written(text: str) -> str:
    """A page with its tables as they follow from the results."""
    return TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for page in PAGES:
        path = HERE.parent / page
        path.write_text(written(path.read_text()))
        print(path)
