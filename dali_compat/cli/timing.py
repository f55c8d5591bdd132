"""Measures for `bench`: reading a data set's files, and passes over a loader, alone and beside a synthetic step."""

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
from PIL import Image

from dali_compat import LoaderStats
from dali_compat.cli.limits import Beside

SIDE = 2048  # of the matrices of a GPU's step
LOOKED_AT = 64  # images whose size is looked up, for what all take when decoded


class SampledFiles:
    """Random samples of a data set, and where their bytes are."""

    def __init__(self, dataset, most: int):
        self._dataset = dataset
        self.indices = random.Random(0).sample(range(len(dataset)), min(most, len(dataset)))
        self.share = len(self.indices) / len(dataset)  # of the data set
        self.bytes = 0  # of all of them, once they were read

    def __len__(self) -> int:
        return len(self.indices)

    def leave_out(self, bad: set[int]) -> None:
        """Leave out the samples at these places: the loader cannot read them."""
        self.indices = [index for at, index in enumerate(self.indices) if at not in bad]

    def drop(self) -> None:
        """Asks the system to forget the files' contents. Archives are mapped, and stay."""
        for index in self.indices:
            source = self._source(index)
            if isinstance(source, str) and hasattr(os, "posix_fadvise"):
                file = os.open(source, os.O_RDONLY)
                try:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(file)

    def read(self, threads: int) -> float:
        """Reads all of them. Returns the seconds that it takes."""
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            self.bytes = sum(pool.map(self._read, self.indices))
        return time.perf_counter() - begin

    def pixels(self) -> int:
        """Estimates the bytes of all of them when decoded, from some."""
        from dali_compat.data.sources import opened

        chosen, total = self.indices[:LOOKED_AT], 0
        for index in chosen:
            with opened(self._source(index)) as file, Image.open(file) as image:
                total += 3 * image.width * image.height
        return total * len(self) // len(chosen)

    def _read(self, index: int) -> int:
        from dali_compat.data.sources import RandomAccess

        with RandomAccess(self._source(index)) as file:
            return len(file.read(file.size, 0))

    def _source(self, index: int) -> Any:
        from ..data.base_datasets import sample

        return sample(self._dataset, index)[0]


class Pass(NamedTuple):
    """Seconds for a batch, and the loader's counts of the pass."""

    seconds: float
    host: float  # the calling thread's processor time in next()
    cpu: float  # all processor time
    waited: float = 0.0  # of next(), neither of these nor waiting for DALI
    others: float = 0.0  # the processor time of other programs
    stats: LoaderStats = LoaderStats()


class Passes:
    """Passes over a loader.

    Args:
        loader: of ``ahead`` batches more than are timed.
        batches: how many are timed in a pass.
        ahead: batches before these: those that are in flight when an epoch begins, and one more.
        device: where batches come out.
        done: called after each batch, and each step alone.
    """

    def __init__(self, loader, batches: int, ahead: int, device: torch.device, done: Callable[[], object]):
        self._loader, self._batches, self._ahead, self.device, self._done = loader, batches, ahead, device, done

    def beside(self, milliseconds: float) -> Beside:
        """Times a step alone, and with batches of the loader."""
        step = synthetic_step(milliseconds, self.device)
        begin = time.perf_counter()
        for _ in range(self._batches):
            step(None)
            self._done()
        _synchronize(self.device)
        alone = (time.perf_counter() - begin) / self._batches
        return Beside(alone, self.one(step).seconds)

    def one(self, step: Callable[[Any], None] | None = None) -> Pass:
        """Iterates once; timed from when the batches that were in flight at the beginning are gone."""
        begin, cpu, all_cpu = 0.0, 0.0, 0.0
        for number, batch in enumerate(self._loader, 1):
            if step is not None:
                step(batch[0])
            self._done()
            if number == self._ahead:
                _synchronize(self.device)
                self._loader.stats(reset=True)
                begin, cpu, all_cpu = time.perf_counter(), _processor_time(), _everybodys_time()
        _synchronize(self.device)
        seconds, stats, cpu = time.perf_counter() - begin, self._loader.stats(reset=True), _processor_time() - cpu
        others = max(0.0, _everybodys_time() - all_cpu - cpu)
        n, waited = stats.batches, max(0.0, stats.waited - stats.dali)
        return Pass(seconds / n, stats.host / n, cpu / n, waited / n, others / n, stats)


def synthetic_step(milliseconds: float, device: torch.device) -> Callable[[Any], None]:
    """Returns a function that takes a batch's images, or None, and keeps the device busy for about so long."""
    if device.type != "cuda":
        return lambda images: time.sleep(milliseconds / 1e3)
    a, out = (torch.randn(SIDE, SIDE, device=device, dtype=torch.float16) for _ in range(2))

    def multiply(count: int) -> None:
        for _ in range(count):
            torch.mm(a, a, out=out)

    multiply(64)  # its clock rises
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    multiply(256)
    end.record()
    end.synchronize()
    count = max(1, round(256 * milliseconds / begin.elapsed_time(end)))

    def step(images) -> None:
        if isinstance(images, torch.Tensor) and images.numel():
            out.view(-1)[0] = images[(0,) * images.ndim]  # not before the batch is there
        multiply(count)

    return step


def memory(device: torch.device) -> str:
    """Says how much memory this process has held at most, and how much of the GPU all processes use."""
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = f"memory: {peak / 1e6:,.0f} MB of the host at most"
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        text += f"; {(total - free) / 1e6:,.0f} MB of the GPU in use, by all processes"
    return text


def _processor_time() -> float:
    """Returns the processor time of this process, of its workers, and of those that it has waited for."""
    workers = 0.0
    for process in multiprocessing.active_children():
        with suppress(OSError):  # it has ended
            _, _, fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")
            workers += sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime + workers


def _everybodys_time() -> float:
    """Returns the processor time of all programs on the cores that this process may use; 0 if it is unknown."""
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    with suppress(OSError):
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        # without those idle, and waiting for a disk
        ticks = [int(row[column]) for row in rows if row[0] in cores for column in (1, 2, 3, 6, 7, 8)]
        return sum(ticks) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
