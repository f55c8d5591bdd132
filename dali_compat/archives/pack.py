"""Pack a folder of images into one archive, without re-encoding.

The archive is written in the folder ``OUT.partial``, and moved to ``OUT`` when it is complete. A failure other than
SIGKILL leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

from tqdm import tqdm

from ..remote.objects import Objects, listed_objects
from ..remote.urls import is_url, redacted
from . import Archive, classes_file, recordio, tfrecord, webdataset
from . import lmdb as datum
from .folder_index import listed_samples

_THREADS, _AHEAD = 8, 64  # files read concurrently, files read ahead
_AT_ONCE = 1024  # images per LMDB transaction, which holds them in memory
_ROOM = 1 << 30  # bytes of LMDB's address space in addition to the images
_LONGEST_KEY = 511  # LMDB's limit


@dataclass(frozen=True)
class ImageFile:
    number: int  # from 0
    name: str  # relative to the folder
    target: int
    class_name: str
    data: bytes  # the file's bytes

    @property
    def extension(self) -> str:
        return os.path.splitext(self.name)[1][1:].lower()


def _write_recordio(folder: Path, samples: Iterator[ImageFile], size: int) -> None:
    """Write the records to ``data``, and their offsets to ``idx`` for MXNet's readers."""
    with open(folder / "data", "xb") as data, open(folder / "idx", "xb") as idx:
        for sample in samples:
            idx.write(b"%d\t%d\n" % (sample.number, data.tell()))
            data.write(recordio.encode(sample.number, sample.target, sample.data))


def _write_tfrecord(folder: Path, samples: Iterator[ImageFile], size: int) -> None:
    """Write an Example for each image. Features are named as in TensorFlow's ImageNet script."""
    with open(folder / "data", "xb") as data:
        for sample in samples:
            features: dict[str, int | bytes] = {
                "image/encoded": sample.data,
                "image/class/label": sample.target,
                "image/class/text": os.fsencode(sample.class_name),
                "image/filename": os.fsencode(sample.name),
                "image/format": sample.extension.replace("jpg", "jpeg").upper().encode(),
            }
            data.write(tfrecord.encode(features))


def _write_tar(folder: Path, samples: Iterator[ImageFile], size: int) -> None:
    with open(folder / "data", "xb") as data:
        for sample in samples:
            data.write(webdataset.encode(sample.number, sample.extension, sample.target, sample.data))
        data.write(webdataset.END)


def _write_lmdb(folder: Path, samples: Iterator[ImageFile], size: int) -> None:
    """Write a Caffe Datum for each image. Keys are as in Caffe's convert_imageset: 00000000_class/name.jpg."""
    try:
        import lmdb
    except ImportError:
        raise ImportError("writing LMDB needs the lmdb package: pip install lmdb") from None
    with lmdb.open(str(folder / "data"), map_size=2 * size + _ROOM) as env:
        for first in samples:
            with env.begin(write=True) as transaction:
                for sample in chain([first], islice(samples, _AT_ONCE - 1)):
                    key = b"%08d_" % sample.number + os.fsencode(sample.name)
                    transaction.put(key[:_LONGEST_KEY], datum.encode(sample.target, sample.data), append=True)


WRITERS: dict[str, Callable[[Path, Iterator[ImageFile], int], None]] = {
    ".rec": _write_recordio,
    ".tfrecord": _write_tfrecord,
    ".lmdb": _write_lmdb,
    ".tar": _write_tar,
}


class CannotPack(Exception):
    """Raised if a folder cannot be packed. The message contains the reason and the remedy."""


