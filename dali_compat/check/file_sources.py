"""Lists what check inspects: the files of a folder or a table, or the images of an archive, one after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension

from ..archives.archive import Archive
from ..data.sources import Record
from ..remote.objects import Objects
from .inspect_file import Inspection, decode, identify

_AT_ONCE = 64  # objects


@dataclass
class FileSource:
    """The files of a folder or a table, or the images of an archive.

    Attributes:
        name: as the user gave it.
        kind: "folder", "bucket", or the class of the table or archive.
        items: gives all paths, or the indices of an archive's images.
        total: number of items.
        archive: the archive; None of files.
        error: why an archive cannot be opened, or None.
        outside: images that lie beside class folders, where ImageFolder lists none.
        folders: what is odd about folders: {"path", "problem", "reason"}. The problem is "empty" (no image in it or
            below, which ImageFolder refuses in a class folder), "unreadable" or "loop".
    """

    name: str
    kind: str
    items: Callable[[], Iterable[Any]] = tuple
    total: int = 0
    archive: Archive | None = None
    error: str | None = None
    outside: int = 0
    folders: list[dict] = field(default_factory=list)

    def lists(self, item: Any) -> bool:
        """True if ImageFolder lists a file, which depends on its name alone; else True of all."""
        return self.kind != "folder" or has_file_allowed_extension(item, IMG_EXTENSIONS)

    def inspect(self, item: Any) -> Inspection:
        """Inspects an item; called in other processes."""
        if self.archive is not None:
            return decode(Record(self.archive, item))
        if isinstance(item, Record):
            return decode(item)
        return decode(item) if self.lists(item) else identify(item)

    def where(self, item: Any) -> dict:
        """Returns the place of an item, for the report."""
        if self.archive is None:
            return {"path": str(item)}
        files, offsets, _ = self.archive.locations([item])
        return {"path": self.archive.files[int(files[0])], "byte": int(offsets[0]), "index": item}


def bucket_source(name: str, kind: str, objects: Objects, urls: Sequence[str]) -> FileSource:
    """Returns images in object storage, which are fetched here, some at a time."""

    def records() -> Iterator[Record]:
        for begin in range(0, len(urls), _AT_ONCE):
            some = urls[begin : begin + _AT_ONCE]
            for url, data in zip(some, objects.read_each(some), strict=True):  # an error comes again where it is read
                yield Record(objects, url, None if isinstance(data, Exception) else data)

    return FileSource(name, kind, records, len(urls))


def folder_source(root: str) -> FileSource:
    """Returns all files below a folder, links followed. Their names are read once before, so that a bar has an end."""

    def files() -> Iterator[str]:
        return (os.path.join(folder, name) for folder, names, _ in _walk(root, []) for name in names)

    source = FileSource(root, "folder", files)
    folders, full = [], set()
    for folder, names, below in _walk(root, source.folders):
        folders.append(folder)
        source.total += len(names)
        images = sum(map(source.lists, names))
        if folder == root and below:
            source.outside = images
        while images and folder not in full:
            full.add(folder)
            folder = folder if folder == root else os.path.dirname(folder)
    empty = [folder for folder in folders if folder not in full and os.path.dirname(folder) in full]
    source.folders += [{"path": folder, "problem": "empty", "reason": "no image in it"} for folder in empty]
    return source


def _walk(root: str, odd: list[dict]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields (folder, names of its files, names of its folders), sorted, from the top down. Adds what is odd."""

    def unreadable(error: OSError) -> None:
        odd.append({"path": error.filename, "problem": "unreadable", "reason": error.strerror})

    above: dict[str, tuple] = {root: ()}  # the folders that each folder is in
    for folder, below, names in os.walk(root, onerror=unreadable, followlinks=True):
        status = os.stat(folder)
        mark, parents = (status.st_dev, status.st_ino), above.pop(folder)
        if mark in parents:
            odd.append({"path": folder, "problem": "loop", "reason": "a link to a folder that it is in; not followed"})
            below.clear()
            continue
        below.sort()
        above |= {os.path.join(folder, name): (*parents, mark) for name in below}
        yield folder, sorted(names), below
