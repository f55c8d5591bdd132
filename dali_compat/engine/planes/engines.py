"""Which engine a GPU has: one a device and process.

Whether its planes, with the kernels here, are Pillow's pixels is asked of the device, with a few images made for it.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterable

import numpy as np
import torch
from PIL import Image

from ...data.header import read_header
from ...locks import new_lock
from .engine import SWITCH, Files, JpegEngine, pixels_of
from .geometry import Windows, planes_of, rows_of
from .nvjpeg import EngineError

_PATIENCE = 60  # seconds, of a fork
_SIZES = (37, 51), (64, 48), (5, 4)  # of the images that are compared


_engines: dict[int, JpegEngine | str] = {}  # of this process, by the index of the device
_starts: dict[int, threading.Thread] = {}  # in the background
_making = new_lock()
_parents: list[dict[int, JpegEngine | str]] = []  # of a process that was forked: freed here, CUDA would end this one


def is_wanted() -> bool:
    """Whether the user has asked for it."""
    return os.environ.get(SWITCH) == "1"


def engine_of(device: torch.device) -> JpegEngine | str:
    """The engine of a GPU, or why it has none that gives Pillow's pixels."""
    assert device.index is not None
    with _making:
        found = known_engine(device)
        if found is None:
            found = _engines[device.index] = _new(device)
        return found


def known_engine(device: torch.device) -> JpegEngine | str | None:
    """The same; None where nobody has asked yet. CUDA does not start."""
    found = None if device.index is None else _engines.get(device.index)
    return "it has not answered" if isinstance(found, JpegEngine) and found.silent else found


def begin(device: torch.device) -> None:
    """In the background, once, for CUDA has started: the library and the compiler of kernels take a second. The thread
    is no daemon: a program that ends meanwhile waits for it. So does a fork, which must not copy a locked compiler."""
    assert device.index is not None
    if known_engine(device) is None and device.index not in _starts:
        thread = threading.Thread(target=engine_of, args=(device,), name="dali_compat JPEG engine's start")
        if _starts.setdefault(device.index, thread) is thread:
            thread.start()


def _new(device: torch.device) -> JpegEngine | str:
    try:
        engine = JpegEngine(device)
        for chroma, alike in compared(engine):
            engine.exact[chroma] = alike
    except Exception as error:  # a driver's, a compiler's, nvJPEG's: who decodes as before needs none of them
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return engine if engine.exact.any() else "its planes are not libjpeg's"


def _before_fork() -> None:
    for thread in list(_starts.values()):
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(_PATIENCE)


def _forget() -> None:
    """This process is a child: engines, and locks that are locked, are its parent's."""
    global _making
    _parents.append(dict(_engines))
    _engines.clear()
    _starts.clear()
    _making = new_lock()


os.register_at_fork(before=_before_fork, after_in_child=_forget)


# ---- the comparison


def compared(engine: JpegEngine) -> Iterable[tuple[int, bool]]:
    """(chroma, whether images of that are Pillow's) for each."""
    from . import kernels  # Triton starts with them

    for files in made():
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
            try:
                with torch.cuda.device(engine.device):
                    given = engine.submit(Files.of([file]), planes).result()
                    kernels.render(given, torch.from_numpy(rows).to(engine.device), layout, None, out)
            except EngineError:  # it does not take all of them
                alike = False
                break
            alike &= torch.equal(out[0].movedim(0, -1).cpu(), expected)
        yield chroma, alike


def made() -> Iterable[list[np.ndarray]]:
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
