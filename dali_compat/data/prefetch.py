"""Processes that look at files before DALI is set to work on them. A thread that did so would have the interpreter's
lock for most of its time, and the caller's training step would wait for it."""

from __future__ import annotations

import fcntl
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np

from ..runtime.forks import FreshProcess
from .header import DALI, PIL, UNREADABLE, Header, read_header
from .headers import facts_of
from .intact import intact
from .sources import written

_PIPE = 1 << 20  # bytes that a pipe has room for, where the system allows so many
_ANSWER = 128  # bytes of an answer for one file, at most


class HeaderPrefetcher:
    """So many processes. Answers come by ticket; one that is not asked for costs its memory alone.

    Raises:
        OSError: a process cannot be started.
    """

    def __init__(self, count: int):
        self._processes: list[_Process] = []
        self._asked: dict[int, list[_Process]] = {}
        self._tickets = 0
        try:
            for _ in range(count):
                self._processes.append(_Process())
        except OSError:
            self.close()
            raise

    def request(self, paths: list[str]) -> int | None:
        """A ticket for the headers of these files; None where no process has room for them, or none is left."""
        ready = [process for process in self._processes if process.is_ready()]
        if not ready:
            return None
        each = -(-len(paths) // len(ready))
        pieces = [paths[begin : begin + each] for begin in range(0, len(paths), each)]
        asked = list(zip(ready, pieces, strict=False))
        if not all(process.has_room(piece) for process, piece in asked):
            return None
        self._tickets += 1
        processes, self._processes = self._processes, []  # until all of it is done: an interrupt ends their use
        if not all(process.ask(self._tickets, piece) for process, piece in asked):
            _end(processes)
            return None
        self._asked[self._tickets] = [process for process, _ in asked]
        self._processes = processes
        return self._tickets

    def result(self, ticket: int) -> np.ndarray | None:
        """Returns what is known of a ticket's files, waiting for it; None where a process has ended."""
        asked, processes = self._asked.pop(ticket), self._processes
        if not processes:
            return None
        self._processes = []
        found = [process.answer(ticket) for process in asked]
        facts = [one for one in found if one is not None]
        if len(facts) < len(found):
            _end(processes)
            return None
        self._processes = processes
        return np.concatenate(facts)

    def close(self) -> None:
        """End them."""
        processes, self._processes = self._processes, []
        _end(processes)


class _Process(FreshProcess):
    """One of them. What asks it and what it answers wait in pipes."""

    def __init__(self) -> None:
        super().__init__(__name__)
        self._room = min(map(_enlarged, (self.requests, self.answers))) // 2
        self._ready = False
        self._waiting: dict[int, int] = {}  # bytes of what was asked, by ticket
        self._others: dict[int, np.ndarray] = {}  # answers that came before they were asked for

    def is_ready(self) -> bool:
        """Returns whether it has started."""
        try:
            if not self._ready and self.answers.poll():
                self._ready = self.answers.recv()
        except (EOFError, OSError):
            return False
        return self._ready

    def has_room(self, paths: list[str]) -> bool:
        """Returns whether neither pipe can become full: both sides would wait for each other."""
        return sum(self._waiting.values()) + _bytes(paths) <= self._room

    def ask(self, ticket: int, paths: list[str]) -> bool:
        """Returns whether that was possible."""
        self._waiting[ticket] = _bytes(paths)
        try:
            self.requests.send((ticket, paths))
            return True
        except OSError:
            return False

    def answer(self, ticket: int) -> np.ndarray | None:
        """Waits for it; None where there is none."""
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
    """Returns the bytes that a pipe has room for, once it has as many as the system allows."""
    with suppress(OSError):
        fcntl.fcntl(connection.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
    return fcntl.fcntl(connection.fileno(), fcntl.F_GETPIPE_SZ)


def _bytes(paths: list[str]) -> int:
    """That a request takes, or its answer."""
    return sum(map(len, paths)) * 4 + _ANSWER * len(paths)  # at most so many bytes a character


def serve(requests: Connection, answers: Connection) -> None:
    """Answers requests, until nobody can ask any more."""
    with suppress(EOFError, OSError):
        answers.send(True)
        while True:
            ticket, paths = requests.recv()
            answers.send((ticket, facts_of(list(map(look, paths)))))


def look(path: str) -> Header:
    """The header of a file, with whether it is intact: of kind PIL where it is not."""
    changed = written(path)  # first: what comes later is noticed
    try:
        data = np.fromfile(path, np.uint8)
    except OSError:
        return Header(UNREADABLE, 1, 1)
    header = read_header(data if type(path) is str else path)  # others say in which mode, or how turned
    if header.kind != DALI:
        return header
    return header._replace(intact=True, written=changed) if intact(data) else header._replace(kind=PIL)
