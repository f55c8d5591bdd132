"""Reads what Pillow knows of an image besides its pixels."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import numpy as np
from PIL import Image

from .sources import InItsMode, Source, decoded, is_record, is_upright, opened


class Info(MutableMapping[Any, Any]):
    """The ``info`` of an image that its data set gives: EXIF, a colour profile and the like.

    ImageOps.exif_transpose() needs it, and ``getexif()``. The file is read when somebody asks, for few functions do. As
    pickle has it, it is a path, or the encoded bytes of an image of a store.
    """

    def __init__(self, source: Source | np.ndarray):
        self._source = source
        self._read: dict[Any, Any] | None = None

    def copy(self) -> Info | dict[Any, Any]:
        """Returns a copy as Pillow's operations ask for it: what nobody has read stays unread."""
        return Info(self._source) if self._read is None else self._read.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._read is None and is_record(self._source) and not is_upright(self._source):
            return Info, (np.frombuffer(self._source.copied(), np.uint8),)
        if self._read is None and not is_record(self._source):
            return Info, (self._source,)
        return dict, (self._all,)

    @property
    def _all(self) -> dict[Any, Any]:
        if self._read is None:
            self._read = _info_of(self._source)
        return self._read

    def __getitem__(self, key: Any) -> Any:
        return self._all[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._all[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._all[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return repr(self._all)


def _info_of(source: Source | np.ndarray) -> dict[Any, Any]:
    """
    Raises:
        OSError: it cannot be read.
    """
    if not isinstance(source, InItsMode) and not is_upright(source):
        with opened(source) as file, Image.open(file) as image:
            if image.format == "JPEG":  # its header has all; others have more behind their pixels, or change it
                return image.info
    return decoded(source).info
