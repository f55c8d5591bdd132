"""Indexes of archive files: tables of their images, cached next to the file or in the user's cache folder.

The index of ``train.rec`` is ``.train.rec.<digits>.dali_compat-index.npz``, so patterns such as ``train*`` do not match
it. The digits are a hash of the scan's options and the version of the format. A file is scanned again if its
fingerprint has changed. An index is used only if it belongs to this user or the archive's owner, no other user may
write it, and all its images lie within the file.
"""

from __future__ import annotations

import os
import threading
import warnings
import zlib
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from ..errors import ImageReadError, with_remedy
from ..remote.objects import Objects
from ..runtime import saved
from ..runtime.messages import stack_level

GAP = 4  # bytes; see FileRows.gaps

_LIMIT = 1 << 63
_REPORT = 1024  # rows between reports of progress

Progress = Callable[[int], None]
"""Called from time to time with the position in the file, in bytes."""


class FileRows(NamedTuple):
    """The N images of one file, in the order of the data set.

    A gap is GAP bytes inside an image that do not belong to it. Only RecordIO has gaps, in about one in 170,000 photos.
    """

    columns: np.ndarray  # (3, N) int64: byte offset, length in bytes without gaps, and target of each image
    gaps: np.ndarray  # (G, 2) int64: row, and number of the image's bytes before the gap
    keys: np.ndarray  # uint8: the N keys of a key-value store, each followed by its length as 4 bytes, little-endian

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray], size: int) -> FileRows:
        """Return FileRows with the arrays of a cached index. Raise ValueError or KeyError if they are invalid for a
        file of ``size`` bytes."""
        rows = cls(*(arrays[name] for name in cls._fields))
        kinds = [(array.dtype, array.ndim) for array in rows]
        if kinds != [(np.int64, 2), (np.int64, 2), (np.uint8, 1)] or len(rows.columns) != 3 or rows.gaps.shape[1] != 2:
            raise ValueError(f"the arrays of the index have unexpected dtypes and dimensions: {kinds}")
        offsets, lengths, _ = rows.columns
        bounds = (rows.gaps[:, 0], len(offsets) - 1), (rows.gaps[:, 1], size), (offsets, size)
        if not all(_in_range(*pair) for pair in bounds):
            raise ValueError(f"the index has an image or a gap outside of the file ({size} bytes)")
        if not _in_range(lengths, size - offsets - GAP * np.bincount(rows.gaps[:, 0], minlength=len(offsets))):
            raise ValueError(f"the index has an image that ends beyond the end of the file ({size} bytes)")
        return rows

    def reordered(self, order: np.ndarray) -> FileRows:
        """Return the rows in another order: new row i is old row ``order[i]``. The keys keep their order."""
        gaps = self.gaps.copy()
        gaps[:, 0] = np.argsort(order)[gaps[:, 0]]
        return self._replace(columns=self.columns[:, order], gaps=gaps)

    def key_list(self) -> list[bytes]:
        """Return the keys, one per row. A damaged index may have more or fewer keys."""
        keys, blob, end = [], self.keys.tobytes(), len(self.keys)
        while end > 0:
            size = int.from_bytes(blob[end - 4 : end], "little")
            keys.append(blob[end - 4 - size : end - 4])
            end -= 4 + size
        return keys[::-1]


def _in_range(values: np.ndarray, most: int | np.ndarray) -> bool:
    return bool(((values >= 0) & (values <= most)).all())


def is_target(label: float) -> bool:
    """Return True if a number fits into int64, the dtype of targets."""
    return -_LIMIT <= label < _LIMIT


class RowsBuilder:
    """Collects rows in arrays, and reports progress. Lists of Python ints would take five times the memory."""

    def __init__(self, progress: Progress):
        self._rows, self._gaps, self._keys, self._progress = array("q"), array("q"), bytearray(), progress

    def __len__(self) -> int:
        return len(self._rows) // 3

    def add(self, offset: int, length: int, target: int, gaps: tuple[int, ...] = (), key: bytes | None = None) -> None:
        for position in gaps:
            self._gaps.extend((len(self), position))
        self._rows.extend((offset, length, target))
        if key is not None:
            self._keys += key + len(key).to_bytes(4, "little")
        if len(self) % _REPORT == 0:
            self._progress(offset)

    def rows(self) -> FileRows:
        columns = np.array(self._rows, np.int64).reshape(-1, 3).T.copy()
        return FileRows(columns, np.array(self._gaps, np.int64).reshape(-1, 2), np.array(self._keys, np.uint8))


class Table:
    """The concatenated rows of several files.

    Attributes:
        files: number of each row's file, (N,) int32.
        offsets, lengths, targets: as in FileRows, (N,) each.
        gaps: {row: positions of its gaps, relative to its offset}.
    """

    def __init__(self, parts: list[FileRows]):
        counts = [part.columns.shape[1] for part in parts]
        self.files = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
        self.offsets, self.lengths, self.targets = np.concatenate([part.columns for part in parts], 1)
        self.gaps: dict[int, list[int]] = {}
        for first, part in zip(np.cumsum([0, *counts]).tolist(), parts, strict=False):
            for row, position in part.gaps.tolist():
                begins = self.gaps.setdefault(first + row, [])
                begins.append(position + GAP * len(begins))

    def __len__(self) -> int:
        return len(self.offsets)


