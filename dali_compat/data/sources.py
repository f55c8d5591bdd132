"""Sources of a sample's encoded bytes: a file of its own (a str, its path), or a place in a store (a Record)."""

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

ORIENTATION = 274  # a tag of EXIF


class Store(Protocol):
    """A store of images' encoded bytes: an archive, a table of Arrow's, or the objects of a bucket."""

    def read(self, indices: Sequence[Any]) -> list[np.ndarray]:
        """Returns images' bytes: read-only uint8 arrays (length,)."""
        ...

    def changed(self, indices: Sequence[Any]) -> np.ndarray:
        """(N,) bool: what read() has given of these images may have changed since."""
        ...

    def copied(self, index: Any) -> bytes:
        """Returns a copy of an image's bytes, which nobody changes."""
        ...

    def place(self, index: Any) -> str:
        """For messages."""
        ...


@dataclass(eq=False)
class Record:
    """An image of a store. As text it says where that is."""

    store: Store
    index: Any  # from 0 on; of objects the URL
    data: np.ndarray | None = None  # its encoded bytes, once somebody has asked for them

    def copied(self) -> bytes:
        """Its encoded bytes. What was fetched of an archive is not touched: it may have changed since."""
        return self.bytes().tobytes() if is_object(self) else self.store.copied(self.index)

    def bytes(self) -> np.ndarray:
        """(length,) uint8, a view of what the store has."""
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
    """The path of a file whose image is turned as its EXIF says: not equal to the same text as a str."""

    def __hash__(self) -> int:
        return hash((type(self), str(self)))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(other) == str(self)

    def __ne__(self, other: object) -> bool:  # str has one of its own
        return not self == other


PATHS, BYTES = "paths", "bytes"  # what is encoded
PIXELS, PIXELS_ON_GPU = "pixels", "pixels on the GPU"
DECODED = PIXELS, PIXELS_ON_GPU


class Form(NamedTuple):
    """The form of a pipeline's input and output."""

    given: str  # PATHS of files, encoded images as BYTES, or decoded images as PIXELS or PIXELS_ON_GPU
    keep: bool = False  # it returns the decoded images, too
    fancy: bool = False  # a GPU's decoder interpolates chroma as libjpeg does (its "fancy upsampling")
    reads: bool = False  # it returns the files' bytes, and nothing else
    turns: bool = False  # it turns encoded images as their EXIF says


def current_folder() -> str:
    """The working directory, with a slash; "" where it was removed."""
    try:
        return os.path.join(os.getcwd(), "")
    except OSError:
        return ""


def within(folder: str, path: str) -> str:
    """A path that begins at the root, where it is in a folder of current_folder()."""
    return path if path[:1] == "/" else type(path)(folder + path)


def is_record(source: Source | np.ndarray) -> TypeIs[Record]:
    return isinstance(source, Record)


def is_object(source: Source | np.ndarray) -> TypeIs[Record]:
    return isinstance(source, Record) and isinstance(source.store, Objects)


def fetch(sources: list[Source]) -> None:
    """Ask for the bytes of all records at once, so that a disk can work on them together; they are not waited for."""
    for rows in _by_store(sources):
        records: Any = [sources[row] for row in rows]
        images = records[0].store.read([record.index for record in records])
        for record, image in zip(records, images, strict=True):
            record.data = image


def overwritten(sources: Sequence[Source]) -> np.ndarray:
    """(N,) bool: of which records the bytes may have changed since they were fetched. They are not to be touched: a
    file may have become shorter."""
    found = np.zeros(len(sources), bool)
    for rows in _by_store(sources):
        records: Any = [sources[row] for row in rows]
        found[rows] = records[0].store.changed([record.index for record in records])
    return found


def _by_store(sources: Sequence[Source]) -> list[list[int]]:
    """Returns rows of the records, by their stores."""
    of_store: dict[int, list[int]] = {}
    for row, source in enumerate(sources):
        if is_record(source):
            of_store.setdefault(id(source.store), []).append(row)
    return list(of_store.values())


