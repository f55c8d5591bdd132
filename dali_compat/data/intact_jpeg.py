"""Check that a JPEG is complete (ISO/IEC 10918-1, annexes B and G), and that all decoders read it in the same way."""

from __future__ import annotations

import io
import struct
from functools import lru_cache
from operator import mul

import numpy as np
from PIL import Image

_EOI, _SOS, _DQT, _DHT, _DRI, _COMMENT = 0xD9, 0xDA, 0xDB, 0xC4, 0xDD, 0xFE
_BASELINE, _PROGRESSIVE = 0xC0, 0xC2
_APP0, _APP2, _APP13, _APP14, _APP15 = 0xE0, 0xE2, 0xED, 0xEE, 0xEF
_SAMPLINGS = {
    (0x11,),
    *((luma, 0x11, 0x11) for luma in (0x11, 0x21, 0x12, 0x22)),
}  # sampling factors, 16 * horizontal + vertical, per component
_SHARES = [1 << 16 - size for size in range(1, 17)]  # part of the code space that a code of 1 to 16 bits takes
_ALL = [0] * 64  # entry of Jpeg._left for a component whose 64 coefficients are complete
_DC_SYMBOLS = bytes(range(12))
_AC_SYMBOLS = bytes(16 * run + size for run in range(16) for size in range(11))


class UnknownStructure(Exception):
    """Raised for a file that decoders may read in different ways."""


def require(known) -> None:
    if not known:
        raise UnknownStructure


