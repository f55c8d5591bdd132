"""Interface between decoders and the rows (images) of a batch, and its implementation for traced batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..data.headers import Headers
from ..data.sources import Info, Record, Source
from ..errors import ImageReadError, read_error
from ..ops.draws import Arrays, Computed, ImageTooSmall, compute
from ..ops.kernels import rows_of
from ..plan import Step
from ..runtime.decorators import named
from ..tracing.columns import JobGroup
from ..tracing.sources import FileTable
from .epoch import DaliEpoch


class DecodableRows:
    """Base class for the rows (images) of a batch. Decoders use only the attributes and methods declared here."""

    epoch: DaliEpoch
    begin = 0  # number of samples of the epoch before the batch
    facts: np.ndarray  # (N,) FACTS, properties of each row's file
    verdicts: np.ndarray  # (N,) uint64, verdicts of the JPEG engine (data/verdicts.py)

    @property
    def sources(self) -> Sequence[Source]:
        raise NotImplementedError

    def paths(self, rows: np.ndarray) -> Any:
        """Return the paths of these rows' files, as a list or as zero-padded uint8 of shape (len(rows), L)."""
        raise NotImplementedError

    def infos(self, rows: Sequence[int]) -> list[Info]:
        """Return the ``info`` dictionaries that PIL reads from these rows' files."""
        sources = self.sources
        return [Info(sources[row]) for row in rows]

    def name(self, row: int) -> str:
        return str(self.sources[row])

    def unreadable(self, row: int, error: Exception) -> ImageReadError:
        """Return an ImageReadError that names the row's file."""
        made = read_error(f"cannot decode {self.name(row)}: {type(error).__name__}: {error}", error)
        made.__cause__ = error
        return made

    def fail_rows(self, failures: dict[int, Exception]) -> None:
        """Raise the error of the first failed row. A subclass may record the errors instead."""
        if failures:
            raise failures.pop(min(failures))

    def set_intact(self, rows: list[int]) -> None:
        """Record that DALI and PIL decode these rows' files to the same pixels."""

    def forget(self, rows: list[int]) -> None:
        """Drop the cached headers of these rows, because their files have changed."""

    def use_pil(self, row: int) -> None:
        """Record that PIL must decode the row's file."""
        raise NotImplementedError

    def verdict_writer(self, rows: list[int]) -> Callable[[np.ndarray], None]:
        """Return a thread-safe function that stores the results of comparing the JPEG engine's pixels for these rows'
        files."""
        raise NotImplementedError

    def numbers(self, begin: int, count: int) -> Any:
        """Return the random numbers of ``count`` rows from row ``begin`` on, as ops.draws.compute() expects them."""
        raise NotImplementedError

    @named("draw")
    def compute(
        self,
        steps: tuple[Step, ...],
        rows: Sequence[int] | np.ndarray,
        sizes: np.ndarray | None = None,
        begin: int = 0,
        count: int | None = None,
    ) -> Computed:
        """Return the random arguments of ``steps`` for these rows.

        Args:
            rows: row numbers, counted from ``begin``.
            sizes: image sizes, (len(rows), 2). By default those in ``facts``.
            begin, count: draw random numbers for ``count`` rows from row ``begin`` on. By default for all rows.

        Raises:
            ImageTooSmall: an image is too small for a step. The error names the row.
        """
        sizes = self.facts["sizes"][rows] if sizes is None else sizes
        try:
            return compute(steps, sizes, self.numbers(begin, len(self.facts) if count is None else count), rows)
        except ImageTooSmall as error:
            row = begin + int(rows[error.row])
            raise ImageTooSmall(row, f"{error} ({self.name(row)})") from None

    def compute_one(self, steps: tuple[Step, ...], row: int, size: tuple[int, int]) -> list[Arrays]:
        """Return the random arguments of ``steps`` for one row, without the row dimension. ``size`` is the image's
        (height, width)."""
        return [rows_of(values, 0) for values in self.compute(steps, [0], np.array([size]), row, 1)]


class _Encoded:
    """The encoded images of a traced batch, with the methods of a Store (data/sources.py)."""

    def __init__(self, block: np.ndarray, ends: np.ndarray):
        self._block, self._ends = block, ends

    def read(self, indices: Sequence[Any]) -> list[np.ndarray]:
        begins = np.concatenate([[0], self._ends[:-1]])
        return [self._block[begins[index] : self._ends[index]] for index in indices]

    def changed(self, indices: Sequence[Any]) -> np.ndarray:
        return np.zeros(len(indices), bool)

    def copied(self, index: Any) -> bytes:
        return self.read([index])[0].tobytes()

    def place(self, index: Any) -> str:
        return "an image in memory"


class JobRows(DecodableRows):
    """Rows of a traced batch, one for each file of a JobGroup (tracing/columns.py).

    Args:
        group: files, properties and random numbers of the rows.
        table: properties of the data set's files.
        headers: stores the JPEG engine's verdicts on these files.
    """

    def __init__(self, epoch: DaliEpoch, group: JobGroup, table: FileTable, headers: Headers):
        self.epoch, self._group, self._table, self._headers = epoch, group, table, headers
        self.facts = group.header_records
        if epoch.engine is not None:
            headers.add(group.slots, group.header_records["keys"], group.header_records)
            self.verdicts = headers.verdicts(epoch.engine.name).get(group.slots)

    def __len__(self) -> int:
        return len(self.facts)

    @cached_property
    def sources(self) -> list[Any]:
        paths, ends = self._group.paths, self._group.ends
        if ends is None:
            return os.fsdecode(b"\0".join(paths.tolist())).split("\0")  # one call for all
        store = _Encoded(paths.numpy(), ends)
        return [Record(store, index) for index in range(len(self))]

    def paths(self, rows: np.ndarray) -> np.ndarray:
        chosen = self._group.paths[rows]
        matrix: np.ndarray = chosen.view(np.uint8).reshape(len(chosen), -1)
        return matrix

    def use_pil(self, row: int) -> None:
        self._table.leave_to_pillow(int(self._group.slots[row]), int(self.facts["keys"][row]))

    def verdict_writer(self, rows: list[int]) -> Callable[[np.ndarray], None]:
        assert self.epoch.engine is not None
        known, slots = self._headers.verdicts(self.epoch.engine.name), self._group.slots[rows]
        return lambda verdicts: known.put(slots, np.broadcast_to(verdicts, len(slots)))

    def numbers(self, begin: int, count: int) -> Any:
        """Return a function of (stream, k). It returns the first k recorded numbers of each row from ``begin`` on, for
        any ``stream``."""
        numbers = self._group.numbers[begin:]
        return lambda stream, k: numbers[:, :k]
