"""Look up the sources and targets of a batch, in SampleTables if possible, otherwise one by one."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import torch
import torch.utils.data as data

from .base_datasets import Images, is_store, locate, locate_all, nonnegative, objects_of, sample
from .headers import Headers, headers_of
from .readers import reader_of, transforms_of
from .sources import BYTES, PATHS, Record, Source, is_object, is_record, within
from .table import SampleTable
from .timm import as_leaf

PLAIN = list, tuple, range, np.ndarray, torch.Tensor
"""Sequence types whose methods run no user code."""


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
        """PATHS if DALI reads the files, or BYTES if the encoded images are passed to DALI."""
        return BYTES if is_store(self.leaf) or objects_of(self.leaf) is not None else PATHS

    def but(self, left_out: Any) -> LeafRows:
        """Return a LeafRows without the rows in ``left_out``."""
        return self._only(~np.isin(self.rows, list(left_out)))

    def unknown(self) -> LeafRows:
        """Return a LeafRows with only the rows whose headers have to be read."""
        return self._only(self.headers.unknown(self.index, self.keys))

    def _only(self, rows: np.ndarray) -> LeafRows:
        return LeafRows(self.leaf, self.rows[rows], self.index[rows], self.keys[rows])


@dataclass(eq=False)
class IndexedSamples:
    """Samples of a batch that were looked up one by one."""

    locations: list[tuple[Images, int]]  # innermost data set, and index in it
    sources: list[Source]
    targets: list[Any]  # before target_transform

    def only(self, rows: list[int]) -> IndexedSamples:
        locations, sources = [self.locations[row] for row in rows], [self.sources[row] for row in rows]
        return IndexedSamples(locations, sources, [self.targets[row] for row in rows])

    @property
    def leaves(self) -> list[Images]:
        """The distinct innermost data sets of the samples."""
        return list({id(leaf): leaf for leaf, _ in self.locations}.values())

    @property
    def locals(self) -> list[int]:
        """The index of each sample in its innermost data set. It may be negative."""
        return [local for _, local in self.locations]

    def leaf_rows(self) -> list[LeafRows]:
        """Return the samples, grouped by innermost data set."""
        rows_of: dict[int, list[int]] = {}
        for row, (leaf, _) in enumerate(self.locations):
            rows_of.setdefault(id(leaf), []).append(row)
        groups = []
        for rows in rows_of.values():
            leaf = self.locations[rows[0]][0]
            index = np.array([self.locations[row][1] % len(leaf) for row in rows], np.int64)
            keys = np.fromiter((hash(self.sources[row]) for row in rows), np.int64, len(rows))
            groups.append(LeafRows(leaf, np.array(rows), index, keys))
        return groups

    def paths(self, rows: np.ndarray) -> list[Any]:
        return [self.sources[row] for row in rows.tolist()]


class TableSamples:
    """Samples of a batch that were looked up in SampleTables, without a Python call per sample.

    The attributes and methods are those of IndexedSamples, except only().

    Attributes:
        targets: an array or tensor of N rows. A list if there are several tables, unless their targets are arrays of
            the same dtype.
    """

    def __init__(self, found: list[tuple[LeafRows, SampleTable]], local: list[np.ndarray], count: int):
        self._found, self._local, self._count = found, local, count
        self.targets: Any = self._gathered([table.targets[one.index] for one, table in found])

    def _gathered(self, values: list[Any]) -> Any:
        if len(values) == 1:
            return values[0]
        first = values[0]
        alike = len({(type(some), some.dtype) for some in values}) == 1
        if alike and isinstance(first, np.ndarray):
            made = np.empty(self._count, first.dtype)
            for (one, _), some in zip(self._found, values, strict=True):
                made[one.rows] = some
            return made
        return self._by_row(map(as_list, values))

    def _by_row(self, columns: Iterable[Iterable[Any]]) -> list[Any]:
        """Merge columns, one per innermost data set, into a list with one value per row of the batch."""
        made: list[Any] = [None] * self._count
        for (one, _), column in zip(self._found, columns, strict=True):
            for row, value in zip(one.rows.tolist(), column, strict=True):
                made[row] = value
        return made

    @property
    def leaves(self) -> list[Images]:
        return [one.leaf for one, _ in self._found]

    @property
    def locals(self) -> np.ndarray:
        return self._gathered(self._local)

    def leaf_rows(self) -> list[LeafRows]:
        return [one for one, _ in self._found]

    @cached_property
    def locations(self) -> list[tuple[Images, int]]:
        of_leaves = zip(self.leaves, self._local, strict=True)
        return self._by_row(zip(repeat(leaf, len(local)), local.tolist(), strict=True) for leaf, local in of_leaves)

    @cached_property
    def sources(self) -> list[str]:
        return self._by_row(table.texts(one.index) for one, table in self._found)

    def paths(self, rows: np.ndarray) -> Any:
        """Return the paths of n rows: uint8 of shape (n, L), or a list if the batch has several innermost data sets."""
        if len(self._found) > 1:
            return [self.sources[row] for row in rows.tolist()]
        one, table = self._found[0]
        return table.paths(one.index if len(rows) == self._count else one.index[rows])


def as_list(values: Any) -> Sequence[Any]:
    """Convert targets to a sequence of the values that ``dataset[i]`` returns."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def look_up(
    dataset: data.Dataset,
    indices: Sequence[Any],
    folder: str = "",
    is_upright: Callable[[Images], bool] = lambda leaf: False,
) -> IndexedSamples:
    """Look up the samples of a batch one by one. Relative paths are joined to ``folder``.

    ``is_upright`` returns whether decoding rotates the images of an innermost data set by their EXIF orientation. An
    invalid index raises the same error as ``dataset[index]``.
    """
    locations = [locate(dataset, index) for index in indices]
    pairs = [sample(leaf, local, is_upright(leaf)) for leaf, local in locations]
    sources = [source if is_record(source) else within(folder, source) for source, _ in pairs]
    return IndexedSamples(locations, sources, [target for _, target in pairs])


