"""Image headers: the size of every file before it is decoded, and whether DALI decodes it as PIL does.

From sizes draws/ computes all geometry on the host. Reading a JPEG's takes about 10 us, once a file; the answers are
kept for the life of the data set. Which files need PIL was measured on 400 unusual images.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ..locks import new_lock
from .intact import intact, is_whole_bitmap
from .per_object import PerObject
from .sources import ORIENTATION, InItsMode, Parts, Source, is_upright, opened

UNKNOWN, DALI, PIL, UNREADABLE, GRAY = 0, 1, 2, 3, 4  # GRAY: by PIL, with one channel

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PLAIN_FRAMES = (0xC0, 0xC2)  # baseline and progressive, Huffman-coded
_APPLICATION = _JFIF, _EXIF, _ADOBE = 0xE0, 0xE1, 0xEE  # APP0, APP1, APP14
_SAME_IN_DALI = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB"),
    "PPM": ("L", "RGB"),
    "WEBP": ("RGB", "RGBA", "RGBX"),
    "TIFF": ("L", "RGB"),
}
_SAMPLE, _SLOW, _THREADS = 16, 200e-6, 32  # files to time, seconds a file, threads

STATED = 48  # bytes that state an image's sides: a JPEG's frame header, the others' first bytes, a TIFF's first entries
_LAST_PLACE = np.iinfo(np.int32).max
_FACTORS = np.random.default_rng(0).integers(0, 1 << 63, STATED // 8, np.uint64) * np.uint64(2) + np.uint64(1)


class Header(NamedTuple):
    """What a file's header says.

    Attributes:
        kind: DALI, PIL, UNREADABLE or GRAY.
        height, width: in pixels.
        length: of the file, in bytes.
        at: where the bytes are that state its sides.
        stated: these bytes, STATED of them, with zeros behind the file's end.
    """

    kind: int
    height: int
    width: int
    length: int = -1
    at: int = 0
    stated: bytes = bytes(STATED)


class Facts(NamedTuple):
    """What is known of N files.

    Attributes:
        sizes: (N, 2) int64, (height, width).
        kinds: (N,), DALI, PIL, UNREADABLE or GRAY.
        lengths: (N,) int64, in bytes.
        stated_at: (N,) int32, where the bytes are that state the size.
        marks: (N,) uint64, of these bytes.
        intact: (N,) bool, whether all are known to be intact.
    """

    sizes: np.ndarray
    kinds: np.ndarray
    lengths: np.ndarray
    stated_at: np.ndarray
    marks: np.ndarray
    intact: np.ndarray


class Headers:
    """(kind, height, width) of each image of a data set, read at first sight; its bytes' length then, where they state
    the size and with which bytes, and whether these were found to be of a structure that DALI and PIL read alike
    (intact.py), which is asked when DALI has read them."""

    _kinds: np.ndarray
    _keys: np.ndarray
    _sizes: np.ndarray
    _lengths: np.ndarray
    _stated_at: np.ndarray
    _marks: np.ndarray
    _intact: np.ndarray

    def __init__(self):
        self._lock = new_lock()  # loaders in several threads share it
        self._allocate(0)

    def look(self, indices: list[int], sources: Sequence[Source]) -> tuple[np.ndarray, np.ndarray]:
        """Sizes (N, 2) int64 as (height, width), and kinds (N,) of the images at ``indices`` (0 and up).

        A kind is DALI, PIL or UNREADABLE; the last is asked again the next time, for the file may be mended.
        """
        keys = np.fromiter(map(hash, sources), np.int64, len(sources))
        found = self.facts(np.asarray(indices), keys, sources.__getitem__)
        return found.sizes, found.kinds

    def facts(self, index: np.ndarray, keys: np.ndarray, source: Callable[[int], Source]) -> Facts:
        """All that is known; ``keys`` are the hashes of the sources, and ``source(i)`` is that of ``index[i]``."""
        with self._lock:
            top = int(index.max()) + 1
            if top > len(self._kinds):
                self._allocate(max(top, 2 * len(self._kinds)))
            kinds = self._kinds[index]
            unknown = (kinds == UNKNOWN) | (kinds == UNREADABLE) | (self._keys[index] != keys)
            if unknown.any():
                self._read(index[unknown], keys[unknown], [source(i) for i in np.flatnonzero(unknown).tolist()])
                kinds = self._kinds[index]
            sizes, kinds = _allowed(self._sizes[index].astype(np.int64), kinds)
            arrays = self._lengths, self._stated_at, self._marks, self._intact
            return Facts(sizes, kinds, *(array[index] for array in arrays))

    def _read(self, at: np.ndarray, keys: np.ndarray, sources: list[Source]) -> None:
        kinds, heights, widths, lengths, stated_at, stated = zip(*_read_many(sources), strict=True)
        bytes_there = np.frombuffer(b"".join(stated), np.uint8).reshape(-1, STATED)
        self._keys[at], self._kinds[at], self._sizes[at] = keys, kinds, np.array([heights, widths]).T
        self._lengths[at], self._stated_at[at], self._marks[at] = lengths, stated_at, marks(bytes_there)
        self._intact[at] = False

    def set_intact(self, index: np.ndarray | list[int]) -> None:
        with self._lock:
            self._intact[index] = True

    def use_pil(self, index: int) -> None:
        """DALI has failed on this file, or may read it otherwise."""
        with self._lock:
            self._kinds[index] = PIL

    def forget(self, index: int) -> None:
        """The file has changed."""
        with self._lock:
            self._kinds[index] = UNKNOWN

    def _allocate(self, count: int) -> None:
        old = [getattr(self, name, None) for name in _ARRAYS]
        for (name, (dtype, *shape)), values in zip(_ARRAYS.items(), old, strict=True):
            made = np.zeros((count, *shape), dtype)
            if values is not None:
                made[: len(values)] = values
            setattr(self, name, made)


# _keys: hash of the source, for data sets may change their samples
_ARRAYS: dict[str, tuple[Any, ...]] = {
    "_kinds": (np.uint8,),
    "_keys": (np.int64,),
    "_sizes": (np.int32, 2),
    "_lengths": (np.int64,),
    "_stated_at": (np.int32,),
    "_marks": (np.uint64,),
    "_intact": (np.bool_,),
}
_of_dataset: PerObject[Headers] = PerObject()


def headers_of(dataset) -> Headers:
    """The headers of a data set, shared by all loaders over it."""
    return _of_dataset.get(dataset, Headers)


def marks(stated: np.ndarray) -> np.ndarray:
    """(N,) uint64 of bytes (N, STATED). They differ where eight bytes do, and nearly always where more do."""
    return (np.ascontiguousarray(stated).view(np.uint64) * _FACTORS).sum(1, dtype=np.uint64)


def _allowed(sizes: np.ndarray, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PIL warns of an image above its limit, or refuses it; the limit may change at any time."""
    if Image.MAX_IMAGE_PIXELS:
        kinds[(kinds == DALI) & (sizes[:, 0] * sizes[:, 1] > Image.MAX_IMAGE_PIXELS)] = PIL
    return sizes, kinds


