"""Writes what was measured of trainings into the pages, from the files in benchmarks/results: the toolkit's configs and
exact=True on a GPU's JPEG engine into docs/measurements.md, dogs and cats into docs/examples.md, and sentences of
told.py into the first lines of examples.

A table stands between two comments of the page, "written, by benchmarks/tables.py: NAME" and "until here". A cell is
the median of rounds. Without its result it is a sentence that says so. An example's paragraph begins with "Measured: "
and ends with an empty line, or with the first lines.

Command.
    python benchmarks/tables.py
"""

import argparse
import pathlib
import re

import plot
from told import (
    EXAMPLES,
    LOADERS,
    PETS,
    machine,
    middle,
    of_an_epoch,
    pets,
    reaches,
    result,
    spread,
    with_measured,
    within,
)

HERE = pathlib.Path(__file__).parent
IMAGENET = 1_281_167  # images of an epoch
PAGES = ("docs/examples.md", "docs/measurements.md")
TABLE = re.compile(r"(<!-- written, by benchmarks/tables\.py: (\w+) -->\n).*?(<!-- until here -->)", re.DOTALL)
NOT_YET = "Not measured yet.\n"
EXACT = {"torchvision": "torchvision", "ours": "default", "ours_exact@BY_DEFAULT=False": "`exact=True`, engine off"}
EXACT |= {"ours_exact@BY_DEFAULT=True": "`exact=True`"}
HEADER = ["synthetic data", *(f"{name} (waits)" for name in reversed(LOADERS.values())), "times"]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def speeds(rows: list[dict], **where) -> list[str]:
    """Cells: images/s of synthetic data and of both loaders, with the share of the time that they were waited for, and
    how many times as fast ours is."""
    theirs, ours = (middle(rows, case=case, **where) for case in LOADERS)
    ceiling = middle(rows, case="synthetic", **where)
    cells = [f"{ceiling:,.0f}" if ceiling else "-"]
    for case, value in (("dali", ours), ("torchvision", theirs)):
        waits = middle(rows, "waiting", case=case, **where)
        cells.append("-" if value is None else f"{value:,.0f} ({waits:.0%})")
    return [*cells, f"{ours / theirs:.1f}" if ours and theirs else "-"]


def about(found: dict) -> str:
    """The line before a table: on what, and how often."""
    rounds: dict[tuple, set[int]] = {}
    for row in found["rounds"]:
        rounds.setdefault((row["config"], row["source"], row["cores"]), set()).add(row["round"])
    return f"{machine(found)}, rounds: {reaches(map(len, rounds.values()), 'd')}.\n\n"


def configs() -> str:
    """Every config, on a folder and on a .rec."""
    found = plot.of_toolkit()
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
    return about(found) + markdown(["config", "batch", *HEADER, "minutes per epoch"], table)


def dogs_cats() -> str:
    """What examples/dogs_cats.py printed: seconds and accuracies of all seeds."""
    tables = []
    for found in filter(None, map(result, PETS)):
        table = []
        for name, of in pets(found).items():
            accuracies = ", ".join(f"{accuracy:.1%}" for accuracy in of.accuracies)
            table.append([name, f"{of.first:.2f}", f"{of.later:.2f}", f"{of.rate:,.0f}", accuracies])
        epochs, words = len(found["rounds"][0]["seconds"]), " ".join(found["settings"]["options"][1:])
        said = f"{machine(found)}, after {epochs} epochs of about {of_an_epoch(found)} photos (`{words}`):\n\n"
        tables.append(
            said + markdown(["", "first epoch, s", "later epochs, s", "images/s", "accuracy of each seed"], table)
        )
    return "\n".join(tables) or NOT_YET


# ---- exact=True, on the JPEG engine


def exact_loading() -> str:
    """Loading alone, by CPU cores."""
    table, said = [], ""
    for count in (2, 4, 8, 16):
        found = result(f"imagefolder_exact_{count}_h200")
        if found is None:
            continue
        rows = found["rounds"]
        cells = [f"{value:,.0f}" if (value := middle(rows, case=case)) else "-" for case in EXACT]
        times = within(rows, "ours_exact@BY_DEFAULT=True", "torchvision")
        table.append([str(count), str(len({row["round"] for row in rows})), *cells, spread(times, ".0f")])
        said = plot.gpu_of(found) + ".\n\n"
    return said + markdown(["CPU cores", "rounds", *EXACT.values(), "times torchvision"], table) if table else NOT_YET


def exact_training() -> str:
    """Shares of the speed on synthetic data; of what two runs measured that of more rounds, or the newer one's."""
    table: dict[str, tuple[int, list[str]]] = {}
    for run in ("h200", "compiled_h200", "graphs_h200", "models_h200"):
        rows = (result(f"training_exact_{run}") or {"rounds": []})["rounds"]
        for model, kind in dict.fromkeys((row["model"], row["kind"]) for row in rows):
            of = {"model": model, "kind": kind}
            cases = [row["case"] for row in rows if row["model"] == model]
            exact, hand = (next((case for case in cases if case.startswith(b)), "") for b in ("ours_exact", "handw"))
            called = plot.CONFIGS[model] + {"eager": "", "graphs": " in CUDA graphs"}.get(kind, f", {kind}")
            shares = [within(rows, case, "synthetic", **of) for case in ("ours", exact, hand)]
            cells = [spread(found, ".3f") for found in shares]
            count = len(shares[1])
            row = [f"{called} ({count})", f"{middle(rows, case='synthetic', **of):,.0f}", *cells]
            table[called] = max((count, row), table.get(called, (0, row)), key=lambda found: found[0])
    header = ["model (rounds)", "synthetic, images/s", "default", "`exact=True`", "DALI pipeline by hand"]
    return markdown(header, [row for _, row in table.values()]) if table else NOT_YET


TABLES = {"configs": configs, "dogs_cats": dogs_cats, "exact_loading": exact_loading, "exact_training": exact_training}


def written(text: str) -> str:
    """A page with its tables as they follow from the results."""

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
