"""Targets from the columns of a table: ints, floats, vectors, class numbers, or several labels per cell."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from ..archives.index import is_target

_INTEGER = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_FLOAT = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_NUMBERS = (bool, np.bool_, int, float, np.integer, np.floating)
_BOOLEANS = ({"False", "True"}, {"false", "true"}, {"FALSE", "TRUE"})
NO_TARGET = -1  # as in torchvision's STL10 for images without a label
_SHOWN = 5  # rows listed in an error


class Labels(NamedTuple):
    targets: Any  # a list of ints, or a float32 tensor with one row per sample
    classes: list[str] | None = None  # class names in the order of their numbers; None if there are no names


def labels_of(
    columns: Sequence[tuple[Hashable, Sequence[Any]]],
    single: bool,
    count: int,
    where: Callable[[int], str],
    classes: Sequence[str] | None = None,
) -> Labels:
    """Return the targets of ``count`` rows.

    Args:
        columns: name and values of each column; None for an empty cell.
        single: True if the user passed the name of one column. False for a list of names; the targets are then vectors.
        where: returns the location of a row, for errors.
        classes: class names in the order of their numbers.

    Raises:
        ValueError: a cell is empty, is not a target, or is not in ``classes``.
    """
    if not columns:
        return Labels([NO_TARGET] * count)
    for name, values in columns:
        if empty := [row for row, value in enumerate(values) if value is None]:
            between = separator_in(sorted({value for value in values if isinstance(value, str)})) if single else None
            hint = f" (separator={between!r} lets a cell have several labels or none)" if between else ""
            refuse_rows(empty, f"an empty {name!r}{hint}", where)
    if not single:
        return Labels(torch.stack([_floats(name, values, where) for name, values in columns], dim=1))
    ((name, values),) = columns
    kinds = set(map(type, values))
    if classes is not None or kinds == {str}:
        return _named([str(value) for value in values], name, where, classes)
    if all(issubclass(kind, (bool, np.bool_, int, np.integer)) for kind in kinds):
        numbers = [int(value) for value in values]
        beyond = [row for row, number in enumerate(numbers) if not is_target(number)]
        refuse_rows(beyond, f"a number in {name!r} that does not fit into int64", where)
        return Labels(numbers)
    if all(issubclass(kind, (list, tuple, np.ndarray)) for kind in kinds):
        return Labels(_vectors(name, values, where))
    return Labels(_floats(name, values, where))


def numbers_in(texts: Sequence[str | None], name: str, where: Callable[[int], str]) -> list[Any]:
    """Convert the cells of a text column to ints if possible, otherwise to floats.

    None marks an empty cell. If no cell is a number, return all unchanged. Raise ValueError if only some are numbers.
    """
    given = [text for text in texts if text is not None]
    for pattern, number in ((_INTEGER, int), (_FLOAT, float)):
        if all(map(pattern.fullmatch, given)):
            return [text if text is None else number(text) for text in texts]
    odd = [row for row, text in enumerate(texts) if text is not None and not _FLOAT.fullmatch(text)]
    if len(odd) < len(given):
        refuse_rows(
            odd, f"no number in {name!r}, while other rows have one (pass classes= to treat all cells as names)", where
        )
    return list(texts)


def refuse_columns(names: list[Any], there: Sequence[Any], table: str) -> None:
    """Raise ValueError if one of the columns ``names`` is missing, or occurs twice."""
    for name in names:
        if list(there).count(name) > 1:
            raise ValueError(f"{table} has several columns named {name!r}")
        if name not in there:
            near = difflib.get_close_matches(str(name), list(map(str, there)), 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"{table} has no column {name!r}{meant}; it has {', '.join(map(repr, there)) or 'none'}")


def refuse_rows(rows: Sequence[int], what: str, where: Callable[[int], str]) -> None:
    """Raise ValueError if ``rows`` is not empty. ``what`` completes the message "N rows have ...", as in "no image"."""
    if rows:
        more = ", ..." if len(rows) > _SHOWN else ""
        raise ValueError(
            f"{len(rows)} {'rows have' if len(rows) > 1 else 'row has'} {what}: "
            f"{', '.join(map(where, rows[:_SHOWN]))}{more}"
        )


def _named(names: list[str], column: Any, where: Callable[[int], str], classes: Sequence[str] | None) -> Labels:
    there = set(names)
    whole = next((pair for pair in _BOOLEANS if there <= pair), there)  # "True" is 1 even if all are "True"
    number = _numbers_of(classes, sorted(whole))
    unknown = [row for row, name in enumerate(names) if name not in number]
    refuse_rows(unknown, f"a {column!r} that is not in classes", where)
    return Labels([number[name] for name in names], list(number))


def _numbers_of(classes: Sequence[str] | None, found: list[str]) -> dict[str, int]:
    """Return {class name: number} for ``classes``, or for the names ``found`` in the column if ``classes`` is None.

    Raise ValueError if ``classes`` is not an ordered list of distinct strings.
    """
    known = found if classes is None else list(classes)
    if isinstance(classes, (str, Mapping, Set)):
        raise ValueError(f"classes must be an ordered list of names, got a {type(classes).__name__}")
    for name, times in Counter(known).items():
        if times > 1 or not isinstance(name, str):
            what = f" {times} times" if times > 1 else f", but cells are text; write {str(name)!r}"
            raise ValueError(f"classes contains {name!r}{what}")
    return {name: at for at, name in enumerate(known)}


def several_labels(
    name: Hashable,
    cells: Sequence[Any],
    separator: str,
    where: Callable[[int], str],
    classes: Sequence[str] | None = None,
) -> Labels:
    """Return one float32 vector per cell, with 1 for each label of the cell and 0 for all others.

    Args:
        cells: text, or None for an empty cell without labels.
        separator: text between labels; surrounding spaces are ignored.
        where: returns the location of a row, for errors.
        classes: labels in the order of the vector's elements. The default is all labels, sorted.

    Raises:
        ValueError: a cell is not text, or has a label that is not in ``classes``.
    """
    odd = [row for row, cell in enumerate(cells) if not isinstance(cell, (str, type(None)))]
    refuse_rows(odd, f"no text in {name!r}, which separator= needs", where)
    labels = [_parts(cell or "", separator) for cell in cells]
    found = {label for row in labels for label in row}
    whole = all(map(_INTEGER.fullmatch, found))
    column = _numbers_of(classes, sorted(found, key=lambda label: (int(label) if whole else 0, label)))
    unknown = [row for row, there in enumerate(labels) if any(label not in column for label in there)]
    refuse_rows(unknown, f"a label in {name!r} that is not in classes", where)
    targets = torch.zeros(len(labels), len(column), device="cpu")
    rows = [row for row, there in enumerate(labels) for _ in there]
    targets[rows, [column[label] for there in labels for label in there]] = 1
    return Labels(targets, list(column))


def separator_in(names: Sequence[str]) -> str | None:
    """Return the likely separator of labels in the distinct cells of a column, or None if there is none."""
    for separator in " ,;|":
        cells = [_parts(name, separator) for name in names]
        labels = {label for cell in cells for label in cell}
        alone = {cell[0] for cell in cells if len(cell) == 1}
        # fewer distinct texts after splitting, and a label of a split cell that is also a whole cell
        if len(labels) < len(names) and any(len(cell) > 1 and alone.intersection(cell) for cell in cells):
            return separator
    return None


def _parts(cell: str, separator: str) -> list[str]:
    return [part for label in cell.split(separator) if (part := label.strip())]


def _floats(name: Any, values: Sequence[Any], where: Callable[[int], str]) -> torch.Tensor:
    odd = [row for row, value in enumerate(values) if not isinstance(value, _NUMBERS)]
    refuse_rows(odd, f"no number in {name!r}", where)
    return torch.tensor([float(value) for value in values], dtype=torch.float32, device="cpu")


def _vectors(name: Any, values: Sequence[Any], where: Callable[[int], str]) -> torch.Tensor:
    length = len(values[0])
    odd = [row for row, value in enumerate(values) if len(value) != length or not _is_numeric(value)]
    refuse_rows(odd, f"something other than {length} numbers in {name!r}", where)
    try:
        return torch.from_numpy(np.array(list(values), np.float32))
    except ValueError as error:
        raise ValueError(f"{name!r} holds arrays of different shapes: {error}") from None


def _is_numeric(value: Any) -> bool:
    with suppress(ValueError):  # raised if its rows differ in length
        return np.array(value.tolist() if isinstance(value, np.ndarray) else value).dtype.kind in "biuf"
    return False
