"""Sources of encoded images. A source is the path of a file (str), or the Record of an image in a store."""

from __future__ import annotations

import io
import os
from collections import UserDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from PIL import Image, ImageOps

from ..errors import read_error
from ..remote.objects import Objects

if TYPE_CHECKING:
    from typing_extensions import TypeIs

ORIENTATION = 274  # EXIF tag


class Store(Protocol):
    """A store of encoded images: an archive, an Arrow table, or the objects of a bucket."""

    def read(self, indices: Sequence[Any]) -> list[np.ndarray]:
        """Return the encoded bytes of images as read-only uint8 arrays of shape (length,)."""
        ...

    def changed(self, indices: Sequence[Any]) -> np.ndarray:
        """Return a bool array (N,), True if an image's bytes may have changed since they were read."""
        ...

    def copied(self, index: Any) -> bytes: ...

    def place(self, index: Any) -> str:
        """Return the location of an image, for messages."""
        ...


@dataclass(eq=False)
class Record:
    """An image in a store. ``str(record)`` is its location, for messages."""

    store: Store
    index: Any  # nonnegative, or the URL of an object
    data: np.ndarray | None = None  # encoded bytes, if they were read

    def copied(self) -> bytes:
        """Return a copy of the encoded bytes. They are read again unless the image is in object storage."""
        # the file may have changed since it was read
        return self.bytes().tobytes() if is_object(self) else self.store.copied(self.index)

    def bytes(self) -> np.ndarray:
        """Return the encoded bytes, (length,) uint8, as a view of the store's memory."""
        if self.data is None:
            self.data = self.store.read([self.index])[0]
        return self.data

    def __hash__(self) -> int:
        return hash((id(self.store), self.index))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.store is other.store and self.index == other.index

    def __str__(self) -> str:
        return self.store.place(self.index)


Source = str | Record


class Upright(str):
    """The path of a file whose image is rotated by its EXIF orientation. It never equals a plain str."""

    def __hash__(self) -> int:
        return hash((type(self), str(self)))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(other) == str(self)

    def __ne__(self, other: object) -> bool:  # overrides str's
        return not self == other


PATHS, BYTES = "paths", "bytes"  # encoded images


class Form(NamedTuple):
    """Settings of a DALI pipeline's inputs and outputs."""

    input: str  # PATHS of files, or encoded images as BYTES
    keep: bool = False  # also return the decoded images
    fancy: bool = False  # a GPU's decoder interpolates chroma as libjpeg does ("fancy upsampling")
    reads: bool = False  # return the bytes of the files, not decoded
    turns: bool = False  # rotate encoded images according to their EXIF orientation


def current_folder() -> str:
    """Return the working directory with a trailing slash, or "" if it was removed."""
    try:
        return os.path.join(os.getcwd(), "")
    except OSError:
        return ""


def within(folder: str, path: str) -> str:
    """Join a relative path to ``folder``. The folder ends with a slash or is empty."""
    return path if path[:1] == "/" else type(path)(folder + path)


def is_record(source: Source | np.ndarray) -> TypeIs[Record]:
    return isinstance(source, Record)


def is_object(source: Source | np.ndarray) -> TypeIs[Record]:
    return isinstance(source, Record) and isinstance(source.store, Objects)


def fetch(sources: list[Source]) -> None:
    """Set ``data`` of all records in ``sources``. Each store gets one request for all its images."""
    for rows in _by_store(sources):
        records: Any = [sources[row] for row in rows]
        images = records[0].store.read([record.index for record in records])
        for record, image in zip(records, images, strict=True):
            record.data = image


def overwritten(sources: Sequence[Source]) -> np.ndarray:
    """Return a bool array (N,), True if a source's bytes may have changed since they were fetched.

    Do not access such bytes, because the file may be shorter now.
    """
    found = np.zeros(len(sources), bool)
    for rows in _by_store(sources):
        records: Any = [sources[row] for row in rows]
        found[rows] = records[0].store.changed([record.index for record in records])
    return found


def _by_store(sources: Sequence[Source]) -> list[list[int]]:
    """Return the positions of each store's Records in ``sources``."""
    rows_by_store: dict[int, list[int]] = {}
    for row, source in enumerate(sources):
        if is_record(source):
            rows_by_store.setdefault(id(source.store), []).append(row)
    return list(rows_by_store.values())


