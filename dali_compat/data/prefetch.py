"""Processes that read image headers ahead of the batches.

A thread would hold the interpreter's lock most of the time, and delay the training step.
"""

from __future__ import annotations

import fcntl
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np

from ..runtime.forks import FreshProcess
from .header import checked_header
from .headers import facts_of

_PIPE = 1 << 20  # capacity of a pipe in bytes, if the system allows it
_ANSWER = 128  # maximum size in bytes of the answer for one file


class HeaderPrefetcher:
    """``count`` processes that read image headers. request() returns a ticket, and result(ticket) returns the headers.

    Raises:
        OSError: a process cannot be started.
    """

    def __init__(self, count: int):
        self._processes: list[_Process] = []
        self._requested: dict[int, list[_Process]] = {}
        self._tickets = 0
        try:
            for _ in range(count):
                self._processes.append(_Process())
        except OSError:
            self.close()
            raise

    def request(self, paths: list[str]) -> int | None:
        """Request the headers of files. Return a ticket, or None if the request cannot be sent now."""
        ready = [process for process in self._processes if process.is_ready()]
        if not ready:
            return None
        each = -(-len(paths) // len(ready))
        pieces = [paths[begin : begin + each] for begin in range(0, len(paths), each)]
        chosen = list(zip(ready, pieces, strict=False))
        if not all(process.has_room(piece) for process, piece in chosen):
            return None
        self._tickets += 1
        # empty until all requests are sent, so that these processes are not used again if an interrupt comes first
        processes, self._processes = self._processes, []
        if not all(process.send(self._tickets, piece) for process, piece in chosen):
            _end(processes)
            return None
        self._requested[self._tickets] = [process for process, _ in chosen]
        self._processes = processes
        return self._tickets

    def result(self, ticket: int) -> np.ndarray | None:
        """Wait for a request. Return its headers as an array of dtype FACTS, or None if a process has ended."""
        chosen, processes = self._requested.pop(ticket), self._processes
        if not processes:
            return None
        self._processes = []
        found = [process.answer(ticket) for process in chosen]
        facts = [one for one in found if one is not None]
        if len(facts) < len(found):
            _end(processes)
            return None
        self._processes = processes
        return np.concatenate(facts)

    def close(self) -> None:
        processes, self._processes = self._processes, []
        _end(processes)


class _Process(FreshProcess):
    """A process that reads headers. Requests and answers are queued in pipes."""

    def __init__(self) -> None:
        super().__init__(__name__)
        self._room = min(map(_enlarged, (self.requests, self.answers))) // 2
        self._ready = False
        self._waiting: dict[int, int] = {}  # bytes of pending requests, keyed by ticket
        self._others: dict[int, np.ndarray] = {}  # answers received while waiting for another ticket

    def is_ready(self) -> bool:
        try:
            if not self._ready and self.answers.poll():
                self._ready = self.answers.recv()
        except (EOFError, OSError):
            return False
        return self._ready

    def has_room(self, paths: list[str]) -> bool:
        """Return True if the pipes can hold this request too. If they were full, both ends would wait forever."""
        return sum(self._waiting.values()) + _bytes(paths) <= self._room

    def send(self, ticket: int, paths: list[str]) -> bool:
        self._waiting[ticket] = _bytes(paths)
        try:
            self.requests.send((ticket, paths))
            return True
        except OSError:
            return False

    def answer(self, ticket: int) -> np.ndarray | None:
        """Wait for a request. Return its headers as an array of dtype FACTS, or None if the process has ended."""
        try:
            while ticket not in self._others:
                number, facts = self.answers.recv()
                del self._waiting[number]
                self._others[number] = facts
        except (EOFError, OSError):
            return None
        return self._others.pop(ticket)


def _end(processes: list[_Process]) -> None:
    for process in processes:
        process.end()


def _enlarged(connection: Connection) -> int:
    """Enlarge a pipe to _PIPE bytes if possible, and return its capacity in bytes."""
    with suppress(OSError):
        fcntl.fcntl(connection.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
    return fcntl.fcntl(connection.fileno(), fcntl.F_GETPIPE_SZ)


def _bytes(paths: list[str]) -> int:
    """Return an upper bound on the total size in bytes of a request for these paths and its answer."""
    return sum(map(len, paths)) * 4 + _ANSWER * len(paths)  # UTF-8 has at most four bytes per character


def serve(requests: Connection, answers: Connection) -> None:
    with suppress(EOFError, OSError):
        answers.send(True)
        while True:
            ticket, paths = requests.recv()
            answers.send((ticket, facts_of(list(map(checked_header, paths)))))
