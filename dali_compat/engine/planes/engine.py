"""The JPEG engine of a GPU, and the threads that feed it."""

from __future__ import annotations

import importlib.metadata
import queue
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as futures_wait
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from ... import __version__
from ...runtime.device import working_on
from ...runtime.installation import JPEG_ENGINE, dali_version, driver_cuda
from .files import Files, UncheckedFiles
from .geometry import Planes
from .nvjpeg import EngineError, Nvjpeg, calls_of

_GRAIN = 2**25  # bytes, of which memory for planes is a multiple: batches find that of others
_IN_FLIGHT, _SHARE = 2**31, 32  # bytes of planes, and as a part of the GPU's, beyond which no more are begun ahead
_CALLS = 2  # at a time: beside a model one waits for its kernels, and for the interpreter's lock after each batch
_PATIENCE = 120  # seconds; a call takes .02
_LOOKS = 120  # meanwhile: a process that is stopped, as by Ctrl-Z, loses one of them, and the engine is not to blame


class EngineSilent(RuntimeError):
    """The engine does not answer."""


class Decoder:
    """One call of nvJPEG at a time, and the stream on which it works."""

    def __init__(self, device: torch.device):
        self._nvjpeg, self.stream = Nvjpeg(), torch.cuda.Stream(device)
        self.version = self._nvjpeg.version

    def decode(self, files: np.ndarray, lengths: np.ndarray, outputs: np.ndarray, sides: np.ndarray) -> None:
        """Decodes as Nvjpeg does, given the longest side of each, (N,); the stream is done with it. No event tells so:
        a child of a fork cannot free one."""
        for some in calls_of(sides):
            given = files[some], lengths[some], outputs[some], int(sides[some].max())
            try:
                self._nvjpeg.decode(*given, self.stream.cuda_stream)
            finally:
                self.stream.synchronize()  # whatever it has begun: the memory of files that it refuses goes now


