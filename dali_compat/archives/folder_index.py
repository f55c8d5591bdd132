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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension
from tqdm import tqdm

from ..remote.objects import Objects, listed_objects
from ..remote.urls import is_url
from ..runtime import saved
from ..runtime.messages import stack_level

_LAYOUT = 1  # of the cached arrays
_THREADS = 8
_SLOW = 1.0  # seconds before a progress bar shows
_TICK = 2_000_000_000  # ns; no file system in use has a coarser clock

FolderSamples = tuple[list[str], dict[str, int], list[tuple[str, int]]]


def cached_samples(
    root: str | Path,
    extensions: str | tuple[str, ...] = IMG_EXTENSIONS,
    allow_empty: bool = False,
    place: str | Path | None = None,
) -> FolderSamples:
    """Returns (classes, class_to_idx, samples) of a folder of class folders, equal in content and order to
    torchvision's find_classes() and make_dataset(), from a cached list if that still holds.

    Args:
        root: the folder. The cache belongs to its real path; paths in ``samples`` begin with it as given.
        extensions: endings of the files that count, in lower case.
        allow_empty: whether class folders without such files are valid.
        place: a folder for the cached lists of any number of roots; by default the user's cache folder.

    Raises:
        FileNotFoundError: ``root`` is missing, has no class folders, or one of them has no images.
    """
    root, file = os.path.expanduser(root), index_file(root, extensions, place)
    asked = time.time_ns()
    listing = _load(file, root, asked)
    if listing is None:
        with saved.lock(file.stem):
            listing = _load(file, root, asked)  # another process may have made it meanwhile
            if listing is None:
                listing = _list(root, extensions)
                try:
                    _save(file, listing)
                except OSError as error:
                    what = f"the list of {root} cannot be saved, and the next start makes it again: {error}"
                    warnings.warn(what, stacklevel=stack_level())
    return _assemble(listing, root, extensions, allow_empty)


def index_file(
    root: str | Path, extensions: str | tuple[str, ...] = IMG_EXTENSIONS, place: str | Path | None = None
) -> Path:
    """Returns the path of the list that cached_samples() keeps of a folder."""
    name = saved.digest(os.path.realpath(os.path.expanduser(root)), extensions, _LAYOUT)
    return _place(place) / f"{name}.npz"


def cached_objects(objects: Objects, root: str, allow_empty: bool, place: str | Path | None) -> FolderSamples:
    """Returns (classes, class_to_idx, samples) of a folder in a bucket, from a kept list as it is: nothing tells what
    was added since. Objects that have changed since have another etag, which whoever reads them notices.

    Args:
        place: a folder, or the URL of one, for the lists of any number of roots; by default the user's cache folder.

    Raises:
        FileNotFoundError, ImageReadError: as listed_objects() does.
    """
    root, there = root.rstrip("/"), is_url(place)
    name = f"{saved.digest(objects.client.place(), root, allow_empty, _LAYOUT)}.npz"
    file = f"{str(place).rstrip('/')}/{name}" if there else _place(place) / name
    stored = saved.unpacked(objects.beside(str(file)) or b"") if there else saved.load(file)
    try:
        if stored is None:
            raise ValueError("there is none")
        classes, urls, etags = (_split(stored[1][name]) for name in ("classes", "urls", "etags"))
        columns = stored[1]["targets"].tolist(), stored[1]["sizes"].tolist()
        if any(not url.startswith(f"{root}/") for url in urls) or not set(columns[0]) <= set(range(len(classes))):
            raise ValueError("it is of another folder")
        samples = []
        for url, etag, target, size in zip(urls, etags, *columns, strict=True):
            objects.listed(url, etag, size)
            samples.append((url, target))
        return classes, {name: number for number, name in enumerate(classes)}, samples
    except (ValueError, KeyError, TypeError):
        found = listed_objects(objects, root, allow_empty)
    known = [objects.listed_as(url) for url, _ in found[2]]
    texts = {"classes": found[0], "urls": [url for url, _ in found[2]], "etags": [etag for _, etag in known]}
    numbers = {"targets": [target for _, target in found[2]], "sizes": [size for size, _ in known]}
    arrays = {name: _joined(column) for name, column in texts.items()}
    arrays |= {name: np.array(column, np.int64) for name, column in numbers.items()}
    try:
        objects.put(str(file), bytes(saved.packed({}, arrays))) if there else saved.save(file, {}, arrays)
    except OSError as error:
        what = f"the list of {root} cannot be saved, and the next start makes it again: {error}"
        warnings.warn(what, stacklevel=stack_level())
    return found


def _place(place: str | Path | None) -> Path:
    return Path(os.path.expanduser(place or saved.cache_folder() / "folders"))


def listed_samples(root: str | Path, extensions: str | tuple[str, ...] = IMG_EXTENSIONS) -> FolderSamples:
    """Returns what cached_samples() returns, without a cache."""
    root = os.path.expanduser(root)
    return _assemble(_list(root, extensions), root, extensions, allow_empty=False)


