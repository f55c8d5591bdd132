"""Caches the list of a folder's images: an ImageFolder of 1.28 million files starts in a second.

Only names are cached. They are valid while the modification time and inode of the root and of every folder below it are
the same: these change when a file or folder is added, removed or renamed. Files whose contents change stay in the list,
as they should. If a folder was modified within two seconds before it was listed, the next start lists it again: it may
have changed again within one tick of the file system's clock. A caller who asked before that listing began gets it all
the same, so that ranks that start together over a new folder do not list it one after another. The cached list is
its user's alone (mode 0600); one that others may have written (saved.py), or that names what is not below the root, is
made anew.
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

from ..remote.objects import FolderSamples, Objects, check_classes, listed_objects
from ..remote.urls import is_url
from ..runtime import saved
from ..runtime.messages import stack_level

_LAYOUT = 2  # of the cached lists
_THREADS = 8
_SLOW = 1.0  # seconds before a progress bar shows
_TICK = 2_000_000_000  # ns; no file system in use has a coarser clock


def cached_samples(root: str | Path, allow_empty: bool = False, place: str | Path | None = None) -> FolderSamples:
    """Returns (classes, class_to_idx, samples) of a folder of class folders, equal in content and order to
    torchvision's find_classes() and make_dataset(), from a cached list if that still holds.

    Args:
        root: the folder. The cache belongs to its real path; paths in ``samples`` begin with it as given.
        allow_empty: whether class folders without such files are valid.
        place: a folder for the cached lists of any number of roots; by default the user's cache folder.

    Raises:
        FileNotFoundError: ``root`` is missing, has no class folders, or one of them has no images.
    """
    root, file = os.path.expanduser(root), index_file(root, place)
    asked = time.time_ns()
    listing = _load(file, root, asked)
    if listing is None:
        with saved.lock(file.stem):
            listing = _load(file, root, asked)  # another process may have made it meanwhile
            if listing is None:
                listing = _list(root)
                _keep(root, partial(saved.save, file, listing._asdict(), {}))
    return _assemble(listing, root, allow_empty)


def index_file(root: str | Path, place: str | Path | None = None) -> Path:
    """Returns the path of the list that cached_samples() keeps of a folder."""
    name = saved.digest(os.path.realpath(os.path.expanduser(root)), _LAYOUT)
    return _place(place) / f"{name}.npz"


def cached_objects(objects: Objects, root: str, allow_empty: bool, place: str | Path | None) -> FolderSamples:
    """Returns (classes, class_to_idx, samples) of a folder in a bucket, from a kept list as it is: nothing tells what
    was added since. Objects that have changed since have another etag, which whoever reads them notices. ``place`` is a
    folder, or the URL of one, for the lists of any number of roots; by default the user's cache folder. Raises as
    listed_objects() does."""
    root, there = root.rstrip("/"), is_url(place)
    name = f"{saved.digest(objects.client.place(), root, allow_empty, _LAYOUT)}.npz"
    file = f"{str(place).rstrip('/')}/{name}" if there else _place(place) / name
    stored = saved.unpacked(objects.beside(str(file)) or b"") if there else saved.load(file)
    try:
        if stored is None:
            raise ValueError("there is none")
        classes, rows = stored[0]["classes"], stored[0]["rows"]
        if not all(url.startswith(f"{root}/") and target in range(len(classes)) for url, target, _, _ in rows):
            raise ValueError("it is of another folder")
        for url, _, size, etag in rows:
            objects.listed(url, etag, size)
        return classes, {name: number for number, name in enumerate(classes)}, [(url, at) for url, at, _, _ in rows]
    except (ValueError, KeyError, TypeError):
        found = listed_objects(objects, root, allow_empty)
    made = {"classes": found[0], "rows": [(url, target, *objects.listed_as(url)) for url, target in found[2]]}
    save = partial(saved.save, file, made, {})
    _keep(root, partial(objects.put, str(file), bytes(saved.packed(made, {}))) if there else save)
    return found


def _keep(root: str, save: Callable[[], object]) -> None:
    """Saves the list of a folder, or warns."""
    try:
        save()
    except OSError as error:
        what = f"the list of {root} cannot be saved, and the next start makes it again: {error}"
        warnings.warn(what, stacklevel=stack_level())


def _place(place: str | Path | None) -> Path:
    return Path(os.path.expanduser(place or saved.cache_folder() / "folders"))


def listed_samples(root: str | Path) -> FolderSamples:
    """Returns what cached_samples() returns, without a cache."""
    root = os.path.expanduser(root)
    return _assemble(_list(root), root, allow_empty=False)


class _Folder(NamedTuple):
    """A folder and its images."""

    target: int  # its class; -1 of the root
    path: str  # below the root, which is "" itself
    time: int  # of its last modification, in ns
    inode: int
    names: list[str]  # of its images


class _Listing(NamedTuple):
    """A root's classes and folders."""

    classes: list[str]
    folders: list[_Folder]  # in the order of torchvision's walk, the root first
    time: int  # when the listing began, in ns


