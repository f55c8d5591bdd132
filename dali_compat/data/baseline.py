"""Read the headers of many JPEGs at once, and check that they are intact, in NumPy.

This covers the structure of most photos: baseline, without restart markers, the end marker last. header.py and
intact_jpeg.py read all other files one by one, and return the same for these.
"""

from __future__ import annotations

import numpy as np

from .header import DALI, ENGINES_LONGEST, GRAY_JPEG, SAMPLINGS, STATED
from .headers import FACTS, marks
from .intact_jpeg import SHARES, is_whole_photoshop

_APP0, _APP2, _APP13, _APP14, _APP15 = 0xE0, 0xE2, 0xED, 0xEE, 0xEF
_SOF, _DHT, _SOS, _DQT, _COMMENT = 0xC0, 0xC4, 0xDA, 0xDB, 0xFE
_ALLOWED = np.isin(np.arange(256), [_SOF, _DHT, _SOS, _DQT, _COMMENT, *range(_APP0, _APP15 + 1)])
_HEAD, _SYMBOLS, _WIDEST = 24, 176, 193  # bytes read of a segment; of a Huffman table, without and with its 17 numbers
_MOST, _SEARCHED = 100, 1 << 20  # segments of a file; bytes searched at a time, which fit into a cache


def _equal(head: np.ndarray, text: bytes) -> np.ndarray:
    return (head[:, : len(text)] == list(text)).all(1)


