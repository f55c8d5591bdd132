"""Fetch, list and write objects, with one Bucket or Hub per bucket."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .event_loop import HelperProcess, event_loop, is_forked
from .urls import UrlPart, object_url, reason_of, split

_PAGE = 1000  # objects per request; no provider returns more
# Messages of transient errors, such as a busy server or a broken connection. "Generic HTTP error" is excluded, because
# obstore uses it for all errors of a web server.
_TRANSIENT = re.compile(r"status code: (5|408|429)|(?<!Generic )HTTP error")


class Fetched(NamedTuple):
    data: NDArray[np.uint8]  # read-only uint8 of shape (length,)
    etag: str  # identifies the version of the object
    from_disk: bool = False  # True if it was read from the disk cache


class Client:
    """Fetches and writes objects in any bucket, with obstore, and fetches files of the Hugging Face Hub.

    Args:
        options: arguments of obstore.store.from_url, such as region, endpoint, skip_signature, client_options and
            retry_config. Missing ones come from the environment or the machine's metadata service. For the Hub, these
            are arguments of HfFileSystem.

    Raises:
        ImportError: obstore is not installed.
    """

    def __init__(self, options: Mapping[str, Any] | None = None):
        _obstore()
        self._options = dict(options or {})
        self._stores: dict[str, Bucket | Hub] = {}

    def store(self, root: str) -> Bucket | Hub:
        """Return the Bucket or Hub at a URL. Raise RuntimeError if is_forked()."""
        if is_forked():
            event_loop()
        if root not in self._stores:
            self._stores[root] = (Hub if root.startswith("hf://") else Bucket)(root, self._options)
        return self._stores[root]

    def endpoints(self) -> str:
        """Return the configured endpoints and accounts. They distinguish buckets of the same name."""
        environment = {key: value for key, value in os.environ.items() if key.startswith(("AWS_", "AZURE_", "GOOGLE_"))}
        given = environment | dict(self._options.get("config") or {}) | self._options
        named = [(key.lower(), value) for key, value in given.items() if re.search("endpoint|account_name", key, re.I)]
        return repr(sorted(named))

    async def get(self, url: str, retried: Callable[[], object] = int) -> Fetched:
        """Fetch an object or a UrlPart. The etag of a UrlPart is that of the whole object.

        After a transient error, call ``retried`` and repeat the request as ``retry_config`` specifies. Raise obstore's
        errors. In a forked process, raise ImageReadError instead.
        """
        if is_forked():
            fetched: Fetched = _helper(os.getpid()).get(self, url)
            return fetched
        from obstore.exceptions import GenericError

        # obstore does not report its own retries, so they are not used
        pauses = _pauses(**(self._options.get("retry_config") or {}))
        for retries in count():
            try:
                return await self._get_once(url)
            except GenericError as error:
                pause = next(pauses, None) if _TRANSIENT.search(str(error)) else None
                if pause is None:
                    raise GenericError(f"after {retries} retries: {error}") if retries else error from None
            retried()
            await asyncio.sleep(pause)
        raise AssertionError

    async def _get_once(self, url: str) -> Fetched:
        buffer, meta = await self.store(split(object_url(url))[0]).get(url)
        size = url.end - url.start if isinstance(url, UrlPart) else meta["size"]
        data: NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)
        if len(data) != size:
            raise OSError(f"{len(data):,} bytes received instead of {size:,}")
        data.flags.writeable = False
        return Fetched(data, _etag(meta))

    async def put(self, url: str, data: bytes | Path) -> None:
        await self.store(split(url)[0]).put(url, data)

    async def size_and_etag(self, url: str) -> tuple[int, str]:
        """Return the size in bytes and the etag of an object. Raise obstore's errors."""
        meta = await self.store(split(url)[0]).look_up(url)
        return meta["size"], _etag(meta)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_stores": {}}


def _pauses(
    max_retries: int = 10, retry_timeout: timedelta = timedelta(minutes=3), backoff: Mapping[str, Any] | None = None
) -> Iterator[float]:
    """Yield the seconds to wait before each retry. The defaults are obstore's."""
    shape = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=15), "base": 2, **(backoff or {})}
    pause, end = shape["init_backoff"], monotonic() + retry_timeout.total_seconds()
    for _ in range(max_retries):
        if monotonic() > end:
            return
        yield pause.total_seconds() * random.uniform(0.5, 1)
        pause = min(pause * shape["base"], shape["max_backoff"])


@functools.cache  # by process, because a forked child needs another helper
def _helper(process: int) -> HelperProcess:
    return HelperProcess()


def _etag(meta: Any) -> str:
    return plain_etag(meta["e_tag"]) or f"{meta['last_modified']}, {meta['size']} bytes"


