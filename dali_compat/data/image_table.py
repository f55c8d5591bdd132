"""DALIImageList: image files and their targets; DALIImageTable: those that a CSV file or a DataFrame names."""

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
from ..runtime.dataset_base import OurDataset
from ..runtime.messages import stack_level
from .label_columns import NO_TARGET, labels_of, numbers_in, refuse_columns, refuse_rows, separator_in, several_labels
from .sources import object_image

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class DALIImageList(VisionDataset, OurDataset, data.Dataset[tuple[Any, Any]]):  # type: ignore[type-arg]  # of new torchvisions
    """Image files and their targets, decoded and transformed by DALI when a dali_compat.DataLoader iterates it.

    ``dataset[i]`` is ``(transform(image), target_transform(target))`` of a PIL image in RGB, as
    torchvision.datasets.ImageFolder gives it, so it works in any loader.

    Args:
        paths: of the files: str, bytes or PathLike; or URLs of objects, such as ``s3://bucket/1.jpg`` or
            ``https://host/1.jpg`` (docs/object-storage.md).
        targets: of each file: numbers, vectors, tensors, or whatever else default_collate or your collate_fn takes. A
            numpy array of whole numbers becomes a list of ints, any other array of numbers a tensor of its dtype. None:
            -1 for each.
        transform: takes a PIL image, usually a torchvision Compose.
        target_transform: takes a target.
        root: folder that relative paths begin at, or its URL.
        storage_options: of object storage: arguments of obstore.store.from_url, such as ``region`` and ``endpoint``.
        disk_cache: (folder, bytes): keeps fetched objects on a local disk (docs/object-storage.md).

    Attributes:
        paths: list of str.
        targets: a list, or a tensor whose rows are the targets.
        samples: list of (path, target), made of these two. Assign new ``paths`` and ``targets`` to change them.

    Raises:
        TypeError: paths are no paths.
        ValueError: there are more paths than targets, or fewer; some are URLs, and others are not.
        ImportError: they are URLs, and obstore is not installed: the extra ``remote``.
        OSError: in ``dataset[i]``, Pillow's, for a file that cannot be read; for an object an ImageReadError.

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
            raise ValueError(f"{len(self.paths)} paths and {len(self.targets)} targets")

    @property
    def samples(self) -> list[tuple[str, Any]]:
        """(path, target before target_transform) of each."""
        return list(zip(self.paths, self.targets, strict=True))

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self._warn_if_torch_reads()
        path = self.paths[index]
        image = folder.pil_loader(path) if self._objects is None else object_image(self._objects, path)
        return self._transformed(image, self.targets[index])

    def __len__(self) -> int:
        return len(self.paths)


def joined(paths: Iterable[AnyPath], root: str | os.PathLike[str] | None) -> list[str]:
    """Returns paths as text, behind a folder where they are relative. Raises TypeError if one of them is no path."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"paths must be a sequence of paths, got one: {paths!r}")
    try:
        texts = [without_scheme(os.fsdecode(path)) for path in paths]
    except TypeError as error:
        raise TypeError(f"paths must be str, bytes or PathLike: {error}") from None
    folder = None if root is None else os.path.expanduser(without_scheme(os.fspath(root)))
    return texts if folder is None else [text if is_url(text) else os.path.join(folder, text) for text in texts]


def as_targets(targets: Any) -> Any:
    """A list, or a tensor of rows on the CPU."""
    if isinstance(targets, torch.Tensor):
        return targets.cpu()
    if hasattr(targets, "to_numpy"):  # a column of pandas
        targets = targets.to_numpy()
    if isinstance(targets, np.ndarray):
        if np.ma.is_masked(targets) or targets.dtype.kind in ("OSUiub" if targets.ndim == 1 else "OSU"):
            return targets.tolist()
        return torch.as_tensor(np.array(targets, targets.dtype.newbyteorder("=")), device="cpu")  # as torch takes it
    return [target.item() if isinstance(target, np.generic) else target for target in targets]


