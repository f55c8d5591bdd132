"""Killed trainings resume without a difference. crash.py runs more cases."""

import importlib.util
from pathlib import Path

import programs
import pytest
from contract.both import said
from helpers import ALL

from faults.crash_frameworks import MODULES

SCRIPT = Path(__file__).with_name("crash.py")
CASES = ["folder, 0 workers, ranks [1]", "arrays, 2", "function, 2", "arrays, 0 workers, ranks [2, 1, 3]"]


def run_with_kills(*arguments: str) -> str:
    return said(programs.python(SCRIPT, *arguments))


KILLS = 2 if ALL else 1


def test_killed_trainings_resume_without_a_difference():
    output = run_with_kills("--kills", "2", "--device", "cpu", "--only", *CASES)
    assert output.count("the same after 2 kills") == len(CASES)


def test_killed_trainings_of_frameworks_resume_without_a_difference():
    installed = [kind for kind, module in MODULES.items() if importlib.util.find_spec(module.partition(".")[0])]
    if not installed:
        pytest.skip("no framework is installed")
    output = run_with_kills(
        "--kills", str(KILLS), "--device", "cpu", "--only", *(f"{kind}, 0 workers" for kind in installed)
    )
    assert output.count(f"the same after {KILLS} kills") == len(installed)


@pytest.mark.gpu
def test_killed_trainings_on_gpu_resume_without_a_difference():
    cases = "folder, 0 workers, ranks [1]", "arrays, 2 workers"
    output = run_with_kills("--kills", "4", "--processes", "2", "--device", "cuda", "--only", *cases)
    assert output.count("the same after 4 kills") == len(cases)
