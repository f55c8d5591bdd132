"""Objects of the Hugging Face Hub, read with fsspec and huggingface_hub."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from .urls import UrlPart, split, whole


class Hub:
    """Gets and lists what is below hf://datasets or hf://models, in threads that no interrupt waits for.

    Args:
        root: its URL.
        options: arguments of huggingface_hub.HfFileSystem, such as ``token``.

    Raises:
        ImportError: a package is not installed.
    """

    def __init__(self, root: str, options: Mapping[str, Any]):
        try:
            import fsspec

            self._files = fsspec.filesystem("hf", **options)
        except ImportError:
            raise ImportError("the Hugging Face Hub is read with: pip install huggingface_hub fsspec") from None
        self._root = root.partition("://")[2]

    async def get(self, url: str) -> tuple[bytes, Mapping[str, Any]]:
        """Returns the bytes of an object or a UrlPart of one, and what is known of all of it."""
        meta = await self.look_up(url)
        bounds = (url.start, url.end) if isinstance(url, UrlPart) else (None, None)
        return await _in_thread(self._files.cat_file, self._path(split(whole(url))[1]), *bounds), meta

    async def look_up(self, url: str) -> Mapping[str, Any]:
        """Returns what is known of an object, as obstore has it."""
        return self._meta(await _in_thread(self._files.info, self._path(split(whole(url))[1])))

    async def top(self, prefix: str) -> dict[str, Any]:
        """Returns the objects in a folder, and the folders in it, as obstore does."""
        found = await _in_thread(self._files.ls, self._path(prefix), detail=True)
        folders = [self._meta(one)["path"] for one in found if one["type"] == "directory"]
        return {"common_prefixes": folders, "objects": [self._meta(one) for one in found if one["type"] == "file"]}

    async def below(self, prefix: str) -> list[Any]:
        """Returns the objects below a folder."""
        found = await _in_thread(self._files.find, self._path(prefix), detail=True)
        return [self._meta(one) for one in found.values()]

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}".rstrip("/")

    def _meta(self, info: Mapping[str, Any]) -> dict[str, Any]:
        etag = next((info[name] for name in ("blob_id", "ETag", "created", "mtime") if info.get(name)), None)
        key = info["name"].strip("/").removeprefix(f"{self._root}/")
        return {"path": key, "e_tag": etag and str(etag), "size": info["size"], "last_modified": etag}


async def _in_thread(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Returns what a function returns, called in a thread that ends with the program."""
    loop, future = asyncio.get_running_loop(), asyncio.Future[Any]()

    def settle(outcome: Any, failed: bool) -> None:
        if not future.done():  # an interrupt has cancelled it
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
