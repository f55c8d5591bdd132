"""In worker processes, find the kind of each file, and whether torchvision's loader can decode it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import stat
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection
from typing import IO, Any, NamedTuple

from PIL import Image, UnidentifiedImageError
from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension

from ..archives import Archive
from ..data.header import DALI, read_header
from ..data.sources import Record, Source, is_record, opened
from ..remote.objects import Objects
from ..runtime.children import end_with_parent

_HEAD = 4096  # bytes that identify a file
_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")  # damaged files of these formats count as images
_FILE_KINDS = {
    rb"\Z": "an empty file",
    rb"\s*<(!doctype html|html)": "an HTML page",
    rb"\s*<\?xml|\s*<svg": "XML",
    rb"%PDF": "a PDF",
    rb"PK\x03\x04": "a zip file",
    rb"\x1f\x8b": "a gzip file",
    rb"\x7fELF": "a program",
    rb"version https://git-lfs": "a Git LFS pointer; fetch the file with git lfs pull",
    rb"[\t\n\r\x20-\x7e]+\Z": "text",
    rb"\0+\Z": "only zero bytes",
    rb"": "unknown data",
}


class Inspection(NamedTuple):
    format: str = ""  # empty if Pillow finds no image
    mode: str = ""
    height: int = 0  # height, width and bytes are 0 if unknown
    width: int = 0
    bytes: int = 0
    dali: bool = False  # whether DALI decodes it as Pillow does
    error: str = ""  # class of the error that torchvision's loader raises, or empty
    reason: str = ""  # text of the error
    other: str = ""  # kind of the file if it is not an image or not listed by ImageFolder, or empty
    bomb: str = ""  # Pillow's warning or error about a decompression bomb, or empty
    warnings: tuple[str, ...] = ()  # Pillow's other warnings


def decode(source: Source) -> Inspection:
    """Decode an image as torchvision's pil_loader does, and return its properties, error and warnings."""
    seen: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with _opened(source) as file:
                seen["bytes"] = file.seek(0, os.SEEK_END)
                file.seek(0)
                with Image.open(file) as image:
                    seen |= {"format": image.format, "mode": image.mode, "height": image.height, "width": image.width}
                    image.convert("RGB")
        except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, ValueError and others
            seen |= _failure(source, error)
        texts: dict[bool, dict[str, None]] = {True: {}, False: {}}  # without duplicates, in order
        for one in caught:
            texts[issubclass(one.category, Image.DecompressionBombWarning)][str(one.message)] = None
        dali = "error" not in seen and read_header(source)[0] == DALI  # read_header() may repeat the warnings
    seen.setdefault("bomb", next(iter(texts[True]), ""))
    return Inspection(**seen, dali=dali, warnings=tuple(texts[False]))


def identify(source: Source) -> Inspection:
    """Return an Inspection with the kind of a file that ImageFolder does not list. The file is not decoded."""
    try:
        with warnings.catch_warnings(), _opened(source) as file:
            warnings.simplefilter("ignore")
            head = file.read(_HEAD)
            file.seek(0)
            try:
                with Image.open(file) as image:
                    return Inspection(image.format or "", image.mode, other=f"{image.format} image")
            except Exception:  # as in decode()
                return Inspection(other=_kind(head))
    except OSError as error:
        return Inspection(other=_reason(error))


def _opened(source: Source) -> AbstractContextManager[IO[bytes]]:
    """Open a source. Raise OSError for a pipe or a device, because opening it would block."""
    if not is_record(source) and not stat.S_ISREG(os.stat(source).st_mode):
        raise OSError("it is not a regular file")
    return opened(source)


def _failure(source: Source, error: Exception) -> dict[str, str]:
    found = {"error": type(error).__name__, "reason": _reason(error)}
    if isinstance(error, Image.DecompressionBombError):
        found["bomb"] = found["reason"]
    if isinstance(error, UnidentifiedImageError):
        with opened(source) as file:
            head = file.read(_HEAD)
        accepts = [Image.OPEN[name][1] for name in _FORMATS if name in Image.OPEN]
        if head and any(accept is not None and accept(head) for accept in accepts):
            found["reason"] = "the file's header is damaged"
        else:
            found |= {"other": _kind(head), "reason": f"not an image, but {_kind(head)}"}
    return found


