"""Read the headers of many JPEGs at once, and check that they are intact, in NumPy.

This covers the structure of most photos: baseline, without restart markers, the end marker last. header.py and
intact_jpeg.py read all other files one by one, and return the same for these.
"""

from __future__ import annotations

import numpy as np

from .header import DALI, ENGINES_LONGEST, GRAY_JPEG, STATED
from .headers import FACTS, marks
from .intact import is_intact
from .intact_jpeg import SAMPLINGS, SHARES, is_whole_photoshop

_APP0, _APP1, _APP2, _APP13, _APP14, _APP15 = 0xE0, 0xE1, 0xE2, 0xED, 0xEE, 0xEF
_SOF, _DHT, _SOS, _DQT, _COMMENT = 0xC0, 0xC4, 0xDA, 0xDB, 0xFE
_ALLOWED = np.isin(np.arange(256), [_SOF, _DHT, _SOS, _DQT, _COMMENT, *range(_APP0, _APP15 + 1)])
_LUMA = [sampling[0] for sampling in SAMPLINGS if len(sampling) == 3]
_HEAD, _QUANTIZER, _HUFFMAN = 24, 65, 17 + 176  # bytes read of a segment, and of tables
_MOST, _SEARCHED = 100, 1 << 20  # segments of a file; bytes searched at a time, which fit into a cache
_FEW = 32  # files; one by one, fewer take less time


