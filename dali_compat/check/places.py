"""Where check looks: the files of a folder or a table, or the images of an archive, one after another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension

from ..archives.archive import Archive
from ..data.image_list import DALIImageList
from ..data.sources import Record
from .looking import FileSeen, decode, identify


class Folder:
    """Every file below a folder, links followed.

    Attributes:
        name: the folder, as given.
        kind: "folder".
        error: why nothing in it can be read, or None.
        look: the function of an item that says what it is; it works in other processes.
        listed: the function of an item that tells whether ImageFolder lists it.
        total: number of files.
        outside: images that lie in the folder itself, beside class folders, where ImageFolder lists none.
        folders: what is odd about folders: {"path", "problem", "reason"}. The problem is "empty" (no image in it or
            below, which ImageFolder refuses in a class folder), "unreadable" or "loop".
    """

    kind, error = "folder", None

    def __init__(self, root: str):
        self.name = root
        self.look, self.listed = look_at_file, is_listed
        self.total, self.outside = 0, 0
        self.folders: list[dict] = []
        self._survey()

    def __iter__(self) -> Iterator[str]:
        for folder, names, _ in _walk(self.name, (), []):
            for name in names:
                yield os.path.join(folder, name)

    def where(self, path: str) -> dict:
        return {"path": path}

    def _survey(self) -> None:
        """Names alone, so that the bar knows where it ends."""
        folders, full = [], set()
        for folder, names, below in _walk(self.name, (), self.folders):
            folders.append(folder)
            self.total += len(names)
            images = sum(map(is_listed, names))
            if folder == self.name and below:
                self.outside = images
            while images and folder not in full:
                full.add(folder)
                if folder == self.name:
                    break
                folder = os.path.dirname(folder)
        for folder in folders:
            if folder not in full and os.path.dirname(folder) in full:
                self.folders.append({"path": folder, "problem": "empty", "reason": "no image in it"})


class Images:
    """Every image of an archive, by its index; attributes as Folder's, the kind is the archive's class."""

    error, outside = None, 0

    def __init__(self, name: str, archive: Archive):
        self.name, self.kind, self._archive = name, type(archive).__name__, archive
        self.look, self.listed = partial(look_at_record, archive), lambda index: True
        self.total = len(archive)
        self.folders: list[dict] = []

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.total))

    def where(self, index: int) -> dict:
        files, offsets, _ = self._archive.locations([index])
        return {"path": self._archive.files[int(files[0])], "byte": int(offsets[0]), "index": index}


class Paths:
    """The files that a table names, in its order; attributes as Folder's, the kind is the table's class."""

    error, outside = None, 0

    def __init__(self, name: str, table: DALIImageList):
        self.name, self.kind, self._paths = name, type(table).__name__, table.paths
        self.look, self.listed = decode, lambda path: True
        self.total = len(table)
        self.folders: list[dict] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def where(self, path: str) -> dict:
        return {"path": path}


class Damaged:
    """An archive that cannot be opened; attributes as Folder's."""

    total = outside = 0

    def __init__(self, name: str, kind: str, error: str):
        self.name, self.kind, self.error = name, kind, error
        self.folders: list[dict] = []


def look_at_file(path: str) -> FileSeen:
    return decode(path) if is_listed(path) else identify(path)


def look_at_record(archive: Archive, index: int) -> FileSeen:
    return decode(Record(archive, index))


def is_listed(path: str) -> bool:
    """Whether ImageFolder lists a file, which depends on its name alone."""
    return has_file_allowed_extension(path, IMG_EXTENSIONS)


def _walk(folder: str, above: tuple, odd: list[dict]) -> Iterator[tuple[str, list[str], list[str]]]:
    """(folder, names of its files, names of its folders), sorted, from the top down. ``above``: those it is in."""
    try:
        status = os.stat(folder)
        with os.scandir(folder) as entries:
            found = sorted((entry.name, _is_folder(entry)) for entry in entries)
    except OSError as error:
        odd.append({"path": folder, "problem": "unreadable", "reason": error.strerror})
        return
    mark = status.st_dev, status.st_ino
    if mark in above:
        odd.append({"path": folder, "problem": "loop", "reason": "a link to a folder that it is in; not followed"})
        return
    below = [name for name, is_folder in found if is_folder]
    yield folder, [name for name, is_folder in found if not is_folder], below
    for name in below:
        yield from _walk(os.path.join(folder, name), (*above, mark), odd)


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link into a folder that may not be read, or to itself
        return False
