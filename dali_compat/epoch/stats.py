"""Implementation of DataLoader.stats()."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import torch
from torch.utils.data import default_collate, default_convert

from ..remote.fetcher import FetchCounts, Fetcher
from ..runtime.forks import new_lock
from ..runtime.messages import in_bytes

_log = logging.getLogger("dali_compat")


class LoaderStats(NamedTuple):
    """Counts of a loader since it was created, or since the last ``stats(reset=True)``. str() returns one line.

    Times are in seconds, and are summed over all iterators, even concurrent ones.

    Attributes:
        epochs: iterations begun.
        batches: batches returned by next().
        images: samples in these batches.
        bytes: size of the images in these batches. Images are the batch itself if it is a tensor, otherwise its first
            element or value, if that is a tensor. Several views of a sample are all counted, except with a custom
            collate_fn.
        seconds: time from the first call of next() to the end of the last one, including your training steps.
        waited: time in next() while the calling thread waited for DALI, worker processes, other Python threads, or a
            CPU core. It does not include work of the GPU, because next() returns before the GPU is done.
        dali: time that next() waited for DALI, because reading, decoding and transforming took longer than your
            training steps.
        host: CPU time of the calling thread in next().
        in_flight: batches currently submitted to DALI, computed ahead, or requested from torch's workers.
        held: bytes currently used by copies of arrays, and by batches computed ahead from arrays. DALI's buffers are
            not included.
        peak: largest value of ``held``, updated at an epoch's end, by stats(), and after computing batches ahead.
        objects: objects fetched from object storage or its ``disk_cache``.
        hits: objects found in ``disk_cache``.
        fetched: size of the objects in bytes.
        network: time that batches waited for objects.
        retries: repeated requests for objects. Requests that list a bucket are not counted.

    Examples:
        >>> loader = DataLoader(DALIImageFolder("train", transform), batch_size=4, device="cpu")
        >>> batches = list(loader)
        >>> stats = loader.stats()
        >>> stats.epochs, stats.batches, stats.images
        (1, 2, 8)
    """

    epochs: int = 0
    batches: int = 0
    images: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    dali: float = 0.0
    host: float = 0.0
    in_flight: int = 0
    held: int = 0
    peak: int = 0
    objects: int = 0
    hits: int = 0
    fetched: int = 0
    network: float = 0.0
    retries: int = 0

    def __str__(self) -> str:
        inside, seconds = self.waited + self.host, self.seconds or 1.0
        parts = [
            f"{_count(self.epochs, 'epoch')}: {_count(self.batches, 'batch', 'batches')}, "
            f"{_count(self.images, 'image')}, {in_bytes(self.bytes)} in {self.seconds:.2f} s "
            f"({self.images / seconds:,.0f} images/s)",
            f"next() took {inside:.2f} s ({inside / seconds:.0%}): {self.waited:.2f} s waiting ({self.dali:.2f} s for "
            f"DALI), {self.host:.2f} s of processor time ({1e3 * self.host / (self.batches or 1):.2f} ms a batch)",
        ]
        if self.in_flight:
            parts.append(f"{_count(self.in_flight, 'batch', 'batches')} in flight")
        if self.objects:
            parts.append(
                f"{_count(self.objects, 'object')} fetched, {in_bytes(self.fetched)}, {self.hits:,} of them from disk; "
                f"{self.network:.2f} s waiting for them, {_count(self.retries, 'retry', 'retries')}"
            )
        if self.peak:
            parts.append(f"{in_bytes(self.held)} held, {in_bytes(self.peak)} at most")
        return "; ".join(parts)


class Meter:
    """Counts of one epoch. Only one thread at a time may update them, but any thread may read them."""

    def __init__(self, stats: Stats, number: int, plain: bool):
        self.dali = 0.0  # LoaderStats.dali
        self.ahead = 0  # size in bytes of batches computed ahead
        self.fetcher: Fetcher | None = None
        self._stats, self._number, self._plain = stats, number, plain
        self._iterator: weakref.ref[Any] | None = None
        self._closed = False
        self._caller = 0  # the thread that last called next()
        self._batches = self._images = self._bytes = 0
        self._inside = self._host = self._begin = self._end = 0.0

    def follow(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)

    def clocks(self) -> tuple[float, float]:
        """Return the wall time and the thread's CPU time, for add_time()."""
        self._caller = threading.get_ident()
        return perf_counter(), thread_time()

    def waited_for_dali(self, seconds: float) -> None:
        """Add time spent waiting for DALI in next(). Calls from other threads are ignored."""
        if threading.get_ident() == self._caller:
            self.dali += seconds

    def add_time(self, since: tuple[float, float]) -> None:
        """Add the time after ``since``, a result of clocks() in this thread, to the time in next()."""
        begin, host = since
        self._host += thread_time() - host
        self._end = perf_counter()
        self._begin = self._begin or begin
        self._inside += self._end - begin

    def count_batch(self, images: int, batch: Any) -> None:
        self._batches += 1
        self._images += images
        first = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
        if isinstance(first, Mapping) and (first is batch or not self._plain):
            first = next(iter(first.values()), None)
        self._bytes += _bytes(first, self._plain)

    def set_ahead(self, ahead: int, route: Any) -> None:
        self.ahead = ahead
        self._stats.hold(route)

    def exhausted(self, route: Any = None) -> None:
        """Stop counting, and log the counts once."""
        if self._closed:
            return
        self._stats.hold(route)
        self.close()
        if _log.isEnabledFor(logging.INFO):
            _log.info("epoch %d: %s", self._number, str(self.read()).partition(": ")[2])

    def close(self) -> None:
        self._closed, self.ahead = True, 0

    @property
    def over(self) -> bool:
        return self._closed or (self._iterator is not None and self._iterator() is None)

    def read(self) -> LoaderStats:
        """Return the current counts, with 0 for ``held`` and ``peak``."""
        iterator = None if self._closed or self._iterator is None else self._iterator()
        return LoaderStats(
            1,
            self._batches,
            self._images,
            self._bytes,
            self._end - self._begin,
            max(0.0, self._inside - self._host),
            self.dali,
            self._host,
            0 if iterator is None else iterator.in_flight,
            0,
            0,
            *(FetchCounts() if self.fetcher is None else self.fetcher.counts()),
        )


