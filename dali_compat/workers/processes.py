"""Processes that answer messages, driven from the caller's thread.

Messages go to one socket, from which the next free process takes the next one whole. Answers come on a socket of each
process. No lock and no thread stand between. So an interrupt can hit nothing but an exchange, which is then known to be
cut short; a process that is killed leaves nothing locked; and an interpreter that ends waits for none of them.

A message that is too large for these sockets is sent to the process that asks for it, which reads it at once. A large
answer is a file without a name, which the caller maps.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import reduction, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize

from ..errors import OutOfStep, remedy_of
from .shared_memory import in_a_file, mapped

_LARGEST = 1 << 16  # bytes that go through the common socket at once: a third of what Linux lets wait there
_NUMBER = struct.Struct("<Q")  # of a message, before it and before its answer
_LARGE = 1 << 17  # bytes of an answer from which on a file has it: a socket would keep the process until it is read
_SHARED = b"@"  # an answer that is in a file, which follows; no pickle begins with it
_LOOK = 1.0  # seconds between looks at processes that send nothing: a child of theirs may hold their socket open
_GRACE = 5.0  # seconds for what a function does when it is cancelled; torch's own
_TIDY = 1.0  # seconds for what it does when its process is told to end
_CUT = "an interrupt has cut short a message to the worker processes of a DataLoader; iter(loader) starts another epoch"

_all: weakref.WeakSet[Processes] = weakref.WeakSet()


class Answer:
    """An answer of a process; ``message`` is None until it is there."""

    def __init__(self):
        self.message: bytes | memoryview | None = None

    @property
    def there(self) -> bool:
        return self.message is not None


class Processes:
    """
    Args:
        context: of multiprocessing.
        numbers: of the processes.
        target, arguments: each runs ``target(connection, tasks, number, *arguments)``, which calls serve().

    Attributes:
        trouble: why no answer will come any more; "" while all is well.

    Raises:
        OSError: the system gives no more processes, or descriptors; the text says what to do.
    """

    def __init__(self, context, numbers: Sequence[int], target, arguments: tuple):
        self.trouble = _CUT
        self._ends: list[socket.socket | Connection] = []
        self._own: list[Connection] = []  # those for the answers of each process
        self._processes: list = []
        self._numbers = itertools.count()
        self._unsent: deque[bytes] = deque()
        self._large: dict[int, bytes] = {}  # messages that somebody will ask for
        self._awaited: dict[int, Answer] = {}
        over: queue.SimpleQueue = queue.SimpleQueue()
        self._end = weakref.finalize(self, over.put, None)
        self._end.atexit = False
        # before multiprocessing waits for them, for ever if one is stuck
        at_exit = Finalize(None, _kill, (self._processes,), exitpriority=100)
        bury = over, self._ends, self._processes, at_exit
        threading.Thread(target=_bury, args=bury, name="dali_compat-bury", daemon=True).start()
        _all.add(self)
        try:
            self._tasks, tasks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._ends.append(self._tasks)
            with tasks:
                for number in numbers:
                    self._start(context, target, (tasks, number, *arguments))
        except OSError as error:
            self.close()
            hint = f"{remedy_of(error)}, or " if remedy_of(error) else ""
            message = f"cannot start a worker process: {error.strerror}; {hint}take a smaller num_workers"
            raise OSError(error.errno, message) from error
        self.trouble = ""

    def ask(self, messages: list[bytes], answers: list[Answer]) -> None:
        """Sends messages. wait() and look() receive their answers.

        Raises:
            OutOfStep: an interrupt has cut short an earlier exchange.
            RuntimeError: there is other trouble.
        """
        self._refuse_in_trouble()
        self.trouble = _CUT
        for message, answer in zip(messages, answers, strict=True):
            number = next(self._numbers)
            self._awaited[number] = answer
            if len(message) > _LARGEST:
                self._large[number], message = message, b""
            self._unsent.append(_NUMBER.pack(number) + message)
        self._send()
        self.trouble = ""

    def wait(self, answer: Answer, timeout: float = 0) -> None:
        """Wait until it is there.

        Raises:
            OutOfStep: an interrupt has cut short an earlier exchange.
            RuntimeError: a process has died, or nothing came from any of them for ``timeout`` seconds (0: no limit).
        """
        since = time.monotonic()
        while not answer.there:
            self._refuse_in_trouble()
            left = since + timeout - time.monotonic() if timeout else _LOOK
            if self._exchange(min(max(0, left), _LOOK)):  # once more when time is over: this process may have slept
                since = time.monotonic()
            elif left <= 0:
                self._fail(f"DataLoader timed out after {timeout} seconds")

    def look(self) -> None:
        """Take the answers that are there."""
        while not self.trouble and self._exchange(0):
            pass

    def close(self) -> None:
        """Ends the processes: they finish what they are doing, or are killed after a while. Nobody waits for that: the
        garbage collector may be the caller."""
        self.trouble = self.trouble or "the worker processes have been told to end"
        _close(self._ends)
        self._end()

    def _start(self, context, target, arguments: tuple) -> None:
        here, there = context.Pipe()
        self._own.append(here)
        self._ends.append(here)
        process = context.Process(target=target, args=(there, *arguments), daemon=True)
        self._processes.append(process)
        with there, _interrupts_later(context):
            process.start()

    def _exchange(self, seconds: float) -> bool:
        """Returns whether answers have come in that time."""
        self.trouble = _CUT
        lost, came = None, False
        for connection in wait(self._own, seconds):
            try:
                came = self._take(connection) or came  # type: ignore[arg-type]  # wait() gives what it was given
            except TimeoutError:  # a signal's handler raises it; these sockets have no limit
                raise
            except (EOFError, OSError):
                lost = self._processes[self._own.index(connection)]  # type: ignore[arg-type]  # as above
        if lost is None and not came:
            lost = next((process for process in self._processes if process.exitcode is not None), None)
        self._send()
        self.trouble = ""
        if lost is not None:
            self._fail(_obituary(lost))
        return came

    def _take(self, connection: Connection) -> bool:
        """Returns whether it is an answer that a process has sent; else it asks for a large message."""
        message = connection.recv_bytes()
        (number,) = _NUMBER.unpack_from(message)
        if len(message) > _NUMBER.size:
            shared = message[_NUMBER.size :] == _SHARED
            answer = mapped(reduction.recv_handle(connection)) if shared else memoryview(message)[_NUMBER.size :]
            self._awaited.pop(number).message = answer
            return True
        connection.send_bytes(self._large.pop(number))
        return False

    def _send(self) -> None:
        """Sends what there is room for."""
        try:
            while self._unsent:
                self._tasks.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()
        except TimeoutError:  # as in _exchange()
            raise
        except OSError:  # full: after the next answer; no reader: dead, as is soon found
            pass

    def _fail(self, trouble: str) -> None:
        self.trouble = trouble
        self.close()

    def _refuse_in_trouble(self) -> None:
        if self.trouble:
            self.close()
            if self.trouble == _CUT:
                raise OutOfStep(_CUT)
            raise RuntimeError(self.trouble)


def serve(connection: Connection, tasks: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """In a process: answers messages, until the connection is closed."""
    with contextlib.suppress(EOFError, OSError):  # closed
        while task := tasks.recv(_NUMBER.size + _LARGEST):
            number, message = task[: _NUMBER.size], task[_NUMBER.size :]
            if not message:
                connection.send_bytes(number)
                message = connection.recv_bytes()
            made = answer(message)
            file = in_a_file(made) if len(made) > _LARGE else None
            connection.send_bytes(number + (made if file is None else _SHARED))
            if file is not None:
                with file:
                    reduction.send_handle(connection, file.fileno(), None)


def _obituary(process) -> str:
    process.join(_GRACE)  # what has closed its socket ends, as a rule
    code = process.exitcode
    if code is None:
        how = "it has closed its socket"
    elif code >= 0:
        how = f"exit code {code}; a function of yours ended it"
    elif -code == signal.SIGBUS:
        how = "SIGBUS; the system has no memory left for what processes share"
    else:
        how = f"{signal.Signals(-code).name}; the system did it, for want of memory perhaps"
    return f"a DataLoader worker process exited unexpectedly (pid {process.pid}, {how}); the next batch starts new ones"


def _bury(over: queue.SimpleQueue, ends: list, processes: list, at_exit: Finalize) -> None:
    """A thread's: wait for the end of processes that nobody needs any more, and end those that hang.

    It holds the sockets: a Connection that is garbage closes its descriptor once more than it is told to."""
    over.get()
    _close(ends)
    until = time.monotonic() + _GRACE
    for process in _started(processes):
        process.join(max(0, until - time.monotonic()))
    _kill(processes)
    at_exit.cancel()


def _close(ends: list) -> None:
    """Closes each end once, even where several threads do so at a time."""
    with contextlib.suppress(IndexError):
        while True:
            ends.pop().close()


def _kill(processes: list) -> None:
    """Kills those that are still alive."""
    alive = [process for process in _started(processes) if process.is_alive()]
    until = time.monotonic() + _TIDY
    for process in alive:
        process.terminate()
    for process in alive:
        process.join(max(0, until - time.monotonic()))
        process.kill()
    for process in alive:
        process.join(1)


def _started(processes: list) -> list:
    return [process for process in processes if process.pid is not None]


@contextlib.contextmanager
def _interrupts_later(context):
    """While a process starts: its parent must learn of it, and it must not end before it can ignore them, nor run the
    parent's handler of SIGTERM."""
    if context.get_start_method() == "spawn":
        resource_tracker.ensure_running()  # its start would unblock the signal
    forked = context.get_start_method() != "forkserver"  # the server would keep it blocked
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handler, came = signal.getsignal(signal.SIGINT), []
    mine = threading.current_thread() is threading.main_thread() and callable(handler)
    try:
        if mine:
            signal.signal(signal.SIGINT, lambda *_: came.append(True))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM} if forked else ())
        yield
    finally:
        try:
            if mine:
                signal.signal(signal.SIGINT, handler)
        finally:  # another signal's handler may have raised meanwhile
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if came:
            signal.raise_signal(signal.SIGINT)


def _forget_the_parents() -> None:
    """A forked child must not hold its parent's sockets open: they tell processes that nobody needs them."""
    for processes in list(_all):
        _close(processes._ends)


os.register_at_fork(after_in_child=_forget_the_parents)
