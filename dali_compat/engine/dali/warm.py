"""nvJPEG's start on a GPU, in the background: the first decoder of a process takes long to make.

DALI's decoder opens the JPEG engine three times, to look for encoders and decoders and for itself, and the driver takes
some .5 s each time that nothing has it open. So nvJPEG is opened here, once, before the first pipeline is made: that
takes one of the three, and may pass beside the user's program. It stays open until the pipeline exists, which keeps the
engine open for others. It also says how many engines there are, which decides how many threads decode.

The thread is no daemon: a program that ends meanwhile waits for it. So does a fork, which must not copy a lock.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ...runtime.installation import most_jpeg_engines, nvjpeg_libraries

_PATIENCE = 60  # seconds, of a fork
_HARDWARE, _DEFAULT = 3, 0  # backends of nvJPEG: the JPEG engine, and for GPUs without one whatever they have


class _Start:
    """The start on one device: a thread, and what it leaves."""

    def __init__(self, make: Callable[[int], Any], index: int):
        self._make, self._index = make, index
        self._made: Any = None  # its close() frees it, from any thread
        self.engines = 0
        self._dropped = False
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="dali_compat nvJPEG's start")

    def _run(self) -> None:
        try:
            made = self._make(self._index)
        except Exception:  # the first pipeline meets the same, and whoever asked for it is told
            return
        self.engines = made.engines
        with self._lock:
            if not self._dropped:
                self._made = made
                return
        made.close()

    def take(self) -> Any:
        """Returns what is open, or None; what opens later is closed."""
        with self._lock:
            self._dropped = True
            made, self._made = self._made, None
        return made


_starts: dict[int, _Start] = {}  # of this process, by the index of the device
_others: list[threading.Thread] = []


def begin(index: int, make: Callable[[int], Any] | None = None) -> None:
    """A thread calls ``make``, which is Handle unless it is given; once a process and device."""
    if index not in _starts:
        start = _Start(make or Handle, index)
        if _starts.setdefault(index, start) is start:
            start.thread.start()


def jpeg_engines(index: int) -> int:
    """The number of JPEG engines of the device that nvJPEG may use; 0 where it cannot be asked. Waits until nvJPEG has
    started, and begins that where nobody has."""
    begin(index)
    _starts[index].thread.join()
    return known_jpeg_engines(index) or 0


def known_jpeg_engines(index: int) -> int | None:
    """The same, without waiting; None where nvJPEG has not started yet."""
    start = _starts.get(index)
    return None if start is None or start.thread.is_alive() else int(min(start.engines, most_jpeg_engines()))


def drop(index: int) -> None:
    """A pipeline with a decoder exists on the device: what was opened here is not needed any more."""
    start = _starts.get(index)
    made = None if start is None else start.take()
    if made is None:
        return
    if not in_background(made.close):  # which may take as long as a batch
        made.close()


def in_background(function: Callable[[], None]) -> bool:
    """Calls it in a thread, for which forks and the program's end wait. Returns False where the program ends, and no
    thread begins any more."""
    thread = threading.Thread(target=function, name="dali_compat nvJPEG")
    _others.append(thread)
    with suppress(RuntimeError):
        thread.start()
        return True
    return False


def finish(seconds: float | None = None) -> None:
    """Wait until nothing happens in the background."""
    for thread in [*(start.thread for start in list(_starts.values())), *_others]:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(seconds)
    _others[:] = [thread for thread in _others if thread.is_alive()]


class Handle:
    """nvJPEG, open on a GPU, with so many JPEG ``engines``. Its calls leave the interpreter unlocked. Raises
    RuntimeError if it is not there, or cannot be opened."""

    def __init__(self, index: int):
        library = next(nvjpeg_libraries(), None)
        if library is None:
            raise RuntimeError("nvJPEG's library is not there")
        self._library: Any = library
        self._index, self._handle = index, ctypes.c_void_p()
        with torch.cuda.device(index):
            torch.cuda.current_stream().synchronize()  # CUDA runs in this thread
            for backend in (_HARDWARE, _DEFAULT):
                status = library.nvjpegCreateEx(backend, None, None, 0, ctypes.byref(self._handle))
                if status == 0:
                    self.engines = self._count() if backend == _HARDWARE else 0
                    return
        raise RuntimeError(f"nvjpegCreateEx: status {status}")

    def _count(self) -> int:
        """Returns the number of engines; of A100's one the five parts count, each of which decodes an image."""
        ask = getattr(self._library, "nvjpegGetHardwareDecoderInfo", None)  # not in nvJPEG before 11.9
        engines, parts = ctypes.c_uint(), ctypes.c_uint()
        if ask is None or ask(self._handle, ctypes.byref(engines), ctypes.byref(parts)) != 0:
            return 1
        return engines.value * max(1, parts.value)

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            with torch.cuda.device(self._index):
                self._library.nvjpegDestroy(handle)


def _end() -> None:
    """Before CUDA ends."""
    finish()
    for start in _starts.values():
        made = start.take()
        if made is not None:
            made.close()


def _after_fork_in_child() -> None:
    """Forgets the parent's decoders without closing them."""
    _starts.clear()
    _others.clear()


def _before_fork() -> None:
    finish(_PATIENCE)


atexit.register(_end)
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
