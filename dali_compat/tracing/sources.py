"""Encoded files that images are deferred to, and the table of what is known of them, shared by worker processes.

Only files that every decoder reads alike are deferred (data/intact.py): of others the user's code has to meet Pillow's
pixels, or Pillow's error.
"""

from __future__ import annotations

import io
import mmap
import os
import zlib
from typing import IO, Any

import numpy as np

from ..data.header import DALI, PIL, read_header
from ..data.headers import FACTS, facts_of
from ..data.intact import is_intact

_ENTRY = np.dtype([("facts", FACTS), ("checksum", np.uint32)], align=True)
_LEAST, _MOST = 1 << 10, 1 << 22  # entries


class FileSource:
    """A file by its path.

    Attributes:
        path: absolute.
        slot, facts: its place in the FileTable, and the entry there.
    """

    __slots__ = ("_identity", "facts", "path", "slot")

    def __init__(self, path: str, status: os.stat_result, slot: int, facts: Any):
        self.path, self.slot, self.facts = path, slot, facts
        self._identity = _identity(status)

    def opened(self) -> IO[bytes]:
        """Open the file.

        Raises:
            OSError: it is gone, or has changed since the image was opened.
        """
        file = open(self.path, "rb")
        if _identity(os.fstat(file.fileno())) != self._identity:
            file.close()
            raise OSError(f"{self.path} has changed since the data set opened it; write files before they are loaded")
        return file


class MemorySource:
    """An encoded image in memory.

    Attributes:
        data: its bytes.
        slot, facts: as FileSource's.
    """

    __slots__ = ("data", "facts", "slot")
    path = ""

    def __init__(self, data: bytes, slot: int, facts: Any):
        self.data, self.slot, self.facts = data, slot, facts

    def opened(self) -> IO[bytes]:
        """Open the bytes."""
        return io.BytesIO(self.data)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class FileTable:
    """Facts of encoded images (data/headers.py), found once and kept for all epochs and worker processes.

    A fixed number of entries in memory that forked processes share, two places for each file. Processes write without a
    lock, so each entry has a checksum: an entry that is overwritten meanwhile is not found.

    Args:
        count: number of images to expect.
    """

    def __init__(self, count: int):
        self._size = 1 << max(_LEAST, min(_MOST, 2 * count)).bit_length()
        self._map()

    def _map(self) -> None:
        memory = mmap.mmap(-1, self._size * _ENTRY.itemsize)  # anonymous: not limited by /dev/shm
        self._entries = np.frombuffer(memory, _ENTRY)

    def __getstate__(self) -> dict[str, Any]:
        return {"_size": self._size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._size = state["_size"]  # a spawned process has a table of its own
        self._map()

    def file(self, path: str, status: os.stat_result) -> FileSource | None:
        """Return the source of a file; None if Pillow has to decode it."""
        found = self._find(hash((path, status.st_ino)), path, status.st_ctime_ns, status.st_size)
        return None if found is None else FileSource(path, status, *found)

    def memory(self, data: bytes) -> MemorySource | None:
        """Return the source of encoded bytes; None if Pillow has to decode them."""
        found = self._find(hash(data), data, 0, len(data))
        return None if found is None else MemorySource(data, *found)

    def _find(self, key: int, source: str | bytes, written: int, length: int) -> tuple[int, Any] | None:
        """Return (slot, facts) if the image may be deferred."""
        first = key & (self._size - 1)
        for slot in (first, first ^ 1):
            entry = self._entries[slot]
            facts = entry["facts"].copy()
            same = facts["keys"] == key and (facts["written"], facts["lengths"]) == (written, length)
            if same and zlib.crc32(facts.tobytes()) == entry["checksum"]:
                return (slot, facts) if facts["kinds"] == DALI else None
        other = self._entries[first]["facts"]["keys"]
        slot = first ^ (other != 0 and other != key)
        facts = _looked_up(source)
        facts["keys"], facts["written"], facts["lengths"] = key, written, length
        self._put(slot, facts)
        return (slot, facts) if facts["kinds"] == DALI else None

    def _put(self, slot: int, facts: Any) -> None:
        self._entries[slot] = facts, zlib.crc32(facts.tobytes())

    def leave_to_pillow(self, slot: int, key: int) -> None:
        """Record that DALI failed on a file, so that it is no longer deferred."""
        facts = self._entries[slot]["facts"].copy()
        if facts["keys"] == key:
            facts["kinds"] = PIL
            self._put(slot, facts)


def _looked_up(source: str | bytes) -> Any:
    """Read an image's header and check its structure. Return its facts, of kind DALI or PIL."""
    given: Any = source if isinstance(source, str) else np.frombuffer(source, np.uint8)
    header = read_header(given)
    facts = facts_of([header])[0]
    if header.kind == DALI and (header.intact or is_intact(given)):
        facts["intact"] = True
    else:
        facts["kinds"] = PIL
    return facts
