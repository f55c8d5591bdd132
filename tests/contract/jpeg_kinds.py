"""JPEGs of every kind that a GPU's JPEG engine may decode: chroma samplings, sizes, qualities and markers."""

import io
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

# width and height in pixels of an MCU by sampling; 4:4:0 and 4:1:1 use the blocks of another sampling
GRAY, FULL, ACROSS, BOTH, DOWN, FOUR = "gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1"
SAMPLINGS = {GRAY: (8, 8), FULL: (8, 8), ACROSS: (16, 8), BOTH: (16, 16), DOWN: (8, 16), FOUR: (32, 8)}
_PILLOWS = {FULL: 0, ACROSS: 1, BOTH: 2, DOWN: 1, FOUR: 2}
_FACTORS = {DOWN: 0x12, FOUR: 0x41}
_APP0, _APP14, _SOF = b"\xff\xe0", b"\xff\xee", b"\xff\xc0"
MARKERS = ["JFIF", "Adobe", "Adobe alone", "Adobe unknown", "none"]


class Kind(NamedTuple):
    """Kind of a JPEG.

    Attributes:
        sampling: one of SAMPLINGS.
        height, width: pixels.
        quality: 1 to 100.
        optimize: whether the Huffman tables are optimised.
        restart: MCUs between restart markers; 0 for none.
        orientation: EXIF orientation; 0 without EXIF.
        markers: one of MARKERS.
    """

    sampling: str
    height: int
    width: int
    quality: int = 75
    optimize: bool = False
    restart: int = 0
    orientation: int = 0
    markers: str = "JFIF"


def kinds(count: int, seed: int = 0, most: int = 70) -> list[Kind]:
    """Return `count` kinds that cycle through the samplings and, for each, through all values of every attribute."""
    rng = np.random.default_rng(seed)
    ranges = {"height": range(1, most + 1), "width": range(1, most + 1), "quality": range(1, 101)}
    ranges |= {"optimize": (False, True), "restart": (0, 0, 1, 2, 3, 5), "orientation": range(9), "markers": MARKERS}
    decks = {name: {key: _shuffled(values, rng) for key, values in ranges.items()} for name in SAMPLINGS}
    names = itertools.islice(itertools.cycle(SAMPLINGS), count)
    return [Kind(name, **{key: next(deck) for key, deck in decks[name].items()}) for name in names]


def _shuffled(values: Sequence, rng: np.random.Generator) -> Iterator:
    """Yield the values again and again, in another order each time."""
    while True:
        for i in rng.permutation(len(values)).tolist():
            yield values[i]


def make_jpeg(kind: Kind, rng: np.random.Generator) -> bytes:
    """Return a JPEG of this kind with a smooth, noisy picture."""
    across, down = SAMPLINGS[kind.sampling]
    units = -(-kind.height // down), -(-kind.width // across)
    pillows = {DOWN: ACROSS, FOUR: BOTH}.get(kind.sampling, kind.sampling)
    height, width = (n * side for n, side in zip(units, SAMPLINGS[pillows][::-1], strict=True))
    if pillows == kind.sampling:
        height, width = kind.height, kind.width
    small = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    noisy = np.clip(smooth + rng.integers(-40, 41, smooth.shape) * rng.integers(2), 0, 255).astype(np.uint8)
    return _with_markers(_save(Image.fromarray(noisy), kind), kind)


def _save(image: Image.Image, kind: Kind) -> bytes:
    how: dict = {"quality": kind.quality, "optimize": kind.optimize}
    if kind.restart:
        how["restart_marker_blocks"] = kind.restart
    if kind.orientation:
        exif = Image.Exif()
        exif[274] = kind.orientation
        how["exif"] = exif.tobytes()
    if kind.sampling == GRAY:
        image = image.convert("L")
    else:
        how["subsampling"] = _PILLOWS[kind.sampling]
    file = io.BytesIO()
    image.save(file, "JPEG", **how)
    data = bytearray(file.getvalue())
    frame = data.index(_SOF)
    if kind.sampling in _FACTORS:
        data[frame + 11] = _FACTORS[kind.sampling]
    data[frame + 5 : frame + 9] = struct.pack(">HH", kind.height, kind.width)  # must give the same number of MCUs
    return bytes(data)


def _with_markers(data: bytes, kind: Kind) -> bytes:
    adobe = {"Adobe": b"\1", "Adobe alone": b"\1", "Adobe unknown": b"\2"}.get(kind.markers)
    if kind.sampling == GRAY and adobe:
        adobe = b"\0"  # as Adobe's software does
    if kind.markers not in ("JFIF", "Adobe"):
        at = data.index(_APP0)
        data = data[:at] + data[at + 2 + struct.unpack(">H", data[at + 2 : at + 4])[0] :]
    if adobe:
        content = b"Adobe\0\x64\0\0\0\0" + adobe
        data = data[:2] + _APP14 + struct.pack(">H", len(content) + 2) + content + data[2:]
    return data
