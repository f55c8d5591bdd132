"""Processes that answer messages, driven from the caller's thread.

All processes receive messages from one common socket; the next free process takes the next message. Each process
answers on a separate socket. An exchange needs no lock and no thread. So an interrupt can only cut short an exchange,
which is noticed; a killed process leaves no lock held; and no process blocks the interpreter's exit.

A message that is too large for the common socket is sent to the process that requests it, which reads it immediately. A
large answer is an anonymous file, which the caller maps.
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

_LARGEST = 1 << 16  # bytes of the largest message in the common socket: a third of Linux's buffer
_NUMBER = struct.Struct("<Q")  # number of a message, sent before the message and before its answer
_LARGE = 1 << 17  # larger answers go to a file, since a socket would block the process until they are read
_SHARED = b"@"  # marks an answer in a file, which follows; no pickle begins with it
_LOOK = 1.0  # seconds between checks of silent processes, whose socket a child of theirs may hold open
_GRACE = 5.0  # seconds for a cancelled function to finish; the same as torch's
_TIDY = 1.0  # seconds for cleanup after SIGTERM
_CUT = "an interrupt cut short a message to the DataLoader worker processes; iter(loader) starts another epoch"

_all: weakref.WeakSet[Processes] = weakref.WeakSet()


class Answer:
    """An answer of a process; ``message`` is None until it arrives."""

    def __init__(self):
        self.message: bytes | memoryview | None = None

    @property
    def there(self) -> bool:
        return self.message is not None


class Processes:
    """A group of worker processes.

    Args:
        context: multiprocessing context.
        numbers: numbers of the processes.
        target, arguments: each process runs ``target(connection, tasks, number, *arguments)``, which calls serve().

    Attributes:
        trouble: why no more answers will arrive; "" if they will.

    Raises:
        OSError: the system has no more processes or file descriptors; the text gives a remedy.
    """

    def __init__(self, context, numbers: Sequence[int], target, arguments: tuple):
        self.trouble = _CUT
        self._ends: list[socket.socket | Connection] = []
        self._own: list[Connection] = []  # receive the answers of each process
        self._processes: list = []
        self._numbers = itertools.count()
        self._unsent: deque[bytes] = deque()
        self._large: dict[int, bytes] = {}  # messages that a process will request
        self._awaited: dict[int, Answer] = {}
        over: queue.SimpleQueue = queue.SimpleQueue()
        self._end = weakref.finalize(self, over.put, None)
        self._end.atexit = False
        # runs before multiprocessing joins the processes, which would block forever if one hangs
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
            message = f"cannot start a worker process: {error.strerror}; {hint}use a smaller num_workers"
            raise OSError(error.errno, message) from error
        self.trouble = ""

    def ask(self, messages: list[bytes], answers: list[Answer]) -> None:
        """Send messages. wait() and look() receive their answers.

        Raises:
            OutOfStep: an interrupt cut short an earlier exchange.
            RuntimeError: a process died, timed out, or was closed.
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
        """Wait for an answer.

        Raises:
            OutOfStep: an interrupt cut short an earlier exchange.
            RuntimeError: a process died, or no process answered for ``timeout`` seconds (0: no limit).
        """
        since = time.monotonic()
        while not answer.there:
            self._refuse_in_trouble()
            left = since + timeout - time.monotonic() if timeout else _LOOK
            if self._exchange(min(max(0, left), _LOOK)):  # also after the timeout: this process may have slept
                since = time.monotonic()
            elif left <= 0:
                self._fail(f"DataLoader timed out after {timeout} seconds")

    def look(self) -> None:
        """Receive the answers that have arrived."""
        while not self.trouble and self._exchange(0):
            pass

    def close(self) -> None:
        """End the processes. They finish their current message, or are killed after a while.

        This does not wait for them, since the garbage collector may be the caller.
        """
        self.trouble = self.trouble or "the worker processes were shut down"
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
        """Exchange messages for up to ``seconds``. Return True if answers arrived."""
        self.trouble = _CUT
        lost, came = None, False
        for connection in wait(self._own, seconds):
            try:
                came = self._take(connection) or came  # type: ignore[arg-type]  # wait() returns Connections here
            except TimeoutError:  # raised by a signal handler; these sockets have no timeout
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
        """Receive an answer and return True, or send a large message to the process that requests it."""
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
        """Send messages until the socket is full."""
        try:
            while self._unsent:
                self._tasks.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()
        except TimeoutError:  # as in _exchange()
            raise
        except OSError:  # full, or no process is left, which _exchange() will find
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
    """Answer messages in a worker process until the connection is closed."""
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
    process.join(_GRACE)  # a process that closed its socket usually exits
    code = process.exitcode
    if code is None:
        how = "it closed its socket"
    elif code >= 0:
        how = f"exit code {code}; one of your functions ended it"
    elif -code == signal.SIGBUS:
        how = "SIGBUS; the system has no shared memory left"
    else:
        how = f"{signal.Signals(-code).name}; possibly the out-of-memory killer"
    return f"a DataLoader worker process exited unexpectedly (pid {process.pid}, {how}); the next batch starts new ones"


def _bury(over: queue.SimpleQueue, ends: list, processes: list, at_exit: Finalize) -> None:
    """Wait in a thread for the end of unused processes, and kill any that hang.

    The thread holds the sockets, because a collected Connection would close its descriptor a second time.
    """
    over.get()
    _close(ends)
    until = time.monotonic() + _GRACE
    for process in _started(processes):
        process.join(max(0, until - time.monotonic()))
    _kill(processes)
    at_exit.cancel()


def _close(ends: list) -> None:
    """Close each end once, even if several threads do so at the same time."""
    with contextlib.suppress(IndexError):
        while True:
            ends.pop().close()


def _kill(processes: list) -> None:
    """Kill processes that are still alive."""
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
    """Delay signals while a process starts.

    An interrupt must not hide the new process from its parent, nor end it before it ignores interrupts. SIGTERM must
    not run the parent's handler in it.
    """
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
        finally:  # the handler of another signal may have raised an error
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if came:
            signal.raise_signal(signal.SIGINT)


def _forget_the_parents() -> None:
    """Close a parent's sockets in a forked child, since workers end when these are closed."""
    for processes in list(_all):
        _close(processes._ends)


os.register_at_fork(after_in_child=_forget_the_parents)
