"""Call a function in a forked child, so that it changes no object, generator or file position of this process."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import mmap
import os
import pickle
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseProxy
from pathlib import Path
from typing import Any

import torch

from ..runtime.children import end_with_parent

_SECONDS, _IDLE = 60, 5  # limits of a child's run time and idle time, since it may wait for a missing thread
_SHARED = 64 << 20  # bytes of the largest shared mapping that is copied for the child
_MEMORY = "/dev/shm/", "/dev/zero"
_FIXED = 0x10  # MAP_FIXED
_MOST_TEXT = 200
_WHERE = "in the trial subprocess"


class TrialFailed(Exception):
    """The child ended without a result, or was killed."""


@contextmanager
def child(function: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Start ``function()`` in a child, in which sockets, pipes and threads do not work. Yield a function that waits for
    its picklable result.

    Raises:
        TrialFailed: the function raised an error, crashed, was idle for 5 s or took 60 s. The text is a predicate, such
            as "raises ...", for use after the name of a data set.
    """
    receive, send = os.pipe()
    parent, process = os.getpid(), 0
    with Connection(receive, writable=False) as answer:
        _flush()
        try:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Python 3.12 and libraries warn about forking with threads
                    process = os.fork()
                if not process:
                    _answer(function, send, parent)
            except OSError as error:
                raise TrialFailed(f"fails {_WHERE}") from error
            finally:
                os.close(send)
            yield partial(_result, answer, process)
        finally:
            if process:
                # a thread, since the system takes about 30 ms to free the child's memory
                threading.Thread(target=_end, args=(process,), daemon=True).start()


def _end(process: int) -> None:
    with suppress(OSError):
        os.kill(process, 9)
    with suppress(OSError):
        os.waitpid(process, 0)


def _result(answer: Connection, process: int) -> Any:
    try:
        made = pickle.loads(_waited_for(answer, process))
    except Exception as error:
        slow = isinstance(error, TimeoutError)
        what = "gives no sample within 60 s, or is idle for 5 s," if slow else "fails"
        raise TrialFailed(f"{what} {_WHERE}") from error
    if isinstance(made, TrialFailed):
        raise made
    return made


def described(error: Exception) -> str:
    """Return an exception's type and text as one line."""
    text = " ".join(f"{type(error).__name__}: {error}".replace(";", ",").split())
    text = text.replace("dali_compat.tracing.tensors.TracedTensor", "torch.Tensor")
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _waited_for(answer: Connection, child: int) -> bytes:
    spent, idle = 0, 0
    for _ in range(_SECONDS):
        if answer.poll(1):
            return answer.recv_bytes()
        before, spent = spent, _processor_time(child)
        idle = idle + 1 if spent == before else 0
        if idle >= _IDLE:
            break
    raise TimeoutError


def _processor_time(process: int) -> int:
    """Return the processor time of a process in ticks; see proc(5)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# ---- in the child


def _answer(function: Callable[[], Any], send: int, parent: int) -> None:
    try:
        gc.disable()
        end_with_parent(parent)
        torch.set_num_threads(1)  # OpenMP's threads exist only in the parent
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number != send:
                with suppress(OSError):  # the descriptor of the listing is closed already
                    _make_own(number)
        _make_memory_own()
        BaseProxy._callmethod = _refuse_to_change  # type: ignore[method-assign]  # only in this process
        try:
            message = pickle.dumps(function())
        except Exception as error:
            message = pickle.dumps(TrialFailed(f"raises {described(error)} {_WHERE}"))
        with Connection(send, readable=False) as connection:
            connection.send_bytes(message)
    finally:
        _flush()
        os._exit(0)


def _refuse_to_change(*args, **kwargs):
    raise RuntimeError("it uses an object of a multiprocessing.Manager, which a trial would change")


def _make_own(number: int) -> None:
    """Reopen a file, so that its position is not shared; replace a socket or pipe by /dev/null."""
    mode, flags = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL)
    if stat.S_ISREG(mode):
        own = os.open(f"/proc/self/fd/{number}", flags & (os.O_ACCMODE | os.O_APPEND))
        os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    elif stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
        own = os.open(os.devnull, os.O_RDWR)
    else:
        return
    os.dup2(own, number)
    os.close(own)


def _make_memory_own() -> None:
    """Replace writable shared memory, of tensors or memory maps, by a private copy at the same address."""
    system = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, flags, *_, name = [*line.split(None, 5), ""][:6]
        begin, end = (int(number, 16) for number in place.split("-"))
        is_device = not name.startswith("/") or (name.startswith("/dev/") and not name.startswith(_MEMORY))
        if flags == "rw-s" and not is_device and end - begin <= _SHARED:
            held = ctypes.string_at(begin, end - begin)
            how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
            system.mmap(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), *how, -1, ctypes.c_long(0))
            ctypes.memmove(begin, held, len(held))
