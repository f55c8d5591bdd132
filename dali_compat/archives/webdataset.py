"""WebDataset's tar shards, read and written without the webdataset package.

Sources: https://github.com/webdataset/webdataset, README and webdataset/tariterators.py
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from ..remote.objects import FolderAndSize
from . import Archive, PathLike
from .index import FileRows, Progress, RowsBuilder, corrupt, is_target, unsupported

BLOCK = 512
END = bytes(2 * BLOCK)
_OTHER_FORMATS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def members(file: IO[bytes], path: str) -> Iterator[tuple[str, int, int]]:
    """Yield the (name, offset, size) of each regular file, in order.

    Args:
        file: an open file. Its position may change between two members.
        path: for messages.

    Raises:
        ImageReadError: a header is damaged or the file ends early.
        ValueError: the file is compressed, or has sparse files.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(BLOCK)
    for magic, name in _OTHER_FORMATS.items():
        if head.startswith(magic):
            what = f"the file is compressed ({name}), so it has no random access; decompress it"
            raise unsupported(path, "byte 0", what)
    file.seek(0)
    tar, at = None, 0
    while at < end:
        try:
            tar = tar or tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape")
            found = tar.next()
        except Exception as error:  # TarError, and others that tarfile raises for invalid numbers
            raise corrupt(
                path, f"header at byte {at}", f"it is damaged: {str(error) or type(error).__name__}"
            ) from None
        if found is None:
            break
        tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all members
        if found.issparse():
            raise unsupported(
                path, f"header at byte {at}", "this member is a sparse file; write the tar without --sparse"
            )
        if tar.offset <= at or found.size < 0:
            raise corrupt(path, f"header at byte {at}", f"the member's size, {found.size} bytes, is invalid")
        if tar.offset > end:
            what = f"the file ends {tar.offset - end} bytes before the member does"
            raise corrupt(path, f"header at byte {at}", what)
        at = tar.offset
        if found.isreg():
            yield found.name, found.offset_data, found.size
    file.seek(at)  # tarfile stops at a damaged header without an error
    rest = file.read(BLOCK)
    if rest.strip(b"\0") or len(rest) % BLOCK:
        what = "the file ends within the header" if len(rest) < BLOCK else "it is damaged"
        raise corrupt(path, f"header at byte {at}", what)


def member(name: str, data: bytes) -> bytes:
    """Return a file as a member of a tar file, without times and owners. ``name`` has at most 100 bytes."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info.tobuf(tarfile.USTAR_FORMAT, "utf-8") + data + bytes(-len(data) % BLOCK)


IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")
"""torchvision's IMG_EXTENSIONS without the dots."""

_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)$")  # as in webdataset
_META = re.compile(r"__[^/]*__")
_MOST = 1 << 24  # largest size in bytes of a file with a target; a .json file may hold more than the target


class DALIWebDataset(Archive):
    """Images of WebDataset's tar shards, with random access.

    ``dataset[i]`` is ``(transform(image), target_transform(target))``, as in torchvision.datasets.ImageFolder. The
    image is a PIL image in RGB, and the target is an int.

    Consecutive files form a sample if their names are equal up to the first dot of the base name, as in webdataset. The
    target is the number in the sample's ``.cls`` file, or a field of its ``.json`` file.

    Args:
        path: a tar file or its URL, a pattern, braces as in ``train-{000000..000146}.tar``, or a list of these.
        transform: takes a PIL image in RGB, usually a torchvision Compose.
        target_transform: takes the target.
        return_index: samples are (image, target, index), and batches are [images, labels, indices].
        image_extensions: extensions of image files. If a sample has several images, the one with the first of these
            extensions is used.
        json_field: the field of ``.json`` files that holds the target.
        storage_options, disk_cache: for URLs, as in DALIImageFolder.

    Attributes:
        files, targets, classes, class_to_idx: as in DALIRecordIO.

    Raises:
        FileNotFoundError: there is no such file.
        ImageReadError (an OSError): a file is damaged, or an image cannot be decoded in ``dataset[i]``.
        ValueError: a file is compressed, or a sample has no image or no class number.

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
        remote: Any = {"storage_options": storage_options, "disk_cache": disk_cache}
        super().__init__(path, transform, target_transform, return_index=return_index, **remote)

    def _options(self, path: str) -> dict[str, Any]:
        return {**super()._options(path), "images": self.image_extensions, "json": self.json_field, "walk": 3}

    def _scan(self, path: str, progress: Progress) -> FileRows:
        builder = RowsBuilder(progress)
        with self._opened(path) as file:
            key: str | None = None
            sample: dict[str, tuple[int, int]] = {}
            for name, offset, size in members(file, path):
                match = _NAME.match(name)
                if not match or _META.fullmatch(name):
                    continue
                if match[1] != key:
                    self._add(builder, file, path, key, sample)
                    key, sample = match[1], {}
                extension = match[2].lower()
                if extension in sample:
                    raise unsupported(path, f"data at byte {offset}", f"{name!r} appears twice")
                sample[extension] = offset, size
            self._add(builder, file, path, key, sample)
        return builder.rows()

    def _add(
        self, builder: RowsBuilder, file: IO[bytes], path: str, key: str | None, sample: dict[str, tuple[int, int]]
    ) -> None:
        """Add a sample to the builder. ``sample`` is {extension: (offset, size)} of its files."""
        if key is None:
            return
        where = f"sample {key!r} at byte {min(sample.values())[0]}"
        for extension in self.image_extensions:
            if extension in sample:
                break
        else:
            raise unsupported(path, where, f"it has no image, only {_names(sample)}")
        for source in ("cls", "json"):
            if source in sample:
                offset, size = sample[source]
                if size > _MOST:
                    raise unsupported(path, where, f"its .{source} has {size} bytes, too many for a class number")
                file.seek(offset)
                builder.add(*sample[extension], self._label(source, file.read(size), path, where))
                return
        raise unsupported(path, where, f"it has neither .cls nor .json, only {_names(sample)}")

    def _label(self, source: str, text: bytes, path: str, where: str) -> int:
        try:
            value = int(text) if source == "cls" else json.loads(text)[self.json_field]
        except KeyError:
            what = f"its .json has no field {self.json_field!r}; pass the name of the target's field as json_field="
            raise unsupported(path, where, what) from None
        except (ValueError, TypeError, IndexError, RecursionError):
            raise unsupported(path, where, f"its .{source} holds {text[:40]!r}, not a class number") from None
        if type(value) is not int or not is_target(value):
            what = f"{self.json_field!r} of its .json" if source == "json" else "its .cls"
            raise unsupported(path, where, f"{what} is {value!r:.40}, not a class number")
        return value


def _names(sample: dict[str, Any]) -> str:
    return ", ".join(f"{name!r:.80}" for name in sorted(sample))


def encode(number: int, extension: str, label: int, image: bytes) -> bytes:
    """Return the members of a sample: the image and its .cls file. Their base name is the sample's ``number``."""
    key = f"{number:09d}"  # in the original name, a dot would begin the extension
    return member(f"{key}.{extension}", image) + member(f"{key}.cls", str(label).encode())
