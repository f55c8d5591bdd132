"""Targets of the columns of a table: ints, floats, vectors, or numbers of class names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .image_list import NO_TARGET

_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_FLOAT = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_SHOWN = 5  # rows that an error names


class Labels(NamedTuple):
    """What columns say.

    Attributes:
        targets: a list of ints, or a float32 tensor with a row a sample.
        classes: names, of which the targets are the numbers; None where there are none.
    """

    targets: Any
    classes: list[str] | None = None


def labels_of(
    columns: Mapping[str, Sequence[Any]],
    single: bool,
    count: int,
    where: Callable[[int], str],
    classes: Sequence[str] | None = None,
) -> Labels:
    """The targets of ``count`` rows.

    Args:
        columns: values by the names of the columns, None where a cell is empty.
        single: there is one column, and no vector is wanted.
        where: says where a row is, for an error.
        classes: names in the order of their numbers.

    Raises:
        ValueError: a cell is empty, or holds what is no target; or there is no such class.
    """
    if not columns:
        return Labels([NO_TARGET] * count)
    for name, values in columns.items():
        refuse_rows([row for row, value in enumerate(values) if value is None], f"an empty {name!r}", where)
    if not single:
        return Labels(torch.stack([_floats(name, values, where) for name, values in columns.items()], dim=1))
    ((name, values),) = columns.items()
    kinds = set(map(type, values))
    if classes is not None or kinds == {str}:
        return _named([str(value) for value in values], name, where, classes)
    if all(issubclass(kind, (bool, np.bool_, int, np.integer)) for kind in kinds):
        return Labels([int(value) for value in values])
    if all(issubclass(kind, (list, tuple, np.ndarray)) for kind in kinds):
        return Labels(_vectors(name, values, where))
    return Labels(_floats(name, values, where))


def numbers_in(texts: Sequence[str | None], name: str, where: Callable[[int], str]) -> list[Any]:
    """The numbers that text cells are: ints where all are, floats where all are numbers, else the text. None stays.

    Raises:
        ValueError: some are numbers, others not.
    """
    given = [text for text in texts if text is not None]
    for pattern, number in ((_WHOLE, int), (_FLOAT, float)):
        if all(map(pattern.fullmatch, given)):
            return [text if text is None else number(text) for text in texts]
    odd = [row for row, text in enumerate(texts) if text is not None and not _FLOAT.fullmatch(text)]
    if len(odd) < len(given):
        refuse_rows(odd, f"no number in {name!r}, others have one (classes= takes all as names)", where)
    return list(texts)


def refuse_rows(rows: Sequence[int], what: str, where: Callable[[int], str]) -> None:
    """
    Raises:
        ValueError: there are some.
    """
    if rows:
        more = ", ..." if len(rows) > _SHOWN else ""
        raise ValueError(
            f"{len(rows)} row{'s' if len(rows) > 1 else ''} with {what}: {', '.join(map(where, rows[:_SHOWN]))}{more}"
        )


def _named(names: list[str], column: str, where: Callable[[int], str], classes: Sequence[str] | None) -> Labels:
    known = sorted(set(names)) if classes is None else list(classes)
    number = {name: at for at, name in enumerate(known)}
    refuse_rows([row for row, name in enumerate(names) if name not in number], f"a {column!r} not in classes", where)
    return Labels([number[name] for name in names], known)


def _floats(name: str, values: Sequence[Any], where: Callable[[int], str]) -> torch.Tensor:
    numbers = (bool, np.bool_, int, float, np.integer, np.floating)
    refuse_rows(
        [row for row, value in enumerate(values) if not isinstance(value, numbers)], f"no number in {name!r}", where
    )
    return torch.tensor([float(value) for value in values], dtype=torch.float32, device="cpu")


def _vectors(name: str, values: Sequence[Any], where: Callable[[int], str]) -> torch.Tensor:
    length = len(values[0])
    refuse_rows(
        [row for row, value in enumerate(values) if len(value) != length], f"not {length} numbers in {name!r}", where
    )
    try:
        return torch.from_numpy(np.array(list(values), np.float32))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name!r} holds vectors of other things than numbers: {error}") from None
