"""Threads and errors of the JPEG engine (engine/planes/engine and engines), with fake decoders."""

import io
import os
import sys
import threading
import time
import types
import weakref
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from helpers import each_of, interrupted
from PIL import Image
from torchvision import transforms as T

from dali_compat.cli import doctor
from dali_compat.data.headers import FACTS
from dali_compat.engine.planes import engine as one
from dali_compat.engine.planes import engines, nvjpeg
from dali_compat.engine.planes.engine import Decoder as real_decoder
from dali_compat.engine.planes.engine import EngineTimeout
from dali_compat.engine.planes.files import Files, UncheckedFiles
from dali_compat.engine.planes.geometry import planes_of
from dali_compat.engine.planes.nvjpeg import EngineError, EngineMemoryError, Nvjpeg
from dali_compat.engine.planes.verified import VerifiedEngine
from dali_compat.epoch import prefetch_thread
from dali_compat.epoch.planes_group import as_many_as_fit, split_by_memory
from dali_compat.plan import Options
from dali_compat.routes.dali import DaliRoute
from dali_compat.translate import translate
from dali_compat.translate.lower import lower

CPU = torch.device("cpu")
FILES = Files.from_arrays([np.zeros(1, np.uint8)], CPU)
PLACES = planes_of(np.array([[8, 8]]), np.array([0]), np.array([0]))


class Decoder:
    """A decoder that calls ``Decoder.work``."""

    stream, version, work = None, "0", staticmethod(lambda: None)

    def __init__(self, device):
        assert device == CPU

    def decode(self, *args):
        self.work()


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda given: nullcontext())
    monkeypatch.setattr(one, "working_on", lambda stream: nullcontext())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: types.SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "none")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(one, "Decoder", Decoder)
    monkeypatch.setattr(one, "_GRAIN", 1)
    return VerifiedEngine(CPU)


@pytest.fixture
def gate(monkeypatch):
    """An event that decoders wait for."""
    event = threading.Event()
    monkeypatch.setattr(Decoder, "work", lambda self: event.wait(60))
    yield event
    event.set()


def test_result_when_decoding_fails_raises_the_error(engine, monkeypatch):
    """At interpreter shutdown the calling thread decodes, so the error is raised there."""

    def fail(self):
        raise EngineError("not supported")

    monkeypatch.setattr(Decoder, "work", fail)
    for ends in (False, True):
        if ends:
            engine._threads.shutdown()
        decoding = engine.submit(FILES, PLACES)
        with pytest.raises(EngineError):
            decoding.result()


