"""Encoded images in memory of our own. Nobody writes to it; a mapped file another program may overwrite at any time. It
is pinned, so that a GPU reads it by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...data.header import STATED
from ...data.verdicts import checksums

_BEHIND = 16  # bytes behind the last file, for checksums()
_GRAIN, _KEPT = 2**24, 2**28  # bytes, of which a room is a multiple, and that it keeps at most


class Room:
    """Pinned memory for the files of one call after another."""

    def __init__(self, device: torch.device):
        self._device, self._kept = device, np.empty(0, np.uint8)

    def of(self, size: int) -> np.ndarray:
        """(size,) uint8; what was given before is given again."""
        if size > _KEPT:
            return _pinned(size, self._device)
        if size > len(self._kept):
            self._kept = _pinned(-(-size // _GRAIN) * _GRAIN, self._device)
        return self._kept[:size]


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
        """Copies of arrays, (length,) uint8 each, for an engine of the device."""
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        made = cls._behind_each_other(lengths, _pinned(int(lengths.sum()) + _BEHIND, device))
        memory, ends = made.memory.data, made.begins + made.lengths
        for array, begin, end in zip(arrays, made.begins.tolist(), ends.tolist(), strict=True):
            memory[begin:end] = array.data  # numpy would give the interpreter's lock away each time, and wait for it
        return made

    @classmethod
    def of_packed(cls, packed: np.ndarray, lengths: np.ndarray, room: Room) -> Files:
        """A copy, in a room, of files that lie one behind another in ``packed``, (bytes,) uint8."""
        made = cls._behind_each_other(lengths.astype(np.int64), room.of(len(packed) + _BEHIND))
        made.memory[: len(packed)] = packed
        return made

    @classmethod
    def _behind_each_other(cls, lengths: np.ndarray, memory: np.ndarray) -> Files:
        return cls(memory, np.cumsum(lengths) - lengths, lengths)

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

    def checksums(self, marks: np.ndarray) -> np.ndarray:
        """As data/verdicts has them, of these files and the ``marks`` of what their headers state."""
        return checksums(self.memory, self.begins, self.lengths, marks)


def _pinned(size: int, device: torch.device) -> np.ndarray:
    """(size,) uint8; pinned for a GPU."""
    if device.type != "cuda":
        return np.empty(size, np.uint8)
    with torch.cuda.device(device):  # pinned memory is the current GPU's, where CUDA runs on none yet
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
