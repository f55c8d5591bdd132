"""Headers of a data set's images. ops/ computes all geometry on the host from their sizes.

They are kept for the lifetime of the data set. Separate processes read headers, too, so nothing here imports torch.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from ..runtime.forks import new_lock
from .header import DALI, PIL, SIZE_FIELD, UNKNOWN, UNREADABLE, Header, checked_header, read_header
from .sources import Source
from .verdicts import BY_ENGINE, BY_PILLOW, LIKELY, Verdicts

_SAMPLE, _SLOW, _THREADS = 16, 200e-6, 32  # files to time, seconds per file, threads
_FACTORS = np.random.default_rng(0).integers(0, 1 << 63, SIZE_FIELD // 8, np.uint64) * np.uint64(2) + np.uint64(1)

T = TypeVar("T")


class IdentityWeakDict(Generic[T]):
    """Like a WeakKeyDictionary, but keyed by identity, because a data set may not be hashable."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref, T]] = {}

    def get(self, owner: Any, make: Callable[[], T]) -> T:
        """Return the value of an object. If there is none, store and return ``make()``."""
        known = self._kept.get(id(owner))
        if known is None or known[0]() is not owner:
            return self.put(owner, make())
        return known[1]

    def put(self, owner: Any, value: T) -> T:
        """Store a value for an object, and return it."""
        key = id(owner)
        self._kept[key] = weakref.ref(owner, lambda gone: self._forget(key, gone)), value
        return value

    def _forget(self, key: int, gone: weakref.ref) -> None:
        if key in self._kept and self._kept[key][0] is gone:
            del self._kept[key]


FACTS = np.dtype(
    [
        ("keys", np.int64),  # hash of the source, because data sets may change their samples
        ("sizes", np.int64, 2),  # (height, width)
        ("lengths", np.int64),  # in bytes
        ("header_hashes", np.uint64),  # checksum of the bytes that contain the size
        ("ctimes", np.int64),  # as in Header, like chroma and orientations
        ("size_field_at", np.int32),  # position of the bytes that contain the size
        ("intact", np.bool_),  # True if all bytes are known to be intact
        ("chroma", np.uint8),
        ("orientations", np.uint8),
        ("kinds", np.uint8),  # DALI, PIL, UNREADABLE or UNKNOWN
    ],
    align=True,
)
"""Known facts of a file. The facts of N files are an array of this dtype, (N,)."""


class JpegCounts(NamedTuple):
    """Numbers of a data set's JPEGs by decoder, for a GPU's JPEG engine."""

    engines: int  # compared, and equal to Pillow's pixels
    likely: int  # decoded by the engine without a comparison, because they are similar to these
    others: int  # different from Pillow's pixels, or not supported by the engine
    waiting: int  # not compared yet
    large: int  # above the engine's limit of pixels
    unseen: int  # header not read yet


