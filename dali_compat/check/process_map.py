"""Applies a function to many items in processes; an item that ends its process costs only itself."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, NamedTuple

from ..workers.worker import stay_with_the_parent

_CHUNK = 8  # items; more save no measurable time
_AHEAD = 4  # pending chunks a process
_PATIENCE = 0.1  # seconds between calls of stop()


class Crash(NamedTuple):
    """In place of a result: how the process ended that had this item alone."""

    how: str


def process_map(
    function: Callable, items: Iterable, processes: int, stop: Callable[[], bool] = lambda: False
) -> Generator[tuple[Any, Any], None, None]:
    """Yields (item, function(item)) for each item, in order, computed by so many processes.

    Args:
        function: takes an item, and raises nothing. Items and results can be pickled.
        items: iterated as they are needed; few are held at a time.
        processes: 1 or more; they ignore SIGINT and end with this generator.
        stop: called ten times a second and more; True ends the generator.
    """
    items, pending = iter(items), deque[tuple[list, Future]]()
    pool = _pool(function, processes)
    try:
        while not stop():
            while len(pending) < _AHEAD * processes and (chunk := list(islice(items, _CHUNK))):
                try:
                    future = pool.submit(_apply, chunk)
                except BrokenProcessPool:
                    _kill(pool)
                    pool = _pool(function, processes)
                    future = pool.submit(_apply, chunk)
                pending.append((chunk, future))
            if not pending:
                return
            chunk, future = pending[0]
            if wait([future], _PATIENCE).done:
                pending.popleft()
                found = _alone(function, chunk) if future.exception() else future.result()
                yield from zip(chunk, found, strict=True)
    finally:
        _kill(pool)


def _alone(function: Callable, chunk: list) -> list:
    """Returns the results of a chunk by a process of its own; of each item, if that crashes."""
    pool = _pool(function, 1)
    try:
        future = pool.submit(_apply, chunk)
        (process,) = pool._processes.values()
        if not future.exception():
            return future.result()
    finally:
        _kill(pool)
    if len(chunk) > 1:
        return [found for item in chunk for found in _alone(function, [item])]
    code = process.exitcode or 0
    return [Crash(signal.Signals(-code).name if code < 0 else f"exit code {code}")]


def _pool(function: Callable, processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _begin, (function,))


def _kill(pool: ProcessPoolExecutor) -> None:
    """Ends a pool at once: its processes write nothing."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(cancel_futures=True)  # when its thread has ended, all exit codes are known


# ---- in the processes

_function: Callable


def _begin(function: Callable) -> None:
    global _function
    _function = function
    stay_with_the_parent()
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # errors follow, which are reported


def _apply(chunk: list) -> list:
    return [_function(item) for item in chunk]