def objects_at(dataset: data.Dataset, indices: Sequence[Any], tables: dict[int, SampleTable]) -> list[Record]:
    """Return the Records of the samples in object storage, so that the caller can request them ahead of the batch.

    Return [] if looking up the samples would run user code, or raises an error.
    """
    try:
        if not is_plain(dataset, tables, targets=False):
            return []
        sources = [sample(*locate(dataset, index))[0] for index in indices]
    except Exception:
        return []
    return [source for source in sources if is_object(source)]


def is_plain(dataset: data.Dataset, tables: dict[int, SampleTable], targets: bool = True) -> bool:
    """Return True if looking up samples runs no user code, such as methods of a custom sequence.

    A target_transform counts as user code, unless ``targets`` is False.
    """
    if type(dataset) is data.Subset:
        return type(dataset.indices) in PLAIN and is_plain(dataset.dataset, tables, targets)
    if type(dataset) is data.ConcatDataset:
        return all(is_plain(inner, tables, targets) for inner in dataset.datasets)
    reader = reader_of(dataset) or reader_of(dataset := as_leaf(dataset))
    if (reader is None and not is_store(dataset)) or (targets and transforms_of(dataset)[1] is not None):
        return False
    if reader is None:
        return True
    return (id(dataset) in tables or objects_of(dataset) is not None) and all(
        type(one) in (*PLAIN, str) for one in reader.attributes(dataset)
    )


def in_tables(dataset: data.Dataset, indices: Sequence[Any], tables: dict[int, SampleTable]) -> TableSamples | None:
    """Return the samples of a batch from ``tables``, or None if look_up() is needed.

    look_up() is needed if a table is missing or outdated, or if an index is invalid or a bool. ``tables`` is keyed by
    the id() of the innermost data set.
    """
    try:
        if _has_bools(indices):  # an array of bools would be a mask
            return None
        index = np.array(array("q", indices), np.int64)
        found: list[tuple[LeafRows, SampleTable]] = []
        local = []
        for leaf, rows, inner in locate_all(dataset, index):
            table, reader = tables[id(leaf)], reader_of(leaf)
            at = nonnegative(inner, len(table))
            if reader is None or not table.holds(reader.attributes(leaf), at):
                return None
            rows = np.arange(len(index)) if rows is None else rows
            found.append((LeafRows(leaf, rows, at, table.keys[at]), table))
            local.append(inner)
    except Exception:  # look_up() then raises the error as torch does
        return None
    return TableSamples(found, local, len(index)) if found and len(index) else None


def _has_bools(indices: Sequence[Any]) -> bool:
    kinds = set(map(type, indices))
    tensors = torch.Tensor in kinds
    return not kinds.isdisjoint((bool, np.bool_)) or (
        tensors and any(getattr(index, "dtype", None) is torch.bool for index in indices)
    )
