"""Bytes of files in memory of our own, which nobody writes to: other than those of a mapped file, which another program
may overwrite at any time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .header import STATED

_GRAIN = 2**22  # bytes, of which memory is a multiple: batches find that of others
_SPARE, _LONGEST = 4, 2**27  # pieces of memory that are kept for later ones, and bytes of each, at most
_ZEROS = np.zeros(STATED + 8, np.uint8)

_spare: list[np.ndarray] = []


class Copies:
    """Of N files' bytes, (length,) uint8 each. Their memory is used again once this is gone: whoever has one of
    ``arrays`` keeps this, too.

    256 photos of 105 KB from the page cache take 4.5 to 9 ms, most of which their checksums take less then; in memory
    that is new each time, 15 ms (2 cores, medians).

    Attributes:
        arrays: the copies.
        begins: (N,) int64, where each lies in ``memory``.
        lengths: (N,) int64.
        memory: (bytes,) uint8, of all of them.
    """

    def __init__(self, files: Sequence[np.ndarray]):
        self.lengths = np.fromiter(map(len, files), np.int64, len(files))
        gaps = STATED + -self.lengths % 8  # zeros, so that the next one is in line
        ends = np.cumsum(self.lengths + gaps)
        self.begins = ends - gaps - self.lengths
        pieces: list[np.ndarray] = [_ZEROS] * (2 * len(files))
        pieces[::2], pieces[1::2] = files, [_ZEROS[:gap] for gap in gaps.tolist()]
        self.memory = _lent(int(ends[-1]))
        np.concatenate(pieces, out=self.memory[: ends[-1]])
        bounds = zip(self.begins.tolist(), (self.begins + self.lengths).tolist(), strict=True)
        self.arrays = [self.memory[begin:end] for begin, end in bounds]

    def stated(self, at: np.ndarray) -> np.ndarray:
        """(N, STATED) uint8, from ``at`` (N,) on in each; zeros behind its end."""
        begins = self.begins + np.minimum(at, self.lengths)
        return self.memory[begins[:, None] + np.arange(STATED)]

    def __del__(self, spare: list[np.ndarray] = _spare) -> None:
        if hasattr(self, "memory") and len(spare) < _SPARE and len(self.memory) <= _LONGEST:
            spare.append(self.memory)


def _lent(size: int) -> np.ndarray:
    try:
        memory = _spare.pop()
    except IndexError:
        memory = _ZEROS
    return memory if len(memory) >= size else np.empty(-(-size // _GRAIN) * _GRAIN, np.uint8)