def are_intact(memory: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return is_intact() of each of N files, (N,) bool. The arguments are those of BaselineJpegs."""
    known = BaselineJpegs(memory, begins, lengths).known if len(begins) >= _FEW else np.zeros(len(begins), bool)
    for i in np.flatnonzero(~known).tolist():
        known[i] = is_intact(memory[begins[i] : begins[i] + lengths[i]])
    return known


class BaselineJpegs:
    """N files in one array of bytes.

    Args:
        memory: (bytes,) uint8. Files that end within its last _HUFFMAN bytes are not read.
        begins, lengths: (N,), positions of the files in order.
        upright: whether images are rotated according to their EXIF orientation.

    Attributes:
        known: (N,) bool: whether a file has this structure, is intact, and is decoded by DALI.
    """

    def __init__(self, memory: np.ndarray, begins: np.ndarray, lengths: np.ndarray, upright: bool = False):
        self._memory, self._begins, self._ends, self._upright = memory, begins, begins + lengths, upright
        self.known = (lengths >= _HUFFMAN) & (self._ends + _HUFFMAN <= len(memory))
        if self.known.any():
            self._check()

    def facts(self, written: np.ndarray) -> np.ndarray:
        """Return the facts of the known files, (M,) FACTS, with keys of 0. ``written`` are the ctimes of all files."""
        facts = np.zeros(np.count_nonzero(self.known), FACTS)
        if not len(facts):
            return facts
        begins, frames = self._begins[self.known], self._frames[self.known]
        facts["kinds"], facts["intact"], facts["orientations"] = DALI, True, self._upright
        facts["sizes"], facts["written"] = self._sizes[self.known], written[self.known]
        facts["lengths"], facts["stated_at"] = self._ends[self.known] - begins, frames - begins
        facts["marks"] = marks(self._bytes(frames, STATED))
        facts["chroma"] = np.where(facts["sizes"].max(1) <= ENGINES_LONGEST, self._luma[self.known], 0)
        return facts

    def _check(self) -> None:
        for marker, at in ((0xD8, self._begins), (0xD9, self._ends - 2)):
            self.known &= (self._bytes(np.where(self.known, at, 0), 2) == (0xFF, marker)).all(1)
        self._walk()
        self._read_frames()
        self._check_applications()
        self._check_scans(self._quantizers(), self._huffman_tables())
        self._search()

    def _bytes(self, at: np.ndarray, width: int) -> np.ndarray:
        """Return the bytes from each position on, (len(at), width) uint8."""
        return np.lib.stride_tricks.as_strided(self._memory, (len(self._memory) - width + 1, width), (1, 1))[at]

    def _walk(self) -> None:
        """Find the segments of each file up to its scan."""
        file = np.flatnonzero(self.known)
        at, found = self._begins[file] + 2, []
        for _ in range(_MOST):
            head = self._bytes(at, _HEAD)
            size = (head[:, 2].astype(np.int64) << 8) + head[:, 3] - 2
            right = (head[:, 0] == 0xFF) & _ALLOWED[head[:, 1]] & (size >= 0) & (at + 4 + size <= self._ends[file] - 2)
            self.known[file[~right]] = False
            file, at, size, head = file[right], at[right] + 4, size[right], head[right]
            found.append((file, head[:, 1], at, size, head[:, 4:]))
            more = head[:, 1] != _SOS
            file, at = file[more], (at + size)[more]
            if not len(file):
                break
        self.known[file] = False
        self._file, self._marker, self._at, self._size, self._head = map(np.concatenate, zip(*found, strict=True))

    def _segments(self, marker: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (file, position of the content, its size, its first bytes) of all segments with this marker."""
        at = np.flatnonzero(self._marker == marker)
        return self._file[at], self._at[at], self._size[at], self._head[at]

    def _single(self, marker: int, least: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (position, size, first bytes) of a segment of each file; zeros if it has none. A file has ``least``
        to one."""
        file, at, size, head = self._segments(marker)
        count = len(self.known)
        times = np.bincount(file, minlength=count)
        self.known &= (times <= 1) & (times >= least)
        made = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros((count, head.shape[1]), np.int64)
        made[0][file], made[1][file], made[2][file] = at, size, head
        return made

    def _read_frames(self) -> None:
        self._frames, size, head = self._single(_SOF, 1)
        self._frames -= 4
        self._sizes = head[:, 1:5:2] * 256 + head[:, 2:6:2]
        self._components, self._ids, self._quantizer_ids = head[:, 5], head[:, 6:15:3], head[:, 8:17:3]
        gray, first = self._components == 1, self._ids[:, 0]
        others = (self._ids[:, 1] != first) & (self._ids[:, 2] != first) & (self._ids[:, 1] != self._ids[:, 2])
        color = (self._components == 3) & others & np.isin(head[:, 7], _LUMA) & (head[:, [10, 13]] == 0x11).all(1)
        self._luma = np.where(gray, GRAY_JPEG, head[:, 7])
        self.known &= (gray & (head[:, 7] == 0x11)) | color
        self.known &= (head[:, 0] == 8) & (self._sizes > 0).all(1) & (size == 6 + 3 * self._components)

    def _check_applications(self) -> None:
        """Check the segments that determine the colors, and those that Pillow or header.py parse further."""
        jfif, size, head = self._single(_APP0, 0)
        is_jfif = (head[:, :5] == list(b"JFIF\0")).all(1) & (size >= 14) & (jfif < self._frames)
        adobe, size, head = self._single(_APP14, 0)
        is_adobe = (head[:, :5] == list(b"Adobe")).all(1) & (size >= 12) & (adobe < self._frames)
        self.known &= (is_jfif | (jfif == 0)) & (is_adobe | (adobe == 0))
        rgb = np.where(is_adobe, head[:, 11] == 0, (self._ids == list(b"RGB")).all(1))
        self.known &= is_jfif | ~rgb | (self._components == 1)
        file, _, size, head = self._segments(_APP2)
        is_profile = (head[:, :12] == list(b"ICC_PROFILE\0")).all(1)
        self.known[file[(head[:, :4] == list(b"MPF\0")).all(1) | (is_profile & (size < 14))]] = False
        file, at, size, head = self._segments(_APP13)
        for row in np.flatnonzero((head[:, :4] == list(b"Phot")).all(1)).tolist():
            if not is_whole_photoshop(self._memory[at[row] : at[row] + size[row]].tobytes()):
                self.known[file[row]] = False
        if self._upright:
            self.known[self._segments(_APP1)[0]] = False

    def _quantizers(self) -> np.ndarray:
        """Return (N, 4) bool: the tables that each file defines."""
        file, at, size, _ = self._segments(_DQT)
        self.known[file[(size == 0) | (size % _QUANTIZER != 0)]] = False
        counts = size // _QUANTIZER
        file, at = np.repeat(file, counts), np.repeat(at, counts)
        at += _QUANTIZER * (np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts))
        tables = self._bytes(at, _QUANTIZER)
        self.known[file[(tables[:, 0] > 3) | (tables == 0)[:, 1:].any(1)]] = False
        return self._defined(file, tables[:, 0] & 3)

    def _huffman_tables(self) -> np.ndarray:
        """Return (N, 4) bool: whether each file defines DC tables 0 and 1, and AC tables 0 and 1."""
        file, at, size, _ = self._segments(_DHT)
        ends, found = at + size, [(file[:0], at[:0])]
        while len(file):
            tables = self._bytes(at, _HUFFMAN)
            ac, lengths, symbols = tables[:, 0] >> 4, tables[:, 1:17].astype(np.int64), tables[:, 17:]
            count = lengths.sum(1)
            most, mask = np.where(ac, 10, 11).astype(np.uint8), np.where(ac, 15, 255).astype(np.uint8)
            valid = ((symbols & mask[:, None]) <= most[:, None]) | (np.arange(symbols.shape[1]) >= count[:, None])
            right = valid.all(1) & (tables[:, 0] & 0xEE == 0) & (count > 0) & (count <= symbols.shape[1])
            right &= (lengths @ SHARES < 1 << 16) & (at + 17 + count <= ends)
            self.known[file[~right]] = False
            file, at, ends, table = (
                file[right],
                (at + 17 + count)[right],
                ends[right],
                (2 * ac + (tables[:, 0] & 1))[right],
            )
            found.append((file, table))
            more = at < ends
            file, at, ends = file[more], at[more], ends[more]
        return self._defined(*map(np.concatenate, zip(*found, strict=True)))

    def _defined(self, file: np.ndarray, table: np.ndarray) -> np.ndarray:
        """Return (N, 4) bool: whether each file defines each table. A file may define it once."""
        times = np.bincount(4 * file + table, minlength=4 * len(self.known)).reshape(-1, 4)
        self.known &= (times <= 1).all(1)
        return times > 0

    def _check_scans(self, quantizers: np.ndarray, huffman: np.ndarray) -> None:
        """Check the scan's header, which ends where the coded data begins."""
        at, size, head = self._single(_SOS, 1)
        self._starts, count, every = at + size, self._components, np.arange(len(at))
        self.known &= (head[:, 0] == count) & (size == 4 + 2 * count)
        self.known &= (np.where(count[:, None] == 1, head[:, 3:6], head[:, 7:10]) == (0, 63, 0)).all(1)
        for i in range(3):
            dc, ac, quantizer = head[:, 2 + 2 * i] >> 4, head[:, 2 + 2 * i] & 15, self._quantizer_ids[:, i]
            right = (head[:, 1 + 2 * i] == self._ids[:, i]) & (dc <= 1) & (ac <= 1) & (quantizer <= 3)
            right &= huffman[every, dc & 1] & huffman[every, 2 + (ac & 1)] & quantizers[every, quantizer & 3]
            self.known &= right | (i >= count)

    def _search(self) -> None:
        """Check that the coded data is long enough, and contains no marker."""
        color = self._components == 3
        across, down = np.where(color, self._luma >> 4, 1), np.where(color, self._luma & 15, 1)
        units = (-(-self._sizes // (8 * np.maximum([down, across], 1).T))).prod(1)
        bits = 2 * units * (across * down + np.where(color, 2, 0))  # a symbol of DC and one at the end of each block
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
