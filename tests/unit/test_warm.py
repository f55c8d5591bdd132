"""Start of nvJPEG in the background: how often, its result, forks and the end of the program."""

import contextlib
import os
import signal
import threading
import types

import programs
import pytest
import torch
from contract.both import said

from dali_compat.engine.dali import warm

SECONDS = 280


@pytest.fixture(autouse=True)
def clean_state(monkeypatch):
    """Reset the state to that of a new process."""
    monkeypatch.setattr(warm, "_starts", {})
    monkeypatch.setattr(warm, "_others", [])


class BlockingDecoder:
    """A decoder whose creation blocks until ``go`` is set.

    Attributes:
        calls: device indices that it was created for.
        closed: number of calls of close().
    """

    engines = 7

    def __init__(self):
        self.calls, self.closed, self.go, self.begun = [], 0, threading.Event(), threading.Event()

    def __call__(self, index: int) -> "BlockingDecoder":
        self.calls.append(index)
        self.begun.set()
        assert self.go.wait(SECONDS)
        return self

    def close(self) -> None:
        self.closed += 1


def test_begin_after_a_failed_start_of_a_thread_starts_another(monkeypatch):
    made = BlockingDecoder()
    made.go.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no thread")))
        with pytest.raises(RuntimeError, match="no thread"):
            warm.begin(0, made)
    warm.begin(0, made)
    warm.finish()
    assert made.calls == [0] and warm.known_jpeg_engines(0) is not None


def test_begin_starts_once_per_device():
    made = BlockingDecoder()
    made.go.set()
    for index in (0, 1, 0, 1, 0):
        warm.begin(index, made)
    warm.finish()
    assert sorted(made.calls) == [0, 1] and made.closed == 0
    warm.drop(0)
    warm.begin(0, made)
    warm.finish()
    assert sorted(made.calls) == [0, 1] and made.closed == 1


def test_begin_returns_before_the_decoder_is_ready():
    made = BlockingDecoder()
    warm.begin(0, made)
    assert warm._starts[0].thread.is_alive()
    made.go.set()
    warm.finish()
    assert not warm._starts[0].thread.is_alive()


def test_drop_closes_a_ready_decoder_once():
    made = BlockingDecoder()
    made.go.set()
    warm.begin(0, made)
    warm.finish()
    warm.drop(0)
    warm.drop(0)
    warm.finish()
    assert made.closed == 1


def test_drop_before_the_decoder_is_ready_closes_it_later():
    made = BlockingDecoder()
    warm.begin(0, made)
    warm.drop(0)
    assert made.closed == 0
    made.go.set()
    warm.finish()
    assert made.closed == 1


def test_jpeg_engines_waits_for_a_started_decoder():
    made = BlockingDecoder()
    threading.Timer(0.2, made.go.set).start()
    warm.begin(0, made)
    assert warm.known_jpeg_engines(0) is None
    assert warm.jpeg_engines(0) == 7
    assert warm._starts[0]._made is made and made.calls == [0]


def test_jpeg_engines_starts_the_decoder_if_necessary(monkeypatch):
    made = BlockingDecoder()
    made.go.set()
    monkeypatch.setattr(warm, "Handle", made)
    assert warm.jpeg_engines(1) == warm.jpeg_engines(1) == 7
    assert warm._starts[1]._made is made and made.calls == [1]


def test_drop_without_decoder_does_nothing():
    warm.drop(0)
    assert warm._starts == {}


def test_error_in_background_is_not_reported(monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)

    def fail(index):
        raise RuntimeError("no memory")

    warm.begin(0, fail)
    warm.finish()
    warm.drop(0)
    assert reported == [] and warm.jpeg_engines(0) == 0


class Nvjpeg:
    """A fake nvJPEG library, with the status of opening each backend and a state, and its engine counts.

    Attributes:
        open: number of open handles.
        states: number of open states.
    """

    states = 0

    def __init__(self, hardware=0, default=0, info=0, engines=7, parts=1, state=0):
        self.state = state
        self.statuses, self.info, self.engines, self.parts, self.open = (
            {3: hardware, 0: default},
            info,
            engines,
            parts,
            0,
        )

    def nvjpegCreateEx(self, backend, device_allocator, pinned_allocator, flags, handle):
        status = self.statuses[backend]
        self.open += status == 0
        handle._obj.value = 1
        return status

    def nvjpegGetHardwareDecoderInfo(self, handle, engines, parts):
        engines._obj.value, parts._obj.value = self.engines, self.parts
        return self.info

    def nvjpegJpegStateCreate(self, handle, state):
        state._obj.value = 1
        self.states += self.state == 0
        return self.state

    def nvjpegJpegStateDestroy(self, state):
        assert self.open and state.value == 1
        self.states -= 1

    def nvjpegDestroy(self, handle):
        self.open -= 1


