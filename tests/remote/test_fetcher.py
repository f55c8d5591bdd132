"""Fetching objects ahead: order, budget, duplicates, errors and interrupts."""

import asyncio
import concurrent.futures
import threading
import time

import numpy as np
import pytest

from dali_compat.data.sources import Record
from dali_compat.errors import ImageReadError
from dali_compat.remote import fetcher as fetching
from dali_compat.remote.client import Fetched
from dali_compat.remote.fetcher import Fetcher


class Bucket:
    """A bucket of objects of 1,000 bytes, which arrive while ``released`` is set.

    ``requested`` lists the requests in order.
    """

    def __init__(self):
        self.requested, self.running, self.most = [], 0, 0
        self.released = threading.Event()
        self.released.set()

    def size(self, url: str) -> int:
        return 1000

    async def get(self, url: str, retried) -> Fetched:
        self.requested.append(url)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            while not self.released.is_set():
                await asyncio.sleep(0.001)
            if url.startswith("bad"):
                raise ImageReadError(url)
            return Fetched(np.full(1000, len(self.requested), np.uint8), "")
        finally:
            self.running -= 1

    def records(self, *urls) -> list[Record]:
        return [Record(self, url) for url in urls]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def wait(condition) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_requests_run_ahead_in_order_up_to_the_limit(bucket, monkeypatch):
    monkeypatch.setattr(fetching, "REQUESTS", 3)
    fetcher = Fetcher()
    bucket.released.clear()
    names = [f"{number}" for number in range(10)]
    fetcher.request(bucket.records(*names))
    wait(lambda: len(bucket.requested) == 3)
    time.sleep(0.05)
    assert bucket.requested == names[:3]
    bucket.released.set()
    wait(lambda: len(bucket.requested) == 10 and not bucket.running)
    assert bucket.requested == names and bucket.most == 3
    records = bucket.records(*names)
    assert fetcher.take(records) == {} and all(len(record.data) == 1000 for record in records)
    assert bucket.requested == names
    assert fetcher.counts()[:3] == (10, 0, 10_000)


def test_the_budget_limits_objects_not_yet_taken(bucket, monkeypatch):
    monkeypatch.setattr(fetching, "BUDGET", 4500)
    fetcher = Fetcher()
    names = [f"{number}" for number in range(10)]
    fetcher.request(bucket.records(*names))
    wait(lambda: len(bucket.requested) == 4)
    time.sleep(0.05)
    assert bucket.requested == names[:4]
    fetcher.take(bucket.records(*names[:2]))
    wait(lambda: len(bucket.requested) == 6)
    fetcher.take(bucket.records("8", "9"))  # objects that a batch waits for are fetched at once
    assert sorted(bucket.requested) == [*names[:6], "8", "9"]
    fetcher.take(bucket.records(*names[2:8]))
    assert sorted(bucket.requested) == names and fetcher._held == 0 and fetcher._jobs == {}


def test_objects_larger_than_the_budget_are_fetched_one_by_one(bucket, monkeypatch):
    monkeypatch.setattr(fetching, "BUDGET", 10)
    fetcher = Fetcher()
    fetcher.request(bucket.records("a", "b"))
    wait(lambda: bucket.requested == ["a"])
    for name in ("a", "b"):
        assert fetcher.take(bucket.records(name)) == {}
    assert bucket.requested == ["a", "b"]


def test_an_object_of_several_samples_is_fetched_once(bucket):
    fetcher = Fetcher()
    fetcher.request(bucket.records("a", "b", "a"))
    fetcher.request(bucket.records("a"))
    fetcher.take(bucket.records("a", "b", "a"))
    assert len(fetcher._jobs) == 1
    fetcher.take(bucket.records("a"))
    assert sorted(bucket.requested) == ["a", "b"] and fetcher._jobs == {} and fetcher._held == 0
    several = bucket.records("c", "c")  # not requested ahead
    fetcher.take(several)
    assert all(record.data is not None for record in several) and fetcher._jobs == {}


def test_errors_are_returned_for_their_objects(bucket):
    fetcher = Fetcher()
    records = bucket.records("a", "bad", "b", "bad")
    fetcher.request(records)
    errors = fetcher.take(records)
    assert sorted(errors) == [1, 3] and [record.data is None for record in records] == [False, True, False, True]
    assert fetcher._held == 0 and fetcher._jobs == {}


def test_an_interrupt_while_waiting_leaves_no_requests(bucket, monkeypatch):
    """After an interrupted epoch the next one fetches the objects again."""
    fetcher = Fetcher()
    bucket.released.clear()
    fetcher.request(bucket.records("a", "b"))
    wait(lambda: bucket.running == 2)
    with monkeypatch.context() as patched:
        patched.setattr(concurrent.futures.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetcher.take(bucket.records("a", "b"))
    fetcher.close()
    wait(lambda: not bucket.running and not fetcher._jobs)  # close() does not wait for this
    bucket.released.set()
    assert fetcher._jobs == {} and fetcher._held == 0 and fetcher._running == 0
    records, fetcher = bucket.records("a", "b"), Fetcher()
    assert fetcher.take(records) == {} and all(len(record.data) == 1000 for record in records)
    assert fetcher._jobs == {} and fetcher._held == 0 and fetcher._running == 0


def interrupted(*args):
    raise KeyboardInterrupt


def test_take_raises_when_the_fetcher_is_closed(bucket):
    fetcher = Fetcher()
    bucket.released.clear()
    threading.Timer(0.1, fetcher.close).start()
    with pytest.raises(RuntimeError, match="the epoch is over"):
        fetcher.take(bucket.records("a"))
    with pytest.raises(RuntimeError, match="the epoch is over"):
        fetcher.take(bucket.records("b"))
    assert bucket.requested == ["a"]
