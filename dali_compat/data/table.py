"""The samples of an image folder in arrays: a batch finds its files and targets without a loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import is_, itemgetter
from typing import Any

import numpy as np
from torchvision.datasets import DatasetFolder

from .per_object import PerObject


class SampleTable:
    """Of a list of (path, class index).

    benchmarks/host_time.py --table measures what it takes.

    Attributes:
        targets: (N,) int64.
        keys: (N,) int64, hashes of the paths.

    Raises:
        TypeError, ValueError, OverflowError: it is another list.
    """

    def __init__(self, samples: list[tuple[str, int]]):
        if type(samples) is not list:
            raise TypeError("no list")
        self._samples = list(samples)  # which tells what has changed since
        paths, targets = _columns(self._samples)
        self.targets = np.array(targets, np.int64)
        self.keys = np.fromiter(map(hash, paths), np.int64, len(paths))
        joined = np.frombuffer(os.fsencode("\0".join(paths)) + b"\0", np.uint8)
        ends = np.flatnonzero(joined == 0)
        if len(ends) != len(paths):
            raise ValueError("a path has a zero byte")
        self._begins = np.concatenate([[0], ends[:-1] + 1])
        self._lengths = ends - self._begins
        longest = int(self._lengths.max())
        self._bytes = np.concatenate([joined, np.zeros(longest, np.uint8)])

    def __len__(self) -> int:
        return len(self._samples)

    def is_of(self, samples: Any) -> bool:
        """Whether all samples are still the same."""
        return type(samples) is list and len(samples) == len(self._samples) and _are(self._samples, samples)

    def holds(self, samples: Any, index: np.ndarray) -> bool:
        """Whether those at ``index`` (0 and up) are."""
        if type(samples) is not list or len(samples) != len(self._samples):
            return False
        chosen = index.tolist()
        get = itemgetter(*chosen, chosen[-1])  # of one index it would give no tuple
        return _are(get(self._samples), get(samples))

    def path(self, index: int) -> str:
        """Of a sample."""
        return self._samples[index][0]

    def paths(self, index: np.ndarray) -> np.ndarray:
        """(n, L) uint8, one path a row with zeros behind it."""
        lengths = self._lengths[index]
        width = int(lengths.max())
        windows = np.lib.stride_tricks.as_strided(self._bytes, (len(self._bytes) - width + 1, width), (1, 1))
        rows = windows[self._begins[index]]
        if width != lengths.min():
            rows[np.arange(width) >= lengths[:, None]] = 0
        return rows


def _columns(samples: Sequence[Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Paths and targets.

    Raises:
        TypeError: they are something else.
    """
    if set(map(type, samples)) != {tuple} or set(map(len, samples)) != {2}:
        raise TypeError("no pairs")
    paths, targets = (tuple(map(itemgetter(column), samples)) for column in (0, 1))  # zip() makes an iterator of each
    if set(map(type, paths)) != {str} or set(map(type, targets)) != {int}:
        raise TypeError("no pairs of a path and a whole number")
    return paths, targets


def _are(before: Sequence[Any], now: Sequence[Any]) -> bool:
    """Whether as many samples are still the same, in value and type. Nothing of the user's is called to compare."""
    if all(map(is_, before, now)):
        return True
    try:
        _columns(now)
    except TypeError:
        return False
    return before == now


_of_dataset: PerObject[SampleTable] = PerObject()


def table_of(dataset: Any) -> SampleTable | None:
    """The table of an image folder's samples as they are now; None where its list is of another kind."""
    if not isinstance(dataset, DatasetFolder):
        return None
    try:
        table = _of_dataset.get(dataset, lambda: SampleTable(dataset.samples))
        if not table.is_of(dataset.samples):
            table = SampleTable(dataset.samples)
            _of_dataset.put(dataset, table)
    except (TypeError, ValueError, OverflowError):
        return None
    return table
