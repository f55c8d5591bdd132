"""engine/planes/engine and engines, with decoders of their own in the place of a GPU's: who waits for whom, and what
becomes of errors."""

import io
import os
import signal
import threading
import time
import types
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image

from dali_compat.engine.planes import engine as one
from dali_compat.engine.planes import engines
from dali_compat.engine.planes.engine import EngineSilent, Files
from dali_compat.engine.planes.geometry import planes_of
from dali_compat.engine.planes.nvjpeg import EngineError, Nvjpeg
from dali_compat.engine.planes.verified import VerifiedEngine

CPU = torch.device("cpu")
FILES = Files.of([np.zeros(1, np.uint8)])
PLACES = planes_of(np.array([[8, 8]]), np.array([0]), np.array([0]))


class Decoder:
    """One that calls ``Decoder.work``."""

    stream, version, work = None, "0", staticmethod(lambda: None)

    def __init__(self, device):
        assert device == CPU

    def decode(self, *args):
        self.work()


@pytest.fixture
def engine(monkeypatch):
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda given: nullcontext())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "none")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(one, "Decoder", Decoder)
    monkeypatch.setattr(one, "_GRAIN", 1)
    return VerifiedEngine(CPU)


@pytest.fixture
def held(monkeypatch):
    """Decoders do not end before this is set."""
    event = threading.Event()
    monkeypatch.setattr(Decoder, "work", lambda self: event.wait(20))
    yield event
    event.set()


def test_an_error_comes_with_the_planes(engine, monkeypatch):
    """At the program's end, too, where nobody but the caller is left to decode."""

    def fail(self):
        raise EngineError("not supported")

    monkeypatch.setattr(Decoder, "work", fail)
    for ends in (False, True):
        if ends:
            engine._threads.shutdown()
        decoding = engine.submit(FILES, PLACES)
        with pytest.raises(EngineError):
            decoding.result()


def test_more_callers_than_decoders(engine, monkeypatch):
    """At the program's end every caller decodes itself."""
    monkeypatch.setattr(Decoder, "work", lambda self: time.sleep(0.05))
    engine._threads.shutdown()
    made = []
    callers = [threading.Thread(target=lambda: made.append(engine.submit(FILES, PLACES).result())) for _ in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [len(planes) for planes in made] == [256] * 5


def test_a_timeout_of_somebody_else_is_not_the_engines(engine, held):
    def expire(number, frame):
        raise TimeoutError("a step takes too long")

    decoding = engine.submit(FILES, PLACES)
    before = signal.signal(signal.SIGALRM, expire)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeoutError, match="a step"):
            decoding.result()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    held.set()
    assert len(decoding.result()) == 256


def test_it_is_waited_for_once(engine, held, monkeypatch):
    decodings = [engine.submit(FILES, PLACES) for _ in range(4)]
    monkeypatch.setattr(one, "_PATIENCE", 0.2)
    with pytest.raises(EngineSilent):
        decodings[0].result()
    monkeypatch.setattr(one, "_PATIENCE", 15)
    with pytest.warns(RuntimeWarning, match="has not answered"):
        engine.give_up()
    assert not engine.exact.any()
    since = time.monotonic()
    for decoding in decodings:
        with pytest.raises(EngineSilent):
            decoding.result()
    assert time.monotonic() - since < 10
    monkeypatch.setitem(engines._engines, 5, engine)
    assert engines.engine_of(torch.device("cuda", 5)).startswith("it has not answered")


class Pillow(VerifiedEngine):
    """Its planes are the file: ``render`` makes pixels of it."""

    def __init__(self):
        self.device, self.exact = CPU, np.zeros(256, bool)

    def submit(self, files, places):
        if places.chroma[0, 2:].tolist() == [2, 1]:
            raise EngineError("not supported")
        return types.SimpleNamespace(result=lambda: torch.from_numpy(files.arrays[0].copy()))


def render(file, rows, layout, table, out):
    pixels = np.array(Image.open(io.BytesIO(file.numpy().tobytes())).convert("RGB"))
    out[0] = torch.from_numpy(pixels).movedim(-1, 0)


def differs(file, rows, layout, wanted):
    pixels = np.array(Image.open(io.BytesIO(file.numpy().tobytes())).convert("RGB"))
    return torch.tensor([int(not np.array_equal(pixels.ravel(), wanted.numpy()))])


@pytest.fixture
def kernels(engine, monkeypatch):
    module = pytest.importorskip("dali_compat.engine.planes.kernels")
    monkeypatch.setattr(module, "render", render)
    monkeypatch.setattr(module, "differs", differs)
    return module


def test_a_sampling_that_it_refuses_leaves_the_others(kernels):
    assert dict(engines.compared(Pillow())) == {1: True, 0x11: True, 0x21: False, 0x22: True, 0x12: True}


@pytest.mark.parametrize("blind", [0, 1])
def test_a_comparison_that_always_says_the_same_is_of_no_use(kernels, monkeypatch, blind):
    monkeypatch.setattr(kernels, "differs", lambda *args: torch.tensor([blind]))
    assert not any(dict(engines.compared(Pillow())).values())


def test_who_wants_it(monkeypatch):
    for default in (False, True):
        monkeypatch.setattr(engines, "BY_DEFAULT", default)
        for said in ("0", "1"):
            monkeypatch.setenv(one.SWITCH, said)
            assert engines.is_wanted() == (said == "1")
        monkeypatch.delenv(one.SWITCH)
        assert engines.is_wanted() == default


def test_one_long_side_keeps_no_room_for_squares():
    """Of 256 files 16384 pixels long that would be 200 GB."""
    asked = []

    class Library(Nvjpeg):
        _handle = _state = None
        _files, _side = 256, 1024
        _quick = types.SimpleNamespace(nvjpegDecodeBatchedInitialize=lambda *args: 0)

        def __init__(self):
            pass

        def _call(self, name, *args):
            if name == "nvjpegDecodeBatchedPreAllocate":
                asked.append(args[2:5])

    library = Library()
    for count, longest in ((8, 700), (8, 1500), (300, 900), (8, 16384), (8, 16384), (2000, 40)):
        numbers = np.zeros(count, np.uint64)
        library.decode(numbers, numbers, np.zeros((count, 8), np.uint64), longest, 0)
    assert all(files * width * height <= 2**30 for files, width, height in asked)
    assert asked[0] == (256, 2048, 2048) and asked[1][0] == 300 and asked[-1][0] == 2000
    assert len(asked) <= 4


def test_a_fork_waits_for_its_start(monkeypatch):
    device, begun = torch.device("cuda", 6), []

    def new(given):
        begun.append(given)
        time.sleep(0.3)
        return "none is there"

    monkeypatch.setattr(engines, "_new", new)
    monkeypatch.setattr(engines, "_engines", {})
    monkeypatch.setattr(engines, "_starts", {})
    for _ in range(3):
        engines.begin(device)
    child = os.fork()
    if not child:
        os._exit(0)
    known = engines.known_engine(device)
    os.waitpid(child, 0)
    assert known == "none is there" and begun == [device]


def test_a_fork_waits_for_comparisons(engine, monkeypatch):
    """Its child would have the locks that their thread has."""
    done = []
    monkeypatch.setattr(engine, "_alike", lambda *args: done.append(time.sleep(0.3)) or np.ones(1, bool))
    monkeypatch.setitem(engines._engines, 7, engine)
    engine.compare(FILES, PLACES, [torch.zeros(8, 8, 3, dtype=torch.uint8)], done.append)
    child = os.fork()
    if not child:
        os._exit(0)
    found = len(done)
    os.waitpid(child, 0)
    assert found == 2
