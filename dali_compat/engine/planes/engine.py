"""The JPEG engine of a GPU: one a device and process, and a thread that feeds it.

Whether its planes, with the kernels here, are Pillow's pixels is asked of the device, with a few images made for it.
"""

from __future__ import annotations

import concurrent.futures
import io
import os
import threading
import warnings
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from ...data.header import read_header
from ...locks import new_lock
from .geometry import Planes, Windows, planes_of, rows_of
from .nvjpeg import EngineError, Nvjpeg

_OFF = "DALI_COMPAT_JPEG_ENGINE"
_GRAIN = 2**25  # bytes, of which memory for planes is a multiple: batches find that of others
_CALLS = 2  # at a time: beside a model one waits for its kernels, and for the interpreter's lock after each batch
_PATIENCE = 120  # seconds; a call takes .02
_SIZES = (37, 51), (64, 48), (5, 4)  # of the images that are compared


class EngineSilent(RuntimeError):
    """The engine does not answer."""


class Files(NamedTuple):
    """N encoded images on the host.

    Attributes:
        addresses, lengths: (N,) uint64.
        owner: what has the memory.
    """

    addresses: np.ndarray
    lengths: np.ndarray
    owner: Any

    @classmethod
    def of(cls, encoded: Any, lengths: np.ndarray | None = None) -> Files:
        """Of DALI's list of bytes, with its ``lengths``, or of arrays."""
        count = len(encoded)
        if lengths is None:
            places = (array.__array_interface__["data"][0] for array in encoded)
            return cls(np.fromiter(places, np.uint64, count), np.fromiter(map(len, encoded), np.uint64, count), encoded)
        addresses = np.fromiter((encoded[i].data_ptr() for i in range(count)), np.uint64, count)
        return cls(addresses, lengths.astype(np.uint64), encoded)

    def only(self, rows: np.ndarray) -> Files:
        return Files(self.addresses[rows], self.lengths[rows], self.owner)


class Decoder:
    """One call of nvJPEG at a time, and the stream on which it works."""

    def __init__(self) -> None:
        self._nvjpeg, self.stream = Nvjpeg(), torch.cuda.Stream()
        self.engines = self._nvjpeg.engines
        self._last: torch.cuda.Event | None = None

    def decode(self, files: np.ndarray, lengths: np.ndarray, outputs: np.ndarray, longest: int, done: torch.cuda.Event):
        """As Nvjpeg's; ``done`` tells when."""
        if self._last is not None and not self._last.query():
            self._last.synchronize()
        self._nvjpeg.decode(files, lengths, outputs, longest, self.stream.cuda_stream)
        done.record(self.stream)
        self._last = done


