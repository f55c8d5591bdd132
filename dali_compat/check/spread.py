"""A function on many items in processes; an item that kills its process is told apart, and the rest goes on."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

_SECONDS = 0.1  # of work in a chunk, so that the bar moves
_MOST = 32  # items in a chunk; from 8 on, more save no measurable time
_AHEAD = 8  # chunks a process that may be done before an earlier one
_PATIENCE = 0.1  # seconds between looks at stop()


class Crash(NamedTuple):
    """In place of a result: how the process ended, twice, with this item alone."""

    how: str


def spread(
    function: Callable, items: Iterable, processes: int, stop: Callable[[], bool] = lambda: False
) -> Generator[tuple[Any, Any], None, None]:
    """(item, function(item)) of each item, in order, by so many processes. Few items are held at a time.

    Args:
        function: takes an item, and raises nothing. It, items and results can be pickled.
        items: asked for as they are needed.
        processes: 1 or more; they ignore SIGINT and end with this generator.
        stop: asked ten times a second and more; once it says True, what is done is given, and that is the end.
    """
    pool = _Pool(function, processes)
    try:
        yield from pool.run(iter(items), stop)
    finally:
        pool.kill()


class _Pool:
    def __init__(self, function: Callable, processes: int):
        self._workers: list[_Worker] = []
        for _ in range(processes):
            self._workers.append(_Worker(function, self._workers))
        self._chunk = 1

    def run(self, items: Iterator, stop: Callable[[], bool]) -> Iterator[tuple[Any, Any]]:
        done: dict[int, list] = {}  # chunks that wait for an earlier one
        given = taken = 0
        while not stop():
            for worker in self._workers:
                if not worker.busy and given - taken < _AHEAD * len(self._workers):
                    chunk = list(islice(items, self._chunk))
                    if chunk:
                        worker.give(given, chunk)
                        given += 1
            busy = {worker.connection: worker for worker in self._workers if worker.busy}
            if not busy:
                return
            for connection in wait(list(busy), _PATIENCE):
                worker = busy[connection]  # type: ignore[index]  # wait() gives what it was given
                worker.take()
                if not worker.busy:
                    done[worker.number] = worker.found
                    fitting = round(_SECONDS / worker.seconds_per_item())
                    # at most doubled, for small files may stand before large ones
                    self._chunk = max(1, min(2 * self._chunk, fitting, _MOST))
            while taken in done:
                yield from done.pop(taken)
                taken += 1
        for number in sorted(done):
            yield from done[number]

    def kill(self) -> None:
        for worker in self._workers:
            worker.process.kill()  # nothing is written: there is nothing to wait for
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()


class _Worker:
    """A process and the chunk that it works on.

    Attributes:
        connection, process: change when the process has died.
        busy: whether there is a chunk.
        number, found: of the chunk, and its results so far.
    """

    def __init__(self, function: Callable, siblings: list[_Worker]):
        self._function, self._siblings = function, siblings
        self.busy, self.number = False, -1
        self.found: list[tuple[Any, Any]] = []
        self._start()

    def give(self, number: int, chunk: list) -> None:
        self.busy, self.number, self.found = True, number, []
        self._left = [(chunk, False)]  # items, whether an end is their fault
        self._begin = time.perf_counter()
        self._send()

    def take(self) -> None:
        """The results are there, or the process has died: then each item is tried alone."""
        try:
            self.found += zip(self._items, self.connection.recv(), strict=True)
        except (EOFError, OSError):
            how = self._start_again()
            if self._alone:
                self.found.append((self._items[0], Crash(how)))
            else:
                self._left = [([item], True) for item in self._items]
        if self._left:
            self._send()
        else:
            self.busy = False

    def seconds_per_item(self) -> float:
        return (time.perf_counter() - self._begin) / len(self.found)

    def _send(self) -> None:
        self._items, self._alone = self._left.pop(0)
        with suppress(OSError):  # it has died meanwhile, which take() will see
            self.connection.send(self._items)

    def _start(self) -> None:
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        self.connection, theirs = context.Pipe()
        ours = [self.connection, *(sibling.connection for sibling in self._siblings if sibling is not self)]
        self.process = context.Process(target=_serve, args=(theirs, self._function, ours), daemon=True)
        self.process.start()
        theirs.close()

    def _start_again(self) -> str:
        self.connection.close()
        self.process.join()
        code = self.process.exitcode
        self._start()
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def _serve(connection: Connection, function: Callable, others: list[Connection]) -> None:
    """A process's life. It ends when the parent's end of its connection closes, of which it must hold no copy."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # errors follow, which are reported
    for other in others:
        other.close()
    with suppress(EOFError, OSError):
        while True:
            connection.send([function(item) for item in connection.recv()])
