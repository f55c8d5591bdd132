"""Gets objects in a process that was forked from one that had read objects: obstore's threads are not there, and it
would wait for them for ever. So another process, which is no fork, gets them. torch's own workers read this way."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..runtime.forks import new_lock
from .urls import failed

_ROOT = str(Path(__file__).parents[2])
_CODE = """
import sys
sys.path[: not getattr(sys.flags, "safe_path", False)] = [sys.argv[1]]  # in the place of the current folder
from dali_compat.remote import helper_process
helper_process.serve(*map(int, sys.argv[2:]))
"""


class HelperProcess:
    """One of them, which serves one process until that ends, and one request at a time."""

    def __init__(self) -> None:
        self._lock, self._asked = new_lock(), 0
        requests, self._requests = _pipe()
        self._answers, answers = _pipe()
        command = [sys.executable, "-c", _CODE, _ROOT, str(requests.fileno()), str(answers.fileno())]
        with requests, answers:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(requests.fileno(), answers.fileno())
            )

    def get(self, client: Any, url: str) -> Any:
        """Returns what ``client.get(url)`` returns.

        Raises:
            ImageReadError: it cannot be read.
        """
        with self._lock:
            self._asked += 1
            self._requests.send_bytes(pickle.dumps((self._asked, client, url)))
            number = 0
            while number != self._asked:  # an interrupt has left others in the pipe
                number, made = self._answers.recv()
        if isinstance(made, Exception):
            raise made
        made.data.flags.writeable = False
        return made


def serve(requests: int, answers: int) -> None:
    """Answers what comes through one pipe in another, until the first is closed."""
    asked, given = Connection(requests, writable=False), Connection(answers, readable=False)
    clients: dict[bytes, Any] = {}  # pickled, so that one keeps its connections
    loop = asyncio.new_event_loop()
    while True:
        try:
            number, client, url = pickle.loads(asked.recv_bytes())
            client = clients.setdefault(pickle.dumps(client), client)
            try:
                given.send((number, loop.run_until_complete(client.get(url))))
            except Exception as error:
                given.send((number, failed(url, error)))
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            return


def _pipe() -> tuple[Connection, Connection]:
    read, write = os.pipe()
    return Connection(read, writable=False), Connection(write, readable=False)
