"""Cache the list of a folder's images, to open an ImageFolder of 1.28 million files in a second.

A list is valid while the modification time and inode of the root and of every folder below it are unchanged. These
change when a file or folder is added, removed or renamed. Two changes within two seconds may result in the same time,
so a list made within two seconds of a change may miss a later one. Such a list is valid only for processes (other ranks
of the job, for example) that called cached_samples() before the listing began.

Only the user may access the list (mode 0600). It is rebuilt if others may have written it (saved.py), or if it names
files outside of the root.
"""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension
from tqdm import tqdm

from ..errors import with_remedy
from ..remote.objects import FolderSamples, Objects, check_classes, listed_objects
from ..remote.urls import is_url
from ..runtime import saved
from ..runtime.messages import stack_level

_LAYOUT = 2  # version of the format of cached lists
_THREADS = 8
_SLOW = 1.0  # seconds before a progress bar appears
_TICK = 2_000_000_000  # ns; the coarsest clock of any file system in use


@with_remedy()
def cached_samples(root: str | Path, allow_empty: bool = False, cache: str | Path | None = None) -> FolderSamples:
    """Return (classes, class_to_idx, samples) of a folder of class folders, from a cached list if it is still valid.

    Content and order are those of torchvision's find_classes() and make_dataset().

    Args:
        root: the folder. Its real path is the cache key. Paths in ``samples`` begin with ``root`` as given.
        allow_empty: whether class folders without images are valid.
        cache: a folder for the cached lists of any number of roots; by default the user's cache folder.

    Raises:
        FileNotFoundError: ``root`` is missing or has no class folders, or a class folder has no images.
    """
    root, file = os.path.expanduser(root), index_file(root, cache)
    started = time.time_ns()
    listing = _load(file, root, started)
    if listing is None:
        with saved.lock(file.stem):
            listing = _load(file, root, started)  # another process may have created it meanwhile
            if listing is None:
                listing = _list(root)
                _save_or_warn(root, partial(saved.save, file, listing._asdict(), {}))
    return _assemble(listing, root, allow_empty)


def index_file(root: str | Path, cache: str | Path | None = None) -> Path:
    name = saved.digest(os.path.realpath(os.path.expanduser(root)), _LAYOUT)
    return _cache_folder(cache) / f"{name}.npz"


def cached_objects(objects: Objects, root: str, allow_empty: bool, cache: str | Path | None) -> FolderSamples:
    """Return (classes, class_to_idx, samples) of a folder in a bucket, from a cached list if there is one.

    The list is not validated, because new objects cannot be detected. A changed object has another etag and is noticed
    when it is read. ``cache`` is a folder or a URL, by default the user's cache folder.
    """
    root, is_remote = root.rstrip("/"), is_url(cache)
    name = f"{saved.digest(objects.client.endpoints(), root, allow_empty, _LAYOUT)}.npz"
    file = f"{str(cache).rstrip('/')}/{name}" if is_remote else _cache_folder(cache) / name
    stored = saved.unpacked(objects.read_if_exists(str(file)) or b"") if is_remote else saved.load(file)
    try:
        if stored is None:
            raise ValueError("there is no cached list")
        classes, rows = stored[0]["classes"], stored[0]["rows"]
        if not all(url.startswith(f"{root}/") and target in range(len(classes)) for url, target, _, _ in rows):
            raise ValueError("the cached list is of another folder")
        for url, _, size, etag in rows:
            objects.set_size_and_etag(url, etag, size)
        return classes, {name: number for number, name in enumerate(classes)}, [(url, at) for url, at, _, _ in rows]
    except (ValueError, KeyError, TypeError):
        found = listed_objects(objects, root, allow_empty)
    made = {"classes": found[0], "rows": [(url, target, *objects.size_and_etag(url)) for url, target in found[2]]}
    save = partial(saved.save, file, made, {})
    _save_or_warn(root, partial(objects.put, str(file), bytes(saved.packed(made, {}))) if is_remote else save)
    return found


