"""The thread that all requests run in: an event loop, so that a caller who waits can be interrupted at any time.

A process that was forked from one that had read objects has no such thread, and would wait for obstore's for ever. So a
process that is no fork gets objects for it (HelperProcess). torch's own workers read this way.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
import threading
from collections.abc import Coroutine
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ..runtime.forks import FreshProcess, new_lock
from .urls import failed

T = TypeVar("T")

_lock = new_lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_is_forked = False  # this process is a child of one that has read objects: obstore's threads are not here
_is_over = False  # the program ends
_PATIENCE = 2.0  # seconds for requests to end with the program


def is_forked() -> bool:
    """Returns True if this process was forked from one that had read objects."""
    return _is_forked


def event_loop() -> asyncio.AbstractEventLoop:
    """Returns the loop, which runs. Raises RuntimeError if this process was forked from one that had read objects
    already, or ends."""
    global _loop, _thread
    if _is_forked:
        raise RuntimeError(
            "this process was forked from one that had read objects already: it can index data sets in object storage, "
            "but neither list them nor iterate loaders over them; start it with multiprocessing.get_context('spawn')"
        )
    if _is_over:
        raise RuntimeError("the program ends: no objects are read any more")
    with _lock:
        if _loop is None:
            loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=loop.run_forever, name="dali_compat objects", daemon=True)
            _thread.start()
            _loop = loop
        return _loop


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in the loop, and returns what it returns. An interrupt cancels it. In a forked process it runs
    here."""
    if _is_forked:
        return asyncio.run(coroutine)
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, event_loop())
    except BaseException:
        coroutine.close()
        raise
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class HelperProcess(FreshProcess):
    """Gets objects for one forked process until that ends, one at a time."""

    def __init__(self) -> None:
        super().__init__(__name__)
        self._lock, self._asked = new_lock(), 0

    def get(self, client: Any, url: str) -> Any:
        """Returns what ``client.get(url)`` returns. Raises ImageReadError if it cannot be read."""
        with self._lock:
            self._asked += 1
            self.requests.send_bytes(pickle.dumps((self._asked, client, url)))
            number = 0
            while number != self._asked:  # an interrupt has left others in the pipe
                number, made = self.answers.recv()
        if isinstance(made, Exception):
            raise made
        made.data.flags.writeable = False
        return made


def serve(requests: Connection, answers: Connection) -> None:
    """Answers a HelperProcess's requests, until nobody can ask any more."""
    clients: dict[bytes, Any] = {}  # pickled, so that one keeps its connections
    loop = asyncio.new_event_loop()
    with suppress(EOFError, BrokenPipeError):
        while True:
            number, client, url = pickle.loads(requests.recv_bytes())
            client = clients.setdefault(pickle.dumps(client), client)
            try:
                answers.send((number, loop.run_until_complete(client.get(url))))
            except Exception as error:
                answers.send((number, failed(url, error)))


def _end() -> None:
    """Cancels all requests, and ends the thread: obstore must not call an interpreter that ends."""
    global _is_over
    _is_over = True
    loop, thread = _loop, _thread
    if loop is None or thread is None or not thread.is_alive():
        return

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_later(0.01, loop.stop)  # once they have met it

    loop.call_soon_threadsafe(cancel)
    thread.join(_PATIENCE)


def _in_child() -> None:
    global _loop, _thread, _is_forked
    _is_forked = _is_forked or _loop is not None
    _loop = _thread = None


os.register_at_fork(after_in_child=_in_child)
# before Python waits for threads that wait for requests; atexit's own functions come after that
getattr(threading, "_register_atexit", atexit.register)(_end)
