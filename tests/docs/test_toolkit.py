"""Small CPU runs of benchmarks/toolkit.py."""

import importlib
import json
import os
import re

import programs
import pytest
from helpers import if_all, make_folder

from docs.pages import ROOT

SMALL = ["--batch-size", "4", "--size", "32", "--amp", "none", "--seconds", "0.01", "--warmup", "1"]
SMALL += ["--configs", "mobilenet_v2"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("images"), classes=2, per_class=4, special=False)


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    for name, value in {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)


def run(images, out, *words, ranks):
    """Run the benchmark and return its result and its output."""
    command = [ROOT / "benchmarks" / "toolkit.py", "--data", images, "--json", out, *SMALL, *words]
    done = programs.ranks(ranks, *command)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


@if_all
@pytest.mark.slow
def test_toolkit_measures_every_case_on_two_ranks(images, tmp_path):
    """Both loaders run from a folder and a .rec, with the given number of cores per rank, and two ranks give one table.

    No epoch ends during a measurement, because torch's workers, forked next to DDP's threads, sometimes did not start.
    """
    words = ["--cores", "1", "--replicate", "16", "--sources", "folder", "rec"]
    ranks = min(2, len(os.sched_getaffinity(0)))
    result, output = run(images, tmp_path / "out.json", *words, ranks=ranks)
    assert result["ranks"] == ranks
    found = [(row["round"], row["source"], row["case"]) for row in result["rounds"]]
    cases = [(source, case) for source in ("folder", "rec") for case in ("dali", "torchvision")]
    assert found == [(0, *row) for row in [(None, "synthetic"), *cases]]
    for row in result["rounds"]:
        assert (row["cores"], row["batch_size"], row["config"]) == (1, 4, "mobilenet_v2")
        assert row["steps"] >= 10 and row["images_per_s"] > 0 and 0 < row["waiting"] < 1
        assert row.get("epochs_ended", 0) == 0
        assert 5 < row["loss"] < 9  # -log(1/1000) is 6.9
    assert all("DALI route on cpu: 1 CPU threads" in result["plans"][f"mobilenet_v2, {s}"] for s in ("folder", "rec"))
    assert result["images"]["files"] == 128 and result["failed"] == []
    assert len(re.findall(r"^\| mobilenet_v2, (folder|rec) \| 1 \|( [^|]+ \|){8}$", output, re.MULTILINE)) == 2


def test_toolkit_alternates_the_order_of_loaders(monkeypatch):
    """The order of the loaders changes from round to round."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    toolkit = importlib.import_module("toolkit")
    args, _ = toolkit.parse(["--data", "photos", "--sources", "folder", "rec"])
    assert toolkit.turns(args, 0, "folder") == ["synthetic", "dali", "torchvision"]
    assert toolkit.turns(args, 0, "rec") == ["dali", "torchvision"]
    assert toolkit.turns(args, 1, "folder") == ["synthetic", "torchvision", "dali"]