def pack(folder: str | Path, out: str | Path, bar: bool = False) -> int:
    """Pack images into ``out``, in ImageFolder's order and with its class numbers. Return the number of images.

    The class names are written to ``out.classes.txt``, and a .rec file also gets an .idx file.

    Args:
        folder: a folder of class folders of images.
        out: path of the archive. Its extension, .rec, .tfrecord, .lmdb or .tar, selects the format.

    Raises:
        CannotPack: ``out`` exists or cannot be created, or another process is writing it; or a class name contains a
            line break.
        FileNotFoundError: as in ImageFolder.
        OSError: reading or writing fails.
    """
    out = Path(os.path.abspath(os.path.expanduser(out)))
    if out.suffix not in WRITERS:
        raise CannotPack(f"{out.name} must end in one of {', '.join(WRITERS)}, which selects the format")
    if not out.parent.is_dir():
        raise CannotPack(f"there is no folder {out.parent}")
    work = out.with_name(out.name + ".partial")
    sidecars = [classes_file(out)] + ([out.with_suffix(".idx")] if out.suffix == ".rec" else [])
    for path in (out, *sidecars):
        if os.path.lexists(path):
            raise CannotPack(f"{path} exists; remove it, or write to another path")
    source = _Source(folder)
    try:
        work.mkdir()
    except FileExistsError:
        raise CannotPack(f"{work} exists, so another process may be packing; if not, remove this folder") from None
    except OSError as error:
        raise CannotPack(f"cannot write to {out.parent}: {error.strerror}") from None
    try:
        with tqdm(source.samples(), "packing", len(source), unit="img", disable=None if bar else True) as samples:
            WRITERS[out.suffix](work, iter(samples), source.bytes)
        if out.suffix == ".rec":
            os.rename(work / "idx", out.with_suffix(".idx"))
        classes_file(out).write_bytes(
            "".join(f"{name}\n" for name in source.classes).encode("utf-8", "surrogateescape")
        )
        os.rename(work / "data", out)
    except BaseException:
        for path in sidecars:
            path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return len(source)


def upload(dataset: Archive, url: str) -> None:
    """Upload a packed archive with its index and the files next to it. The index is written last.

    Raise CannotPack if the URL exists, and OSError if it cannot be written or looked up.
    """
    objects, (path,) = Objects(), map(Path, dataset.files)
    folder = url.rpartition("/")[0]
    if objects.exists(url):
        raise CannotPack(f"{redacted(url)} exists; remove it, or write to another URL")
    for sidecar in (path.with_suffix(".idx"), classes_file(path)):
        if sidecar.exists():
            objects.put(f"{folder}/{sidecar.name}", sidecar)
    objects.put(url, path)
    place, stored = dataset.index_at(url, objects)
    objects.put(place, stored)


class _Source:
    """The images to pack, in the order of an ImageFolder's samples."""

    def __init__(self, folder: str | Path):
        self._root = os.path.join(os.path.expanduser(folder), "")
        self._objects = Objects() if is_url(folder) else None
        listed = listed_samples(self._root) if self._objects is None else listed_objects(self._objects, self._root)
        self.classes, _, self._samples = listed
        bad = [name for name in self.classes if "\n" in name]
        if bad:
            raise CannotPack(f"the name of the class {bad[0]!r} contains a line break; rename the folder")
        size: Callable[[str], int] = os.path.getsize if self._objects is None else self._objects.size
        self._sizes = [size(path) for path, _ in self._samples]
        self.bytes = sum(self._sizes)

    def __len__(self) -> int:
        return len(self._samples)

    def samples(self) -> Iterator[ImageFile]:
        """Yield the images. Files are read ahead, because each needs a round trip on a network file system."""
        with ThreadPoolExecutor(_THREADS) as pool:
            for begin in range(0, len(self), _AHEAD):
                paths, targets = zip(*self._samples[begin : begin + _AHEAD], strict=True)
                objects = self._objects
                stored = pool.map(_bytes, paths) if objects is None else map(bytes, objects.read(paths))
                for number, path, target, data in zip(count(begin), paths, targets, stored, strict=False):
                    if len(data) != self._sizes[number]:
                        raise OSError(f"{path} has changed while the folder was being packed; pack it again")
                    yield ImageFile(number, path[len(self._root) :], target, self.classes[target], data)


def _bytes(path: str) -> bytes:
    return Path(path).read_bytes()
