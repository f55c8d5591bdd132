"""Functions without a translation, on samples: in a worker process, or in the caller's thread."""

from __future__ import annotations

import contextlib
import ctypes

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils

from .packed import Packed, as_tensor, kind_of, pack, pack_into
from .params import seed_generators
from .parcel import Parcel, parcel
from .shared import Place, Slot

_KEPT = 1 << 30  # bytes of freed memory that a worker keeps
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # malloc.h

_state: tuple = ()  # functions, seed, slots, and what worker_init_fn has raised


def run(functions, seed: int, samples: list, positions: list[int]) -> list:
    """Each sample through all functions, with generators seeded by its position."""
    results = []
    for sample, position in zip(samples, positions, strict=True):
        seed_generators(seed, position)
        for function in functions:
            sample = function(sample)
        results.append(sample)
    return results


def start_worker(functions, seed, slots: list[Slot], numbers, workers, init, dataset) -> None:
    """As torch's worker loop begins: one thread, its seed, get_worker_info() and worker_init_fn."""
    global _state
    _keep_memory()
    number = numbers.get()
    torch.set_num_threads(1)
    seed_generators(seed, number)
    info = _utils.worker.WorkerInfo(id=number, num_workers=workers, seed=seed + number, dataset=dataset)
    _utils.worker._worker_info = info
    error = None
    try:
        if init is not None:
            init(number)
    except Exception:
        error = _wrapped()
    _state = functions, seed, slots, error


def _keep_memory() -> None:
    """glibc gives large pieces back to the system when they are freed, and the system clears every page that it gives out
    again: of the 8 ms that ten crops as float tensors take, 3."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(threshold, _KEPT)


def in_worker(samples: Packed | Parcel, positions: list[int], room: Place | None) -> Packed | Parcel | ExceptionWrapper:
    """What the functions give, in shared memory where there is ``room``; or their error as text, for not every
    exception can be unpickled."""
    functions, seed, _, error = _state
    if error is not None:
        return error
    try:
        samples = samples.unpack(_view) if isinstance(samples, Packed) else samples.unpack()
        results = run(functions, seed, samples, positions)
        kind = kind_of(results)
        if kind is None:
            return parcel(results)
        images = [as_tensor(result) for result in results]
        size = sum(image.numel() for image in images) * images[0].itemsize
        if room is None or size > room.end - room.begin:
            return pack(images, kind)
        place = Place(room.slot, room.begin, room.begin + size)
        return pack_into(_view(place), place, images, kind)
    except Exception:
        return _wrapped()


def _view(place: Place) -> torch.Tensor:
    return _state[2][place.slot].bytes(place)


def _wrapped() -> ExceptionWrapper:
    return ExceptionWrapper(where=f"in DataLoader worker process {_utils.worker._worker_info.id}")
