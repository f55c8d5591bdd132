"""A test that does not end: what it and its processes are doing goes to stderr. pytest-timeout's own report is lost
under pytest-xdist, and knows of one process alone."""

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

_SIGNAL = signal.SIGUSR1
_PAUSE = 0.5  # seconds, for a process to write its stacks
_stderr: TextIO = sys.stderr  # prepare() takes the one that pytest does not capture
_DEBUGGERS = (["py-spy", "dump", "--native", "--pid"], ["gdb", "-batch", "-nx", "-ex", "thread apply all bt", "-p"])
_BOUND = ["timeout", "-k", "5", "60"]  # of a debugger, which stops who waits for it: it must end by itself


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
        report(os.getpid())
    finally:
        os._exit(1)


def report(pid: int) -> None:
    """Say what a process and its descendants are doing: Python's stacks, of those that tell them, and native ones."""
    for one in (pid, *_descendants(pid)):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            _report(one)


def _report(pid: int) -> None:
    place = Path("/proc", str(pid))
    _say(f"{pid}: {place.joinpath('cmdline').read_bytes().replace(bytes(1), b' ').decode()[:200]}")
    _native(pid)  # first: a signal may end what it waits for
    if _listens(place):  # it would end others
        os.kill(pid, _SIGNAL)
        time.sleep(_PAUSE)


def _native(pid: int) -> None:
    """Of a hang in C, as of a child that waits for a lock before Python runs in it. Nothing, where there is no debugger
    or none may attach."""
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    bound = _BOUND if shutil.which(_BOUND[0]) else []
    for name, *arguments in _DEBUGGERS:
        found = shutil.which(name, path=path)
        if found:
            command = [*bound, found, *arguments, str(pid)]
            # no pipe: nobody reads it while this process is stopped
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=_stderr, stderr=_stderr)
            if done.returncode == 0:
                return


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
