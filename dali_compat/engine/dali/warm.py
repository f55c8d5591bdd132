"""Start nvJPEG on a GPU in the background, because the first decoder of a process takes long to create.

DALI's decoder opens the GPU's JPEG engines several times, and the driver takes about .5 s each time, unless an nvJPEG
state keeps them open. A thread of this module creates such a state in .6 s. The first pipeline is then built in .2 s
instead of 1.8 s (H200). All other Python threads wait while it is built. nvJPEG's handle also provides the number of
engines, which determines the number of decoding threads. Handle and state are closed when a pipeline keeps the engines
open.

A fork waits for the thread, because a child must not inherit a held lock. Program exit waits for the thread, too.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ...runtime.forks import at_fork, new_lock
from ...runtime.installation import most_jpeg_engines, nvjpeg_libraries

_PATIENCE = 60  # seconds that a fork waits
_HARDWARE, _DEFAULT = 3, 0  # backends of nvJPEG: the JPEG engine, and the fallback for GPUs without one


class _Start:
    """The thread that opens an nvJPEG handle on one device, and that handle."""

    def __init__(self, make: Callable[[int], Any], index: int):
        self._make, self._index = make, index
        self._made: Any = None  # the open handle, which any thread may close
        self.engines = 0
        self._dropped = False
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="dali_compat nvJPEG's start")

    def _run(self) -> None:
        try:
            made = self._make(self._index)
        except Exception:  # the first pipeline meets the same error and reports it
            return
        self.engines = made.engines
        with self._lock:
            if not self._dropped:
                self._made = made
                return
        made.close()

    def take(self) -> Any:
        """Return the open handle, or None. The caller must close the handle. If the thread opens one after this
        call, the thread closes it."""
        with self._lock:
            self._dropped = True
            made, self._made = self._made, None
        return made


_starts: dict[int, _Start] = {}  # by device index
_starting = new_lock()
_others: list[threading.Thread] = []  # started by in_background()


def begin(index: int, make: Callable[[int], Any] | None = None) -> None:
    """Start a thread that opens nvJPEG on a device, unless it was started before. ``make(index)``, by default
    Handle(index), opens nvJPEG. Raise RuntimeError if no thread can be started."""
    with _starting:
        if index not in _starts:
            start = _Start(make or Handle, index)
            start.thread.start()
            _starts[index] = start  # only if the thread runs, because other threads join it


def jpeg_engines(index: int) -> int:
    """Wait until nvJPEG has started on a device, and return its number of JPEG engines. It is 0 if the device has none,
    or if nvJPEG cannot be opened."""
    begin(index)
    _starts[index].thread.join()
    return known_jpeg_engines(index) or 0


def known_jpeg_engines(index: int) -> int | None:
    """Return the number of JPEG engines as jpeg_engines() does, but None if nvJPEG has not started yet."""
    start = _starts.get(index)
    return None if start is None or start.thread.is_alive() else int(min(start.engines, most_jpeg_engines()))


def drop(index: int) -> None:
    """Close a device's handle. Call this when a pipeline with a decoder has been built for the device."""
    start = _starts.get(index)
    made = None if start is None else start.take()
    if made is None:
        return
    if not in_background(made.close):  # closing may take as long as a batch
        made.close()


def in_background(function: Callable[[], None]) -> bool:
    """Call a function in a thread. Forks and program exit wait for the thread. Return False if no thread can be
    started."""
    thread = threading.Thread(target=function, name="dali_compat nvJPEG")
    _others.append(thread)
    with suppress(RuntimeError):
        thread.start()
        return True
    return False


def finish(seconds: float | None = None) -> None:
    """Wait until all background threads have ended, at most ``seconds`` for each. None means no limit."""
    for thread in [*(start.thread for start in list(_starts.values())), *_others]:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(seconds)
    _others[:] = [thread for thread in _others if thread.is_alive()]


class Handle:
    """An open nvJPEG handle, with a state that keeps the JPEG engines open. ``engines`` is the number of JPEG engines
    of the GPU ``index``. The constructor raises RuntimeError if nvJPEG is missing or cannot be opened."""

    def __init__(self, index: int):
        self._index, self._handle, self._state = index, ctypes.c_void_p(), ctypes.c_void_p()
        status = "the library was not found"
        with torch.cuda.device(index):
            torch.cuda.current_stream().synchronize()  # initializes CUDA in this thread
            for library, backend in ((one, how) for one in nvjpeg_libraries() for how in (_HARDWARE, _DEFAULT)):
                code = library.nvjpegCreateEx(backend, None, None, 0, ctypes.byref(self._handle))
                if code == 0:
                    self._library: Any = library
                    self.engines = self._count() if backend == _HARDWARE else 0
                    if self.engines and library.nvjpegJpegStateCreate(self._handle, ctypes.byref(self._state)) != 0:
                        self._state = ctypes.c_void_p()  # the first pipeline then takes longer to build
                    return
                status = f"nvjpegCreateEx returned status {code}"
        raise RuntimeError(f"nvJPEG could not be opened: {status}")

    def _count(self) -> int:
        """Return the number of engines. The five parts of an A100's engine count as five."""
        ask = getattr(self._library, "nvjpegGetHardwareDecoderInfo", None)  # added in nvJPEG 11.9
        engines, parts = ctypes.c_uint(), ctypes.c_uint()
        if ask is None or ask(self._handle, ctypes.byref(engines), ctypes.byref(parts)) != 0:
            return 1
        return engines.value * max(1, parts.value)

    def close(self) -> None:
        state, self._state = self._state, ctypes.c_void_p()
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            with torch.cuda.device(self._index):
                if state:
                    self._library.nvjpegJpegStateDestroy(state)
                self._library.nvjpegDestroy(handle)


def _end() -> None:
    """Close all handles before CUDA shuts down."""
    finish()
    for start in _starts.values():
        made = start.take()
        if made is not None:
            made.close()


def _after_fork_in_child() -> None:
    _starts.clear()
    _others.clear()


atexit.register(_end)
at_fork("nvJPEG", before=partial(finish, _PATIENCE), after_in_child=_after_fork_in_child)
