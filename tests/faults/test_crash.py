"""Trainings that are killed go on as if nothing had been; crash.py has the whole of it."""

import subprocess
import sys
from pathlib import Path

import pytest
from contract.both import said

from faults.crash_frameworks import MODULES

SCRIPT = Path(__file__).with_name("crash.py")
CASES = ["folder, 0 workers, ranks [1]", "arrays, 2", "function, 2", "arrays, 0 workers, ranks [2, 1, 3]"]


def killed(*arguments: str) -> str:
    command = [sys.executable, SCRIPT, *arguments]
    return said(subprocess.run(command, capture_output=True, text=True, timeout=280))


def test_killed_trainings_go_on():
    assert killed("--kills", "2", "--device", "cpu", "--only", *CASES).count("the same after 2 kills") == len(CASES)


@pytest.mark.parametrize("kind", MODULES)
def test_killed_trainings_of_frameworks_go_on(kind):
    pytest.importorskip("accelerate")
    pytest.importorskip(MODULES[kind])
    assert "the same after 2 kills" in killed("--kills", "2", "--device", "cpu", "--only", f"{kind}, 0 workers")


@pytest.mark.gpu
def test_killed_trainings_go_on_on_a_gpu():
    cases = "folder, 0 workers, ranks [1]", "arrays, 2 workers"
    told = killed("--kills", "4", "--processes", "2", "--device", "cuda", "--only", *cases)
    assert told.count("the same after 4 kills") == len(cases)
