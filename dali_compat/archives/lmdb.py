"""LMDB databases of images: Caffe's Datum, or images as they are.

The lmdb package is needed to index a database, not to read it afterwards: LMDB keeps every value in one piece, and the
offset of a value in the file is its address less that of LMDB's map of the file, which /proc/self/maps tells. Read by
position, images are as parallel as those of the other formats, work after a fork (an LMDB environment does not), and
need no look-up of keys. That the bytes at the offset are the value's is checked for every record.

Sources: Caffe's src/caffe/proto/caffe.proto (Datum) and tools/convert_imageset.cpp; http://www.lmdb.tech/doc
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from . import protobuf
from .archive import Archive
from .index import Progress
from .paths import PathLike
from .protobuf import BYTES, VARINT, Malformed
from .table import Rows, RowsBuilder
from .trouble import corrupt, refused

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_SPECIAL = re.compile(rb"__.*__")
_IMAGE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|BM|II\*\0|MM\0\*|RIFF....WEBP|P[1-6]\s|\0\0\0.ftyp", re.DOTALL
)
_HEAD = 16  # bytes that tell an image format
_REPORT = 1024  # records between reports of progress


class DALILMDB(Archive):
    """Images of an LMDB database, in the order of its keys. Keys such as ``__len__`` are left out.

    Values are Caffe's Datum with an encoded image and a label, or encoded images as they are. The latter have no
    targets: say them by ``labels`` or ``label_pattern``. Pickled values are refused: to unpickle is to run what the
    file says.

    Args:
        path: the database's folder or file, or a list of them.
        transform, target_transform, return_index: as in Archive.
        labels: one target for every image (torchvision's LSUN has a database a class), or a mapping of keys to targets,
            or a sequence of targets in the order of the keys. It goes before the labels of Datum.
        label_pattern: a regular expression that finds the target in a key; its group, if it has one. Where all that it
            finds are numbers they are the targets; else they are the names of classes, numbered in sorted order:
            ``r"^(.*?)/"`` takes ``n01440764`` from ``n01440764/n01440764_10026.JPEG``.

    Attributes:
        classes, class_to_idx: the names that ``label_pattern`` found; else as in Archive.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        transform: Callable | None = None,
        target_transform: Callable | None = None,
        *,
        return_index: bool = False,
        labels: int | Mapping[str, int] | Sequence[int] | None = None,
        label_pattern: str | None = None,
    ):
        if labels is not None and label_pattern is not None:
            raise ValueError("labels and label_pattern both say what the targets are: give one of them")
        self._labels, self.label_pattern = labels, label_pattern
        super().__init__(path, transform, target_transform, return_index=return_index)
        del self._labels

    def _file(self, name: str) -> str:
        return os.path.join(name, "data.mdb") if os.path.isdir(name) else name

    def _scan(self, path: str, progress: Progress) -> Rows:
        try:
            import lmdb
        except ImportError:
            raise ImportError(
                f"{path} is not indexed yet, for which the lmdb package is needed: pip install lmdb"
            ) from None
        built = RowsBuilder()
        try:
            with _open(lmdb, path) as env, env.begin(buffers=True) as transaction, open(path, "rb") as file:
                _refuse_truncated(env, file.fileno(), path)
                self._walk(transaction, file.fileno(), path, built, progress)
        except lmdb.Error as error:
            where = f"after {len(built)} images"
            raise corrupt(path, where, f"LMDB cannot read it: {type(error).__name__}: {error}") from error
        return built.rows()

    def _walk(self, transaction, fd: int, path: str, built: RowsBuilder, progress: Progress) -> None:
        size, count, base = os.fstat(fd).st_size, transaction.stat()["entries"], None
        for number, (key, value) in enumerate(transaction.cursor()):
            key = bytes(key)
            if _SPECIAL.fullmatch(key) or not len(value):
                continue
            where = f"key {key!r}"
            address = _address(value)
            base = _map_begin(address, path) if base is None else base
            if os.pread(fd, min(_HEAD, len(value)), address - base) != bytes(value[:_HEAD]):
                raise corrupt(path, where, "LMDB shows other bytes than the file has; is it being written?")
            begin, end, label = _image(value, path, where)
            built.add(address - base + begin, end - begin, label, key=key)
            if number % _REPORT == 0:
                progress(size * number // count)

    def _indexed(self, rows: list[Rows]) -> None:
        """The targets that the user's arguments say."""
        if self._labels is None and self.label_pattern is None:
            if (self._table.targets == _NO_LABEL).any():
                raise ValueError(
                    f"{self.root} holds images without labels: say labels= (one target for all, a mapping of keys to "
                    "targets or a sequence), or label_pattern= (a regular expression for the keys)"
                )
            return
        keys = [key.decode("utf-8", "surrogateescape") for part in rows for key in part.key_list()]
        targets = self._by_pattern(keys) if self._labels is None else _by_labels(self._labels, keys)
        self._table.targets[:] = targets

    def _by_pattern(self, keys: list[str]) -> Iterable[int]:
        found = []
        for key in keys:
            match = re.search(self.label_pattern, key)
            if match is None:
                raise ValueError(f"label_pattern {self.label_pattern!r} finds nothing in the key {key!r}")
            found.append(match[1] if match.re.groups else match[0])
        if all(name.isdecimal() for name in found):
            return [int(name) for name in found]
        self.classes = sorted(set(found))
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        return [self.class_to_idx[name] for name in found]


def _open(lmdb, path: str):
    """The environment, which LMDB names by its folder where the file has the usual name."""
    folder = os.path.basename(path) == "data.mdb"
    name = os.path.dirname(path) or "." if folder else path
    return lmdb.open(name, subdir=folder, readonly=True, lock=False, readahead=False)


def _refuse_truncated(env, fd: int, path: str) -> None:
    """LMDB maps what its header says is there; to read beyond the file's end would kill the process."""
    wanted, size = (env.info()["last_pgno"] + 1) * env.stat()["psize"], os.fstat(fd).st_size
    if size < wanted:
        reason = f"the file ends there, {wanted - size} bytes before its last page does"
        raise corrupt(path, f"byte {size}", f"{reason}; if LMDB itself can read it, mdb_copy makes a whole one of it")


_NO_LABEL = np.iinfo(np.int64).min


def _by_labels(labels, keys: list[str]) -> np.ndarray | int:
    if isinstance(labels, int):
        return labels
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
    return targets


def _image(value: memoryview, path: str, where: str) -> tuple[int, int, int]:
    """(begin of the image in ``value``, its end, label)."""
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


def _address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


def _map_begin(address: int, path: str) -> int:
    """Where the first byte of the file that is mapped at ``address`` would be (Linux: man 5 proc_pid_maps)."""
    with open("/proc/self/maps") as file:
        for line in file:
            span, _, offset, *_ = line.split(maxsplit=3)
            first, last = (int(part, 16) for part in span.split("-"))
            if first <= address < last:
                return first - int(offset, 16)
    raise OSError(f"{path}: LMDB's map of it is not in /proc/self/maps")


def encode(label: int, image: bytes) -> bytes:
    """The Datum of an encoded image, as Caffe's convert_imageset --encoded writes it."""
    return protobuf.encode(_DATA, image) + protobuf.encode(_LABEL, label) + protobuf.encode(_ENCODED, 1)
