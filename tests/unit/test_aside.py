"""The prefetch thread. A waiting caller receives the exceptions that a signal handler raises."""

import queue
import threading

import pytest
import torch
from helpers import interrupted

from dali_compat.epoch.prefetch_thread import _DELAY_SHARE, _MOST_DELAY, PrefetchThread


@pytest.fixture
def gate():
    """An event that the thread's work waits for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def thread():
    made = PrefetchThread(torch.device("cpu"))
    yield made
    made.end(lambda: None, waits=True)


@pytest.mark.parametrize("error", [TimeoutError, RuntimeError, ValueError])
@pytest.mark.parametrize("how", ["wait", "wait_until_idle"])
def test_exception_of_signal_handler_while_waiting_reaches_the_caller(gate, thread, error, how):
    thread.submit(gate.wait)
    with (
        pytest.raises(error, match="the handler's"),
        interrupted(lambda: error("the handler's"), within=threading.Condition.wait),
    ):
        getattr(thread, how)()
    gate.set()
    thread.wait()


def test_end_without_waiting_returns_and_thread_ends_later(gate):
    """The garbage collector may run while it holds a lock that the thread needs, so end() must not wait."""
    thread, ended = PrefetchThread(torch.device("cpu")), []
    thread.submit(gate.wait)
    thread.end(lambda: ended.append(threading.get_ident()), waits=False)
    assert ended == []
    gate.set()
    thread.wait_until_idle()
    assert ended == [thread._thread.ident]


def test_wait_when_work_raised_reraises_its_error_once(thread):
    def work():
        raise KeyError("the work's")

    thread.submit(work)
    with pytest.raises(KeyError, match="the work's"):
        thread.wait()
    thread.wait()


class _RecordedRests(threading.Event):
    """Record the requested rests without resting."""

    def __init__(self):
        super().__init__()
        self.rests = queue.SimpleQueue()

    def wait(self, timeout):
        self.rests.put(timeout)


def test_thread_with_gpu_rests_for_a_bounded_part_of_the_step(monkeypatch, thread):
    clock, rests = [100.0], []
    monkeypatch.setattr("dali_compat.epoch.prefetch_thread.perf_counter", lambda: clock[0])
    thread._needed = _RecordedRests()
    for step in (1e-3, 10, 0, 0):
        thread.submit(lambda: None)
        rests.append(thread._needed.rests.get(timeout=60))
        clock[0] += step
        _wait_as_with_gpu(thread)
    assert rests == pytest.approx([0, _DELAY_SHARE * 1e-3, _MOST_DELAY, 0])


def test_wait_when_called_at_once_ends_the_rest(thread):
    done, thread._delay = [], 10_000.0
    thread.submit(lambda: done.append(True))
    _wait_as_with_gpu(thread)
    assert done == [True]


def _wait_as_with_gpu(thread):
    """Call wait() with a GPU device. do() runs without one, because it looks up the current stream."""
    thread._device = torch.device("cuda")
    thread.wait()
    thread._device = torch.device("cpu")
