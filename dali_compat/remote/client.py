"""obstore's client for each bucket."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .event_loop import HelperProcess, event_loop, is_forked
from .hub import Hub
from .urls import UrlPart, reason_of, split, whole

_INSTALL = "pip install obstore"
_PASSING = re.compile(r"status code: (5|408|429)|HTTP error")  # a server that is busy, a connection that breaks


class Fetched(NamedTuple):
    """An object.

    Attributes:
        data: (length,) uint8, its bytes; read-only.
        etag: changes when it does.
        from_disk: whether no server was asked.
    """

    data: NDArray[np.uint8]
    etag: str
    from_disk: bool = False


class Client:
    """Gets and lists objects of any buckets, with obstore.

    Args:
        options: arguments of obstore.store.from_url: region, endpoint, skip_signature, client_options, retry_config and
            more. obstore finds the rest in the environment, or asks the machine.

    Raises:
        ImportError: obstore is not installed.
    """

    def __init__(self, options: Mapping[str, Any] | None = None):
        _obstore()
        self._options = dict(options or {})
        self._stores: dict[tuple[str, bool], Any] = {}

    def store(self, root: str, retries: bool = True) -> Any:
        """Returns obstore's store for a bucket, or a Hub. Without ``retries`` it sends each request once.

        Raises:
            ImportError: the package that reads it is not installed.
            ValueError: an option is unknown or wrong.
            RuntimeError: as event_loop() does.
        """
        if is_forked():
            event_loop()
        store = self._stores.get((root, retries))
        if store is None and root.startswith("hf://"):
            store = self._stores[root, retries] = Hub(root, self._options)
        if store is None:
            _obstore()
            from obstore.exceptions import BaseError
            from obstore.store import from_url

            once = {} if retries else {"retry_config": {**self._retry_config, "max_retries": 0}}
            try:
                store = self._stores[root, retries] = from_url(root, **{**self._options, **once})
            except BaseError as error:
                raise ValueError(f"cannot open {root}: {reason_of(error)}") from None
        return store

    @property
    def _retry_config(self) -> Mapping[str, Any]:
        return self._options.get("retry_config") or {}

    def place(self) -> str:
        """Returns what tells servers apart that have buckets of the same name: endpoints and accounts."""
        environment = {key: value for key, value in os.environ.items() if key.startswith(("AWS_", "AZURE_", "GOOGLE_"))}
        given = environment | dict(self._options.get("config") or {}) | self._options
        named = [(key.lower(), value) for key, value in given.items() if re.search("endpoint|account_name", key, re.I)]
        return repr(sorted(named))

    async def get(self, url: str, retried: Callable[[], object] = int) -> Fetched:
        """Returns an object, or a UrlPart of one, with the etag of all of it. What may come the next time is requested
        again, as ``retry_config`` says, here rather than by obstore, which does not count; ``retried`` is called then.

        Raises:
            Exception: obstore's.
        """
        if is_forked():
            fetched: Fetched = _helper(os.getpid()).get(self, url)
            return fetched
        from obstore.exceptions import GenericError

        pauses = _pauses(**self._retry_config)
        for retries in count():
            try:
                return await self._got(url)
            except GenericError as error:
                pause = next(pauses, None) if _PASSING.search(str(error)) else None
                if pause is None:
                    raise GenericError(f"after {retries} retries: {error}") if retries else error from None
            retried()
            await asyncio.sleep(pause)
        raise AssertionError

    async def _got(self, url: str) -> Fetched:
        """Requests an object once."""
        root, key = split(whole(url))
        store = self.store(root, retries=False)
        if isinstance(store, Hub):
            buffer, meta = await store.get(url)
        else:
            bounds = {"range": (url.start, url.end)} if isinstance(url, UrlPart) else {}
            result = await _obstore().get_async(store, key, options=bounds)
            meta = result.meta
            buffer = await result.bytes_async()
        size = url.end - url.start if isinstance(url, UrlPart) else meta["size"]
        data: NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)
        if len(data) != size:
            raise OSError(f"{len(data):,} bytes came of {size:,}")
        data.flags.writeable = False
        return Fetched(data, _mark(meta))

    async def put(self, url: str, data: bytes | Path) -> None:
        """Writes an object, of bytes or a file. Raises obstore's."""
        root, key = split(url)
        store = self.store(root)
        if isinstance(store, Hub):
            raise ValueError("the Hub is read alone")
        await _obstore().put_async(store, key, data)

    async def size_and_etag(self, url: str) -> tuple[int, str]:
        """Returns those of an object. Raises as get()."""
        root, key = split(url)
        store = self.store(root)
        meta = await (store.look_up(url) if isinstance(store, Hub) else _obstore().head_async(store, key))
        return meta["size"], _mark(meta)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_stores": {}}


def _pauses(
    max_retries: int = 10, retry_timeout: timedelta = timedelta(minutes=3), backoff: Mapping[str, Any] | None = None
) -> Iterator[float]:
    """Yields the seconds to wait before each time that a request is repeated; the defaults are obstore's."""
    shape = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=15), "base": 2, **(backoff or {})}
    pause, end = shape["init_backoff"], monotonic() + retry_timeout.total_seconds()
    for _ in range(max_retries):
        if monotonic() > end:
            return
        yield pause.total_seconds() * random.uniform(0.5, 1)
        pause = min(pause * shape["base"], shape["max_backoff"])


@functools.cache
def _helper(process: int) -> HelperProcess:
    """One for this process: a child of it needs another."""
    return HelperProcess()


def _mark(meta: Any) -> str:
    return bare(meta["e_tag"]) or f"{meta['last_modified']}, {meta['size']} bytes"


def not_there() -> tuple[type[Exception], ...]:
    """Returns the classes of errors of what is not there, as far as this user may know: S3 refuses to say so."""
    from obstore.exceptions import PermissionDeniedError

    return FileNotFoundError, PermissionDeniedError


def bare(etag: str | None) -> str:
    """Returns an etag as lists and answers have it alike: some put it in quotes, or call it weak."""
    return (etag or "").removeprefix("W/").strip('"')


def _obstore() -> Any:
    try:
        import obstore
    except ImportError:
        raise ImportError(f"object storage is read with obstore: {_INSTALL}") from None
    return obstore
