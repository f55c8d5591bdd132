"""Wrappers of ``worker_init_fn`` and ``collate_fn``, and seeds of samples."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from itertools import repeat
from multiprocessing.util import Finalize
from typing import Any

import torch.utils.data as data

from ..randoms import seed_generators
from . import patches
from .columns import TracedBatch, pack_batch
from .nodes import SWITCHES, Tracing
from .sources import FileTable


def tracing_from_now(table: FileTable, exact: bool) -> Tracing:
    """Replace the functions of Pillow and torchvision. Return Tracing.from_now()."""
    patches.install()
    return Tracing.from_now(table, exact)


class TracingWorker:
    """A worker_init_fn that calls the user's function and then switches tracing on."""

    def __init__(self, function: Callable[[int], object] | None, table: FileTable, exact: bool):
        self._function, self._table, self._exact = function, table, exact

    def __call__(self, number: int) -> None:
        gc.freeze()  # otherwise a full collection visits, and after a fork copies, all objects of the loading process
        Finalize(None, _exit_if_orphaned, (os.getppid(),), exitpriority=_BEFORE_QUEUES)
        settings = tracing_from_now(self._table, self._exact)
        if self._function is not None:
            self._function(number)
        SWITCHES.tracing = settings


_BEFORE_QUEUES = -4  # multiprocessing.Queue has priority -5


def _exit_if_orphaned(parent: int) -> None:
    """Exit without sending the last batches if the loading process was killed.

    No process reads them, so multiprocessing.Queue would wait forever.
    """
    if os.getppid() != parent:
        os._exit(1)


class TracedCollate:
    """A collate_fn that converts the result of the user's function to a TracedBatch."""

    def __init__(self, function: Callable[[Any], Any]):
        self._function = function

    def __call__(self, samples: Any) -> TracedBatch:
        return pack_batch(self._function(samples))


epoch_seed = 0  # in a worker, the seed of the epoch that the current sample belongs to


class SeededIndices(list[Any]):
    """Indices of a batch. A worker that iterates over them seeds the generators before each sample.

    The iteration also sets ``epoch_seed`` to ``seed``. ``positions`` are the samples' positions in the epoch, counted
    over all ranks. If they are None, only ``epoch_seed`` is set.
    """

    def __init__(self, indices: Any, seed: int, positions: range | None = None):
        super().__init__(indices)
        self._seed, self._positions = seed, positions

    def __iter__(self) -> Iterator[Any]:
        if data.get_worker_info() is None:
            yield from super().__iter__()
            return
        positions = repeat(None, len(self)) if self._positions is None else self._positions
        for index, position in zip(super().__iter__(), positions, strict=True):
            yield seeded_index(index, self._seed, position)

    def __reduce__(self) -> Any:
        return SeededIndices, (self[:], self._seed, self._positions)


def seeded_index(index: Any, seed: int, position: int | None) -> Any:
    global epoch_seed
    epoch_seed = seed
    if position is not None:
        seed_generators(seed, position)
    return index


class SeededIndex:
    """The index of a sample that is loaded without batching. Unpickling returns ``index``, and seeds the generators as
    SeededIndices does."""

    def __init__(self, index: Any, seed: int, position: int | None = None):
        self._arguments = index, seed, position

    def __reduce__(self) -> Any:
        return seeded_index, self._arguments
