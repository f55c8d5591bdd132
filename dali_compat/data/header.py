"""Read image headers.

A header contains the size of an image, and whether DALI decodes it to PIL's pixels.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from .intact import intact, is_intact, is_whole_bitmap
from .sources import ORIENTATION, RandomAccess, Source, ctime_of, is_record, is_upright, opened

UNKNOWN, DALI, PIL, UNREADABLE = 0, 1, 2, 3

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PLAIN_FRAMES = (0xC0, 0xC2)  # baseline and progressive, Huffman-coded
_APPLICATION = _JFIF, _EXIF, _ADOBE = 0xE0, 0xE1, 0xEE  # APP0, APP1, APP14
_SEVERAL, _OF_SEVERAL = 0xE2, b"MPF\0"  # APP2 segment of a file with several pictures
_SAME_IN_DALI = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB"),
    "PPM": ("L", "RGB"),
    "WEBP": ("RGB", "RGBA", "RGBX"),
}
SIZE_FIELD = 48  # length of Header.size_field in bytes
GRAY_JPEG = 1  # a value of Header.chroma
_BASELINE, _ENGINES_LONGEST, _SAMPLINGS = 0xC0, 16384, (0x11, 0x21, 0x22, 0x12)
_MOST_BUFFERED = 4 << 20  # bytes; larger files do not use the shared buffer
ON_ITS_SIDE = 5  # EXIF orientations from 5 on swap height and width


class Header(NamedTuple):
    """Size, decoder and other properties of an encoded image."""

    kind: int  # DALI, PIL or UNREADABLE
    height: int  # in pixels, after rotation
    width: int
    length: int = -1  # of the file, in bytes
    at: int = 0  # position of size_field in the file
    # bytes that contain the size: a JPEG's frame header, or the first bytes of another file; padded with zeros
    size_field: bytes = bytes(SIZE_FIELD)
    intact: bool = False  # whether all bytes passed the check of intact()
    # 16 * horizontal + vertical chroma subsampling of a JPEG, or GRAY_JPEG; 0 if no JPEG engine supports it
    chroma: int = 0
    ctime: int = 0  # of the file in ns; 0 if there is no file
    orientation: int = 0  # EXIF orientation (1 to 8) to apply; 0 if images are not rotated


def read_header(source: Source | np.ndarray) -> Header:
    """Read the header of an encoded image. Return Header(UNREADABLE, 1, 1) if that fails."""
    try:
        return _read_jpeg(source) or _read_by_pil(source)
    except Exception:  # any decoder's error; decoding the image raises it again
        return Header(UNREADABLE, 1, 1)


class _Buffer(threading.local):
    """Reusable memory for reading files. Allocating an array per file would take twice as long as reading it."""

    memory = np.empty(0, np.uint8)

    def read(self, path: str) -> np.ndarray:
        """Return the bytes of a file as uint8. The next call may overwrite the array."""
        with open(path, "rb", buffering=0) as file:
            size, end = os.fstat(file.fileno()).st_size, 0
            if size > _MOST_BUFFERED:
                return np.fromfile(file, np.uint8)
            if size > len(self.memory):
                self.memory = np.empty(2 * size, np.uint8)
            while end < size and (count := file.readinto(self.memory[end:size].data)):
                end += count
        return self.memory[:end]


_BUFFER = _Buffer()


def checked_header(source: str | np.ndarray) -> Header:
    """Return the header of an image. If the image's bytes are not intact, ``kind`` is PIL."""
    ctime, data = 0, source
    try:
        if isinstance(source, str):  # read before the bytes, so that a change in between is detected
            ctime, data = ctime_of(source), _BUFFER.read(source)
    except (OSError, MemoryError):
        return Header(UNREADABLE, 1, 1)
    header = read_header(data if type(source) is str else source)  # an Upright itself, for its orientation
    if header.kind != DALI:
        return header
    known = header.intact or is_intact(data)
    return header._replace(intact=True, ctime=ctime) if known else header._replace(kind=PIL)


class _Frame(NamedTuple):
    """Frame header of a JPEG. It contains the size."""

    data: bytes  # the part of the file that contains the frame header
    base: int  # position of ``data`` in the file
    at: int  # position of the frame header in ``data``
    markers: dict[int, bytes]  # first bytes of the application segments before the frame header, keyed by marker
    precision: int
    height: int
    width: int
    components: int

    @property
    def is_plain(self) -> bool:
        """True if the JPEG is 8-bit and Huffman-coded, and has one or three components."""
        plain = self.data[self.at + 1] in _PLAIN_FRAMES and self.precision == 8 and self.components in (1, 3)
        return bool(plain and self.height and self.width)


def _frame_of(encoded: RandomAccess) -> _Frame | None:
    """Return the frame header of a JPEG (ISO/IEC 10918-1 B.1.1), or None if there is none."""
    data, base, at = encoded.read(4096, 0), 0, 2
    markers: dict[int, bytes] = {}
    if data[:2] != b"\xff\xd8":
        return None
    while True:
        if at + 19 > len(data):
            base, at = base + at, 0
            data = encoded.read(4096, base)
            if len(data) < 19:
                return None
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _START_OF_FRAME:
            return _Frame(data, base, at, markers, *struct.unpack_from(">BHHB", data, at + 4))
        else:
            if marker in _APPLICATION or (marker == _SEVERAL and data[at + 4 : at + 8] == _OF_SEVERAL):
                markers.setdefault(marker, data[at + 4 : at + 16])
            at += 2 + (data[at + 2] << 8 | data[at + 3])


