"""Gets the objects of an epoch ahead of the batches that need them."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from ..errors import ImageReadError
from .client import Fetched
from .event_loop import event_loop
from .objects import Objects

REQUESTS = 128  # at a time
BUDGET = 256 << 20  # bytes that are asked for, or wait for their batch
_UNKNOWN = 128 << 10  # bytes of an object before one was read


class ObjectRecord(Protocol):
    """A sample's object: a Record (data/sources.py) of an Objects."""

    archive: Any
    index: Any
    data: NDArray[Any] | None


class FetchCounts(NamedTuple):
    """Counts of a fetcher's work.

    Attributes:
        objects: got.
        hits: those of them that were on the disk.
        bytes: of all.
        waited: seconds in which take() waited.
    """

    objects: int = 0
    hits: int = 0
    bytes: int = 0
    waited: float = 0.0


class _Job:
    """An object that batches need: ``needed`` times. All of it belongs to the event loop's thread."""

    def __init__(self, objects: Objects, url: str):
        self.objects, self.url, self.needed = objects, url, 0
        self.task: asyncio.Task[None] | None = None
        self.outcome: Fetched | Exception | None = None
        self.waiting: list[concurrent.futures.Future[Fetched]] = []
        self.held = 0  # bytes, of the budget


class Fetcher:
    """Gets objects of one epoch: request() names them in the sampler's order, and take() waits for a batch's. As many
    requests run at a time as REQUESTS and BUDGET allow; what take() waits for runs at once.

    Args:
        requests: at a time, at most.
        budget: bytes that are asked for, or wait for their batch, at most.
    """

    def __init__(self, requests: int = REQUESTS, budget: int = BUDGET):
        self._requests, self._budget = requests, budget
        self._jobs: dict[tuple[int, str], _Job] = {}
        self._queue: deque[_Job] = deque()
        self._running = self._held = self._objects = self._hits = self._bytes = 0
        self._waited = 0.0
        self._closed = False

    def request(self, records: Sequence[ObjectRecord]) -> None:
        """Begins to get these objects, behind those that were requested before. take() follows for each."""
        places = [(record.archive, record.index) for record in records]
        self._call(lambda: self._request(places))

    def take(self, records: Sequence[ObjectRecord]) -> dict[int, Exception]:
        """Gives each record its data, waiting for it. Returns the errors of those that cannot be read, by number.

        Raises:
            RuntimeError: the requests were dropped meanwhile.
        """
        places = [(record.archive, record.index) for record in records]
        futures: list[concurrent.futures.Future[Fetched]] = [concurrent.futures.Future() for _ in places]
        begin = perf_counter()
        self._call(lambda: self._take(places, futures))
        errors: dict[int, Exception] = {}
        for number, (record, future) in enumerate(zip(records, futures, strict=True)):
            error = future.exception()
            if isinstance(error, ImageReadError):
                errors[number] = error
            else:
                record.data = future.result().data
        self._waited += perf_counter() - begin
        return errors

    def close(self) -> None:
        """Drops all requests, for good. Whoever waits in take() gets an error."""
        self._closed = True
        with suppress(RuntimeError):  # the program ends, and its requests did
            self._call(self._drop)

    def counts(self) -> FetchCounts:
        """Returns what it has done so far."""
        return FetchCounts(self._objects, self._hits, self._bytes, self._waited)

    def _call(self, function: Callable[[], None]) -> None:
        """Calls a function in the event loop's thread."""
        event_loop().call_soon_threadsafe(function)

    def _request(self, places: list[tuple[Objects, str]]) -> None:
        if self._closed:
            return
        for place in places:
            job = self._job(*place)
            job.needed += 1
            if job.task is None:
                self._queue.append(job)
        self._start_some()

    def _take(self, places: list[tuple[Objects, str]], futures: list[concurrent.futures.Future[Fetched]]) -> None:
        # An object may be here several times: those that nobody has requested are needed as often as they are here
        missing = Counter((id(objects), url) for objects, url in places)
        for (objects, url), future in zip(places, futures, strict=True):
            if self._closed:
                future.set_exception(RuntimeError("the epoch is over"))
                continue
            job = self._job(objects, url)
            job.needed = max(job.needed, missing[id(objects), url])
            missing[id(objects), url] -= 1
            job.waiting.append(future)
            self._start(job)
            self._hand_over(job)

    def _job(self, objects: Objects, url: str) -> _Job:
        key = id(objects), url
        if key not in self._jobs:
            self._jobs[key] = _Job(objects, url)
        return self._jobs[key]

    def _start_some(self) -> None:
        while self._queue and self._running < self._requests:
            job = self._queue[0]
            if job.task is None and not self._is_dropped(job):
                if self._held and self._held + self._size(job) > self._budget:
                    return
                self._start(job)
            self._queue.popleft()

    def _is_dropped(self, job: _Job) -> bool:
        return self._jobs.get((id(job.objects), job.url)) is not job

    def _size(self, job: _Job) -> int:
        return job.objects.size(job.url) or (self._bytes // self._objects if self._objects else _UNKNOWN)

    def _start(self, job: _Job) -> None:
        if job.task is None:
            self._running += 1
            self._hold(job, self._size(job))
            job.task = asyncio.get_running_loop().create_task(self._run(job))

    def _hold(self, job: _Job, held: int) -> None:
        self._held += held - job.held
        job.held = held

    async def _run(self, job: _Job) -> None:
        try:
            job.outcome = fetched = await job.objects.get(job.url)
            self._objects += 1
            self._hits += fetched.from_disk
            self._bytes += len(fetched.data)
            self._hold(job, len(fetched.data))
        except asyncio.CancelledError:
            if not self._is_dropped(job):  # the program ends
                self._closed = True
                self._drop()
            raise
        except Exception as error:
            job.outcome = error
            self._hold(job, 0)
        finally:
            self._running -= 1
        self._hand_over(job)
        self._start_some()

    def _hand_over(self, job: _Job) -> None:
        """Gives those that wait the outcome, if it is there; the last of them ends the job."""
        if job.outcome is None:
            return
        while job.waiting:
            future = job.waiting.pop()
            job.needed -= 1
            if isinstance(job.outcome, Exception):
                future.set_exception(job.outcome)
            else:
                future.set_result(job.outcome)
        if job.needed <= 0 and not self._is_dropped(job):
            del self._jobs[id(job.objects), job.url]
            self._hold(job, 0)
            self._start_some()

    def _drop(self) -> None:
        self._queue.clear()
        while self._jobs:
            _, job = self._jobs.popitem()
            self._hold(job, 0)
            if job.task is not None:
                job.task.cancel()
            while job.waiting:
                job.waiting.pop().set_exception(RuntimeError("the epoch is over"))
