"""The thread beside the caller's step: whoever waits sees what a signal's handler raises, and never too little."""

import signal
import threading
import time

import pytest
import torch

from dali_compat.epoch.aside import _LONGEST_REST, Aside

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


def test_beside_a_gpu_it_rests_for_a_part_of_the_step_and_no_longer_than_it_may():
    aside, begun = Aside(torch.device("cpu")), []
    aside._device = torch.device("cuda")  # for wait() alone: do() asks which stream is current
    try:
        for step in (0.1, 10 * SOON):
            before = time.perf_counter()
            _do_without_a_gpu(aside, lambda: begun.append(time.perf_counter()))
            time.sleep(step)
            aside.wait()
            begun[-1] -= before
        assert begun[0] < SOON and _LONGEST_REST <= begun[1] < 10 * SOON
        _do_without_a_gpu(aside, lambda: begun.append(time.perf_counter()))
        before = time.perf_counter()
        aside.wait()
        assert aside._rest < _LONGEST_REST / 2  # who asks at once does not let it rest
        assert begun[-1] - before < _LONGEST_REST
    finally:
        aside._device = torch.device("cpu")
        aside.end(lambda: None, within=False)


def _do_without_a_gpu(aside, work):
    device, aside._device = aside._device, torch.device("cpu")
    aside.do(work)
    aside._device = device
