"""The amount of free memory, copies of batches between devices, and batches with several images per sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

_AT_ONCE = 2**16  # bytes of pageable memory that the driver copies before it returns


def free_memory(device: torch.device) -> int:
    """Return the free memory in bytes. Unused memory in torch's cache on a GPU, and inactive file cache on the CPU,
    count as free. On the CPU, the process's control group may limit the result."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(meminfo["MemAvailable"].split()[0])
    try:
        group = Path("/sys/fs/cgroup")
        limit, now = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return free
    used = int(now) - int(counts.get("inactive_file", 0))
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def on_the_cpu() -> AbstractContextManager:
    """Context manager that creates tensors on the CPU, regardless of torch.set_default_device()."""
    # torch 2.5's get_default_device() ignores ``with torch.device(...)``
    return nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy an array or a CPU tensor to the device, without waiting for earlier work of the GPU."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if device.type != "cuda" or tensor.nbytes <= _AT_ONCE:
        return tensor.to(device, non_blocking=True)
    # a copy of more pageable memory would wait (CUDA C++ Programming Guide)
    with torch.cuda.device(device):  # otherwise CUDA may be initialized on the default GPU
        return tensor.pin_memory().to(device, non_blocking=True)


def moved(data: Any, device: torch.device) -> Any:
    return mapped(data, lambda tensor: tensor.to(device, non_blocking=True))


@contextmanager
def working_on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Context manager that makes a stream and its GPU the current ones."""
    # torch.cuda.stream() would initialize CUDA on the GPU that was current before
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


def handed_over(data: Any, stream: torch.cuda.Stream) -> Any:
    """Return ``data`` with its GPU tensors copied for the current stream. ``stream`` computed the originals, and waits
    for the copies before it reuses the memory."""
    current = torch.cuda.current_stream(stream.device)
    current.wait_stream(stream)
    copies = mapped(data, lambda tensor: tensor.clone() if tensor.is_cuda else tensor)
    stream.wait_stream(current)
    return copies


def mapped(data: Any, function: Callable[[Any], Any], kind: type = torch.Tensor) -> Any:
    """Return ``data`` with ``function`` applied to its tensors, or to its leaves of type ``kind``. Containers are
    searched as in torch.utils.data._utils.pin_memory."""
    if isinstance(data, kind):
        return function(data)
    if isinstance(data, ViewBatches):
        return data.each(lambda batch: mapped(batch, function, kind))
    if isinstance(data, Mapping):
        named = {key: mapped(value, function, kind) for key, value in data.items()}
        return named if type(data) is dict else _of_kind(data, named)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(mapped(value, function, kind) for value in data))
    if isinstance(data, (list, tuple)):
        values = [mapped(value, function, kind) for value in data]
        return values if type(data) is list else tuple(values) if type(data) is tuple else _rebuilt(data, values)
    return data


def _of_kind(data, named):
    if not isinstance(data, MutableMapping):
        return _rebuilt(data, named)
    clone = copy(data)  # keeps the default_factory of a defaultdict
    clone.update(named)
    return clone


def _rebuilt(data, values):
    try:
        return type(data)(values)
    except TypeError:  # a container whose constructor does not take one argument
        return values


class ViewBatches(Sequence):
    """A sequence of samples with several images (views) each, stored as one batch per view.

    Attributes:
        batches: for each view, (N, C, H, W) or a list of N images.
        structure: structure of a sample, as nested lists, tuples and dicts of view numbers.
    """

    def __init__(self, batches: Sequence[Any], structure: Any = None):
        self.batches = list(batches)
        self.structure = tuple(range(len(self.batches))) if structure is None else structure

    def __len__(self) -> int:
        return len(self.batches[0])

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self.each(lambda batch: batch[row])
        return filled(self.structure, [batch[row] for batch in self.batches])

    def each(self, function: Callable[[Any], Any]) -> ViewBatches:
        """Apply ``function`` to each view's batch."""
        return ViewBatches(list(map(function, self.batches)), self.structure)


def filled(structure: Any, values: Sequence[Any]) -> Any:
    """Return ``structure`` with each view number replaced by its entry in ``values``."""
    if isinstance(structure, int):
        return values[structure]
    if isinstance(structure, dict):
        return {key: filled(one, values) for key, one in structure.items()}
    made = [filled(one, values) for one in structure]
    return type(structure)(*made) if hasattr(structure, "_fields") else type(structure)(made)
