"""Applies a function to many items in processes; an item that ends its process is told apart, and the rest goes on."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ..workers.worker import stay_with_the_parent

_CHUNK = 8  # items; more save no measurable time
_AHEAD = 4  # chunks a process that are under way, or wait for an earlier one
_PATIENCE = 0.1  # seconds between looks at stop()
_FORK = multiprocessing.get_context("fork")


class Crash(NamedTuple):
    """In place of a result: how the process ended that had this item alone."""

    how: str


def process_map(
    function: Callable, items: Iterable, processes: int, stop: Callable[[], bool] = lambda: False
) -> Generator[tuple[Any, Any], None, None]:
    """Yields (item, function(item)) for each item, in order, computed by so many processes.

    Args:
        function: takes an item, and raises nothing. Items and results can be pickled.
        items: asked for as they are needed; few are held at a time.
        processes: 1 or more; they ignore SIGINT and end with this generator.
        stop: asked ten times a second and more; once it says True, what is done is given, and that is the end.
    """
    items, under_way = iter(items), deque[tuple[list, Future]]()
    pool = _pool(function, processes)
    try:
        while not stop():
            while len(under_way) < _AHEAD * processes and (chunk := list(islice(items, _CHUNK))):
                try:
                    future = pool.submit(_apply, chunk)
                except BrokenProcessPool:  # which has ended its processes
                    pool = _pool(function, processes)
                    future = pool.submit(_apply, chunk)
                under_way.append((chunk, future))
            if not under_way:
                return
            chunk, future = under_way[0]
            if wait([future], _PATIENCE).done:
                under_way.popleft()
                found = _alone(function, chunk) if future.exception() else future.result()
                yield from zip(chunk, found, strict=True)
        for chunk, future in under_way:
            if future.done() and not future.exception():
                yield from zip(chunk, future.result(), strict=True)
    finally:
        _kill(pool)


def _pool(function: Callable, processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, _FORK, _begin, (function,))


def _kill(pool: ProcessPoolExecutor) -> None:
    """Nothing is written: there is nothing to wait for."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()
        process.join()


def _alone(function: Callable, chunk: list) -> list:
    """The results of a chunk by a process of its own; of each item, where that crashes."""
    receive, send = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_answer, args=(send, function, chunk), daemon=True)
    process.start()
    send.close()
    found = None
    with closing(receive), suppress(EOFError):
        found = receive.recv()
    process.join()
    if found is not None:
        return found
    if len(chunk) > 1:
        return [found for item in chunk for found in _alone(function, [item])]
    code = process.exitcode or 0
    return [Crash(signal.Signals(-code).name if code < 0 else f"exit code {code}")]


# ---- in the processes

_function: Callable


def _begin(function: Callable) -> None:
    global _function
    _function = function
    stay_with_the_parent()
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # errors follow, which are reported


def _apply(chunk: list) -> list:
    return [_function(item) for item in chunk]


def _answer(connection: Connection, function: Callable, chunk: list) -> None:
    _begin(function)
    connection.send(_apply(chunk))
