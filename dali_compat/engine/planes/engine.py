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
from ...runtime.installation import dali_version, driver_cuda
from .files import Files, UncheckedFiles
from .geometry import PlaneLocations
from .nvjpeg import EngineError, Nvjpeg, calls_of

_GRAIN = 2**25  # bytes; sizes of planes are rounded up to reuse allocations
_IN_FLIGHT, _SHARE = 2**31, 32  # limits of planes decoded ahead, in bytes and as 1 / share of the GPU's memory
_CALLS = 2  # decoders per GPU; more than one, because a decoder often waits for a model's kernels and for the GIL
_PATIENCE = 120  # seconds; a call takes .02
_POLLS = 120  # number of waits that _PATIENCE is split into; time while Ctrl-Z stops the process counts as one wait


class EngineTimeout(RuntimeError):
    """Raised if the JPEG engine does not respond."""


class Decoder:
    """nvJPEG's decoder with its own CUDA stream, for one thread at a time."""

    def __init__(self, device: torch.device):
        self._nvjpeg, self.stream = Nvjpeg(), torch.cuda.Stream(device)
        self.version = self._nvjpeg.version

    def decode(self, files: np.ndarray, lengths: np.ndarray, outputs: np.ndarray, sides: np.ndarray) -> None:
        """Call Nvjpeg.decode() and wait for the result. ``sides`` (N,) is the longest side of each image."""
        for some in calls_of(sides):
            given = files[some], lengths[some], outputs[some], int(sides[some].max())
            try:
                self._nvjpeg.decode(*given, self.stream.cuda_stream)
            finally:
                # also after an error, since the files' memory is freed next
                self.stream.synchronize()


