"""Functions without a translation, on samples: in a worker process, or in the caller's thread."""

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
    """Each sample through all functions, with generators seeded by ``seed`` and its position."""
    results = []
    for sample, position in zip(samples, positions, strict=True):
        seed_generators(*seed, position)
        for function in functions:
            sample = function(sample)
        results.append(sample)
    return results


def work(connection: Connection, tasks: socket.socket, number: int, functions, seed, slots: list[Slot], *start) -> None:
    """Runs a worker process, until the connection is closed. ``start`` as begin() takes it."""
    stay_with_the_parent()
    error = begin(number, seed, *start)

    def view(place: Place) -> torch.Tensor:
        return slots[place.slot].bytes(place)

    serve(connection, tasks, lambda message: dumped(error or _called(functions, message, view)))


def stay_with_the_parent(parent: int | None = None) -> None:
    """Ends this process once its parent has ended, and leaves interrupts to that one.

    ``parent`` is the process that forked this one, where multiprocessing did not.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handlers are not for its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # until here they wait
    starter = None if parent else multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent or os.getppid(), starter), daemon=True).start()


def _end_with(parent: int, starter: Any) -> None:
    """Ends this process with its parent: nobody else would end a function that never returns.

    ``parent`` may be a fork server, or the one that adopts orphans: so multiprocessing is asked about ``starter``, too.
    """
    while os.getppid() == parent and (starter is None or starter.is_alive()):
        time.sleep(1)
    os._exit(1)


def begin(number, seed, workers, init, dataset) -> ExceptionWrapper | None:
    """Begins as torch's worker loop does: one thread, its seed, get_worker_info() and worker_init_fn; returns what that
    raises."""
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
    """glibc gives large pieces back to the system when they are freed, and the system clears every page that it gives
    out again: of the 8 ms that ten crops as float tensors take, 3."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(threshold, _KEPT)


def dumped(made: Any) -> bytes:
    """An answer as bytes; where pickle refuses it, an error that says so."""
    try:
        return dumps(made)
    except Exception as error:
        if isinstance(made, ExceptionWrapper):  # of a class that pickle does not find; its text names it
            made.exc_type = RuntimeError
            return dumps(made)
        return dumps(_refused(error))


def _refused(error: Exception) -> ExceptionWrapper:
    try:
        raise TypeError(
            f"a sample cannot be sent from a worker process: {type(error).__name__}: {error}; define its classes and "
            "functions at the top level of a module, leave such an object out of it, or take num_workers=0"
        ) from None
    except TypeError:
        return wrapped()


def _called(functions, message: bytes, view: View) -> Packed | Parcel | ExceptionWrapper:
    """Returns what the functions give, in shared memory if there is room; or their error as text, for not every
    exception can be unpickled. ``message``: pickled samples (Packed or Parcel), positions, the room (a Place, or None),
    and the seed."""
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
    """The beginning of the room, if it is large enough."""
    return None if room is None or size > room.end - room.begin else room._replace(end=room.begin + size)


def wrapped() -> ExceptionWrapper:
    """Wraps the exception that is being handled, to be sent to the parent."""
    info = _utils.worker.get_worker_info()
    assert info is not None  # begin() has set it
    return ExceptionWrapper(where=f"in DataLoader worker process {info.id}")
