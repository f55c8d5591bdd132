"""The images of a data set in object storage, and the contents of folders in a bucket."""

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
from .client import Bucket, Client, Fetched, Hub, missing_errors, plain_etag
from .disk_cache import DiskCache
from .event_loop import wait_for
from .urls import UrlPart, as_read_error, is_web, joined, object_url, reason_of, redacted, split

_AT_ONCE = 64  # objects that read() requests concurrently, and folders that are listed concurrently
_SLOW = 1.0  # seconds before a progress bar appears

T = TypeVar("T")
FolderSamples = tuple[list[str], dict[str, int], list[tuple[str, int]]]
FolderAndSize = tuple[str | os.PathLike[str], int]


class Objects:
    """A Store (data/sources.py) of images in object storage, keyed by URL.

    Reading an object raises ImageReadError if it has changed since it was listed or first read.

    Args:
        options: argument of Client.
        disk_cache: arguments of DiskCache.
        upright: whether images are rotated by their EXIF orientation.

    Raises:
        ImportError: obstore is not installed.
        OSError, ValueError: the disk cache cannot be used.
    """

    def __init__(
        self, options: Mapping[str, Any] | None = None, disk_cache: FolderAndSize | None = None, upright: bool = False
    ):
        self.client, self.upright = Client(options), upright
        self.cache = None if disk_cache is None else DiskCache(*disk_cache)
        self._etags: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

    def set_size_and_etag(self, url: str, etag: str | None, size: int) -> None:
        if etag:
            self._etags[url] = plain_etag(etag)
        self._sizes[url] = size

    def size_and_etag(self, url: str) -> tuple[int, str]:
        """Return (size in bytes, etag) of an object that was listed or read, otherwise (0, "")."""
        return self._sizes.get(url, 0), self._etags.get(url, "")

    def size(self, url: str) -> int:
        """Return the size of an object in bytes, or 0 if it was neither listed nor read."""
        return url.end - url.start if isinstance(url, UrlPart) else self._sizes.get(url, 0)

    def look_up(self, url: str) -> tuple[int, str]:
        """Request and store (size in bytes, etag) of an object, and return them. Raise ImageReadError if that fails."""
        size, etag = _wait_for(url, self.client.size_and_etag(url))
        self.set_size_and_etag(url, etag, size)
        return size, etag

    def __str__(self) -> str:
        kept = "" if self.cache is None else f"; they are kept on disk ({self.cache})"
        return f"images come from object storage, fetched ahead of their batches{kept}"

    async def get(self, url: str, retried: Callable[[], object] = int) -> Fetched:
        """Fetch an object or a UrlPart. ``retried`` is called before a request is repeated.

        Raise ImageReadError if the object cannot be read or has changed.
        """
        part = url if isinstance(url, UrlPart) else None
        if part is not None and part.start == part.end:  # servers reject empty ranges
            return Fetched(np.empty(0, np.uint8), "")
        try:
            fetched = await self._get(url, retried)
            known = self._etags.setdefault(object_url(url), fetched.etag)
            if known != fetched.etag:
                raise ValueError(f"it has changed (etag {known}, now {fetched.etag}); create a new data set")
        except Exception as error:
            raise as_read_error(url, error) from None
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
        if self.cache is None:
            return await self.client.get(url, retried)
        run, name = asyncio.get_running_loop().run_in_executor, f"{self.client.endpoints()} {url}"
        fetched = await run(None, self.cache.get, name, self._etags.get(object_url(url)))
        if fetched is None:
            fetched = await self.client.get(url, retried)
            await run(None, self.cache.put, name, fetched)
        return fetched

    def read(self, urls: Sequence[str]) -> list[NDArray[Any]]:
        """Return the bytes of objects as read-only uint8 arrays. Raise ImageReadError as get() does."""
        found = self.read_each(urls)
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found

    def read_each(self, urls: Sequence[str]) -> list[Any]:
        """Return the bytes of each object, or its ImageReadError if it cannot be read."""

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
        """Return a bool array of N False values, because bytes that read() returned never change."""
        return np.zeros(len(urls), bool)

    def copied(self, url: str) -> bytes:
        return self.read([url])[0].tobytes()

    def put(self, url: str, data: bytes | Path) -> None:
        try:
            wait_for(self.client.put(url, data))
        except Exception as error:
            raise OSError(f"cannot write {redacted(url)}: {reason_of(error)}") from None

    def exists(self, url: str) -> bool:
        """Return True if an object exists, and False if it is missing or not accessible. Raise ImageReadError for other
        errors."""
        try:
            return bool(self.look_up(url))
        except missing_errors():
            return False

    def read_if_exists(self, url: str) -> bytes | None:
        """Return the bytes of an object, or None if it is missing or not accessible.

        Raise ImageReadError for other errors. The disk cache is not used.
        """
        try:
            return wait_for(self.client.get(url)).data.tobytes()
        except missing_errors():
            return None
        except Exception as error:
            raise as_read_error(url, error) from None

    def uncached(self) -> Objects:
        made = copy.copy(self)
        made.cache = None
        return made

    def place(self, url: str) -> str:
        return redacted(url)