class Decoding:
    """A task that decodes files to planes. It owns the planes' buffer, a one-dimensional uint8 tensor on the GPU."""

    chosen: np.ndarray | None = None  # (M,) int64, indices of the files that passed checked(); None before

    def __init__(
        self, files: Files | UncheckedFiles, locations: PlaneLocations, engine: JpegEngine, stream: torch.cuda.Stream
    ):
        self.done: Future[None] = Future()  # completes when the planes are ready, or with an error
        self._not_begun = deque([None])
        self._files: Files | UncheckedFiles | None = files
        self._locations, self._engine = locations, engine
        self.bytes = -(-int(locations.bytes.sum()) // _GRAIN) * _GRAIN
        with working_on(stream):
            self._planes: torch.Tensor | None = torch.empty(self.bytes, dtype=torch.uint8, device=engine.device)

    def claim(self) -> bool:
        """Claim the task for the calling thread. Return False if it was claimed before, or cancelled."""
        # a thread pool may run a task even if its submit() raised an error, so two threads may try
        with suppress(IndexError):
            self._not_begun.pop()
            return self.done.set_running_or_notify_cancel()
        return False

    def read(self) -> Files:
        """Return the files that pass checked(), and set ``chosen`` to their indices."""
        assert self._files is not None
        files, self.chosen = self._files.checked()
        self._files = None  # frees their memory after decoding
        return files

    def run(self, decoder: Decoder, files: Files) -> None:
        """Decode ``files``, the result of read(), to the planes."""
        assert self._planes is not None and self.chosen is not None
        locations = self._locations if len(files) == len(self._locations.bytes) else self._locations.only(self.chosen)
        outputs = np.zeros((len(files), 8), np.uint64)
        outputs[:, :3] = locations.offsets + self._planes.data_ptr()
        outputs[:, 4:7] = locations.pitches
        outputs[locations.chroma[:, 2] == 0, 1:3] = 0
        self._planes.record_stream(decoder.stream)
        decoder.decode(files.addresses, files.lengths.astype(np.uint64), outputs, locations.sizes.max(1))

    def fail(self, error: BaseException) -> None:
        """Complete ``done`` with ``error``. Buffers are released first, because a stored traceback would keep them."""
        self._files, self._planes, self.bytes = None, None, 0
        traceback.clear_frames(error.__traceback__)
        self.done.set_exception(error)

    def result(self) -> torch.Tensor:
        """Wait for the planes and return them, for use on the current stream.

        Raises:
            MemoryError: no memory for the files, or for nvJPEG (EngineMemoryError).
            EngineError: the engine cannot decode one of the files.
            EngineTimeout: the engine does not respond.
        """
        for _ in range(0 if self._engine.disabled else _POLLS):
            if futures_wait([self.done], _PATIENCE / _POLLS).done:
                break
        if not self.done.done():  # TimeoutError is not caught, since a signal handler may also raise it
            raise EngineTimeout(f"the JPEG engine has not answered within {_PATIENCE} s")
        self.done.result()
        assert self._planes is not None
        self._planes.record_stream(torch.cuda.current_stream(self._planes.device))
        return self._planes

    def cancel(self) -> None:
        self.done.cancel()


class JpegEngine:
    """The JPEG engine of a GPU. Raises an error if the GPU has none.

    Attributes:
        name: GPU model and library versions. Comparisons are stored under this name.
        exact: (256,) bool, indexed by Header.chroma; True if the pixels of test images are equal to Pillow's. Set by
            engines.py.
        disabled: reason why the engine is no longer used, or "".
        memory: size of the GPU's memory in bytes.
    """

    memory = 2**40

    def __init__(self, device: torch.device):
        self.device, self.disabled, self.exact = device, "", np.zeros(256, bool)
        if device.type == "cuda":
            self.memory = torch.cuda.get_device_properties(device).total_memory
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)  # shared by all planes, so that they reuse each other's memory
            decoders = [Decoder(device) for _ in range(_CALLS)]
        self.name = _name(device, decoders[0])
        threads = _CALLS + 1  # one thread reads files while the others decode
        self._threads = ThreadPoolExecutor(threads, "dali_compat JPEG engine", torch.cuda.set_device, (device,))
        self._live: weakref.WeakValueDictionary[int, Decoding] = weakref.WeakValueDictionary()
        self._idle: queue.LifoQueue[Decoder] = queue.LifoQueue()
        for decoder in decoders:
            self._idle.put(decoder)

    @property
    def is_full(self) -> bool:
        """True if the planes of all tasks take too much memory to submit more files ahead."""
        live = [reference() for reference in self._live.valuerefs()]  # a copy, since other threads add to it
        bytes_ = sum(decoding.bytes for decoding in live if decoding is not None)
        return bytes_ > min(_IN_FLIGHT, self.memory // _SHARE)

    def submit(self, files: Files | UncheckedFiles, locations: PlaneLocations) -> Decoding:
        """Start decoding N files to planes at ``locations``. Files that do not pass checked() are left out."""
        decoding = Decoding(files, locations, self, self._stream)
        self._live[id(decoding)] = decoding
        try:
            self._threads.submit(self._run, decoding)
        except RuntimeError:  # executors are shut down with the main thread
            with torch.cuda.device(self.device):
                self._run(decoding)
        return decoding

    def wait(self, seconds: float) -> None:
        live = [reference() for reference in self._live.valuerefs()]
        futures_wait([decoding.done for decoding in live if decoding is not None], seconds)

    def _run(self, decoding: Decoding) -> None:
        if not decoding.claim():
            return
        try:
            files = decoding.read()
            if len(files):
                with self._decoder() as decoder:
                    self._stream.synchronize()  # earlier work may still use the memory that nvJPEG writes to
                    decoding.run(decoder, files)
        except BaseException as error:
            files = None
            decoding.fail(error)
        else:
            decoding.done.set_result(None)
        del decoding  # break the reference cycle of error, traceback and this frame

    @contextmanager
    def _decoder(self) -> Iterator[Decoder]:
        """Wait for a free decoder and yield it. The decoder is free again after the context."""
        for _ in range(_POLLS):
            with suppress(queue.Empty):
                decoder = self._idle.get(timeout=_PATIENCE / _POLLS)
                break
        else:
            raise EngineTimeout(f"the JPEG engine had no free decoder within {_PATIENCE} s")
        try:
            yield decoder
        finally:
            self._idle.put(decoder)

    def disable(self, why: str = f"it has not answered within {_PATIENCE} s") -> None:
        """Disable the engine, and issue a warning. Decoding.result() no longer waits for the engine."""
        if self.disabled:
            return
        self.disabled, self.exact[:] = why, False
        warnings.warn(
            f"the JPEG engine of {self.device} is no longer used, because {why}; JPEGs are decoded without it",
            RuntimeWarning,
            stacklevel=2,
        )


def _name(device: torch.device, decoder: Decoder) -> str:
    try:
        driver = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        driver = f"CUDA {driver_cuda()}"
    made = f"nvJPEG {decoder.version}, Triton {_triton()}"
    return f"{torch.cuda.get_device_name(device)}, {driver}, {made}, DALI {dali_version()}, dali_compat {__version__}"


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # not installed by pip
        return ""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message. Prepend the error's type unless it is EngineError."""
    text = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0]
