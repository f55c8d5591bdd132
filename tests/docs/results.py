"""Numbers of the files in benchmarks/results."""

import functools
import json
import statistics

from docs.pages import ROOT


@functools.cache
def read(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def rounds(name: str, case: str, key: str = "images_per_s", **where) -> dict[int, float]:
    """{round: value} of a case."""
    rows = [row for row in read(name)["rounds"] if row["case"] == case and row.get(key) is not None]
    found = {row["round"]: row[key] for row in rows if all(row[k] == v for k, v in where.items())}
    assert found, f"{name}.json has no {key} of {case} {where}"
    return found


def median(name: str, case: str, key: str = "images_per_s", **where) -> float:
    return statistics.median(rounds(name, case, key, **where).values())


def within(name: str, case: str, base: str, key: str = "images_per_s", **where) -> list[float]:
    """The ratio of two cases in each round that has both."""
    ours, theirs = rounds(name, case, key, **where), rounds(name, base, key, **where)
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, smallest, largest."""
    return statistics.median(values), min(values), max(values)


def of_medians(name: str, case: str, base: str, key: str = "images_per_s", **where) -> float:
    return median(name, case, key, **where) / median(name, base, key, **where)
