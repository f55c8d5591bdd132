"""Lists a folder of class folders in a bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension
from tqdm import tqdm

from .client import Client
from .event_loop import wait_for
from .hub import Hub
from .objects import Objects
from .urls import failed, is_web, joined, split

_AT_ONCE = 64  # class folders
_PAGE = 1000  # objects; no provider gives more
_SLOW = 1.0  # seconds before a progress bar shows

FolderSamples = tuple[list[str], dict[str, int], list[tuple[str, int]]]


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
    root = root.rstrip("/")
    bucket, prefix = split(root)
    prefix = f"{prefix}/" if prefix else ""
    try:
        found = wait_for(_list(objects.client, bucket, prefix))
    except Exception as error:
        raise failed(root, error) from None
    if not found:
        raise FileNotFoundError(f"Couldn't find any class folder in {root}.")
    is_valid = is_valid or (lambda url: has_file_allowed_extension(url, IMG_EXTENSIONS))
    samples: list[tuple[str, int]] = []
    empty = []
    for target, (name, entries) in enumerate(sorted(found.items())):
        before = len(samples)
        for entry in sorted(entries, key=_in_walk):
            url = joined(bucket, entry["path"])
            if is_valid(url):
                samples.append((url, target))
                objects.listed(url, entry["e_tag"], entry["size"])
        if len(samples) == before:
            empty.append(name)
    if empty and not allow_empty:
        known = ", ".join(IMG_EXTENSIONS)
        raise FileNotFoundError(
            f"Found no valid file for the classes {', '.join(empty)}. Supported extensions are: {known}"
        )
    classes = sorted(found)
    return classes, {name: target for target, name in enumerate(classes)}, samples


def names_in(client: Client, folder: str) -> set[str] | None:
    """Returns the names of the objects in a folder, and not below it; None of a web server, which has no lists.

    Raises:
        ImageReadError: it cannot be listed.
    """
    if is_web(folder):
        return None
    bucket, prefix = split(folder.rstrip("/"))
    prefix = f"{prefix}/" if prefix else ""
    try:
        found = wait_for(_top(client, bucket, prefix))
    except Exception as error:
        raise failed(folder, error) from None
    return {entry["path"][len(prefix) :] for entry in found["objects"]}


def _in_walk(entry: Any) -> tuple[str, str]:
    """An object's place in os.walk()'s order, sorted: folder, then name."""
    folder, _, name = entry["path"].rpartition("/")
    return folder, name


async def _top(client: Client, bucket: str, prefix: str) -> Any:
    """The objects in a folder, and the folders in it."""
    store = client.store(bucket)
    if isinstance(store, Hub):
        return await store.top(prefix)
    import obstore

    return await obstore.list_with_delimiter_async(store, prefix or None)


async def _list(client: Client, bucket: str, prefix: str) -> dict[str, list[Any]]:
    """The objects of each class folder."""
    store, top = client.store(bucket), await _top(client, bucket, prefix)
    folders = [folder.rstrip("/") for folder in top["common_prefixes"]]
    turn = asyncio.Semaphore(_AT_ONCE)
    with tqdm(desc=f"listing {bucket}/{prefix}", unit="object", delay=_SLOW) as bar:

        async def below(folder: str) -> list[Any]:
            found: list[Any] = []
            async with turn:
                if isinstance(store, Hub):
                    return await store.below(folder)
                import obstore

                async for page in obstore.list(store, f"{folder}/", chunk_size=_PAGE):
                    found += page
                    bar.update(len(page))
            return found

        entries = await asyncio.gather(*map(below, folders))
    return {folder[len(prefix) :]: found for folder, found in zip(folders, entries, strict=True)}
