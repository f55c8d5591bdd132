"""Images of different sizes, one by one in threads or in frames of one size; and lists as batches."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import torch

from ...runtime.cores import usable_cores
from ...runtime.device import to_device
from .grids import on_device_of

_pool: ThreadPoolExecutor | None = None
# memory of batches, and who has it; as many as are in flight, and the user has
_spare: deque[tuple[np.ndarray, weakref.ref]] = deque(maxlen=4)


def each(function: Callable, *columns) -> list:
    """``function(*row)`` of every row of the columns, in order, by as many threads as the process has cores. It is for
    what works without Python's lock, as Pillow does; it must not call each() again."""
    global _pool
    rows = list(zip(*columns, strict=True))
    if len(rows) > 1:
        pool = _pool = _pool or ThreadPoolExecutor(usable_cores(), thread_name_prefix="dali_compat-each")
        try:
            futures = [pool.submit(function, *row) for row in rows]
        except RuntimeError:  # the main thread has ended, and with it every executor; this thread lives on
            pass
        except BaseException:
            pool.shutdown(wait=False)  # as in epoch/aside.py
            _pool = None
            raise
        else:
            return [future.result() for future in futures]
    return [function(*row) for row in rows]


def _forget_pool() -> None:
    """A forked child has the parent's executor without its threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def uniform(images: list[torch.Tensor]):
    """A batch where all images have one shape and dtype, else the list."""
    first = images[0]
    if not all(image.shape == first.shape and image.dtype == first.dtype for image in images):
        return images
    if first.is_cuda or first.dtype == torch.bfloat16:  # which NumPy has not
        return torch.stack(images)
    # torch's threads wait for each other where DALI's keep the cores busy: 64 float images of 224 x 224 take
    # torch.stack 60 to 760 ms then, and this 10
    return torch.from_numpy(np.stack([image.numpy() for image in images]))


def float_batch(shape: tuple[int, ...]) -> torch.Tensor:
    """float32 of a CPU, in the memory of an earlier batch of this shape that nobody has any more: the system clears new
    memory first, which takes longer than to fill it."""
    memory = None
    for _ in range(len(_spare)):
        with suppress(IndexError):  # another thread has taken it
            kept, used = _spare.popleft()
            if used() is None and kept.shape == shape:
                memory = kept
                break
            _spare.append((kept, used))
    memory = np.empty(shape, np.float32) if memory is None else memory
    view = memory.view()  # the tensor keeps it, and whatever shares the tensor's memory
    _spare.append((memory, weakref.ref(view)))
    return torch.from_numpy(view)


def put(frames: torch.Tensor, images: list[torch.Tensor]) -> None:
    """Each image (C, H, W) into the upper left corner of its frame, (N, C, height, width) of any dtype."""
    for frame, image in zip(frames, images, strict=True):
        frame[:, : image.shape[1], : image.shape[2]] = image


def of_similar_size(images: list[torch.Tensor]):
    """(rows, height, width) of batches; in none of them is more than half of the pixels frame."""
    sizes = np.array([image.shape[1:] for image in images])
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


def selected(images, rows):
    if len(rows) == len(images):
        return images
    return images.index_select(0, to_device(rows, images.device))


def in_groups(images, groups):
    """``images`` with what becomes of groups of them: a list of (rows, function of their images). Other rows stay as
    they are. All go side by side, group by group, and back, in one launch each: CUDA keeps about 1,000 launches of a
    stream that it has not begun, and whoever adds another waits."""
    if not groups:
        return images
    changed = np.concatenate([rows for rows, _ in groups])
    others = np.setdiff1d(np.arange(len(images)), changed)
    order = np.concatenate([changed, others])
    together = images.index_select(0, to_device(order, images.device))
    *parts, rest = together.split([*(len(rows) for rows, _ in groups), len(others)])
    made = [function(part) for (_, function), part in zip(groups, parts, strict=True)]
    return torch.cat([*made, rest]).index_select(0, to_device(np.argsort(order), images.device))


def with_rows(images, made):
    """``images`` with other rows in places; ``made`` is a list of (rows, images)."""
    if len(made) == 1 and len(made[0][0]) == len(images):
        return made[0][1]
    if made:
        images = images.clone()
    for rows, part in made:
        images.index_copy_(0, to_device(rows, images.device), part)
    return images


# ---- shared


def by_size(images, sizes, function):
    """``function(images, rows, size)`` on all rows of one target size: a tensor, or a list where there are several."""
    sizes = np.asarray(sizes).astype(np.int64)
    if (sizes == sizes[0]).all():
        return function(images, slice(None), tuple(sizes[0].tolist()))
    made = [None] * len(images)
    unique, which = np.unique(sizes, axis=0, return_inverse=True)
    for i, size in enumerate(unique.tolist()):
        rows = np.flatnonzero(which.reshape(-1) == i)
        for row, image in zip(rows, function(images[on_device_of(rows, images)], rows, tuple(size)), strict=True):
            made[row] = image
    return made
