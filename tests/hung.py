"""A test that does not end: what it and its processes are doing goes to stderr. pytest-timeout's own report is lost
under pytest-xdist, and knows of one process alone."""

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

_SIGNAL = signal.SIGUSR1
_PAUSE = 0.5  # seconds, for a process to write its stacks
_stderr: TextIO  # not the one that pytest captures


def prepare() -> None:
    """This process, and all that it forks, write their stacks at the signal."""
    global _stderr
    _stderr = os.fdopen(os.dup(2), "w")
    faulthandler.register(_SIGNAL, _stderr)


def limit(name: str, seconds: float) -> Callable[[], None]:
    """It ends this process in so many seconds, with a report; the answer calls that off. A thread, not a signal: a hang
    inside DALI never returns to Python to see the signal."""
    made = threading.Timer(seconds, _end, [name, seconds])
    made.name = f"{name}'s time limit"
    made.daemon = True
    made.start()

    def call_off() -> None:
        made.cancel()
        made.join()

    return call_off


def _end(name: str, seconds: float) -> None:
    try:
        _say(f"{name} has not ended within {seconds:g} s. Processes, with the most recent call of a thread first:")
        for pid in (os.getpid(), *_descendants(os.getpid())):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                _report(pid)
    finally:
        os._exit(1)


def _report(pid: int) -> None:
    place = Path("/proc", str(pid))
    _say(f"{pid}: {place.joinpath('cmdline').read_bytes().replace(bytes(1), b' ').decode()[:200]}")
    if _listens(place):  # it would end others
        os.kill(pid, _SIGNAL)
        time.sleep(_PAUSE)


def _say(text: str) -> None:
    print(f"\n+++ {text}", file=_stderr, flush=True)


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):  # as above
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            children += map(int, path.read_text().split())
    return [one for child in children for one in (child, *_descendants(child))]


def _listens(place: Path) -> bool:
    lines = place.joinpath("status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (_SIGNAL - 1) & 1)
