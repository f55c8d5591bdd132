"""Verdicts on whether a GPU's JPEG engine may decode a file.

The engine may decode a file if its results for this file, or for many similar ones, equalled Pillow's
(engine/planes/verified.py).

A verdict is a uint64. The two lowest bits are the decoder. The others are a checksum of the file's bytes and header.
The verdict is valid only for bytes with that checksum.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from ..runtime import saved
from ..runtime.forks import new_lock

BY_ENGINE, BY_PILLOW, LIKELY = 1, 2, 3  # decoders; LIKELY is the engine, without a comparison; 0 is unknown
_DECODER = np.uint64(3)  # the bits of a verdict that contain the decoder
_FACTORS = np.random.default_rng(1).integers(0, 1 << 63, 3, np.uint64) * np.uint64(2) + np.uint64(1)
_ALL = ~np.uint64(0)


class Verdicts:
    """Verdicts on the files of a data set for one JPEG engine, keyed by index."""

    def __init__(self, engine: str):
        self._engine = engine
        self._lock = new_lock()  # shared by loaders and by threads that compare
        self._verdicts = np.zeros(0, np.uint64)
        self._own = np.zeros(0, bool)  # True for verdicts from this process

    def get(self, index: np.ndarray) -> np.ndarray:
        """Return the verdicts, uint64 of shape (N,); 0 for files without one."""
        with self._lock:
            self._grow(index)
            return self._verdicts[index]

    def put(self, index: np.ndarray, verdicts: np.ndarray) -> None:
        """Store verdicts on files. If an index is repeated, one of its verdicts is stored."""
        with self._lock:
            self._grow(index)
            self._verdicts[index], self._own[index] = verdicts, True

    def forget(self, index: np.ndarray | int) -> None:
        """Reset verdicts. The files will be compared again."""
        self.put(np.atleast_1d(index), np.zeros(1, np.uint64))

    def decoders(self, count: int) -> np.ndarray:
        """Return the decoders of the first ``count`` files as uint8: BY_ENGINE, BY_PILLOW, LIKELY or 0."""
        return decoders(self.get(np.arange(count)))

    def share(self, index_file: Path, samples: str, count: int) -> None:
        """Merge this process's verdicts with those of other processes, in a file next to ``index_file``.

        ``samples`` is a hash of the data set's ``count`` samples. Stored verdicts with another hash are dropped.
        """
        file = index_file.with_name(f"{index_file.stem}-{saved.digest(self._engine)}.npz")
        with saved.lock(saved.digest(str(file))):
            stored = saved.load(file)
            theirs = np.zeros(count, np.uint64)
            if stored is not None and stored[0].get("samples") == samples:
                theirs = stored[1].get("words", theirs)
            if theirs.shape != (count,) or theirs.dtype != np.uint64:
                theirs = np.zeros(count, np.uint64)
            with self._lock:
                self._grow(np.array([count - 1]))
                merged = self._verdicts[:count] = np.where(self._own[:count], self._verdicts[:count], theirs)
            if not np.array_equal(merged, theirs):
                with suppress(OSError):  # if the disk is full, a later run compares again
                    saved.save(file, {"samples": samples}, {"words": merged})

    def _grow(self, index: np.ndarray) -> None:
        top, known = int(index.max(initial=-1)) + 1, len(self._verdicts)
        if top > known:
            verdicts, own = (np.zeros(max(top, 2 * known), dtype) for dtype in (np.uint64, bool))
            verdicts[:known], own[:known] = self._verdicts, self._own
            self._verdicts, self._own = verdicts, own


def decoders(verdicts: np.ndarray) -> np.ndarray:
    """Return the decoders that verdicts contain, as uint8 of shape (N,)."""
    return (verdicts & _DECODER).astype(np.uint8)


def are_valid(verdicts: np.ndarray, checksums: np.ndarray) -> np.ndarray:
    """Return a bool array (N,), True for verdicts on bytes with these checksums."""
    return verdicts & ~_DECODER == checksums


def checksums(memory: np.ndarray, begins: np.ndarray, lengths: np.ndarray, header_hashes: np.ndarray) -> np.ndarray:
    """Return the checksums of N files as uint64 of shape (N,), with the decoder's bits cleared.

    A checksum combines the file's length, its header's hash, and the exclusive or of its 8-byte words. It takes a tenth
    of the time of a CRC. It misses swapped words, and one in 64 cases of two flipped bits.

    Args:
        memory: (bytes,) uint8, aligned to 8 bytes, with at least eight bytes after the last file.
        begins, lengths: (N,), positions and lengths of the files in ``memory``, in ascending order.
        header_hashes: (N,), from headers.header_hashes().
    """
    if not len(lengths):
        return np.zeros(0, np.uint64)
    words = memory[: len(memory) & -8].view(np.uint64)
    ends = begins + lengths
    first, last = begins >> 3, np.maximum(ends - 1, begins) >> 3
    sums = np.bitwise_xor.reduceat(words, np.column_stack([first, last + 1]).ravel())[::2]
    before, after = (8 * (begins & 7)).astype(np.uint64), (8 * (-ends & 7)).astype(np.uint64)
    sums ^= words[first] & ~(_ALL << before)  # clear the bytes before and after the file
    sums ^= words[last] & ~(_ALL >> after)
    sums = np.where(lengths > 0, sums >> before | sums << (-before & np.uint64(63)), np.uint64(0))
    return (sums * _FACTORS[0] + lengths.astype(np.uint64) * _FACTORS[1] + header_hashes * _FACTORS[2]) & ~_DECODER
