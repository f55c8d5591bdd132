"""Image headers: the size of every file before it is decoded, and whether DALI decodes it as PIL does.

From sizes draws/ computes all geometry on the host. Reading a JPEG's takes about 10 us, once a file; the answers are kept for
the life of the data set. Which files need PIL was measured on 400 unusual images.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from .intact import intact, is_whole_bitmap
from .sources import Parts, Source, is_record, opened

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


class Headers:
    """(kind, height, width) of each image of a data set, read at first sight; its bytes' length then, and whether these
    were found to be of a structure that DALI and PIL read alike (intact.py), which is asked when DALI has read them."""

    def __init__(self):
        self._lock = threading.RLock()  # loaders in several threads share it; re-entrant, as route.py has it
        self._allocate(0)

    def look(self, indices: list[int], sources: list[Source]) -> tuple[np.ndarray, np.ndarray]:
        """Sizes (N, 2) int64 as (height, width), and kinds (N,) of the images at ``indices`` (0 and up).

        A kind is DALI, PIL or UNREADABLE; the last is asked again the next time, for the file may be mended.
        """
        with self._lock:
            return self._look(indices, sources)

    def _look(self, indices, sources):
        if max(indices) >= len(self._kinds):
            self._allocate(max(max(indices) + 1, 2 * len(self._kinds)))
        index = np.asarray(indices)
        keys = np.fromiter(map(hash, sources), np.int64, len(sources))
        kinds = self._kinds[index]
        unknown = np.flatnonzero((kinds == UNKNOWN) | (kinds == UNREADABLE) | (self._keys[index] != keys))
        if len(unknown):
            todo = [sources[i] for i in unknown]
            lengths = list(map(_length, todo))  # first: a file that changes between the two is found out
            found = np.array(_read_many(todo), np.int32).reshape(-1, 3)
            at = index[unknown]
            self._keys[at], self._kinds[at], self._sizes[at] = keys[unknown], found[:, 0], found[:, 1:]
            self._lengths[at], self._intact[at] = lengths, False
        return _allowed(self._sizes[index].astype(np.int64), self._kinds[index])

    def bytes(self, indices: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Lengths in bytes (N,) int64, and whether these bytes are known to be intact (N,) bool."""
        return self._lengths[indices], self._intact[indices]

    def set_intact(self, indices: list[int]) -> None:
        with self._lock:
            self._intact[indices] = True

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
        for (name, (dtype, *shape)), values in zip(_ARRAYS.items(), old):
            made = np.zeros((count, *shape), dtype)
            if values is not None:
                made[: len(values)] = values
            setattr(self, name, made)


# _keys: hash of the source, for data sets may change their samples
_ARRAYS = {
    "_kinds": (np.uint8,),
    "_keys": (np.int64,),
    "_sizes": (np.int32, 2),
    "_lengths": (np.int64,),
    "_intact": (np.bool_,),
}
_of_dataset: dict[int, tuple[weakref.ref, Headers]] = {}  # by id(): a data set may not be hashable


def headers_of(dataset) -> Headers:
    """The headers of a data set, shared by all loaders over it."""
    key = id(dataset)
    reference, headers = _of_dataset.get(key, (None, None))
    if reference is None or reference() is not dataset:
        headers = Headers()
        _of_dataset[key] = weakref.ref(dataset, lambda gone: _forget(key, gone)), headers
    return headers


def _forget(key: int, gone: weakref.ref) -> None:
    if key in _of_dataset and _of_dataset[key][0] is gone:
        del _of_dataset[key]


def _allowed(sizes: np.ndarray, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PIL warns of an image above its limit, or refuses it; the limit may change at any time."""
    if Image.MAX_IMAGE_PIXELS:
        kinds[(kinds == DALI) & (sizes[:, 0] * sizes[:, 1] > Image.MAX_IMAGE_PIXELS)] = PIL
    return sizes, kinds


def read_header(source: Source) -> tuple[int, int, int]:
    """(kind, height, width) of an image; (UNREADABLE, 1, 1) where neither walking its markers nor PIL finds a size."""
    try:
        return _read_jpeg(source) or _ask_pil(source)
    except Exception:  # any decoder's error: whoever decodes it reports it, with its name
        return UNREADABLE, 1, 1


def _length(source: Source) -> int:
    """In bytes; -1 where there is none."""
    try:
        return len(source.bytes()) if is_record(source) else os.stat(source).st_size
    except OSError:  # whoever reads it says so
        return -1


def _read_many(sources: list[Source]) -> list[tuple[int, int, int]]:
    """One after another where that is quick (threads would only wait for Python), in threads where the disk is slow."""
    begin = time.perf_counter()
    found = [read_header(source) for source in sources[:_SAMPLE]]
    rest = sources[_SAMPLE:]
    if time.perf_counter() - begin < _SAMPLE * _SLOW:
        return found + [read_header(source) for source in rest]
    with ThreadPoolExecutor(_THREADS) as pool:
        return found + list(pool.map(read_header, rest))


def _read_jpeg(source: Source) -> tuple[int, int, int] | None:
    """ISO/IEC 10918-1 B.1.1: walk the marker segments to the frame header. None where the image is no plain JPEG."""
    with Parts(source) as parts:
        data, base, at, markers = parts.read(4096, 0), 0, 2, {}
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
    return (DALI if known else PIL), height, width


def _is_ycc(markers: dict[int, bytes], component_ids: bytes) -> bool:
    """Whether three components are YCbCr, by the rules of libjpeg (jdapimin.c); nvJPEG takes RGB for it, too."""
    if markers.get(_JFIF, b"").startswith(b"JFIF\0"):
        return True
    adobe = markers.get(_ADOBE, b"")
    if adobe.startswith(b"Adobe") and len(adobe) == 12:
        return adobe[11] != 0
    return component_ids != b"RGB"


def _ask_pil(source: Source) -> tuple[int, int, int]:
    with opened(source) as file, Image.open(file) as image:
        height, width = image.height, image.width  # what comes next may turn to other pages
        return (DALI if _same_in_dali(image) else PIL), height, width


def _same_in_dali(image: Image.Image) -> bool:
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
