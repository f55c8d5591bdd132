"""What benchmarks/tables.py writes as sentences, in the first lines of examples; and what it takes from a result. Where
a file of benchmarks/results is not there, an example says so.
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


# ---- the first lines of examples


def of_both(rows: list[dict], **where) -> list[float | None]:
    """Images/s of dali_compat and of torchvision, from a folder."""
    return [middle(rows, case=case, source="folder", **where) for case in ("dali", "torchvision")]


def ratios() -> list[float]:
    """Times torchvision's speed, of each config from a folder, on one GPU."""
    rows = (plot.of_toolkit() or {"rounds": []})["rounds"]
    found = [of_both(rows, config=config) for config in plot.CONFIGS]
    return [ours / theirs for ours, theirs in found if ours and theirs]


def reaches(values: Iterable[float], form: str) -> str:
    """As "2.1 to 5.4"; one number where that is all of them."""
    ordered = sorted(values)
    low, high = format(ordered[0], form), format(ordered[-1], form)
    return low if low == high else f"{low} to {high}"


def of_imagenet() -> str:
    """The paragraph of examples/imagenet/train.py."""
    found = ratios()
    if not found:
        return "Measured: not yet; docs/measurements.md has the command."
    return (
        "Measured: the speed of the configs, not whole trainings. On an "
        f"{with_cores(plot.of_toolkit())} it is, from a folder, "
        f"{reaches(found, '.1f')} times that with --loader torchvision. "
        "docs/measurements.md has the table."
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
        "docs/examples.md has the table."
    )


EXAMPLES = {"examples/imagenet/train.py": of_imagenet, "examples/dogs_cats.py": of_dogs_cats}


def with_measured(text: str, said: str) -> str:
    """An example whose first lines say it."""
    return MEASURED.sub(lambda _: textwrap.fill(said, 120, break_on_hyphens=False), text, count=1)
