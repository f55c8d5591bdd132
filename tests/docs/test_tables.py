"""The tables that benchmarks/tables.py writes into the pages."""

import json
import re

import measured
import pytest
import tables
import told

from docs.made_up import by_cores, of_a_config
from docs.pages import prose, text


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a function that writes a made-up result; there are no other results."""
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    return lambda name, result: (tmp_path / f"{name}.json").write_text(json.dumps(result))


def test_pages_have_the_generated_tables():
    there = "".join(text(page) for page in tables.PAGES)
    assert [there.count(f"benchmarks/tables.py: {name} -->") for name in tables.TABLES] == [1] * len(tables.TABLES)
    for page in tables.PAGES:
        assert text(page) == tables.written(text(page)), "python benchmarks/tables.py writes it anew"


def test_examples_have_the_generated_sentences():
    for example, say in told.EXAMPLES.items():
        assert text(example) == told.with_measured(text(example), say()), "python benchmarks/tables.py writes it anew"
        (said,) = re.findall(r"^Measured: .*?(?=\n\n|\n\"\"\")", text(example), re.DOTALL | re.MULTILINE)
        assert " ".join(said.split()) == say()


def test_tables_without_results_are_marked_as_not_measured(results):
    made = {name: make() for name, make in tables.TABLES.items() if name != "pictures"}
    assert set(made.values()) == {"Not measured yet.\n"}
    assert all(say().startswith("Measured: not yet; ") for say in told.EXAMPLES.values())


def test_configs_table_has_speeds_and_epoch_times(results):
    results("one", of_a_config())
    assert tables.configs().splitlines() == [
        "The GPU is an NVIDIA H200, with 16 CPU cores. Each config was measured in 1 run.",
        "",
        "| config | batch | synthetic data | dali_compat (waits) | torchvision (waits) | times | minutes per epoch |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| GhostNet | 128 | 2,000 | 1,500 (25%) | 300 (25%) | 5.0 | 14.2 / 71.2 |",
    ]


def test_configs_table_has_the_range_of_all_runs(results):
    results("one", of_a_config())
    results("other", of_a_config(speed=1000.0))
    results("rec", of_a_config("rec"))
    said = tables.configs().splitlines()[0]
    assert said == "The GPU is an NVIDIA H200, with 16 CPU cores. Each config was measured in 1 to 2 runs."
    assert tables.configs().splitlines()[4:] == [
        "| GhostNet | 128 | 1,000 to 2,000 | 750 to 1,500 (25%) | 150 to 300 (25%) | 5.0 | "
        "14.2 to 28.5 / 71.2 to 142.4 |",
        "| GhostNet, .rec | 128 | 2,000 | 1,500 (25%) | 300 (25%) | 5.0 | 14.2 / 71.2 |",
    ]


def test_peers_table_has_speeds_conversions_and_reasons():
    facts = {
        "cpu": "CPU",
        "cores": 2,
        "date": "2026-11-28",
        "torch": "2.14",
        "command": "python peers.py --data /photos",
    }
    row = {"round": 0, "case": "torchvision", "images_per_s": 500.0}
    rounds = [row, row | {"round": 1}, row | {"case": "webdataset", "images_per_s": 400.0}]
    made = {
        "facts": facts,
        "settings": {"batch_size": "64"},
        "images": {"files": 2052, "bytes": 213e6},
        "peers": {
            "torchvision": {"version": "0.29"},
            "webdataset": {"version": "1.0", "convert_s": 0.25, "converted_bytes": 220e6},
        },
        "rounds": rounds,
        "not_measured": {"ffcv": "it does not build"},
    }
    assert tables.peers(made).splitlines() == [
        "CPU, 2 cores, 2026-11-28, torch 2.14. The 2,052 files total 213 MB and are loaded in "
        "batches of 64. Values are medians (ranges) "
        "of 1 to 2 rounds of `python peers.py --data PHOTOS`.",
        "",
        "| loader | version | images/s | times torchvision | converted, MB | conversion, s |",
        "|---|---|---:|---:|---:|---:|",
        "| torchvision | 0.29 | 500 (500 - 500) | 1.00 (1.00 - 1.00) | - | - |",
        "| WebDataset | 1.0 | 400 (400 - 400) | 0.80 (0.80 - 0.80) | 220 | 0.2 |",
        "",
        "FFCV was not measured: it does not build.",
    ]


def test_ratios_of_two_configurations_in_one_file_are_refused(results):
    """Raise an error if the conditions match several configurations."""
    results("cores", by_cores())
    with pytest.raises(ValueError, match="cores has several configurations"):
        measured.ratios("ours", "synthetic", benchmark="toolkit")
    assert measured.ratios("ours", "synthetic", benchmark="toolkit", cores=2) == {"cores": [0.4, 0.5]}


def test_every_result_has_a_commit():
    names = {path.stem for path in measured.RESULTS.glob("*.json")}
    without = {name for name in names if name != "openers" and tables.commit_of(name) == "-"}
    assert without == {"environment_cpu"}


def test_notes_on_results_name_existing_files_once():
    names = {path.stem for path in measured.RESULTS.glob("*.json")}
    (notes,) = re.findall(r"^## Notes\n(.*?)^## ", text("benchmarks/results/README.md"), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| ([\w, ]+) \| .+ \|$", notes, re.MULTILINE)
    named = [name for row in rows[1:] for name in row.split(", ")]
    assert len(named) > 30 and set(named) <= names and len(named) == len(set(named))


def test_page_of_results_has_numbers_only_in_tables():
    """Its other numbers are in tables generated from the files."""
    said = prose("benchmarks/results/README.md")
    assert re.findall(r"\b\d[\d,]*\.\d+|\b\d+,\d+|\b\d+%", said) == []


@pytest.fixture
def pets(results):
    """A result of the dogs and cats recipe."""
    run = {"seconds": [9.0, 2.0, 1.0], "images_per_s": [10.0, 3000.0, 3100.0], "accuracy": 0.875}
    slow = {"seconds": [9.5, 8.0, 8.0], "images_per_s": [9.0, 800.0, 800.0], "accuracy": 0.8642}
    rounds = [{"round": seed, "case": "dali_compat", **run} for seed in (0, 1)]
    rounds += [{"round": 0, "case": "torchvision", **slow}]
    settings = {"recipe": "dogs_cats", "options": ["/tmp/photos", "--workers", "4"]}
    facts = {"gpu": "NVIDIA H200, 580", "cores": 4}
    results("dogs_cats_h200", {"rounds": rounds, "settings": settings, "facts": facts})


def test_dogs_cats_table_has_times_speed_and_accuracy(pets):
    said = tables.dogs_cats().splitlines()
    assert said[0] == "NVIDIA H200, 4 cores, 3 epochs of about 3,100 photos (`--workers 4`):"
    assert said[4:] == [
        "| dali_compat | 9.00 | 1.50 | 3,050 | 87.5%, 87.5% |",
        "| torchvision | 9.50 | 8.00 | 800 | 86.4% |",
    ]


def test_exact_tables_have_loading_by_cores_and_training(results):
    """Loading has a row for each number of cores with a result; training has all results in one table."""
    speeds = {"torchvision": [400.0, 500.0], "ours": [9000.0], "ours_exact@BY_DEFAULT=True": [8000.0, 15000.0]}
    rounds = [{"case": case, "round": n, "images_per_s": v} for case, vs in speeds.items() for n, v in enumerate(vs)]
    facts = {"gpu": "NVIDIA H200, 580\nNVIDIA H200, 580", "cores": 4}
    results("loading", {"benchmark": "imagefolder", "settings": {"recipe": "train"}, "facts": facts, "rounds": rounds})
    assert tables.exact_loading().splitlines()[0] == "The GPU is an NVIDIA H200."
    assert tables.exact_loading().splitlines()[4:] == ["| 4 | 2 | 450 | 9,000 | - | 11,500 | 25 (20 - 30) |"]
    for kind, case, share in (
        ("eager", "ours_exact", 0.93),
        ("compiled", "ours_exact@BY_DEFAULT=True", 0.93),
        ("compiled", "ours_exact", 1.0),
    ):
        rows = [
            {"model": "resnet50", "kind": kind, "case": of, "round": n, "images_per_s": 1000.0 * (n + 1) * to}
            for of, to in (("synthetic", 1), ("ours", 0.95), (case, share))
            for n in range(2)
        ]
        results(f"{kind}_{case}", {"benchmark": "training", "facts": facts, "rounds": rows})
    assert tables.exact_training().splitlines()[2:] == [
        "| ResNet-50 (1) | 1,500 | 0.950 | 0.930 | - |",
        "| ResNet-50, compiled (2) | 1,500 | 0.950 | 0.930 to 1.000 | - |",
    ]


# ---- sentences in docstrings


def test_measured_sentences_are_written_into_docstrings(results, pets):
    results("toolkit", of_a_config())
    said = {name.rsplit("/", 1)[1]: say() for name, say in told.EXAMPLES.items()}
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
    assert told.with_measured(page, "Measured: now.") == page.replace("not\nyet.", "now.")
    assert told.with_measured('"""A.\n\nMeasured: not.\n"""\n', "Measured: now.") == '"""A.\n\nMeasured: now.\n"""\n'
