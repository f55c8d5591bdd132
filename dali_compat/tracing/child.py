"""Run a function in a forked child, without effects on objects, generators and file positions of this process."""

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
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseProxy
from pathlib import Path
from typing import Any

import torch

from ..runtime.children import end_with_parent

_MAX_SECONDS, _MAX_IDLE_SECONDS = 60, 5  # a child may wait forever for a thread that it does not have
_MAX_MAPPING = 64 << 20  # bytes; larger shared mappings are not copied for the child
_MEMORY_DEVICES = "/dev/shm/", "/dev/zero"
_MAP_FIXED = 0x10
_MAX_TEXT = 200
_IN_CHILD = "in the trial subprocess"


class TrialFailed(Exception):
    """Raised if run_in_child() gets no result from the child."""


def run_in_child(function: Callable[[], Any]) -> Any:
    """Return the picklable result of ``function()``, called in a forked child.

    Sockets, pipes and threads do not work in the child.

    Raises:
        TrialFailed: the function raised an error, crashed, was idle for 5 s or took over 60 s. The message is a
            predicate such as "fails in the trial subprocess".
    """
    receive, send = os.pipe()
    parent, process = os.getpid(), 0
    with Connection(receive, writable=False) as connection:
        _flush()
        try:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Python 3.12 and libraries warn about forking with threads
                    process = os.fork()
                if not process:
                    _run_child(function, send, parent)
            finally:
                os.close(send)
            result = pickle.loads(_receive(connection, process))
        except Exception as error:
            is_slow = isinstance(error, TimeoutError)
            what = "takes more than 60 s, or is idle for 5 s," if is_slow else "fails"
            raise TrialFailed(f"{what} {_IN_CHILD}") from error
        finally:
            if process:
                try:  # a thread, because the system takes a while to free the child's memory
                    threading.Thread(target=_end, args=(process,), daemon=True).start()
                except RuntimeError:  # no thread can start
                    _end(process)
    if isinstance(result, TrialFailed):
        raise result
    return result


def _end(process: int) -> None:
    with suppress(OSError):
        os.kill(process, 9)
    with suppress(OSError):
        os.waitpid(process, 0)


def described(error: Exception) -> str:
    """Return an exception's type and text as one line."""
    text = " ".join(f"{type(error).__name__}: {error}".replace(";", ",").split())
    text = text.replace("dali_compat.tracing.tensors.TracedTensor", "torch.Tensor")
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _receive(connection: Connection, process: int) -> bytes:
    """Wait for the child's message and return it.

    Raises:
        TimeoutError: the child sends no message for _MAX_SECONDS, or uses no CPU time for _MAX_IDLE_SECONDS.
    """
    cpu_time, idle_seconds = 0, 0
    for _ in range(_MAX_SECONDS):
        if connection.poll(1):
            return connection.recv_bytes()
        before, cpu_time = cpu_time, _cpu_time(process)
        idle_seconds = idle_seconds + 1 if cpu_time == before else 0
        if idle_seconds >= _MAX_IDLE_SECONDS:
            break
    raise TimeoutError


def _cpu_time(process: int) -> int:
    """Return the CPU time of a process in clock ticks; see proc(5)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# ---- in the child


def _run_child(function: Callable[[], Any], send: int, parent: int) -> None:
    """Send the pickled result of a function, or a TrialFailed if the function raises an error. Then exit."""
    try:
        gc.disable()
        end_with_parent(parent)
        torch.set_num_threads(1)  # OpenMP's threads exist only in the parent
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number != send:
                with suppress(OSError):  # the descriptor of the listing is closed already
                    _unshare_file(number)
        _unshare_memory()
        BaseProxy._callmethod = _refuse_manager  # type: ignore[method-assign]  # only in this process
        try:
            message = pickle.dumps(function())
        except Exception as error:
            message = pickle.dumps(TrialFailed(f"raises {described(error)} {_IN_CHILD}"))
        with Connection(send, readable=False) as connection:
            connection.send_bytes(message)
    finally:
        _flush()
        os._exit(0)


def _refuse_manager(*args, **kwargs):
    raise RuntimeError("the data set uses an object of a multiprocessing.Manager, which a trial would change")


def _unshare_file(number: int) -> None:
    """Reopen the file of a descriptor, to get a separate file position. Replace a socket or pipe with /dev/null."""
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


def _unshare_memory() -> None:
    """Replace writable shared mappings of up to _MAX_MAPPING bytes with private copies at the same addresses."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if " rw-s " not in line:  # nearly all of thousands of lines
            continue
        addresses, _, *_, name = [*line.split(None, 5), ""][:6]
        begin, end = (int(address, 16) for address in addresses.split("-"))
        is_device = not name.startswith("/") or (name.startswith("/dev/") and not name.startswith(_MEMORY_DEVICES))
        if not is_device and end - begin <= _MAX_MAPPING:
            content = ctypes.string_at(begin, end - begin)
            protection, mapping = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            size = ctypes.c_size_t(end - begin)
            libc.mmap(ctypes.c_void_p(begin), size, protection, mapping, -1, ctypes.c_long(0))
            ctypes.memmove(begin, content, len(content))
