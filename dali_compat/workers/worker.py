"""Run functions without a translation on samples, in a worker process or in the caller's thread."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils

from ..randoms import seed_generators
from .processes import serve
from .samples import Packed, Parcel, Pieces, View, as_tensor, dumps, infos_of, kind_of, pack
from .shared_memory import Place, Slot

_KEPT = 1 << 30  # bytes of freed memory that a worker keeps
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # malloc.h


def run(functions, seed: tuple[int, ...], samples: list, positions: list[int]) -> list:
    """Apply all functions to each sample, with generators seeded by ``seed`` and the sample's position."""
    results = []
    for sample, position in zip(samples, positions, strict=True):
        seed_generators(*seed, position)
        for function in functions:
            sample = function(sample)
        results.append(sample)
    return results


def work(connection: Connection, tasks: socket.socket, number: int, functions, seed, slots: list[Slot], *start) -> None:
    """Run a worker process until the connection is closed. ``start``: further arguments of begin()."""
    stay_with_the_parent()
    error = begin(number, seed, *start)

    def view(place: Place) -> torch.Tensor:
        return slots[place.slot].bytes(place)

    serve(connection, tasks, lambda message: dumped(error or _called(functions, message, view)))


def stay_with_the_parent(parent: int | None = None) -> None:
    """End this process when its parent ends, and leave interrupts to the parent.

    ``parent`` is the id of the process that forked this one, if multiprocessing did not.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handlers must not run in its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # blocked until here
    starter = None if parent else multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent or os.getppid(), starter), daemon=True).start()


def _end_with(parent: int, starter: Any) -> None:
    """End this process with its parent, even if a function never returns.

    ``parent`` may be a fork server or the process that adopts orphans, so ``starter`` is checked as well.
    """
    while os.getppid() == parent and (starter is None or starter.is_alive()):
        time.sleep(1)
    os._exit(1)


def begin(number, seed, workers, init, dataset) -> ExceptionWrapper | None:
    """Prepare the process as torch's worker loop does, with one thread, a seed, get_worker_info() and worker_init_fn.

    Return the error of worker_init_fn, if any.
    """
    _keep_memory()
    torch.set_num_threads(1)
    seed_generators(seed, number)
    info = _utils.worker.WorkerInfo(id=number, num_workers=workers, seed=seed + number, dataset=dataset)
    _utils.worker._worker_info = info
    try:
        if init is not None:
            init(number)
    except Exception:
        return wrapped()
    return None


def _keep_memory() -> None:
    """Keep freed memory in the process.

    glibc returns large blocks to the system, which clears each page before reuse. For ten crops as float tensors that
    is 3 of 8 ms.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(threshold, _KEPT)


def dumped(made: Any) -> bytes:
    """Pickle an answer; if pickle fails, pickle an error instead."""
    try:
        return dumps(made)
    except Exception as error:
        if isinstance(made, ExceptionWrapper):  # its class cannot be pickled; the text contains the name
            made.exc_type = RuntimeError
            return dumps(made)
        return dumps(_refused(error))


def _refused(error: Exception) -> ExceptionWrapper:
    try:
        raise TypeError(
            f"a sample cannot be sent from a worker process: {type(error).__name__}: {error}; define its classes and "
            "functions at the top level of a module, remove such objects from it, or use num_workers=0"
        ) from None
    except TypeError:
        return wrapped()


def _called(functions, message: bytes, view: View) -> Packed | Parcel | ExceptionWrapper:
    """Return the functions' results, in shared memory if there is room, or their error as text.

    Errors are sent as text because some exceptions cannot be unpickled. ``message`` is pickled: samples (Packed or
    Parcel), positions, room (a Place or None) and seed.
    """
    try:
        samples, positions, room, seed = pickle.loads(message)
        return _placed(run(functions, seed, samples.unpack(view), positions), room, view)
    except Exception:
        return wrapped()


def _placed(results: list, room: Place | None, view: View) -> Packed | Parcel:
    kind = kind_of(results)
    if kind is None:
        pieces = Pieces(results)
        place = _place(room, pieces.size)
        return pieces.parcel(view, place)
    images = [as_tensor(result) for result in results]
    place = _place(room, sum(image.numel() for image in images) * images[0].itemsize)
    infos = infos_of(results) if kind == "pil" else ()
    return pack(images, kind, infos, view, place)


def _place(room: Place | None, size: int) -> Place | None:
    """Return the first ``size`` bytes of the room; None if it is too small."""
    return None if room is None or size > room.end - room.begin else room._replace(end=room.begin + size)


def wrapped() -> ExceptionWrapper:
    """Wrap the exception that is being handled, to send it to the parent."""
    info = _utils.worker.get_worker_info()
    assert info is not None  # begin() has set it
    return ExceptionWrapper(where=f"in DataLoader worker process {info.id}")
