"""Copies of encoded images for a JPEG engine.

The images are copied because other programs may overwrite a mapped file. Batches of up to _MOST_PINNED bytes are in
pinned memory, so a GPU can read them directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...data.header import SIZE_FIELD
from ...data.headers import header_hashes
from ...data.intact import is_intact
from ...data.verdicts import are_valid, checksums

_PADDING = 16  # padding for checksums()
_MOST_PINNED = 2**28  # bytes; torch rounds up to a power of two and never frees it


class Files:
    """N concatenated encoded images on the host.

    Attributes:
        memory: (bytes,) uint8, all images.
        begins, lengths: (N,) int64, locations of the images in ``memory``.
    """

    def __init__(self, memory: np.ndarray, begins: np.ndarray, lengths: np.ndarray):
        self.memory, self.begins, self.lengths = memory, begins, lengths

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def from_arrays(cls, arrays: Sequence[np.ndarray], device: torch.device) -> Files:
        """Copy arrays of encoded bytes, (length,) uint8 each."""
        made = cls._allocate(np.fromiter(map(len, arrays), np.int64, len(arrays)), device)
        memory, ends = made.memory.data, made.begins + made.lengths
        for array, begin, end in zip(arrays, made.begins.tolist(), ends.tolist(), strict=True):
            memory[begin:end] = array.data  # NumPy would release and reacquire the GIL for each array
        return made

    @classmethod
    def from_packed(cls, packed: np.ndarray, lengths: np.ndarray, device: torch.device) -> Files:
        """Copy N adjacent files from ``packed``, (bytes,) uint8. ``lengths`` (N,) are their lengths."""
        made = cls._allocate(lengths.astype(np.int64), device)
        made.memory[: len(packed)] = packed
        return made

    @classmethod
    def _allocate(cls, lengths: np.ndarray, device: torch.device) -> Files:
        ends = np.cumsum(lengths)
        size = int(ends[-1]) + _PADDING if len(ends) else _PADDING
        memory = _pinned(size, device) if device.type == "cuda" and size <= _MOST_PINNED else None
        return cls(np.empty(size, np.uint8) if memory is None else memory, ends - lengths, lengths)

    def checked(self) -> tuple[Files, np.ndarray]:
        """Return this object and the indices of all its files, because they need no further check."""
        return self, np.arange(len(self))

    @property
    def addresses(self) -> np.ndarray:
        """Host address of each file, (N,) uint64."""
        return self.memory.ctypes.data + self.begins.astype(np.uint64)

    def only(self, index: np.ndarray) -> Files:
        """Return the files at ``index``, in the same memory."""
        return Files(self.memory, self.begins[index], self.lengths[index])

    def size_field(self, at: np.ndarray) -> np.ndarray:
        """Return SIZE_FIELD bytes of each file, beginning at its offset in ``at`` (N,).

        The result is (N, SIZE_FIELD) uint8. Bytes after the end of a file are zeros.
        """
        positions = at.astype(np.int64)[:, None] + np.arange(SIZE_FIELD)
        inside = positions < self.lengths[:, None]
        return np.where(inside, self.memory[np.where(inside, self.begins[:, None] + positions, 0)], 0).astype(np.uint8)

    def match(self, facts: np.ndarray) -> np.ndarray:
        """Return (N,) bool, whether each file has the length and header hash in its FACTS. The planes of other files
        may exceed the buffers."""
        hashes = header_hashes(self.size_field(facts["size_field_at"]))
        return (self.lengths == facts["lengths"]) & (hashes == facts["header_hashes"])

    def intact(self, index: np.ndarray) -> np.ndarray:
        ends = self.begins + self.lengths
        return np.array([is_intact(self.memory[self.begins[i] : ends[i]]) for i in index.tolist()], bool)

    def checksums(self, header_hashes: np.ndarray) -> np.ndarray:
        return checksums(self.memory, self.begins, self.lengths, header_hashes)


class UncheckedFiles:
    """N encoded images that are copied and checked in the engine's threads, because this takes 7 ms for 256 photos.

    Args:
        copy: function that returns the copies.
        verdicts: (N,) uint64 (data/verdicts.py); 0 for files that are decoded for the first time.
        facts: FACTS of the files.
    """

    checksums: np.ndarray  # (N,) uint64, set by checked()

    def __init__(self, copy: Callable[[], Files], verdicts: np.ndarray, facts: np.ndarray):
        self._copy, self._verdicts, self._facts = copy, verdicts, facts

    def checked(self) -> tuple[Files, np.ndarray]:
        """Copy the files. Return the files that pass the check, and their indices, (M,) int64.

        A file with a verdict must have the verdict's checksum. Any other file must match its FACTS and be intact.
        """
        files = self._copy()
        self.checksums = files.checksums(self._facts["header_hashes"])
        same = are_valid(self._verdicts, self.checksums)
        if len(new := np.flatnonzero(self._verdicts == 0)):
            same[new] = files.only(new).match(self._facts[new])
            sure = new[same[new]]
            same[sure] = files.intact(sure)
        chosen = np.flatnonzero(same)
        return files if len(chosen) == len(files) else files.only(chosen), chosen


def _pinned(size: int, device: torch.device) -> np.ndarray | None:
    """Return pinned memory, (size,) uint8, or None if it cannot be allocated. nvJPEG accepts ordinary memory, too."""
    try:
        with torch.cuda.device(device):  # otherwise CUDA may be initialized on the default GPU
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()
    except RuntimeError:
        return None
