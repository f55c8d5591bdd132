"""A few rounds of crash_streams.py, and wrong states that it must detect."""

import re
from pathlib import Path

import programs
from contract.both import said

SCRIPT = Path(__file__).with_name("crash_streams.py")

MISCOUNTING = """
import sys
from faults import crash_streams

class Miscounting(crash_streams.DataLoader):
    def state_dict(self):
        state = super().state_dict()
        if state["epoch"] and state["epoch"]["given"]:
            state["epoch"] |= {"given": state["epoch"]["given"] + 1}
        return state

crash_streams.DataLoader = Miscounting
crash_streams.round_of = lambda number: crash_streams.Round("of an epoch", 0, 2, False, 1)
sys.argv[1:] = ["--rounds", "2"]
sys.exit(crash_streams.main())
"""


def test_killed_trainings_on_streams_resume_without_a_difference():
    output = said(programs.python(SCRIPT, "--rounds", "4"))
    assert re.search(r"^4 rounds, [1-9]\d* kills, [1-9]\d* after a state was saved: 0 wrong$", output, re.MULTILINE)


def test_state_that_counts_an_extra_batch_is_detected_on_streams():
    done = programs.run(MISCOUNTING)
    assert done.returncode == 1 and re.search(r"state was saved: [12] wrong$", done.stdout, re.MULTILINE), done.stdout
