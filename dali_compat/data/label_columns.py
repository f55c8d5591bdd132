"""Targets of the columns of a table: ints, floats, vectors, numbers of class names, or several labels in a cell."""

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

_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_FLOAT = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_NUMBERS = (bool, np.bool_, int, float, np.integer, np.floating)
_BOOLEANS = ({"False", "True"}, {"false", "true"}, {"FALSE", "TRUE"})
NO_TARGET = -1  # as torchvision's STL10 has it for images without a label
_SHOWN = 5  # rows that an error names


class Labels(NamedTuple):
    """Targets read from columns."""

    targets: Any  # a list of ints, or a float32 tensor with a row a sample
    classes: list[str] | None = None  # names, of which the targets are the numbers; None where there are none


def labels_of(
    columns: Sequence[tuple[Hashable, Sequence[Any]]],
    single: bool,
    count: int,
    where: Callable[[int], str],
    classes: Sequence[str] | None = None,
) -> Labels:
    """The targets of ``count`` rows.

    Args:
        columns: the name and the values of each, None where a cell is empty.
        single: there is one column, and no vector is wanted.
        where: says where a row is, for an error.
        classes: names in the order of their numbers.

    Raises:
        ValueError: a cell is empty, or holds what is no target; or there is no such class.
    """
    if not columns:
        return Labels([NO_TARGET] * count)
    for name, values in columns:
        if empty := [row for row, value in enumerate(values) if value is None]:
            between = separator_in(sorted({value for value in values if isinstance(value, str)})) if single else None
            hint = f" (separator={between!r} reads several labels from a cell, or none)" if between else ""
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
        refuse_rows(beyond, f"a number in {name!r} that no int64 holds", where)
        return Labels(numbers)
    if all(issubclass(kind, (list, tuple, np.ndarray)) for kind in kinds):
        return Labels(_vectors(name, values, where))
    return Labels(_floats(name, values, where))


def numbers_in(texts: Sequence[str | None], name: str, where: Callable[[int], str]) -> list[Any]:
    """Returns the numbers that text cells are: ints where all are, floats where all are numbers, else the text. None
    stays. Raises ValueError if some are numbers, others not."""
    given = [text for text in texts if text is not None]
    for pattern, number in ((_WHOLE, int), (_FLOAT, float)):
        if all(map(pattern.fullmatch, given)):
            return [text if text is None else number(text) for text in texts]
    odd = [row for row, text in enumerate(texts) if text is not None and not _FLOAT.fullmatch(text)]
    if len(odd) < len(given):
        refuse_rows(odd, f"no number in {name!r}, others have one (classes= takes all as names)", where)
    return list(texts)


def refuse_columns(names: list[Any], there: Sequence[Any], table: str) -> None:
    """Raises ValueError if a column is missing, or there twice."""
    for name in names:
        if list(there).count(name) > 1:
            raise ValueError(f"{table} has several columns {name!r}")
        if name not in there:
            near = difflib.get_close_matches(str(name), list(map(str, there)), 1)
            meant = f" (is it {near[0]!r}?)" if near else ""
            raise ValueError(f"{table} has no column {name!r}{meant}; it has {', '.join(map(repr, there)) or 'none'}")


def refuse_rows(rows: Sequence[int], what: str, where: Callable[[int], str]) -> None:
    """Raises ValueError if there are such rows."""
    if rows:
        more = ", ..." if len(rows) > _SHOWN else ""
        raise ValueError(
            f"{len(rows)} row{'s' if len(rows) > 1 else ''} with {what}: {', '.join(map(where, rows[:_SHOWN]))}{more}"
        )


def _named(names: list[str], column: Any, where: Callable[[int], str], classes: Sequence[str] | None) -> Labels:
    there = set(names)
    whole = next((pair for pair in _BOOLEANS if there <= pair), there)  # "True" is 1, too, where all are
    number = _numbers_of(classes, sorted(whole))
    refuse_rows([row for row, name in enumerate(names) if name not in number], f"a {column!r} not in classes", where)
    return Labels([number[name] for name in names], list(number))


def _numbers_of(classes: Sequence[str] | None, found: list[str]) -> dict[str, int]:
    """Returns the number of each class, of those found if the user names none. Raises ValueError unless they are a list
    of different names."""
    known = found if classes is None else list(classes)
    if isinstance(classes, (str, Mapping, Set)):
        raise ValueError(f"classes must be a list, in the order of the numbers; got a {type(classes).__name__}")
    for name, times in Counter(known).items():
        if times > 1 or not isinstance(name, str):
            what = f" {times} times" if times > 1 else f", and cells are text: write {str(name)!r}"
            raise ValueError(f"classes has {name!r}{what}")
    return {name: at for at, name in enumerate(known)}


def several_labels(
    name: Hashable,
    cells: Sequence[Any],
    separator: str,
    where: Callable[[int], str],
    classes: Sequence[str] | None = None,
) -> Labels:
    """Returns a float32 row a cell: 1 for each of its labels, 0 for all others. An empty cell has none.

    Args:
        name: the column's.
        cells: text; None where it is empty.
        separator: between labels; spaces around them do not count.
        where: says where a row is, for an error.
        classes: names in the order of the columns. None: those found, sorted; whole numbers by their value.

    Raises:
        ValueError: a cell is no text, or has a label that is no class.
    """
    odd = [row for row, cell in enumerate(cells) if not isinstance(cell, (str, type(None)))]
    refuse_rows(odd, f"no text in {name!r}, which separator= needs", where)
    labels = [_parts(cell or "", separator) for cell in cells]
    found = {label for row in labels for label in row}
    whole = all(map(_WHOLE.fullmatch, found))
    column = _numbers_of(classes, sorted(found, key=lambda label: (int(label) if whole else 0, label)))
    unknown = [row for row, there in enumerate(labels) if any(label not in column for label in there)]
    refuse_rows(unknown, f"a label in {name!r} that is not in classes", where)
    targets = torch.zeros(len(labels), len(column), device="cpu")
    rows = [row for row, there in enumerate(labels) for _ in there]
    targets[rows, [column[label] for there in labels for label in there]] = 1
    return Labels(targets, list(column))


def separator_in(names: Sequence[str]) -> str | None:
    """Returns what seems to separate labels in the different cells of a column: together they have fewer labels than
    cells, and some of these stand alone, too."""
    for separator in " ,;|":
        cells = [_parts(name, separator) for name in names]
        labels = {label for cell in cells for label in cell}
        alone = {cell[0] for cell in cells if len(cell) == 1}
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
    refuse_rows(odd, f"not {length} numbers in {name!r}", where)
    try:
        return torch.from_numpy(np.array(list(values), np.float32))
    except ValueError as error:
        raise ValueError(f"{name!r} holds arrays of several shapes: {error}") from None


def _is_numeric(value: Any) -> bool:
    with suppress(ValueError):  # its rows have several lengths
        return np.array(value.tolist() if isinstance(value, np.ndarray) else value).dtype.kind in "biuf"
    return False
