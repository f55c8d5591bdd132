"""Cache fetched objects in a local folder, for later epochs and other processes on the same host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
import zlib
from pathlib import Path

import numpy as np

from ..runtime import saved
from ..runtime.forks import new_lock
from ..runtime.messages import in_bytes, stack_level
from .client import Fetched

_CHECKSUM = 4  # bytes
_EVICT_TO = 0.9  # fraction of the maximum size that remains after an eviction
_CHECKS = 64  # a process checks the size of the folder after writing 1/64 of the maximum


class DiskCache:
    """A cache of objects in files. Files are written atomically, and each read verifies the checksum.

    Each process sometimes checks the total size of the files. If it exceeds ``size``, the process removes the least
    recently used files.

    Args:
        folder: created if it is missing, for only the user. Processes may share it.
        size: maximum size of all files together, in bytes.

    Raises:
        OSError: the folder cannot be created or written.
        ValueError: the size is not positive.
    """

    def __init__(self, folder: str | os.PathLike[str], size: int):
        if size <= 0:
            raise ValueError(f"disk_cache requires a folder and a positive number of bytes, got {size!r}")
        self.folder, self.size = Path(os.path.abspath(os.path.expanduser(folder))), int(size)
        self._written = self.size  # bytes written since this process last checked the folder
        self._lock = new_lock()
        self._is_writable = True
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise PermissionError(f"disk_cache cannot write to {self.folder}")

    def get(self, name: str, etag: str | None) -> Fetched | None:
        """Return a cached object, or None if it is missing or damaged, or has another etag. If ``etag`` is None, any
        etag is accepted."""
        path = self._path(name)
        found = _unpacked(saved.read(path))
        if found is None or (etag is not None and found.etag != etag):
            return None
        with contextlib.suppress(OSError):  # another process has removed it
            os.utime(path)
        return found

    def put(self, name: str, fetched: Fetched) -> None:
        """Store an object. If that fails, warn, and store no further objects in this process."""
        if not self._is_writable or len(fetched.data) > self.size:
            return
        try:
            saved.write(self._path(name), _packed(fetched))
        except OSError as error:
            self._is_writable = False
            what = f"disk_cache {self.folder} cannot be written, so it stores no more objects: {error}"
            warnings.warn(what, stacklevel=stack_level())
            return
        with self._lock:
            self._written += len(fetched.data)
            if self._written * _CHECKS < self.size:
                return
            self._written = 0
        self._make_room()

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        return self.folder / digest[:2] / digest[2:40]

    def _make_room(self) -> None:
        """Remove the least recently used files if the cache is too large. All processes choose the same files."""
        with contextlib.suppress(OSError):
            files = sorted(self._files())
            total = sum(size for _, size, _ in files)
            if total <= self.size:
                return
            for _, size, path in files:
                if total <= self.size * _EVICT_TO:
                    break
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                total -= size

    def _files(self) -> list[tuple[int, int, str]]:
        """Return (time of last use in ns, bytes, path) of each file, including incomplete ones."""
        found = []
        for folder in os.scandir(self.folder):
            if not folder.is_dir():
                continue
            for entry in os.scandir(folder.path):
                with contextlib.suppress(FileNotFoundError):  # another process may remove files, too
                    stat = entry.stat()
                    found.append((stat.st_mtime_ns, stat.st_size, entry.path))
        return found

    def __str__(self) -> str:
        return f"{self.folder}, {in_bytes(self.size)}"

    def __getstate__(self) -> tuple[str, int]:
        return str(self.folder), self.size

    def __setstate__(self, state: tuple[str, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # a copy checks the folder again


def _packed(fetched: Fetched) -> list[bytes | memoryview]:
    """Return the content of a cache file: a checksum, a line with the etag, and the object."""
    line = fetched.etag.encode("utf-8", "surrogateescape") + b"\n"
    return [zlib.crc32(fetched.data.data, zlib.crc32(line)).to_bytes(_CHECKSUM, "little"), line, fetched.data.data]


def _unpacked(stored: bytes) -> Fetched | None:
    """Return the object in the content of a cache file, or None if the file is damaged."""
    end = stored.find(b"\n", _CHECKSUM)
    if end < 0 or zlib.crc32(memoryview(stored)[_CHECKSUM:]) != int.from_bytes(stored[:_CHECKSUM], "little"):
        return None
    etag = stored[_CHECKSUM:end].decode("utf-8", "surrogateescape")
    return Fetched(np.frombuffer(stored, np.uint8)[end + 1 :], etag, True)