def test_submit_at_interpreter_shutdown_decodes_in_each_calling_thread(engine, monkeypatch):
    monkeypatch.setattr(Decoder, "work", lambda self: time.sleep(0.05))
    engine._threads.shutdown()
    made = []
    callers = [threading.Thread(target=lambda: made.append(engine.submit(FILES, PLACES).result())) for _ in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [len(planes) for planes in made] == [256] * 5


def unchecked(copy, known=True):
    """Return unchecked FILES; ``known`` is True if the bytes match their header hashes."""
    facts = np.zeros(1, FACTS)
    return UncheckedFiles(copy, FILES.checksums(facts["header_hashes"]) ^ np.uint64(0 if known else 4), facts)


def test_files_are_copied_in_another_thread_while_decoders_are_busy(engine, gate):
    busy, threads, copied = [engine.submit(FILES, PLACES) for _ in range(2)], [], threading.Event()

    def copy():
        threads.append(threading.current_thread())
        copied.set()
        return FILES

    decoding = engine.submit(unchecked(copy), PLACES)
    assert copied.wait(60) and threads != [threading.main_thread()]
    gate.set()
    assert [len(one.result()) for one in (*busy, decoding)] == [256] * 3
    assert decoding.chosen.tolist() == [0]


def test_files_with_unexpected_bytes_are_not_decoded(engine, monkeypatch):
    monkeypatch.setattr(Decoder, "work", lambda self: pytest.fail("it decodes"))
    decoding = engine.submit(unchecked(lambda: FILES, known=False), PLACES)
    decoding.result()
    assert not len(decoding.chosen)


def test_batch_without_decodable_files_does_not_wait_for_a_decoder(engine, gate):
    busy = [engine.submit(FILES, PLACES) for _ in range(2)]
    engine.submit(unchecked(lambda: FILES, known=False), PLACES).result()
    assert not any(decoding.done.done() for decoding in busy)


class Payload:
    """An object that the copy of the files refers to."""


def test_error_of_copy_is_raised_and_keeps_no_references(engine):
    kept = []

    def copy():
        large = Payload()
        kept.append(weakref.ref(large))
        raise MemoryError("no room")

    decoding = engine.submit(unchecked(copy), PLACES)
    with pytest.raises(MemoryError, match="no room") as error:
        decoding.result()
    assert decoding.bytes == 0 and kept[0]() is None and error.value


def test_submit_when_no_thread_can_start_decodes_once_in_the_caller(engine, monkeypatch):
    """A thread that starts later must not decode the same files again."""
    started = []

    def refused(self):
        started.append(self)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        decoding = engine.submit(FILES, PLACES)
    assert started and decoding.done.done()
    assert len(engine.submit(FILES, PLACES).result()) == 256  # its thread finds the first batch in the queue
    engine._threads.shutdown()
    assert len(decoding.result()) == 256


def test_fork_waits_for_decoding_threads(engine, gate, monkeypatch):
    monkeypatch.setitem(engines._engines, 5, engine)
    decoding = engine.submit(FILES, PLACES)
    threading.Timer(0.2, gate.set).start()
    engines._before_fork()
    assert decoding.done.done()


def test_timeout_error_of_a_signal_handler_does_not_disable_the_engine(engine, gate):
    decoding = engine.submit(FILES, PLACES)
    late = partial(TimeoutError, "a step takes too long")
    with pytest.raises(TimeoutError, match="a step"), interrupted(late, within=threading.Condition.wait):
        decoding.result()
    gate.set()
    assert len(decoding.result()) == 256


def test_engine_is_not_given_up_after_the_process_was_suspended(engine, gate, monkeypatch):
    """If the process was suspended for longer than the timeout, one wait returns at once."""
    stops, wait = [True], one.futures_wait

    def futures_wait(futures, seconds):
        if stops:
            stops.clear()
            return wait(futures, 0)
        gate.set()
        return wait(futures, 60)

    monkeypatch.setattr(one, "futures_wait", futures_wait)
    assert len(engine.submit(FILES, PLACES).result()) == 256


def test_engine_that_does_not_respond_is_given_up_after_one_timeout(engine, gate, monkeypatch):
    decodings = [engine.submit(FILES, PLACES) for _ in range(4)]
    monkeypatch.setattr(one, "_PATIENCE", 0.2)
    with pytest.raises(EngineTimeout):
        decodings[0].result()
    monkeypatch.setattr(one, "_PATIENCE", 10_000)  # the decoders finish within this time and would return planes
    with pytest.warns(RuntimeWarning, match="has not answered"):
        engine.disable()
    assert not engine.exact.any()
    for decoding in decodings:
        with pytest.raises(EngineTimeout):
            decoding.result()
    monkeypatch.setitem(engines._engines, 5, engine)
    assert engines.engine_of(torch.device("cuda", 5)).startswith("it has not answered")


GPU = torch.device("cuda", 3)
MISSING = {
    "library": "the nvJPEG library was not found",
    "engine": "this GPU has no JPEG engine",
    "symbol": "AttributeError: ",
    "triton": "ModuleNotFoundError: ",
    "memory": "EngineMemoryError: nvjpegJpegStateCreate failed: no memory",
}


@pytest.mark.parametrize("missing", MISSING)
def test_route_when_engine_is_unavailable_decodes_on_cpu_and_explains_why(engine, libraries, monkeypatch, missing):
    monkeypatch.setattr(engines, "_engines", {})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(total_memory=2**34))
    monkeypatch.setattr(one, "Decoder", real_decoder)
    statuses = {"engine": {"nvjpegCreateEx": 7}, "memory": {"nvjpegJpegStateCreate": 5}}
    libraries += {"library": [], "symbol": [types.SimpleNamespace(_handle=None)]}.get(
        missing, [Library(**statuses.get(missing, {}))]
    )
    if missing == "triton":
        monkeypatch.setitem(sys.modules, "triton", None)
        monkeypatch.delitem(sys.modules, "dali_compat.engine.planes.kernels", raising=False)
        monkeypatch.delattr("dali_compat.engine.planes.kernels", raising=False)
    plan = lower(translate(T.RandomResizedCrop(8)), Options(exact=True, channels_last=False, gpu=True))
    route = DaliRoute(GPU, 1, 2, 4, [plan], {})
    assert route.uses_jpeg_engine and route.jpegs.startswith("exact: JPEGs on the GPU's engine, if it has one")
    assert route.jpeg_engine() is None
    assert route.jpegs.startswith(f"exact, on the CPU, not on a JPEG engine: {MISSING[missing]}")
    assert not route.compared_jpegs
    assert doctor._exact_engine(GPU.index).startswith(f"but not with exact=True: {MISSING[missing]}")


