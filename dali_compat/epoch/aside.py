"""A thread that sets DALI to work on the next batches while the caller uses the one that it got.

It works between two calls of next() alone: whoever asks for a batch waits for it first. So nothing of an epoch is used
by two threads at a time, and what it does needs no locks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress

import torch

from ..locks import unlock_all

_PATIENCE = 2.0  # seconds: an interrupt may have left locked what the thread waits for


class Aside:
    """One such thread. It ends with close(), or the program.

    Args:
        device: where batches come out; of a GPU the caller's current stream is current in the thread, too.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dali_compat aside")
        self._thread = self._pool.submit(threading.get_ident).result()  # now: an interrupt must not leave two of them
        self._last: Future | None = None
        self._idle = True
        _open.add(self)  # or the garbage collector ends the thread before it ends the iterator, which waits for it

    def do(self, work: Callable[[], None]) -> None:
        """Call ``work`` there. wait() comes before the next call."""
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        self._idle = False  # before it is so: an interrupt may come between the two
        try:
            self._last = self._pool.submit(_run, work, stream)
        except RuntimeError:  # the main thread has ended, and with it every pool; this thread lives on
            work()

    def wait(self) -> None:
        """Until it has done what it was asked for.

        Raises:
            Exception: what it has met.
        """
        if self._idle or self.is_here:
            return
        last = self._last
        if last is None or not last.done():
            self._settle()
            last = self._last
        self._last, self._idle = None, True
        if last is not None:
            last.result()

    @property
    def is_here(self) -> bool:
        """Whether this is the thread: the garbage collector ends iterators in any."""
        return self._thread == threading.get_ident()

    def _settle(self) -> None:
        """Until everything so far is done, whether or not it is known of."""
        with suppress(RuntimeError):  # as in do(): what was asked for is done when the main thread has ended
            after = self._pool.submit(int)
            while not after.done():
                with suppress(TimeoutError):
                    after.result(_PATIENCE)
                    return
                unlock_all()

    def close(self) -> None:
        """It ends when it has done what it was asked for."""
        self._pool.shutdown(wait=False)
        _open.discard(self)

    def before_fork(self) -> None:
        """A lock that the thread has when the process forks is never free in the child."""
        if not self._idle and not self.is_here and (self._last is None or not self._last.done()):
            self._settle()


def _run(work: Callable[[], None], stream: torch.cuda.Stream | None) -> None:
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        work()


_open: set[Aside] = set()


def _before_fork() -> None:
    for aside in list(_open):
        aside.before_fork()


os.register_at_fork(before=_before_fork, after_in_child=_open.clear)
