"""Reads archives in object storage by range requests, as files.py reads local ones."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..remote.objects import Objects
from ..remote.urls import UrlPart
from .table import GAP

_BLOCK, _AHEAD = 4 << 20, 4  # bytes of a request of a scan, and how many run at a time
_HEADS = 4096  # parts that are asked for at a time


class FetchedFiles:
    """Files at URLs; their parts are read as those of MappedFiles."""

    def __init__(self, urls: list[str], objects: Objects):
        self.urls, self.objects = urls, objects

    def part(self, number: int, offset: int, length: int, gaps: Sequence[int] = ()) -> UrlPart:
        """Names an image of a file, without the gaps at these positions of the image itself."""
        starts = [position + GAP * i for i, position in enumerate(gaps)]
        end = offset + length + GAP * len(gaps)
        return UrlPart(self.urls[number], offset, end, tuple((start, start + GAP) for start in starts))

    def bytes(self, number: int, offset: int, length: int) -> bytes:
        """Returns a part of a file. Raises ImageReadError."""
        return self.objects.copied(self.part(number, offset, length))

    def views(self, numbers: list[int], offsets: list[int], lengths: list[int]) -> list[np.ndarray]:
        """Returns parts of files, read-only uint8 arrays (length,). Raises ImageReadError."""
        return self.objects.read(list(map(self.part, numbers, offsets, lengths)))

    def changed(self, numbers: Iterable[int]) -> set[int]:
        """Returns none: what was fetched stays as it is."""
        return set()


class FetchedFile:
    """A file at a URL that is looked through, in blocks that are fetched ahead: a context manager.

    Attributes:
        size: in bytes.
    """

    def __init__(self, objects: Objects, url: str):
        self._objects, self._url, self.size = objects, url, objects.size(url)
        self._at, self._blocks = 0, dict[int, bytes]()
        self._heads: dict[int, Any] = {}

    def read(self, count: int) -> bytes:
        """Returns the next bytes, fewer at the end."""
        data = self.pread(count, self._at)
        self._at += len(data)
        return data

    def pread(self, count: int, offset: int) -> bytes:
        """Returns up to ``count`` bytes from ``offset`` on."""
        if offset in self._heads and count <= len(self._heads[offset]):
            return self._heads[offset][:count].tobytes()
        found, end = io.BytesIO(), min(offset + count, self.size)
        while offset < end:
            number, begin = divmod(offset, _BLOCK)
            piece = self._block(number)[begin : begin + end - offset]
            found.write(piece)
            offset += len(piece)
        return found.getvalue()

    def ahead(self, offsets: Sequence[int], count: int) -> None:
        """Fetches ``count`` bytes at each offset, so that what lies between them is not."""
        inside = [at for at in offsets if 0 <= at < self.size]
        parts = [UrlPart(self._url, at, min(at + count, self.size)) for at in inside]
        self._heads = dict(zip(inside, self._objects.read(parts), strict=True))

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            begins = [at * _BLOCK for at in range(number, number + _AHEAD) if at * _BLOCK < self.size]
            parts = [UrlPart(self._url, begin, min(begin + _BLOCK, self.size)) for begin in begins]
            data = self._objects.read(parts)
            self._blocks = {number + i: one.tobytes() for i, one in enumerate(data)}
        return self._blocks[number]

    def __enter__(self) -> FetchedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._blocks = {}