def listed_objects(
    objects: Objects, root: str, allow_empty: bool = False, is_valid: Callable[[str], bool] | None = None
) -> FolderSamples:
    """Return (classes, class_to_idx, samples) of a folder in a bucket, as ImageFolder does for local files.

    Args:
        objects: stores the etags and sizes of the images.
        root: URL of the folder.
        allow_empty: whether class folders without images are valid.
        is_valid: takes a URL and returns whether it is an image. The default checks the extension.

    Raises:
        FileNotFoundError: ``root`` has no class folders, or a class folder has no images.
        ImageReadError: the folder cannot be listed.
    """
    # imported here, because the processes of data/prefetch.py do not import torch
    from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension

    root = root.rstrip("/")
    bucket = split(root)[0]
    found = _wait_for(root, _list(objects.client, root))
    is_valid = is_valid or (lambda url: has_file_allowed_extension(url, IMG_EXTENSIONS))
    samples: list[tuple[str, int]] = []
    for target, (_, entries) in enumerate(sorted(found.items())):
        # in the order of os.walk()
        for entry in sorted(entries, key=lambda entry: entry["path"].rpartition("/")[::2]):
            url = joined(bucket, entry["path"])
            if is_valid(url):
                samples.append((url, target))
                objects.set_size_and_etag(url, entry["e_tag"], entry["size"])
    classes = sorted(found)
    check_classes(root, classes, {target for _, target in samples}, allow_empty)
    return classes, {name: target for target, name in enumerate(classes)}, samples


def check_classes(root: str, classes: list[str], full: set[int], allow_empty: bool) -> None:
    """Raise torchvision's FileNotFoundError if there are no classes, or if a class has no images.

    ``full`` contains the indices of the classes with images. If ``allow_empty`` is True, classes may be empty.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {root}.")
    empty = [name for target, name in enumerate(classes) if target not in full]
    if empty and not allow_empty:
        what = f"Found no valid file for the classes {', '.join(empty)}. "
        raise FileNotFoundError(f"{what}Supported extensions are: {', '.join(IMG_EXTENSIONS)}")


def names_in(client: Client, folder: str) -> set[str] | None:
    """Return the names of the objects directly in a folder, or None for a web server, which cannot list them.

    Raise ImageReadError if the folder cannot be listed.
    """
    if is_web(folder):
        return None
    _, prefix, found = _wait_for(folder, _top(client, folder.rstrip("/")))
    return {entry["path"][len(prefix) :] for entry in found["objects"]}


def _wait_for(url: str, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result. Convert errors to ImageReadError, with the URL."""
    try:
        return wait_for(coroutine)
    except Exception as error:
        raise as_read_error(url, error) from None


async def _top(client: Client, root: str) -> tuple[Bucket | Hub, str, Mapping[str, Any]]:
    """Return the store of the folder ``root``, the folder's key prefix, and the list of its direct contents."""
    bucket, prefix = split(root)
    store, prefix = client.store(bucket), f"{prefix}/" if prefix else ""
    return store, prefix, await store.list_folder(prefix)


async def _list(client: Client, root: str) -> dict[str, list[Any]]:
    """Return {name of a class folder: the objects in it and its subfolders}."""
    store, prefix, top = await _top(client, root)
    folders = [folder.rstrip("/") for folder in top["common_prefixes"]]
    turn = asyncio.Semaphore(_AT_ONCE)
    with tqdm(desc=f"listing {root}/", unit="object", delay=_SLOW, disable=None) as bar:

        async def below(folder: str) -> list[Any]:
            found: list[Any] = []
            async with turn:
                async for page in store.list_below(folder):
                    found += page
                    bar.update(len(page))
            return found

        entries = await asyncio.gather(*map(below, folders))
    return {folder[len(prefix) :]: found for folder, found in zip(folders, entries, strict=True)}
