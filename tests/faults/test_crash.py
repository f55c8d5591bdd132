"""Trainings that are killed go on as if nothing had been; crash.py has the whole of it."""

import subprocess
import sys
from pathlib import Path

from contract.both import said

SCRIPT = Path(__file__).with_name("crash.py")
CASES = ["folder, 0 workers, ranks [1]", "arrays, 2", "function, 2", "arrays, 0 workers, ranks [2, 1, 3]"]


def test_killed_trainings_go_on():
    command = [sys.executable, SCRIPT, "--kills", "2", "--device", "cpu", "--only", *CASES]
    told = said(subprocess.run(command, capture_output=True, text=True, timeout=280))
    assert told.count("the same after 2 kills") == len(CASES)
