"""DALIImageTable: a CSV file or a DataFrame that names image files and their targets."""

from __future__ import annotations

import csv
import difflib
import io
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice, product
from typing import Any, NamedTuple

from torchvision.datasets.folder import IMG_EXTENSIONS

from ..remote.objects import FolderAndSize, Objects, names_in
from ..runtime.warn_location import stack_level
from .image_list import DALIImageList
from .label_columns import labels_of, numbers_in, refuse_rows, separator_in, several_labels


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
        remedy = f"separator={separator!r} makes vectors of them, and classes= says that all is well"
        warnings.warn(f"{what}: {remedy}", stacklevel=stack_level())


class _Rows(NamedTuple):
    """Columns of a table.

    Attributes:
        columns: by name; None where a cell is empty.
        where: says where a row is.
        text: cells are text, numbers too.
    """

    columns: dict[Any, list[Any]]
    where: Callable[[int], str]
    text: bool


def _of_csv(path: Any, names: list[Any]) -> _Rows:
    columns: dict[Any, list[Any]] = {name: [] for name in names}
    lines: list[int] = []
    read = 0  # lines, up to the row that comes
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(io.StringIO(file.read(), newline=""), strict=True)
        header = next(filter(None, reader), [])
        _refuse_columns(names, header, os.fspath(path))
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
        what = f"{error}; mend the file, or read it with pandas and give the DataFrame"
        raise ValueError(f"{os.fspath(path)}, line {read + 1}: {what}") from None
    return _Rows(columns, lambda row: f"line {lines[row]}", True)


def _of_frame(frame: Any, names: list[Any]) -> _Rows:
    _refuse_columns(names, list(frame.columns), "the table")
    columns = {
        name: [None if gone else value for value, gone in zip(frame[name], frame[name].isna(), strict=True)]
        for name in names
    }
    labels = list(frame.index)
    return _Rows(columns, lambda row: f"row {labels[row]}", False)


def _refuse_columns(names: list[Any], there: Sequence[Any], table: str) -> None:
    """
    Raises:
        ValueError: one is missing, or there twice.
    """
    for name in names:
        if list(there).count(name) > 1:
            raise ValueError(f"{table} has several columns {name!r}")
        if name not in there:
            near = difflib.get_close_matches(str(name), list(map(str, there)), 1)
            meant = f" (is it {near[0]!r}?)" if near else ""
            raise ValueError(f"{table} has no column {name!r}{meant}; it has {', '.join(map(repr, there)) or 'none'}")


def _refuse_missing(
    paths: list[str], files: list[Any], where: Callable[[int], str], root: Any, csv_file: Any, objects: Objects | None
) -> None:
    """
    Raises:
        FileNotFoundError: files are missing; how many, the first of them, and where they seem to be.
    """
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
