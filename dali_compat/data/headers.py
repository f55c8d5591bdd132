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
        known = self._kept.get(id(owner))
        if known is None or known[0]() is not owner:
            return self.put(owner, make())
        return known[1]

    def put(self, owner: Any, value: T) -> T:
        """Keeps a value for an object, and returns it."""
        key = id(owner)
        self._kept[key] = weakref.ref(owner, lambda gone: self._forget(key, gone)), value
        return value

    def _forget(self, key: int, gone: weakref.ref) -> None:
        if key in self._kept and self._kept[key][0] is gone:
            del self._kept[key]


FACTS = np.dtype(
    [
        ("keys", np.int64),  # hash of the source, for data sets may change their samples
        ("sizes", np.int64, 2),  # (height, width)
        ("lengths", np.int64),  # in bytes
        ("marks", np.uint64),  # of the bytes that state the size
        ("written", np.int64),  # as Header's; so are chroma and orientations
        ("stated_at", np.int32),  # where the bytes are that state the size
        ("intact", np.bool_),  # all are known to be intact
        ("chroma", np.uint8),
        ("orientations", np.uint8),
        ("kinds", np.uint8),  # DALI, PIL, UNREADABLE or UNKNOWN
    ],
    align=True,
)
"""The known facts of a file. Those of N files are an array of these, (N,)."""


class JpegCounts(NamedTuple):
    """Counts of a data set's files that a GPU's JPEG engine decodes, and why not more."""

    engines: int  # it gives Pillow's pixels of these
    likely: int  # it decodes them, too, for they are like these
    others: int  # it gives others, or refuses them
    waiting: int  # they are to be compared
    large: int  # they have too many pixels
    unseen: int  # nobody has looked at them


class Headers:
    """Facts of the images of a data set, read at first sight. Whether a file's bytes are intact (intact.py) is asked
    then, or when DALI has read them."""

    def __init__(self):
        self._lock = new_lock()  # loaders in several threads share it
        self._facts = np.zeros(0, FACTS)
        self._verdicts: dict[str, Verdicts] = {}  # about JPEGs, by the engine

    def facts(self, index: np.ndarray, keys: np.ndarray, source: Callable[[int], Source]) -> np.ndarray:
        """All that is known of the images at ``index`` (0 and up); ``keys`` are the hashes of their sources, and
        ``source(i)`` is that of ``index[i]``. What is UNREADABLE is read again each time: the file may be mended."""
        with self._lock:
            unknown = np.flatnonzero(self.unknown(index, keys))
            if len(unknown):
                found = facts_of(_read_many([source(i) for i in unknown.tolist()]))
                self._put(index[unknown], keys[unknown], found)
            return _allowed(self._facts[index])

    def unknown(self, index: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """(N,) bool: whose header is to be read, or was not readable."""
        with self._lock:
            top = int(index.max(initial=-1)) + 1
            if top > len(self._facts):
                self._allocate(max(top, 2 * len(self._facts)))
            known = self._facts[index]
            return (known["kinds"] == UNKNOWN) | (known["kinds"] == UNREADABLE) | (known["keys"] != keys)

    def add(self, index: np.ndarray, keys: np.ndarray, facts: np.ndarray) -> None:
        """Takes what somebody has read meanwhile, where it is still unknown."""
        with self._lock:
            unknown = np.flatnonzero(self.unknown(index, keys))
            self._put(index[unknown], keys[unknown], facts[unknown])

    def unseen(self, count: int) -> int:
        """Returns how many of the first ``count`` were never looked at."""
        with self._lock:
            return count - int(np.count_nonzero(self._facts["kinds"][:count]))

    def _put(self, at: np.ndarray, keys: np.ndarray, facts: np.ndarray) -> None:
        known = self._facts[at]
        changed = at[(known["kinds"] != UNKNOWN) & (known["keys"] != keys)]  # samples of the data set
        for verdicts in self._verdicts.values():
            verdicts.forget(changed)
        facts["keys"] = keys
        self._facts[at] = facts

    def set_intact(self, index: int) -> None:
        """DALI and PIL read this file alike."""
        with self._lock:
            self._facts["intact"][index] = True

    def use_pil(self, index: int) -> None:
        """DALI has failed on this file, or may read it otherwise."""
        with self._lock:
            self._facts["kinds"][index] = PIL

    def forget(self, index: int) -> None:
        """The file has changed."""
        with self._lock:
            self._facts["kinds"][index] = UNKNOWN
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
            if count > len(self._facts):
                self._allocate(count)
            known, verdicts = self._facts[:count], self.verdicts(engine).of(count)
        takes = (known["kinds"] == DALI) & chroma[known["chroma"]] & (verdicts == 0)
        large = takes & (known["sizes"].prod(1) > most)
        unseen = (known["kinds"] == UNKNOWN) & (verdicts == 0)
        found = verdicts == ENGINES, verdicts == LIKELY, verdicts == PILLOWS, takes & ~large, large, unseen
        return JpegCounts(*(int(np.count_nonzero(one)) for one in found))

    def _allocate(self, count: int) -> None:
        facts = np.zeros(count, FACTS)
        facts[: len(self._facts)] = self._facts
        self._facts = facts


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


def facts_of(headers: list[Header]) -> np.ndarray:
    """Returns what headers say of their files, as FACTS; keys are 0."""
    rows = [(0, x[1:3], x.length, 0, x.written, x.at, x.intact, x.chroma, x.orientation, x.kind) for x in headers]
    made = np.array(rows, FACTS)
    made["marks"] = marks(np.frombuffer(b"".join(one.stated for one in headers), np.uint8).reshape(-1, STATED))
    return made


def _allowed(facts: np.ndarray) -> np.ndarray:
    """PIL warns of an image above its limit, or refuses it; the limit may change at any time."""
    if Image.MAX_IMAGE_PIXELS:
        kinds = facts["kinds"]
        kinds[(kinds == DALI) & (facts["sizes"].prod(1) > Image.MAX_IMAGE_PIXELS)] = PIL
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
