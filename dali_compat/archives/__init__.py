"""Map-style data sets of images in RecordIO, TFRecord, LMDB and tar files.

Each file is scanned once, and an index (index.py) caches the position and target of each image. The base class Archive
then reads images by position (files.py), whatever the format.
"""

from __future__ import annotations

import copy
import functools
import glob
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch.utils.data as data
from numpy.typing import NDArray
from PIL import Image
from torchvision.datasets import VisionDataset

from ..errors import read_error
from ..remote.objects import FolderAndSize, Objects
from ..remote.urls import UrlPart, are_urls, is_url, without_scheme
from ..runtime.dataset_base import DatasetBase
from ..runtime.saved import packed
from .files import FetchedFile, MappedFiles
from .index import GAP, Entry, FileRows, Progress, Table, indexed

PathLike = str | Path


def expand(path: PathLike | Sequence[PathLike]) -> list[str]:
    """Return the paths of the files in order.

    A list keeps its order. A pattern (``*``, ``?``, ``[``) gives sorted names, and braces (``{000..127}``,
    ``{train,val}``) expand as in a shell. The name of an existing file is taken literally. In URLs only braces are
    expanded.

    Raises:
        FileNotFoundError: a name or pattern matches no file, or the list is empty.
    """
    if isinstance(path, (list, tuple)):
        if not path:
            raise FileNotFoundError("the list of files is empty")
        return [file for part in path for file in expand(part)]
    name = os.path.expanduser(without_scheme(os.fspath(path)))  # type: ignore[arg-type]  # other sequences: TypeError
    if is_url(name):
        return braces(name)
    if os.path.exists(name):
        return [name]
    files = []
    for pattern in braces(name):
        found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise FileNotFoundError(f"no such file or folder: {pattern}")
        files += found
    return files


def braces(name: str) -> list[str]:
    """Expand the braces in a name as a shell does. For example, ``a{1,2}{08..10}`` gives a108, a109, a110, a208 and so
    on.

    Unbalanced braces are taken literally.
    """
    if "{" not in name:
        return [name]
    from braceexpand import braceexpand

    try:
        return list(braceexpand(name))
    except ValueError:  # UnbalancedBracesError
        return [name]


