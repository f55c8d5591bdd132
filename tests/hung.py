"""Report the stacks of a test that does not end, and of its child processes, on stderr.

pytest-timeout's own report is lost under pytest-xdist and covers only one process.
"""

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
_PAUSE = 0.5  # seconds for a process to write its stacks
_stderr: TextIO = sys.stderr  # replaced by prepare() with a copy that pytest does not capture
_DEBUGGERS = (["py-spy", "dump", "--native", "--pid"], ["gdb", "-batch", "-nx", "-ex", "thread apply all bt", "-p"])
_BOUND = ["timeout", "-k", "5", "60"]  # time limit for a debugger, which stops the process that it inspects


def prepare() -> None:
    """Make this process and its forks write their stacks when they receive the signal."""
    global _stderr
    _stderr = os.fdopen(os.dup(2), "w")
    faulthandler.register(_SIGNAL, _stderr)


def limit(name: str, seconds: float) -> Callable[[], None]:
    """End this process with a report after a number of seconds, and return a function that cancels this.

    Uses a thread because a hang inside DALI does not return to Python to handle a signal.
    """
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
    """Print the Python and native stacks of a process and its descendants."""
    for one in (pid, *_descendants(pid)):
        with contextlib.suppress(OSError):  # the process has ended
            _report(one)


def _report(pid: int) -> None:
    place = Path("/proc", str(pid))
    _say(f"{pid}: {place.joinpath('cmdline').read_bytes().replace(bytes(1), b' ').decode()[:200]}")
    _native(pid)  # first, since the signal can interrupt the blocking call
    if _listens(place):  # without a handler the signal would end the process
        os.kill(pid, _SIGNAL)
        time.sleep(_PAUSE)


def _native(pid: int) -> None:
    """Print the native stacks, for hangs in C and for forked children that block on a lock before Python runs.

    Prints nothing if there is no debugger or if it cannot attach.
    """
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    bound = _BOUND if shutil.which(_BOUND[0]) else []
    for name, *arguments in _DEBUGGERS:
        found = shutil.which(name, path=path)
        if found:
            command = [*bound, found, *arguments, str(pid)]
            # Not through a pipe: while this process is stopped, it cannot read one.
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=_stderr, stderr=_stderr)
            if done.returncode == 0:
                return


def _say(text: str) -> None:
    print(f"\n+++ {text}", file=_stderr, flush=True)


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            children += map(int, path.read_text().split())
    return [one for child in children for one in (child, *_descendants(child))]


def _listens(place: Path) -> bool:
    lines = place.joinpath("status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (_SIGNAL - 1) & 1)
