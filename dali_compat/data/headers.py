"""Headers of a data set's images: from their sizes ops/ computes all geometry on the host.

They are kept for the life of the data set. Processes of their own read headers, too: nothing here imports torch.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from ..runtime.forks import new_lock
from .header import DALI, PIL, STATED, UNKNOWN, UNREADABLE, Header, read_header
from .sources import Source
from .verdicts import ENGINES, LIKELY, PILLOWS, Verdicts

_SAMPLE, _SLOW, _THREADS = 16, 200e-6, 32  # files to time, seconds a file, threads
_FACTORS = np.random.default_rng(0).integers(0, 1 << 63, STATED // 8, np.uint64) * np.uint64(2) + np.uint64(1)

T = TypeVar("T")


class IdentityWeakDict(Generic[T]):
    """Like a WeakKeyDictionary, by identity: a data set may not be hashable."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref, T]] = {}

    def get(self, owner: Any, make: Callable[[], T]) -> T:
        """Returns what is kept for an object; what ``make`` gives, where that is nothing yet."""
        key = id(owner)
        known = self._kept.get(key)
        if known is None or known[0]() is not owner:
            known = weakref.ref(owner, lambda gone: self._forget(key, gone)), make()
            self._kept[key] = known
        return known[1]

    def put(self, owner: Any, value: T) -> None:
        """Keep another."""
        key = id(owner)
        self._kept[key] = weakref.ref(owner, lambda gone: self._forget(key, gone)), value

    def _forget(self, key: int, gone: weakref.ref) -> None:
        if key in self._kept and self._kept[key][0] is gone:
            del self._kept[key]


class Facts(NamedTuple):
    """The known facts of N files.

    Attributes:
        sizes: (N, 2) int64, (height, width).
        lengths: (N,) int64, in bytes.
        stated_at: (N,) int32, where the bytes are that state the size.
        marks: (N,) uint64, of these bytes.
        intact: (N,) bool, whether all are known to be intact.
        chroma: (N,) uint8, as Header's.
        written: (N,) int64, likewise.
        orientations: (N,) uint8, likewise.
        kinds: (N,) uint8, DALI, PIL, UNREADABLE or UNKNOWN. The last that put() sets: an interrupt may stop it.
    """

    sizes: np.ndarray
    lengths: np.ndarray
    stated_at: np.ndarray
    marks: np.ndarray
    intact: np.ndarray
    chroma: np.ndarray
    written: np.ndarray
    orientations: np.ndarray
    kinds: np.ndarray

    @classmethod
    def empty(cls, count: int, side: type = np.int64) -> Facts:
        """Facts of ``count`` files of which nothing is known; ``side`` is the dtype of sizes."""
        dtypes = np.int64, np.int32, np.uint64, np.bool_, np.uint8, np.int64, np.uint8, np.uint8
        return cls(np.zeros((count, 2), side), *(np.zeros(count, dtype) for dtype in dtypes))

    def take(self, index: np.ndarray | slice) -> Facts:
        """Returns those at ``index``."""
        return Facts(*(array[index] for array in self))

    def put(self, index: np.ndarray | slice, facts: Facts) -> None:
        """Set those at ``index``."""
        for array, values in zip(self, facts, strict=True):
            array[index] = values


class JpegCounts(NamedTuple):
    """Counts of a data set's files that a GPU's JPEG engine decodes, and why not more.

    Attributes:
        engines: it gives Pillow's pixels of these.
        likely: it decodes them, too, for they are like these.
        others: it gives others, or refuses them.
        waiting: they are to be compared.
        large: they have too many pixels.
        unseen: nobody has looked at them.
    """

    engines: int
    likely: int
    others: int
    waiting: int
    large: int
    unseen: int


