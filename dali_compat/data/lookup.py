"""Look up the sources and targets of a batch."""

from __future__ import annotations

import hashlib
import operator
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import PosixPath
from typing import Any

import numpy as np
import torch
import torch.utils.data as data

from .base_datasets import Images, is_store, locate, locate_all, objects_of, sample
from .headers import Headers, headers_of
from .readers import reader_of, transforms_of
from .sources import BYTES, PATHS, Record, Source, Upright, is_object, is_record, within

PLAIN = list, tuple, range, np.ndarray, torch.Tensor
"""Sequence types whose methods run no user code."""

_PLAIN_VALUES = frozenset((str, PosixPath, int, float, type(None)))


@dataclass(eq=False)
class LeafRows:
    """Samples of a batch from one innermost data set. ``rows`` are their positions in the batch."""

    leaf: Images  # the innermost data set
    rows: np.ndarray  # (n,) int64, ascending
    index: np.ndarray  # (n,) int64, nonnegative indices of the samples in the leaf
    keys: np.ndarray  # (n,) int64, hashes of the samples' sources

    @property
    def headers(self) -> Headers:
        return headers_of(self.leaf)

    @property
    def input(self) -> str:
        """PATHS if DALI reads the files, or BYTES if DALI gets the encoded images."""
        return BYTES if is_store(self.leaf) or objects_of(self.leaf) is not None else PATHS

    def but(self, left_out: Any) -> LeafRows:
        """Return a LeafRows without the rows in ``left_out``."""
        return self._only(~np.isin(self.rows, list(left_out)))

    def unknown(self) -> LeafRows:
        """Return a LeafRows with only those rows whose headers are unread."""
        return self._only(self.headers.unknown(self.index, self.keys))

    def _only(self, rows: np.ndarray) -> LeafRows:
        return LeafRows(self.leaf, self.rows[rows], self.index[rows], self.keys[rows])


@dataclass(eq=False)
class Samples:
    """Samples of a batch."""

    locations: list[tuple[Images, int]]  # innermost data set, and index in it, which may be negative
    sources: list[Source]
    targets: Any  # before target_transform; a list, or a tensor of N rows

    def only(self, rows: list[int]) -> Samples:
        locations, sources = [self.locations[row] for row in rows], [self.sources[row] for row in rows]
        return Samples(locations, sources, [self.targets[row] for row in rows])

    @property
    def leaves(self) -> list[Images]:
        """The distinct innermost data sets of the samples."""
        return list({id(leaf): leaf for leaf, _ in self.locations}.values())


def look_up(
    dataset: data.Dataset,
    indices: Sequence[Any],
    folder: str = "",
    is_upright: Callable[[Images], bool] = lambda leaf: False,
) -> tuple[Samples, list[LeafRows]]:
    """Return the samples of a batch, and their rows in each innermost data set.

    Relative paths are joined to ``folder``. ``is_upright`` takes an innermost data set, and returns whether decoding
    rotates its images by their EXIF orientation. An invalid index raises the same error as ``dataset[index]``.
    """
    try:
        return _look_up_in_lists(dataset, indices, folder, is_upright)
    except Exception:  # not in lists, or invalid
        return _look_up_one_by_one(dataset, indices, folder, is_upright)


def are_current(
    samples: Samples,
    dataset: data.Dataset,
    indices: Sequence[Any],
    folder: str,
    is_upright: Callable[[Images], bool],
) -> bool:
    """Return False if the user has changed paths or targets in the data set's lists since look_up() returned
    ``samples``."""
    try:
        now, _ = _look_up_in_lists(dataset, indices, folder, is_upright)
    except Exception:  # not in lists
        return True
    a, b = now.targets, samples.targets
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):  # bytes, because NaN differs from itself
        same = a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    else:
        same = all(map(operator.is_, a, b))
    return same and now.sources == samples.sources


def _look_up_in_lists(
    dataset: data.Dataset, indices: Sequence[Any], folder: str, is_upright: Callable[[Images], bool]
) -> tuple[Samples, list[LeafRows]]:
    """Look up samples of files without a Python call per sample. Raise an error if this is not possible."""
    if _has_bools(indices):  # an array of bools would be a mask
        raise TypeError("bools are looked up one by one")
    index = np.array(array("q", indices), np.int64)
    found, columns = [], []
    for leaf, rows, inner in locate_all(dataset, index):
        local = inner.tolist()
        paths, targets = _files_at(leaf, local, folder)
        upright = is_upright(leaf) or reader_of(leaf).source_type(leaf) is Upright  # type: ignore[union-attr]  # it has a reader
        sources: list[Any] = list(map(Upright, paths)) if upright else paths
        # hash() of these tuples equals Upright.__hash__(), but is faster
        hashed: Any = zip(repeat(Upright), paths) if upright else paths
        keys = np.fromiter(map(hash, hashed), np.int64, len(sources))
        rows = np.arange(len(index)) if rows is None else rows
        found.append(LeafRows(leaf, rows, _nonnegative(inner, leaf), keys))
        columns.append(([(leaf, i) for i in local], sources, targets))
    if len(columns) == 1:
        return Samples(*columns[0]), found
    order = np.argsort(np.concatenate([one.rows for one in found])).tolist()
    return Samples(*(_in_order(parts, order) for parts in zip(*columns, strict=True))), found


