"""Small CPU runs of benchmarks/joint.py."""

import json
import math

import programs
import pytest
from helpers import make_folder

from docs.pages import ROOT

CASES = ["torch:0", "exact:1"]


def run(tmp_path, per_class, *words):
    """Run the benchmark and return its result and its output."""
    images, out = make_folder(tmp_path / "images", classes=2, per_class=per_class, special=False), tmp_path / "out.json"
    small = ["--batch-size", "2", "--rounds", "1", "--device", "cpu", "--json", out]
    done = programs.python(ROOT / "benchmarks" / "joint.py", "--data", images, *small, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


@pytest.mark.slow
def test_joint_measures_every_kind_and_case(tmp_path):
    result, output = run(tmp_path, 2, "--cases", *CASES)
    kinds = "classification", "segmentation", "detection", "short_edge"
    assert [(row["kind"], row["case"]) for row in result["rounds"]] == [
        (kind, case) for kind in kinds for case in CASES
    ]
    # With few samples the CPU time may be negative, because the time of a process that has ended is not counted.
    assert all(row["speed"] > 0 and math.isfinite(row["cpu_ms"]) for row in result["rounds"])
    assert all(f"| {kind}, {case} |" in output for kind in kinds for case in CASES)


@pytest.mark.alike
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "unet"])
def test_joint_measures_loaders_during_training(tmp_path, name):
    result, _ = run(tmp_path, 1, "--train", name, "--cases", "synthetic:0", "own:0")
    assert [row["case"] for row in result["rounds"]] == ["synthetic:0", "own:0"] and result["settings"]["train"] == name
