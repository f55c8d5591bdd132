"""Measurements for `bench`: reading a data set's files, and passes over a loader."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dali_compat import LoaderStats


class SampledFiles:
    """Random samples of a data set. Their files can be read without decoding."""

    def __init__(self, dataset, most: int):
        self._dataset = dataset
        self.indices = random.Random(0).sample(range(len(dataset)), min(most, len(dataset)))
        self.share = len(self.indices) / len(dataset)  # fraction of the data set
        self.bytes = 0  # bytes of the samples' files, set by read()

    def __len__(self) -> int:
        return len(self.indices)

    def leave_out(self, bad: set[int]) -> None:
        """Remove the unreadable samples at the positions ``bad``."""
        self.indices = [index for at, index in enumerate(self.indices) if at not in bad]

    def drop(self) -> None:
        """Ask the system to drop the files from the page cache. Mapped archives stay in it."""
        for index in self.indices:
            source = self._source(index)
            if isinstance(source, str) and hasattr(os, "posix_fadvise"):
                file = os.open(source, os.O_RDONLY)
                try:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(file)

    def read(self, threads: int) -> float:
        """Read all files with this number of threads. Return the time in seconds."""
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            self.bytes = sum(pool.map(self._read, self.indices))
        return time.perf_counter() - begin

    def _read(self, index: int) -> int:
        from dali_compat.data.sources import RandomAccess

        with RandomAccess(self._source(index)) as file:
            return len(file.read(file.size, 0))

    def _source(self, index: int) -> Any:
        from ..data.base_datasets import sample

        return sample(self._dataset, index)[0]


class Pass(NamedTuple):
    """Measurements of one pass over a loader, in seconds per batch."""

    seconds: float  # time from one batch to the next
    host: float  # CPU time of the calling thread in next()
    cpu: float  # all CPU time
    waited: float = 0.0  # time in next() that is neither CPU time nor waiting for DALI
    others: float = 0.0  # CPU time of other programs
    stats: LoaderStats = LoaderStats()


class Passes:
    """Timed passes over a loader.

    Args:
        loader: the loader to time, of more than ``ahead`` batches.
        ahead: number of untimed batches at the start.
        done: called after each batch.
    """

    def __init__(self, loader, ahead: int, device: torch.device, done: Callable[[], object]):
        self._loader, self._ahead, self.device, self._done = loader, ahead, device, done

    def one(self) -> Pass:
        """Iterate once, and time all batches except the first ``ahead``."""
        begin, cpu, all_cpu = 0.0, 0.0, 0.0
        for number, _ in enumerate(self._loader, 1):
            self._done()
            if number == self._ahead:
                _synchronize(self.device)
                self._loader.stats(reset=True)
                begin, cpu, all_cpu = time.perf_counter(), _cpu_time(), _cpu_time_of_all()
        _synchronize(self.device)
        seconds, stats, cpu = time.perf_counter() - begin, self._loader.stats(reset=True), _cpu_time() - cpu
        others = max(0.0, _cpu_time_of_all() - all_cpu - cpu)
        n, waited = stats.batches, max(0.0, stats.waited - stats.dali)
        return Pass(seconds / n, stats.host / n, cpu / n, waited / n, others / n, stats)


def _cpu_time() -> float:
    """Return the CPU time in seconds of this process, its running workers, and its ended child processes."""
    workers = 0.0
    for process in multiprocessing.active_children():
        with suppress(OSError):  # the worker has ended
            _, _, fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")
            workers += sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime + workers


def _cpu_time_of_all() -> float:
    """Return the CPU time in seconds of all programs on this process's cores, or 0 if unknown."""
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    with suppress(OSError):
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        # excludes idle and iowait
        ticks = [int(row[column]) for row in rows if row[0] in cores for column in (1, 2, 3, 6, 7, 8)]
        return sum(ticks) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