def _read_jpeg(source: Source | np.ndarray) -> Header | None:
    """Return the header of an 8-bit JPEG in gray or YCbCr, or None for other images."""
    with RandomAccess(source) as encoded:
        frame = _frame_of(encoded)
        if frame is None:
            return None
        data, base, at, markers, _, height, width, components = frame
        plain = frame.is_plain and (components == 1 or _is_ycc(markers, data[at + 10 : at + 17 : 3]))
        if not plain:
            return None
        ends = encoded.read(2, encoded.size - 2) == b"\xff\xd9"
        known = ends or intact(np.frombuffer(encoded.read(encoded.size, 0), np.uint8))
        size_field = data[at : at + SIZE_FIELD]
        if len(size_field) < SIZE_FIELD:
            size_field = _read_size_field(encoded, base + at)
        orientation = int(is_upright(source))
        if orientation and _EXIF in markers:
            with opened(source) as file, Image.open(file) as image:
                orientation = _orientation(image)
        chroma = _chroma(size_field, components, max(height, width)) if orientation <= 1 else 0
    kind, sides = DALI if known else PIL, _after_rotation(height, width, orientation)
    return Header(kind, *sides, encoded.size, base + at, size_field, False, chroma, encoded.ctime, orientation)


def _chroma(frame: bytes, components: int, longest: int) -> int:
    """Return Header.chroma of a JPEG, or 0 if the JPEG is large, unusually subsampled or not baseline."""
    if frame[1] != _BASELINE or longest > _ENGINES_LONGEST:
        return 0
    luma, *others = frame[11 : 11 + 3 * components : 3]
    if not others:
        return GRAY_JPEG
    return luma if others == [0x11, 0x11] and luma in _SAMPLINGS else 0


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation (1 to 8) that ImageOps.exif_transpose() applies. Raise the same errors as it does."""
    orientation = image.getexif().get(ORIENTATION, 1)
    if orientation not in range(2, 9):
        return 1
    small = Image.new("L", (1, 1))
    small.info = image.info.copy()
    ImageOps.exif_transpose(small)  # raises if the rest of the EXIF cannot be rewritten
    return int(orientation)


def _after_rotation(height: int, width: int, orientation: int) -> tuple[int, int]:
    return (width, height) if orientation >= ON_ITS_SIDE else (height, width)


def _read_size_field(encoded: RandomAccess, at: int) -> bytes:
    return encoded.read(SIZE_FIELD, at).ljust(SIZE_FIELD, b"\0")


def _is_ycc(markers: dict[int, bytes], component_ids: bytes) -> bool:
    """Return True if libjpeg treats a JPEG's three components as YCbCr (jdapimin.c). nvJPEG always does."""
    if markers.get(_JFIF, b"").startswith(b"JFIF\0"):
        return True
    adobe = markers.get(_ADOBE, b"")
    if adobe.startswith(b"Adobe") and len(adobe) == 12:
        return adobe[11] != 0
    return component_ids != b"RGB"


def _read_by_pil(source: Source | np.ndarray) -> Header:
    with RandomAccess(source) as encoded:  # read first, so that a change before PIL opens the file is detected
        length, ctime, size_field = encoded.size, encoded.ctime, _read_size_field(encoded, 0)
    with opened(source) as file, Image.open(file) as image:
        height, width = image.height, image.width  # later calls may move to another page
        orientation = _orientation(image) if is_upright(source) else 0
        height, width = _after_rotation(height, width, orientation)
        if orientation > 1 and image.format != "PNG":
            return Header(PIL, height, width)
        whole = image.format == "PNG" and is_intact(source.bytes() if is_record(source) else source)
        same = _same_in_dali(image) and (whole or image.format != "PNG")
    known = length, 0, size_field, whole, 0, ctime, orientation
    return Header(DALI, height, width, *known) if same else Header(PIL, height, width)


def _same_in_dali(image: Any) -> bool:
    """Return True if DALI decodes an image to exactly PIL's pixels. The image must not be a JPEG."""
    modes = _SAME_IN_DALI.get(image.format, ())  # measured with tests/faults/originals.py
    if image.mode not in modes or ("exif" in image.info and image.format == "WEBP"):
        return False
    try:
        if getattr(image, "n_frames", 1) != 1:
            return False
    except Exception:  # PIL's plugins raise various errors when they count the pages
        return False
    if image.format in ("BMP", "PPM"):
        size = image.fp.seek(0, os.SEEK_END)
        image.fp.seek(0)
        return is_whole_bitmap(image.fp.read(64), size)
    if image.format == "PNG":
        image.fp.seek(24)
        return image.fp.read(1) == b"\x08"  # bit depth; a GPU decodes lower ones differently
    return True