def test_route_without_gpu_does_not_look_for_an_engine(monkeypatch):
    monkeypatch.setattr(engines, "engine_of", lambda device: pytest.fail("must not be called"))
    monkeypatch.setattr(engines, "begin", lambda device: pytest.fail("must not be called"))
    plan = lower(translate(T.RandomResizedCrop(8)), Options(exact=True, channels_last=False, gpu=False))
    route = DaliRoute(CPU, 1, 2, 4, [plan], {})
    assert route.jpeg_engine() is None and not route.uses_jpeg_engine and not route.compared_jpegs
    route.begin_decoder()


class PillowEngine(VerifiedEngine):
    """Engine whose planes are the file itself; ``render`` decodes it."""

    def __init__(self):
        self.device, self.exact = CPU, np.zeros(256, bool)

    def submit(self, files, places):
        if places.chroma[0, 2:].tolist() == [2, 1]:
            raise EngineError("not supported")
        return types.SimpleNamespace(result=lambda: torch.from_numpy(each_of(files)[0].copy()))


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


def test_compared_when_one_sampling_is_unsupported_keeps_the_others(kernels):
    assert dict(engines.compared_kinds(PillowEngine())) == {1: True, 0x11: True, 0x21: False, 0x22: True, 0x12: True}


@pytest.mark.parametrize("constant", [0, 1])
def test_compared_when_comparison_is_constant_trusts_no_sampling(kernels, monkeypatch, constant):
    monkeypatch.setattr(kernels, "differs", lambda *args: torch.tensor([constant]))
    assert not any(dict(engines.compared_kinds(PillowEngine())).values())


class Library:
    """A fake nvJPEG library with the given statuses, keyed by function name.

    Attributes:
        requested: (files, width, height) of each allocation.
        decoded: number of files of each call.
        freed: number of destroyed handles.
    """

    def __init__(self, **statuses):
        self._statuses, self.requested, self.decoded, self.freed = statuses, [], [], 0

    def __getattr__(self, name):
        if not name.startswith("nvjpeg"):
            raise AttributeError(name)
        return lambda *args: self._statuses.get(name) or getattr(self, "_" + name, lambda *args: 0)(*args)

    def _nvjpegGetHardwareDecoderInfo(self, handle, engines, cores):
        engines._obj.value = self._statuses.get("engines", 1)
        return 0

    def _nvjpegDestroy(self, handle):
        self.freed += 1
        return 0

    def _nvjpegDecodeBatchedPreAllocate(self, handle, state, files, width, height, *others):
        self.requested.append((files, width, height))
        return 0

    def _nvjpegDecodeBatchedInitialize(self, handle, state, files, *others):
        self.decoded.append(files)
        return 0


