"""The objects that a data set's samples name, and lists of those in a bucket."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ..errors import ImageReadError
from .client import Bucket, Client, Fetched, Hub, bare, not_there
from .disk_cache import DiskCache
from .event_loop import wait_for
from .urls import UrlPart, failed, is_web, joined, reason_of, shown, split, whole

_AT_ONCE = 64  # objects that read() asks for, and folders that are listed
_SLOW = 1.0  # seconds before a progress bar shows

T = TypeVar("T")
FolderSamples = tuple[list[str], dict[str, int], list[tuple[str, int]]]
FolderAndSize = tuple[str | os.PathLike[str], int]


class Objects:
    """A Store (data/sources.py) of objects, which it knows by their URLs. Each stays as it was when it was listed, or
    first read: one that has changed since is an error.

    Args:
        options: as Client's.
        disk_cache: a folder and a number of bytes, which keep objects: DiskCache's arguments.
        upright: whether their images are turned as their EXIF says (data/sources.py).

    Attributes:
        cache: of objects on disk, if there is one.

    Raises:
        ImportError: obstore is not installed.
        OSError, ValueError: as DiskCache does.
    """

    def __init__(
        self, options: Mapping[str, Any] | None = None, disk_cache: FolderAndSize | None = None, upright: bool = False
    ):
        self.client, self.upright = Client(options), upright
        self.cache = None if disk_cache is None else DiskCache(*disk_cache)
        self._etags: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

    def listed(self, url: str, etag: str | None, size: int) -> None:
        """Remembers what a listing says of an object."""
        if etag:
            self._etags[url] = bare(etag)
        self._sizes[url] = size

    def listed_as(self, url: str) -> tuple[int, str]:
        """Returns size and etag of an object, as far as it was listed or read."""
        return self._sizes.get(url, 0), self._etags.get(url, "")

    def size(self, url: str) -> int:
        """Returns the bytes of an object; 0 where it was neither listed nor read."""
        return url.end - url.start if isinstance(url, UrlPart) else self._sizes.get(url, 0)

    def look_up(self, url: str) -> tuple[int, str]:
        """Returns size and etag of an object, and remembers them. Raises as get()."""
        size, etag = _waited(url, self.client.size_and_etag(url))
        self.listed(url, etag, size)
        return size, etag

    def __str__(self) -> str:
        kept = "" if self.cache is None else f"; they are kept on disk ({self.cache})"
        return f"images come from object storage, fetched ahead of their batches{kept}"

    async def get(self, url: str, retried: Callable[[], object] = int) -> Fetched:
        """Returns an object, or a UrlPart of one. ``retried`` is called before a request is repeated. Raises
        ImageReadError if it cannot be read, or has changed."""
        part = url if isinstance(url, UrlPart) else None
        if part is not None and part.start == part.end:  # no server takes that
            return Fetched(np.empty(0, np.uint8), "")
        try:
            fetched = await self._get(url, retried)
            known = self._etags.setdefault(whole(url), fetched.etag)
            if known != fetched.etag:
                raise ValueError(f"it has changed: its etag was {known}, and is {fetched.etag}; make the data set anew")
        except Exception as error:
            raise failed(url, error) from None
        if part is None:
            self._sizes[url] = len(fetched.data)
        elif part.holes:
            kept = np.ones(len(fetched.data), bool)
            for start, end in part.holes:
                kept[start:end] = False
            fetched = fetched._replace(data=fetched.data[kept])
            fetched.data.flags.writeable = False
        return fetched

    async def _get(self, url: str, retried: Callable[[], object]) -> Fetched:
        """The object, from the disk if it is there."""
        if self.cache is None:
            return await self.client.get(url, retried)
        run, name = asyncio.get_running_loop().run_in_executor, f"{self.client.place()} {url}"
        fetched = await run(None, self.cache.get, name, self._etags.get(whole(url)))
        if fetched is None:
            fetched = await self.client.get(url, retried)
            await run(None, self.cache.put, name, fetched)
        return fetched

    def read(self, urls: Sequence[str]) -> list[NDArray[Any]]:
        """Returns the bytes of objects: read-only uint8 arrays (length,). Raises as get()."""
        found = self.read_each(urls)
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found

    def read_each(self, urls: Sequence[str]) -> list[Any]:
        """Returns what read() does, with an error in the place of what cannot be read."""

        async def one(url: str, turn: asyncio.Semaphore) -> Any:
            async with turn:
                try:
                    return (await self.get(url)).data
                except ImageReadError as error:
                    return error

        async def every() -> list[Any]:
            turn = asyncio.Semaphore(_AT_ONCE)
            return await asyncio.gather(*(one(url, turn) for url in urls))

        return wait_for(every())

    def changed(self, urls: Sequence[str]) -> NDArray[Any]:
        """Returns (N,) bool: what read() has given of these objects never changes."""
        return np.zeros(len(urls), bool)

    def copied(self, url: str) -> bytes:
        """Returns the bytes of an object. Raises as get()."""
        return self.read([url])[0].tobytes()

    def put(self, url: str, data: bytes | Path) -> None:
        """Writes an object, of bytes or a file. Raises OSError if it cannot be written."""
        try:
            wait_for(self.client.put(url, data))
        except Exception as error:
            raise OSError(f"cannot write {shown(url)}: {reason_of(error)}") from None

    def is_there(self, url: str) -> bool:
        """Returns whether an object is there, and may be read. Raises as get()."""
        try:
            return bool(self.look_up(url))
        except not_there():
            return False

    def beside(self, url: str) -> bytes | None:
        """Returns the bytes of an object that may be missing, or not to be read; then None. It may change, and is not
        kept on disk. Raises as get()."""
        try:
            return wait_for(self.client.get(url)).data.tobytes()
        except not_there():
            return None
        except Exception as error:
            raise failed(url, error) from None

    def uncached(self) -> Objects:
        """Returns the same without a disk cache."""
        made = copy.copy(self)
        made.cache = None
        return made

    def place(self, url: str) -> str:
        """Returns the URL of an object, for messages."""
        return shown(url)


def listed_objects(
    objects: Objects,
    root: str,
    allow_empty: bool = False,
    is_valid: Callable[[str], bool] | None = None,
) -> FolderSamples:
    """Returns (classes, class_to_idx, samples) of a folder in a bucket, as torchvision's ImageFolder has them of a
    local folder with the same files. ``objects`` remembers their etags and sizes.

    Args:
        objects: the data set's.
        root: URL of the folder.
        allow_empty: whether class folders without images are valid.
        is_valid: takes a URL and tells whether it belongs to the data set; by default an image's by its name.

    Raises:
        FileNotFoundError: ``root`` has no class folders, or one of them has no images.
        ImageReadError: it cannot be listed.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension  # prefetch.py needs no torch

    root = root.rstrip("/")
    bucket = split(root)[0]
    found = _waited(root, _list(objects.client, root))
    is_valid = is_valid or (lambda url: has_file_allowed_extension(url, IMG_EXTENSIONS))
    samples: list[tuple[str, int]] = []
    for target, (_, entries) in enumerate(sorted(found.items())):
        for entry in sorted(entries, key=lambda entry: entry["path"].rpartition("/")[::2]):  # as os.walk() has them
            url = joined(bucket, entry["path"])
            if is_valid(url):
                samples.append((url, target))
                objects.listed(url, entry["e_tag"], entry["size"])
    classes = sorted(found)
    check_classes(root, classes, {target for _, target in samples}, allow_empty)
    return classes, {name: target for target, name in enumerate(classes)}, samples


