"""Locks that neither an interrupt nor a fork leaves locked for good.

Whatever stops a thread between the end of a ``with`` and the lock's own (a signal, in some versions of Python; a
debugger) leaves it locked. The thread itself does not notice, for the locks are re-entrant; others would wait for ever.

A forked child has its parent's locks, but of the threads only the one that forks. So that one takes them all before:
none is another's then, and what they guard is whole.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress

from . import forked as _forked  # noqa: F401 - before the hooks here: what is registered first is called last

_PATIENCE = 1.0  # seconds for who holds a lock at a fork: it may read a file

_all: weakref.WeakSet = weakref.WeakSet()
_held: dict[int, list] = {}  # locks, by the thread that forks


def new_lock() -> threading.RLock:
    """A re-entrant lock."""
    made = threading.RLock()
    _all.add(made)
    return made


def unlock_all() -> None:
    """Release what this thread holds. Only for one that has waited long, outside of any lock's block."""
    with suppress(RuntimeError):  # another thread makes a lock just now: whoever waits comes again
        for lock in list(_all):
            while lock._is_owned():
                lock.release()


def _before_fork() -> None:
    held = _held[threading.get_ident()] = []
    until = time.monotonic() + _PATIENCE
    held.extend(lock for lock in _in_order() if lock.acquire(timeout=max(0, until - time.monotonic())))


def _after_fork() -> None:
    for lock in _held.pop(threading.get_ident(), []):
        lock.release()


def _after_fork_in_child() -> None:
    _after_fork()
    _held.clear()  # of other threads
    for lock in _in_order():
        if not lock._is_owned():  # who has it is not there, if anybody has
            lock._at_fork_reinit()


def _in_order() -> list:
    """All locks, for each thread in the same order: two that fork do not wait for one another."""
    while True:
        with suppress(RuntimeError):  # another thread makes a lock just now
            return sorted(_all, key=id)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
