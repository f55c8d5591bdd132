"""obstore's client for each bucket."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .event_loop import event_loop, is_forked
from .helper_process import HelperProcess
from .hub import Hub
from .urls import UrlPart, reason_of, split, whole

_INSTALL = "pip install obstore"


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
    """Gets and lists objects of any buckets, with obstore, which retries what is worth it.

    Args:
        options: arguments of obstore.store.from_url: region, endpoint, skip_signature, client_options, retry_config and
            more. obstore finds the rest in the environment, or asks the machine.


    Raises:
        ImportError: obstore is not installed.
    """

    def __init__(self, options: Mapping[str, Any] | None = None):
        _obstore()
        self._options = dict(options or {})
        self._stores: dict[str, Any] = {}

    def store(self, root: str) -> Any:
        """Returns obstore's store for a bucket, or a Hub.

        Raises:
            ImportError: the package that reads it is not installed.
            ValueError: an option is unknown or wrong.
            RuntimeError: as event_loop() does.
        """
        if is_forked():
            event_loop()
        store = self._stores.get(root)
        if store is None and root.startswith("hf://"):
            store = self._stores[root] = Hub(root, self._options)
        if store is None:
            _obstore()
            from obstore.exceptions import BaseError
            from obstore.store import from_url

            try:
                store = self._stores[root] = from_url(root, **self._options)
            except BaseError as error:
                raise ValueError(f"cannot open {root}: {reason_of(error)}") from None
        return store

    def place(self) -> str:
        """Returns what tells servers apart that have buckets of the same name: endpoints and accounts."""
        environment = {key: value for key, value in os.environ.items() if key.startswith(("AWS_", "AZURE_", "GOOGLE_"))}
        given = environment | dict(self._options.get("config") or {}) | self._options
        named = [(key.lower(), value) for key, value in given.items() if re.search("endpoint|account_name", key, re.I)]
        return repr(sorted(named))

    async def get(self, url: str) -> Fetched:
        """Returns an object, or a UrlPart of one, with the etag of all of it.

        Raises:
            Exception: obstore's.
        """
        if is_forked():
            fetched: Fetched = _helper(os.getpid()).get(self, url)
            return fetched
        root, key = split(whole(url))
        store = self.store(root)
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
