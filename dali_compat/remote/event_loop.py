"""The thread that runs all requests in an event loop. An interrupt ends the wait for a request.

A process that was forked after objects were read has no such thread. It fetches objects with a HelperProcess instead.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Coroutine
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ..runtime.forks import FreshProcess, at_fork, new_lock
from ..runtime.internals import at_exit_before_threads
from .urls import as_read_error

T = TypeVar("T")

_lock = new_lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_is_forked = False  # this process was forked after objects were read
_is_exiting = False
_PATIENCE = 2.0  # seconds to wait at exit for requests to end


def is_forked() -> bool:
    """Return True if this process was forked after its parent had read objects."""
    return _is_forked


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop, and start it if necessary.

    Raise RuntimeError if is_forked() or if the program is exiting.
    """
    global _loop, _thread
    if _is_forked:
        raise RuntimeError(
            "cannot list object storage, or iterate over a DataLoader whose images are stored there, because this "
            "process was forked after its parent had read from object storage; start the process with "
            "multiprocessing.get_context('spawn')"
        )
    if _is_exiting:
        raise RuntimeError("cannot read objects because the program is exiting")
    with _lock:
        if _loop is None:
            loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=loop.run_forever, name="dali_compat objects", daemon=True)
            _thread.start()
            _loop = loop
        return _loop


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop and return its result. An interrupt cancels the coroutine."""
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
    """A process that fetches objects for a forked process, one at a time, and ends when the forked process ends."""

    def __init__(self) -> None:
        super().__init__(__name__)
        self._lock, self._sent = new_lock(), 0

    def get(self, client: Any, url: str) -> Any:
        """Return the result of ``client.get(url)``. Raise ImageReadError if the object cannot be read."""
        with self._lock:
            self._sent += 1
            self.requests.send_bytes(pickle.dumps((self._sent, client, url)))
            number = 0
            while number != self._sent:  # skip answers to requests that an interrupt has abandoned
                number, made = self.answers.recv()
        if isinstance(made, Exception):
            raise made
        made.data.flags.writeable = False
        return made


def serve(requests: Connection, answers: Connection) -> None:
    clients: dict[bytes, Any] = {}  # keyed by pickled client, to reuse its connections
    loop = asyncio.new_event_loop()
    with suppress(EOFError, BrokenPipeError):
        while True:
            number, client, url = pickle.loads(requests.recv_bytes())
            client = clients.setdefault(pickle.dumps(client), client)
            try:
                answers.send((number, loop.run_until_complete(client.get(url))))
            except Exception as error:
                answers.send((number, as_read_error(url, error)))


def _stop() -> None:
    """Cancel all requests and end the thread, because obstore must not call a finalized interpreter."""
    global _is_exiting
    _is_exiting = True
    loop, thread = _loop, _thread
    if loop is None or thread is None or not thread.is_alive():
        return

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_later(0.01, loop.stop)  # after the tasks have handled the cancellation

    loop.call_soon_threadsafe(cancel)
    thread.join(_PATIENCE)


def _in_child() -> None:
    global _loop, _thread, _is_forked
    _is_forked = _is_forked or _loop is not None
    _loop = _thread = None


at_fork("event loop", after_in_child=_in_child)
at_exit_before_threads(_stop)  # threads may wait for requests