@pytest.fixture
def libraries(monkeypatch):
    """The libraries that Nvjpeg finds."""
    found = []
    monkeypatch.setattr(nvjpeg, "nvjpeg_libraries", lambda: iter(found))
    monkeypatch.setattr(nvjpeg.ctypes, "PyDLL", lambda name, handle: handle)
    monkeypatch.setattr(Library, "_handle", property(lambda self: self), raising=False)
    return found


def test_nvjpeg_without_library_raises(libraries):
    with pytest.raises(EngineError, match="library was not found"):
        Nvjpeg()


@pytest.mark.parametrize("how", [{"nvjpegCreateEx": 7}, {"engines": 0}])
def test_nvjpeg_without_engine_raises_and_frees_its_handle(libraries, how):
    libraries.append(Library(**how))
    with pytest.raises(EngineError, match=r"^this GPU has no JPEG engine$"):
        Nvjpeg()
    assert libraries[0].freed == int("engines" in how)


def test_nvjpeg_skips_libraries_that_do_not_work(libraries):
    class Old:
        _handle = None

    libraries += [Library(nvjpegCreateEx=1), Old(), Library()]
    assert Nvjpeg()._library is libraries[2]


@pytest.mark.parametrize(("status", "error"), [(3, EngineError), (4, EngineError), (5, EngineMemoryError)])
def test_nvjpeg_decode_raises_the_error_of_the_status(libraries, status, error):
    libraries.append(Library(nvjpegDecodeBatched=status))
    made, numbers = Nvjpeg(), np.zeros(1, np.uint64)
    with pytest.raises(error, match="nvjpegDecodeBatched failed: "):
        made.decode(numbers, numbers, np.zeros((1, 8), np.uint64), 9, 0)


def test_nvjpeg_buffers_grow_with_the_images(libraries):
    """Buffers are never sized for the longest side times the most files: 256 images of 16384 pixels would need 200
    GB."""
    libraries.append(Library())
    made = Nvjpeg()
    for count, longest in ((8, 200), (8, 500), (8, 40), (300, 900), (8, 16384), (8, 700)):
        numbers = np.zeros(count, np.uint64)
        made.decode(numbers, numbers, np.zeros((count, 8), np.uint64), longest, 0)
    assert libraries[0].requested == [(256, 256, 256), (256, 512, 512), (256, 1024, 1024)]


