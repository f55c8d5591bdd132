"""Wrappers of ``worker_init_fn`` and ``collate_fn``, and seeds of samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from typing import Any

import torch.utils.data as data

from ..randoms import seed_generators
from . import images, patches
from .columns import TracedBatch, packed
from .nodes import HERE
from .sources import FileTable


def begin_tracing(table: FileTable) -> None:
    """Prepare this process for tracing."""
    patches.install()
    images.use_table(table)


class TracingWorker:
    """A worker_init_fn that calls the user's function and then switches tracing on.

    Args:
        function: the user's function.
        table: table of the data set's files.
        exact: as in nodes.HERE.
    """

    def __init__(self, function: Callable[[int], object] | None, table: FileTable, exact: bool):
        self._function, self._table, self._exact = function, table, exact

    def __call__(self, number: int) -> None:
        Finalize(None, _exit_if_orphaned, (os.getppid(),), exitpriority=_BEFORE_QUEUES)
        begin_tracing(self._table)
        if self._function is not None:
            self._function(number)
        HERE.traces, HERE.exact = True, self._exact


_BEFORE_QUEUES = -4  # multiprocessing.Queue has -5


def _exit_if_orphaned(parent: int) -> None:
    """Exit without sending the last batches if the loading process was killed.

    No process reads them, so multiprocessing.Queue would wait forever. Batches of torch's loader rarely fill a pipe.
    """
    if os.getppid() != parent:
        os._exit(1)


class TracedCollate:
    """A collate_fn that packs the result of the user's function as a TracedBatch."""

    def __init__(self, function: Callable[[Any], Any]):
        self._function = function

    def __call__(self, samples: Any) -> TracedBatch:
        return packed(self._function(samples))


class SeededIndices(list[Any]):
    """Indices of a batch. Iterating over them in a worker, as torch's fetcher does, seeds the generators per sample.

    So a sample's random numbers depend on the epoch's seed and on its place in the epoch, not on the number of workers.

    Args:
        indices: indices of the samples.
        seed: seed of the epoch.
        places: places of the samples in the epoch, counted over all ranks.
    """

    def __init__(self, indices: Any, seed: int, places: range):
        super().__init__(indices)
        self._seed, self._places = seed, places

    def __iter__(self) -> Iterator[Any]:
        if data.get_worker_info() is None:
            yield from super().__iter__()
            return
        for index, place in zip(super().__iter__(), self._places, strict=True):
            seed_generators(self._seed, place)
            yield index

    def __reduce__(self) -> Any:
        return SeededIndices, (self[:], self._seed, self._places)


def seeded_index(index: Any, seed: int, place: int) -> Any:
    """Seed the generators and return an index. Called when a worker unpickles a SeededIndex."""
    seed_generators(seed, place)
    return index


class SeededIndex:
    """An index without batching. A worker that unpickles it seeds its generators and gets ``index``."""

    def __init__(self, index: Any, seed: int, place: int):
        self._arguments = index, seed, place

    def __reduce__(self) -> Any:
        return seeded_index, self._arguments
