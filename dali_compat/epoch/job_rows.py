"""The files of a traced batch (tracing/columns.py), as decoders read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..data.headers import Headers
from ..data.sources import Record
from ..tracing.columns import JobGroup
from ..tracing.sources import FileTable
from .epoch import DaliEpoch
from .rows import DecodableRows


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


class JobRows(DecodableRows):
    """The jobs of a group.

    Args:
        epoch: epoch of the batch.
        group: the jobs.
        table: facts of the data set's files.
        headers: stores the verdicts of a GPU's JPEG engine on these files.
    """

    def __init__(self, epoch: DaliEpoch, group: JobGroup, table: FileTable, headers: Headers):
        self.epoch, self._group, self._table, self._headers = epoch, group, table, headers
        self.facts = group.facts
        if epoch.engine is not None:
            headers.add(group.slots, group.facts["keys"], group.facts)
            self.words = headers.verdicts(epoch.engine.name).words(group.slots)

    def __len__(self) -> int:
        return len(self.facts)

    @cached_property
    def sources(self) -> list[Any]:
        """The path of each file, or a Record of its bytes."""
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

    def words_to(self, rows: list[int]) -> Callable[[np.ndarray], None]:
        assert self.epoch.engine is not None
        verdicts, slots = self._headers.verdicts(self.epoch.engine.name), self._group.slots[rows]
        return lambda words: verdicts.put(slots, np.broadcast_to(words, len(slots)))

    def numbers(self, begin: int, count: int) -> Any:
        """Return the numbers that were drawn when the images were traced, the same for each stream."""
        numbers = self._group.numbers[begin:]
        return lambda stream, k: numbers[:, :k]
