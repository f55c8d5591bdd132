"""Writes archives: one writer a format, a context manager that works in a folder of its own, on ``data`` and the files
beside it that ``endings`` names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from . import lmdb as datum
from . import recordio, tfrecord, webdataset

_AT_ONCE = 1024  # images of a transaction
_ROOM = 1 << 30  # bytes of LMDB's address space beyond what the images need
_LONGEST_KEY = 511  # LMDB's limit


@dataclass(frozen=True)
class ImageFile:
    """One image to pack: its number from 0, its path below the folder, its class's number and name, and the file's
    bytes."""

    number: int
    name: str
    target: int
    class_name: str
    data: bytes

    @property
    def extension(self) -> str:
        return os.path.splitext(self.name)[1][1:].lower()


class FileWriter:
    """Writes formats that are records one after another; subclasses say what is appended to which file."""

    endings: dict[str, str] = {}
    """Files beside ``data``, and with what ending of its own the finished archive has them beside it."""
    end = b""
    """The bytes that follow the last record."""

    def __init__(self, folder: Path, total_bytes: int):
        self._files: dict[str, BinaryIO] = {name: open(folder / name, "xb") for name in ("data", *self.endings)}

    def add(self, sample: ImageFile) -> None:
        for name, data in self._encode(sample, self._files["data"].tell()).items():
            self._files[name].write(data)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._files["data"].write(self.end)
        for file in self._files.values():
            file.close()

    def _encode(self, sample: ImageFile, offset: int) -> dict[str, bytes]:
        """Returns what is appended to each file; ``offset`` is its begin in ``data``."""
        raise NotImplementedError


class RecordIOWriter(FileWriter):
    """A .rec and, beside it, the .idx that MXNet's readers want."""

    endings = {"idx": ".idx"}

    def _encode(self, sample: ImageFile, offset: int) -> dict[str, bytes]:
        record = recordio.encode(sample.number, sample.target, sample.data)
        return {"data": record, "idx": b"%d\t%d\n" % (sample.number, offset)}


class TFRecordWriter(FileWriter):
    """Writes the features of TensorFlow's ImageNet script that do not need the image to be decoded."""

    def _encode(self, sample: ImageFile, offset: int) -> dict[str, bytes]:
        features: dict[str, int | bytes] = {
            "image/encoded": sample.data,
            "image/class/label": sample.target,
            "image/class/text": os.fsencode(sample.class_name),
            "image/filename": os.fsencode(sample.name),
            "image/format": sample.extension.replace("jpg", "jpeg").upper().encode(),
        }
        return {"data": tfrecord.encode(features)}


class TarWriter(FileWriter):
    """A shard for WebDataset."""

    end = webdataset.END

    def _encode(self, sample: ImageFile, offset: int) -> dict[str, bytes]:
        return {"data": webdataset.encode(sample.number, sample.extension, sample.target, sample.data)}


class LMDBWriter:
    """Caffe's Datum under the keys of its convert_imageset: 00000000_class/name.jpg."""

    endings: dict[str, str] = {}

    def __init__(self, folder: Path, total_bytes: int):
        try:
            import lmdb
        except ImportError:
            raise ImportError("writing LMDB needs the lmdb package: pip install lmdb") from None
        self._env = lmdb.open(str(folder / "data"), map_size=2 * total_bytes + _ROOM)
        self._transaction = self._env.begin(write=True)

    def add(self, sample: ImageFile) -> None:
        key = b"%08d_" % sample.number + os.fsencode(sample.name)
        self._transaction.put(key[:_LONGEST_KEY], datum.encode(sample.target, sample.data), append=True)
        if sample.number % _AT_ONCE == _AT_ONCE - 1:  # it keeps what it writes in memory
            self._transaction.commit()
            self._transaction = self._env.begin(write=True)

    def __enter__(self) -> LMDBWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._transaction.commit() if error[0] is None else self._transaction.abort()
        self._env.close()


WRITERS: dict[str, type[FileWriter | LMDBWriter]] = {
    ".rec": RecordIOWriter,
    ".tfrecord": TFRecordWriter,
    ".lmdb": LMDBWriter,
    ".tar": TarWriter,
}