def test_calls_with_large_images_have_few_files():
    """This bounds the memory of each position of a call, regardless of the order in the batches."""
    rng = np.random.default_rng(0)
    for sides in ([500] * 256, [1024] * 300, [40] * 1000):
        calls = nvjpeg.calls_of(np.array(sides))
        assert np.concatenate(calls).tolist() == list(range(len(sides)))
        assert len(calls) == -(-len(sides) // 256)
    places = np.zeros(256, np.int64)
    for _ in range(200):
        sides = rng.choice([60, 300, 1000, 1280, 6000, 16384], 256, p=[0.3, 0.4, 0.2, 0.05, 0.04, 0.01])
        calls = nvjpeg.calls_of(sides)
        assert sorted(np.concatenate(calls).tolist()) == list(range(256))
        for call in calls:
            longest = max(sides[call].max(), 1024)
            assert len(call) == 1 or len(call) * longest**2 <= 2**29
            places[: len(call)] = np.maximum(places[: len(call)], sides[call])
    assert (np.arange(1, 257) * places**2).max() <= 2**29
    assert [len(call) for call in nvjpeg.calls_of(np.array([300] * 250 + [1280] * 6))] == [256]


def test_decoder_passes_each_call_its_files(engine, monkeypatch):
    calls = []
    decoder = object.__new__(real_decoder)
    decoder.stream = types.SimpleNamespace(cuda_stream=0, synchronize=lambda: calls.append("done"))
    decoder._nvjpeg = types.SimpleNamespace(decode=lambda *args: calls.append([one.tolist() for one in args[:3]]))
    numbers = np.arange(3, dtype=np.uint64)
    decoder.decode(numbers, numbers + np.uint64(10), np.zeros((3, 8), np.uint64), np.array([9, 16384, 16384]))
    nothing = [[0] * 8]
    assert calls == [[[1, 2], [11, 12], 2 * nothing], "done", [[0], [10], nothing], "done"]


def test_stored_errors_keep_no_planes(engine, monkeypatch):
    """An error may be stored for long together with its traceback."""

    def fail(self):
        raise EngineError("not supported")

    monkeypatch.setattr(Decoder, "work", fail)
    monkeypatch.setattr(one, "_IN_FLIGHT", 0)
    decoding = engine.submit(FILES, PLACES)
    with pytest.raises(EngineError) as error:
        decoding.result()
    assert error.traceback and decoding._planes is None and not engine.is_full


def test_bytes_in_flight_are_limited_by_gpu_memory(engine, monkeypatch):
    decoding = engine.submit(FILES, PLACES)
    assert not engine.is_full
    monkeypatch.setattr(engine, "memory", 32 * 255)
    assert engine.is_full and decoding.bytes == 256
    facts = np.zeros(8, FACTS)
    facts["sizes"], facts["chroma"] = 8, 1
    assert [len(group) for group in split_by_memory(np.arange(8), facts, 2**34)] == [8]
    assert [len(group) for group in split_by_memory(np.arange(8), facts, 128 * 512)] == [2] * 4
    large = facts.copy()
    large["lengths"] = [9, 600, 9, 9, 9, 500, 9, 9]  # small images with long files
    made = [group.tolist() for group in split_by_memory(np.arange(8), large, 128 * 512)]
    assert made == [[0], [1], [2, 3], [4], [5, 6], [7]]


def test_groups_have_at_most_65535_images():
    many = 140_000
    facts = np.zeros(many, FACTS)
    facts["sizes"], facts["chroma"] = 1, 1
    groups = split_by_memory(np.arange(many), facts, 2**40)
    assert [len(group) for group in groups] == [65535, 65535, 8930]
    assert np.array_equal(np.concatenate(groups), np.arange(many))
    assert as_many_as_fit(np.arange(many), facts, 2**30).tolist() == groups[0].tolist()


def test_is_full_while_other_threads_submit_does_not_raise(engine, monkeypatch):
    """Iterating over the set while it changes would raise an error."""
    begun = []

    class Counted:
        @property
        def bytes(self):
            if len(begun) < 3:
                begun.append(engine.submit(FILES, PLACES))
            return 1

    counted = [Counted() for _ in range(4)]
    for number, each in enumerate(counted):
        engine._live[-1 - number] = each
    assert not engine.is_full and len(begun) == 3


def test_fork_waits_for_the_start_of_an_engine(monkeypatch):
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


def test_fork_waits_for_comparisons(engine, monkeypatch):
    """Otherwise the child would inherit the locks held by their thread."""
    done = []
    monkeypatch.setattr(engine, "_alike", lambda *args: done.append(time.sleep(0.3)) or np.ones(1, bool))
    monkeypatch.setitem(engines._engines, 7, engine)
    engine.compare(FILES, PLACES, np.zeros(1, np.uint8), [torch.zeros(8, 8, 3, dtype=torch.uint8)], done.append)
    child = os.fork()
    if not child:
        os._exit(0)
    found = len(done)
    os.waitpid(child, 0)
    assert found == 2


def test_fork_waits_for_comparisons_that_a_prefetch_thread_starts_meanwhile(engine, monkeypatch):
    """The comparison starts after the fork hook has checked for running ones."""
    done = []
    monkeypatch.setattr(engine, "_alike", lambda *args: time.sleep(0.3) or np.ones(1, bool))
    monkeypatch.setitem(engines._engines, 7, engine)

    def begin():
        time.sleep(0.2)  # by now the engines have been waited for
        engine.compare(FILES, PLACES, np.zeros(1, np.uint8), [torch.zeros(8, 8, 3, dtype=torch.uint8)], done.append)

    late = prefetch_thread.PrefetchThread(CPU)
    late.submit(begin)
    child = os.fork()
    if not child:
        os._exit(0)
    found = len(done)
    os.waitpid(child, 0)
    late.end(lambda: None, waits=True)
    assert found == 1
