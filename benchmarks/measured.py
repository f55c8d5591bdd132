"""Read benchmarks/results: rows of all files, ratios within a round, and the origin of the README's figures.

A configuration is a set of conditions on rows. Every matching file counts, so the README's figures are ranges over
files. A new file changes them without a change here.
"""

import functools
import json
import pathlib
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results"
SAME = {  # cases with other names for ours and torchvision
    "toolkit": {"dali": "ours"},
    "own_dataset": {"list": "ours", "torch": "torchvision"},
    **{benchmark: {"torch": "torchvision"} for benchmark in ("own_kinds", "joint")},
}
OFF = "@DALI_COMPAT_JPEG_ENGINE=0"


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def facts(found: dict) -> dict:
    """Return hardware and versions of a result."""
    return found.get("facts", found)


def gpu_of(found: dict) -> str | None:
    """Return the GPU as in "NVIDIA H200, 580"; None if the result was measured without one."""
    gpu = facts(found).get("gpu")
    return gpu and str(gpu).split()[1].rstrip(",")


def rows_of(name: str) -> list[dict]:
    """Return the rounds of a file, each with the file's settings, machine and number of GPUs.

    ``loader`` is the case without its numbers of workers and batches, named the same way in all benchmarks. ``speed``
    is in images per second.
    """
    path = RESULTS / f"{name}.json"
    return _rows_of(path, path.stat().st_mtime_ns)


@functools.cache
def _rows_of(path: pathlib.Path, changed: int) -> list[dict]:
    found, name = json.loads(path.read_text()), path.stem
    if not isinstance(found, dict) or "rounds" not in found:
        return []
    settings = {key: None if value == "None" else value for key, value in found.get("settings", {}).items()}
    about = {"file": name, "benchmark": found.get("benchmark"), "gpu": gpu_of(found)}
    about |= {"gpus": found.get("ranks") or found.get("processes") or 1, "cores": facts(found).get("cores")}
    rows, same = [], SAME.get(found.get("benchmark", ""), {})
    for row in map(dict, found["rounds"]):
        if about["benchmark"] == "own_kinds":  # seconds of both loaders are in one row
            kind = {"kind": row.pop("case"), "round": row.pop("round")}
            rows += [about | kind | {"loader": same.get(of, of), "speed": 1 / s} for of, s in row.items()]
            continue
        case, *arguments = str(row.get("case")).split("@")
        case = case.split(":")[0]
        loader = "@".join([same.get(case, case), *arguments])
        model = row.get("config", settings.get("train"))
        of = {"model": model, "speed": row.get("images_per_s", row.get("samples_per_s")), "loader": loader}
        rows.append(settings | about | of | row)
    return rows


def meets(row: dict, where: dict[str, Any]) -> bool:
    """Return True if the row meets the conditions; a tuple lists alternatives."""
    for key, wanted in where.items():
        if str(row.get(key)) not in map(str, wanted if isinstance(wanted, tuple) else (wanted,)):
            return False
    return True


def rows(**where) -> list[dict]:
    """Return the rounds of all files that meet the conditions."""
    names = sorted(path.stem for path in RESULTS.glob("*.json"))
    return [row for name in names for row in rows_of(name) if meets(row, where)]