class Archive(VisionDataset, DatasetBase, data.Dataset[tuple[Any, ...]]):  # type: ignore[type-arg]  # for new torchvisions
    """Images and targets of one or more archive files, with random access; see DALIRecordIO.

    Subclasses implement ``_scan(path, progress)``. It opens a file with ``_opened(path)`` and returns the FileRows of
    its images. The result may depend only on the settings that ``_options(path)`` returns. A file is scanned again if
    these settings differ from those of its index.
    """

    _objects: Objects | None = None

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        return_index: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        disk_cache: FolderAndSize | None = None,
    ) -> None:
        root: Any = path  # may be a list, unlike torchvision's roots
        super().__init__(root, transform=transform, target_transform=target_transform)
        self.return_index = return_index
        names = expand(path)
        if are_urls(names):
            self._objects = Objects(storage_options, disk_cache)
        self.files = [self._file(name) for name in names]
        rows, marks = indexed(self.files, self._options, self._scan, self._objects)
        self._table = Table(rows)
        if not len(self._table):
            raise ValueError(f"{path} contains no images")
        self._files = MappedFiles(self.files, [(size, time) for size, time, _ in marks])  # unused for URLs
        self._target_list: list[int] | None = None
        self.classes = _read_classes(path, self._objects)
        self.class_to_idx = self.classes and {name: number for number, name in enumerate(self.classes)}
        self._indexed(rows)

    def _opened(self, path: str) -> IO[bytes]:
        if self._objects is None:
            return open(path, "rb")
        return io.BufferedReader(FetchedFile(self._objects.uncached(), path))

    def _file(self, name: str) -> str:
        """Return the path of the file that contains the images, for a path from expand()."""
        return name

    def _options(self, path: str) -> dict[str, Any]:
        return {"format": type(self).__name__}

    def _scan(self, path: str, progress: Progress) -> FileRows:
        raise NotImplementedError

    def _indexed(self, rows: list[FileRows]) -> None:
        """Hook for subclasses, called at the end of the constructor."""

    @property
    def targets(self) -> list[int]:
        """The targets of all samples, before target_transform. Changes to this list have no effect."""
        targets = self._target_list
        if targets is None:
            targets = self._target_list = self._table.targets.tolist()
        return targets

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        self._warn_if_torch_reads()
        row = self._row(index)
        image, target = self._transformed(self._image(row), self.target(row))
        return (image, target, index) if self.return_index else (image, target)

    def target(self, index: int) -> int:
        """Return the target of the sample at ``index``, before target_transform."""
        return int(self._table.targets[self._row(index)])

    @functools.cached_property
    def mostly_jpeg(self) -> bool:
        """True if most of up to a hundred sampled images are JPEGs."""
        some = range(0, len(self), len(self) // 100 + 1)
        if self._objects is None:
            images = self.read(some)
        else:
            parts = map(self.part, some)
            images = self._objects.read([UrlPart(part.url, part.start, part.start + 2) for part in parts])
        return 2 * sum(image[:2].tobytes() == b"\xff\xd8" for image in images) > len(images)

    def locations(self, indices: Sequence[int]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return (file numbers, byte offsets, lengths) of the images at ``indices``, as int32, int64 and int64 of shape
        (N,).

        A file number is an index in ``files``. RecordIO may store an image in several pieces. Its length then excludes
        the gaps between them, and read() joins the pieces.
        """
        rows = self._rows(indices)
        return self._table.files[rows], self._table.offsets[rows], self._table.lengths[rows]

    def part(self, index: int) -> UrlPart:
        """Return the URL and the byte range of the image at ``index``."""
        row, table = self._row(index), self._table
        offset, gaps = int(table.offsets[row]), table.gaps.get(row, ())
        end = offset + int(table.lengths[row]) + GAP * len(gaps)
        return UrlPart(self.files[table.files[row]], offset, end, tuple((gap, gap + GAP) for gap in gaps))

    def read(self, indices: Sequence[int]) -> list[NDArray[Any]]:
        """Return the encoded images at ``indices`` as read-only uint8 arrays. They are views of the mapped files, or
        fetched bytes if the files are URLs.

        An image that RecordIO stores in several pieces is copied. If a file is overwritten later, the views show its
        new bytes, so call changed() after using them.

        Raises:
            ImageReadError: a file cannot be opened or fetched, or has changed since it was indexed.
        """
        if self._objects is not None:
            return self._objects.read(list(map(self.part, indices)))
        rows, table = self._rows(indices), self._table
        files, offsets, lengths = (column[rows].tolist() for column in (table.files, table.offsets, table.lengths))
        views = self._files.views(files, offsets, lengths)
        for i, row in enumerate(rows.tolist()) if table.gaps else ():
            if row in table.gaps:
                views[i] = np.frombuffer(self.copied(row), np.uint8)
        return views

    def changed(self, indices: Sequence[int]) -> NDArray[Any]:
        """Return a bool array (N,) for the ``indices``, True if an image's file has changed since it was indexed, or
        cannot be opened. While a file is open, its deletion or replacement does not count."""
        files = self._table.files[self._rows(indices)]
        if self._objects is not None:  # fetched objects do not change
            return np.zeros(len(files), bool)
        changed = self._files.changed(np.unique(files).tolist())
        return np.isin(files, list(changed)) if changed else np.zeros(len(files), bool)

    def copied(self, index: int) -> bytes:
        """Return a copy of the encoded bytes of the image at ``index``.

        Raises:
            ImageReadError: the file is missing or has changed.
        """
        if self._objects is not None:
            return self._objects.copied(self.part(index))
        row, table = self._row(index), self._table
        gaps = table.gaps.get(row, ())
        length = int(table.lengths[row]) + GAP * len(gaps)
        data = self._files.bytes(int(table.files[row]), int(table.offsets[row]), length)
        starts = [0, *(gap + GAP for gap in gaps)]
        return b"".join(data[start:end] for start, end in zip(starts, [*gaps, length], strict=True)) if gaps else data

    def index_at(self, url: str, objects: Objects) -> tuple[str, bytes]:
        """Return (URL, bytes) of the index file for a copy of this archive in object storage.

        ``url`` is the copy's URL, and ``objects`` reads it.
        """
        (rows,), _ = indexed(self.files, self._options, self._scan)
        there = copy.copy(self)
        there._objects = objects
        entry = Entry(url, there._options(url), objects)
        return entry.sidecar, bytes(packed({"fingerprint": entry.fingerprint}, rows._asdict()))

    def place(self, index: int) -> str:
        """Return the file and the byte offset of the image at ``index``, for messages."""
        row = self._row(index)
        return f"{self.files[self._table.files[row]]}, byte {self._table.offsets[row]}"

    def name(self, index: int) -> str:
        """Return the file, byte offset and index of the image at ``index``, for messages."""
        return f"{self.place(index)}, index {self._row(index)}"

    def extra_repr(self) -> str:
        """Return a line for repr() with the number of files, or "" for a single file."""
        return f"Files: {len(self.files)}" if len(self.files) > 1 else ""

    def _image(self, row: int) -> Image.Image:
        data = self.copied(row)
        try:
            with Image.open(io.BytesIO(data)) as image:
                converted: Image.Image = image.convert("RGB")
                return converted
        except Exception as error:  # PIL's plugins raise OSError, SyntaxError, ValueError and others
            raise read_error(f"cannot decode {self.name(row)}: {type(error).__name__}: {error}", error) from error

    def _rows(self, indices: Sequence[int]) -> NDArray[Any]:
        return np.fromiter(map(self._row, indices), np.int64, len(indices))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_target_list": None}


def classes_file(path: PathLike) -> Path:
    """Return the path of the file with an archive's class names, one per line. The pack command writes it."""
    return Path(f"{os.path.abspath(os.path.expanduser(path))}.classes.txt")


def _read_classes(path: Any, objects: Objects | None) -> list[str] | None:
    if isinstance(path, (list, tuple)):
        return None
    if objects is None:
        stored = classes_file(path).read_bytes() if classes_file(path).is_file() else None
    else:
        stored = objects.read_if_exists(f"{path}.classes.txt")
    return None if stored is None else stored.decode("utf-8", "surrogateescape").split("\n")[:-1]
