"""An image's header: its size before it is decoded, and whether DALI decodes it as PIL does.

Reading a JPEG's takes about 10 us. Which files need PIL was measured on 400 unusual images.
"""

from __future__ import annotations

import os
import struct
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from .intact import intact, is_intact, is_whole_bitmap
from .sources import ORIENTATION, RandomAccess, Source, is_record, is_upright, opened

UNKNOWN, DALI, PIL, UNREADABLE = 0, 1, 2, 3

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PLAIN_FRAMES = (0xC0, 0xC2)  # baseline and progressive, Huffman-coded
_APPLICATION = _JFIF, _EXIF, _ADOBE = 0xE0, 0xE1, 0xEE  # APP0, APP1, APP14
_SEVERAL, _OF_SEVERAL = 0xE2, b"MPF\0"  # APP2, of files of several pictures
_SAME_IN_DALI = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB"),
    "PPM": ("L", "RGB"),
    "WEBP": ("RGB", "RGBA", "RGBX"),
}
STATED = 48  # bytes that state an image's sides: a JPEG's frame header, the others' first bytes
GRAY_JPEG = 1  # as Header's chroma
_BASELINE, _ENGINES_LONGEST, _SAMPLINGS = 0xC0, 16384, (0x11, 0x21, 0x22, 0x12)
ON_ITS_SIDE = 5  # an orientation: this one, and those above


class Header(NamedTuple):
    """A file's header."""

    kind: int  # DALI, PIL or UNREADABLE
    height: int  # in pixels, as it is shown where it is turned
    width: int
    length: int = -1  # of the file, in bytes
    at: int = 0  # where the bytes are that state its sides
    stated: bytes = bytes(STATED)  # these bytes, with zeros behind the file's end
    intact: bool = False  # all bytes are known to be intact
    chroma: int = 0  # of a JPEG for a GPU's engine: 16 * pixels across + pixels down of a sample, or GRAY_JPEG; else 0
    written: int = 0  # when the file was changed last, as sources.written() tells; 0 of what is no file
    orientation: int = 0  # EXIF's number, 1 to 8, of an image that is turned as its EXIF says; 0 of others


def read_header(source: Source | np.ndarray) -> Header:
    """The header of an image, or of its bytes; Header(UNREADABLE, 1, 1) where neither its markers nor PIL tell a
    size."""
    try:
        return _read_jpeg(source) or _ask_pil(source)
    except Exception:  # any decoder's error: whoever decodes it reports it, with its name
        return Header(UNREADABLE, 1, 1)


def jpeg_of_one_picture(source: Source | np.ndarray) -> tuple[int, int, int] | None:
    """Returns (components, height, width) of a plain JPEG, by its markers, in a tenth of Pillow's time; None of other
    files. Raises OSError if it cannot be read."""
    with RandomAccess(source) as encoded:
        frame = _frame_of(encoded)
        if frame is None or _SEVERAL in frame.markers or not frame.is_plain:
            return None
        return frame.components, frame.height, frame.width


class _Frame(NamedTuple):
    """A JPEG's frame header."""

    data: bytes  # bytes from ``base`` on that were read
    base: int
    at: int  # where it begins in these
    markers: dict[int, bytes]  # what comes before it
    precision: int
    height: int
    width: int
    components: int

    @property
    def is_plain(self) -> bool:
        """Returns whether it is Huffman-coded, of 8 bits, gray or of three components."""
        plain = self.data[self.at + 1] in _PLAIN_FRAMES and self.precision == 8 and self.components in (1, 3)
        return bool(plain and self.height and self.width)


def _frame_of(encoded: RandomAccess) -> _Frame | None:
    """ISO/IEC 10918-1 B.1.1: walks the marker segments to the frame header. Returns None where there is none."""
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
    """None where the image is no plain JPEG."""
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
        stated = data[at : at + STATED] if at + STATED <= len(data) else _stated(encoded, base + at)
        orientation = int(is_upright(source))
        if orientation and _EXIF in markers:
            with opened(source) as file, Image.open(file) as image:
                orientation = _orientation(image)
        chroma = _chroma(stated, components, max(height, width)) if orientation <= 1 else 0
    kind, sides = DALI if known else PIL, _shown(height, width, orientation)
    return Header(kind, *sides, encoded.size, base + at, stated, False, chroma, encoded.written, orientation)


def _chroma(frame: bytes, components: int, longest: int) -> int:
    """Returns Header's chroma, by a frame header. The engine takes baseline JPEGs, and chroma of the samplings that are
    usual."""
    if frame[1] != _BASELINE or longest > _ENGINES_LONGEST:
        return 0
    luma, *others = frame[11 : 11 + 3 * components : 3]
    if not others:
        return GRAY_JPEG
    return luma if others == [0x11, 0x11] and luma in _SAMPLINGS else 0


def _orientation(image: Image.Image) -> int:
    """Returns the number, 1 to 8, by which ImageOps.exif_transpose() turns an image: its EXIF's, or its XMP's. Raises
    what that does."""
    stated = image.getexif().get(ORIENTATION, 1)
    if stated not in range(2, 9):
        return 1
    small = Image.new("L", (1, 1))
    small.info = image.info.copy()
    ImageOps.exif_transpose(small)  # which writes the rest of the EXIF anew
    return int(stated)


def _shown(height: int, width: int, orientation: int) -> tuple[int, int]:
    """Returns the (height, width) of an image that is turned."""
    return (width, height) if orientation >= ON_ITS_SIDE else (height, width)


def _stated(encoded: RandomAccess, at: int) -> bytes:
    return encoded.read(STATED, at).ljust(STATED, b"\0")


def _is_ycc(markers: dict[int, bytes], component_ids: bytes) -> bool:
    """Returns whether three components are YCbCr, by the rules of libjpeg (jdapimin.c); nvJPEG takes RGB for it,
    too."""
    if markers.get(_JFIF, b"").startswith(b"JFIF\0"):
        return True
    adobe = markers.get(_ADOBE, b"")
    if adobe.startswith(b"Adobe") and len(adobe) == 12:
        return adobe[11] != 0
    return component_ids != b"RGB"


def _ask_pil(source: Source | np.ndarray) -> Header:
    with RandomAccess(source) as encoded:  # first: a file that changes before PIL has opened it is found out
        length, changed, stated = encoded.size, encoded.written, _stated(encoded, 0)
    with opened(source) as file, Image.open(file) as image:
        height, width = image.height, image.width  # what comes next may turn to other pages
        orientation = _orientation(image) if is_upright(source) else 0
        height, width = _shown(height, width, orientation)
        if orientation > 1 and image.format != "PNG":
            return Header(PIL, height, width)
        whole = image.format == "PNG" and is_intact(source.bytes() if is_record(source) else source)
        same = _same_in_dali(image) and (whole or image.format != "PNG")
    known = length, 0, stated, whole, 0, changed, orientation
    return Header(DALI, height, width, *known) if same else Header(PIL, height, width)


def _same_in_dali(image: Any) -> bool:
    """Returns whether DALI gives PIL's very pixels of an image that is no JPEG, as was measured
    (tests/faults/originals.py). The rest of what was measured is in the bytes: intact.py."""
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
    return True
