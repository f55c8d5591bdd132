"""Locks and hooks for forks, new Python processes, and program exit with daemon threads.

A forked child inherits all locks, but only the forking thread. That thread acquires the locks from new_lock() before
the fork, to keep the guarded data consistent. It releases them afterwards, also in the child.

In some versions of Python, a signal can stop a thread between the end of a ``with`` block and the release of its lock.
The lock is re-entrant, so this thread can continue, but others would wait forever. unlock_all() releases such locks.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeVar, cast

from . import internals

_ORDER = (
    "prefetch threads",  # first, because they start other threads
    "JPEG engines",
    "nvJPEG",
    "Triton",
    "pipelines",  # after all threads that use them
    "iterators",
    "event loop",
    "executor",
    "daemon threads",
    "locks",  # after all hooks that wait for a thread, which may need a lock
    "interpreter",  # as late as possible
)
"""Stages of a fork. Their hooks run in this order before it, and in the reverse order after it, in parent and child."""

_hooks: dict[str, dict[str, Callable[[], Any]]] = {stage: {} for stage in _ORDER}


def at_fork(stage: str, **hooks: Callable[[], Any]) -> None:
    """Set hooks for every fork, as os.register_at_fork() does. ``stage``, one of _ORDER, determines when they run."""
    _hooks[stage].update(hooks)


def _run(stage: str, when: str) -> None:
    _hooks[stage].get(when, bool)()


for _stage in reversed(_ORDER):  # separate hooks, because Python runs the others if one raises
    os.register_at_fork(
        before=partial(_run, _stage, "before"),  # Python runs these in reverse order of registration
        after_in_parent=partial(_run, _stage, "after_in_parent"),
        after_in_child=partial(_run, _stage, "after_in_child"),
    )

at_fork("interpreter", before=internals.take_head_lock)


def leak_in_child(one: object) -> None:
    """Keep an object in this process forever, so it is never freed."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


_PATIENCE = 1.0  # seconds to wait for locks at a fork

_all: weakref.WeakSet = weakref.WeakSet()
_held: dict[int, list] = {}  # locks acquired for a fork, keyed by the ID of the forking thread


def new_lock() -> threading.RLock:
    """Return a re-entrant lock that is never held in a forked child."""
    made = threading.RLock()
    _all.add(made)
    return made


def unlock_all() -> None:
    """Release all locks from new_lock() that this thread holds. Do not call this in a ``with`` block of such a lock."""
    for lock in _in_order():
        with suppress(RuntimeError):  # raised if this thread does not hold the lock
            while True:
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
    _held.clear()  # entries of other threads
    for lock in _in_order():
        if lock.acquire(blocking=False):
            lock.release()
        else:  # its holder does not exist in the child
            internals.reset_lock(lock)


def _in_order() -> list:
    """Return all locks. All threads use the same order, because two forking threads might otherwise deadlock."""
    while True:
        with suppress(RuntimeError):  # another thread is creating a lock
            return sorted(_all, key=id)


at_fork("locks", before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


# ---- exit of the program while daemon threads still request batches
#
# At exit, Python ends a daemon thread when the thread next needs the GIL. In C++ code, this calls std::terminate().
# end_daemons_at_exit() therefore ends daemon threads earlier, after their batch.

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE_AT_END, _PAUSE = 5.0, 0.002  # seconds to wait for batches in progress, and between polls

_loading: set[int] = set()  # threads in functions of end_daemons_at_exit()
_deadline: float | None = None  # set when the program exits
at_fork("daemon threads", after_in_child=_loading.clear)


def end_daemons_at_exit(function: F) -> F:
    """Decorator for functions that daemon threads call. Once the program has begun to exit, a call by such a thread
    raises SystemExit, at its beginning or end."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        within = thread in _loading  # a nested call
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
    """At exit, wait up to 5 seconds for other threads to return from functions decorated with end_daemons_at_exit()."""
    global _deadline
    _deadline = _deadline or time.monotonic() + _PATIENCE_AT_END
    while _loading - {threading.get_ident()} and time.monotonic() < _deadline:
        time.sleep(_PAUSE)


def _end_daemon() -> None:
    if _deadline is not None and threading.current_thread().daemon:
        raise SystemExit


_ROOT = str(Path(__file__).parents[2])
_CODE = """
import importlib, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is its parent's
from multiprocessing.connection import Connection
sys.path[: not getattr(sys.flags, "safe_path", False)] = [sys.argv[1]]  # in the place of the current folder
requests, answers = map(int, sys.argv[3:])
serve = importlib.import_module(sys.argv[2]).serve
serve(Connection(requests, writable=False), Connection(answers, readable=False))
"""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class FreshProcess:
    """A Python process that is not a fork. It runs ``serve(requests, answers)`` of a module until its parent exits or
    calls end(). Unlike a spawned process of multiprocessing, it does not import the user's script.

    Attributes:
        requests, answers: the parent's ends of the pipes.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, module: str) -> None:
        there, self.requests = Pipe(duplex=False)
        self.answers, back = Pipe(duplex=False)
        with there, back:
            ends = there.fileno(), back.fileno()
            command = [sys.executable, "-c", _CODE, _ROOT, module, *map(str, ends)]
            environment = {**os.environ, **_ONE_THREAD}
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=ends, env=environment)

    def end(self) -> None:
        self.requests.close()
        self.answers.close()
        self._process.kill()
        self._process.wait()
