"""Cache of the headers of a data set's images.

The cache lives as long as the data set. The processes of prefetch.py import this module, so it does not import torch.
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

_SAMPLE, _SLOW, _THREADS = 16, 200e-6, 32  # files to time, seconds per file on a slow disk, threads
_FACTORS = np.random.default_rng(0).integers(0, 1 << 63, SIZE_FIELD // 8, np.uint64) * np.uint64(2) + np.uint64(1)

T = TypeVar("T")


class IdentityWeakDict(Generic[T]):
    """A WeakKeyDictionary keyed by identity, because a data set may be unhashable."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref, T]] = {}

    def get(self, owner: Any, make: Callable[[], T]) -> T:
        """Return the value stored for ``owner``. If there is none, store and return ``make()``."""
        known = self._kept.get(id(owner))
        if known is None or known[0]() is not owner:
            return self.put(owner, make())
        return known[1]

    def put(self, owner: Any, value: T) -> T:
        key = id(owner)
        self._kept[key] = weakref.ref(owner, lambda gone: self._forget(key, gone)), value
        return value

    def _forget(self, key: int, gone: weakref.ref) -> None:
        if key in self._kept and self._kept[key][0] is gone:
            del self._kept[key]


FACTS = np.dtype(
    [
        ("keys", np.int64),  # hash of the source, to detect a replaced sample
        ("sizes", np.int64, 2),  # (height, width)
        ("lengths", np.int64),  # in bytes
        ("header_hashes", np.uint64),  # checksum of Header.size_field
        ("ctimes", np.int64),  # this and the following fields are as in Header
        ("size_field_at", np.int32),  # Header.at
        ("intact", np.bool_),
        ("chroma", np.uint8),
        ("orientations", np.uint8),
        ("kinds", np.uint8),  # DALI, PIL, UNREADABLE or UNKNOWN
    ],
    align=True,
)
"""dtype of an array of shape (N,) with the headers of N images."""


class JpegCounts(NamedTuple):
    """Counts of a data set's JPEGs, by decoder."""

    engines: int  # decoded by the engine, whose pixels equal Pillow's
    likely: int  # decoded by the engine without a comparison
    others: int  # decoded by Pillow, because the engine's pixels differ
    waiting: int  # not compared yet
    large: int  # not compared, because they have too many pixels
    unseen: int  # header not read yet


class Headers:
    """Cache of the headers of a data set's images. Each header is read at first use."""

    def __init__(self):
        self._lock = new_lock()  # shared by loaders in several threads
        self._facts = np.zeros(0, FACTS)
        self._verdicts: dict[str, Verdicts] = {}  # on JPEGs, keyed by engine

    def facts(
        self, index: np.ndarray, keys: np.ndarray, source: Callable[[int], Source], ctimes: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the headers of N images, as an array (N,) of dtype FACTS.

        Headers that are not cached, or are cached as UNREADABLE, are read. If a file's ctime has changed, all its bytes
        are read and checked again, because DALI would print errors of a damaged file to stderr.

        Args:
            index: (N,), nonnegative.
            keys: (N,), hashes of the sources.
            source: takes i and returns the source of image ``index[i]``.
            ctimes: (N,), current ctimes of the files; -1 for a file that will not be decoded. If None, no file counts
                as changed.
        """
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
        """Return a bool array (N,), True for images with unread headers."""
        with self._lock:
            top = int(index.max(initial=-1)) + 1
            if top > len(self._facts):
                self._allocate(2 * top)  # unused zeros take no memory
            known = self._facts[index]
            return (known["kinds"] == UNKNOWN) | (known["kinds"] == UNREADABLE) | (known["keys"] != keys)

    def add(self, index: np.ndarray, keys: np.ndarray, facts: np.ndarray) -> None:
        """Store headers from prefetch.py, except those that are cached already."""
        with self._lock:
            unknown = np.flatnonzero(self.unknown(index, keys))
            self._put(index[unknown], keys[unknown], facts[unknown])

    def unseen(self, count: int) -> int:
        """Return how many of the first ``count`` headers are not cached."""
        with self._lock:
            return count - int(np.count_nonzero(self._facts["kinds"][:count]))

    def _put(self, at: np.ndarray, keys: np.ndarray, facts: np.ndarray) -> None:
        known = self._facts[at]
        # indices whose sample was replaced in the data set
        changed = at[(known["kinds"] != UNKNOWN) & (known["keys"] != keys)]
        for verdicts in self._verdicts.values():
            verdicts.forget(changed)
        facts["keys"] = keys
        self._facts[at] = facts

    def set_intact(self, index: int | np.ndarray) -> None:
        """Record that DALI and PIL decode the files at ``index`` in the same way."""
        with self._lock:
            self._facts["intact"][index] = True

    def use_pil(self, index: int | np.ndarray) -> None:
        """Record that PIL must decode the files at ``index``."""
        with self._lock:
            self._facts["kinds"][index] = PIL

    def forget(self, index: int | np.ndarray) -> None:
        """Drop the cached headers and verdicts of the files at ``index``."""
        with self._lock:
            self._facts["kinds"][index] = UNKNOWN
            for verdicts in self._verdicts.values():
                verdicts.forget(index)

    def verdicts(self, engine: str) -> Verdicts:
        with self._lock:
            return self._verdicts.setdefault(engine, Verdicts(engine))

    def jpegs(self, engine: str, chroma: np.ndarray, most: int, count: int) -> JpegCounts:
        """Count the JPEGs among the first ``count`` files, by decoder.

        ``chroma`` is (256,) bool, True for each Header.chroma that the engine supports. JPEGs of more than ``most``
        pixels are counted as ``large``.
        """
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
    """Return the Headers of a data set. All its loaders share them."""
    return _headers.get(dataset, Headers)


def header_hashes(size_field: np.ndarray) -> np.ndarray:
    """Return a checksum (N,) uint64 of each row of ``size_field``, (N, SIZE_FIELD) uint8.

    Two checksums differ if exactly one 8-byte word differs, and almost always if more words differ.
    """
    return (np.ascontiguousarray(size_field).view(np.uint64) * _FACTORS).sum(1, dtype=np.uint64)


def facts_of(headers: list[Header]) -> np.ndarray:
    """Convert N headers to an array (N,) of dtype FACTS. Its ``keys`` are 0."""
    rows = [(0, x[1:3], x.length, 0, x.ctime, x.at, x.intact, x.chroma, x.orientation, x.kind) for x in headers]
    facts = np.array(rows, FACTS)
    size_field = np.frombuffer(b"".join(one.size_field for one in headers), np.uint8)
    facts["header_hashes"] = header_hashes(size_field.reshape(-1, SIZE_FIELD))
    return facts


def _allowed(facts: np.ndarray) -> np.ndarray:
    """Set the decoder to PIL for images of more than Image.MAX_IMAGE_PIXELS. PIL then warns or raises an error."""
    if Image.MAX_IMAGE_PIXELS:
        kinds = facts["kinds"]
        kinds[(kinds == DALI) & (facts["sizes"].prod(1) > Image.MAX_IMAGE_PIXELS)] = PIL
    return facts


def _read_many(reads: list[partial[Header]]) -> list[Header]:
    begin = time.perf_counter()
    found = [read() for read in reads[:_SAMPLE]]
    rest = reads[_SAMPLE:]
    if time.perf_counter() - begin < _SAMPLE * _SLOW:
        return found + [read() for read in rest]
    with ThreadPoolExecutor(_THREADS) as pool:  # on a fast disk, threads would only wait for the GIL
        return found + list(pool.map(partial.__call__, rest))