def _save_or_warn(root: str, save: Callable[[], object]) -> None:
    try:
        save()
    except OSError as error:
        what = f"the list of {root} cannot be saved ({error}); the folder will be listed again at each start"
        warnings.warn(what, stacklevel=stack_level())


def _cache_folder(cache: str | Path | None) -> Path:
    return Path(os.path.expanduser(cache or saved.cache_folder() / "folders"))


def listed_samples(root: str | Path) -> FolderSamples:
    """Return the samples of a folder as cached_samples() does, but without a cache."""
    root = os.path.expanduser(root)
    return _assemble(_list(root), root, allow_empty=False)


class _Folder(NamedTuple):
    target: int  # number of its class; -1 for the root
    path: str  # relative to the root
    time: int  # of its last modification, in ns
    inode: int
    names: list[str]  # names of its images


class _Listing(NamedTuple):
    classes: list[str]
    folders: list[_Folder]  # in the order of torchvision's walk, beginning with the root
    time: int  # start of the listing, in ns


def _list(root: str) -> _Listing:
    begin = time.time_ns()
    below = len(os.path.join(root, ""))
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())

    def walk(target: int) -> list[_Folder]:
        found = []
        for path, _, files in sorted(os.walk(os.path.join(root, classes[target]), followlinks=True)):
            names = [file for file in sorted(files) if has_file_allowed_extension(file, IMG_EXTENSIONS)]
            found.append(_Folder(target, path[below:], *_stamp(path), names))
        return found

    folders = [_Folder(-1, "", *_stamp(root), [])]
    label = f"listing {os.path.basename(root.rstrip('/')) or root}"
    with (
        tqdm(total=len(classes), desc=label, unit="folder", delay=_SLOW, disable=None) as bar,
        ThreadPoolExecutor(_THREADS) as pool,  # on a network file system, each folder is a round trip
    ):
        for found in pool.map(walk, range(len(classes))):
            folders += found
            bar.update()
    return _Listing(classes, folders, begin)


def _stamp(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_ino


def _load(file: Path, root: str, started: int) -> _Listing | None:
    """Return the cached listing of a folder, or None if it is missing or not valid. ``started`` is the time in ns of
    this process's call of cached_samples()."""
    try:
        listing = _listing((saved.load(file) or ({}, {}))[0])
        stamps = [_stamp(os.path.join(root, folder.path)) for folder in listing.folders]
        # after a change less than _TICK before the listing, a later one may have the same time
        may_be_outdated = max(stamps)[0] > listing.time - _TICK and listing.time < started
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if may_be_outdated or stamps != [(folder.time, folder.inode) for folder in listing.folders] else listing


def _listing(stored: dict) -> _Listing:
    """Return the stored data as a listing. Raise an error if it is invalid, or names files outside of the root."""
    listing = _Listing(stored["classes"], [_Folder(*row) for row in stored["folders"]], int(stored["time"]))
    for target, path, _, _, names in listing.folders:
        if type(target) is not int or not -1 <= target < len(listing.classes):
            raise ValueError("the cached list has targets without a class")
        if os.path.isabs(path) or ".." in path.split("/") or "/" in "".join(names) or ".." in names:
            raise ValueError("the cached list names files outside of the root")
    if not listing.folders or listing.folders[0].path != "":
        raise ValueError("the cached list does not begin with the root")
    return listing


def _assemble(listing: _Listing, root: str, allow_empty: bool) -> FolderSamples:
    """Return (classes, class_to_idx, samples) of a listing. Raise torchvision's error if there are no classes, or if a
    class has no images and ``allow_empty`` is False."""
    classes = listing.classes
    check_classes(root, classes, {folder.target for folder in listing.folders if folder.names}, allow_empty)
    samples: list[tuple[str, int]] = []
    collects = gc.isenabled()
    gc.disable()  # the collector would repeatedly traverse the growing list
    try:
        for folder in listing.folders:
            prefix = os.path.join(root, folder.path, "")
            samples += [(prefix + name, folder.target) for name in folder.names]
    finally:
        if collects:
            gc.enable()
    return classes, {name: number for number, name in enumerate(classes)}, samples
