"""A thread that submits the next batches to DALI while the caller uses the current one.

The thread works only between two calls of next(), because next() first waits for the thread. The epoch's state
therefore needs no locks.

With a GPU, the thread delays its work, because the first kernel launches of a training step need the GIL. The GPU may
be idle until then.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as futures_wait
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from time import perf_counter

import torch

from ..errors import remedy_of
from ..runtime.device import working_on
from ..runtime.forks import at_fork, unlock_all

_PATIENCE = 5.0  # seconds between calls of unlock_all(), and maximum seconds to wait for the end of a thread
_DELAY_SHARE, _MOST_DELAY = 0.5, 0.02  # delay as a share of the caller's last step; maximum delay in seconds


class PrefetchThread:
    """A thread that runs the functions passed to submit(), until end() or program exit.

    Args:
        device: device of the batches. Work on a GPU runs on the CUDA stream that is current when it is submitted.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # put() is reentrant
        self._last: Future[None] | None = None
        self._ending, self._ended = False, threading.Event()
        self._needed, self._submitted_at, self._delay = threading.Event(), 0.0, 0.0
        self._thread = threading.Thread(target=self._serve, name="dali_compat prefetch", daemon=True)
        try:
            self._thread.start()
        except BaseException as error:  # an interrupt may come after the thread has started
            self._tasks.put(None)
            if not remedy_of(error):
                raise

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the thread. Call wait() before the next submit()."""
        if self._thread.ident is None:  # the thread could not be started; next() does the work
            return
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        self._needed.clear()
        self._submitted_at = perf_counter()
        self._last = Future()
        self._tasks.put(partial(self._run, self._last, work, stream))

    def wait(self) -> None:
        """Wait until the submitted work is done. Raise its error."""
        last = self._last
        if last is None:
            return
        if self._device.type == "cuda":
            self._delay = min(_MOST_DELAY, _DELAY_SHARE * (perf_counter() - self._submitted_at))
        self._needed.set()
        try:
            while not (last.done() or futures_wait([last], _PATIENCE).done):
                unlock_all()  # an interrupt may have left a lock held
            self._last = None  # only now, as an interrupted wait() is repeated
            last.result()
        finally:
            del last  # break a reference cycle through the traceback

    def end(self, work: Callable[[], None], waits: bool) -> None:
        """Run ``work`` in the thread, even if the previous work has failed, and end the thread. If ``waits`` is True,
        wait for the end, except in the thread itself or in a forked child."""
        if self._thread.ident is None:
            work()
            return
        self._ending, self._last = True, None
        self._needed.set()
        self._tasks.put(work)
        self._tasks.put(None)
        if waits and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._ended.wait()

    def wait_until_idle(self) -> None:
        """Wait until the thread is idle, before a fork or exit. A forked child could never release a lock that the
        thread holds."""
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
                del task  # freed before get() blocks
        finally:
            _open.discard(self)
            self._ended.set()

    def _run(self, done: Future[None], work: Callable[[], None], stream: torch.cuda.Stream | None) -> None:
        try:
            self._needed.wait(self._delay)
            with nullcontext() if stream is None else working_on(stream):
                work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        finally:
            del done, work  # they may be the last references to an epoch


_open: set[PrefetchThread] = set()


@atexit.register
def _wait_until_all_idle() -> None:
    for thread in list(_open):
        thread.wait_until_idle()


at_fork("prefetch threads", before=_wait_until_all_idle, after_in_child=_open.clear)
