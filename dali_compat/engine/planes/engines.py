"""The JPEG engine of each GPU, created once per device and process.

A new engine is tested with generated images. If the compiled kernels do not resize as Pillow does, the engine is not
used at all. Otherwise, each kind of JPEG is enabled if its pixels equal Pillow's. Files of enabled kinds are then
compared when they are read (verified.py).
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import torch
from PIL import Image

from ...data.header import GRAY_JPEG, read_header
from ...ops.pixels.resample import resize
from ...runtime.device import to_device
from ...runtime.forks import at_fork, leak_in_child, new_lock
from ...runtime.installation import hidden_jpeg_engines
from .engine import first_line
from .files import Files
from .geometry import Windows, pixels_of, planes_of, rows_of, whole_rows_of
from .nvjpeg import EngineError
from .verified import VerifiedEngine

_PATIENCE = 60  # seconds that a fork waits
_SIZES = (37, 51), (64, 48), (5, 4)  # of the generated images


_engines: dict[int, VerifiedEngine | str] = {}  # by device index
_starts: dict[int, threading.Thread] = {}  # threads of begin(), by device index
_making = new_lock()


def engine_of(device: torch.device) -> VerifiedEngine | str:
    """Return a GPU's engine, or the reason why none can be used. Create the engine on the first call."""
    assert device.index is not None
    with _making:
        found = known_engine(device)
        if found is None:
            found = _engines[device.index] = _new(device)
        return found


def known_engine(device: torch.device) -> VerifiedEngine | str | None:
    """Return the result of engine_of(), or None if it has not been called. Does not initialize CUDA."""
    found = None if device.index is None else _engines.get(device.index)
    return found.disabled or found if isinstance(found, VerifiedEngine) else found


def begin(device: torch.device) -> None:
    """Create a GPU's engine in a thread, because this takes a second. CUDA must be initialized."""
    assert device.index is not None
    if known_engine(device) is None and device.index not in _starts:
        thread = threading.Thread(target=engine_of, args=(device,), name="dali_compat JPEG engine's start")
        if _starts.setdefault(device.index, thread) is thread:
            with suppress(RuntimeError):  # thread limit reached; the first epoch starts the engine
                thread.start()


def _new(device: torch.device) -> VerifiedEngine | str:
    try:
        engine = VerifiedEngine(device)
        with torch.cuda.device(device):
            if not resizes_alike(device):
                return "the kernels compiled by Triton do not resize as Pillow and PyTorch do"
        for chroma, alike in compared_kinds(engine):
            engine.exact[chroma] = alike
    except Exception as error:  # of the driver, Triton or nvJPEG; the CPU can decode instead
        hidden = None if device.index is None else hidden_jpeg_engines(device.index)
        return first_line(error) if hidden is None else str(hidden)
    return engine if engine.exact.any() else "its pixels differ from Pillow's for all kinds of JPEG"


def _before_fork() -> None:
    """Wait for the engines' threads, because a child could never release their locks."""
    for thread in list(_starts.values()):
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(_PATIENCE)
    for engine in list(_engines.values()):
        if isinstance(engine, VerifiedEngine) and not engine.disabled:
            engine.wait_for_comparisons(_PATIENCE)
            engine.wait(_PATIENCE)


def _forget() -> None:
    global _making
    leak_in_child(dict(_engines))
    _engines.clear()
    _starts.clear()
    _making = new_lock()


at_fork("JPEG engines", before=_before_fork, after_in_child=_forget)


# ---- the comparison


def compared_kinds(engine: VerifiedEngine) -> Iterable[tuple[int, bool]]:
    """Yield each kind of chroma subsampling (Header.chroma), and whether generated JPEGs of this kind decode to
    Pillow's pixels."""
    for files in generated_jpegs():
        chroma = read_header(files[0]).chroma
        with torch.cuda.device(engine.device):
            yield chroma, all(_equals_pillow(engine, file, chroma) for file in files)


