"""What benchmarks/tables.py writes as sentences: lines of README.md, and what examples say of themselves in their first
lines; and what tables and sentences take from a result. Where a file of benchmarks/results is not there, an example
says so, and README.md has no line.
"""

import json
import re
import statistics
import textwrap
from collections.abc import Iterable
from typing import NamedTuple

import plot

LOADERS = plot.LOADERS
PETS = "dogs_cats_h200", "dogs_cats_7000_h200"  # of dogs_cats.py on all of its photos, and on some
MEASURED = re.compile(r"^Measured: .*?(?=\n\n|\n\"\"\")", re.DOTALL | re.MULTILINE)


def result(name: str) -> dict | None:
    """A file of results/, or None where it is not there."""
    path = plot.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def middle(rows: list[dict], key: str = "images_per_s", **where) -> float | None:
    found = plot.of_turns(rows, key, **where)
    return statistics.median(found) if found else None


def machine(found: dict) -> str:
    """One GPU, and the cores that it had at most."""
    return f"{plot.gpu_of(found)}, {max(row.get('cores') or found['facts']['cores'] for row in found['rounds'])} cores"


def with_cores(found: dict) -> str:
    """The same within a sentence."""
    return machine(found).replace(", ", " with ")


def within(rows: list[dict], case: str, base: str, **where) -> list[float]:
    """The ratio of two cases in each round that has both."""
    ours, theirs = (
        {row["round"]: row["images_per_s"] for row in rows if row["case"] == name and where.items() <= row.items()}
        for name in (case, base)
    )
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]


def spread(values: list[float], form: str) -> str:
    """Median and range."""
    if not values:
        return "-"
    return "{} ({} - {})".format(*(format(of(values), form) for of in (statistics.median, min, max)))


class Pets(NamedTuple):
    """Of one loader in dogs_cats.py, medians of all seeds.

    Attributes:
        first, later: seconds of the first epoch, and of others.
        rate: images/s of these.
        accuracies: of each seed.
    """

    first: float
    later: float
    rate: float
    accuracies: list[float]


def pets(found: dict) -> dict[str, Pets]:
    """{loader: what it gave}, of those that were measured."""
    of_loaders = {}
    for name in reversed(LOADERS.values()):
        if runs := [row for row in found["rounds"] if row["case"] == name]:
            later, rates = ([value for row in runs for value in row[key][1:]] for key in ("seconds", "images_per_s"))
            first = statistics.median(row["seconds"][0] for row in runs)
            accuracies = [row["accuracy"] for row in runs]
            of_loaders[name] = Pets(first, statistics.median(later), statistics.median(rates), accuracies)
    return of_loaders


def of_an_epoch(found: dict) -> str:
    """How many photos one of dogs_cats.py trains on, but for the last incomplete batch."""
    row = found["rounds"][0]
    return f"{round(row['seconds'][-1] * row['images_per_s'][-1], -2):,.0f}"


# ---- lines of README.md, and the first ones of examples


def of_both(rows: list[dict], **where) -> list[float | None]:
    """Images/s of dali_compat and of torchvision, from a folder."""
    return [middle(rows, case=case, source="folder", **where) for case in ("dali", "torchvision")]


def ratios() -> dict[str, tuple[float, float]]:
    """{config: (times torchvision's speed, share of synthetic data's)} from a folder, on one GPU."""
    rows, found = (plot.of_toolkit() or {"rounds": []})["rounds"], {}
    for config in plot.CONFIGS:
        ours, theirs = of_both(rows, config=config)
        ceiling = middle(rows, config=config, case="synthetic", source="folder")
        if ours and theirs and ceiling:
            found[config] = ours / theirs, ours / ceiling
    return found


def reaches(values: Iterable[float], form: str) -> str:
    """As "2.1 to 5.4"; one number where that is all of them."""
    ordered = sorted(values)
    low, high = format(ordered[0], form), format(ordered[-1], form)
    return low if low == high else f"{low} to {high}"


def readme() -> str:
    """A line for each result that is there, and the plot of two of them."""
    configs, cores, lines = plot.of_toolkit(), plot.of_toolkit(*plot.CORES), []
    if configs and (found := ratios()):
        times, shares = zip(*found.values(), strict=True)
        lines.append(
            f"- The [ImageNet recipe](docs/imagenet.md), {len(found)} models from a folder on an "
            f"{with_cores(configs)}: training is {reaches(times, '.1f')} times as fast as with torchvision's loader, "
            f"and has {reaches(shares, '.0%')} of its speed on synthetic data."
        )
    if cores:
        fewest, said = min(row["cores"] for row in cores["rounds"]), []
        for config, name in plot.CONFIGS.items():
            ours, theirs = of_both(cores["rounds"], config=config, cores=fewest)
            said += [f"{name} {ours / theirs:.1f} times"] if ours and theirs else []
        lines += [f"- The same GPU with {fewest} CPU cores: {', '.join(said)}."] if said else []
    if (found := result(PETS[0])) and len(both := pets(found)) == 2:
        ours, theirs = both.values()
        lines.append(
            f"- [Dogs and cats](docs/recipe-dogs-cats.md), {with_cores(found)}: an epoch takes {ours.later:.1f} s, and "
            f"{theirs.later:.1f} s with torchvision's loader; the first one takes {ours.first:.1f} s and "
            f"{theirs.first:.1f} s."
        )
    plots = [f"![{plot.TOOLKIT}](docs/toolkit.svg)\n"] if configs and cores else []
    wrapped = [textwrap.fill(line, 128, subsequent_indent="  ", break_on_hyphens=False) for line in lines]
    return "\n".join(plots + ["\n".join(wrapped) + "\n"] * bool(lines))


def of_imagenet() -> str:
    """The paragraph of examples/imagenet/train.py."""
    found = ratios()
    if not found:
        return "Measured: not yet; docs/imagenet.md has the command."
    return (
        "Measured: the speed of the configs, not whole trainings. On an "
        f"{with_cores(plot.of_toolkit())} it is, from a folder, "
        f"{reaches((times for times, _ in found.values()), '.1f')} times that with --loader torchvision. "
        "docs/imagenet.md has the tables."
    )


def of_dogs_cats() -> str:
    """That of examples/dogs_cats.py."""
    found = result(PETS[0])
    if not found or len(both := pets(found)) < 2:
        return "Measured: not yet; both commands print the seconds and the accuracy of each epoch."
    (ours, theirs), options = both.values(), " ".join(found["settings"]["options"][1:])
    return (
        f"Measured: on an {with_cores(found)} an epoch of about {of_an_epoch(found)} photos takes {ours.later:.2f} s, "
        f"and {theirs.later:.2f} s with --loader torchvision; the first one takes {ours.first:.1f} and "
        f"{theirs.first:.1f} s. After {len(found['rounds'][0]['seconds'])} epochs "
        f"({options}) the accuracy is {reaches(ours.accuracies, '.1%')}, and {reaches(theirs.accuracies, '.1%')}. "
        "docs/recipe-dogs-cats.md has the table."
    )


EXAMPLES = {"examples/imagenet/train.py": of_imagenet, "examples/dogs_cats.py": of_dogs_cats}


def with_measured(text: str, said: str) -> str:
    """An example whose first lines say it."""
    return MEASURED.sub(lambda _: textwrap.fill(said, 120, break_on_hyphens=False), text, count=1)
