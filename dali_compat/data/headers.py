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
from .sources import Parts, Source, opened

UNKNOWN, DALI, PIL, UNREADABLE = 0, 1, 2, 3

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PLAIN_FRAMES = (0xC0, 0xC2)  # baseline and progressive, Huffman-coded
_APPLICATION = _JFIF, _ADOBE = 0xE0, 0xEE  # APP0, APP14
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
        kind: DALI, PIL or UNREADABLE.
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
        lengths: (N,) int64, in bytes.
        stated_at: (N,) int32, where the bytes are that state the size.
        marks: (N,) uint64, of these bytes.
        intact: (N,) bool, whether all are known to be intact.
        kinds: (N,) uint8, DALI, PIL, UNREADABLE or UNKNOWN. The last that put() sets: an interrupt may stop it.
    """

    sizes: np.ndarray
    lengths: np.ndarray
    stated_at: np.ndarray
    marks: np.ndarray
    intact: np.ndarray
    kinds: np.ndarray

    @classmethod
    def empty(cls, count: int, side: type = np.int64) -> Facts:
        """Of files of which nothing is known; ``side`` is the dtype of sizes."""
        dtypes = np.int64, np.int32, np.uint64, np.bool_, np.uint8
        return cls(np.zeros((count, 2), side), *(np.zeros(count, dtype) for dtype in dtypes))

    def take(self, index: np.ndarray | slice) -> Facts:
        """Those at ``index``."""
        return Facts(*(array[index] for array in self))

    def put(self, index: np.ndarray | slice, facts: Facts) -> None:
        """Set those at ``index``."""
        for array, values in zip(self, facts, strict=True):
            array[index] = values


class Headers:
    """Facts of the images of a data set, read at first sight. Whether a file's bytes are intact (intact.py) is asked
    when DALI has read them."""

    def __init__(self):
        self._lock = new_lock()  # loaders in several threads share it
        self._facts = Facts.empty(0)
        self._keys = np.zeros(0, np.int64)  # hashes of the sources, for data sets may change their samples

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
            if top > len(self._keys):
                self._allocate(max(top, 2 * len(self._keys)))
            kinds = self._facts.kinds[index]
            unknown = (kinds == UNKNOWN) | (kinds == UNREADABLE) | (self._keys[index] != keys)
            if unknown.any():
                self._read(index[unknown], keys[unknown], [source(i) for i in np.flatnonzero(unknown).tolist()])
            found = self._facts.take(index)
        return _allowed(found._replace(sizes=found.sizes.astype(np.int64)))

    def _read(self, at: np.ndarray, keys: np.ndarray, sources: list[Source]) -> None:
        self._facts.kinds[at], self._keys[at] = UNKNOWN, keys
        self._facts.put(at, _facts(_read_many(sources)))

    def set_intact(self, index: np.ndarray | list[int]) -> None:
        with self._lock:
            self._facts.intact[index] = True

    def use_pil(self, index: int) -> None:
        """DALI has failed on this file, or may read it otherwise."""
        with self._lock:
            self._facts.kinds[index] = PIL

    def forget(self, index: int) -> None:
        """The file has changed."""
        with self._lock:
            self._facts.kinds[index] = UNKNOWN

    def _allocate(self, count: int) -> None:
        facts, keys, known = Facts.empty(count, np.int32), np.zeros(count, np.int64), slice(len(self._keys))
        facts.put(known, self._facts.take(known))
        keys[known] = self._keys
        self._facts, self._keys = facts, keys


_of_dataset: PerObject[Headers] = PerObject()


def headers_of(dataset) -> Headers:
    """The headers of a data set, shared by all loaders over it."""
    return _of_dataset.get(dataset, Headers)


def marks(stated: np.ndarray) -> np.ndarray:
    """(N,) uint64, a checksum of each row of ``stated``, (N, STATED) uint8. Rows that differ in one of their words of
    eight bytes have different ones; those that differ in more nearly always."""
    return (np.ascontiguousarray(stated).view(np.uint64) * _FACTORS).sum(1, dtype=np.uint64)


def _facts(headers: list[Header]) -> Facts:
    """What headers say of their files."""
    kinds, heights, widths, lengths, stated_at, stated = zip(*headers, strict=True)
    known = marks(np.frombuffer(b"".join(stated), np.uint8).reshape(-1, STATED))
    sizes, places = np.array([heights, widths]).T, np.array(stated_at, np.int32)
    return Facts(sizes, np.array(lengths), places, known, np.zeros(len(headers), np.bool_), np.array(kinds, np.uint8))


def _allowed(facts: Facts) -> Facts:
    """PIL warns of an image above its limit, or refuses it; the limit may change at any time."""
    if Image.MAX_IMAGE_PIXELS:
        sizes, kinds = facts.sizes, facts.kinds
        kinds[(kinds == DALI) & (sizes[:, 0] * sizes[:, 1] > Image.MAX_IMAGE_PIXELS)] = PIL
    return facts


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
        if not plain:
            return None
        ends = parts.read(2, parts.size - 2) == b"\xff\xd9"
        known = ends or intact(np.frombuffer(parts.read(parts.size, 0), np.uint8))
        stated = data[at : at + STATED] if at + STATED <= len(data) else _stated(parts, base + at)
        return Header(DALI if known else PIL, height, width, parts.size, base + at, stated)


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