class Headers:
    """Facts of the images of a data set, read at first sight. Whether a file's bytes are intact (intact.py) is asked
    then, or when DALI has read them."""

    def __init__(self):
        self._lock = new_lock()  # loaders in several threads share it
        self._facts = Facts.empty(0)
        self._keys = np.zeros(0, np.int64)  # hashes of the sources, for data sets may change their samples
        self._verdicts: dict[str, Verdicts] = {}  # about JPEGs, by the engine

    def facts(self, index: np.ndarray, keys: np.ndarray, source: Callable[[int], Source]) -> Facts:
        """All that is known of the images at ``index`` (0 and up); ``keys`` are the hashes of their sources, and
        ``source(i)`` is that of ``index[i]``. What is UNREADABLE is read again each time: the file may be mended."""
        with self._lock:
            unknown = np.flatnonzero(self.unknown(index, keys))
            if len(unknown):
                found = facts_of(_read_many([source(i) for i in unknown.tolist()]))
                self._put(index[unknown], keys[unknown], found)
            known = self._facts.take(index)
        return _allowed(known._replace(sizes=known.sizes.astype(np.int64)))

    def unknown(self, index: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """(N,) bool: whose header is to be read, or was not readable."""
        with self._lock:
            top = int(index.max(initial=-1)) + 1
            if top > len(self._keys):
                self._allocate(max(top, 2 * len(self._keys)))
            kinds = self._facts.kinds[index]
            return (kinds == UNKNOWN) | (kinds == UNREADABLE) | (self._keys[index] != keys)

    def add(self, index: np.ndarray, keys: np.ndarray, facts: Facts) -> None:
        """Returns what somebody has read meanwhile, where it is still unknown."""
        with self._lock:
            unknown = np.flatnonzero(self.unknown(index, keys))
            self._put(index[unknown], keys[unknown], facts.take(unknown))

    def unseen(self, count: int) -> int:
        """Returns how many of the first ``count`` were never looked at."""
        with self._lock:
            return count - int(np.count_nonzero(self._facts.kinds[:count]))

    def _put(self, at: np.ndarray, keys: np.ndarray, facts: Facts) -> None:
        changed = at[(self._facts.kinds[at] != UNKNOWN) & (self._keys[at] != keys)]  # samples of the data set
        for verdicts in self._verdicts.values():
            verdicts.forget(changed)
        self._facts.kinds[at], self._keys[at] = UNKNOWN, keys
        self._facts.put(at, facts)

    def set_intact(self, index: np.ndarray | list[int]) -> None:
        with self._lock:
            self._facts.intact[index] = True

    def use_pil(self, index: int) -> None:
        """DALI has failed on this file, or may read it otherwise."""
        with self._lock:
            self._facts.kinds[index] = PIL

    def forget(self, index: int) -> None:
        """The file has changed."""
        with self._lock:
            self._facts.kinds[index] = UNKNOWN
            for verdicts in self._verdicts.values():
                verdicts.forget(index)

    def verdicts(self, engine: str) -> Verdicts:
        """About the files, of the JPEG engine of this name."""
        with self._lock:
            return self._verdicts.setdefault(engine, Verdicts(engine))

    def jpegs(self, engine: str, chroma: np.ndarray, most: int, count: int) -> JpegCounts:
        """Returns which of the first ``count`` files are JPEGs for the engine. The engine of this name takes ``chroma``
        (256,) bool, and ``most`` pixels."""
        with self._lock:
            if count > len(self._keys):
                self._allocate(count)
            known, verdicts = self._facts.take(slice(count)), self.verdicts(engine).of(count)
        takes = (known.kinds == DALI) & chroma[known.chroma] & (verdicts == 0)
        large = takes & (known.sizes.astype(np.int64).prod(1) > most)
        unseen = (known.kinds == UNKNOWN) & (verdicts == 0)
        found = verdicts == ENGINES, verdicts == LIKELY, verdicts == PILLOWS, takes & ~large, large, unseen
        return JpegCounts(*(int(np.count_nonzero(one)) for one in found))

    def _allocate(self, count: int) -> None:
        facts, keys, known = Facts.empty(count, np.int32), np.zeros(count, np.int64), slice(len(self._keys))
        facts.put(known, self._facts.take(known))
        keys[known] = self._keys
        self._facts, self._keys = facts, keys


_of_dataset: IdentityWeakDict[Headers] = IdentityWeakDict()


def headers_of(dataset) -> Headers:
    """The headers of a data set, shared by all loaders over it."""
    return _of_dataset.get(dataset, Headers)


def share_headers(dataset, other) -> None:
    """Give a data set the headers of another, which has the same files."""
    _of_dataset.put(dataset, headers_of(other))


def marks(stated: np.ndarray) -> np.ndarray:
    """(N,) uint64, a checksum of each row of ``stated``, (N, STATED) uint8. Rows that differ in one of their words of
    eight bytes have different ones; those that differ in more nearly always."""
    return (np.ascontiguousarray(stated).view(np.uint64) * _FACTORS).sum(1, dtype=np.uint64)


def facts_of(headers: list[Header]) -> Facts:
    """Returns what headers say of their files."""
    kinds, heights, widths, lengths, stated_at, stated, intact, chroma, written, turns = zip(*headers, strict=True)
    known = marks(np.frombuffer(b"".join(stated), np.uint8).reshape(-1, STATED))
    sizes, places = np.array([heights, widths]).T, np.array(stated_at, np.int32)
    times = np.array(written, np.int64)
    engine, orientations, kind = (np.array(numbers, np.uint8) for numbers in (chroma, turns, kinds))
    return Facts(sizes, np.array(lengths), places, known, np.array(intact), engine, times, orientations, kind)


def _allowed(facts: Facts) -> Facts:
    """PIL warns of an image above its limit, or refuses it; the limit may change at any time."""
    if Image.MAX_IMAGE_PIXELS:
        sizes, kinds = facts.sizes, facts.kinds
        kinds[(kinds == DALI) & (sizes[:, 0] * sizes[:, 1] > Image.MAX_IMAGE_PIXELS)] = PIL
    return facts


def _read_many(sources: list[Source]) -> list[Header]:
    """One after another where that is quick (threads would only wait for Python), in threads where the disk is slow."""
    begin = time.perf_counter()
    found = [read_header(source) for source in sources[:_SAMPLE]]
    rest = sources[_SAMPLE:]
    if time.perf_counter() - begin < _SAMPLE * _SLOW:
        return found + [read_header(source) for source in rest]
    with ThreadPoolExecutor(_THREADS) as pool:
        return found + list(pool.map(read_header, rest))
