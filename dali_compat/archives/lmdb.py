"""LMDB databases of images: Caffe's Datum, or images as they are.

The lmdb package is not needed: LMDB keeps every value in one piece, and lmdb_pages.py finds where. Read by position,
images are as parallel as those of the other formats, work after a fork (an LMDB environment does not), and need no
look-up of keys.

Sources: Caffe's src/caffe/proto/caffe.proto (Datum) and tools/convert_imageset.cpp; http://www.lmdb.tech/doc
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..remote.urls import shown
from . import Archive, PathLike, protobuf
from .index import FileRows, Progress, RowsBuilder, corrupt, is_target, refused
from .lmdb_pages import Database
from .protobuf import BYTES, VARINT, Malformed

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_SPECIAL = re.compile(rb"__.*__")
_IMAGE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|BM|II\*\0|MM\0\*|RIFF....WEBP|P[1-6]\s|\0\0\0.ftyp", re.DOTALL
)
_HEAD = 16  # bytes that tell an image format
_REPORT = 1024  # records between reports of progress


class DALILMDB(Archive):
    """Images of an LMDB database, in the order of its keys, with random access. Keys such as ``__len__`` are left out.

    ``dataset[i]`` is ``(transform(image), target_transform(target))`` of a PIL image in RGB, as
    torchvision.datasets.ImageFolder gives it for a file of the same bytes, and an int.

    Values are Caffe's Datum with an encoded image and a label, or encoded images as they are. The latter have no
    targets: say them by ``labels`` or ``label_pattern``. Pickled values are refused: to unpickle is to run what the
    file says.

    Args:
        path: the database's folder or file, a pattern, braces, or a list of these.
        transform: takes a PIL image in RGB, usually a torchvision Compose.
        target_transform: takes the target.
        return_index: samples are (image, target, index), and batches (images, labels, indices).
        labels: one target for every image (torchvision's LSUN has a database a class), or a mapping of keys to targets,
            or a sequence of targets in the order of the keys. It goes before the labels of Datum.
        label_pattern: a regular expression that finds the target in a key; its group, if it has one. Where all that it
            finds are numbers they are the targets; else they are the names of classes, numbered in sorted order:
            ``r"^(.*?)/"`` takes ``n01440764`` from ``n01440764/n01440764_10026.JPEG``.

    Attributes:
        files: paths of the files that hold the images.
        targets: list of ints, before target_transform.
        classes, class_to_idx: the names that ``label_pattern`` found; else names of the targets, if a file
            ``<path>.classes.txt`` has them (the pack command writes it); else None.

    Raises:
        FileNotFoundError: there is no such file.
        ImageReadError (an OSError): a file is damaged, or in ``dataset[i]`` an image cannot be decoded; the text names
            file, position and reason.
        ValueError: a value is neither of these, or nothing says what the targets are; the text says where.

    Examples:
        >>> dataset = DALILMDB("train.lmdb", transform)
        >>> len(dataset), dataset.classes
        (8, ['cat', 'dog'])
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        return_index: bool = False,
        labels: int | Mapping[str, int] | Sequence[int] | None = None,
        label_pattern: str | None = None,
    ) -> None:
        if labels is not None and label_pattern is not None:
            raise ValueError("labels and label_pattern both say what the targets are: give one of them")
        self._labels, self.label_pattern = labels, label_pattern
        super().__init__(path, transform, target_transform, return_index=return_index)
        del self._labels

    def _file(self, name: str) -> str:
        if self._objects is not None:
            raise ValueError(f"{shown(name)}: LMDB is read from local disks alone; pack the images as .rec or .tar")
        return os.path.join(name, "data.mdb") if os.path.isdir(name) else name

    def _scan(self, path: str, progress: Progress) -> FileRows:
        built = RowsBuilder()
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise corrupt(path, "byte 0", "the file is empty")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        database = Database(data, path)
        for number, (key, at, length) in enumerate(database.items()):
            if _SPECIAL.fullmatch(key):
                continue
            begin, end, label = _image(data[at : at + length], path, f"key {key!r}")
            built.add(at + begin, end - begin, label, key=key)
            if number % _REPORT == 0:
                progress(size * number // max(1, database.entries))
        return built.rows()

    def _indexed(self, rows: list[FileRows]) -> None:
        """Takes the targets from the user's arguments."""
        if self._labels is None and self.label_pattern is None:
            if (self._table.targets == _NO_LABEL).any():
                raise ValueError(
                    f"{self.root} holds images without labels: say labels= (one target for all, a mapping of keys to "
                    "targets or a sequence), or label_pattern= (a regular expression for the keys)"
                )
            return
        keys = [key.decode("utf-8", "surrogateescape") for part in rows for key in part.key_list()]
        if len(keys) != len(self._table):
            what = f"{len(keys)} keys for {len(self._table)} images"
            raise ValueError(f"the cached index of {self.root} has {what}: remove it")
        targets = self._by_pattern(keys) if self._labels is None else _by_labels(self._labels, keys)
        self._table.targets[:] = targets

    def _by_pattern(self, keys: list[str]) -> Iterable[int]:
        found = []
        for key in keys:
            match = re.search(self.label_pattern or "", key)
            label = None if match is None else match[1] if match.re.groups else match[0]
            if label is None:
                raise ValueError(f"label_pattern {self.label_pattern!r} finds nothing in the key {key!r}")
            found.append(label)
        if all(name.isdecimal() for name in found):
            numbers = [int(name) for name in found]
            if not is_target(max(numbers)):
                raise ValueError(f"label_pattern {self.label_pattern!r} finds {max(numbers)}, which is no class number")
            return numbers
        self.classes = sorted(set(found))
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        return [self.class_to_idx[name] for name in found]


_NO_LABEL = np.iinfo(np.int64).min


def _by_labels(labels: int | Mapping[str, int] | Sequence[int], keys: list[str]) -> NDArray[Any]:
    if isinstance(labels, (int, np.integer)):
        labels = [int(labels)] * len(keys)
    if isinstance(labels, Mapping):
        missing = [key for key in keys if key not in labels]
        if missing:
            raise ValueError(f"labels has no target for {len(missing)} keys, the first of them {missing[0]!r}")
        labels = [labels[key] for key in keys]
    elif len(labels) != len(keys):
        raise ValueError(f"labels has {len(labels)} targets for {len(keys)} images")
    targets = np.asarray(labels)
    if targets.dtype.kind not in "iu":
        raise ValueError(f"labels are {targets.dtype}, not integers")
    if targets.ndim > 1 or not is_target(int(targets.max())):
        raise ValueError(f"labels has {targets[-1] if targets.ndim > 1 else targets.max()}, which is no class number")
    return targets


def _image(value: memoryview, path: str, where: str) -> tuple[int, int, int]:
    """Returns (begin of the image in ``value``, its end, label)."""
    head = bytes(value[:_HEAD])
    if _IMAGE.match(head):
        return 0, len(value), _NO_LABEL
    if len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5 and value[-1] == ord("."):
        what = "its value is pickled, and unpickling it would run whatever the file says; convert the database"
        raise refused(path, where, f"{what}, for example by python -m dali_compat pack")
    found = {}
    try:
        for number, kind, begin, end in protobuf.fields(value, 0, len(value)):
            if kind == (BYTES if number == _DATA else VARINT) or number == _FLOATS:
                found[number] = begin, end
    except Malformed:
        found = {}
    if _DATA not in found and _FLOATS not in found:
        raise refused(path, where, f"its value, which begins with {head!r}, is neither an image nor a Caffe Datum")
    begin, end = found.get(_DATA, (0, 0))
    if not (found.get(_ENCODED, (0, 0))[0] or _IMAGE.match(bytes(value[begin : begin + _HEAD]))):
        shape = " x ".join(str(found.get(name, (0, 0))[0]) for name in (_CHANNELS, _HEIGHT, _WIDTH))
        raise refused(path, where, f"its Datum holds decoded pixels ({shape}), not an encoded image")
    if _LABEL not in found:
        return begin, end, 0  # proto2 writers may leave out the default
    return begin, end, protobuf.signed(found[_LABEL][0])


def encode(label: int, image: bytes) -> bytes:
    """Returns the Datum of an encoded image, as Caffe's convert_imageset --encoded writes it."""
    return protobuf.encode(_DATA, image) + protobuf.encode(_LABEL, label) + protobuf.encode(_ENCODED, 1)
