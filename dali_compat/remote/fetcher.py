"""Fetch the objects of an epoch from object storage, ahead of the batches that need them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from ..errors import ImageReadError
from .client import Fetched
from .event_loop import event_loop, wait_for
from .objects import Objects

REQUESTS = 128  # concurrent requests
BUDGET = 256 << 20  # maximum of the bytes that are being fetched or wait for their batch
_UNKNOWN = 128 << 10  # bytes; assumed size of an object if no size is known


class ObjectRecord(Protocol):
    """A Record (data/sources.py) of an image in object storage."""

    store: Any
    index: Any
    data: NDArray[Any] | None


class FetchCounts(NamedTuple):
    objects: int = 0  # fetched objects
    hits: int = 0  # fetched objects that were in the disk cache
    bytes: int = 0  # bytes of all fetched objects
    waited: float = 0.0  # seconds spent waiting in take()
    retries: int = 0  # repeated requests


class _Job:
    """A requested object, used only in the event loop's thread. ``needed`` counts the requests that take() has not
    answered."""

    def __init__(self, objects: Objects, url: str):
        self.objects, self.url, self.needed = objects, url, 0
        self.task: asyncio.Task[Fetched | Exception] | None = None
        self.held = 0  # bytes reserved in the budget


class Fetcher:
    """Fetches the objects of one epoch. request() queues objects in the sampler's order, and take() waits for a batch.

    REQUESTS limits the concurrent requests. BUDGET limits the bytes in memory. take() may exceed both limits.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, str], _Job] = {}
        self._queue: deque[_Job] = deque()
        self._running = self._held = self._objects = self._hits = self._bytes = self._retries = 0
        self._waited = 0.0
        self._closed = False

    def request(self, records: Sequence[ObjectRecord]) -> None:
        """Add the objects of ``records`` to the end of the queue. Each record must later be passed to take()."""
        event_loop().call_soon_threadsafe(self._request, [(record.store, record.index) for record in records])

    def take(self, records: Sequence[ObjectRecord]) -> dict[int, Exception]:
        """Wait until the records are fetched, and set their ``data``.

        Return {position in ``records``: ImageReadError} for the records that cannot be read. Raise
        RuntimeError if close() was called.
        """
        begin = perf_counter()
        outcomes = wait_for(self._take([(record.store, record.index) for record in records]))
        self._waited += perf_counter() - begin
        errors: dict[int, Exception] = {}
        for number, (record, outcome) in enumerate(zip(records, outcomes, strict=True)):
            if isinstance(outcome, Fetched):
                record.data = outcome.data
            elif isinstance(outcome, ImageReadError):
                errors[number] = outcome
            else:
                raise (
                    outcome
                    if isinstance(outcome, Exception)
                    else RuntimeError("the epoch is over; iter(loader) starts another one")
                )
        return errors

    def close(self) -> None:
        """Cancel all requests, and accept no more. A waiting take() raises RuntimeError."""
        self._closed = True
        with suppress(RuntimeError):  # the program is exiting, and has cancelled the requests
            event_loop().call_soon_threadsafe(self._drop)

    def counts(self) -> FetchCounts:
        return FetchCounts(self._objects, self._hits, self._bytes, self._waited, self._retries)

    def _request(self, places: list[tuple[Objects, str]]) -> None:
        if self._closed:
            return
        for place in places:
            job = self._job(*place)
            job.needed += 1
            if job.task is None:
                self._queue.append(job)
        self._start_some()

    async def _take(self, places: list[tuple[Objects, str]]) -> list[Fetched | BaseException]:
        if self._closed:
            raise RuntimeError("the epoch is over; iter(loader) starts another one")
        jobs = [self._job(*place) for place in places]
        outcomes = await asyncio.gather(*map(self._start, jobs), return_exceptions=True)
        for job in jobs:
            job.needed -= 1
            if job.needed <= 0:  # negative without request()
                self._jobs.pop((id(job.objects), job.url), None)
                self._hold(job, 0)
        self._start_some()
        return outcomes

    def _job(self, objects: Objects, url: str) -> _Job:
        return self._jobs.setdefault((id(objects), url), _Job(objects, url))

    def _start_some(self) -> None:
        while self._queue and self._running < REQUESTS:
            job = self._queue[0]
            if job.task is None:
                if self._held and self._held + self._size(job) > BUDGET:
                    return
                self._start(job)
            self._queue.popleft()

    def _size(self, job: _Job) -> int:
        return job.objects.size(job.url) or (self._bytes // self._objects if self._objects else _UNKNOWN)

    def _start(self, job: _Job) -> asyncio.Task[Fetched | Exception]:
        if job.task is None:
            self._running += 1
            self._hold(job, self._size(job))
            job.task = asyncio.get_running_loop().create_task(self._run(job))
        return job.task

    def _hold(self, job: _Job, held: int) -> None:
        self._held += held - job.held
        job.held = held

    async def _run(self, job: _Job) -> Fetched | Exception:
        outcome: Fetched | Exception
        try:
            outcome = fetched = await job.objects.get(job.url, self._retried)
            self._objects += 1
            self._hits += fetched.from_disk
            self._bytes += len(fetched.data)
            self._hold(job, len(fetched.data))
        except Exception as error:
            outcome = error
            self._hold(job, 0)
        finally:
            self._running -= 1
        self._start_some()
        return outcome

    def _retried(self) -> None:
        self._retries += 1

    def _drop(self) -> None:
        self._queue.clear()
        while self._jobs:
            _, job = self._jobs.popitem()
            self._hold(job, 0)
            if job.task is not None:
                job.task.cancel()
