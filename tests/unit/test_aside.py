"""The thread beside the caller's step: whoever waits sees what a signal's handler raises, and never too little."""

import queue
import threading

import pytest
import torch
from helpers import interrupted

from dali_compat.epoch.prefetch_thread import _LONGEST_REST, _REST, PrefetchThread


@pytest.fixture
def gate():
    """An event that the thread's work waits for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def aside():
    made = PrefetchThread(torch.device("cpu"))
    yield made
    made.end(lambda: None, waits=True)


@pytest.mark.parametrize("error", [TimeoutError, RuntimeError, ValueError])
@pytest.mark.parametrize("how", ["wait", "settle"])
def test_what_a_signals_handler_raises_reaches_the_caller(gate, aside, error, how):
    aside.do(gate.wait)
    with (
        pytest.raises(error, match="the handler's"),
        interrupted(lambda: error("the handler's"), within=threading.Condition.wait),
    ):
        getattr(aside, how)()
    gate.set()
    aside.wait()


def test_after_a_garbage_collector_the_thread_ends_by_itself(gate):
    """It may hold what the thread waits for."""
    aside, ended = PrefetchThread(torch.device("cpu")), []
    aside.do(gate.wait)
    aside.end(lambda: ended.append(threading.get_ident()), waits=False)
    assert ended == []
    gate.set()
    aside.settle()
    assert ended == [aside._thread.ident]


def test_what_was_made_in_the_thread_is_raised_here(aside):
    def work():
        raise KeyError("the work's")

    aside.do(work)
    with pytest.raises(KeyError, match="the work's"):
        aside.wait()
    aside.wait()


class _Needed(threading.Event):
    """Notes how long the thread rests; it does not."""

    def __init__(self):
        super().__init__()
        self.rests = queue.SimpleQueue()

    def wait(self, timeout):
        self.rests.put(timeout)


def test_beside_a_gpu_it_rests_for_a_part_of_the_step_and_no_longer_than_it_may(monkeypatch, aside):
    clock, rests = [100.0], []
    monkeypatch.setattr("dali_compat.epoch.prefetch_thread.perf_counter", lambda: clock[0])
    aside._needed = _Needed()
    for step in (1e-3, 10, 0, 0):
        aside.do(lambda: None)
        rests.append(aside._needed.rests.get(timeout=60))
        clock[0] += step
        _wait_beside_a_gpu(aside)
    assert rests == pytest.approx([0, _REST * 1e-3, _LONGEST_REST, 0])


def test_who_asks_at_once_does_not_let_it_rest(aside):
    done, aside._rest = [], 10_000.0
    aside.do(lambda: done.append(True))
    _wait_beside_a_gpu(aside)
    assert done == [True]


def _wait_beside_a_gpu(aside):
    """But do() without one: it asks which stream is current."""
    aside._device = torch.device("cuda")
    aside.wait()
    aside._device = torch.device("cpu")
