"""Encoded files of deferred images, and the table of their headers, which worker processes share.

A file is deferred only if all decoders return the same pixels (data/intact.py). Otherwise the user's code has to get
Pillow's pixels or Pillow's error.
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

_ENTRY = struct.Struct(f"={FACTS.itemsize}sI4x")  # header record and its checksum
_FIELDS = struct.Struct("qqqqQqi?BBB")  # of FACTS
_KEY = struct.Struct("q")  # the first field
assert _FIELDS.size == FACTS.itemsize
_MIN_ENTRIES, _MAX_ENTRIES = 1 << 10, 1 << 22


class FileSource:
    """An encoded file.

    Attributes:
        path: absolute path.
        slot: index in the FileTable.
        header_record: size, decoder and other properties (FACTS in data/headers.py), as bytes.
        size: (width, height) in pixels.
        length: length in bytes.
    """

    __slots__ = ("_status", "header_record", "length", "path", "size", "slot")

    def __init__(self, path: str, status: os.stat_result, slot: int, header_record: bytes, size: tuple[int, int]):
        self.path, self.slot, self.header_record, self.size = path, slot, header_record, size
        self._status, self.length = status, status.st_size

    def open(self) -> IO[bytes]:
        """Open the file.

        Raises:
            OSError: the file is gone, or has changed since the image was opened.
        """
        file = open(self.path, "rb")
        if _identity(os.fstat(file.fileno())) != _identity(self._status):
            file.close()
            what = "has changed since the data set opened it; do not write files while they are being loaded"
            raise OSError(f"{self.path} {what}")
        return file


class MemorySource:
    """An encoded image in memory.

    Attributes:
        data: the encoded bytes.
        slot, header_record, size, length: as in FileSource.
    """

    __slots__ = ("data", "header_record", "length", "size", "slot")

    def __init__(self, data: bytes, slot: int, header_record: bytes, size: tuple[int, int]):
        self.data, self.slot, self.header_record, self.size = data, slot, header_record, size
        self.length = len(data)

    def open(self) -> IO[bytes]:
        return io.BytesIO(self.data)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class FileTable:
    """Hash table of header records, in memory that worker processes share. ``count`` is the expected number of images.

    Each image has two possible slots. Processes write without a lock, so each entry has a checksum.
    """

    def __init__(self, count: int):
        self._size = 1 << max(_MIN_ENTRIES, min(_MAX_ENTRIES, 2 * count)).bit_length()
        self._map()

    def _map(self) -> None:
        self._entries = mmap.mmap(-1, self._size * _ENTRY.size)  # anonymous: not limited by /dev/shm

    def __getstate__(self) -> dict[str, Any]:
        return {"_size": self._size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._size = state["_size"]  # a spawned process begins with an empty table
        self._map()

    def file(self, path: str, status: os.stat_result) -> FileSource | None:
        """Return the source of a file; None if Pillow has to decode it."""
        entry = self._look_up(hash((path, status.st_ino)), path, status.st_ctime_ns, status.st_size)
        return None if entry is None else FileSource(path, status, *entry)

    def memory(self, data: bytes) -> MemorySource | None:
        """Return the source of encoded bytes; None if Pillow has to decode them."""
        entry = self._look_up(hash(data), data, 0, len(data))
        return None if entry is None else MemorySource(data, *entry)

    def _look_up(self, key: int, source: str | bytes, ctime: int, length: int) -> tuple[int, bytes, Any] | None:
        """Return (slot, header record, (width, height)); None if Pillow has to decode the image.

        Read the header if the table has no current entry.
        """
        first = key & (self._size - 1)
        for slot in (first, first ^ 1):
            record, checksum = self._entry(slot)
            stored_key, height, width, stored_length, _, stored_ctime, *_, decoder = _FIELDS.unpack(record)
            is_current = stored_key == key and stored_ctime == ctime and stored_length == length
            if is_current and zlib.crc32(record) == checksum:
                return (slot, record, (width, height)) if decoder == DALI else None
        (stored_key,) = _KEY.unpack_from(self._entries, first * _ENTRY.size)
        slot = first ^ (stored_key not in (0, key))
        header = facts_of([checked_header(source if isinstance(source, str) else np.frombuffer(source, np.uint8))])[0]
        header["keys"], header["ctimes"], header["lengths"] = key, ctime, length
        if header["kinds"] != UNREADABLE:
            self._put(slot, header)
        height, width = header["sizes"].tolist()
        return (slot, header.tobytes(), (width, height)) if header["kinds"] == DALI else None

    def _entry(self, slot: int) -> tuple[bytes, int]:
        """Return a header record and its checksum."""
        record, checksum = _ENTRY.unpack_from(self._entries, slot * _ENTRY.size)
        return record, checksum

    def _put(self, slot: int, header: Any) -> None:
        record = header.tobytes()
        _ENTRY.pack_into(self._entries, slot * _ENTRY.size, record, zlib.crc32(record))

    def leave_to_pillow(self, slot: int, key: int) -> None:
        """Record that DALI failed to decode a file. From now on, Pillow decodes the file in the worker."""
        header = np.frombuffer(self._entry(slot)[0], FACTS)[0].copy()
        if header["keys"] == key:
            header["kinds"] = PIL
            self._put(slot, header)
