"""Locks that an interrupt does not leave locked for good.

Whatever stops a thread between the end of a ``with`` and the lock's own (a signal, in some versions of Python; a
debugger) leaves it locked. The thread itself does not notice, for the locks are re-entrant; others would wait for ever.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress

_all: weakref.WeakSet = weakref.WeakSet()


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
