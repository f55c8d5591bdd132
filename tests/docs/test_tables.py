"""The tables that benchmarks/tables.py writes into the pages."""

import json
import runpy
import sys

import pytest

from docs.made_up import measured
from docs.pages import ROOT, text


@pytest.fixture
def tables(monkeypatch):
    """The script's names."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.delitem(sys.modules, "plot", raising=False)
    yield runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    sys.modules.pop("plot", None)


@pytest.fixture
def results(tables, tmp_path, monkeypatch):
    """Write a made-up result, which the script then takes."""
    monkeypatch.setattr(sys.modules["plot"], "RESULTS", tmp_path)

    def write(name, result):
        (tmp_path / f"{name}.json").write_text(json.dumps(result))

    return write


def test_the_pages_have_what_follows_from_the_results(tables):
    there = "".join(text(page) for page in tables["PAGES"])
    assert [there.count(f"benchmarks/tables.py: {name} -->") for name in tables["TABLES"]] == [1] * 4
    for page in tables["PAGES"]:
        assert text(page) == tables["written"](text(page)), "python benchmarks/tables.py writes it anew"


def test_without_results_a_page_says_so(tables, results):
    assert {make() for make in tables["TABLES"].values()} == {"Not measured yet.\n"}


def test_the_table_of_configs(tables, results):
    results("toolkit_h200", measured()[1])
    assert tables["configs"]().splitlines() == [
        "NVIDIA H200, 16 cores, rounds: 3.",
        "",
        "| config | batch | synthetic data | dali_compat (waits) | torchvision (waits) | times | minutes an epoch |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| GhostNet | 128 | 2,000 | 1,500 (25%) | 300 (25%) | 5.0 | 14.2 / 71.2 |",
    ]


def test_the_table_by_cores(tables, results):
    results("toolkit_cores_h200", measured()[0])
    assert tables["cores"]().splitlines()[4:] == [
        "| ResNet-18, 2 cores | 995 | 450 (25%) | 100 (25%) | 4.5 |",
        "| ResNet-18, 16 cores | 995 | 900 (25%) | 500 (25%) | 1.8 |",
    ]
    results("toolkit_h200", measured()[1])
    assert tables["cores"]().startswith("![Training speed of the toolkit's configs")


def test_the_table_of_two_gpus_says_so(tables, results):
    results("toolkit_h200x2", {**measured()[1], "ranks": 2})
    assert tables["two_gpus"]().startswith("2 NVIDIA H200, 16 cores each, rounds: 3.\n")


def test_the_table_of_dogs_and_cats(tables, results):
    run = {"seconds": [9.0, 2.0, 1.0], "images_per_s": [10.0, 3000.0, 3100.0], "accuracy": 0.875}
    slow = {"seconds": [9.5, 8.0, 8.0], "images_per_s": [9.0, 800.0, 800.0], "accuracy": 0.8642}
    rounds = [{"round": seed, "case": "dali_compat", **run} for seed in (0, 1)]
    rounds += [{"round": 0, "case": "torchvision", **slow}]
    settings = {"recipe": "dogs_cats", "options": ["/tmp/photos", "--workers", "4"]}
    facts = {"gpu": "NVIDIA H200, 580", "cores": 4}
    results("dogs_cats_h200", {"rounds": rounds, "settings": settings, "facts": facts})
    said = tables["dogs_cats"]().splitlines()
    assert said[0] == "NVIDIA H200, 4 cores, after 3 epochs (`--workers 4`):"
    assert said[4:] == [
        "| dali_compat | 9.00 | 1.50 | 3,050 | 87.5%, 87.5% |",
        "| torchvision | 9.50 | 8.00 | 800 | 86.4% |",
    ]