def check_classes(root: str, classes: list[str], full: set[int], allow_empty: bool) -> None:
    """Raises FileNotFoundError, as torchvision does, if there are no classes, or one that is not among the ``full``
    ones has no images where that is not allowed."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {root}.")
    empty = [name for target, name in enumerate(classes) if target not in full]
    if empty and not allow_empty:
        what = f"Found no valid file for the classes {', '.join(empty)}. "
        raise FileNotFoundError(f"{what}Supported extensions are: {', '.join(IMG_EXTENSIONS)}")


def names_in(client: Client, folder: str) -> set[str] | None:
    """Returns the names of the objects in a folder, and not below it; None of a web server, which has no lists. Raises
    ImageReadError if it cannot be listed."""
    if is_web(folder):
        return None
    _, prefix, found = _waited(folder, _top(client, folder.rstrip("/")))
    return {entry["path"][len(prefix) :] for entry in found["objects"]}


def _waited(url: str, coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns what a coroutine does; an error of it is failed()'s."""
    try:
        return wait_for(coroutine)
    except Exception as error:
        raise failed(url, error) from None


async def _top(client: Client, root: str) -> tuple[Bucket | Hub, str, Mapping[str, Any]]:
    """Returns what reads a folder, how keys of objects in it begin, and these objects and the folders in it."""
    bucket, prefix = split(root)
    store, prefix = client.store(bucket), f"{prefix}/" if prefix else ""
    return store, prefix, await store.top(prefix)


async def _list(client: Client, root: str) -> dict[str, list[Any]]:
    """Returns the objects of each class folder."""
    store, prefix, top = await _top(client, root)
    folders = [folder.rstrip("/") for folder in top["common_prefixes"]]
    turn = asyncio.Semaphore(_AT_ONCE)
    with tqdm(desc=f"listing {root}/", unit="object", delay=_SLOW, disable=None) as bar:

        async def below(folder: str) -> list[Any]:
            found: list[Any] = []
            async with turn:
                async for page in store.below(folder):
                    found += page
                    bar.update(len(page))
            return found

        entries = await asyncio.gather(*map(below, folders))
    return {folder[len(prefix) :]: found for folder, found in zip(folders, entries, strict=True)}
