"""LMDB databases of images, stored as Caffe's Datum or as plain encoded images.

The lmdb package is not needed. LMDB stores every value contiguously, and Database locates it. Reading by position needs
no key look-up, and works after a fork.

Sources: Caffe's src/caffe/proto/caffe.proto (Datum) and tools/convert_imageset.cpp; http://www.lmdb.tech/doc
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..remote.urls import redacted
from . import Archive, PathLike, protobuf
from .index import FileRows, Progress, RowsBuilder, corrupt, is_target, unsupported
from .protobuf import BYTES, VARINT, Malformed

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_SPECIAL = re.compile(rb"__.*__")
_IMAGE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|BM|II\*\0|MM\0\*|RIFF....WEBP|P[1-6]\s|\0\0\0.ftyp", re.DOTALL
)
_HEAD = 16  # bytes needed to recognize an image format


class DALILMDB(Archive):
    """Images of an LMDB database, in the order of its keys, with random access. Keys such as ``__len__`` are left out.

    ``dataset[i]`` is ``(transform(image), target_transform(target))``, as in torchvision.datasets.ImageFolder. The
    image is a PIL image in RGB, and the target is an int.

    Values are Caffe's Datum with an encoded image and a label, or plain encoded images. Plain images have no targets,
    so pass ``labels`` or ``label_pattern``. Pickled values are refused, because unpickling would run code from the
    file.

    Args:
        path: the database's folder or file, a pattern, braces, or a list of these.
        transform: takes a PIL image in RGB, usually a torchvision Compose.
        target_transform: takes the target.
        return_index: samples are (image, target, index), and batches are [images, labels, indices].
        labels: one target for all images, such as those of one class of torchvision's LSUN; a mapping of keys to
            targets; or a sequence of targets in the order of the keys. It overrides the labels of Datum.
        label_pattern: a regular expression that matches the target in a key. If it has a group, only the group is the
            target. If all matches are numbers, they are the targets. Otherwise they are class names, numbered in sorted
            order. For example, ``r"^(.*?)/"`` finds ``n01440764`` in ``n01440764/n01440764_10026.JPEG``.

    Attributes:
        files, targets: as in DALIRecordIO.
        classes, class_to_idx: the names found by ``label_pattern``; otherwise as in DALIRecordIO.

    Raises:
        FileNotFoundError: there is no such file.
        ImageReadError (an OSError): a file is damaged, or an image cannot be decoded in ``dataset[i]``.
        ValueError: a value is not an image, or targets are missing.

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
            raise ValueError("labels and label_pattern are mutually exclusive")
        self._labels, self.label_pattern = labels, label_pattern
        super().__init__(path, transform, target_transform, return_index=return_index)
        del self._labels

    def _file(self, name: str) -> str:
        if self._objects is not None:
            what = "LMDB is supported only on local disks; pack the images as .rec or .tar"
            raise ValueError(f"{redacted(name)}: {what}")
        return os.path.join(name, "data.mdb") if os.path.isdir(name) else name

    def _scan(self, path: str, progress: Progress) -> FileRows:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise corrupt(path, "byte 0", "the file is empty")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        database = Database(data, path)
        builder = RowsBuilder(lambda _: progress(size * len(builder) // max(1, database.entries)))
        for key, at, length in database.items():
            if not _SPECIAL.fullmatch(key):
                begin, end, label = _image(data[at : at + length], path, f"key {key!r}")
                builder.add(at + begin, end - begin, label, key=key)
        return builder.rows()

    def _indexed(self, rows: list[FileRows]) -> None:
        if self._labels is None and self.label_pattern is None:
            if (self._table.targets == _NO_LABEL).any():
                raise ValueError(
                    f"{self.root} contains images without labels; pass labels= (one target for all, a mapping of keys "
                    "to targets or a sequence), or label_pattern= (a regular expression for the keys)"
                )
            return
        keys = [key.decode("utf-8", "surrogateescape") for part in rows for key in part.key_list()]
        if len(keys) != len(self._table):
            what = f"{len(keys)} keys for {len(self._table)} images"
            raise ValueError(
                f"the cached index of {self.root} is damaged: it has {what}; remove .*.dali_compat-index.npz next to "
                "the archive or, if there is no such file, dali_compat/index in $XDG_CACHE_HOME (by default ~/.cache)"
            )
        targets = self._by_pattern(keys) if self._labels is None else _by_labels(self._labels, keys)
        self._table.targets[:] = targets

    def _by_pattern(self, keys: list[str]) -> Iterable[int]:
        found = []
        for key in keys:
            match = re.search(self.label_pattern or "", key)
            label = None if match is None else match[1] if match.re.groups else match[0]
            if label is None:
                raise ValueError(f"label_pattern {self.label_pattern!r} finds no target in the key {key!r}")
            found.append(label)
        if all(name.isdecimal() for name in found):
            numbers = [int(name) for name in found]
            if not is_target(max(numbers)):
                what = f"finds the class number {max(numbers)}, which does not fit into int64"
                raise ValueError(f"label_pattern {self.label_pattern!r} {what}")
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
            raise ValueError(f"labels has no target for {len(missing)} of {len(keys)} keys, such as {missing[0]!r}")
        labels = [labels[key] for key in keys]
    elif len(labels) != len(keys):
        raise ValueError(f"labels has {len(labels)} targets, but there are {len(keys)} images")
    targets = np.asarray(labels)
    if targets.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers, got {targets.dtype}")
    if targets.ndim > 1 or not is_target(int(targets.max())):
        raise ValueError(f"labels must be class numbers, got {targets[-1] if targets.ndim > 1 else targets.max()}")
    return targets


def _image(value: memoryview, path: str, where: str) -> tuple[int, int, int]:
    """Return (start of the image in ``value``, its end, label)."""
    head = bytes(value[:_HEAD])
    if _IMAGE.match(head):
        return 0, len(value), _NO_LABEL
    if len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5 and value[-1] == ord("."):
        what = "its value is pickled, and unpickling it would run code from the file; convert the database"
        raise unsupported(path, where, f"{what}, for example by python -m dali_compat pack")
    found = {}
    try:
        for number, kind, begin, end in protobuf.fields(value, 0, len(value)):
            if kind == (BYTES if number == _DATA else VARINT) or number == _FLOATS:
                found[number] = begin, end
    except Malformed:
        found = {}
    if _DATA not in found and _FLOATS not in found:
        raise unsupported(path, where, f"its value, which begins with {head!r}, is neither an image nor a Caffe Datum")
    begin, end = found.get(_DATA, (0, 0))
    if not (found.get(_ENCODED, (0, 0))[0] or _IMAGE.match(bytes(value[begin : begin + _HEAD]))):
        shape = " x ".join(str(found.get(name, (0, 0))[0]) for name in (_CHANNELS, _HEIGHT, _WIDTH))
        raise unsupported(path, where, f"its Datum holds decoded pixels ({shape}), not an encoded image")
    if _LABEL not in found:
        return begin, end, 0  # proto2 writers may omit default values
    return begin, end, protobuf.signed(found[_LABEL][0])


def encode(label: int, image: bytes) -> bytes:
    """Return an encoded image as a Datum, as Caffe's convert_imageset --encoded does."""
    return protobuf.encode(_DATA, image) + protobuf.encode(_LABEL, label) + protobuf.encode(_ENCODED, 1)


_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_META = struct.Struct("<IIQQ")  # magic number, version, address, size of the map
_DB = struct.Struct("<IHHQQQQQ")  # page size (in the first one only), flags, depth, pages of 3 kinds, entries, root
_END = struct.Struct("<QQ")  # last page, transaction
_NUMBER = struct.Struct("<Q")
_MAGIC, _VERSION, _NO_PAGE = 0xBEEFC0DE, 1, (1 << 64) - 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_KINDS = 0x6F  # valid bits of a page's flags; LMDB sets others only while it writes a page
_BIG, _SUB_DATABASE, _DUPLICATES = 1, 2, 4
_SMALLEST, _LARGEST = 512, 1 << 16  # allowed page sizes


class Database:
    """Keys and values of a database. ``data`` is the whole file, memory-mapped.

    Raises ImageReadError if the file is damaged, and ValueError if it is of an unsupported kind.

    The LMDB library does not expose file offsets. It also trusts every page, so a damaged file may end the process
    (SIGBUS). This class checks every number against the file's size before using it, and visits each page at most once.

    Source: LMDB 0.9's mdb.c (MDB_page, MDB_node, MDB_db, MDB_meta), on a 64-bit machine. A page begins with a header
    and the positions of its nodes, 2 bytes each. A node of a leaf holds the value's size, the key, and the value or the
    number of its first overflow page. A node of a branch holds a page number. Pages 0 and 1 are meta pages. The one
    with the later transaction is valid.

    Attributes:
        entries: number of keys according to the meta page.
    """

    def __init__(self, data: memoryview, path: str):
        self._data, self._path = data, path
        self._page = self._meta(0)[3]
        _, self.entries, self._root, _ = max(self._meta(at) for at in (0, self._page))
        self._pages = len(data) // self._page

    def items(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield (key, start of the value in the file, its length), in the order of the keys."""
        self._used = bytearray(self._pages)
        todo, found = [] if self._root == _NO_PAGE else [self._root], 0
        while todo:
            number = todo.pop()
            begin, flags, nodes = self._nodes(number)
            self._use(number)
            if flags == _LEAF:
                yield from (self._item(begin, node, number) for node in nodes)
                found += len(nodes)
            else:
                todo += [self._child(begin, node) for node in reversed(nodes)]
        if found != self.entries:
            raise corrupt(self._path, "meta page", f"it declares {self.entries} keys, but the database has {found}")

    def _meta(self, at: int) -> tuple[int, int, int, int]:
        """Return (transaction, entries, root, page size in bytes) of a meta page."""
        begin = at + _HEADER.size
        main = begin + _META.size + _DB.size
        if main + _DB.size + _END.size > len(self._data):
            raise corrupt(self._path, f"byte {len(self._data)}", "the file ends within its first two pages")
        magic, version, _, _ = _META.unpack_from(self._data, begin)
        if magic != _MAGIC or version != _VERSION or not _HEADER.unpack_from(self._data, at)[2] & _META_PAGE:
            what = "the file is not an LMDB database written on a 64-bit machine with this byte order"
            raise corrupt(self._path, f"byte {begin}", what)
        size: int = _DB.unpack_from(self._data, begin + _META.size)[0]
        if not _SMALLEST <= size <= _LARGEST or size & (size - 1):
            what = f"the database's page size, {size} bytes, is invalid"
            raise corrupt(self._path, f"byte {begin + _META.size}", what)
        _, flags, _, _, _, _, entries, root = _DB.unpack_from(self._data, main)
        if flags & _DUPLICATES:
            raise unsupported(self._path, f"byte {at}", "the database has sorted duplicates, not one value per key")
        return _END.unpack_from(self._data, main + _DB.size)[1], entries, root, size

    def _nodes(self, number: int) -> tuple[int, int, list[int]]:
        """Return (position of page ``number`` in the file, kind of the page, offsets of its nodes from its start)."""
        begin = number * self._page
        if not 2 <= number < self._pages:
            what = f"it cannot be a page of keys, because those are pages 2 to {self._pages - 1}"
            raise corrupt(self._path, f"page {number}", what)
        found, _, flags, lower, _ = _HEADER.unpack_from(self._data, begin)
        if found != number or flags & _KINDS not in (_BRANCH, _LEAF) or not _HEADER.size <= lower <= self._page:
            raise corrupt(self._path, f"page {number} at byte {begin}", "it is not a page of keys")
        count = (lower - _HEADER.size) // 2
        nodes = struct.unpack_from(f"<{count}H", self._data, begin + _HEADER.size)
        if count and not _HEADER.size <= min(nodes) <= max(nodes) <= self._page - _NODE.size:
            raise corrupt(self._path, f"page {number} at byte {begin}", "a key lies outside of the page")
        return begin, flags & _KINDS, list(nodes)

    def _child(self, begin: int, node: int) -> int:
        low, high, top, _ = _NODE.unpack_from(self._data, begin + node)
        return int(low | high << 16 | top << 32)

    def _item(self, begin: int, node: int, number: int) -> tuple[bytes, int, int]:
        low, high, flags, key_size = _NODE.unpack_from(self._data, begin + node)
        where, size = f"page {number} at byte {begin}", low | high << 16
        if flags & (_SUB_DATABASE | _DUPLICATES):
            what = "it holds another database or sorted duplicates, not one value per key"
            raise unsupported(self._path, where, what)
        at = begin + node + _NODE.size + key_size
        end = begin + self._page
        inline = _NUMBER.size if flags & _BIG else size
        if at + inline > end:
            raise corrupt(self._path, where, "a key or a value ends outside of the page")
        key = bytes(self._data[at - key_size : at])
        if flags & _BIG:
            at = self._overflow(_NUMBER.unpack_from(self._data, at)[0], size, where)
        return key, at, size

    def _overflow(self, number: int, size: int, where: str) -> int:
        """Return the byte offset of a value in overflow pages. ``number`` is the first of these pages."""
        begin = number * self._page
        if not 2 <= number < self._pages or begin + _HEADER.size + size > len(self._data):
            raise corrupt(self._path, where, f"a value of {size} bytes at page {number} does not fit into the file")
        found, _, flags, _, _ = _HEADER.unpack_from(self._data, begin)
        if found != number or flags != _OVERFLOW:
            raise corrupt(self._path, where, f"a value should begin at page {number}, which is not an overflow page")
        self._use(number)
        return begin + _HEADER.size

    def _use(self, number: int) -> None:
        """Mark a page as visited. Raise ImageReadError if it was visited before."""
        if self._used[number]:  # an intact file refers to each page only once
            raise corrupt(self._path, f"page {number}", "it is referenced twice")
        self._used[number] = True
