"""Which files a GPU's JPEG engine may decode: those that it was seen to decode to Pillow's pixels, and those that are
like many of these (engine/planes/verified.py).

A verdict is about bytes. It is kept in one word with a checksum of every byte of the file and of what its header says,
and it holds for bytes of that checksum alone. So a file that was changed, damaged or replaced meanwhile has none, by
whichever way it came about; nobody has to tell, and a late answer is harmless.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from ..runtime import saved
from ..runtime.forks import new_lock

ENGINES, PILLOWS, LIKELY = 1, 2, 3  # who decodes it; LIKELY: the engine, though it was not compared; 0: nobody knows
_VERDICT = np.uint64(3)  # bits of a word
_FACTORS = np.random.default_rng(1).integers(0, 1 << 63, 3, np.uint64) * np.uint64(2) + np.uint64(1)
_ALL = ~np.uint64(0)


class Verdicts:
    """Verdicts on the files of a data set, by their index, for the engine of this name."""

    def __init__(self, engine: str):
        self._engine = engine
        self._lock = new_lock()  # loaders share it, and threads that compare
        self._words = np.zeros(0, np.uint64)
        self._own = np.zeros(0, bool)  # what this process has said, and nobody else

    def words(self, index: np.ndarray) -> np.ndarray:
        """(N,) uint64; 0 of files without a verdict."""
        with self._lock:
            self._reach(index)
            return self._words[index]

    def put(self, index: np.ndarray, words: np.ndarray) -> None:
        """Stores verdicts of files; for one that comes twice either."""
        with self._lock:
            self._reach(index)
            self._words[index], self._own[index] = words, True

    def forget(self, index: np.ndarray | int) -> None:
        """They are to be compared anew."""
        self.put(np.atleast_1d(index), np.zeros(1, np.uint64))

    def of(self, count: int) -> np.ndarray:
        """(count,) uint8 of the first files: ENGINES, PILLOWS, LIKELY or 0."""
        return decoders(self.words(np.arange(count)))

    def share(self, index_file: Path, samples: str, count: int) -> None:
        """Take from a file beside that of the data set's list what other processes say of these ``samples``, so many,
        and leave there what this one says. A word that is out of date is harmless."""
        file = index_file.with_name(f"{index_file.stem}-{saved.digest(self._engine)}.npz")
        with saved.lock(saved.digest(str(file))):
            stored = saved.load(file)
            theirs = np.zeros(count, np.uint64)
            if stored is not None and stored[0].get("samples") == samples:
                theirs = stored[1].get("words", theirs)
            if theirs.shape != (count,) or theirs.dtype != np.uint64:
                theirs = np.zeros(count, np.uint64)
            with self._lock:
                self._reach(np.array([count - 1]))
                words = self._words[:count] = np.where(self._own[:count], self._words[:count], theirs)
            if not np.array_equal(words, theirs):
                with suppress(OSError):  # a full disk: a later run compares again
                    saved.save(file, {"samples": samples}, {"words": words})

    def _reach(self, index: np.ndarray) -> None:
        top, known = int(index.max(initial=-1)) + 1, len(self._words)
        if top > known:
            words, own = (np.zeros(max(top, 2 * known), dtype) for dtype in (np.uint64, bool))
            words[:known], own[:known] = self._words, self._own
            self._words, self._own = words, own


def decoders(words: np.ndarray) -> np.ndarray:
    """(N,) uint8: who decodes the files that these words are of."""
    return (words & _VERDICT).astype(np.uint8)


def hold(words: np.ndarray, checksums: np.ndarray) -> np.ndarray:
    """(N,) bool: whether words are about bytes of these checksums."""
    return words & ~_VERDICT == checksums


def checksums(memory: np.ndarray, begins: np.ndarray, lengths: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """(N,) uint64, without the bits of a verdict: of files' bytes and of the ``marks`` (N,) of what headers state.

    It is made of the exclusive or of a file's words of eight bytes. Words that begin at other bytes give the same, but
    turned, so it does not matter where in memory a file lies. That takes a tenth of a CRC's time, and finds nearly all
    accidents that happen to files: not one in 64 of two flipped bits, nor words that change places. Who wants to
    deceive himself can.

    Args:
        memory: (bytes,) uint8, in line with words, with eight bytes at least behind the last file.
        begins, lengths: (N,), where the files lie, one behind another or apart.
    """
    if not len(lengths):
        return np.zeros(0, np.uint64)
    words = memory[: len(memory) & -8].view(np.uint64)
    ends = begins + lengths
    first, last = begins >> 3, np.maximum(ends - 1, begins) >> 3
    sums = np.bitwise_xor.reduceat(words, np.column_stack([first, last + 1]).ravel())[::2]
    before, behind = (8 * (begins & 7)).astype(np.uint64), (8 * (-ends & 7)).astype(np.uint64)
    sums ^= words[first] & ~(_ALL << before)  # the bits of others' bytes in these words
    sums ^= words[last] & ~(_ALL >> behind)
    sums = np.where(lengths > 0, sums >> before | sums << (-before & np.uint64(63)), np.uint64(0))
    made = sums * _FACTORS[0] + lengths.astype(np.uint64) * _FACTORS[1] + marks * _FACTORS[2]
    return made & ~_VERDICT