_LAYOUT = 2  # version of the format of the cached arrays; other versions are ignored
_MODE = 0o644  # an index is readable by every user who may read the archive
_ENDS = 8192  # bytes hashed at each end; the first 8 KB of an LMDB file change with every transaction
_THREADS = 8
_SLOW = 1.0  # seconds before a progress bar appears


def corrupt(path: str, where: str, reason: str) -> ImageReadError:
    """Return the error for a damaged file. ``where`` is the position in it."""
    return ImageReadError(f"{path}, {where}: {reason}")


def unsupported(path: str, where: str, reason: str) -> ValueError:
    """Return the error for an intact file of an unsupported kind. ``where`` is the position in it."""
    return ValueError(f"{path}, {where}: {reason}")


def fingerprint(path: str, objects: Objects | None = None) -> list[Any]:
    """Return [size, modification time in ns, CRC-32 of the first and last 8 KB], or [size, 0, etag] of an object."""
    if objects is not None:
        size, etag = objects.look_up(path)
        return [size, 0, etag]
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        ends = zlib.crc32(file.read(_ENDS))
        file.seek(max(0, stat.st_size - _ENDS))
        return [stat.st_size, stat.st_mtime_ns, zlib.crc32(file.read(_ENDS), ends)]


@with_remedy()
def indexed(
    paths: list[str],
    options: Callable[[str], dict],
    scan: Callable[[str, Progress], FileRows],
    objects: Objects | None = None,
) -> tuple[list[FileRows], list[list[Any]]]:
    """Return (rows, fingerprints) of the files, one entry per path. A file without a valid cached index is scanned.

    Args:
        options: returns the settings of the scan of a file, as JSON-serializable values.
        scan: finds the images of a file. It is called in several threads for several files.
        objects: reads the files if the paths are URLs.

    Raises:
        ImageReadError, ValueError: the first error that ``scan`` raises.
    """
    entries = [Entry(path, options(path), objects) for path in paths]
    for entry in entries:
        entry.load()
    if any(entry.rows is None for entry in entries):
        with saved.lock(saved.digest(os.path.realpath(paths[0]))):
            for entry in entries:
                if entry.rows is None:
                    entry.load()  # another process may have built it meanwhile
            todo = [entry for entry in entries if entry.rows is None]
            if todo:
                _build(todo, scan)
    return [rows for entry in entries if (rows := entry.rows) is not None], [entry.fingerprint for entry in entries]


def _build(entries: list[Entry], scan) -> None:
    total = sum(entry.fingerprint[0] for entry in entries)
    name = Path(entries[0].path).name if len(entries) == 1 else f"{len(entries)} files"
    with tqdm(total=total, desc=f"indexing {name}", unit="B", unit_scale=True, delay=_SLOW, disable=None) as bar:
        guard = threading.Lock()

        def build(entry: Entry) -> bool:
            done = 0

            def progress(position: int) -> None:
                nonlocal done
                with guard:
                    bar.update(position - done)
                done = position

            is_saved = entry.build(scan, progress)
            progress(entry.fingerprint[0])
            return is_saved

        with ThreadPoolExecutor(_THREADS) as pool:  # map() cancels the others if one fails
            is_saved = list(pool.map(build, entries))
    if not all(is_saved):
        path, folder = entries[is_saved.index(False)].path, saved.cache_folder()
        what = f"cannot save the index of {path} next to the archive or in {folder}"
        warnings.warn(f"{what}; the index will be rebuilt at each start", stacklevel=stack_level())


class Entry:
    def __init__(self, path: str, options: dict, objects: Objects | None):
        self.path, self.fingerprint, self._objects = path, fingerprint(path, objects), objects
        self.rows: FileRows | None = None
        version = saved.digest(options, _LAYOUT)
        folder, name = os.path.split(path)
        self.sidecar = os.path.join(folder, f".{name}.{version[:8]}.dali_compat-index.npz")
        whole = os.path.realpath(path) if objects is None else f"{objects.client.endpoints()} {path}"
        cached = saved.cache_folder() / "index" / f"{saved.digest(whole, version)}.npz"
        self._index_files = [cached] if objects is not None else [Path(os.path.abspath(self.sidecar)), cached]
        self._owners = (os.stat(path).st_uid,) if objects is None else ()

    def load(self) -> None:
        found = (saved.load(place, self._owners) for place in self._index_files)
        there = (saved.unpacked(one.read_if_exists(self.sidecar) or b"") for one in [self._objects] if one is not None)
        for stored in chain(found, there):
            if stored and stored[0].get("fingerprint") == self.fingerprint:
                try:
                    self.rows = FileRows.of_arrays(stored[1], self.fingerprint[0])
                    return
                except (ValueError, KeyError):
                    continue

    def build(self, scan, progress: Progress) -> bool:
        """Scan the file. Return True if its index was saved."""
        rows = scan(self.path, progress)
        if fingerprint(self.path, self._objects) != self.fingerprint:
            raise ImageReadError(f"{self.path} changed while it was being indexed; try again when the file is complete")
        self.rows = rows
        for place in self._index_files:
            with suppress(OSError):
                saved.save(place, {"fingerprint": self.fingerprint}, rows._asdict(), _MODE)
                return True
        return False
