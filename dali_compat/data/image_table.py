"""Data sets of image files and targets, from lists (DALIImageList), a CSV file or a DataFrame (DALIImageTable)."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as data
from torchvision.datasets import VisionDataset, folder
from torchvision.datasets.folder import IMG_EXTENSIONS

from ..remote.objects import FolderAndSize, Objects, names_in
from ..remote.urls import are_urls, is_url, without_scheme
from ..runtime.dataset_base import DatasetBase
from ..runtime.messages import stack_level
from .label_columns import NO_TARGET, labels_of, numbers_in, refuse_columns, refuse_rows, separator_in, several_labels
from .sources import object_image

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class DALIImageList(VisionDataset, DatasetBase, data.Dataset[tuple[Any, Any]]):  # type: ignore[type-arg]  # for new torchvisions
    """Image files and targets. dali_compat.DataLoader decodes and transforms the images with DALI.

    ``dataset[i]`` is ``(transform(image), target_transform(target))`` with a PIL image in RGB. The data set works in
    any loader.

    Args:
        paths: paths of the files, as str, bytes or PathLike, or URLs of objects such as ``s3://bucket/1.jpg`` or
            ``https://host/1.jpg`` (docs/object-storage.md).
        targets: one per file: numbers, vectors, tensors, or anything that default_collate or your collate_fn accepts. A
            one-dimensional array of integers or bools becomes a list. Any other numeric array becomes a tensor of
            its dtype. None makes each target -1.
        transform: takes a PIL image, usually a torchvision Compose.
        target_transform: takes a target.
        root: folder to which relative paths are joined, or its URL.
        storage_options: arguments of obstore.store.from_url for URLs, such as ``region`` and ``endpoint``. For URLs of
            the Hugging Face Hub (``hf://``), arguments of HfFileSystem.
        disk_cache: (folder, maximum size in bytes), to cache fetched objects on a local disk.

    Attributes:
        paths: list of str.
        targets: a list, or a tensor with one row per target.
        samples: list of (path, target). To change it, assign new ``paths`` and ``targets``.

    Raises:
        TypeError: ``paths`` are not paths.
        ValueError: the numbers of paths and targets differ, or only some of the paths are URLs.
        ImportError: the paths are URLs, and obstore is not installed (the extra ``remote``).
        OSError: ``dataset[i]`` cannot read its file. For a URL, the error is an ImageReadError.

    Examples:
        >>> dataset = DALIImageList(["cat/0.jpg", "dog/0.jpg"], [0.25, 0.75], transform, root="train")
        >>> images, targets = next(iter(DataLoader(dataset, batch_size=2, device="cpu")))
        >>> targets
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """

    _objects: Objects | None = None

    def __init__(
        self,
        paths: Iterable[AnyPath],
        targets: Any = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        disk_cache: FolderAndSize | None = None,
    ) -> None:
        super().__init__(root, transform=transform, target_transform=target_transform)  # type: ignore[arg-type]  # None is its default
        self.paths = joined(paths, root)
        self.targets = [NO_TARGET] * len(self.paths) if targets is None else as_targets(targets)
        if are_urls(self.paths):
            self._objects = Objects(storage_options, disk_cache)
        if len(self.targets) != len(self.paths):
            raise ValueError(f"{len(self.paths)} paths, but {len(self.targets)} targets; pass one target per path")

    @property
    def samples(self) -> list[tuple[str, Any]]:
        """List of (path, target before target_transform)."""
        return list(zip(self.paths, self.targets, strict=True))

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self._warn_if_torch_reads()
        path = self.paths[index]
        image = folder.pil_loader(path) if self._objects is None else object_image(self._objects, path)
        return self._transformed(image, self.targets[index])

    def __len__(self) -> int:
        return len(self.paths)


def joined(paths: Iterable[AnyPath], root: str | os.PathLike[str] | None) -> list[str]:
    """Convert paths to str, and join relative paths to ``root``. Raise TypeError if one is not a path."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"paths must be a sequence of paths, got a single path {paths!r}")
    try:
        texts = [without_scheme(os.fsdecode(path)) for path in paths]
    except TypeError as error:
        raise TypeError(f"paths must be str, bytes or PathLike: {error}") from None
    folder = None if root is None else os.path.expanduser(without_scheme(os.fspath(root)))
    return texts if folder is None else [text if is_url(text) else os.path.join(folder, text) for text in texts]


def as_targets(targets: Any) -> Any:
    """Convert targets to a list, or to a CPU tensor with one row per target."""
    if isinstance(targets, torch.Tensor):
        return targets.cpu()
    if hasattr(targets, "to_numpy"):  # a column of pandas
        targets = targets.to_numpy()
    if isinstance(targets, np.ndarray):
        if np.ma.is_masked(targets) or targets.dtype.kind in ("OSUiub" if targets.ndim == 1 else "OSU"):
            return targets.tolist()
        # torch requires native byte order
        return torch.as_tensor(np.array(targets, targets.dtype.newbyteorder("=")), device="cpu")
    return [target.item() if isinstance(target, np.generic) else target for target in targets]


class DALIImageTable(DALIImageList):
    """Image files and targets from a table: a CSV file with a header, or a pandas DataFrame.

    A column of integers gives ints. A column of other numbers gives float32. A column of text gives class numbers,
    assigned in sorted order. Several columns of numbers give float32 vectors, and so do cells of several labels. CSV
    files are read with Python's csv module. For other formats, pass a DataFrame.

    Args:
        table: path of a CSV file, or a DataFrame.
        image: name of the column of files.
        target: name of the column of targets, or a list of names. None makes each target -1.
        transform: takes a PIL image, usually a torchvision Compose.
        target_transform: takes a target.
        root: folder to which relative paths are joined, or its URL.
        separator: text between the labels of a cell, such as " " in "cat dog". Targets are then float32 vectors with 1
            for each label of the cell and 0 for the other ``classes``.
        classes: class names in the order of their numbers, such as those of the training table.
        check_files: raise FileNotFoundError in the constructor if files are missing. Files at ``https://`` URLs are not
            checked.
        storage_options, disk_cache: as in DALIImageList.

    Attributes:
        paths: list of str.
        targets: a list of ints, or a float32 tensor whose rows are the targets.
        samples: list of (path, target).
        classes, class_to_idx: class names, and {name: number}; None if the targets have no names.

    Raises:
        FileNotFoundError: the table or some of its files are missing.
        ValueError: a column is missing; a cell is empty (allowed with ``separator``) or not a target; or ``separator``
            is given without exactly one column of targets.

    Examples:
        >>> print(open("train.csv").read())
        file,label
        cat/0.jpg,cat
        dog/0.jpg,dog
        >>> dataset = DALIImageTable("train.csv", transform=transform, root="train")
        >>> dataset.targets, dataset.class_to_idx
        ([0, 1], {'cat': 0, 'dog': 1})
    """

    def __init__(
        self,
        table: Any,
        image: Hashable = "file",
        target: Hashable | Sequence[Hashable] = "label",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        separator: str | None = None,
        classes: Sequence[str] | None = None,
        check_files: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        disk_cache: FolderAndSize | None = None,
    ) -> None:
        single = isinstance(target, str) or not isinstance(target, Iterable)
        if isinstance(target, tuple):  # in a DataFrame with several levels, a tuple is the name of one column
            single = target in list(getattr(table, "columns", ()))
        names: list[Any] = [] if target is None else [target] if single else list(target)  # type: ignore[call-overload]  # it is iterable
        rows = _read_frame(table, [image, *names]) if hasattr(table, "columns") else _read_csv(table, [image, *names])
        files = rows.columns[image]
        refuse_rows([row for row, file in enumerate(files) if file is None], f"an empty {image!r}", rows.where)
        values = [(name, rows.columns[name]) for name in names]
        if separator is not None:
            if not separator or not single or not values:
                raise ValueError(
                    f"separator needs a non-empty text and one target column, got {separator!r}, {target!r}"
                )
            labels = several_labels(*values[0], separator, rows.where, classes)
        else:
            if rows.text and classes is None:
                values = [(name, numbers_in(column, name, rows.where)) for name, column in values]
            labels = labels_of(values, single, len(files), rows.where, classes)
            if labels.classes and classes is None:
                _warn_of_several_labels(target, labels.classes)
        remote: Any = {"storage_options": storage_options, "disk_cache": disk_cache}
        super().__init__(files, labels.targets, transform, target_transform, root=root, **remote)
        self.classes = labels.classes
        self.class_to_idx = self.classes and {name: number for number, name in enumerate(self.classes)}
        if check_files:
            csv_file = None if hasattr(table, "columns") else table
            _refuse_missing(self.paths, files, rows.where, root, csv_file, self._objects)


def _warn_of_several_labels(column: Any, names: list[str]) -> None:
    if separator := separator_in(names):
        several = next(name for name in names if separator in name.strip())
        what = f"cells of {column!r} look like several labels, such as {several!r}, but each distinct cell is one class"
        remedy = f"pass separator={separator!r} for vectors of zeros and ones, or classes= to keep these classes"
        warnings.warn(f"{what}; {remedy}", stacklevel=stack_level())


class _Rows(NamedTuple):
    columns: dict[Any, list[Any]]  # keyed by name; None for an empty cell
    where: Callable[[int], str]  # returns the location of a row, for messages
    text: bool  # whether numbers are text, as in a CSV file


def _read_csv(path: Any, names: list[Any]) -> _Rows:
    columns: dict[Any, list[Any]] = {name: [] for name in names}
    lines: list[int] = []
    read = 0  # lines read so far
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(io.StringIO(file.read(), newline=""), strict=True)
        header = next(filter(None, reader), [])
        refuse_columns(names, header, os.fspath(path))
        at = {name: header.index(name) for name in names}
        read = reader.line_num
        for cells in reader:
            read = reader.line_num
            if not cells:
                continue  # an empty line
            if len(cells) != len(header):
                what = f"{len(cells)} cells, but the header has {len(header)}"
                raise ValueError(f"{os.fspath(path)}, line {read}: the line has {what}")
            lines.append(read)
            for name, place in at.items():
                columns[name].append(cells[place] if cells[place].strip() else None)
    except (csv.Error, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            read = error.object.count(b"\n", 0, error.start)
        what = f"{error}; repair the file, or read it with pandas and pass the DataFrame"
        raise ValueError(f"{os.fspath(path)}, line {read + 1}: {what}") from None
    return _Rows(columns, lambda row: f"line {lines[row]}", True)


def _read_frame(frame: Any, names: list[Any]) -> _Rows:
    refuse_columns(names, list(frame.columns), "the table")
    columns = {
        name: [None if gone else value for value, gone in zip(frame[name], frame[name].isna(), strict=True)]
        for name in names
    }
    labels = list(frame.index)
    return _Rows(columns, lambda row: f"row {labels[row]}", False)


def _refuse_missing(
    paths: list[str], files: list[Any], where: Callable[[int], str], root: Any, csv_file: Any, objects: Objects | None
) -> None:
    """Raise FileNotFoundError if files are missing. The message names the first five and their likely location."""
    inside: dict[str, set[str] | None] = {}
    missing = []
    for row, path in enumerate(paths):
        folder, name = os.path.split(path)
        if folder not in inside:
            inside[folder] = _listed(folder) if objects is None else names_in(objects.client, folder)
        names = inside[folder]
        if not (objects is not None or os.path.exists(path) if names is None else name in names):
            missing.append(row)
    if not missing:
        return
    first = "; ".join(f"{where(row)}: {paths[row]}" for row in missing[:5])
    given = os.path.expanduser(os.fspath(root or "."))
    near = given if root is not None or csv_file is None else os.path.dirname(os.path.abspath(os.fspath(csv_file)))
    hint = _hint([os.fsdecode(files[row]) for row in missing[:5]], near, given)
    raise FileNotFoundError(f"{len(missing)} of {len(paths)} files are missing{hint}: {first}")


def _hint(names: list[str], near: str, given: str) -> str:
    """Return a hint on where the files ``names`` are, or "" if no folder contains all of them.

    Look for the names in ``near`` and its subfolders, as given and with each image extension appended. ``given`` is the
    folder in which the files were expected.
    """
    with suppress(OSError), os.scandir(near) as entries:
        folders = [near, *sorted(entry.path for entry in islice(entries, 1000) if entry.is_dir())[:50]]
        for folder, ending in product(folders, ("", *IMG_EXTENSIONS)):
            if all(os.path.exists(os.path.join(folder, name + ending)) for name in names):
                place = "there" if folder == given else f"in root={folder!r}"
                return f" (they are {place}{f', and end in {ending!r}: add it to the column' if ending else ''})"
    return ""


def _listed(folder: str) -> set[str] | None:
    """Return the set of names in a folder. It is empty if the folder is missing, and None if it cannot be listed."""
    try:
        return set(os.listdir(folder or "."))
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError:
        return None