def _in_order(parts: Iterable[Iterable[Any]], order: list[int]) -> list[Any]:
    values = list(chain.from_iterable(parts))
    return [values[i] for i in order]


def _look_up_one_by_one(
    dataset: data.Dataset, indices: Sequence[Any], folder: str, is_upright: Callable[[Images], bool]
) -> tuple[Samples, list[LeafRows]]:
    locations = [locate(dataset, index) for index in indices]
    pairs = [sample(leaf, local, is_upright(leaf)) for leaf, local in locations]
    sources = [source if is_record(source) else within(folder, source) for source, _ in pairs]
    rows_of: dict[int, list[int]] = {}
    for row, (leaf, _) in enumerate(locations):
        rows_of.setdefault(id(leaf), []).append(row)
    found = []
    for rows in rows_of.values():
        leaf = locations[rows[0]][0]
        index = _nonnegative(np.array([locations[row][1] for row in rows], np.int64), leaf)
        keys = np.fromiter((hash(sources[row]) for row in rows), np.int64, len(rows))
        found.append(LeafRows(leaf, np.array(rows), index, keys))
    return Samples(locations, sources, [target for _, target in pairs]), found


def paths_digest(leaf: Any, folder: str) -> str:
    """Return a SHA-256 digest of the paths of all samples, in order. Raise TypeError or ValueError unless
    the data set keeps paths of files in a list."""
    paths, _ = _files_at(leaf, range(len(leaf.samples)), folder)
    return hashlib.sha256(os.fsencode("\0".join(paths))).hexdigest()


def _files_at(leaf: Images, indices: Iterable[int], folder: str) -> tuple[list[str], Any]:
    """Return (paths, targets) of samples of an innermost data set. The targets may be a tensor. Raise TypeError
    unless the data set keeps paths of files in a list."""
    reader = reader_of(leaf)
    if reader is None or objects_of(leaf) is not None:
        raise TypeError("the data set has no local files")
    paths, targets = reader.at(leaf, indices)
    kinds = set(map(type, paths))
    if kinds != {str}:
        if not kinds <= {str, PosixPath}:
            raise TypeError("paths must be str or Path")
        paths = list(map(os.fsdecode, paths))
    return [path if path[:1] == "/" else folder + path for path in paths], targets


def _nonnegative(index: np.ndarray, leaf: Images) -> np.ndarray:
    return np.where(index < 0, index % len(leaf), index) if index.min() < 0 else index


def _has_bools(indices: Sequence[Any]) -> bool:
    kinds = set(map(type, indices))
    tensors = torch.Tensor in kinds
    return not kinds.isdisjoint((bool, np.bool_)) or (
        tensors and any(getattr(index, "dtype", None) is torch.bool for index in indices)
    )


def objects_at(dataset: data.Dataset, indices: Sequence[Any], plain: Collection[int]) -> list[Record]:
    """Return the Records of the samples in object storage, to request them ahead of the batch.

    Return [] if the look-up would run user code, or fails. ``plain`` is as in is_plain().
    """
    try:
        if not is_plain(dataset, plain, targets=False):
            return []
        sources = [sample(*locate(dataset, index))[0] for index in indices]
    except Exception:
        return []
    return [source for source in sources if is_object(source)]


def is_plain(dataset: data.Dataset, plain: Collection[int], targets: bool = True) -> bool:
    """Return True if looking up samples runs no user code, such as methods of a custom sequence.

    ``plain`` contains the id() of each innermost data set for which has_plain_samples() is True. A target_transform
    counts as user code unless ``targets`` is False.
    """
    if type(dataset) is data.Subset:
        return type(dataset.indices) in PLAIN and is_plain(dataset.dataset, plain, targets)
    if type(dataset) is data.ConcatDataset:
        return all(is_plain(inner, plain, targets) for inner in dataset.datasets)
    if id(dataset) not in plain or (targets and transforms_of(dataset)[1] is not None):
        return False
    reader = reader_of(dataset)
    return reader is None or all(type(one) in PLAIN for one in reader.attributes(dataset))


def has_plain_samples(leaf: Any) -> bool:
    """Return True if reading paths and targets from an innermost data set runs no user code. Takes about 120 ms for a
    million samples."""
    reader = reader_of(leaf)
    if reader is None or objects_of(leaf) is not None:
        return reader is not None or is_store(leaf)
    return all(map(_has_plain_values, reader.attributes(leaf)))


def _has_plain_values(values: Any) -> bool:
    if type(values) is torch.Tensor:
        return True
    if type(values) not in (list, tuple):
        return False
    kinds = set(map(type, values))
    return kinds <= _PLAIN_VALUES or (kinds == {tuple} and set(map(type, chain.from_iterable(values))) <= _PLAIN_VALUES)
