"""Encoded files of deferred images, and the table of their facts, which worker processes share.

Only files that all decoders read the same are deferred (data/intact.py). For others the user's code has to get Pillow's
pixels or Pillow's error.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
import zlib
from typing import IO, Any

import numpy as np

from ..data.header import DALI, PIL, UNREADABLE, checked_header
from ..data.headers import FACTS, facts_of

_ENTRY = struct.Struct(f"={FACTS.itemsize}sI4x")  # facts and their checksum
_PARTS = struct.Struct("qqqqQqi?BBB")  # fields of FACTS
_HASH = struct.Struct("q")
assert _PARTS.size == FACTS.itemsize
_LEAST, _MOST = 1 << 10, 1 << 22  # entries


class FileSource:
    """An encoded file.

    Attributes:
        path: absolute path.
        slot: index of its entry in the FileTable.
        facts: the entry, as bytes of FACTS.
        size: (width, height) in pixels.
        length: length in bytes.
    """

    __slots__ = ("_status", "facts", "length", "path", "size", "slot")

    def __init__(self, path: str, status: os.stat_result, slot: int, facts: bytes, size: tuple[int, int]):
        self.path, self.slot, self.facts, self.size = path, slot, facts, size
        self._status, self.length = status, status.st_size

    def opened(self) -> IO[bytes]:
        """Open the file.

        Raises:
            OSError: the file is gone, or has changed since the image was opened.
        """
        file = open(self.path, "rb")
        if _identity(os.fstat(file.fileno())) != _identity(self._status):
            file.close()
            raise OSError(f"{self.path} has changed since the data set opened it; write files before loading them")
        return file


class MemorySource:
    """An encoded image in memory.

    Attributes:
        data: the encoded bytes.
        slot, facts, size, length: as in FileSource.
    """

    __slots__ = ("data", "facts", "length", "size", "slot")
    path = ""

    def __init__(self, data: bytes, slot: int, facts: bytes, size: tuple[int, int]):
        self.data, self.slot, self.facts, self.size = data, slot, facts, size
        self.length = len(data)

    def opened(self) -> IO[bytes]:
        """Return a stream of the bytes."""
        return io.BytesIO(self.data)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class FileTable:
    """Facts of encoded images (data/headers.py), found once and kept for all epochs and worker processes.

    The table has a fixed number of entries, two slots for each file, in memory that forked processes share. Processes
    write without a lock, so each entry has a checksum, and an entry that is being overwritten is not found.

    Args:
        count: number of images to expect.
    """

    def __init__(self, count: int):
        self._size = 1 << max(_LEAST, min(_MOST, 2 * count)).bit_length()
        self._map()

    def _map(self) -> None:
        self._entries = mmap.mmap(-1, self._size * _ENTRY.size)  # anonymous: not limited by /dev/shm

    def __getstate__(self) -> dict[str, Any]:
        return {"_size": self._size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._size = state["_size"]  # a spawned process gets an empty table
        self._map()

    def file(self, path: str, status: os.stat_result) -> FileSource | None:
        """Return the source of a file; None if Pillow has to decode it."""
        found = self._find(hash((path, status.st_ino)), path, status.st_ctime_ns, status.st_size)
        return None if found is None else FileSource(path, status, *found)

    def memory(self, data: bytes) -> MemorySource | None:
        """Return the source of encoded bytes; None if Pillow has to decode them."""
        found = self._find(hash(data), data, 0, len(data))
        return None if found is None else MemorySource(data, *found)

    def _find(self, key: int, source: str | bytes, written: int, length: int) -> tuple[int, bytes, Any] | None:
        """Return (slot, facts, (width, height)) if the image may be deferred."""
        first = key & (self._size - 1)
        for slot in (first, first ^ 1):
            facts, checksum = self._entry(slot)
            found, height, width, of_length, _, when, *_, kind = _PARTS.unpack(facts)
            if found == key and when == written and of_length == length and zlib.crc32(facts) == checksum:
                return (slot, facts, (width, height)) if kind == DALI else None
        (other,) = _HASH.unpack_from(self._entries, first * _ENTRY.size)
        slot = first ^ (other != 0 and other != key)
        entry = facts_of([checked_header(source if isinstance(source, str) else np.frombuffer(source, np.uint8))])[0]
        entry["keys"], entry["ctimes"], entry["lengths"] = key, written, length
        facts = entry.tobytes() if entry["kinds"] == UNREADABLE else self._put(slot, entry)
        height, width = entry["sizes"].tolist()
        return (slot, facts, (width, height)) if entry["kinds"] == DALI else None

    def _entry(self, slot: int) -> tuple[bytes, int]:
        facts, checksum = _ENTRY.unpack_from(self._entries, slot * _ENTRY.size)
        return facts, checksum

    def _put(self, slot: int, entry: Any) -> bytes:
        facts: bytes = entry.tobytes()
        _ENTRY.pack_into(self._entries, slot * _ENTRY.size, facts, zlib.crc32(facts))
        return facts

    def leave_to_pillow(self, slot: int, key: int) -> None:
        """Record that DALI failed to decode a file, so that it is no longer deferred."""
        entry = np.frombuffer(self._entry(slot)[0], FACTS)[0].copy()
        if entry["keys"] == key:
            entry["kinds"] = PIL
            self._put(slot, entry)