class Jpeg:
    """Parser of a JPEG's segments. It raises UnknownStructure for a segment that decoders may treat differently."""

    def __init__(self, data: np.ndarray):
        self._data, self._view = data, data.data
        marks = (data[:-1] == 0xFF).view(np.uint8)
        self._marks = np.minimum(marks, data[1:], out=marks).view(np.bool_)  # True at 0xFF before a nonzero byte
        self._frame = self._interval = 0
        self._seen: set = set()  # segments that must not be repeated
        self._quantisers: set[int] = set()
        self._huffman: set[int] = set()
        self._identifiers = b""
        self._samplings: list[tuple[int, int]] = []  # (horizontal, vertical) factors, per component
        self._left: list[list] = []  # number of unsent low bits, per component and coefficient; None if none was sent
        self._ask_pillow = False

    def is_whole(self) -> bool:
        """Return True if the JPEG is complete, and all decoders read it in the same way.

        Otherwise return False or raise an error. UnknownStructure means that decoders may read it differently.
        IndexError or struct.error means that the file ends early.
        """
        at = 2
        while True:
            require(self._view[at] == 0xFF)
            marker = self._view[at + 1]
            if marker == _EOI:
                break
            end = at + 2 + (self._view[at + 2] << 8 | self._view[at + 3])
            if end < at + 4 or end > len(self._view):
                return False
            content = self._view[at + 4 : end]
            if marker == _SOS:
                at = self._scan_end(end, *self._begin_scan(bytes(content)))
                require(self._frame != _BASELINE or self._view[at + 1] == _EOI)
            else:
                self._segment(marker, content)
                at = end
        done = self._left and all(left == _ALL for left in self._left)
        return bool(done) and (not self._ask_pillow or _pillow_opens(self._data))

    def _segment(self, marker: int, content: memoryview) -> None:
        if _APP0 <= marker <= _APP15:
            self._application(marker, bytes(content))
        elif marker == _DHT:
            self._define_huffman(bytes(content))
        elif marker == _DQT:
            self._define_quantisers(bytes(content))
        elif marker in (_BASELINE, _PROGRESSIVE):
            self._begin_frame(marker, bytes(content))
        elif marker == _DRI:
            self._once(marker)
            (self._interval,) = struct.unpack(">H", content)
        else:
            require(marker == _COMMENT)

    def _once(self, what) -> None:
        require(what not in self._seen)
        self._seen.add(what)

    def _application(self, marker: int, content: bytes) -> None:
        """Check an application segment. JFIF and Adobe segments must precede the frame header."""
        # JFIF and Adobe segments determine the color space; header.py reads only those before the frame header
        if marker == _APP0 and content.startswith(b"JFIF"):
            require(content.startswith(b"JFIF\0") and len(content) >= 14 and not self._frame)
            self._once(_APP0)
        elif marker == _APP14 and content.startswith(b"Adobe"):
            require(len(content) >= 12 and not self._frame)
            self._once(_APP14)
        elif marker == _APP2 and content.startswith(b"ICC_PROFILE\0"):
            require(len(content) >= 14)
        elif marker == _APP2 and content.startswith(b"MPF\0"):
            self._ask_pillow = True  # Pillow parses such segments, and rejects some
        elif marker == _APP13 and content.startswith(b"Phot") and not _is_whole_photoshop(content):
            self._ask_pillow = True

    def _define_quantisers(self, content: bytes) -> None:
        require(content and len(content) % 65 == 0 and not self._left)
        for at in range(0, len(content), 65):
            require(content[at] <= 3 and 0 not in content[at + 1 : at + 65])
            self._once((_DQT, content[at]))
            self._quantisers.add(content[at])

    def _define_huffman(self, content: bytes) -> None:
        tables = _huffman_tables(content)
        if tables is None:
            raise UnknownStructure
        if not self._left:
            for table in tables:
                self._once((_DHT, table))
        self._huffman.update(tables)

    def _begin_frame(self, marker: int, content: bytes) -> None:
        self._once("frame")
        precision, self._height, self._width, count = struct.unpack_from(">BHHB", content)
        require(precision == 8 and self._height and self._width and len(content) == 6 + 3 * count)
        identifiers, samplings, tables = content[6::3], tuple(content[7::3]), content[8::3]
        require(samplings in _SAMPLINGS and len(set(identifiers)) == count)
        self._frame, self._tables, self._identifiers = marker, tables, identifiers
        self._samplings = [(sampling >> 4, sampling & 15) for sampling in samplings]

    def _begin_scan(self, header: bytes) -> tuple[list[int], int, int]:
        """Check a scan header (B.2.3), and return (component indices, first coefficient, last coefficient)."""
        count = header[0]
        require(self._frame and len(header) == 4 + 2 * count)
        selected = [self._identifiers.find(one) for one in header[1 : 1 + 2 * count : 2]]
        require(selected and selected[0] >= 0 and selected == sorted(set(selected)))
        first, last, high, low = header[-3], header[-2], header[-1] >> 4, header[-1] & 15
        for tables in header[2 : 2 + 2 * count : 2]:
            self._require_tables(tables, first, last, high)
        if not self._left:
            require(self._quantisers.issuperset(self._tables))
        if self._frame == _BASELINE:
            require((first, last, high, low, count) == (0, 63, 0, 0, len(self._identifiers)) and not self._left)
            self._left = [_ALL] * count
        else:
            self._left = self._left or [[None] * 64 for _ in self._identifiers]
            require(last == 0 if first == 0 else first <= last <= 63 and count == 1)
            for component in selected:
                self._progress(self._left[component], first, last, high, low)
        return selected, first, last

    def _require_tables(self, tables: int, first: int, last: int, high: int) -> None:
        """Check that the Huffman tables of a scan are defined. A scan that refines DC coefficients needs none."""
        require(first or high or tables >> 4 in self._huffman)
        require(last == 0 or (0x10 | tables & 15 in self._huffman and tables & 15 < 16))

    def _progress(self, left: list, first: int, last: int, high: int, low: int) -> None:
        """Check that a progressive scan sends the next bits of its coefficients (G.1.1.1).

        The first scan of a coefficient omits its low bits. Each later scan sends one of them. DC is sent before AC.
        """
        band = left[first : last + 1]
        require(low <= 13 if high == 0 else low == high - 1)
        require(band.count(high or None) == len(band) and (first == 0 or left[0] is not None))
        left[first : last + 1] = [low] * len(band)

    def _scan_end(self, start: int, selected: list[int], first: int, last: int) -> int:
        """Return the position after the coded data of a scan. Check its length and its restart markers."""
        units, blocks = self._units(selected)
        require(start < len(self._marks))
        end = self._restarts_end(start, units) if self._interval else start + int(self._marks[start:].argmax())
        bits = blocks * (2 if first == 0 < last else first == 0)  # per block, at least one for DC and one for its end
        require(8 * (end - start) >= bits)
        return end

    def _restarts_end(self, start: int, units: int) -> int:
        """Return the position of the marker after a scan. Check the number and order of its restart markers."""
        at = np.flatnonzero(self._marks[start:])[: -(-units // self._interval)] + start
        codes = self._data[at + 1]
        in_order = 0xD0 + np.arange(len(at) - 1) % 8
        require(len(at) == -(-units // self._interval) and np.array_equal(codes[:-1], in_order))
        return int(at[-1])

    def _units(self, selected: list[int]) -> tuple[int, int]:
        """Return how many minimum coded units, and how many blocks, a scan has (A.2)."""
        widest, highest = self._samplings[0]  # in all known samplings, the first component has the most samples
        if len(selected) > 1:
            units = -(-self._width // (8 * widest)) * -(-self._height // (8 * highest))
            return units, units * sum(across * down for across, down in map(self._samplings.__getitem__, selected))
        across, down = self._samplings[selected[0]]
        units = -(-self._width * across // (8 * widest)) * -(-self._height * down // (8 * highest))
        return units, units


def _is_whole_photoshop(content: bytes) -> bool:
    """Return True if all image resource blocks in a segment are complete (Adobe Photoshop File Formats)."""
    at = len(b"Photoshop 3.0\0")
    try:
        while content[at : at + 4] == b"8BIM":
            name = content[at + 6]
            at += 7 + name
            at += at % 2
            (size,) = struct.unpack_from(">I", content, at)
            at += 4 + size
            at += at % 2
    except (IndexError, struct.error):
        return False
    return at in (len(content), len(content) + 1)


@lru_cache(maxsize=64)  # most files use the standard's tables
def _huffman_tables(content: bytes) -> tuple[int, ...] | None:
    """Return the identifiers of the Huffman tables in a segment (B.2.4.2), or None if a table is invalid.

    An identifier is one byte with the table's class and destination: 0 or 1 for DC tables, 16 or 17 for AC tables.
    """
    found, at = [], 0
    while at < len(content):
        table, lengths = content[at], content[at + 1 : at + 17]
        symbols = content[at + 17 : at + 17 + sum(lengths)]
        valid = _AC_SYMBOLS if table & 16 else _DC_SYMBOLS
        right = not table & ~0x11 and 0 < len(symbols) == sum(lengths)
        if not right or symbols.translate(None, valid) or not _codes_fit(lengths):
            return None
        found.append(table)
        at += 17 + len(symbols)
    return tuple(found)


def _codes_fit(lengths: bytes) -> bool:
    """Return True if a Huffman table can have ``lengths[i]`` codes of i + 1 bits (C.2). No code may be all ones."""
    return sum(map(mul, lengths, _SHARES)) < 1 << 16


def _pillow_opens(data: np.ndarray) -> bool:
    try:
        Image.open(io.BytesIO(data.data)).close()
        return True
    except Exception:  # PIL's plugins raise OSError, SyntaxError, ValueError and others
        return False
