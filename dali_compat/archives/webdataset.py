"""WebDataset's tar shards: files of one base name are one sample. Read and written without the webdataset package.

A tar file's members are found by its headers alone. Python's tarfile is no replacement: it ends at a damaged header
without an error, so that a data set would lose the rest of its images unnoticed. It also keeps an object for every
member, and takes five times as long.

Sources: https://github.com/webdataset/webdataset, README and webdataset/tariterators.py; POSIX.1-2017, pax (ustar and
pax formats); GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..remote.objects import FolderAndSize
from . import Archive, PathLike
from .files import FetchedFile, OpenFile
from .index import FileRows, Progress, RowsBuilder, corrupt, is_target, refused

BLOCK = 512
END = bytes(2 * BLOCK)
_REGULAR = b"0\x007"
_NO_DATA = b"123456"  # links, devices, folders, pipes: their size says nothing about the file
_LONG_NAME, _LONG_LINK, _PAX, _SOLARIS_PAX, _PAX_GLOBAL, _SPARSE = b"LKxXgS"
_SAYING = b"LKxXg"  # the bytes behind them describe the next member
_OTHER_FORMATS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC = slice(257, 263)
_CHECKSUM = slice(148, 156)
_LONGEST = 1 << 20  # bytes of such text: names and numbers
_DIGITS = 20  # of a number in an extended header, with the space behind it


def members(file: OpenFile | FetchedFile, path: str) -> Iterator[tuple[str, int, int]]:
    """Yields (name, offset, size) of each regular file, in order.

    Args:
        file: opened.
        path: for messages.

    Raises:
        ImageReadError: a header is damaged or the file ends early.
        ValueError: the file is compressed, or has sparse files.
    """
    end, at = file.size, 0
    name = size = before = None  # what the headers before a member say of it, and where the last of them is
    while at < end:
        where = f"header at byte {at}"
        header = file.pread(BLOCK, at)
        if at == 0:
            _refuse_compressed(header, path)
        if not header.strip(b"\0") and len(header) == BLOCK:
            break
        if len(header) < BLOCK or not _sound(header):
            raise corrupt(path, where, "the file ends inside it" if len(header) < BLOCK else "its checksum is wrong")
        kind = header[156]
        length = _number(header[124:136])
        if length < 0:
            raise corrupt(path, where, "its size is not a number")
        if kind in _SAYING and length > min(_LONGEST, end - at - BLOCK):
            raise corrupt(path, where, f"the {length} bytes of its text are more than the file has, or than {_LONGEST}")
        if kind in (_PAX, _SOLARIS_PAX):
            said = _pax(file.pread(length, at + BLOCK), path, where)
            name, size = said.get("path", name), said.get("size", size)
        elif kind == _LONG_NAME:
            name = _text(file.pread(length, at + BLOCK))
        elif kind == _SPARSE:
            raise refused(path, where, "it is a sparse file; write the tar file without --sparse")
        elif kind not in (_LONG_LINK, _PAX_GLOBAL):
            length = length if size is None else int(size)
            if kind in _NO_DATA:
                length = 0
            over = at + BLOCK + length + -length % BLOCK - end
            if over > 0:
                raise corrupt(path, where, f"the file ends {over} bytes before the member does")
            if kind in _REGULAR:
                yield name or _name(header), at + BLOCK, length
            name = size = None
        before = where if kind in _SAYING else None
        at += BLOCK + length + -length % BLOCK
    if before is not None:
        raise corrupt(path, before, "the file ends before the member that it describes")


def _refuse_compressed(header: bytes, path: str) -> None:
    for magic, name in _OTHER_FORMATS.items():
        if header.startswith(magic):
            raise refused(path, "byte 0", f"the file is compressed ({name}), which has no random access: decompress it")


def _sound(header: bytes) -> bool:
    """True if the sum of the header's bytes, with its checksum as spaces, is its checksum; modulo 65521, as the low
    half of Adler-32 is one more than that sum and 20 times as fast as Python's."""
    blank = header[: _CHECKSUM.start] + b" " * 8 + header[_CHECKSUM.stop :]
    return (zlib.adler32(blank) & 0xFFFF) == (_number(header[_CHECKSUM]) + 1) % 65521


def _number(field: bytes) -> int:
    """Reads octal digits, or GNU's base 256 if the first bit is set; -1 if it is neither."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") & ~(0x80 << 8 * (len(field) - 1))
    try:
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _name(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500])
    return f"{prefix}/{name}" if prefix and header[_MAGIC] == b"ustar\0" else name


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _pax(data: bytes, path: str, where: str) -> dict[str, str]:
    """Reads records of "length key=value newline", where length counts all of the record."""
    said, at = {}, 0
    while at < len(data) and data[at]:
        digits, _, _ = data[at : at + _DIGITS].partition(b" ")
        end = at + int(digits) if digits.isdigit() else 0
        key, _, value = data[at + len(digits) + 1 : max(end - 1, 0)].partition(b"=")
        number = value.isdigit() and len(value) < _DIGITS
        if not (at < end <= len(data) and key and (key != b"size" or number)):
            raise corrupt(path, where, "its extended header is damaged")
        said[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at = end
    if any(key.startswith("GNU.sparse") for key in said):
        raise refused(path, where, "it is a sparse file; write the tar file without --sparse")
    return said


def member(name: str, data: bytes) -> bytes:
    """Returns a regular file as a member, without times and owners. ``name`` has at most 100 bytes."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info.tobuf(tarfile.USTAR_FORMAT, "utf-8") + data + bytes(-len(data) % BLOCK)


IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")
"""torchvision's IMG_EXTENSIONS without the dots."""

_NAME = re.compile(r"((?:.*/|)[^./]+/?)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__")
_REPORT = 1024  # files between reports of progress
_MOST = 1 << 24  # bytes of a file that holds a target; a .json may hold much more than it


class DALIWebDataset(Archive):
    """Images of WebDataset's tar shards, with random access.

    ``dataset[i]`` is ``(transform(image), target_transform(target))`` of a PIL image in RGB, as
    torchvision.datasets.ImageFolder gives it for a file of the same bytes, and an int.

    Files that follow each other and have the same name up to the first dot of the base name are a sample, as in
    webdataset. The target is the number in its ``.cls`` file, else a field of its ``.json`` file.

    Args:
        path: a tar file or its URL, a pattern, braces as in ``train-{000000..000146}.tar``, or a list of these.
        transform: takes a PIL image in RGB, usually a torchvision Compose.
        target_transform: takes the target.
        return_index: samples are (image, target, index), and batches (images, labels, indices).
        image_extensions: which files are images; of several in a sample, the one whose extension comes first here.
        json_field: the field of ``.json`` files that holds the target.
        storage_options, disk_cache: of URLs, as DALIImageFolder has them.

    Attributes:
        files: paths of the files that hold the images.
        targets: list of ints, before target_transform.
        classes, class_to_idx: names of the targets, if a file ``<path>.classes.txt`` has them (the pack command
            writes it); else None.

    Raises:
        FileNotFoundError: there is no such file.
        ImageReadError (an OSError): a file is damaged, or in ``dataset[i]`` an image cannot be decoded; the text names
            file, position and reason.
        ValueError: a file is compressed, or a sample has no image or no class number; the text says where.

    Examples:
        >>> dataset = DALIWebDataset("train-*.tar", transform)
        >>> len(dataset), dataset.targets
        (8, [0, 0, 0, 0, 1, 1, 1, 1])
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        return_index: bool = False,
        image_extensions: Sequence[str] = IMAGE_EXTENSIONS,
        json_field: str = "label",
        storage_options: Mapping[str, Any] | None = None,
        disk_cache: FolderAndSize | None = None,
    ):
        self.image_extensions = tuple(extension.lower().lstrip(".") for extension in image_extensions)
        self.json_field = json_field
        super().__init__(
            path,
            transform,
            target_transform,
            return_index=return_index,
            storage_options=storage_options,
            disk_cache=disk_cache,
        )

    def _options(self, path: str) -> dict[str, Any]:
        return {**super()._options(path), "images": self.image_extensions, "json": self.json_field, "walk": 2}

    def _scan(self, path: str, progress: Progress) -> FileRows:
        built = RowsBuilder()
        with self._opened(path) as file:
            key: str | None = None
            sample: dict[str, tuple[int, int]] = {}
            for number, (name, offset, size) in enumerate(members(file, path)):
                match = _NAME.fullmatch(name)
                if not match or _META.fullmatch(name):
                    continue
                if match[1] != key:
                    self._add(built, file, path, key, sample)
                    key, sample = match[1], {}
                extension = match[2].lower()
                if extension in sample:
                    raise refused(path, f"header at byte {offset}", f"{name!r} is there twice")
                sample[extension] = offset, size
                if number % _REPORT == 0:
                    progress(offset)
            self._add(built, file, path, key, sample)
        return built.rows()

    def _add(
        self,
        built: RowsBuilder,
        file: OpenFile | FetchedFile,
        path: str,
        key: str | None,
        sample: dict[str, tuple[int, int]],
    ) -> None:
        """Adds one sample: {extension: (offset, size)}."""
        if key is None:
            return
        where = f"sample {key!r} at byte {min(sample.values())[0]}"
        for extension in self.image_extensions:
            if extension in sample:
                break
        else:
            raise refused(path, where, f"it has no image, but {', '.join(map(repr, sorted(sample)))}")
        for source in ("cls", "json"):
            if source in sample:
                offset, size = sample[source]
                if size > _MOST:
                    raise refused(path, where, f"its .{source} has {size} bytes: too many to look for a class number")
                text = file.pread(size, offset)
                built.add(*sample[extension], self._label(source, text, path, where))
                return
        raise refused(path, where, f"it has neither .cls nor .json, but {', '.join(map(repr, sorted(sample)))}")

    def _label(self, source: str, text: bytes, path: str, where: str) -> int:
        try:
            value = int(text) if source == "cls" else json.loads(text)[self.json_field]
        except KeyError:
            raise refused(path, where, f"its .json has no field {self.json_field!r}; say json_field=") from None
        except (ValueError, TypeError, IndexError, RecursionError):
            raise refused(path, where, f"its .{source} holds {text[:40]!r}, not a class number") from None
        if type(value) is not int or not is_target(value):
            what = f"{self.json_field!r} of its .json" if source == "json" else "its .cls"
            raise refused(path, where, f"{what} is {value!r:.40}, not a class number")
        return value


def encode(number: int, extension: str, label: int, image: bytes) -> bytes:
    """Returns the members of a sample: the image and its .cls file. The sample's name is its number, as names of files
    may have dots, which part the name from the extension here."""
    key = f"{number:09d}"
    return member(f"{key}.{extension}", image) + member(f"{key}.cls", str(label).encode())