class Decoding:
    """Planes that are being made, (bytes,) uint8 on the GPU."""

    def __init__(self, files: Files, places: Planes, device: torch.device, stream: torch.cuda.Stream):
        self._files, self._longest = files, int(places.sizes.max())
        with torch.cuda.stream(stream):
            room = -(-int(places.bytes.sum()) // _GRAIN) * _GRAIN
            self._planes = torch.empty(room, dtype=torch.uint8, device=device)
        self._outputs = np.zeros((len(places.bytes), 8), np.uint64)
        self._outputs[:, :3] = places.offsets + self._planes.data_ptr()
        self._outputs[:, 4:7] = places.pitches
        self._outputs[places.chroma[:, 2] == 0, 1:3] = 0
        self._event = torch.cuda.Event()
        self.done: Future[None] | None = None

    def run(self, decoder: Decoder) -> None:
        """In a thread of the engine's."""
        files = self._files
        self._planes.record_stream(decoder.stream)
        decoder.decode(files.addresses, files.lengths, self._outputs, self._longest, self._event)

    def result(self) -> torch.Tensor:
        """Waits for it; for use on the current stream.

        Raises:
            EngineError: one of the files is nothing for the engine.
            EngineSilent: it does not answer.
        """
        try:
            if self.done is not None:
                self.done.result(_PATIENCE)
        except concurrent.futures.TimeoutError:
            raise EngineSilent(f"no answer within {_PATIENCE} s") from None
        stream = torch.cuda.current_stream(self._planes.device)
        stream.wait_event(self._event)
        self._planes.record_stream(stream)
        return self._planes

    def cancel(self) -> None:
        """Nobody wants it."""
        if self.done is not None:
            self.done.cancel()


class JpegEngine:
    """
    Attributes:
        exact: (256,) bool, for which chroma (data/header.py) its planes are libjpeg's, bit for bit.
        engines: how many decoders the GPU has.

    Raises:
        Exception: there is none, or the kernels cannot be compiled.
    """

    def __init__(self, device: torch.device):
        self.device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(
                device
            )  # that planes are made for: one, so that they use each other's memory
            self._decoders = [Decoder() for _ in range(_CALLS)]
        self.engines = self._decoders[0].engines
        self._threads = ThreadPoolExecutor(_CALLS, "dali_compat JPEG engine", torch.cuda.set_device, (device,))
        self._idle = list(self._decoders)
        self.exact = np.zeros(256, bool)
        for chroma, alike in _compared(self):
            self.exact[chroma] = alike

    def submit(self, files: Files, places: Planes) -> Decoding:
        """Begins with N files, which the engine takes, and which are as large as ``places`` says."""
        decoding = Decoding(files, places, self.device, self._stream)
        try:
            decoding.done = self._threads.submit(self._run, decoding)
        except RuntimeError:  # the main thread has ended, and with it every executor; this thread lives on
            with torch.cuda.device(self.device):
                self._run(decoding)
        return decoding

    def _run(self, decoding: Decoding) -> None:
        decoder = self._idle.pop()
        try:
            decoding.run(decoder)
        finally:
            self._idle.append(decoder)

    def give_up(self) -> None:
        """It does not answer any more: nothing is for it from now on."""
        self.exact[:] = False
        _engines[self.device.index] = "it has not answered"
        warnings.warn(
            f"the JPEG engine of {self.device} has not answered within {_PATIENCE} s; from now on JPEGs are decoded "
            f"without it. {_OFF}=0 turns it off from the start",
            RuntimeWarning,
            stacklevel=2,
        )

    def refused(self, files: Files, places: Planes) -> list[int]:
        """Which of the files it does not take, one by one."""
        bad = []
        for row in range(len(files.addresses)):
            one = np.array([row])
            try:
                self.submit(files.only(one), planes_of(places.sizes[one], *places.chroma[one, 2:].T)).result()
            except EngineError:
                bad.append(row)
        return bad


def _compared(engine: JpegEngine) -> Iterable[tuple[int, bool]]:
    """(chroma, whether images of that are Pillow's) for each."""
    from . import kernels

    for files in _made():
        alike, chroma = True, 0
        for file in files:
            header = read_header(file)
            chroma = header.chroma
            expected = torch.from_numpy(np.array(Image.open(io.BytesIO(file.tobytes())).convert("RGB")))
            sizes = np.array([[header.height, header.width]])
            planes = planes_of(sizes, *pixels_of(np.array([chroma])))
            nothing = np.zeros((1, 2), np.int64)
            rows, layout = rows_of(planes, Windows(nothing, sizes, sizes, nothing, nothing), expected.shape[:2])
            out = torch.empty((1, 3, *expected.shape[:2]), dtype=torch.uint8, device=engine.device)
            with torch.cuda.device(engine.device):
                given = engine.submit(Files.of([file]), planes).result()
                kernels.render(given, torch.from_numpy(rows).to(engine.device), layout, None, out)
            alike &= torch.equal(out[0].movedim(0, -1).cpu(), expected)
        yield chroma, alike


def pixels_of(chroma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) int64 each: for how many pixels across and down a sample of chroma is; 0 without chroma."""
    wide = chroma.astype(np.int64)
    return wide >> 4, np.where(wide >> 4 == 0, 0, wide & 15)


def _made() -> Iterable[list[np.ndarray]]:
    """JPEGs of one sampling each: gray, 4:4:4, 4:2:2, 4:2:0 and 4:4:0."""
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in _SIZES]
    yield [_jpeg(image.convert("L")) for image in images]
    for subsampling in (0, 1, 2):
        yield [_jpeg(image, subsampling=subsampling) for image in images]
    whole = [images[0].resize((16 * wide, 8 * high)) for wide, high in ((3, 2), (2, 5), (1, 1))]
    yield [_upright(_jpeg(image, subsampling=1)) for image in whole]


def _jpeg(image: Image.Image, **how: int) -> np.ndarray:
    file = io.BytesIO()
    image.save(file, "JPEG", **how)
    return np.frombuffer(file.getvalue(), np.uint8)


def _upright(file: np.ndarray) -> np.ndarray:
    """A JPEG of 4:2:2 as one of 4:4:0: the same blocks, two of luma above one another instead of side by side."""
    file, at = file.copy(), read_header(file).at
    height, width = (int(file[at + i]) << 8 | int(file[at + i + 1]) for i in (5, 7))
    file[at + 5 : at + 9] = np.array([2 * height, width // 2], ">u2").view(np.uint8)
    file[at + 11] = 0x12
    return file


_engines: dict[int, JpegEngine | str] = {}  # of this process, by the index of the device
_making = new_lock()


def engine_of(device: torch.device) -> JpegEngine | str:
    """The engine of a GPU, or why it has none that gives Pillow's pixels."""
    if os.environ.get(_OFF) == "0":
        return f"{_OFF}=0"
    assert device.index is not None
    with _making:
        if device.index not in _engines:
            _engines[device.index] = _new(device)
        return _engines[device.index]


def known_engine(device: torch.device) -> JpegEngine | str | None:
    """The same; None where nobody has asked yet. CUDA does not start."""
    if os.environ.get(_OFF) == "0":
        return f"{_OFF}=0"
    return None if device.index is None else _engines.get(device.index)


def begin(device: torch.device) -> None:
    """In the background, for CUDA has started: the library and the compiler of kernels take a second."""
    if known_engine(device) is None:
        threading.Thread(target=engine_of, args=(device,), name="dali_compat JPEG engine's start").start()


def _new(device: torch.device) -> JpegEngine | str:
    try:
        engine = JpegEngine(device)
    except Exception as error:  # a driver's, a compiler's, nvJPEG's: who decodes as before needs none of them
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return engine if engine.exact.any() else "its planes are not libjpeg's"


def _forget() -> None:
    """This process is a child: engines, and locks that are locked, are its parent's."""
    global _making
    _engines.clear()
    _making = new_lock()


os.register_at_fork(after_in_child=_forget)
