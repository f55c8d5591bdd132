"""The files of a traced batch (tracing/columns.py), as decoders read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..data.headers import Headers
from ..data.sources import Info, Record
from ..errors import ImageReadError, read_error
from ..ops.draws import Computed, compute
from ..ops.kernels import rows_of
from ..plan import Step
from ..runtime.decorators import named
from ..tracing.columns import JobGroup
from ..tracing.sources import FileTable
from .epoch import DaliEpoch


class _Encoded:
    """A store (data/sources.py) of encoded images that were sent with the batch."""

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


class JobRows:
    """The jobs of a group, with the interface of rows.Rows, for decoders.

    Args:
        epoch: epoch of the batch.
        group: the jobs.
        table: facts of the data set's files.
        headers: stores the verdicts of a GPU's JPEG engine on these files.
    """

    pixels: Sequence[Any] = ()
    begin = 0

    def __init__(self, epoch: DaliEpoch, group: JobGroup, table: FileTable, headers: Headers):
        self.epoch, self._group, self._table, self._headers = epoch, group, table, headers
        self.facts = group.facts
        if epoch.engine is not None:
            headers.add(group.slots, group.facts["keys"], group.facts)
            self.words = headers.verdicts(epoch.engine.name).words(group.slots)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def samples(self) -> JobRows:
        """Itself, since it also provides the sources."""
        return self

    @cached_property
    def sources(self) -> list[Any]:
        """The path of each file, or a Record of its bytes."""
        paths, ends = self._group.paths, self._group.ends
        if ends is None:
            return os.fsdecode(b"\0".join(paths.tolist())).split("\0")  # one call for all
        store = _Encoded(paths.numpy(), ends)
        return [Record(store, index) for index in range(len(self))]

    def paths(self, rows: np.ndarray) -> np.ndarray:
        """Return the paths as (len(rows), L) uint8, zero-padded."""
        chosen = self._group.paths[rows]
        matrix: np.ndarray = chosen.view(np.uint8).reshape(len(chosen), -1)
        return matrix

    def infos(self, rows: Sequence[int]) -> list[Info]:
        """Return the ``info`` of the PIL images that these rows start from."""
        return [Info(self.sources[row]) for row in rows]

    def name(self, row: int) -> str:
        """Return the row's file, for messages."""
        return str(self.sources[row])

    def position(self, row: int) -> int:
        """Return the row; positions are unused here, since all numbers were drawn before."""
        return row

    def give_up(self, failures: dict[int, Exception]) -> None:
        """Raise the first error."""
        if failures:
            raise failures.pop(min(failures))

    def unreadable(self, row: int, error: Exception) -> ImageReadError:
        """Return an error that names the row's file, with its reason."""
        made = read_error(f"cannot decode {self.name(row)}: {type(error).__name__}: {error}", error)
        made.__cause__ = error
        return made

    def set_intact(self, rows: list[int]) -> None:
        """Do nothing, since files were checked when they were opened."""

    def forget(self, rows: list[int]) -> None:
        """Do nothing, since a changed file gets a new entry in the table."""

    def use_pil(self, row: int) -> None:
        """Leave this file to Pillow from now on."""
        self._table.leave_to_pillow(int(self._group.slots[row]), int(self.facts["keys"][row]))

    def words_to(self, rows: list[int]) -> Callable[[np.ndarray], None]:
        """Return a function that stores the JPEG engine's verdicts on these files."""
        assert self.epoch.engine is not None
        verdicts, slots = self._headers.verdicts(self.epoch.engine.name), self._group.slots[rows]
        return lambda words: verdicts.put(slots, np.broadcast_to(words, len(slots)))

    @named("draw")
    def compute(
        self,
        steps: tuple[Step, ...],
        rows: Sequence[int] | np.ndarray,
        sizes: np.ndarray | None = None,
        begin: int = 0,
        count: int | None = None,
    ) -> Computed:
        """Return the arguments of ``steps`` for these rows, as Rows.compute() does."""
        sizes = self.facts["sizes"][rows] if sizes is None else sizes
        numbers = self._group.numbers[begin:]
        return compute(steps, sizes, lambda stream, k: numbers[:, :k], rows)

    def compute_one(self, steps: tuple[Step, ...], row: int, size: tuple[int, int]) -> list[Any]:
        """Return compute() for one image of a (height, width)."""
        return [rows_of(values, 0) for values in self.compute(steps, [0], np.array([size]), row, 1)]
