"""Sentences about results that benchmarks/tables.py writes into the docstrings of examples.

If a result is missing, the sentence is "Measured: not yet".
"""

import re
import statistics
import textwrap
from typing import NamedTuple

import measured
from measured import reaches

PETS = "dogs_cats_h200", "dogs_cats_7000_h200"  # of dogs_cats.py on all of its photos, and on some
MEASURED = re.compile(r"^Measured: .*?(?=\n\n|\n\"\"\")", re.DOTALL | re.MULTILINE)
CONFIGS = {"benchmark": "toolkit", "gpus": 1, "cores": 16}  # of examples/imagenet, on one GPU


def result(name: str) -> dict | None:
    """Return a file of results/, or None if it is missing."""
    return measured.read(name) if (measured.RESULTS / f"{name}.json").exists() else None


def machine(found: dict) -> str:
    return f"NVIDIA {measured.gpu_of(found)}, {measured.facts(found)['cores']} cores"


class Pets(NamedTuple):
    """Results of one loader in dogs_cats.py, as medians of all seeds.

    Attributes:
        first, later: Seconds of the first epoch, and of later ones.
        rate: Images per second of later epochs.
        accuracies: Accuracy of each seed.
    """

    first: float
    later: float
    rate: float
    accuracies: list[float]


def pets(found: dict) -> dict[str, Pets]:
    """Return {loader: results} of the measured loaders."""
    of_loaders = {}
    for name in ("dali_compat", "torchvision"):
        if runs := [row for row in found["rounds"] if row["case"] == name]:
            later, rates = ([value for row in runs for value in row[key][1:]] for key in ("seconds", "images_per_s"))
            first = statistics.median(row["seconds"][0] for row in runs)
            accuracies = [row["accuracy"] for row in runs]
            of_loaders[name] = Pets(first, statistics.median(later), statistics.median(rates), accuracies)
    return of_loaders


def of_an_epoch(found: dict) -> str:
    """Return the number of photos in an epoch of dogs_cats.py, to the nearest hundred, without the incomplete last
    batch."""
    row = found["rounds"][0]
    return f"{round(row['seconds'][-1] * row['images_per_s'][-1], -2):,.0f}"


# ---- docstrings of examples


def of_imagenet() -> str:
    """Return the paragraph for examples/imagenet/train.py."""
    where = CONFIGS | {"source": ("folder", None)}
    models = {row["model"]: row["gpu"] for row in measured.rows(**where)}
    files = [
        values for model in models for values in measured.ratios("ours", "torchvision", **where, model=model).values()
    ]
    if not files:
        return "Measured: not yet; docs/measurements.md has the command."
    return (
        "Measured: the speed of the configs, not whole trainings. On an "
        f"NVIDIA {reaches(set(models.values()), '')} with {where['cores']} cores it is, from a folder, "
        f"{reaches(map(statistics.median, files), '.1f')} times that with --loader torchvision. "
        "docs/measurements.md has the table."
    )


def of_dogs_cats() -> str:
    """Return the paragraph for examples/dogs_cats.py."""
    found = result(PETS[0])
    if not found or len(both := pets(found)) < 2:
        return "Measured: not yet; both commands print the seconds and the accuracy of each epoch."
    (ours, theirs), options = both.values(), " ".join(found["settings"]["options"][1:])
    return (
        f"Measured: on an {machine(found).replace(', ', ' with ')} an epoch of about {of_an_epoch(found)} photos takes "
        f"{ours.later:.2f} s, and {theirs.later:.2f} s with --loader torchvision; the first one takes {ours.first:.1f} "
        f"and {theirs.first:.1f} s. After {len(found['rounds'][0]['seconds'])} epochs "
        f"({options}) the accuracy is {reaches(ours.accuracies, '.1%')}, and {reaches(theirs.accuracies, '.1%')}. "
        "docs/examples.md has the table."
    )


EXAMPLES = {"examples/imagenet/train.py": of_imagenet, "examples/dogs_cats.py": of_dogs_cats}


def with_measured(text: str, said: str) -> str:
    """Replace the "Measured:" paragraph of an example's text."""
    return MEASURED.sub(lambda _: textwrap.fill(said, 120, break_on_hyphens=False), text, count=1)
