"""Encoded images in memory of our own. Nobody writes to it; a mapped file another program may overwrite at any time. It
is pinned, where there is not too much of it, so that a GPU reads it by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...data.header import STATED
from ...data.headers import marks
from ...data.intact import is_intact
from ...data.verdicts import checksums, hold

_BEHIND = 16  # bytes behind the last file, for checksums()
_MOST_PINNED = 2**28  # bytes: torch rounds them up to a power of two, and keeps them until the program ends


class Files:
    """N encoded images on the host, one behind another.

    Attributes:
        memory: (bytes,) uint8, all of them.
        begins, lengths: (N,) int64, where each lies in ``memory``.
    """

    def __init__(self, memory: np.ndarray, begins: np.ndarray, lengths: np.ndarray):
        self.memory, self.begins, self.lengths = memory, begins, lengths

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray], device: torch.device) -> Files:
        """Copies of arrays, (length,) uint8 each, for an engine of the device. The interpreter stays locked meanwhile:
        numpy would give its lock away for each of them, and wait for it."""
        made = cls._room(np.fromiter(map(len, arrays), np.int64, len(arrays)), device)
        memory, ends = made.memory.data, made.begins + made.lengths
        for array, begin, end in zip(arrays, made.begins.tolist(), ends.tolist(), strict=True):
            memory[begin:end] = array.data
        return made

    @classmethod
    def of_packed(cls, packed: np.ndarray, lengths: np.ndarray, device: torch.device) -> Files:
        """A copy of files that lie one behind another in ``packed``, (bytes,) uint8: one call, which needs no lock."""
        made = cls._room(lengths.astype(np.int64), device)
        made.memory[: len(packed)] = packed
        return made

    @classmethod
    def _room(cls, lengths: np.ndarray, device: torch.device) -> Files:
        ends = np.cumsum(lengths)
        size = int(ends[-1]) + _BEHIND if len(ends) else _BEHIND
        memory = _pinned(size, device) if device.type == "cuda" and size <= _MOST_PINNED else None
        return cls(np.empty(size, np.uint8) if memory is None else memory, ends - lengths, lengths)

    def checked(self) -> tuple[Files, np.ndarray]:
        """All of them, and which they are: they were looked at before."""
        return self, np.arange(len(self))

    @property
    def addresses(self) -> np.ndarray:
        """(N,) uint64."""
        return self.memory.ctypes.data + self.begins.astype(np.uint64)

    def only(self, index: np.ndarray) -> Files:
        """Some of them, in the same memory."""
        return Files(self.memory, self.begins[index], self.lengths[index])

    def stated(self, at: np.ndarray) -> np.ndarray:
        """(N, STATED) uint8, from ``at`` (N,) on in each; zeros behind its end."""
        places = at.astype(np.int64)[:, None] + np.arange(STATED)
        inside = places < self.lengths[:, None]
        return np.where(inside, self.memory[np.where(inside, self.begins[:, None] + places, 0)], 0).astype(np.uint8)

    def as_known(self, facts: np.ndarray) -> np.ndarray:
        """Returns (N,) bool, which have the headers that are known: an engine makes planes of the sides that they
        state, and room is made by what is known."""
        return (self.lengths == facts["lengths"]) & (marks(self.stated(facts["stated_at"])) == facts["marks"])

    def intact(self, index: np.ndarray) -> np.ndarray:
        """Returns (len(index),) bool, which of those at ``index`` are intact."""
        ends = self.begins + self.lengths
        return np.array([is_intact(self.memory[self.begins[i] : ends[i]]) for i in index.tolist()], bool)

    def checksums(self, stated: np.ndarray) -> np.ndarray:
        """Returns checksums as data/verdicts has them, of these files and the marks of what their headers have
        ``stated``."""
        return checksums(self.memory, self.begins, self.lengths, stated)


class UncheckedFiles:
    """N encoded images that are copied and looked at when their turn comes, where nobody waits for it: of 256 photos
    that takes 7 ms, half a step of a small network.

    Args:
        copy: makes Files of them.
        words: (N,) uint64, as data/verdicts.py has them, about the bytes that they should have; 0 of files that are at
            their first sight.
        facts: what is known of them.

    Attributes:
        checksums: (N,) uint64, of their bytes, once they are looked at.
    """

    checksums: np.ndarray

    def __init__(self, copy: Callable[[], Files], words: np.ndarray, facts: np.ndarray):
        self._copy, self._words, self._facts = copy, words, facts

    def checked(self) -> tuple[Files, np.ndarray]:
        """Returns those that have these bytes, and which they are, (M,) int64; at their first sight those that are
        intact, and have the headers that are known."""
        files = self._copy()
        self.checksums = files.checksums(self._facts["marks"])
        same = hold(self._words, self.checksums)
        if len(new := np.flatnonzero(self._words == 0)):
            same[new] = files.only(new).as_known(self._facts[new])
            sure = new[same[new]]
            same[sure] = files.intact(sure)
        chosen = np.flatnonzero(same)
        return files if len(chosen) == len(files) else files.only(chosen), chosen


def _pinned(size: int, device: torch.device) -> np.ndarray | None:
    """(size,) uint8, which torch uses again and again; None where the system has none: nvJPEG takes ordinary memory,
    too."""
    try:
        with torch.cuda.device(device):  # pinned memory is the current GPU's, where CUDA runs on none yet
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()
    except RuntimeError:
        return None
