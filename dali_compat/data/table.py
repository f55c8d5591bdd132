"""Paths and targets of a data set in arrays, so that a batch is looked up without a Python loop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import is_, itemgetter
from pathlib import PosixPath
from typing import Any

import numpy as np
import torch

from .headers import IdentityWeakDict
from .readers import reader_of
from .sources import Upright, within

_PLAIN = frozenset((str, int, float, PosixPath))  # comparing these types runs none of the user's code
_DTYPES = {int: np.int64, float: np.float64}


class SampleTable:
    """Paths and targets of all samples of a data set. The targets are integers, floats, or rows of a tensor.

    Args:
        attributes, columns: results of the Reader's methods attributes() and columns().
        source_type: type of the paths, str or Upright.
        folder: relative paths are joined to it.

    Attributes:
        targets: (N,) int64 or float64, or the data set's tensor of N rows.
        keys: (N,) int64, hashes of the paths.

    Raises:
        TypeError, ValueError, OverflowError: the samples do not fit into a table.
    """

    def __init__(
        self,
        attributes: tuple[Any, ...],
        columns: tuple[Sequence[Any], Any],
        source_type: type[str] = str,
        folder: str = "",
    ):
        lists = [one for one in attributes if type(one) is list]
        if not lists or not all(isinstance(one, (list, tuple, str, torch.Tensor)) for one in attributes):
            raise TypeError("samples must be in lists")
        # copies, to detect later changes
        self._attributes = [list(one) if type(one) is list else one for one in attributes]
        self._source_type = source_type
        paths, self.targets = _texts(columns[0]), _numbers(columns[1])
        self._folder = "" if all(path[:1] == "/" for path in paths) else folder
        self._paths = paths = [within(folder, path) for path in paths] if self._folder else paths
        if len(self.targets) != len(paths) or any(len(entries) != len(paths) for entries in lists):
            raise ValueError("paths and targets differ in length")
        sources = paths if source_type is str else map(source_type, paths)
        self.keys = np.fromiter(map(hash, sources), np.int64, len(paths))
        joined = np.frombuffer(os.fsencode("\0".join(paths)) + b"\0", np.uint8)
        ends = np.flatnonzero(joined == 0)
        if len(ends) != len(paths):
            raise ValueError("a path has a zero byte")
        self._begins = np.concatenate([[0], ends[:-1] + 1])
        self._lengths = ends - self._begins
        longest = int(self._lengths.max())
        self._bytes = np.concatenate([joined, np.zeros(longest, np.uint8)])

    def __len__(self) -> int:
        return len(self._paths)

    def matches(self, attributes: tuple[Any, ...], source_type: type[str] = str, folder: str = "") -> bool:
        """Return True if the samples, the type of the paths and the folder are unchanged."""
        same_sources = self._folder in ("", folder) and source_type is self._source_type
        return same_sources and self._agrees(attributes, lambda entries: entries)

    def holds(self, attributes: tuple[Any, ...], index: np.ndarray) -> bool:
        """Return True if the data set still has the table's samples at ``index``, which is nonnegative."""
        chosen = index.tolist()
        # the last one is repeated, because itemgetter returns no tuple for a single index
        return self._agrees(attributes, itemgetter(*chosen, chosen[-1]))

    def _agrees(self, attributes: tuple[Any, ...], get: Callable[[list[Any]], Sequence[Any]]) -> bool:
        """Return True if the data set still has the table's samples. ``get`` takes a list and returns the entries to
        compare."""
        for before, now in zip(self._attributes, attributes, strict=True):
            if type(before) is not list:
                same = before is now or _are_equal((before,), (now,))
            else:
                same = type(now) is list and len(now) == len(self) and _are_equal(get(before), get(now))
            if not same:
                return False
        return True

    @cached_property
    def digest(self) -> str:
        """SHA-256 digest of all paths, in order."""
        return hashlib.sha256(self._bytes.data).hexdigest()

    def texts(self, index: np.ndarray) -> list[str]:
        """Return the paths of the samples at ``index``, as ``source_type``."""
        paths = [self._paths[i] for i in index.tolist()]
        return paths if self._source_type is str else list(map(self._source_type, paths))

    def paths(self, index: np.ndarray) -> np.ndarray:
        """Return the paths of the samples at ``index`` as uint8 of shape (n, L), padded with zeros."""
        lengths = self._lengths[index]
        width = int(lengths.max())
        windows = np.lib.stride_tricks.as_strided(self._bytes, (len(self._bytes) - width + 1, width), (1, 1))
        rows = windows[self._begins[index]]
        if width != lengths.min():
            rows[np.arange(width) >= lengths[:, None]] = 0
        return rows


def _texts(paths: Sequence[Any]) -> Sequence[str]:
    """Convert paths to str. Raise TypeError unless they are all str or all Paths."""
    kinds = set(map(type, paths))
    if kinds == {PosixPath}:
        return list(map(os.fsdecode, paths))
    if kinds != {str}:
        raise TypeError("paths must be all str, or all Path")
    return paths


def _numbers(targets: Any) -> Any:
    """Return ints or floats as an array, or a tensor unchanged. Raise TypeError or OverflowError for other targets."""
    if isinstance(targets, torch.Tensor) and targets.layout == torch.strided:
        return targets
    kinds = set(map(type, targets))
    if len(kinds) != 1 or (dtype := _DTYPES.get(kinds.pop())) is None:
        raise TypeError("targets must be all int, or all float")
    return np.array(targets, dtype)


def _are_equal(before: Sequence[Any], now: Sequence[Any]) -> bool:
    """Return True if all entries are equal in value and type. The comparison runs no user code."""
    if len(before) == len(now) and all(map(is_, before, now)):
        return True
    kinds = list(map(_kind, now))
    return list(map(_kind, before)) == kinds and _are_plain(kinds) and before == now


def _kind(value: Any) -> Any:
    """Return the type of a value, or the types of the items of a tuple."""
    return tuple(map(_kind, value)) if type(value) is tuple else type(value)


def _are_plain(kinds: Sequence[Any]) -> bool:
    return all(_are_plain(kind) if type(kind) is tuple else kind in _PLAIN for kind in set(kinds))


_tables: IdentityWeakDict[SampleTable] = IdentityWeakDict()


def table_of(dataset: Any, folder: str = "", upright: bool = False) -> SampleTable | None:
    """Return the SampleTable of a data set, built again if its samples have changed.

    Return None if the samples do not fit into a table. Relative paths are joined to ``folder``. If ``upright`` is True,
    the paths are Upright.
    """
    reader = reader_of(dataset)
    if reader is None or getattr(dataset, "_objects", None) is not None:
        return None
    try:
        source_type = Upright if upright else reader.source_type(dataset)
        attributes, rest = reader.attributes(dataset), (source_type, folder)
        table = _tables.get(dataset, lambda: SampleTable(attributes, reader.columns(dataset), *rest))
        if not table.matches(attributes, *rest):
            table = _tables.put(dataset, SampleTable(attributes, reader.columns(dataset), *rest))
    except (TypeError, ValueError, OverflowError, AttributeError, IndexError, KeyError):
        return None
    return table