def read_header(source: Source) -> Header:
    """Of an image; Header(UNREADABLE, 1, 1) where neither walking its markers nor PIL finds a size."""
    try:
        return _read_jpeg(source) or _ask_pil(source)
    except Exception:  # any decoder's error: whoever decodes it reports it, with its name
        return Header(UNREADABLE, 1, 1)


def _read_many(sources: list[Source]) -> list[Header]:
    """One after another where that is quick (threads would only wait for Python), in threads where the disk is slow."""
    begin = time.perf_counter()
    found = [read_header(source) for source in sources[:_SAMPLE]]
    rest = sources[_SAMPLE:]
    if time.perf_counter() - begin < _SAMPLE * _SLOW:
        return found + [read_header(source) for source in rest]
    with ThreadPoolExecutor(_THREADS) as pool:
        return found + list(pool.map(read_header, rest))


def _read_jpeg(source: Source) -> Header | None:
    """ISO/IEC 10918-1 B.1.1: walk the marker segments to the frame header. None where the image is no plain JPEG."""
    with Parts(source) as parts:
        data, base, at = parts.read(4096, 0), 0, 2
        markers: dict[int, bytes] = {}
        if data[:2] != b"\xff\xd8":
            return None
        while True:
            if at + 19 > len(data):
                base, at = base + at, 0
                data = parts.read(4096, base)
                if len(data) < 19:
                    return None
            if data[at] != 0xFF:
                return None
            marker = data[at + 1]
            if marker == 0xFF:  # fill byte
                at += 1
            elif marker in _START_OF_FRAME:
                break
            else:
                if marker in _APPLICATION:
                    markers.setdefault(marker, data[at + 4 : at + 16])
                at += 2 + (data[at + 2] << 8 | data[at + 3])
        precision, components = data[at + 4], data[at + 9]
        height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
        plain = marker in _PLAIN_FRAMES and precision == 8 and height and width
        plain = plain and (components == 1 or (components == 3 and _is_ycc(markers, data[at + 10 : at + 17 : 3])))
        if not plain or (components == 1 and isinstance(source, InItsMode)):
            return None
        if _EXIF in markers and is_upright(source) and _is_turned(source):
            return None
        ends = parts.read(2, parts.size - 2) == b"\xff\xd9"
        known = ends or intact(np.frombuffer(parts.read(parts.size, 0), np.uint8))
        stated = data[at : at + STATED] if at + STATED <= len(data) else _stated(parts, base + at)
        return Header(DALI if known else PIL, height, width, parts.size, base + at, stated)


