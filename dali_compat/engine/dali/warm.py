"""The decoder's start on a GPU, in the background: the first decoder of a process takes long to make, as nvJPEG starts.

A pipeline that decodes a few tiny images is made beside the user's program. It lives until a loader has one of its own:
while any lives, another takes less. Where a loader's own comes at once, nothing is made: two at a time take longer than
one. DALI's C interface makes it. Python's waits for the decoder with the interpreter locked, which would stop the whole
program; and a C++ exception is an error code in C.

The thread is no daemon: a program that ends meanwhile waits for it. So does a fork, which must not copy a locked DALI.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import nvidia.dali as dali
from nvidia.dali import types
from PIL import Image

from . import graph

_GRACE = 0.25  # seconds, in which a loader's own pipeline may come
_PATIENCE = 60  # seconds, of a fork
_IMAGES = 8  # enough for the hardware decoder and for CUDA's, which share a batch
_SIDE = 64  # pixels
_OVERRIDES = 1024  # bytes, more than daliPipelineParams_t has; zeros override nothing


class Decoder(Protocol):
    """What has started."""

    def close(self) -> None:
        """Free it; from any thread."""
        ...


class _Start:
    """The start on one device: a thread, and what it leaves."""

    def __init__(self, make: Callable[[int], Decoder], index: int):
        self._make, self._index = make, index
        self._made: Decoder | None = None
        self._dropped = False
        self._overtaken = threading.Event()
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="dali_compat decoder's start")

    def overtake(self) -> None:
        """Not needed any more, if it has not begun."""
        self._overtaken.set()

    def _run(self) -> None:
        if self._overtaken.wait(_GRACE):
            return
        try:
            made = self._make(self._index)
        except Exception:  # the first pipeline meets the same, and whoever asked for it is told
            return
        with self._lock:
            if not self._dropped:
                self._made = made
                return
        made.close()

    def take(self) -> Decoder | None:
        """What it has left, or None; what comes later is closed."""
        with self._lock:
            self._dropped = True
            made, self._made = self._made, None
        return made


_starts: dict[int, _Start] = {}  # of this process, by the index of the device
_closing: list[threading.Thread] = []


def begin(index: int, make: Callable[[int], Decoder] | None = None) -> None:
    """A thread calls ``make``, which is first_decoder() unless it is given; once a process and device."""
    if index not in _starts:
        start = _Start(make or first_decoder, index)
        if _starts.setdefault(index, start) is start:
            start.thread.start()


def overtake(index: int) -> None:
    """A loader's own pipeline is being made on the device."""
    if index in _starts:
        _starts[index].overtake()


def _overtake_all() -> None:
    for start in list(_starts.values()):
        start.overtake()


def drop(index: int) -> None:
    """A pipeline with a decoder exists on the device: the one that was made here is not needed any more."""
    start = _starts.get(index)
    made = None if start is None else start.take()
    if made is None:
        return
    thread = threading.Thread(target=made.close, name="dali_compat decoder's end")  # it may take as long as a batch
    _closing.append(thread)
    try:
        thread.start()
    except RuntimeError:  # the program ends: no thread begins any more
        made.close()


def finish(seconds: float | None = None) -> None:
    """Wait until nothing happens in the background."""
    for thread in [*(start.thread for start in list(_starts.values())), *_closing]:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(seconds)
    _closing[:] = [thread for thread in _closing if thread.is_alive()]


class _Pipeline:
    """A pipeline of DALI's C interface.

    Raises:
        OSError, AttributeError: this DALI's library is elsewhere, or lacks the interface.
        RuntimeError: DALI cannot make it, or run it.
    """

    def __init__(self, serialized: bytes):
        self._library = ctypes.CDLL(os.path.join(os.path.dirname(dali.__file__), "libdali.so"))
        self._handle = ctypes.c_void_p()
        size, overrides = ctypes.c_size_t(len(serialized)), ctypes.create_string_buffer(_OVERRIDES)
        self._call("daliPipelineDeserialize", ctypes.byref(self._handle), serialized, size, overrides)
        try:
            self._call("daliPipelineBuild", self._handle)
        except Exception:
            self.close()
            raise

    def run(self) -> None:
        """One batch, to its end."""
        outputs = ctypes.c_void_p()
        self._call("daliPipelineRun", self._handle)
        self._call("daliPipelinePopOutputs", self._handle, ctypes.byref(outputs))
        self._call("daliPipelineOutputsDestroy", outputs)

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            with contextlib.suppress(RuntimeError):
                self._call("daliPipelineDestroy", handle)

    def _call(self, name: str, *arguments: Any) -> None:
        """ctypes unlocks the interpreter meanwhile."""
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            message = self._library.daliGetLastErrorMessage
            message.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {(message() or b'').decode(errors='replace')}")


def first_decoder(index: int | None) -> _Pipeline:
    """A pipeline that has decoded images, on a GPU (None: on the CPU) as the loader's pipelines do.

    Raises:
        Exception: whatever is in the way.
    """
    pipe = dali.Pipeline(_IMAGES, 1, index, prefetch_queue_depth=1, exec_dynamic=True)
    with pipe:
        encoded = types.Constant(np.frombuffer(_jpeg(), np.uint8), device="cpu")
        pipe.set_outputs(graph.decode(encoded, "cpu" if index is None else "mixed", exact=False))
    made = _Pipeline(pipe.serialize())
    try:
        made.run()
    except Exception:
        made.close()
        raise
    return made


def _jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (_SIDE, _SIDE)).save(file, "JPEG")
    return file.getvalue()


def _end() -> None:
    """Before DALI's library ends."""
    _overtake_all()
    finish()
    for start in _starts.values():
        made = start.take()
        if made is not None:
            made.close()


def _after_fork_in_child() -> None:
    """What there is belongs to the parent: nothing of it is closed."""
    _starts.clear()
    _closing.clear()


def _before_fork() -> None:
    _overtake_all()
    finish(_PATIENCE)


atexit.register(_end)
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