class BaselineJpegs:
    """N files in one array of bytes, ``memory`` (bytes,) uint8, at ``begins`` (N,), in order.

    Attributes:
        known: (N,) bool: whether a file has this structure, is intact, and is decoded by DALI. False for files that end
            within the last _WIDEST bytes.
    """

    def __init__(self, memory: np.ndarray, begins: np.ndarray, lengths: np.ndarray):
        self._memory, self._begins, self._ends = memory, begins, begins + lengths
        self.known = (lengths >= _WIDEST) & (self._ends + _WIDEST <= len(memory))
        if self.known.any():
            for marker, at in ((0xD8, begins), (0xD9, self._ends - 2)):
                self.known &= _equal(self._bytes(np.where(self.known, at, 0), 2), bytes([0xFF, marker]))
            self._walk()
            self._read_frames()
            self._check_applications()
            self._check_scans(self._tables(_DQT), self._tables(_DHT))
            self._search()

    def facts(self, written: np.ndarray) -> np.ndarray:
        """Return the facts of the known files, (M,) FACTS, with keys of 0. ``written`` are the ctimes of all files."""
        facts = np.zeros(np.count_nonzero(self.known), FACTS)
        if len(facts):
            begins, frames = self._begins[self.known], self._frames[self.known]
            facts["kinds"], facts["intact"], facts["written"] = DALI, True, written[self.known]
            facts["lengths"], facts["stated_at"] = self._ends[self.known] - begins, frames - begins
            facts["marks"], facts["sizes"] = marks(self._bytes(frames, STATED)), self._sizes[self.known]
            facts["chroma"] = np.where(facts["sizes"].max(1) <= ENGINES_LONGEST, self._luma[self.known], 0)
        return facts

    def _bytes(self, at: np.ndarray, width: int) -> np.ndarray:
        """Return the bytes from each position on, (len(at), width) uint8."""
        return np.lib.stride_tricks.as_strided(self._memory, (len(self._memory) - width + 1, width), (1, 1))[at]

    def _walk(self) -> None:
        """Find the segments of each file up to its scan."""
        file = np.flatnonzero(self.known)
        at, found = self._begins[file] + 2, list[tuple[np.ndarray, ...]]()
        while not found or (len(file) and len(found) < _MOST):
            head = self._bytes(at, _HEAD)
            size = (head[:, 2].astype(np.int64) << 8) + head[:, 3] - 2
            right = (head[:, 0] == 0xFF) & _ALLOWED[head[:, 1]] & (size >= 0) & (at + 4 + size <= self._ends[file] - 2)
            self.known[file[~right]] = False
            file, at, size, head = file[right], at[right] + 4, size[right], head[right]
            found.append((file, head[:, 1], at, size, head[:, 4:]))
            more = head[:, 1] != _SOS
            file, at = file[more], (at + size)[more]
        self.known[file] = False
        self._file, self._marker, self._at, self._size, self._head = map(np.concatenate, zip(*found, strict=True))

    def _segments(self, marker: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (file, position of the content, its size, its first bytes) of all segments with this marker."""
        at = np.flatnonzero(self._marker == marker)
        return self._file[at], self._at[at], self._size[at], self._head[at]

    def _single(self, marker: int, least: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (position, size, first bytes) of a segment of each file, which has ``least`` to one; 0 for none."""
        file, *values = self._segments(marker)
        times = np.bincount(file, minlength=len(self.known))
        self.known &= (times <= 1) & (times >= least)
        at, size, head = (np.zeros((len(times), *value.shape[1:]), np.int64) for value in values)
        at[file], size[file], head[file] = values
        return at, size, head

    def _read_frames(self) -> None:
        at, size, head = self._single(_SOF, 1)
        self._frames, self._sizes = at - 4, head[:, 1:5:2] * 256 + head[:, 2:6:2]
        self._count, self._ids, self._quantizers = head[:, 5], head[:, 6:15:3], head[:, 8:17:3]
        gray, ids = self._count == 1, self._ids
        color = (self._count == 3) & np.isin(head[:, 7], SAMPLINGS) & (head[:, [10, 13]] == 0x11).all(1)
        color &= (ids[:, 0] != ids[:, 1]) & (ids[:, 0] != ids[:, 2]) & (ids[:, 1] != ids[:, 2])
        self._luma = np.where(gray, GRAY_JPEG, head[:, 7])
        self.known &= (gray & (head[:, 7] == 0x11)) | color
        self.known &= (head[:, 0] == 8) & (self._sizes > 0).all(1) & (size == 6 + 3 * self._count)

    def _check_applications(self) -> None:
        """Check the segments that determine the colors, and those that Pillow or header.py parse further."""
        jfif, size, head = self._single(_APP0, 0)
        is_jfif = _equal(head, b"JFIF\0") & (size >= 14) & (jfif < self._frames)
        adobe, size, head = self._single(_APP14, 0)
        is_adobe = _equal(head, b"Adobe") & (size >= 12) & (adobe < self._frames)
        rgb = np.where(is_adobe, head[:, 11] == 0, _equal(self._ids, b"RGB"))
        self.known &= (is_jfif | (jfif == 0)) & (is_adobe | (adobe == 0)) & (is_jfif | ~rgb | (self._count == 1))
        file, _, size, head = self._segments(_APP2)
        self.known[file[_equal(head, b"MPF\0") | (_equal(head, b"ICC_PROFILE\0") & (size < 14))]] = False
        file, at, size, head = self._segments(_APP13)
        for row in np.flatnonzero(_equal(head, b"Phot")).tolist():
            self.known[file[row]] &= is_whole_photoshop(self._memory[at[row] : at[row] + size[row]].tobytes())

    def _tables(self, marker: int) -> np.ndarray:
        """Return (N, 4) bool: the tables that each file defines, once each. Huffman tables are DC 0, 1 and AC 0, 1."""
        file, at, size, _ = self._segments(marker)
        times, ends = np.zeros((len(self.known), 4), int), at + size
        while len(file):
            right, table, size = (_quantizers if marker == _DQT else _huffman)(self._bytes(at, _WIDEST))
            right &= at + size <= ends
            self.known[file[~right]] = False
            np.add.at(times, (file[right], table[right]), 1)
            at = at + size
            more = right & (at < ends)
            file, at, ends = file[more], at[more], ends[more]
        self.known &= (times <= 1).all(1)
        return times > 0

    def _check_scans(self, quantizers: np.ndarray, huffman: np.ndarray) -> None:
        """Check the scan's header, which ends where the coded data begins."""
        at, size, head = self._single(_SOS, 1)
        self._starts, count, every = at + size, self._count, np.arange(len(at))
        self.known &= (head[:, 0] == count) & (size == 4 + 2 * count)
        self.known &= _equal(np.where(count[:, None] == 1, head[:, 3:6], head[:, 7:10]), bytes([0, 63, 0]))
        for i in range(3):
            dc, ac, quantizer = head[:, 2 + 2 * i] >> 4, head[:, 2 + 2 * i] & 15, self._quantizers[:, i]
            right = (head[:, 1 + 2 * i] == self._ids[:, i]) & (dc <= 1) & (ac <= 1) & (quantizer <= 3)
            right &= huffman[every, dc & 1] & huffman[every, 2 + (ac & 1)] & quantizers[every, quantizer & 3]
            self.known &= right | (i >= count)

    def _search(self) -> None:
        """Check that the coded data is long enough, and contains no marker."""
        across, down = np.where(self._count == 3, [self._luma >> 4, self._luma & 15], 1).clip(1)
        units = (-(-self._sizes // (8 * np.column_stack([down, across])))).prod(1)
        bits = 2 * units * (across * down + self._count - 1)  # a symbol of DC and one at the end of each block
        self.known &= 8 * (self._ends - 2 - self._starts) >= bits
        left = np.flatnonzero(self.known)
        while len(left):
            begin = int(self._starts[left[0]])
            several = left[: max(1, int(np.searchsorted(self._ends[left], begin + _SEARCHED)))]
            left = left[len(several) :]
            data = self._memory[begin : self._ends[several[-1]]]
            marked = (data[:-1] == 0xFF).view(np.uint8)
            marked = np.minimum(marked, data[1:], out=marked).view(np.bool_)  # 0xFF before a byte other than 0
            places = np.column_stack([self._starts[several], self._ends[several] - 2]).ravel() - begin
            self.known[several] = ~np.logical_or.reduceat(marked, places)[::2]


def _quantizers(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (valid, number, size) of the quantization tables that rows of bytes start with."""
    return (tables[:, 0] <= 3) & (tables[:, 1:65] != 0).all(1), tables[:, 0], np.full(len(tables), 65)


def _huffman(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (valid, number, size) of the Huffman tables that rows of bytes start with."""
    ac, lengths, symbols = tables[:, 0] >> 4, tables[:, 1:17].astype(np.int64), tables[:, 17:]
    count = lengths.sum(1)
    mask, most = np.where(ac, 15, 255).astype(np.uint8), np.where(ac, 10, 11).astype(np.uint8)
    valid = ((symbols & mask[:, None]) <= most[:, None]) | (np.arange(_SYMBOLS) >= count[:, None])
    right = valid.all(1) & (tables[:, 0] & 0xEE == 0) & (count > 0) & (count <= _SYMBOLS) & (lengths @ SHARES < 1 << 16)
    return right, 2 * ac + (tables[:, 0] & 1), 17 + count
