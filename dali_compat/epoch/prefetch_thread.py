"""A thread that sets DALI to work on the next batches while the caller uses the one that it got.

It works between two calls of next() alone: whoever asks for a batch waits for it first. So nothing of an epoch is used
by two threads at a time, and what it does needs no locks.

Beside a GPU it does not begin at once. A step begins with launches, which need the interpreter's lock as its work does,
and a GPU that has nothing to do waits for them where the caller reads each step's loss.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as futures_wait
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from time import perf_counter

import torch

from ..engine.planes import engines
from ..runtime.device import working_on
from ..runtime.forks import unlock_all

_PATIENCE = 5.0  # seconds for the end of an epoch
_REST, _LONGEST_REST = 0.5, 0.02  # of what the caller took for its last step; seconds


class PrefetchThread:
    """One such thread. It ends with end(), or the program.

    Args:
        device: where batches come out; of a GPU the caller's current stream is current in the thread, too.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # its put() is for garbage collectors, too
        self._last: Future[None] | None = None
        self._ending, self._ended = False, threading.Event()
        self._needed, self._given_at, self._rest = threading.Event(), 0.0, 0.0
        self._thread = threading.Thread(target=self._serve, name="dali_compat prefetch", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # an interrupt, perhaps, when it had started
            self._tasks.put(None)
            raise

    def do(self, work: Callable[[], None]) -> None:
        """Call ``work`` there. wait() comes before the next call."""
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        self._needed.clear()
        self._given_at = perf_counter()
        self._last = Future()
        self._tasks.put(partial(self._run, self._last, work, stream))

    def wait(self) -> None:
        """Wait until it has done what it was asked for.

        Raises:
            BaseException: what it has met.
        """
        last, self._last = self._last, None
        if last is None:
            return
        if self._device.type == "cuda":
            self._rest = min(_LONGEST_REST, _REST * (perf_counter() - self._given_at))
        self._needed.set()
        try:
            while not (last.done() or futures_wait([last], _PATIENCE).done):
                unlock_all()  # an exception of a signal's handler may have left one locked
            last.result()
        finally:
            del last  # it refers to its error, that to its traceback, and that to this frame

    def end(self, work: Callable[[], None], waits: bool) -> None:
        """Call ``work`` there when everything is done, whatever it has met; the thread ends then. ``waits``: unless the
        garbage collector has come by in the middle of what the thread does."""
        self._ending, self._last = True, None
        self._needed.set()
        self._tasks.put(work)
        self._tasks.put(None)
        if waits and self._thread is not threading.current_thread():
            self._ended.wait()

    def settle(self) -> None:
        """Wait until nothing is under way there. A lock that the thread has when the process forks is never free in the
        child; and at the program's end Python would stop it anywhere."""
        last = self._last
        if self._thread is threading.current_thread():
            return
        self._needed.set()
        if self._ending:
            self._ended.wait(_PATIENCE)
        elif last is not None:
            futures_wait([last])

    def _serve(self) -> None:
        _open.add(self)
        try:
            while (task := self._tasks.get()) is not None:
                task()
                del task  # before it waits
        finally:
            _open.discard(self)
            self._ended.set()

    def _run(self, done: Future[None], work: Callable[[], None], stream: torch.cuda.Stream | None) -> None:
        try:
            self._needed.wait(self._rest)
            with nullcontext() if stream is None else working_on(stream):
                work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        finally:
            del done, work  # what ends an epoch comes next


_open: set[PrefetchThread] = set()


def _before_fork() -> None:
    for thread in list(_open):
        thread.settle()
    engines.before_fork()  # again: threads have begun with comparisons, perhaps, since it was asked


@atexit.register
def _at_exit() -> None:
    for thread in list(_open):
        thread.settle()


os.register_at_fork(before=_before_fork, after_in_child=_open.clear)