def _reason(error: Exception) -> str:
    """Return the text of an error without the path."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or "no reason given"


def _kind(head: bytes) -> str:
    return next(name for pattern, name in _FILE_KINDS.items() if re.match(pattern, head, re.IGNORECASE))


_CHUNK = 8  # items; larger chunks are not measurably faster
_AHEAD = 2  # pending chunks per process


class Crash(NamedTuple):
    how: str  # the signal or exit code


def process_map(function: Callable, items: Iterable, processes: int) -> Generator[tuple[Any, Any], None, None]:
    """Yield (item, function(item)) for each item in order. If a process crashes on an item, yield (item, Crash)
    instead.

    Args:
        function: takes an item and raises no errors. Items and results must be picklable.
        items: iterated lazily.
        processes: number of processes, 1 or more. They ignore SIGINT, and end when the generator ends.
    """
    # no threads or locks, because an interrupt could leave a lock held, and the program would then hang
    items, pending, workers = iter(items), deque[tuple[list, int]](), list[_Worker]()

    def submit(number: int) -> None:
        if chunk := list(islice(items, _CHUNK)):
            workers[number].send(chunk)
            pending.append((chunk, number))

    try:
        for _ in range(processes):
            workers.append(_Worker(function))
        for turn in range(_AHEAD * processes):
            submit(turn % processes)
        while pending:
            chunk, number = pending.popleft()
            found = workers[number].results()
            if found is None:
                workers[number].end()
                workers[number] = _Worker(function)
                for other in [chunk for chunk, of in pending if of == number]:
                    workers[number].send(other)
                found = _separately(function, chunk)
            submit(number)
            yield from zip(chunk, found, strict=True)
    finally:
        for worker in workers:
            worker.end()


def _separately(function: Callable, chunk: list) -> list:
    """Return the results of a chunk from a new process. If this process crashes, use one process per item. An item that
    crashes its process gives a Crash."""
    worker = _Worker(function)
    try:
        worker.send(chunk)
        found = worker.results()
    finally:
        code = worker.end()
    if found is not None:
        return found
    if len(chunk) > 1:
        return [found for item in chunk for found in _separately(function, [item])]
    return [Crash(signal.Signals(-code).name if code < 0 else f"exit code {code}")]


class _Worker:
    """A process that applies a function to the items of chunks, in order."""

    def __init__(self, function: Callable):
        context = multiprocessing.get_context("fork")
        requests, self._requests = context.Pipe(duplex=False)
        self._answers, answers = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(function, requests, answers), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process ignores it
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        requests.close()
        answers.close()  # so that results() sees the end of the process

    def send(self, chunk: list) -> None:
        with suppress(OSError):  # the process has ended; results() says so
            self._requests.send(chunk)

    def results(self) -> list | None:
        """Wait for the results of the oldest chunk. Return None if the process has ended."""
        try:
            found: list = self._answers.recv()
        except (EOFError, OSError):
            return None
        return found

    def end(self) -> int:
        """End the process and return its exit code."""
        self._process.kill()  # safe, because the process writes no files
        self._process.join()
        return self._process.exitcode or 0


def _serve(function: Callable, requests: Connection, answers: Connection) -> None:
    end_with_parent()
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # errors are reported separately
    while True:
        answers.send([function(item) for item in requests.recv()])


_AT_ONCE = 64  # objects that are fetched together


@dataclass
class FileSource:
    """The items to inspect: files of a folder or a table, or images of an archive or in object storage."""

    name: str  # as given by the user
    kind: str  # "folder", or the class of the data set
    items: Callable[[], Iterable[Any]] = tuple  # returns paths, records, or the indices of an archive's images
    total: int = 0  # number of items
    archive: Archive | None = None
    error: str | None = None  # why an archive cannot be opened
    outside: int = 0  # number of images next to the class folders; ImageFolder does not list these images
    # folders with a problem: {"path", "problem", "reason"}; the problem is "empty", "unreadable" or "loop"
    folders: list[dict] = field(default_factory=list)

    def lists(self, item: Any) -> bool:
        """Return True if an item belongs to the data set. ImageFolder lists only files with an image's extension. Other
        data sets list all items."""
        return self.kind != "folder" or has_file_allowed_extension(item, IMG_EXTENSIONS)

    def inspect(self, item: Any) -> Inspection:
        """Return the Inspection of an item. Worker processes call this."""
        source = item if self.archive is None else Record(self.archive, item)
        return decode(source) if self.lists(source) else identify(source)

    def where(self, item: Any) -> dict:
        """Return the location of an item as {"path"}, or {"path", "byte", "index"} for an image of an archive."""
        if self.archive is None:
            return {"path": str(item)}
        files, offsets, _ = self.archive.locations([item])
        return {"path": self.archive.files[int(files[0])], "byte": int(offsets[0]), "index": item}


def bucket_source(name: str, kind: str, objects: Objects, urls: Sequence[str]) -> FileSource:
    """Return the FileSource of images in object storage. This process fetches them, _AT_ONCE at a time."""

    def records() -> Iterator[Record]:
        for begin in range(0, len(urls), _AT_ONCE):
            some = urls[begin : begin + _AT_ONCE]
            for url, data in zip(some, objects.read_each(some), strict=True):  # decode() reads it again after an error
                yield Record(objects, url, None if isinstance(data, Exception) else data)

    return FileSource(name, kind, records, len(urls))


def folder_source(root: str) -> FileSource:
    """Return the FileSource of all files in a folder and its subfolders. Links are followed."""

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
    source.folders += [{"path": folder, "problem": "empty", "reason": "contains no images"} for folder in empty]
    return source


def _walk(root: str, irregular: list[dict]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (folder, file names, subfolder names), sorted and top-down. Append unreadable folders and link loops to
    ``irregular``."""

    def unreadable(error: OSError) -> None:
        irregular.append({"path": error.filename, "problem": "unreadable", "reason": error.strerror})

    above: dict[str, tuple] = {root: ()}  # the ancestors of each folder
    for folder, below, names in os.walk(root, onerror=unreadable, followlinks=True):
        status = os.stat(folder)
        mark, parents = (status.st_dev, status.st_ino), above.pop(folder)
        if mark in parents:
            reason = "a link to a folder that contains it; not followed"
            irregular.append({"path": folder, "problem": "loop", "reason": reason})
            below.clear()
            continue
        below.sort()
        above |= {os.path.join(folder, name): (*parents, mark) for name in below}
        yield folder, sorted(names), below