def opened(source: Source | np.ndarray) -> IO[bytes]:
    """For PIL; an array is of the bytes themselves. The name of the errors that it raises is in the source's text."""
    if isinstance(source, str):
        return open(source, "rb")
    return io.BytesIO(source.bytes().data if is_record(source) else source.data)


def is_upright(source: Source | np.ndarray) -> bool:
    """Returns whether its image is turned as its EXIF says. Elsewhere it is not, as torchvision does not."""
    return getattr(source.store, "upright", False) if is_record(source) else isinstance(source, Upright)


def decoded(source: Source | np.ndarray) -> Image.Image:
    """Decodes an image with PIL, as its data set does."""
    with io.BytesIO(source.copied()) if is_record(source) else opened(source) as file:
        image: Any = Image.open(file)
        return (ImageOps.exif_transpose(image) if is_upright(source) else image).convert("RGB")


def object_image(objects: Objects, url: str) -> Image.Image:
    """The image of an object in RGB, by PIL. Raises as image_of()."""
    return image_of(Record(objects, url, objects.read([url])[0]))


def image_of(source: Source) -> Image.Image:
    """Returns the image of a source in RGB, by PIL. Raises ImageReadError if it cannot be read, or is no image."""
    try:
        return decoded(source)
    except Exception as error:  # PIL's plugins raise OSError, SyntaxError, ValueError and more
        raise read_error(f"cannot decode {source}: {type(error).__name__}: {error}", error) from error


def written(path: str) -> int:
    """When a file, or what the system has of it, was changed last, in ns: no program can set it back. 0 where nobody
    knows. Some 2 us."""
    try:
        return os.stat(path).st_ctime_ns
    except OSError:
        return 0


def when_written(paths: Sequence[Any]) -> np.ndarray:
    """(N,) int64, written() of each path."""
    return np.fromiter(map(written, paths), np.int64, len(paths))


class RandomAccess:
    """Reads any bytes of a source, or of an array of its bytes; a context manager.

    Attributes:
        size: in bytes.
        written: of a file written()'s time; else 0.
    """

    def __init__(self, source: Source | np.ndarray):
        self._data: np.ndarray | None = None
        self._file, self.written = -1, 0  # where it is no file
        if isinstance(source, str):
            self._file = os.open(source, os.O_RDONLY)
            stat = os.fstat(self._file)
            self.size, self.written = stat.st_size, stat.st_ctime_ns
        else:
            self._data = source.bytes() if is_record(source) else source
            self.size = len(self._data)

    def read(self, count: int, start: int) -> bytes:
        """Up to ``count`` bytes from ``start`` on."""
        if self._data is not None:
            return self._data[start : start + count].tobytes()
        return os.pread(self._file, count, start)

    def __enter__(self) -> RandomAccess:
        return self

    def __exit__(self, *error) -> None:
        if self._file >= 0:
            os.close(self._file)


class Info(UserDict[Any, Any]):
    """The ``info`` of an image that its data set gives: EXIF, a colour profile and the like.

    ImageOps.exif_transpose() needs it, and ``getexif()``. The file is read when somebody asks, for few functions do. As
    pickle has it, it is a path, or the encoded bytes of an image of a store.
    """

    def __init__(self, source: Source | np.ndarray):
        self._source = source

    @cached_property
    def data(self) -> dict[Any, Any]:  # type: ignore[override]  # where UserDict looks
        """The info, which is read now."""
        return _info_of(self._source)

    @property
    def _is_read(self) -> bool:
        return "data" in vars(self)

    def copy(self) -> Any:
        """Returns a copy as Pillow's operations ask for it: what nobody has read stays unread."""
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
    """Reads a source's info. Raises OSError if it cannot be read."""
    if not is_upright(source):
        with opened(source) as file, Image.open(file) as image:
            if image.format == "JPEG":  # its header has all; others have more behind their pixels, or change it
                return image.info
    return decoded(source).info
