"""Devices: how much room they have, and batches on their way there; batches of samples that have several images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

_AT_ONCE = 2**16  # bytes of ordinary memory, which the driver keeps before it goes on


def free_memory(device: torch.device) -> int:
    """Bytes that are free: of a GPU, what torch holds unused included; of the host, for this machine and for this
    process's control group (Linux, v2), where files that the system has cached and not used lately count as free."""
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
    """Within it tensors for which no device is said are made on the CPU, whichever torch.set_default_device() names:
    that is for models, and torch's worker processes do not know of it either."""
    # torch 2.5's get_default_device() does not know of ``with torch.device(...)``
    return nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """An array, or a CPU tensor, on the device. It waits for nothing that a GPU has to do before; a copy from ordinary
    memory does, beyond 64 KB (CUDA C++ Programming Guide, "Concurrent Execution between Host and Device")."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if device.type != "cuda" or tensor.nbytes <= _AT_ONCE:
        return tensor.to(device, non_blocking=True)
    with torch.cuda.device(device):  # pinned memory is the current GPU's, where CUDA runs on none yet
        return tensor.pin_memory().to(device, non_blocking=True)


def moved(data: Any, device: torch.device) -> Any:
    """``data`` with its tensors on ``device``; containers keep their type, other objects stay as they are."""
    return mapped(data, lambda tensor: tensor.to(device, non_blocking=True))


@contextmanager
def working_on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Within it this stream is the current one, and its GPU. torch.cuda.stream() alone sets the GPU back that was the
    current one, and so makes CUDA start there."""
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


def current_stream_of(device: torch.device) -> int:
    """torch.cuda.current_stream(device).cuda_stream, without the 3 us that its object takes: every batch asks."""
    return torch._C._cuda_getCurrentRawStream(device.index)


def handed_over(data: Any, stream: torch.cuda.Stream) -> Any:
    """``data``, made on a stream, with its tensors as the current one's own: copies, for the memory of the former goes
    back to its stream without regard to others."""
    current = torch.cuda.current_stream(stream.device)
    current.wait_stream(stream)
    copies = mapped(data, lambda tensor: tensor.clone() if tensor.is_cuda else tensor)
    stream.wait_stream(current)
    return copies


def mapped(data: Any, function: Callable[[Any], Any], kind: type = torch.Tensor) -> Any:
    """``data`` with what a function makes of its tensors, or of other leaves of a ``kind``.

    Follows torch.utils.data._utils.pin_memory, which walks the same containers.
    """
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
    clone = copy(data)  # which a defaultdict has its function in
    clone.update(named)
    return clone


def _rebuilt(data, values):
    try:
        return type(data)(values)
    except TypeError:  # a container that is not made from one argument
        return values


class ViewBatches(Sequence):
    """One batch for each view; as a sequence, the samples.

    Attributes:
        batches: (N, C, H, W) each, or a list of N.
        structure: of a sample: lists, tuples and dicts of numbers of views.
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
        """Returns what a function makes of every batch."""
        return ViewBatches(list(map(function, self.batches)), self.structure)


def filled(structure: Any, values: Sequence[Any]) -> Any:
    """The structure with values in place of their numbers."""
    if isinstance(structure, int):
        return values[structure]
    if isinstance(structure, dict):
        return {key: filled(one, values) for key, one in structure.items()}
    made = [filled(one, values) for one in structure]
    return type(structure)(*made) if hasattr(structure, "_fields") else type(structure)(made)