class Headers:
    """Facts of the images of a data set, read at first use. Whether a file's bytes are intact (intact.py) is checked
    then, or when DALI has read them."""

    def __init__(self):
        self._lock = new_lock()  # shared by loaders in several threads
        self._facts = np.zeros(0, FACTS)
        self._verdicts: dict[str, Verdicts] = {}  # on JPEGs, keyed by engine

    def facts(
        self, index: np.ndarray, keys: np.ndarray, source: Callable[[int], Source], ctimes: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the facts of the images at ``index`` (nonnegative). ``keys`` are the hashes of their sources, and
        ``source(i)`` returns the source of ``index[i]``. Facts of UNREADABLE images are read again each time, because
        the file may have been repaired. ``ctimes`` are those of the files, -1 for files that will not be read. If a
        file has changed, all of it is checked, because DALI's decoders print errors of damaged files to stderr."""
        with self._lock:
            unread = self.unknown(index, keys)
            changed = np.zeros_like(unread)
            if ctimes is not None:
                known = self._facts[index]
                changed = (known["kinds"] == DALI) & ~unread & (ctimes >= 0) & (known["ctimes"] != ctimes)
                self.forget(index[changed])
            unknown = np.flatnonzero(unread | changed)
            if len(unknown):
                reads = [partial(checked_header if changed[i] else read_header, source(i)) for i in unknown.tolist()]  # type: ignore[arg-type]  # checked_header() gets paths
                self._put(index[unknown], keys[unknown], facts_of(_read_many(reads)))
            return _allowed(self._facts[index])

    def unknown(self, index: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return a bool array of shape (N,): whether the header is not known yet, or was not readable."""
        with self._lock:
            top = int(index.max(initial=-1)) + 1
            if top > len(self._facts):
                self._allocate(2 * top)  # unused memory is not touched, but a copy would touch all of it
            known = self._facts[index]
            return (known["kinds"] == UNKNOWN) | (known["kinds"] == UNREADABLE) | (known["keys"] != keys)

    def add(self, index: np.ndarray, keys: np.ndarray, facts: np.ndarray) -> None:
        """Store facts that were read elsewhere, for images that are still unknown."""
        with self._lock:
            unknown = np.flatnonzero(self.unknown(index, keys))
            self._put(index[unknown], keys[unknown], facts[unknown])

    def unseen(self, count: int) -> int:
        """Return how many of the first ``count`` headers were never read."""
        with self._lock:
            return count - int(np.count_nonzero(self._facts["kinds"][:count]))

    def _put(self, at: np.ndarray, keys: np.ndarray, facts: np.ndarray) -> None:
        known = self._facts[at]
        # positions whose sample was replaced in the data set
        changed = at[(known["kinds"] != UNKNOWN) & (known["keys"] != keys)]
        for verdicts in self._verdicts.values():
            verdicts.forget(changed)
        facts["keys"] = keys
        self._facts[at] = facts

    def set_intact(self, index: int) -> None:
        """Record that DALI and PIL decode this file in the same way."""
        with self._lock:
            self._facts["intact"][index] = True

    def use_pil(self, index: int) -> None:
        """Record that PIL must decode this file, because DALI failed or may differ."""
        with self._lock:
            self._facts["kinds"][index] = PIL

    def forget(self, index: int | np.ndarray) -> None:
        """Drop the cached headers of files that have changed."""
        with self._lock:
            self._facts["kinds"][index] = UNKNOWN
            for verdicts in self._verdicts.values():
                verdicts.forget(index)

    def verdicts(self, engine: str) -> Verdicts:
        """Return the verdicts of a JPEG engine on the files."""
        with self._lock:
            return self._verdicts.setdefault(engine, Verdicts(engine))

    def jpegs(self, engine: str, chroma: np.ndarray, most: int, count: int) -> JpegCounts:
        """Return how many of the first ``count`` files are JPEGs for an engine that supports ``chroma``, (256,) bool,
        and at most ``most`` pixels."""
        with self._lock:
            if count > len(self._facts):
                self._allocate(count)
            known, verdicts = self._facts[:count], self.verdicts(engine).decoders(count)
        takes = (known["kinds"] == DALI) & chroma[known["chroma"]] & (verdicts == 0)
        large = takes & (known["sizes"].prod(1) > most)
        unseen = (known["kinds"] == UNKNOWN) & (verdicts == 0)
        found = verdicts == BY_ENGINE, verdicts == LIKELY, verdicts == BY_PILLOW, takes & ~large, large, unseen
        return JpegCounts(*(int(np.count_nonzero(one)) for one in found))

    def _allocate(self, count: int) -> None:
        facts = np.zeros(count, FACTS)
        facts[: len(self._facts)] = self._facts
        self._facts = facts


_headers: IdentityWeakDict[Headers] = IdentityWeakDict()


def headers_of(dataset) -> Headers:
    """Return the headers of a data set, shared by all loaders over it."""
    return _headers.get(dataset, Headers)


def header_hashes(size_field: np.ndarray) -> np.ndarray:
    """Return a checksum of each row of ``size_field``, (N, SIZE_FIELD) uint8, as uint64 of shape (N,). It differs if
    exactly one word of eight bytes differs, and almost always if more do."""
    return (np.ascontiguousarray(size_field).view(np.uint64) * _FACTORS).sum(1, dtype=np.uint64)


def facts_of(headers: list[Header]) -> np.ndarray:
    """Convert headers to FACTS, with keys of 0."""
    rows = [(0, x[1:3], x.length, 0, x.ctime, x.at, x.intact, x.chroma, x.orientation, x.kind) for x in headers]
    facts = np.array(rows, FACTS)
    size_field = np.frombuffer(b"".join(one.size_field for one in headers), np.uint8)
    facts["header_hashes"] = header_hashes(size_field.reshape(-1, SIZE_FIELD))
    return facts


def _allowed(facts: np.ndarray) -> np.ndarray:
    """Use PIL for images above its size limit, for which it warns or raises an error. The limit may change at any
    time."""
    if Image.MAX_IMAGE_PIXELS:
        kinds = facts["kinds"]
        kinds[(kinds == DALI) & (facts["sizes"].prod(1) > Image.MAX_IMAGE_PIXELS)] = PIL
    return facts


def _read_many(reads: list[partial[Header]]) -> list[Header]:
    """Read headers sequentially if that is fast, because threads would only wait for the interpreter, and in threads if
    the disk is slow."""
    begin = time.perf_counter()
    found = [read() for read in reads[:_SAMPLE]]
    rest = reads[_SAMPLE:]
    if time.perf_counter() - begin < _SAMPLE * _SLOW:
        return found + [read() for read in rest]
    with ThreadPoolExecutor(_THREADS) as pool:
        return found + list(pool.map(partial.__call__, rest))
