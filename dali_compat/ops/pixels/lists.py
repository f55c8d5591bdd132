"""Process lists of images whose sizes may differ, in threads or in groups, and collect them into batches."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ...runtime.cores import usable_cores
from ...runtime.device import to_device
from ...runtime.forks import at_fork, new_lock

_lock = new_lock()
_pool: ThreadPoolExecutor | None = None
_spare: list[tuple[np.ndarray, weakref.ref]] = []  # memory of batches, and weak references to their owners
_MOST, _MOST_IDLE = 32, 2  # entries of _spare, and entries without an owner
_LEAST = 2**18  # bytes


def each(function: Callable, *columns) -> list:
    """Return ``function(*row)`` for each row of the columns, in order, with one thread per usable core.

    The function should release the GIL, as Pillow does, and must not call each() again.
    """
    global _pool
    rows = list(zip(*columns, strict=True))
    if len(rows) > 1:
        pool = _pool = _pool or ThreadPoolExecutor(usable_cores(), "dali_compat-each", _use_one_torch_thread)
        try:
            futures = [pool.submit(function, *row) for row in rows]
        except RuntimeError:  # the main thread has ended, which shuts down every executor
            pass
        except BaseException:
            pool.shutdown(wait=False)  # an interrupt; do not wait for the threads
            _pool = None
            raise
        else:
            with suppress(BrokenExecutor):  # no more threads; the next call tries again
                return [future.result() for future in futures]
            _pool = None
    return [function(*row) for row in rows]


def _use_one_torch_thread() -> None:
    """Limit torch to one thread for calls from this thread, because several threads would wait for busy cores.

    set_num_threads() also changes the default for new threads. A call in another thread restores this default.
    """
    with _lock:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        other = threading.Thread(target=torch.set_num_threads, args=(before,))
        other.start()
        other.join()


def _forget_pool() -> None:
    """Drop the executor in a forked child, where its threads do not exist."""
    global _pool
    _pool = None


at_fork("executor", after_in_child=_forget_pool)


def stack_if_uniform(images: list[torch.Tensor]):
    """Stack images of the same shape and dtype into a batch. Return other lists unchanged."""
    first = images[0]
    if not all(image.shape == first.shape and image.dtype == first.dtype for image in images):
        return images
    if first.is_cuda or first.dtype == torch.bfloat16:  # NumPy has no bfloat16
        return torch.stack(images)
    # While DALI keeps the cores busy, torch's threads wait for each other. torch.stack of 64 float images of 224 x 224
    # then takes 60 to 760 ms, and np.stack 10 ms.
    arrays = [image.numpy() for image in images]
    made = spare_batch((len(arrays), *arrays[0].shape), arrays[0].dtype)
    np.stack(arrays, out=made.numpy())
    return made


def spare_batch(shape: tuple[int, ...], dtype: Any = np.float32) -> torch.Tensor:
    """Return an uninitialized CPU tensor, in the memory of an unused earlier batch if possible.

    Reusing memory is faster, because the system clears new memory, which takes longer than filling it.
    """
    if np.dtype(dtype).itemsize * math.prod(shape) < _LEAST:
        return torch.from_numpy(np.empty(shape, dtype))
    with _lock:
        idle = [one for one in _spare if one[1]() is None]
        found = next((one for one in idle if one[0].shape == shape and one[0].dtype == dtype), None)
        memory = np.empty(shape, dtype) if found is None else found[0]
        view = memory.view()  # kept alive by the tensor and by all that share its memory
        gone = [*[one for one in idle if one is not found][:-_MOST_IDLE], found]
        _spare[:] = [one for one in _spare if not any(one is other for other in gone)][-_MOST:]
        _spare.append((memory, weakref.ref(view)))
    return torch.from_numpy(view)


def assign(made: list, rows, images) -> list:
    for row, image in zip(rows, images, strict=True):
        made[row] = image
    return made


def put(frames: torch.Tensor, images: list[torch.Tensor]) -> None:
    """Copy each image (C, H, W) to the upper left corner of its frame. ``frames`` is (N, C, height, width), of any
    dtype."""
    for frame, image in zip(frames, images, strict=True):
        frame[:, : image.shape[1], : image.shape[2]] = image


def of_similar_size(images: list[torch.Tensor]):
    """Yield (indices, height, width) of groups of images. If all images of a group are padded to (height, width), at
    most half of their pixels are padding."""
    sizes = np.array([image.shape[1:] for image in images]).reshape(-1, 2)
    order = np.lexsort((sizes.max(1), sizes[:, 0] > sizes[:, 1]))
    begin = 0
    while begin < len(order):
        area, end, largest = 0, begin, np.zeros(2, int)
        for end in range(begin, len(order)):
            size = sizes[order[end]]
            if 2 * (area + size.prod()) < (end + 1 - begin) * np.maximum(largest, size).prod():
                break
            area, largest = area + size.prod(), np.maximum(largest, size)
        else:
            end = len(order)
        yield order[begin:end], *largest.tolist()
        begin = end


def in_groups(images, groups):
    """Apply a function to each group of images. Return all images in their original order.

    ``groups`` contains pairs (indices of images, function). Images in no group are left unchanged.

    One launch gathers the images of all groups, and another one scatters the results. More launches could block the
    caller, because CUDA queues only about 1,000.
    """
    if not groups:
        return images
    changed = np.concatenate([rows for rows, _ in groups])
    if len(groups) == 1 and len(changed) == len(images):
        return groups[0][1](images)
    others = np.setdiff1d(np.arange(len(images)), changed)
    order = np.concatenate([changed, others])
    together = images.index_select(0, to_device(order, images.device))
    *parts, rest = together.split([*(len(rows) for rows, _ in groups), len(others)])
    made = [function(part) for (_, function), part in zip(groups, parts, strict=True)]
    return torch.cat([*made, rest]).index_select(0, to_device(np.argsort(order), images.device))


def by_size(images, sizes, function):
    """Call ``function(images, rows, size)`` once for each different target size in ``sizes``, with the images of this
    target size and their indices.

    Return all images in their original order: as a tensor if there is one size, otherwise as a list of single images.
    """
    sizes = np.asarray(sizes).astype(np.int64)
    if (sizes == sizes[0]).all():
        return function(images, slice(None), tuple(sizes[0].tolist()))
    made: list = [None] * len(images)
    unique, which = np.unique(sizes, axis=0, return_inverse=True)
    for i, size in enumerate(unique.tolist()):
        rows = np.flatnonzero(which.reshape(-1) == i)
        assign(made, rows, function(images[to_device(rows, images.device)], rows, tuple(size)))
    return made