class Decoding:
    """Planes that are being made, (bytes,) uint8 on the GPU; they are there as long as this is.

    Attributes:
        done: when the planes are there, or an error.
        chosen: (M,) int64, of which files they are: those that have other bytes than they should have are left out.
            None until somebody has looked.
    """

    chosen: np.ndarray | None = None

    def __init__(self, files: Files | UncheckedFiles, places: Planes, engine: JpegEngine, stream: torch.cuda.Stream):
        self.done: Future[None] = Future()
        self._turn = deque([None])
        self._files: Files | UncheckedFiles | None = files
        self._places, self._engine = places, engine
        self.bytes = -(-int(places.bytes.sum()) // _GRAIN) * _GRAIN
        with working_on(stream):
            self._planes: torch.Tensor | None = torch.empty(self.bytes, dtype=torch.uint8, device=engine.device)

    def begins(self) -> bool:
        """Returns whether the caller is to make them: the first one, unless they were cancelled. A pool that gets no
        thread keeps what it has refused."""
        with suppress(IndexError):
            self._turn.pop()
            return self.done.set_running_or_notify_cancel()
        return False

    def read(self) -> Files:
        """Copies the files, and looks at them; that needs no decoder."""
        assert self._files is not None
        files, self.chosen = self._files.checked()
        self._files = None  # their memory goes when they are decoded
        return files

    def run(self, decoder: Decoder, files: Files) -> None:
        """Decodes what read() gave."""
        assert self._planes is not None and self.chosen is not None
        places = self._places if len(files) == len(self._places.bytes) else self._places.only(self.chosen)
        outputs = np.zeros((len(files), 8), np.uint64)
        outputs[:, :3] = places.offsets + self._planes.data_ptr()
        outputs[:, 4:7] = places.pitches
        outputs[places.chroma[:, 2] == 0, 1:3] = 0
        self._planes.record_stream(decoder.stream)
        decoder.decode(files.addresses, files.lengths.astype(np.uint64), outputs, places.sizes.max(1))

    def fail(self, error: BaseException) -> None:
        """With an error that result() raises. Whoever keeps that keeps no memory of files or planes."""
        self._files, self._planes, self.bytes = None, None, 0
        traceback.clear_frames(error.__traceback__)
        self.done.set_exception(error)

    def result(self) -> torch.Tensor:
        """Waits for it; for use on the current stream. Raises MemoryError if the files cannot be copied, EngineError if
        one of them is nothing for the engine, EngineMemoryError if nvJPEG has no memory, and EngineSilent if the engine
        does not answer."""
        for _ in range(0 if self._engine.given_up else _LOOKS):
            if futures_wait([self.done], _PATIENCE / _LOOKS).done:
                break
        if not self.done.done():  # no timeout's error: a signal's handler may raise the same
            raise EngineSilent(f"no answer within {_PATIENCE} s")
        self.done.result()
        assert self._planes is not None
        self._planes.record_stream(torch.cuda.current_stream(self._planes.device))
        return self._planes

    def cancel(self) -> None:
        """Cancels it and releases its resources."""
        self.done.cancel()


class JpegEngine:
    """The engine of a device; an error if there is none.

    Attributes:
        name: of what decodes: the GPU's kind, the driver and the library.
        exact: (256,) bool, of which chroma (data/header.py) it may be that its pixels are Pillow's; engines.py asks.
        given_up: why nobody asks it any more; "" until then.
        memory: of its GPU, bytes.
    """

    memory = 2**40

    def __init__(self, device: torch.device):
        self.device, self.given_up, self.exact = device, "", np.zeros(256, bool)
        if device.type == "cuda":
            self.memory = torch.cuda.get_device_properties(device).total_memory
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)  # of all planes, so that they use each other's memory
            decoders = [Decoder(device) for _ in range(_CALLS)]
        self.name = _name(device, decoders[0])
        threads = _CALLS + 1  # one reads meanwhile
        self._threads = ThreadPoolExecutor(threads, "dali_compat JPEG engine", torch.cuda.set_device, (device,))
        self._live: weakref.WeakValueDictionary[int, Decoding] = weakref.WeakValueDictionary()
        self._idle: queue.LifoQueue[Decoder] = queue.LifoQueue()
        for decoder in decoders:
            self._idle.put(decoder)

    @property
    def is_full(self) -> bool:
        """True if what is in flight has so much memory that more should wait until it is asked for."""
        live = [reference() for reference in self._live.valuerefs()]  # at once: other threads add to it
        bytes_ = sum(decoding.bytes for decoding in live if decoding is not None)
        return bytes_ > min(_IN_FLIGHT, self.memory // _SHARE)

    def submit(self, files: Files | UncheckedFiles, places: Planes) -> Decoding:
        """Begins with N files, which the engine takes, and which are as large as ``places`` says; of UncheckedFiles
        with those that have their bytes."""
        decoding = Decoding(files, places, self, self._stream)
        self._live[id(decoding)] = decoding
        try:
            self._threads.submit(self._run, decoding)
        except RuntimeError:  # no thread is left: the main one has ended, and with it every executor
            with torch.cuda.device(self.device):
                self._run(decoding)
        return decoding

    def wait(self, seconds: float) -> None:
        """Until its threads have nothing to do, so long at most."""
        live = [reference() for reference in self._live.valuerefs()]
        futures_wait([decoding.done for decoding in live if decoding is not None], seconds)

    def _run(self, decoding: Decoding) -> None:
        if not decoding.begins():
            return
        try:
            files = decoding.read()
            if len(files):
                with self._decoder() as decoder:
                    self._stream.synchronize()  # nvJPEG writes at once, and torch may have given others this stream
                    decoding.run(decoder, files)
        except BaseException as error:
            files = None
            decoding.fail(error)
        else:
            decoding.done.set_result(None)
        del decoding  # which has the error, and that this frame

    @contextmanager
    def _decoder(self) -> Iterator[Decoder]:
        """One that is free."""
        for _ in range(_LOOKS):
            with suppress(queue.Empty):
                decoder = self._idle.get(timeout=_PATIENCE / _LOOKS)
                break
        else:
            raise EngineSilent(f"no decoder was free within {_PATIENCE} s")
        try:
            yield decoder
        finally:
            self._idle.put(decoder)

    def give_up(self, why: str = f"it has not answered within {_PATIENCE} s") -> None:
        """Nothing is for it from now on, and nobody waits for what it was asked for."""
        if self.given_up:
            return
        self.given_up, self.exact[:] = why, False
        warnings.warn(
            f"the JPEG engine of {self.device} is not used any more: {why}; JPEGs are decoded as with {JPEG_ENGINE}=0",
            RuntimeWarning,
            stacklevel=2,
        )


def _name(device: torch.device, decoder: Decoder) -> str:
    try:
        driver = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        driver = f"CUDA {driver_cuda()}"
    made = f"nvJPEG {decoder.version}, Triton {_triton()}"  # and what both are compared with
    return f"{torch.cuda.get_device_name(device)}, {driver}, {made}, DALI {dali_version()}, dali_compat {__version__}"


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # in no package of pip's
        return ""


def first_line(error: Exception) -> str:
    """Returns an error's first line, with its type; an EngineError's says what is the matter."""
    text = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0]
