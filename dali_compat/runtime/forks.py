"""Forks, Python processes that are no forks, and the program's end.

Keeps forked children whole: locks that neither an interrupt nor a fork leaves locked, and memory that a child leaks.

Whatever stops a thread between the end of a ``with`` and the lock's own (a signal, in some versions of Python; a
debugger) leaves it locked. The thread itself does not notice, for the locks are re-entrant; others would wait for ever.
A forked child has its parent's locks, but of the threads only the one that forks. So that one takes them all before:
none is another's then, and what they guard is whole.
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

if sys.version_info < (3, 10, 15) or (3, 11) <= sys.version_info < (3, 11, 10):
    # Where a native thread holds CPython's HEAD_LOCK at the fork, a child of these versions waits for it for ever
    # (CPython's issue 112275); gloo's threads take it often. So it is taken once, when all other hooks have run: what
    # remains are the microseconds between this and the fork. sys._current_frames() takes it, too, but may collect
    # garbage meanwhile, and so wait for another thread, which waits for the lock (issue 106883).
    os.register_at_fork(before=partial(ctypes.PyDLL(None).PyThreadState_SetAsyncExc, ctypes.c_ulong(0), None))


def leak_in_child(one: object) -> None:
    """Leaks an object: nothing of it is ever freed in this process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


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


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


# ---- the program's end, beside daemon threads that still ask for batches
#
# Python waits for no daemon thread: it ends one as soon as it next needs the interpreter, be it in the middle of C++,
# which then ends the process by std::terminate(), and what the thread works with may be gone before. So such a thread
# ends with the batch that it has asked for, as by sys.exit(): in silence, and with all of its ``finally`` blocks.

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE_AT_END, _PAUSE = 5.0, 0.002  # seconds for batches that are being made; between looks at them

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
    """A process that is no fork. It runs ``serve(requests, answers)`` of a module until this one ends, or end().
    It finds the packages that this one finds, and imports nothing of the user's script, as multiprocessing's "spawn"
    would.

    Attributes:
        requests, answers: this process's ends of the pipes.

    Raises:
        OSError: it cannot be started.
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
        """Kills the process."""
        self.requests.close()
        self.answers.close()
        self._process.kill()
        self._process.wait()
