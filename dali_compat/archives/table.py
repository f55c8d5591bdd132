"""The table of an archive's images: rows of (offset, length, target) of each file."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

GAP = 4  # bytes; see Rows.gaps

_LIMIT = 1 << 63
_DTYPES = {"offsets": np.int64, "lengths": np.int64, "targets": np.int64, "gaps": np.int64, "keys": np.uint8}


@dataclass(frozen=True, eq=False)
class Rows:
    """The N images of one file, in the order of the data set.

    Attributes:
        offsets: (N,) int64, the file position of each image's first byte.
        lengths: (N,) int64, bytes of each encoded image, gaps not counted.
        targets: (N,) int64.
        gaps: (G, 2) int64 of (row, position within the image): before that byte of the image, the file has GAP bytes
            that are not of it. Only RecordIO has such images, about one in 170,000 photos.
        keys: uint8, the N keys of a key-value store, each ended by its length as 4 bytes, little-endian; else empty.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray
    gaps: np.ndarray
    keys: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in _DTYPES}

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray], size: int) -> Rows:
        """Checks and returns rows.

        Raises:
            ValueError, KeyError: the arrays are not those of rows of a file of ``size`` bytes.
        """
        rows = cls(**{name: arrays[name] for name in _DTYPES})
        n = len(rows.offsets)
        shapes = {"offsets": (n,), "lengths": (n,), "targets": (n,), "gaps": (len(rows.gaps), 2)}
        for name, dtype in _DTYPES.items():
            found = getattr(rows, name)
            if found.dtype != dtype or found.shape != shapes.get(name, (found.size,)):
                raise ValueError(f"{name} is {found.dtype} {found.shape}")
        if not rows._within(size):
            raise ValueError(f"rows beyond the file's {size} bytes")
        return rows

    def _within(self, size: int) -> bool:
        """True if all images lie within a file of ``size`` bytes."""
        if not (_in(self.gaps[:, 0], len(self.offsets) - 1) and _in(self.gaps[:, 1], size) and _in(self.offsets, size)):
            return False
        room = size - self.offsets - GAP * np.bincount(self.gaps[:, 0], minlength=len(self.offsets))
        return _in(self.lengths, room)

    def key_list(self) -> list[bytes]:
        """Returns one key a row; fewer or more if a cached index is damaged."""
        keys, blob, end = [], self.keys.tobytes(), len(self.keys)
        while end > 0:
            size = int.from_bytes(blob[end - 4 : end], "little")
            keys.append(blob[end - 4 - size : end - 4])
            end -= 4 + size
        return keys[::-1]


def _in(values: np.ndarray, most: int | np.ndarray) -> bool:
    """True if all values are from 0 to ``most``."""
    return bool(((values >= 0) & (values <= most)).all())


def is_target(label: float) -> bool:
    """True if a number of a file fits into an int64, as targets do."""
    return -_LIMIT <= label < _LIMIT


class RowsBuilder:
    """Collects rows one by one. A list of a million Python ints would take five times the memory."""

    def __init__(self) -> None:
        self._columns = array("q"), array("q"), array("q")
        self._gaps = array("q")
        self._keys = bytearray()

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, offset: int, length: int, target: int, gaps: tuple[int, ...] = (), key: bytes | None = None) -> None:
        for position in gaps:
            self._gaps.extend((len(self), position))
        for column, value in zip(self._columns, (offset, length, target), strict=True):
            column.append(value)
        if key is not None:
            self._keys += key + len(key).to_bytes(4, "little")

    def rows(self) -> Rows:
        offsets, lengths, targets = (np.array(column, np.int64) for column in self._columns)
        gaps = np.array(self._gaps, np.int64).reshape(-1, 2)
        return Rows(offsets, lengths, targets, gaps, np.array(self._keys, np.uint8))


class Table:
    """The rows of several files, one after another: ``files`` (N,) int32 tells the file of each row, ``gaps`` maps a
    row to the positions of its gaps; the rest as in Rows."""

    def __init__(self, parts: list[Rows]):
        counts = [len(part.offsets) for part in parts]
        self.files = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
        self.offsets = np.concatenate([part.offsets for part in parts])
        self.lengths = np.concatenate([part.lengths for part in parts])
        self.targets = np.concatenate([part.targets for part in parts])
        self.gaps: dict[int, list[int]] = {}
        for first, part in zip(np.cumsum([0, *counts]).tolist(), parts, strict=False):
            for row, position in part.gaps.tolist():
                self.gaps.setdefault(first + row, []).append(position)

    def __len__(self) -> int:
        return len(self.offsets)
