"""Starts Python processes that are no forks, and talks to them through pipes.

They find the packages that this process finds, and import nothing of the user's script, as multiprocessing's "spawn"
would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

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
    """A process that runs ``serve(requests, answers)`` of a module, until this process ends or end() is called.

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