class DALIImageTable(DALIImageList):
    """Image files and targets that a table names: a CSV file with a header, or a pandas DataFrame.

    A column of whole numbers gives ints as they are; one of other numbers float32; one of text the numbers of its names
    in sorted order. Several columns of numbers give float32 vectors; so does, with ``separator``, a column whose cells
    have several labels. A CSV file is read with Python's csv module, whether pandas is installed or not; read others
    yourself and give the DataFrame.

    Args:
        table: path of a CSV file, or a DataFrame.
        image: column of files.
        target: column of targets, or a list of columns. None: -1 for each.
        transform: takes a PIL image, usually a torchvision Compose.
        target_transform: takes a target.
        root: folder that relative files begin at, or its URL.
        separator: what stands between the labels of a cell, as " " in "cat dog". Targets are then float32 vectors with
            1 for each label of the cell, none for an empty one, and 0 for the other ``classes``.
        classes: names in the order of their numbers: those of the training table for the other ones.
        check_files: reports all missing files together, by a list of each folder; not of ``https://``,
            where there are no lists.
        storage_options, disk_cache: as DALIImageList's.

    Attributes:
        paths: list of str.
        targets: a list of ints, or a float32 tensor: (N,), or (N, columns).
        samples: list of (path, target).
        classes, class_to_idx: names of the targets; None where they have none.

    Raises:
        FileNotFoundError: there is no such table, or files that it names are missing.
        ValueError: a column is missing; a cell is empty, or holds what is no target; there is a separator, and not one
            column of targets.

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
        if isinstance(target, tuple):  # a name, too, where columns have several levels
            single = target in list(getattr(table, "columns", ()))
        names: list[Any] = [] if target is None else [target] if single else list(target)  # type: ignore[call-overload]  # it can be iterated
        rows = _of_frame(table, [image, *names]) if hasattr(table, "columns") else _of_csv(table, [image, *names])
        files = rows.columns[image]
        refuse_rows([row for row, file in enumerate(files) if file is None], f"an empty {image!r}", rows.where)
        values = [(name, rows.columns[name]) for name in names]
        if separator is not None:
            if not separator or not single or not values:
                raise ValueError(f"separator={separator!r}: it is some text, and needs one column of targets")
            labels = several_labels(*values[0], separator, rows.where, classes)
        else:
            if rows.text and classes is None:
                values = [(name, numbers_in(column, name, rows.where)) for name, column in values]
            labels = labels_of(values, single, len(files), rows.where, classes)
            if labels.classes and classes is None:
                _warn_of_several_labels(target, labels.classes)
        there: Any = {"storage_options": storage_options, "disk_cache": disk_cache}
        super().__init__(files, labels.targets, transform, target_transform, root=root, **there)
        self.classes = labels.classes
        self.class_to_idx = self.classes and {name: number for number, name in enumerate(self.classes)}
        if check_files:
            csv_file = None if hasattr(table, "columns") else table
            _refuse_missing(self.paths, files, rows.where, root, csv_file, self._objects)


def _warn_of_several_labels(column: Any, names: list[str]) -> None:
    if separator := separator_in(names):
        several = next(name for name in names if separator in name.strip())
        what = f"cells of {column!r} look like several labels, as {several!r}, and each such cell is a class"
        remedy = f"separator={separator!r} gives vectors of zeros and ones; classes= keeps each cell as one class"
        warnings.warn(f"{what}: {remedy}", stacklevel=stack_level())


class _Rows(NamedTuple):
    """Columns of a table."""

    columns: dict[Any, list[Any]]  # by name; None where a cell is empty
    where: Callable[[int], str]  # says where a row is
    text: bool  # cells are text, numbers too


def _of_csv(path: Any, names: list[Any]) -> _Rows:
    columns: dict[Any, list[Any]] = {name: [] for name in names}
    lines: list[int] = []
    read = 0  # lines, up to the row that comes
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
                what = f"{len(cells)} cells, and the header {len(header)}"
                raise ValueError(f"{os.fspath(path)}, line {read}: it has {what}")
            lines.append(read)
            for name, place in at.items():
                columns[name].append(cells[place] if cells[place].strip() else None)
    except (csv.Error, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            read = error.object.count(b"\n", 0, error.start)
        what = f"{error}; repair the file, or read it with pandas and give the DataFrame"
        raise ValueError(f"{os.fspath(path)}, line {read + 1}: {what}") from None
    return _Rows(columns, lambda row: f"line {lines[row]}", True)


def _of_frame(frame: Any, names: list[Any]) -> _Rows:
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
    """Raises FileNotFoundError if files are missing: with their number, the first, and where they seem to be."""
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
    """Says in which folder, or with which extension, all these files are, if they are near or in a folder there."""
    with suppress(OSError), os.scandir(near) as entries:
        folders = [near, *sorted(entry.path for entry in islice(entries, 1000) if entry.is_dir())[:50]]
        for folder, ending in product(folders, ("", *IMG_EXTENSIONS)):
            if all(os.path.exists(os.path.join(folder, name + ending)) for name in names):
                place = "there" if folder == given else f"in root={folder!r}"
                return f" (they are {place}{f', and end in {ending!r}: add it to the column' if ending else ''})"
    return ""


def _listed(folder: str) -> set[str] | None:
    """Names in a folder; None where it may not be listed."""
    try:
        return set(os.listdir(folder or "."))
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError:
        return None
