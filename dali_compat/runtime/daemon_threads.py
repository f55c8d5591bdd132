"""A program's end beside daemon threads that still ask for batches.

Python waits for no daemon thread: it ends one as soon as it next needs the interpreter, be it in the middle of C++,
which then ends the process by std::terminate(), and what the thread works with may be gone before. So such a thread
ends with the batch that it has asked for, as by sys.exit(): in silence, and with all of its ``finally`` blocks.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE, _PAUSE = 5.0, 0.002  # seconds for batches that are being made; between looks at them

_loading: set[int] = set()  # threads within the functions of until_the_end()
_deadline: float | None = None  # once the program ends
os.register_at_fork(after_in_child=_loading.clear)


def until_the_end(function: F) -> F:
    """The function, which a daemon thread neither enters nor returns from once the program ends: it ends there."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        within = thread in _loading  # another such function
        _loading.add(thread)
        try:
            _end_daemon()
            return function(*args, **kwargs)
        finally:
            if not within:
                _loading.discard(thread)
            _end_daemon()

    return cast(F, call)


def wait_for_daemons() -> None:
    """Wait until no other thread makes a batch: called at the interpreter's end, before what batches need is freed."""
    global _deadline
    _deadline = _deadline or time.monotonic() + _PATIENCE
    while _loading - {threading.get_ident()} and time.monotonic() < _deadline:
        time.sleep(_PAUSE)


def _end_daemon() -> None:
    if _deadline is not None and threading.current_thread().daemon:
        raise SystemExit
