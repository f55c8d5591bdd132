"""Trainings that are killed go on as if nothing had been; crash.py has the whole of it."""

import importlib.util
from pathlib import Path

import programs
import pytest
from contract.both import said
from helpers import ALL

from faults.crash_frameworks import MODULES

SCRIPT = Path(__file__).with_name("crash.py")
CASES = ["folder, 0 workers, ranks [1]", "arrays, 2", "function, 2", "arrays, 0 workers, ranks [2, 1, 3]"]


def killed(*arguments: str) -> str:
    return said(programs.python(SCRIPT, *arguments))


KILLS = 2 if ALL else 1


def test_killed_trainings_go_on():
    told = killed("--kills", "2", "--device", "cpu", "--only", *CASES)
    assert told.count("the same after 2 kills") == len(CASES)


def test_killed_trainings_of_frameworks_go_on():
    there = [kind for kind, module in MODULES.items() if importlib.util.find_spec(module.partition(".")[0])]
    if not there:
        pytest.skip("no framework is installed")
    told = killed("--kills", str(KILLS), "--device", "cpu", "--only", *(f"{kind}, 0 workers" for kind in there))
    assert told.count(f"the same after {KILLS} kills") == len(there)


@pytest.mark.gpu
def test_killed_trainings_go_on_on_a_gpu():
    cases = "folder, 0 workers, ranks [1]", "arrays, 2 workers"
    told = killed("--kills", "4", "--processes", "2", "--device", "cuda", "--only", *cases)
    assert told.count("the same after 4 kills") == len(cases)