def _equals_pillow(engine: VerifiedEngine, file: np.ndarray, chroma: int) -> bool:
    """Return True if a file decodes to Pillow's pixels, and if differs() detects a single changed value."""
    from . import kernels  # imports Triton

    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(file.tobytes())).convert("RGB"))).to(engine.device)
    locations = planes_of(np.array([pixels.shape[:2]]), *pixels_of(np.array([chroma])))
    rows, layout = whole_rows_of(locations)
    out = torch.empty((1, *pixels.movedim(-1, 0).shape), dtype=torch.uint8, device=engine.device)
    try:
        planes = engine.submit(Files.from_arrays([file], engine.device), locations).result()
    except EngineError:
        return False
    kernels.render(planes, to_device(rows, engine.device), layout, None, out)
    wanted = pixels.reshape(-1)
    other = wanted.clone()
    other[-1] ^= 1
    alike, missed = (not engine.differs(planes, locations, one)[0] for one in (wanted, other))
    return alike and not missed and torch.equal(out[0].movedim(0, -1), pixels)


def resizes_alike(device: torch.device) -> bool:
    """Return True if the kernels shrink and enlarge gray images as ops/pixels/resample does on the CPU."""
    from . import kernels  # imports Triton

    rng, size, sizes = np.random.default_rng(0), (30, 41), np.array([[97, 150], [13, 17]])
    locations = planes_of(sizes, *pixels_of(np.array([GRAY_JPEG] * 2)))
    planes, images = np.zeros(int(locations.bytes.sum()), np.uint8), []
    begins, pitches = locations.offsets[:, 0], locations.pitches[:, 0]
    for (height, width), begin, pitch in zip(sizes.tolist(), begins, pitches, strict=True):
        images.append(torch.from_numpy(rng.integers(0, 256, (height, width), np.uint8)).expand(1, 3, -1, -1))
        planes[begin : begin + height * pitch].reshape(height, pitch)[:, :width] = images[-1][0, 0]
    full, nothing = np.tile(size, (2, 1)), np.zeros_like(sizes)
    windows = Windows(nothing, sizes, full, nothing, nothing)
    alike = True
    for how in (("bilinear", "pil"), ("bicubic", "v2")):
        rows, layout = rows_of(locations, windows, size, *how)
        out = torch.empty((2, 3, *size), dtype=torch.uint8, device=device)
        kernels.render(torch.from_numpy(planes).to(device), to_device(rows, device), layout, None, out)
        # a compiler might have reordered the computation of the weights
        alike &= torch.equal(out.cpu(), torch.cat([resize(image, size, *how) for image in images]))
    return alike


def generated_jpegs() -> Iterable[list[np.ndarray]]:
    """Yield three JPEGs of each kind of chroma: gray, 4:4:4, 4:2:2, 4:2:0 and 4:4:0."""
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in _SIZES]
    yield [_jpeg(image.convert("L")) for image in images]
    for subsampling in (0, 1, 2):
        yield [_jpeg(image, subsampling=subsampling) for image in images]
    whole = [images[0].resize((16 * wide, 8 * high)) for wide, high in ((3, 2), (2, 5), (1, 1))]
    yield [_as_440(_jpeg(image, subsampling=1)) for image in whole]


def _jpeg(image: Image.Image, **how: int) -> np.ndarray:
    file = io.BytesIO()
    image.save(file, "JPEG", **how)
    return np.frombuffer(file.getvalue(), np.uint8)


def _as_440(file: np.ndarray) -> np.ndarray:
    """Convert a 4:2:2 JPEG to 4:4:0, by editing the size and sampling in its header."""
    file, at = file.copy(), read_header(file).at
    height, width = (int(file[at + i]) << 8 | int(file[at + i + 1]) for i in (5, 7))
    file[at + 5 : at + 9] = np.array([2 * height, width // 2], ">u2").view(np.uint8)
    file[at + 11] = 0x12
    return file
