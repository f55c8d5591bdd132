"""Read parts of files. Each process opens a file at first use, and stays below the system's limit on open files.

Batches are views of mapped files. For 256 photos of 105 KB on 2 cores (benchmarks/archives.py), views take 1.7 ms from
the page cache, and 20 ms from disk with prefetching (posix_fadvise). pread in 8 threads takes 17 ms and 46 ms. Single
images are copied with pread, because other Python threads can run while it reads the disk.
"""

from __future__ import annotations

import io
import mmap
import os
import resource
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import ImageReadError, read_error
from ..remote.objects import Objects
from ..remote.urls import UrlPart


class MappedFiles:
    """Reads parts of the files at ``paths``. Whenever a file is opened or read, its (size in bytes, modification time
    in ns) must equal its entry in ``stats``."""

    def __init__(self, paths: list[str], stats: list[tuple[int, int]]):
        self.paths, self._stats = paths, stats
        self._open: list[_File | None] = [None] * len(paths)
        self._order: deque[int] = deque()
        self._limit = _limit()

    def bytes(self, number: int, offset: int, length: int) -> bytes:
        """Return a copy of a part of a file.

        Raise ImageReadError if the file is missing, has changed, or ends early.
        """
        file = self._file(number)
        try:
            data = os.pread(file.fileno(), length, offset)
        except OSError as error:
            raise read_error(f"cannot read {self.paths[number]}, byte {offset}: {error}", error) from error
        self._check(number, file)  # checked after the read, so that any earlier write is detected
        if len(data) != length:
            raise ImageReadError(f"cannot read {self.paths[number]}, byte {offset}: the file ends early")
        return data

    def views(self, numbers: list[int], offsets: list[int], lengths: list[int]) -> list[np.ndarray]:
        """Return read-only uint8 views of files, one per offset and length. The system starts to prefetch their bytes.

        If a file is overwritten later, the views show its new bytes, so call changed() after using them. If it is
        truncated, access beyond its end kills the process. Raise ImageReadError if a file is missing or has changed.
        """
        files = {number: self._file(number) for number in dict.fromkeys(numbers)}
        for number, file in files.items():
            self._check(number, file)
        maps = {number: (file.fileno(), file.mapped()) for number, file in files.items()}
        views = []
        for number, offset, length in zip(numbers, offsets, lengths, strict=True):
            descriptor, mapped = maps[number]
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)
            views.append(mapped[offset : offset + length])
        return views

    def changed(self, numbers: Iterable[int]) -> set[int]:
        """Return those ``numbers`` whose file was written to after indexing, or is missing and was not already open.

        Views of such a file may mix old and new bytes. A replaced or deleted file keeps its old bytes while it is open.
        """
        found = set()
        for number in numbers:
            try:
                self._check(number, self._file(number))
            except ImageReadError:
                found.add(number)
        return found

    def _check(self, number: int, file: _File) -> None:
        """Raise ImageReadError if the file's size or modification time differs from its entry in ``stats``."""
        if file.state() != self._stats[number]:
            raise ImageReadError(_changed(self.paths[number]))

    def _file(self, number: int) -> _File:
        """Return file ``number``, and open it if necessary. If too many files are open, the one opened first is closed
        as soon as nothing uses it."""
        file = self._open[number]  # without a lock, because a fork might copy it in a locked state
        if file is None:
            try:
                file = _File(self.paths[number])
            except OSError as error:
                raise read_error(f"cannot read {self.paths[number]}: {error}", error) from error
            self._check(number, file)
            self._open[number] = file
            self._order.append(number)
            if len(self._order) > self._limit:
                self._open[self._order.popleft()] = None
        return file

    def __getstate__(self) -> tuple:
        return self.paths, self._stats

    def __setstate__(self, state: tuple) -> None:
        self.__init__(*state)  # type: ignore[misc]  # opens its own files


class _File(io.FileIO):
    """An open file and its map, created at first use. Garbage collection closes it without a warning."""

    _mapped: np.ndarray | None = None

    def __del__(self) -> None:
        self.close()

    def state(self) -> tuple[int, int]:
        """Return the current (size in bytes, modification time in ns)."""
        stat = os.fstat(self.fileno())
        return stat.st_size, stat.st_mtime_ns

    def mapped(self) -> np.ndarray:
        """Return the whole file as a read-only uint8 array. Views of it keep the map alive."""
        if self._mapped is None:
            self._mapped = np.frombuffer(mmap.mmap(self.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        return self._mapped


def _limit() -> int:
    """Return how many files to keep open."""
    # each needs two descriptors; half of the limit is left for other uses
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, soft // 4) if soft != resource.RLIM_INFINITY else 1 << 16


def _changed(path: str) -> str:
    return f"{path} has changed since it was indexed; create a new data set"


_BLOCK, _AHEAD = 4 << 20, 4  # bytes per request of a scan, and number of concurrent requests


class FetchedFile(io.RawIOBase):
    """A file at a URL, for sequential reading. Its blocks are fetched ahead."""

    def __init__(self, objects: Objects, url: str):
        self._objects, self._url, self._size = objects, url, objects.size(url)
        self._at, self._blocks = 0, dict[int, bytes]()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        number, begin = divmod(self._at, _BLOCK)
        piece = self._block(number)[begin : begin + len(buffer)] if self._at < self._size else b""
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            begins = [at * _BLOCK for at in range(number, number + _AHEAD) if at * _BLOCK < self._size]
            parts = [UrlPart(self._url, begin, min(begin + _BLOCK, self._size)) for begin in begins]
            data = self._objects.read(parts)
            self._blocks = {number + i: one.tobytes() for i, one in enumerate(data)}
        return self._blocks[number]