def _list(root: str) -> _Listing:
    begin = time.time_ns()
    below = len(os.path.join(root, ""))
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())

    def walk(target: int) -> list[_Folder]:
        found = []
        for path, _, files in sorted(os.walk(os.path.join(root, classes[target]), followlinks=True)):
            names = [file for file in sorted(files) if has_file_allowed_extension(file, IMG_EXTENSIONS)]
            found.append(_Folder(target, path[below:], *_mark(path), names))
        return found

    folders = [_Folder(-1, "", *_mark(root), [])]
    label = f"listing {os.path.basename(root.rstrip('/')) or root}"
    with (
        tqdm(total=len(classes), desc=label, unit="folder", delay=_SLOW, disable=None) as bar,
        ThreadPoolExecutor(_THREADS) as pool,  # on a network, each folder is a round trip
    ):
        for found in pool.map(walk, range(len(classes))):
            folders += found
            bar.update()
    return _Listing(classes, folders, begin)


def _mark(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_ino


def _load(place: Path, root: str, asked: int) -> _Listing | None:
    """Returns the cached listing if it holds for a caller who ``asked`` then (ns)."""
    try:
        listing = _listing((saved.load(place) or ({}, {}))[0])
        marks = [_mark(os.path.join(root, folder.path)) for folder in listing.folders]
        is_in_doubt = max(marks)[0] > listing.time - _TICK and listing.time < asked
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if is_in_doubt or marks != [(folder.time, folder.inode) for folder in listing.folders] else listing


def _listing(stored: dict) -> _Listing:
    """Checks and returns what was saved. Raises ValueError, KeyError or TypeError if it is no listing, or names what
    does not lie below the root."""
    listing = _Listing(stored["classes"], [_Folder(*row) for row in stored["folders"]], int(stored["time"]))
    for target, path, _, _, names in listing.folders:
        if type(target) is not int or not -1 <= target < len(listing.classes):
            raise ValueError("it has targets without a class")
        if os.path.isabs(path) or ".." in path.split("/") or "/" in "".join(names) or ".." in names:
            raise ValueError("it names what is not below the root")
    if not listing.folders or listing.folders[0].path != "":
        raise ValueError("it does not begin with the root")
    return listing


def _assemble(listing: _Listing, root: str, allow_empty: bool) -> FolderSamples:
    """Returns torchvision's results, or raises its errors."""
    classes = listing.classes
    check_classes(root, classes, {folder.target for folder in listing.folders if folder.names}, allow_empty)
    samples: list[tuple[str, int]] = []
    collects = gc.isenabled()
    gc.disable()  # which would look through the growing list again and again
    try:
        for folder in listing.folders:
            prefix = os.path.join(root, folder.path, "")
            samples += [(prefix + name, folder.target) for name in folder.names]
    finally:
        if collects:
            gc.enable()
    return classes, {name: number for number, name in enumerate(classes)}, samples