@dataclass
class _Listing:
    """Folders in the order of torchvision's walk, the root first, and the names of their images.

    Attributes:
        classes: names of the class folders.
        folders: (F,) paths below the root, which is "" itself.
        targets: (F,) int64, the class of each; -1 for the root.
        marks: (F, 2) int64, modification time in ns and inode.
        counts: (F,) int64, images in each.
        names: of all images.
        time: ns, when the listing began.
    """

    classes: list[str]
    folders: list[str]
    targets: np.ndarray
    marks: np.ndarray
    counts: np.ndarray
    names: list[str]
    time: int


def _list(root: str, extensions) -> _Listing:
    begin = time.time_ns()
    below = len(os.path.join(root, ""))
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())

    def walk(name: str) -> list[tuple[str, tuple[int, int], list[str]]]:
        return [
            (
                path[below:],
                _mark(path),
                [file for file in sorted(files) if has_file_allowed_extension(file, extensions)],
            )
            for path, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True))
        ]

    rows: list[tuple[int, str, tuple[int, int], list[str]]] = [(-1, "", _mark(root), [])]
    label = f"listing {os.path.basename(root.rstrip('/')) or root}"
    with (
        tqdm(total=len(classes), desc=label, unit="folder", delay=_SLOW) as bar,
        ThreadPoolExecutor(_THREADS) as pool,  # on a network, each folder is a round trip
    ):
        for target, found in enumerate(pool.map(walk, classes)):
            rows += [(target, *folder) for folder in found]
            bar.update()
    targets, folders, marks, files = zip(*rows, strict=True)
    counts = np.array([len(names) for names in files], np.int64)
    names = [name for names in files for name in names]
    return _Listing(classes, list(folders), np.array(targets), np.array(marks, np.int64), counts, names, begin)


def _mark(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_ino & (1 << 63) - 1


def _load(place: Path, root: str, asked: int) -> _Listing | None:
    """Returns the cached listing if it holds for a caller who ``asked`` then (ns)."""
    stored = saved.load(place)
    if stored is None:
        return None
    try:
        listing = _listing(*stored)
        marks = np.array([_mark(os.path.join(root, folder)) for folder in listing.folders], np.int64)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_in_doubt = marks[:, 0].max() > listing.time - _TICK and listing.time < asked
    if is_in_doubt or not np.array_equal(marks, listing.marks):
        return None
    return listing


def _listing(meta: dict, arrays: dict[str, np.ndarray]) -> _Listing:
    """Checks and returns what _save() stored.

    Raises:
        ValueError, KeyError, TypeError: it is no listing, or names what does not lie below the root.
    """
    classes, folders, names = (_split(arrays[name]) for name in ("classes", "folders", "names"))
    numbers = {name: arrays[name] for name in ("targets", "marks", "counts")}
    listing = _Listing(classes=classes, folders=folders, names=names, **numbers, time=int(meta["time"]))
    shapes = {"targets": (len(listing.folders),), "marks": (len(listing.folders), 2), "counts": (len(listing.folders),)}
    if any(array.dtype != np.int64 or array.shape != shapes[name] for name, array in numbers.items()):
        raise ValueError("its arrays are others")
    if (listing.counts < 0).any() or listing.counts.sum() != len(listing.names) or listing.folders[0] != "":
        raise ValueError("its arrays do not fit each other")
    if (listing.targets < -1).any() or (listing.targets >= len(listing.classes)).any():
        raise ValueError("it has targets without a class")
    outside = [folder for folder in listing.folders if os.path.isabs(folder) or ".." in folder.split("/")]
    if outside or b"/" in arrays["names"].tobytes() or ".." in listing.names:
        raise ValueError("it names what is not below the root")
    return listing


def _save(place: Path, listing: _Listing) -> None:
    arrays = {name: _joined(getattr(listing, name)) for name in ("classes", "folders", "names")}
    arrays |= {name: getattr(listing, name) for name in ("targets", "marks", "counts")}
    saved.save(place, {"time": listing.time}, arrays)


def _joined(names: list[str]) -> np.ndarray:
    """Returns the names, each with a zero byte behind it, which no name has."""
    return np.frombuffer("".join(f"{name}\0" for name in names).encode("utf-8", "surrogateescape"), np.uint8)


def _split(joined: np.ndarray) -> list[str]:
    return joined.tobytes().decode("utf-8", "surrogateescape").split("\0")[:-1]


def _assemble(listing: _Listing, root: str, extensions, allow_empty: bool) -> FolderSamples:
    """Returns torchvision's results, or raises its errors."""
    classes = listing.classes
    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {root}.")
    full = set(listing.targets[listing.counts > 0].tolist())
    empty = [name for target, name in enumerate(classes) if target not in full]
    if empty and not allow_empty:
        known = extensions if isinstance(extensions, str) else ", ".join(extensions)
        raise FileNotFoundError(
            f"Found no valid file for the classes {', '.join(empty)}. Supported extensions are: {known}"
        )
    samples: list[tuple[str, int]] = []
    at = 0
    collects = gc.isenabled()
    gc.disable()  # which would look through the growing list again and again
    try:
        for folder, target, count in zip(
            listing.folders, listing.targets.tolist(), listing.counts.tolist(), strict=True
        ):
            prefix = os.path.join(root, folder, "")
            samples += [(prefix + name, target) for name in listing.names[at : at + count]]
            at += count
    finally:
        if collects:
            gc.enable()
    return classes, {name: number for number, name in enumerate(classes)}, samples