@pytest.fixture
def cuda(monkeypatch):
    """Make torch report a GPU."""
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(synchronize=lambda: None))


@pytest.mark.parametrize(
    "library, engines",
    [
        (Nvjpeg(), 7),
        (Nvjpeg(engines=1, parts=5), 5),
        (Nvjpeg(engines=8, parts=0), 8),
        (Nvjpeg(engines=0), 0),
        (Nvjpeg(hardware=7), 0),  # NVJPEG_STATUS_ARCH_MISMATCH
        (Nvjpeg(info=9), 1),  # it opens but does not report its engines
        (Nvjpeg(state=5), 7),  # NVJPEG_STATUS_ALLOCATOR_FAILURE
    ],
)
def test_handle_keeps_the_engines_open_that_nvjpeg_reports(monkeypatch, cuda, library, engines):
    monkeypatch.setattr(warm, "nvjpeg_libraries", lambda: iter([library]))
    handle = warm.Handle(0)
    assert handle.engines == engines and library.open == 1
    assert library.states == bool(engines and library.state == 0)
    handle.close()
    handle.close()
    assert library.open == library.states == 0


@pytest.mark.parametrize("value, engines", [("0", 0), ("2", 2), ("9", 7), ("", 7), ("all", 7)])
def test_environment_variable_limits_the_engines(monkeypatch, value, engines):
    monkeypatch.setenv("DALI_COMPAT_JPEG_ENGINE", value)
    made = BlockingDecoder()
    made.go.set()
    warm.begin(0, made)
    assert warm.jpeg_engines(0) == engines


@pytest.mark.gpu
def test_handle_of_this_gpu_returns_its_engines(monkeypatch):
    monkeypatch.delenv("DALI_COMPAT_JPEG_ENGINE", raising=False)
    made = warm.Handle(0)
    made.close()
    many = any(model in torch.cuda.get_device_name(0) for model in ("A100", "H100", "H200", "B200"))
    assert made.engines >= 5 if many else made.engines >= 0


def test_end_of_the_program_closes_the_decoder_once():
    made = BlockingDecoder()
    made.go.set()
    warm.begin(0, made)
    warm.finish()
    warm._end()
    warm._end()
    assert made.closed == 1


def test_fork_waits_for_the_decoder_and_the_child_has_none():
    made = BlockingDecoder()
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


def test_handle_opens_the_next_library_if_the_first_needs_a_newer_driver(monkeypatch, cuda):
    libraries = Nvjpeg(hardware=6, default=6), Nvjpeg()
    monkeypatch.setattr(warm, "nvjpeg_libraries", lambda: iter(libraries))
    handle = warm.Handle(0)
    assert handle.engines == 7 and [one.open for one in libraries] == [0, 1]
    handle.close()
    assert libraries[1].open == 0


def test_handle_that_fails_raises_with_the_status(monkeypatch, cuda):
    monkeypatch.setattr(warm, "nvjpeg_libraries", lambda: iter([Nvjpeg(hardware=6, default=2)]))
    with pytest.raises(RuntimeError, match="nvjpegCreateEx returned status 2"):
        warm.Handle(0)
    monkeypatch.setattr(warm, "nvjpeg_libraries", lambda: iter([]))
    with pytest.raises(RuntimeError, match="library was not found"):
        warm.Handle(0)


BEGIN = """
import threading
from dali_compat.engine.dali import warm

go = threading.Event()

class Opened:
    engines = 0

    def __init__(self, index):
        go.wait()

    def close(self):
        print("closed")

warm.begin(0, Opened)
"""


@pytest.mark.parametrize("when", ["at once", "ready", "dropped"])
def test_program_with_background_start_ends_without_errors(when):
    code = {
        "at once": "print('done'); go.set()",
        "ready": "go.set(); warm.finish(); print('done')",
        "dropped": "warm.drop(0); print('done'); go.set()",
    }[when]
    result = programs.run(BEGIN + code, seconds=SECONDS)
    assert said(result) == "done\nclosed\n" and result.stderr == ""


def test_keyboard_interrupt_ends_a_program_with_background_start():
    result = programs.run(BEGIN + "import signal; go.set(); signal.raise_signal(signal.SIGINT)", seconds=SECONDS)
    assert result.returncode in (1, -signal.SIGINT)  # 1 if the thread has just run Python code
    assert result.stderr.strip().endswith("KeyboardInterrupt")