class Stats:
    """Counts of a loader. Its iterators may run in different threads."""

    def __init__(self) -> None:
        self._lock = new_lock()  # reentrant, since a signal handler may call read()
        self._meters: list[Meter] = []
        self._before = LoaderStats()  # counts of ended iterators
        self._zero = LoaderStats()  # counts at the last reset
        self._begun = self._peak = 0

    def __reduce__(self) -> tuple[type[Stats], tuple[()]]:
        return Stats, ()  # a copy of a loader starts at zero

    def begin(self, collate_fn: Any) -> Meter:
        with self._lock:
            over = [meter for meter in self._meters if meter.over]
            self._before = _sum(self._before, *(meter.read() for meter in over))
            meter = Meter(self, self._begun, collate_fn in (default_collate, default_convert))
            self._meters = [*(meter for meter in self._meters if meter not in over), meter]
            self._begun += 1
            return meter

    def hold(self, route: Any) -> int:
        """Return the bytes of pixels held in memory (0 except on routes for arrays), and update the peak."""
        held = getattr(route, "memory", 0) + sum(meter.ahead for meter in self._meters)
        self._peak = max(self._peak, held)
        return held

    def read(self, route: Any, reset: bool) -> LoaderStats:
        with self._lock:
            held = self.hold(route)
            total = _sum(self._before, *(meter.read() for meter in self._meters))
            since = [now - then for now, then in zip(total, self._zero, strict=True)]
            given = LoaderStats._make(since)._replace(held=held, peak=self._peak)
            if reset:
                self._zero, self._peak = total._replace(in_flight=0), held
            return given


def _bytes(images: Any, within: bool) -> int:
    """Return the size of a tensor in bytes. If ``within`` is True, return the total size of
    all tensors in lists, tuples and dicts."""
    if isinstance(images, torch.Tensor):
        return images.nbytes
    if isinstance(images, Mapping):
        images = tuple(images.values())
    return sum(_bytes(one, True) for one in images) if within and isinstance(images, (list, tuple)) else 0


def _sum(*rows: LoaderStats) -> LoaderStats:
    return LoaderStats(*map(sum, zip(*rows, strict=True)))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
