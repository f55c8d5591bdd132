"""Packs a folder of images into one archive, byte for byte; an interrupted run continues where it was.

Work goes on in ``OUT.partial``: the unfinished archive and ``journal.json``, which says what it is of and how much is
safely on disk. The archive gets its name when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from numpy.typing import NDArray

from ..remote.objects import Objects, listed_objects
from ..remote.urls import is_url, shown
from . import Archive, classes_file
from .folder_index import listed_samples
from .writers import WRITERS, ImageFile

_THREADS, _AHEAD = 8, 64  # files read at once, files read ahead
_SECONDS = 2.0  # between checkpoints


class CannotPack(Exception):
    """Raised if a folder cannot be packed; the text says why, and what to do."""


def _nothing(*_: int) -> None:
    pass


def pack(
    folder: str | Path,
    out: str | Path,
    begun: Callable[[int, int], object] = _nothing,
    done: Callable[[], object] = _nothing,
) -> int:
    """Packs an ImageFolder's images, in its order, with its class numbers, into ``out``, whose ending says the format.

    Beside ``out``, its class names go to ``out.classes.txt``, and a .rec gets its .idx.

    Args:
        folder: of class folders of images.
        out: ends in .rec, .tfrecord, .lmdb or .tar.
        begun: called with (number of images, how many of them an earlier run has packed).
        done: called after each image.

    Returns:
        The number of images.

    Raises:
        CannotPack: ``out`` exists, another process is at it, or the folder is not that of the interrupted run.
        FileNotFoundError: as ImageFolder does.
        OSError: reading or writing fails. As after an interrupt, the next run continues.
    """
    out = Path(os.path.abspath(os.path.expanduser(out)))
    if out.suffix not in WRITERS:
        raise CannotPack(f"{out.name} must end in one of {', '.join(WRITERS)}, which says the format")
    if not out.parent.is_dir():
        raise CannotPack(f"there is no folder {out.parent}")
    work = out.with_name(out.name + ".partial")
    sidecars = [classes_file(out)] + ([out.with_suffix(".idx")] if out.suffix == ".rec" else [])
    # an earlier run may have been interrupted after it had named a sidecar, which then is its own
    for path in [out] + ([] if work.is_dir() else sidecars):
        if os.path.lexists(path):
            raise CannotPack(f"{path} exists, and is not overwritten")
    source = _Source(folder)
    try:
        work.mkdir(exist_ok=True)
    except OSError as error:
        raise CannotPack(f"cannot write in {out.parent}: {error.strerror}") from None
    try:
        held = FileLock(work / "lock").acquire(timeout=0)
    except Timeout:
        raise CannotPack(f"another process is packing into {work}") from None
    with held:
        journal = _Journal(work / "journal.json", source.digest)
        writer = WRITERS[out.suffix](work, journal.state, source.bytes)
        begun(len(source), writer.done)
        try:
            _write(source, writer, journal, done)
        except BaseException:
            journal.write(writer.checkpoint())
            writer.close()
            raise
        writer.finish()
        # not renamed: if this is interrupted before the archive has its name, the next run does it again
        for name, ending in writer.endings.items():
            shutil.copyfile(work / name, out.with_suffix(ending))
        classes_file(out).write_bytes(
            "".join(f"{name}\n" for name in source.classes).encode("utf-8", "surrogateescape")
        )
        os.rename(work / "data", out)
        shutil.rmtree(work)
    return len(source)


def upload(dataset: Archive, url: str) -> None:
    """Puts a packed archive into a bucket, with its index and what lies beside it: the archive last.

    Raises:
        CannotPack: it is there already.
        OSError: it cannot be written, or not be looked for.
    """
    objects, (path,) = Objects(), map(Path, dataset.files)
    folder = url.rpartition("/")[0]
    if objects.is_there(url):
        raise CannotPack(f"{shown(url)} exists, and is not overwritten")
    for beside in (path.with_suffix(".idx"), classes_file(path)):
        if beside.exists():
            objects.put(f"{folder}/{beside.name}", beside)
    objects.put(url, path)
    place, stored = dataset.index_at(url, objects)
    objects.put(place, stored)


def _write(source: _Source, writer, journal: _Journal, done: Callable[[], object]) -> None:
    saved = time.monotonic()
    for sample in source.samples(writer.done):
        writer.add(sample)
        done()
        if time.monotonic() - saved > _SECONDS:
            journal.write(writer.checkpoint())
            saved = time.monotonic()


class _Source:
    """Reads the images to pack, in the order of an ImageFolder's samples."""

    def __init__(self, folder: str | Path):
        self._root = os.path.join(os.path.expanduser(folder), "")
        self._objects = Objects() if is_url(folder) else None
        listed = listed_samples(self._root) if self._objects is None else listed_objects(self._objects, self._root)
        self.classes, _, self._samples = listed
        bad = [name for name in self.classes if "\n" in name]
        if bad:
            raise CannotPack(f"the name of the class {bad[0]!r} has more than one line")
        self._sizes, said = [], hashlib.sha256()
        for path, target in self._samples:
            size, mark = _size_and_mark(path) if self._objects is None else self._objects.listed_as(path)
            self._sizes.append(size)
            said.update(os.fsencode(f"{self._name(path)}\0{target}\0{size}\0{mark}\0"))
        self.bytes = sum(self._sizes)
        self.digest = said.hexdigest()

    def __len__(self) -> int:
        return len(self._samples)

    def samples(self, first: int) -> Iterator[ImageFile]:
        """Yields the images from number ``first`` on; files are read ahead, as on a network each is a round trip."""
        with ThreadPoolExecutor(_THREADS) as pool:
            for begin in range(first, len(self), _AHEAD):
                numbers = range(begin, min(begin + _AHEAD, len(self)))
                if self._objects is None:
                    yield from pool.map(self._sample, numbers)
                else:
                    arrays = self._objects.read([self._samples[number][0] for number in numbers])
                    yield from map(self._sample, numbers, arrays)

    def _sample(self, number: int, fetched: NDArray[Any] | None = None) -> ImageFile:
        path, target = self._samples[number]
        data = Path(path).read_bytes() if fetched is None else fetched.tobytes()
        if len(data) != self._sizes[number]:
            raise OSError(f"{path} has changed while the folder was packed")
        return ImageFile(number, self._name(path), target, self.classes[target], data)

    def _name(self, path: str) -> str:
        return path[len(self._root) :]


def _size_and_mark(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


class _Journal:
    """Keeps a digest of the folder that an unfinished archive is of, and the writer's state; None at first."""

    def __init__(self, path: Path, digest: str):
        self._path, self._digest = path, digest
        if not path.exists():
            self.write(None)
        stored = json.loads(path.read_text())
        if stored["source"] != digest:
            raise CannotPack(f"{path.parent} is of another folder, or this one has changed: remove it to start again")
        self.state = stored["state"]

    def write(self, state: dict | None) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"source": self._digest, "state": state}))
        os.replace(temporary, self._path)
