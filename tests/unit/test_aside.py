"""The thread beside the caller's step: whoever waits sees what a signal's handler raises, and never too little."""

import signal
import threading
import time

import pytest
import torch

from dali_compat.epoch.aside import Aside

SOON = 0.05


@pytest.fixture
def gate():
    """An event that the thread's work waits for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def aside():
    made = Aside(torch.device("cpu"))
    yield made
    made.end(lambda: None, within=False)


@pytest.mark.parametrize("error", [TimeoutError, RuntimeError, ValueError])
@pytest.mark.parametrize("how", ["wait", "settle"])
def test_what_a_signals_handler_raises_reaches_the_caller(gate, aside, error, how):
    def handler(*args):
        gate.set()
        raise error("the handler's")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        aside.do(gate.wait)
        signal.setitimer(signal.ITIMER_REAL, SOON)
        with pytest.raises(error, match="the handler's"):
            getattr(aside, how)()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    aside.wait()


def test_what_takes_longer_than_its_patience_is_waited_for(monkeypatch, gate, aside):
    monkeypatch.setattr("dali_compat.epoch.aside._PATIENCE", SOON)
    done = []
    aside.do(lambda: (time.sleep(4 * SOON), done.append(True)))
    aside.wait()
    assert done == [True]


def test_within_a_lock_the_thread_ends_by_itself(monkeypatch, gate):
    """It may wait for that lock."""
    monkeypatch.setattr("dali_compat.epoch.aside._PATIENCE", SOON)
    aside, ended = Aside(torch.device("cpu")), []
    aside.do(gate.wait)
    aside.end(lambda: ended.append(threading.get_ident()), within=True)
    assert ended == []
    gate.set()
    aside.settle()
    assert ended == [aside._thread]


def test_what_was_made_in_the_thread_is_raised_here(aside):
    def work():
        raise KeyError("the work's")

    aside.do(work)
    with pytest.raises(KeyError, match="the work's"):
        aside.wait()
    aside.wait()