def runs(*loaders: str, **where) -> dict[str, list[list[float]]]:
    """Return {file: speeds of the loaders in each round}, for the rounds that have all of them."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for row in rows(loader=loaders, **where):
        of = found.setdefault(row["file"], {}).setdefault(row["round"], {})
        if row["loader"] in of:
            raise ValueError(f"{row['file']} has several configurations with {where}")
        of[row["loader"]] = row["speed"]
    whole = {name: [r for r in of.values() if len(r) == len(set(loaders))] for name, of in found.items()}
    return {name: [[r[loader] for loader in loaders] for r in of] for name, of in whole.items() if of}


def ratios(loader: str, base: str, **where) -> dict[str, list[float]]:
    """Return {file: ratios of speeds within a round}."""
    return {name: [a / b for a, b in of] for name, of in runs(loader, base, **where).items()}


# ---- one file


def rounds(name: str, case: str, key: str = "images_per_s", **where) -> dict[int, float]:
    """Return {round: value} of a case."""
    found = {
        row["round"]: row[key]
        for row in read(name)["rounds"]
        if row["case"] == case and row.get(key) is not None and all(row[k] == v for k, v in where.items())
    }
    if not found:
        raise ValueError(f"{name}.json has no {key} of {case} {where}")
    return found


def median(name: str, case: str, key: str = "images_per_s", **where) -> float:
    return statistics.median(rounds(name, case, key, **where).values())


def of_medians(name: str, case: str, base: str, key: str = "images_per_s", **where) -> float:
    return median(name, case, key, **where) / median(name, base, key, **where)


def within(name: str, case: str, base: str, key: str = "images_per_s", **where) -> list[float]:
    """Return the ratio of two cases in each round that has both."""
    ours, theirs = rounds(name, case, key, **where), rounds(name, base, key, **where)
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the median, smallest and largest value."""
    values = list(values)
    return statistics.median(values), min(values), max(values)


def reaches(values: Iterable[float], form: str) -> str:
    """Format a range as "2.1 to 5.4", or as one number if both ends are formatted alike."""
    ordered = sorted(values)
    low, high = format(ordered[0], form), format(ordered[-1], form)
    return low if low == high else f"{low} to {high}"


def over(files: dict[str, list[float]], form: str) -> str:
    """Format the range of the files' medians, or of a single file's rounds; "-" if there are none."""
    if len(files) > 1:
        return reaches(map(statistics.median, files.values()), form)
    return reaches(*files.values(), form) if files else "-"


# ---- README


class Figure(NamedTuple):
    """A ratio of two loaders' speeds within a round, in one configuration."""

    what: str
    loader: str
    base: str
    form: str
    where: dict[str, Any]

    def files(self) -> dict[str, list[float]]:
        return ratios(self.loader, self.base, **self.where)

    def __str__(self) -> str:
        return over(self.files(), self.form)


FOLDER = {"benchmark": "imagefolder", "recipe": ("train", None), "megapixels": None, "batch_size": 256}
BESIDE = {
    "benchmark": ("training", "toolkit", "own_dataset"),
    "source": ("folder", None),
    "kind": ("eager", None),
    "gpus": 1,
}
SMALL, LARGE = BESIDE | {"model": "resnet18", "cores": 16}, BESIDE | {"model": "resnet50"}
OWN = {"benchmark": "own_dataset", "gpu": "H200", "cores": 16, "train": ("resnet18", None)}
FIRST = {"seen": (False, None), "case": ("own:16", "torch:16", "synthetic")}  # epochs of case OWN
LATER = {"seen": True}
# The README's figures, by the names in tests/docs/claims.py.
FIGURES = {
    "loading": Figure("loading", "ours", "torchvision", ".0f", FOLDER | {"gpu": ("H100", "H200"), "cores": 16}),
    "no engine": Figure(
        "loading without JPEG engines", f"ours{OFF}", "torchvision", ".0f", FOLDER | {"gpu": ("H100", "H200")}
    ),
    "cpu": Figure("loading without a GPU", "ours", "torchvision", ".1f", FOLDER | {"gpu": None, "cores": 2}),
    "share": Figure("training ResNet-18, share of synthetic", "ours", "synthetic", ".0%", SMALL),
    "share no engine": Figure(
        "training ResNet-18 without JPEG engines, share of synthetic", f"ours{OFF}", "synthetic", ".0%", SMALL
    ),
    "their share": Figure(
        "training ResNet-18, torchvision's share of synthetic", "torchvision", "synthetic", ".0%", SMALL
    ),
    "own": Figure("training ResNet-18 with a custom data set, share of synthetic", "own", "synthetic", ".0%", OWN),
    "own, 4 cores": Figure(
        "training ResNet-18 with a custom data set, 4 cores", "own", "synthetic", ".0%", OWN | {"cores": 4}
    ),
    "2 cores": Figure("training ResNet-50, 2 cores", "ours", "torchvision", ".0f", LARGE | {"cores": 2}),
    "16 cores": Figure("training ResNet-50, 16 cores", "ours", "torchvision", ".1f", LARGE | {"cores": 16}),
}
