"""Private names of Python and of other packages that this package uses.

The docstrings state the version that added a private name. tests/unit/test_internals.py tests the installed versions.
Other private names are used for custom data sets (tracing/patches.py), torchvision's arithmetic (ops/) and known data
sets (data/).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any

# ---- Python


def take_head_lock() -> None:
    """Wait until no thread holds CPython's HEAD_LOCK, before a fork.

    If a native thread such as gloo's holds the lock during a fork, the child deadlocks in Python before 3.10.15 and
    3.11.10 (CPython issue 112275). PyThreadState_SetAsyncExc, which exists in all versions, acquires the lock.
    sys._current_frames() does, too, but may deadlock if it runs the garbage collector (issue 106883).
    """
    if sys.version_info < (3, 10, 15) or (3, 11) <= sys.version_info < (3, 11, 10):
        ctypes.PyDLL(None).PyThreadState_SetAsyncExc(ctypes.c_ulong(0), None)


def reset_lock(lock: Any) -> None:
    """Release a lock that a thread of the parent held when this child was forked. Lock._at_fork_reinit() was added in
    Python 3.9."""
    lock._at_fork_reinit()


def at_exit_before_threads(function: Callable[[], None]) -> None:
    """Register a function that ends threads at exit, before Python joins them. atexit would be too late.

    threading._register_atexit() was added in Python 3.9.
    """
    getattr(threading, "_register_atexit", atexit.register)(function)


def callers() -> Iterator[FrameType]:
    """Yield the frames of the calling function's callers, innermost first. sys._getframe() exists in all versions."""
    return (frame for frame, _ in walk_stack(sys._getframe(2)))


def trainer_is_at_last_batch(loader: Any) -> bool:
    """Return True if a Lightning Trainer in the call stack has received the last batch of its epoch from this loader.
    With limit_train_batches, the loader may have more batches.

    The trainer's ``_combined_loader`` was added in Lightning 2.0.
    """
    modules = "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"
    frame = next((one for one in callers() if one.f_globals.get("__name__") in modules), None)
    fit: Any = None if frame is None else getattr(frame.f_locals.get("self"), "fit_loop", None)
    loaders = getattr(getattr(fit, "_combined_loader", None), "flattened", ())
    return any(one is loader for one in loaders) and bool(fit.epoch_loop.batch_progress.is_last_batch)


def module_runner() -> Callable[..., Any]:
    """Return the function that runs a module for ``python -m``. Unlike runpy.run_module(), it keeps __main__ for
    threads and atexit functions."""
    runner: Callable[..., Any] = runpy._run_module_as_main  # type: ignore[attr-defined]  # private
    return runner


# ---- torch and DALI

ITERATORS: dict[str, tuple[str, ...]] = {
    "_BaseDataLoaderIter": (
        *("_next_data", "_next_index", "_reset", "_base_seed", "_sampler_iter", "_index_sampler", "_auto_collation"),
        *("_dataset", "_num_workers", "_num_yielded"),
    ),
    "_SingleProcessDataLoaderIter": ("_dataset_fetcher",),
    "_MultiProcessingDataLoaderIter": (
        *("_process_data", "_try_get_data", "_try_put_index", "_data_queue"),
        *("_tasks_outstanding", "_task_info", "_rcvd_idx"),
    ),
}
"""Names of torch's iterator classes that epoch/ extends, and for each the methods and attributes that epoch/ uses. All
of them exist in torch 2.0 and later."""


def profiler_check() -> Callable[[], bool]:
    """Return the function _profiler_enabled(), which returns True if torch's profiler is running. It was added in torch
    1.9."""
    import torch

    return torch.autograd._profiler_enabled


def current_stream_of(device: Any) -> int:
    """Return torch.cuda.current_stream(device).cuda_stream, without spending 3 us on a Stream object.

    _cuda_getCurrentRawStream() was added in torch 1.8.
    """
    import torch

    return torch._C._cuda_getCurrentRawStream(device.index)


def version_of(tensor: Any) -> int:
    """Return a number that changes when a tensor is modified in place."""
    return int(tensor._version)


def collate_functions() -> dict[Any, Any]:
    """Return the {type: function} that the program has set in default_collate_fn_map (added in torch 2.0)."""
    from torch.utils.data._utils import collate

    torchs = vars(collate)
    return {
        kind: one
        for kind, one in collate.default_collate_fn_map.items()
        if getattr(one, "__globals__", None) is not torchs
    }


def leaves_by_path(value: Any) -> dict[str, Any]:
    """Return the leaves of nested containers by path, such as {"[0]['boxes']": ...}.

    tree_flatten_with_path() was added in torch 2.2.
    """
    from torch.utils._pytree import keystr, tree_flatten_with_path

    return {keystr(path): leaf for path, leaf in tree_flatten_with_path(value)[0]}


def data_set_being_read() -> Any:
    """Return the data set that torch's own loader reads in this call stack, or None.

    The module of torch's fetchers was added in torch 1.2.
    """
    for frame in islice(callers(), 12):  # frames of Subset and ConcatDataset may come first
        if frame.f_globals.get("__name__") == "torch.utils.data._utils.fetch":
            return getattr(frame.f_locals.get("self"), "dataset", None)
    return None


def pipelines_of(kind: Any) -> set[Any]:
    """Return DALI's weak references to all pipelines that it closes at exit. ``kind`` is nvidia.dali.Pipeline.

    Pipeline._pipes was added in DALI 1.24.
    """
    found: set[Any] = kind._pipes
    return found


# ---- frameworks and Pillow

ACCELERATE, PREPARED = "accelerate.data_loader", "_is_accelerate_prepared"
"""Module of Accelerate's loaders, and the loader attribute that prepare() reads. The attribute was added in
Accelerate 0.18."""


def framework_calls() -> list[FrameType]:
    """Return the frames of Accelerate and Ray Train in the call stack, innermost first.

    Accelerate's prepare(loader) and Ray Train's prepare_data_loader(loader) construct another loader. Since Accelerate
    0.20 and Ray 2.7, the script's loader is a local variable of these functions.
    """
    frames = islice(callers(), 16)  # the framework's function is not further from our constructor
    return [one for one in frames if str(one.f_globals.get("__name__")).startswith((ACCELERATE, "ray.train."))]


def file_of(error: BaseException | None) -> str:
    """Return the path of the file that caused an OSError or an error of Pillow, or "" if it is unknown."""
    met: list[BaseException] = []  # "raise error from error" creates a cycle
    while error is not None and error not in met:
        met.append(error)
        found = [getattr(error, "filename", None)]
        for frame, _ in walk_tb(error.__traceback__):  # most of Pillow's errors do not contain the path
            if str(frame.f_globals.get("__name__")).startswith("PIL."):
                image, file = (frame.f_locals.get(name) for name in ("self", "fp"))
                files = image, file, getattr(image, "fp", None)
                found += [getattr(one, name, None) for one in files for name in ("filename", "name")]
        known = [os.fsdecode(one) for one in found if one and isinstance(one, (str, bytes, os.PathLike))]
        if known:
            return known[-1]
        error = error.__cause__ or error.__context__
    return ""
