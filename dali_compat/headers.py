"""Image headers: the size of every file before it is decoded, and whether DALI decodes it as PIL does.

Sizes let params/ compute all geometry on the host. Reading a JPEG's takes about 10 us, once a file; the answers are
kept for the life of the data set. The list of files that need PIL was measured on 400 unusual images (PARITY.md).
"""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image, ImageFile

from .sources import Parts, Source, opened

UNKNOWN, DALI, PIL, UNREADABLE = 0, 1, 2, 3

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PLAIN_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive, Huffman-coded; PIL decodes no others but C9, CA
_APPLICATION = _JFIF, _ADOBE = 0xE0, 0xEE  # APP0, APP14
_SAMPLE, _SLOW, _THREADS = 16, 200e-6, 32  # files to time, seconds a file, threads


class Headers:
    """(kind, height, width) of each image of a data set, read at first sight."""

    def __init__(self):
        self._lock = threading.Lock()  # loaders in several threads share it
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
            found = np.array(_read_many(todo), np.int32).reshape(-1, 3)
            at = index[unknown]
            self._keys[at], self._kinds[at], self._sizes[at] = keys[unknown], found[:, 0], found[:, 1:]
        return self._sizes[index].astype(np.int64), self._kinds[index]

    def use_pil(self, index: int) -> None:
        """DALI has failed on this file."""
        with self._lock:
            self._kinds[index] = PIL

    def _allocate(self, count: int) -> None:
        old = getattr(self, "_kinds", None), getattr(self, "_keys", None), getattr(self, "_sizes", None)
        self._kinds = np.zeros(count, np.uint8)
        self._keys = np.zeros(count, np.int64)  # hash of the source: data sets may change their samples
        self._sizes = np.zeros((count, 2), np.int32)
        if old[0] is not None:
            for new, values in zip((self._kinds, self._keys, self._sizes), old):
                new[: len(values)] = values


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


def read_header(source: Source) -> tuple[int, int, int]:
    """(kind, height, width) of an image; (UNREADABLE, 1, 1) where neither walking its markers nor PIL finds a size."""
    try:
        return _read_jpeg(source) or _ask_pil(source)
    except Exception:  # any decoder's error: whoever decodes it reports it, with its name
        return UNREADABLE, 1, 1


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
        ends = parts.read(2, parts.size - 2) == b"\xff\xd9"
    if not plain or (Image.MAX_IMAGE_PIXELS and height * width > Image.MAX_IMAGE_PIXELS):
        return None  # PIL warns of a decompression bomb, or refuses it
    return (DALI if ends or _pil_decodes(source) else PIL), height, width


def _is_ycc(markers: dict[int, bytes], component_ids: bytes) -> bool:
    """Whether three components are YCbCr, by the rules of libjpeg (jdapimin.c); nvJPEG takes RGB for it, too."""
    if markers.get(_JFIF, b"").startswith(b"JFIF\0"):
        return True
    adobe = markers.get(_ADOBE, b"")
    if adobe.startswith(b"Adobe") and len(adobe) == 12:
        return adobe[11] != 0
    return component_ids != b"RGB"


def _pil_decodes(source: Source) -> bool:
    """Whether a JPEG without an end marker is whole. A decoder that reads a window alone, or a GPU, may not notice."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        return False  # the user wants PIL's idea of the missing part
    try:
        with opened(source) as file, Image.open(file) as image:
            image.load()
        return True
    except Exception:  # PIL's plugins raise OSError, SyntaxError, ValueError and more
        return False


def _ask_pil(source: Source) -> tuple[int, int, int]:
    with opened(source) as file, Image.open(file) as image:
        return (DALI if _same_in_dali(image) else PIL), image.height, image.width


def _same_in_dali(image: Image.Image) -> bool:
    """Formats other than JPEG that DALI decodes to PIL's very pixels (PARITY: measured)."""
    if getattr(image, "n_frames", 1) != 1:
        return False
    if image.format == "PNG":
        image.fp.seek(24)
        bit_depth = image.fp.read(1)
        return bit_depth != b"\x10" and image.mode in ("1", "L", "LA", "P", "RGB", "RGBA")
    if image.format == "BMP":
        return image.mode in ("1", "L", "P", "RGB")
    if image.format == "PPM":
        return image.mode in ("L", "RGB") and image.tile[0][0] == "raw"  # 8 bits, maximum 255
    if image.format == "WEBP":
        return "exif" not in image.info
    if image.format == "TIFF":
        orientation, bits = image.tag_v2.get(274, 1), image.tag_v2.get(258, (1,))
        plain = image.tile[0][0] == "raw"  # damaged LZW data passes DALI, and not PIL
        return plain and image.mode in ("L", "RGB") and orientation == 1 and set(bits) == {8}
    return False