def opened(source: Source | np.ndarray) -> IO[bytes]:
    """Open an encoded image as a binary file for PIL."""
    if isinstance(source, str):
        return open(source, "rb")
    return io.BytesIO(source.bytes().data if is_record(source) else source.data)


def is_upright(source: Source | np.ndarray) -> bool:
    """Return True if decoding must rotate a source's image by its EXIF orientation."""
    return getattr(source.store, "upright", False) if is_record(source) else isinstance(source, Upright)


def decoded(source: Source | np.ndarray) -> Image.Image:
    """Return an image in RGB, decoded by PIL. It is rotated by its EXIF orientation if is_upright(source)."""
    with io.BytesIO(source.copied()) if is_record(source) else opened(source) as file:
        image: Any = Image.open(file)
        return (ImageOps.exif_transpose(image) if is_upright(source) else image).convert("RGB")


def object_image(objects: Objects, url: str) -> Image.Image:
    return image_of(Record(objects, url, objects.read([url])[0]))


def image_of(source: Source) -> Image.Image:
    """Return decoded(source). Raise ImageReadError if the source cannot be read or decoded."""
    try:
        return decoded(source)
    except Exception as error:  # PIL's plugins raise OSError, SyntaxError, ValueError and others
        raise read_error(f"cannot decode {source}: {type(error).__name__}: {error}", error) from error


def ctime_of(path: str) -> int:
    """Return the ctime of a file in ns, or 0 if the file cannot be accessed."""
    try:
        return os.stat(path).st_ctime_ns  # programs can set the mtime, but not the ctime
    except OSError:
        return 0


def ctimes_of(paths: Sequence[Any]) -> np.ndarray:
    """Return the ctimes of files as int64 of shape (N,), in ns or 0 as in ctime_of()."""
    try:
        return np.array([os.stat(path).st_ctime_ns for path in paths], np.int64)
    except OSError:
        return np.fromiter(map(ctime_of, paths), np.int64, len(paths))


class RandomAccess:
    """Context manager that reads any part of an encoded image.

    Attributes:
        size: number of bytes.
        ctime: ctime of the file in ns, or 0 if the source is not a file.
    """

    def __init__(self, source: Source | np.ndarray):
        self._data: np.ndarray | None = None
        self._file, self.ctime = -1, 0  # defaults if there is no file
        if isinstance(source, str):
            self._file = os.open(source, os.O_RDONLY)
            stat = os.fstat(self._file)
            self.size, self.ctime = stat.st_size, stat.st_ctime_ns
        else:
            self._data = source.bytes() if is_record(source) else source
            self.size = len(self._data)

    def read(self, count: int, start: int) -> bytes:
        if self._data is not None:
            return self._data[start : start + count].tobytes()
        return os.pread(self._file, count, start)

    def __enter__(self) -> RandomAccess:
        return self

    def __exit__(self, *error) -> None:
        if self._file >= 0:
            os.close(self._file)


class Info(UserDict[Any, Any]):
    """Lazy ``info`` of a PIL image: its EXIF, color profile and other metadata.

    The first access reads the file. An unread Info is pickled as a path or encoded bytes, or as a dict for a rotated
    Record.
    """

    def __init__(self, source: Source | np.ndarray):
        self._source = source

    @cached_property
    def data(self) -> dict[Any, Any]:  # type: ignore[override]  # UserDict reads this attribute
        return _info_of(self._source)

    @property
    def _is_read(self) -> bool:
        return "data" in vars(self)

    def copy(self) -> Any:
        """Return a copy for Pillow's operations, without reading the file."""
        return self.data.copy() if self._is_read else Info(self._source)

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return self.data | dict(other)

    def __ror__(self, other: Any) -> Any:
        return dict(other) | self.data

    def __reduce__(self) -> tuple[Any, ...]:
        if self._is_read or (is_record(self._source) and is_upright(self._source)):
            return dict, (self.data,)
        source = self._source
        return Info, (np.frombuffer(source.copied(), np.uint8) if is_record(source) else source,)


def _info_of(source: Source | np.ndarray) -> dict[Any, Any]:
    """Return PIL's ``info`` of an encoded image. Raise OSError if it cannot be read."""
    if not is_upright(source):
        with opened(source) as file, Image.open(file) as image:
            # other formats may store metadata after the pixels, or change it during decoding
            if image.format == "JPEG":
                return image.info
    return decoded(source).info
