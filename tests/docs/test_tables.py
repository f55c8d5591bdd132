"""The tables that benchmarks/tables.py writes into the pages."""

import json
import re
import runpy
import sys

import pytest

from docs.made_up import measured
from docs.pages import ROOT, text


@pytest.fixture
def tables(monkeypatch):
    """The script's names."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for name in ("plot", "told"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    for name in ("plot", "told"):
        sys.modules.pop(name, None)


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


def test_the_examples_say_what_follows_from_the_results(tables):
    for example, say in tables["EXAMPLES"].items():
        assert text(example) == tables["with_measured"](text(example), say()), (
            "python benchmarks/tables.py writes it anew"
        )
        (said,) = re.findall(r"^Measured: .*?(?=\n\n|\n\"\"\")", text(example), re.DOTALL | re.MULTILINE)
        assert " ".join(said.split()) == say()


def test_without_results_a_page_says_so(tables, results):
    made = {name: make() for name, make in tables["TABLES"].items()}
    assert set(made.values()) == {"Not measured yet.\n"}
    assert all(say().startswith("Measured: not yet; ") for say in tables["EXAMPLES"].values())


def test_the_table_of_configs(tables, results):
    results("toolkit_h200", measured()[1])
    assert tables["configs"]().splitlines() == [
        "NVIDIA H200, 16 cores, rounds: 3.",
        "",
        "| config | batch | synthetic data | dali_compat (waits) | torchvision (waits) | times | minutes per epoch |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| GhostNet | 128 | 2,000 | 1,500 (25%) | 300 (25%) | 5.0 | 14.2 / 71.2 |",
    ]


def test_of_two_runs_the_later_one_counts_with_its_own_synthetic_data(tables, results):
    """But the earlier one has what the later one has not measured."""
    later = measured()[1]
    later["rounds"] = [row | {"images_per_s": row["images_per_s"] / 2, "round": 0} for row in later["rounds"]]
    both = [row | {"source": row["source"] and "rec"} for row in measured()[1]["rounds"]]
    results("toolkit_h200", {**measured()[1], "rounds": measured()[1]["rounds"] + both[1:]})
    results("toolkit_rec_h200", later)
    assert tables["configs"]().splitlines()[0] == "NVIDIA H200, 16 cores, rounds: 1 to 3."
    assert tables["configs"]().splitlines()[4:] == [
        "| GhostNet | 128 | 1,000 | 750 (25%) | 150 (25%) | 5.0 | 28.5 / 142.4 |",
        "| GhostNet, .rec | 128 | 2,000 | 1,500 (25%) | 300 (25%) | 5.0 | 14.2 / 71.2 |",
    ]


@pytest.fixture
def pets(results):
    """A result of dogs and cats."""
    run = {"seconds": [9.0, 2.0, 1.0], "images_per_s": [10.0, 3000.0, 3100.0], "accuracy": 0.875}
    slow = {"seconds": [9.5, 8.0, 8.0], "images_per_s": [9.0, 800.0, 800.0], "accuracy": 0.8642}
    rounds = [{"round": seed, "case": "dali_compat", **run} for seed in (0, 1)]
    rounds += [{"round": 0, "case": "torchvision", **slow}]
    settings = {"recipe": "dogs_cats", "options": ["/tmp/photos", "--workers", "4"]}
    facts = {"gpu": "NVIDIA H200, 580", "cores": 4}
    results("dogs_cats_h200", {"rounds": rounds, "settings": settings, "facts": facts})


def test_the_table_of_dogs_and_cats(tables, pets):
    said = tables["dogs_cats"]().splitlines()
    assert said[0] == "NVIDIA H200, 4 cores, after 3 epochs of about 3,100 photos (`--workers 4`):"
    assert said[4:] == [
        "| dali_compat | 9.00 | 1.50 | 3,050 | 87.5%, 87.5% |",
        "| torchvision | 9.50 | 8.00 | 800 | 86.4% |",
    ]


def test_the_tables_of_exact(tables, results):
    """Of loading alone by cores, those of which there is a result; of training, both results in one table."""
    speeds = {"torchvision": [400.0, 500.0], "ours": [9000.0], "ours_exact@BY_DEFAULT=True": [8000.0, 15000.0]}
    rounds = [{"case": case, "round": n, "images_per_s": v} for case, vs in speeds.items() for n, v in enumerate(vs)]
    facts = {"gpu": "NVIDIA H200, 580\nNVIDIA H200, 580"}
    results("imagefolder_exact_4_h200", {"facts": facts, "rounds": rounds})
    assert tables["exact_loading"]().splitlines()[0] == "NVIDIA H200."
    assert tables["exact_loading"]().splitlines()[4:] == ["| 4 | 2 | 450 | 9,000 | - | 11,500 | 25 (20 - 30) |"]
    for name, kind, case in (("", "eager", "ours_exact"), ("compiled_", "compiled", "ours_exact@BY_DEFAULT=True")):
        speeds = {"synthetic": [1000.0, 2000.0], "ours": [950.0, 1800.0], case: [940.0, 1840.0]}
        rows = [{"case": c, "round": n, "images_per_s": v} for c, vs in speeds.items() for n, v in enumerate(vs)]
        result = {"facts": facts, "rounds": [{"model": "resnet50", "kind": kind, **row} for row in rows]}
        results(f"training_exact_{name}h200", result)
    cells = "(2) | 1,500 | 0.925 (0.900 - 0.950) | 0.930 (0.920 - 0.940) | - |"
    both = [f"| ResNet-50 {cells}", f"| ResNet-50, compiled {cells}"]
    assert tables["exact_training"]().splitlines()[2:] == both
    kinds = {"compiled": [2000.0, 2000.0], "eager": [2000.0]}  # as many rounds as before, and fewer
    rows = [
        {"model": "resnet50", "kind": kind, "case": case, "round": number, "images_per_s": value}
        for kind, values in kinds.items()
        for number, value in enumerate(values)
        for case in ("synthetic", "ours", "ours_exact")
    ]
    results("training_exact_models_h200", {"facts": facts, "rounds": rows})
    newer = "| ResNet-50, compiled (2) | 2,000 | 1.000 (1.000 - 1.000) | 1.000 (1.000 - 1.000) | - |"
    assert tables["exact_training"]().splitlines()[2:] == [both[0], newer]


# ---- sentences


def test_the_first_lines_of_examples(tables, results, pets):
    results("toolkit_h200", measured()[1])
    said = {name.rsplit("/", 1)[1]: say() for name, say in tables["EXAMPLES"].items()}
    assert (
        "On an NVIDIA H200 with 16 cores it is, from a folder, 5.0 times that with --loader torchvision."
        in said["train.py"]
    )
    assert said["dogs_cats.py"] == (
        "Measured: on an NVIDIA H200 with 4 cores an epoch of about 3,100 photos takes 1.50 s, and 8.00 s with "
        "--loader torchvision; the first one takes 9.0 and 9.5 s. After 3 epochs (--workers 4) the accuracy is 87.5%, "
        "and 86.4%. "
        "docs/examples.md has the table."
    )
    page = '"""Trains.\n\nMeasured: not\nyet.\n\nMore.\n"""\nMeasured: 1\n'
    assert tables["with_measured"](page, "Measured: now.") == page.replace("not\nyet.", "now.")
    assert (
        tables["with_measured"]('"""A.\n\nMeasured: not.\n"""\n', "Measured: now.") == '"""A.\n\nMeasured: now.\n"""\n'
    )