def _is_turned(source: Source) -> bool:
    """By its EXIF, or what XMP has of it."""
    with opened(source) as file, Image.open(file) as image:
        return image.getexif().get(ORIENTATION, 1) != 1


def _stated(parts: Parts, at: int) -> bytes:
    return parts.read(STATED, at).ljust(STATED, b"\0")


def _is_ycc(markers: dict[int, bytes], component_ids: bytes) -> bool:
    """Whether three components are YCbCr, by the rules of libjpeg (jdapimin.c); nvJPEG takes RGB for it, too."""
    if markers.get(_JFIF, b"").startswith(b"JFIF\0"):
        return True
    adobe = markers.get(_ADOBE, b"")
    if adobe.startswith(b"Adobe") and len(adobe) == 12:
        return adobe[11] != 0
    return component_ids != b"RGB"


def _ask_pil(source: Source) -> Header:
    with Parts(source) as parts:  # first: a file that changes before PIL has opened it is found out
        length, at = parts.size, _first_directory(parts.read(8, 0))
        stated = _stated(parts, at)
    with opened(source) as file, Image.open(file) as image:
        height, width = image.height, image.width  # what comes next may turn to other pages
        if isinstance(source, InItsMode) and image.mode != "RGB":
            return Header(GRAY if image.mode == "L" else PIL, height, width)
        if is_upright(source) and image.getexif().get(ORIENTATION, 1) != 1:
            return Header(PIL, height, width)
        same = _same_in_dali(image) and at <= _LAST_PLACE
        return Header(DALI, height, width, length, at, stated) if same else Header(PIL, height, width)


def _first_directory(head: bytes) -> int:
    """Where a TIFF's entries begin; 0 for other files."""
    if head[:4] not in (b"II*\0", b"MM\0*"):
        return 0
    return int.from_bytes(head[4:8], "little" if head.startswith(b"II") else "big")


def _same_in_dali(image: Any) -> bool:
    """Of formats other than JPEG, those that were measured to be PIL's very pixels in DALI (tests/faults/originals.py).
    The rest of what was measured is in the bytes: intact.py."""
    modes = _SAME_IN_DALI.get(image.format, ())
    if image.mode not in modes or ("exif" in image.info and image.format == "WEBP"):
        return False
    try:
        if getattr(image, "n_frames", 1) != 1:
            return False
    except Exception:  # PIL's plugins raise all kinds of what they find on further pages, which nobody asks for
        return False
    if image.format in ("BMP", "PPM"):
        size = image.fp.seek(0, os.SEEK_END)
        image.fp.seek(0)
        return is_whole_bitmap(image.fp.read(64), size)
    if image.format == "PNG":
        image.fp.seek(24)
        return image.fp.read(1) == b"\x08"  # bits: a GPU takes those of fewer for others
    return image.format != "TIFF" or (image.tile[0][0] == "raw" and image.tag_v2.get(274, 1) == 1)  # not turned