def missing_errors() -> tuple[type[Exception], ...]:
    """Return the error classes for missing objects. They include S3's error for users who may not list the bucket."""
    from obstore.exceptions import PermissionDeniedError

    return FileNotFoundError, PermissionDeniedError


def plain_etag(etag: str | None) -> str:
    """Return an etag without quotes and without the prefix of a weak etag."""
    return (etag or "").removeprefix("W/").strip('"')


def _obstore() -> Any:
    try:
        import obstore
    except ImportError:
        raise ImportError("object storage needs the obstore package: pip install obstore") from None
    return obstore


class Bucket:
    """Fetches, writes and lists the objects of a bucket or a web server. Raises ValueError if an option is invalid."""

    def __init__(self, root: str, options: Mapping[str, Any]):
        self._obstore = _obstore()
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        once = {"retry_config": {**(options.get("retry_config") or {}), "max_retries": 0}}
        try:
            self.store, self._without_retries = (from_url(root, **{**options, **more}) for more in ({}, once))
        except BaseError as error:
            raise ValueError(f"cannot open {root}: {reason_of(error)}") from None

    async def get(self, url: str) -> tuple[Any, Mapping[str, Any]]:
        """Request an object or UrlPart without retries. Return its bytes and the metadata of the whole object."""
        bounds = {"range": (url.start, url.end)} if isinstance(url, UrlPart) else {}
        result = await self._obstore.get_async(self._without_retries, split(object_url(url))[1], options=bounds)
        return await result.bytes_async(), result.meta

    async def put(self, url: str, data: bytes | Path) -> None:
        await self._obstore.put_async(self.store, split(url)[1], data)

    async def look_up(self, url: str) -> Mapping[str, Any]:
        return await self._obstore.head_async(self.store, split(url)[1])

    async def list_folder(self, prefix: str) -> Mapping[str, Any]:
        return await self._obstore.list_with_delimiter_async(self.store, prefix or None)

    def list_below(self, folder: str) -> AsyncIterable[Sequence[Any]]:
        """Yield lists of the objects in a folder and its subfolders."""
        return self._obstore.list(self.store, f"{folder}/", chunk_size=_PAGE)


class Hub:
    """Fetches and lists files of the Hugging Face Hub. The methods are those of Bucket, but put() raises ValueError.

    Args:
        root: hf://datasets or hf://models.
        options: arguments of huggingface_hub.HfFileSystem, such as ``token``.
    """

    def __init__(self, root: str, options: Mapping[str, Any]):
        try:
            import fsspec

            self._files = fsspec.filesystem("hf", **options)
        except ImportError:
            raise ImportError("hf:// URLs need two packages: pip install huggingface_hub fsspec") from None
        self._root = root.partition("://")[2]

    async def get(self, url: str) -> tuple[bytes, Mapping[str, Any]]:
        meta = await self.look_up(url)
        bounds = (url.start, url.end) if isinstance(url, UrlPart) else (None, None)
        return await _in_thread(self._files.cat_file, self._path(split(object_url(url))[1]), *bounds), meta

    async def put(self, url: str, data: bytes | Path) -> None:
        raise ValueError("dali_compat can read from the Hugging Face Hub, but not write to it")

    async def look_up(self, url: str) -> Mapping[str, Any]:
        return self._meta(await _in_thread(self._files.info, self._path(split(object_url(url))[1])))

    async def list_folder(self, prefix: str) -> Mapping[str, Any]:
        found = await _in_thread(self._files.ls, self._path(prefix), detail=True)
        folders = [self._meta(one)["path"] for one in found if one["type"] == "directory"]
        return {"common_prefixes": folders, "objects": [self._meta(one) for one in found if one["type"] == "file"]}

    async def list_below(self, folder: str) -> AsyncIterator[Sequence[Any]]:
        found = await _in_thread(self._files.find, self._path(folder), detail=True)
        yield [self._meta(one) for one in found.values()]

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}".rstrip("/")

    def _meta(self, info: Mapping[str, Any]) -> dict[str, Any]:
        etag = next((info[name] for name in ("blob_id", "ETag", "created", "mtime") if info.get(name)), None)
        key = info["name"].strip("/").removeprefix(f"{self._root}/")
        return {"path": key, "e_tag": etag and str(etag), "size": info["size"], "last_modified": etag}


async def _in_thread(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function and return its result. An interrupt does not wait for the function's thread."""
    loop, future = asyncio.get_running_loop(), asyncio.Future[Any]()

    def settle(outcome: Any, failed: bool) -> None:
        if not future.done():  # unless an interrupt has cancelled it
            (future.set_exception if failed else future.set_result)(outcome)

    def call() -> None:
        try:
            outcome, failed = function(*args, **named), False
        except Exception as error:
            outcome, failed = error, True
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, outcome, failed)

    threading.Thread(target=call, daemon=True, name="dali_compat hub").start()
    return await future
