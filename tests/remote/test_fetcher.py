"""Objects are fetched ahead in order, within a budget, and handed over as often as they are asked for."""

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
    """Objects of 1,000 bytes that come when they may. ``asked``: in which order."""

    def __init__(self):
        self.asked, self.running, self.most = [], 0, 0
        self.may = threading.Event()
        self.may.set()

    def size(self, url: str) -> int:
        return 1000

    async def get(self, url: str, retried) -> Fetched:
        self.asked.append(url)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            while not self.may.is_set():
                await asyncio.sleep(0.001)
            if url.startswith("bad"):
                raise ImageReadError(url)
            return Fetched(np.full(1000, len(self.asked), np.uint8), "")
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


def test_requests_run_ahead_in_order_and_within_the_limits(bucket, monkeypatch):
    monkeypatch.setattr(fetching, "REQUESTS", 3)
    fetcher = Fetcher()
    bucket.may.clear()
    names = [f"{number}" for number in range(10)]
    fetcher.request(bucket.records(*names))
    wait(lambda: len(bucket.asked) == 3)
    time.sleep(0.05)
    assert bucket.asked == names[:3]
    bucket.may.set()
    wait(lambda: len(bucket.asked) == 10 and not bucket.running)
    assert bucket.asked == names and bucket.most == 3
    records = bucket.records(*names)
    assert fetcher.take(records) == {} and all(len(record.data) == 1000 for record in records)
    assert bucket.asked == names
    assert fetcher.counts()[:3] == (10, 0, 10_000)


def test_the_budget_holds_back_what_no_batch_has_taken(bucket, monkeypatch):
    monkeypatch.setattr(fetching, "BUDGET", 4500)
    fetcher = Fetcher()
    names = [f"{number}" for number in range(10)]
    fetcher.request(bucket.records(*names))
    wait(lambda: len(bucket.asked) == 4)
    time.sleep(0.05)
    assert bucket.asked == names[:4]
    fetcher.take(bucket.records(*names[:2]))
    wait(lambda: len(bucket.asked) == 6)
    fetcher.take(bucket.records("8", "9"))  # what is waited for comes at once
    assert sorted(bucket.asked) == [*names[:6], "8", "9"]
    fetcher.take(bucket.records(*names[2:8]))
    assert sorted(bucket.asked) == names and fetcher._held == 0 and fetcher._jobs == {}


def test_one_object_is_larger_than_the_budget(bucket, monkeypatch):
    monkeypatch.setattr(fetching, "BUDGET", 10)
    fetcher = Fetcher()
    fetcher.request(bucket.records("a", "b"))
    wait(lambda: bucket.asked == ["a"])
    for name in ("a", "b"):
        assert fetcher.take(bucket.records(name)) == {}
    assert bucket.asked == ["a", "b"]


def test_an_object_that_several_samples_need_is_fetched_once(bucket):
    fetcher = Fetcher()
    fetcher.request(bucket.records("a", "b", "a"))
    fetcher.request(bucket.records("a"))
    fetcher.take(bucket.records("a", "b", "a"))
    assert len(fetcher._jobs) == 1
    fetcher.take(bucket.records("a"))
    assert sorted(bucket.asked) == ["a", "b"] and fetcher._jobs == {} and fetcher._held == 0
    several = bucket.records("c", "c")  # nobody has requested them
    fetcher.take(several)
    assert all(record.data is not None for record in several) and fetcher._jobs == {}


def test_errors_are_those_of_their_objects(bucket):
    fetcher = Fetcher()
    records = bucket.records("a", "bad", "b", "bad")
    fetcher.request(records)
    errors = fetcher.take(records)
    assert sorted(errors) == [1, 3] and [record.data is None for record in records] == [False, True, False, True]
    assert fetcher._held == 0 and fetcher._jobs == {}


def test_an_interrupt_in_the_middle_of_waiting_leaves_nothing(bucket, monkeypatch):
    """Its epoch is over; the next one fetches anew."""
    fetcher = Fetcher()
    bucket.may.clear()
    fetcher.request(bucket.records("a", "b"))
    wait(lambda: bucket.running == 2)
    with monkeypatch.context() as patched:
        patched.setattr(concurrent.futures.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetcher.take(bucket.records("a", "b"))
    fetcher.close()
    wait(lambda: not bucket.running and not fetcher._jobs)  # close() does not wait for it
    bucket.may.set()
    assert fetcher._jobs == {} and fetcher._held == 0 and fetcher._running == 0
    records, fetcher = bucket.records("a", "b"), Fetcher()
    assert fetcher.take(records) == {} and all(len(record.data) == 1000 for record in records)
    assert fetcher._jobs == {} and fetcher._held == 0 and fetcher._running == 0


def interrupted(*args):
    raise KeyboardInterrupt


def test_who_waits_when_it_closes_gets_an_error(bucket):
    fetcher = Fetcher()
    bucket.may.clear()
    threading.Timer(0.1, fetcher.close).start()
    with pytest.raises(RuntimeError, match="the epoch is over"):
        fetcher.take(bucket.records("a"))
    with pytest.raises(RuntimeError, match="the epoch is over"):
        fetcher.take(bucket.records("b"))
    assert bucket.asked == ["a"]
