"""The decoder's start in the background: how often, what becomes of it, forks and the program's end."""

import os
import signal
import threading

import programs
import pytest
from contract.both import said

from dali_compat.engine.dali import warm

SECONDS = 30


@pytest.fixture(autouse=True)
def nothing_started(monkeypatch):
    """As in a new process; nothing is waited for before it begins."""
    monkeypatch.setattr(warm, "_GRACE", 0)
    monkeypatch.setattr(warm, "_starts", {})
    monkeypatch.setattr(warm, "_closing", [])


class Made:
    """A decoder whose making can be held up.

    Attributes:
        calls: indices of devices that it was made for.
        closed: how often it was closed.
    """

    def __init__(self):
        self.calls, self.closed, self.go, self.begun = [], 0, threading.Event(), threading.Event()

    def __call__(self, index: int) -> "Made":
        self.calls.append(index)
        self.begun.set()
        assert self.go.wait(SECONDS)
        return self

    def close(self) -> None:
        self.closed += 1


def test_it_begins_once_a_device():
    made = Made()
    made.go.set()
    for index in (0, 1, 0, 1, 0):
        warm.begin(index, made)
    warm.finish()
    assert sorted(made.calls) == [0, 1] and made.closed == 0
    warm.drop(0)
    warm.begin(0, made)
    warm.finish()
    assert sorted(made.calls) == [0, 1] and made.closed == 1


def test_begin_does_not_wait():
    made = Made()
    warm.begin(0, made)
    assert warm._starts[0].thread.is_alive()
    made.go.set()
    warm.finish()
    assert not warm._starts[0].thread.is_alive()


def test_what_is_not_needed_any_more_is_closed_once():
    made = Made()
    made.go.set()
    warm.begin(0, made)
    warm.finish()
    warm.drop(0)
    warm.drop(0)
    warm.finish()
    assert made.closed == 1


def test_what_comes_too_late_is_closed():
    made = Made()
    warm.begin(0, made)
    warm.drop(0)
    assert made.closed == 0
    made.go.set()
    warm.finish()
    assert made.closed == 1


@pytest.mark.parametrize("how", [lambda: warm.overtake(0), warm._end, warm._before_fork], ids=["own", "end", "fork"])
def test_it_is_not_begun_any_more(monkeypatch, how):
    monkeypatch.setattr(warm, "_GRACE", SECONDS)
    made = Made()
    made.go.set()
    warm.begin(0, made)
    how()
    warm.finish(SECONDS / 2)
    assert not warm._starts[0].thread.is_alive() and made.calls == []


def test_nothing_to_drop():
    warm.drop(0)
    assert warm._starts == {}


def test_an_error_is_left_to_the_first_pipeline(monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def fail(index):
        raise RuntimeError("no memory")

    warm.begin(0, fail)
    warm.finish()
    warm.drop(0)
    assert told == []


def test_the_end_of_the_program_closes_it():
    made = Made()
    made.go.set()
    warm.begin(0, made)
    warm.finish()
    warm._end()
    warm._end()
    assert made.closed == 1


def test_a_fork_waits_and_the_child_has_nothing():
    made = Made()
    warm.begin(0, made)
    assert made.begun.wait(SECONDS)
    threading.Timer(0.3, made.go.set).start()
    child = os.fork()
    if child == 0:
        os._exit(3 if warm._starts == {} and made.go.is_set() else 4)
    ended = not warm._starts[0].thread.is_alive()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3 and ended
    warm._end()
    assert made.closed == 1


# ---- the decoder itself, on the CPU


def test_a_decoder_that_has_decoded():
    made = warm.first_decoder(None)
    made.run()
    made.close()
    made.close()


def test_a_decoder_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(warm, "_jpeg", lambda: b"\xff\xd8no image")
    with pytest.raises(RuntimeError, match="daliPipeline"):
        warm.first_decoder(None)


def test_a_dali_without_the_interface_is_an_error_as_well(monkeypatch, tmp_path):
    monkeypatch.setattr(warm.dali, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(OSError, match="libdali"):
        warm.first_decoder(None)


BEGIN = """
from dali_compat.engine.dali import warm
warm.begin(0, lambda index: warm.first_decoder(None))
"""


@pytest.mark.parametrize("when", ["at once", "ready", "dropped"])
def test_a_program_ends_quietly(when):
    code = {"at once": "", "ready": "warm.finish()", "dropped": "warm.drop(0)"}[when]
    result = programs.run(BEGIN + code + "\nprint('done')", seconds=SECONDS)
    assert said(result) == "done\n" and result.stderr == ""


def test_ctrl_c_ends_a_program():
    result = programs.run(BEGIN + "import signal; signal.raise_signal(signal.SIGINT)", seconds=SECONDS)
    assert result.returncode in (1, -signal.SIGINT)  # 1 where the thread has just executed code of its own
    assert result.stderr.strip().endswith("KeyboardInterrupt")
