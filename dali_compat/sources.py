"""Where the encoded bytes of a sample are: in a file of its own (a str, its path), or in an archive (a Record)."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .archives.archive import Archive


class Record(NamedTuple):
    """An image of an archive. As text it names file, byte and index."""

    archive: Archive
    index: int

    def __hash__(self) -> int:
        return hash((id(self.archive), self.index))

    def __str__(self) -> str:
        return self.archive.name(self.index)


Source = str | Record


def is_record(source: Source) -> bool:
    return isinstance(source, Record)


def encoded(records: list[Record]) -> list[np.ndarray]:
    """The bytes of each; those of one archive are asked for together."""
    images: list = [None] * len(records)
    rows_of: dict[int, list[int]] = {}
    for row, record in enumerate(records):
        rows_of.setdefault(id(record.archive), []).append(row)
    for rows in rows_of.values():
        for row, data in zip(rows, records[rows[0]].archive.read([records[row].index for row in rows])):
            images[row] = data
    return images


def opened(source: Source) -> BinaryIO:
    """For PIL. The name of the errors that it raises is in the text of the source."""
    if is_record(source):
        return io.BytesIO(source.archive.read([source.index])[0])
    return open(source, "rb")


class Parts:
    """Reads parts of a source; a context manager.

    Attributes:
        size: in bytes.
    """

    def __init__(self, source: Source):
        self._source, self._file = source, None
        if is_record(source):
            self.size = int(source.archive.locations([source.index])[2][0])
        else:
            self._file = os.open(source, os.O_RDONLY)
            self.size = os.fstat(self._file).st_size

    def read(self, count: int, start: int) -> bytes:
        """Up to ``count`` bytes from ``start`` on."""
        if self._file is not None:
            return os.pread(self._file, count, start)
        return self._source.archive.part(self._source.index, start, count)

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *error) -> None:
        if self._file is not None:
            os.close(self._file)
