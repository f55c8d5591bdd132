"""Writes archives in a way that can be interrupted at any time and continued: one writer a format.

A writer works in a folder of its own, on ``data`` and the files beside it that ``endings`` names. ``done`` counts the
images that are written whole; ``checkpoint()`` puts them on disk and returns what ``__init__`` wants as ``state`` to
continue from there, whatever has been written beyond it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from . import lmdb as datum
from . import recordio, tfrecord, webdataset

_PAGE = 4096
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

    def __init__(self, folder: Path, state: dict | None, total_bytes: int):
        state = state or {"done": 0, "sizes": {"data": 0, **dict.fromkeys(self.endings, 0)}}
        self._files: dict[str, BinaryIO] = {}
        for name, size in state["sizes"].items():
            file = self._files[name] = open(folder / name, "ab")
            if file.tell() < size:
                raise OSError(f"{folder / name} is shorter than its journal says: remove {folder} to start again")
            file.truncate(size)
        self._state = state

    @property
    def done(self) -> int:
        return self._state["done"]

    def add(self, sample: ImageFile) -> None:
        sizes = dict(self._state["sizes"])
        for name, data in self._encode(sample, sizes["data"]).items():
            self._files[name].write(data)
            sizes[name] += len(data)
        self._state = {"done": sample.number + 1, "sizes": sizes}  # at once: an interrupt comes before it or after

    def checkpoint(self) -> dict:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return self._state

    def finish(self) -> None:
        self.checkpoint()
        self.close()

    def close(self) -> None:
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

    def _encode(self, sample: ImageFile, offset: int) -> dict[str, bytes]:
        return {"data": webdataset.encode(sample.number, sample.extension, sample.target, sample.data)}

    def finish(self) -> None:
        self._files["data"].write(webdataset.END)
        super().finish()


class LMDBWriter:
    """Caffe's Datum under the keys of its convert_imageset: 00000000_class/name.jpg. The database itself knows how far
    it is, by its last transaction."""

    endings: dict[str, str] = {}

    def __init__(self, folder: Path, state: dict | None, total_bytes: int):
        try:
            import lmdb
        except ImportError:
            raise ImportError("writing LMDB needs the lmdb package: pip install lmdb") from None
        self._env = lmdb.open(str(folder / "data"), map_size=2 * total_bytes + _ROOM)
        with self._env.begin() as transaction:
            self.done = transaction.stat()["entries"]
        self._transaction = self._env.begin(write=True)

    def add(self, sample: ImageFile) -> None:
        key = b"%08d_" % sample.number + os.fsencode(sample.name)
        self._transaction.put(key[:_LONGEST_KEY], datum.encode(sample.target, sample.data), append=True)
        self.done = sample.number + 1

    def checkpoint(self) -> dict:
        self._transaction.commit()
        self._transaction = self._env.begin(write=True)
        return {}

    def finish(self) -> None:
        self._transaction.commit()
        self._env.close()

    def close(self) -> None:
        self._transaction.abort()
        self._env.close()


WRITERS: dict[str, type[FileWriter | LMDBWriter]] = {
    ".rec": RecordIOWriter,
    ".tfrecord": TFRecordWriter,
    ".lmdb": LMDBWriter,
    ".tar": TarWriter,
}
