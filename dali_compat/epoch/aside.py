"""A thread that sets DALI to work on the next batches while the caller uses the one that it got.

It works between two calls of next() alone: whoever asks for a batch waits for it first. So nothing of an epoch is used
by two threads at a time, and what it does needs no locks.

Beside a GPU it does not begin at once. A step begins with launches, which need the interpreter's lock as its work does,
and a GPU that has nothing to do waits for them where the caller reads each step's loss.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as futures_wait
from contextlib import nullcontext, suppress
from time import perf_counter

import torch

from ..engine.device import working_on
from ..engine.planes import engines
from ..locks import unlock_all

_PATIENCE = 0.25  # seconds: an interrupt may have left locked what the thread waits for
_REST, _LONGEST_REST = 0.5, 0.02  # of what the caller took for its last step; seconds


class Aside:
    """One such thread. It ends with end(), or the program.

    Args:
        device: where batches come out; of a GPU the caller's current stream is current in the thread, too.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dali_compat aside")
        self._thread = 0
        self._last: Future | None = None
        self._idle, self._running = True, False
        self._ends: deque[Callable[[], None]] = deque()
        self._needed, self._given_at, self._rest = threading.Event(), 0.0, 0.0
        try:
            self._thread = self._pool.submit(threading.get_ident).result()  # now: an interrupt must not leave two
        except BaseException as error:
            # Python's end waits for a thread whose start an interrupt has stopped, and does not tell it to end
            self._pool.shutdown(wait=False)
            if not _is_refusal(error):
                raise

    def do(self, work: Callable[[], None]) -> None:
        """Call ``work`` there. wait() comes before the next call."""
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        self._needed.clear()
        self._given_at = perf_counter()
        _open.add(self)  # or the garbage collector ends the thread before it ends the iterator, which waits for it
        self._idle = False  # before it is so: an interrupt may come between the two
        try:
            self._last = self._pool.submit(self._run, work, stream)
        except RuntimeError as error:
            if not _is_refusal(error):  # but a signal's handler's
                raise
            work()

    def wait(self) -> None:
        """Wait until it has done what it was asked for.

        Raises:
            Exception: what it has met.
        """
        if self._idle or self.is_here:
            return
        if self._device.type == "cuda":
            self._rest = min(_LONGEST_REST, _REST * (perf_counter() - self._given_at))
        self.settle()
        last, self._last, self._idle = self._last, None, True
        try:
            if last is not None:
                last.result()
        finally:
            del last  # it refers to its error, that to its traceback, and that to this frame

    @property
    def is_here(self) -> bool:
        """Whether this is the thread: the garbage collector ends iterators in any."""
        return self._thread == threading.get_ident()

    def settle(self, within: bool = False) -> None:
        """Wait until everything so far is done, whether or not it is known of. ``within``: a lock's block may be around
        this call, so the wait is short."""
        if self._idle or self.is_here:
            return
        self._needed.set()
        last = self._last
        if last is None:  # an interrupt came after it was asked for
            if within:
                return
            try:
                last = self._pool.submit(int)
            except RuntimeError as error:  # what was asked for was done here
                if not _is_refusal(error):
                    raise
                return
        while not last.done():  # no timeout's error: a signal's handler may raise the same
            futures_wait([last], _PATIENCE)
            if within:
                return
            if not last.done():
                unlock_all()

    def end(self, work: Callable[[], None], within: bool) -> None:
        """Call ``work`` when everything is done, whatever it has met; the thread ends then. It calls ``work`` itself
        where it cannot be waited for: the garbage collector came by in the middle of what it does, or ``within`` a
        lock's block, and the thread waits for that lock.
        """
        self._ends.append(work)  # the thread looks there, too
        try:
            if not self.is_here:
                self.settle(within)
                busy = not self._idle and self._last is not None and not self._last.done()
            else:
                busy = self._running
            if not busy:
                self._end()
        finally:
            self._pool.shutdown(wait=False)
            _open.discard(self)

    def _end(self) -> None:
        with suppress(IndexError):  # whoever is first
            self._ends.popleft()()

    def before_fork(self) -> None:
        """A lock that the thread has when the process forks is never free in the child."""
        self.settle()

    def _run(self, work: Callable[[], None], stream: torch.cuda.Stream | None) -> None:
        self._running = True
        try:
            self._needed.wait(self._rest)
            with nullcontext() if stream is None else working_on(stream):
                work()
        finally:
            del work  # before anything is ended
            if self._ends:
                self._end()
            self._running = False


def _is_refusal(error: BaseException) -> bool:
    """A pool's: the main thread has ended, and with it every pool; this thread lives on."""
    return str(error).startswith("cannot schedule new futures")


_open: set[Aside] = set()


def _before_fork() -> None:
    for aside in list(_open):
        aside.before_fork()
    engines.before_fork()  # again: asides have begun with comparisons, perhaps, since it was asked


os.register_at_fork(before=_before_fork, after_in_child=_open.clear)
