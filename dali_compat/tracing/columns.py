"""A traced batch as a few arrays, which are cheap to send from a worker to the loading process.

A *row* is one image of the batch. A *job* is one file of the batch, decoded once for all of its rows. plans.py splits
the steps of a row into a head and a tail. A JobGroup combines jobs with equal heads. A TailGroup combines rows with
tails that can be merged.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory
from torchvision import tv_tensors

from ..data.headers import FACTS
from ..runtime.device import mapped
from .cells import Cell, Join
from .hidden import computed, hidden_tensors
from .nodes import Node
from .operations import PixelFormat
from .plans import (
    Key,
    TailStep,
    format_after,
    merge_tails,
    size_after,
    split_steps,
    steps_without_flag,
)
from .sources import MemorySource
from .tensors import REAL_CLASS, TracedTensor, contiguous

_CLASSES = list(REAL_CLASS)
_MAX_RELATIVE_COST = 2.0  # see _relative_cost(); above it, the worker computes the images of a file
_SMALL = 64 << 10  # bytes of a tensor; a larger one is sent in shared memory
_TV_TENSORS = frozenset(one for one in vars(tv_tensors).values() if isinstance(one, type))
_DECODING = 2  # cost of decoding a pixel, relative to an operation on it


@dataclass(frozen=True)
class Placeholder:
    """Replacement for a deferred tensor in the result of ``collate_fn``.

    Attributes:
        row: index of the tensor's first row.
        count: number of rows that are stacked or concatenated; None if the tensor is a row itself.
        joins: how the rows are stacked or concatenated.
        class_index: index of the tensor's class in _CLASSES.
        strides: strides of the tensor; None if it is contiguous.
    """

    row: int
    count: int | None
    joins: tuple[Join, ...]
    class_index: int
    strides: tuple[int, ...] | None


class JobGroup(NamedTuple):
    """N jobs (files) of a traced batch that have equal heads and are decoded together.

    Attributes:
        keys: keys of the heads, one for each row of a job.
        rows: (N, len(keys)) int32, the row numbers of each job.
        numbers: (N, count) float64, the numbers of all heads of each job.
        paths: (N,) bytes, paths of files; for images in memory, all encoded images concatenated, as uint8.
        ends: (N,) int64, end of each encoded image in ``paths``; None for files.
        slots, header_records: (N,) as in FileSource.
    """

    keys: tuple[Key, ...]
    rows: np.ndarray
    numbers: np.ndarray
    paths: Any
    ends: np.ndarray | None
    slots: np.ndarray
    header_records: np.ndarray


class TailGroup(NamedTuple):
    """M rows of a traced batch that are transformed together, by one merged tail.

    Attributes:
        pixel_format: format of the images before the tail.
        tail: key of the merged tail.
        rows: (M,) int32, row numbers.
        numbers: (M, count) float64, the tail's numbers for each row.
    """

    pixel_format: PixelFormat
    tail: Key
    rows: np.ndarray
    numbers: np.ndarray


class TracedBatch:
    """The result of the user's ``collate_fn``, with a Placeholder for each deferred tensor.

    Attributes:
        value: the batch.
        count: number of rows.
        jobs, tails: JobGroups and TailGroups of the rows.
        computed_rows: (row, tensor) of each row that is already computed.
    """

    def __init__(self, value: Any):
        self.value, self.count = value, 0
        self.jobs: list[JobGroup] = []
        self.tails: list[TailGroup] = []
        self.computed_rows: list[tuple[int, torch.Tensor]] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"value": _by_value(self.value)}

    def pin_memory(self, device: Any = None) -> TracedBatch:
        """Pin computed tensors. Called by torch's pin_memory thread."""
        self.value = pin_memory(self.value, device)
        return self

    def fill(self, tensor_of: Callable[[Placeholder], torch.Tensor]) -> Any:
        """Return the batch with ``tensor_of(placeholder)`` in place of each Placeholder."""
        tensors: dict[Placeholder, torch.Tensor] = {}

        def replace(x: Placeholder) -> torch.Tensor:
            if x not in tensors:
                tensor = tensor_of(x)
                tensors[x] = tensor.as_subclass(REAL_CLASS[_CLASSES[x.class_index]]) if x.class_index else tensor
            return tensors[x]

        return mapped(self.value, replace, Placeholder) if self.count else self.value


def pack_batch(value: Any) -> TracedBatch:
    """Convert the result of ``collate_fn`` to a TracedBatch. Deferred tensors that cannot be computed in a batch are
    computed now."""
    for one, name in () if get_worker_info() else hidden_tensors(value):  # pickling computes those of a worker
        object.__setattr__(one, name, mapped(getattr(one, name), computed))
    cells: list[Cell] = []
    placeholders: dict[int, Placeholder | None] = {}
    tensors: list[TracedTensor] = []  # keeps the tensors alive, so that their ids stay unique

    def register(x: torch.Tensor) -> torch.Tensor:
        if type(x) in REAL_CLASS and id(x) not in placeholders:
            tensors.append(x)  # type: ignore[arg-type]  # a TracedTensor
            has_attributes = len(vars(x)) > 1  # besides _cell
            placeholders[id(x)] = None if has_attributes else _placeholder(x, cells)
        return x

    mapped(value, register)
    if not tensors:
        return TracedBatch(value)
    rows_of_file: dict[int, list[int]] = {}
    for row, cell in enumerate(cells):
        if cell.tensor is None:
            assert cell.node is not None  # it has a plan
            rows_of_file.setdefault(id(cell.node.root), []).append(row)
    for rows in rows_of_file.values():
        if len(rows) > 1 and _relative_cost([cells[row].node for row in rows]) > _MAX_RELATIVE_COST:  # type: ignore[misc]  # not None, as above
            for row in rows:
                cells[row].value()
    batch = TracedBatch(mapped(value, lambda x: placeholders.get(id(x)) or computed(x)))
    batch.count = len(cells)
    # copied, as torch.stack does, because the data set may change its tensors before they are sent
    batch.computed_rows = [(row, cell.tensor.clone()) for row, cell in enumerate(cells) if cell.tensor is not None]
    _group(batch, [[row for row in rows if cells[row].tensor is None] for rows in rows_of_file.values()], cells)
    return batch


def _placeholder(x: Any, cells: list[Cell]) -> Placeholder | None:
    """Return the Placeholder of a tensor, and append its rows to ``cells``. Return None if the tensor has to be
    computed."""
    rows = x._cell.inputs or (x._cell,)
    if not x._cell.is_deferred or not any(cell.tensor is None and has_plan(cell) for cell in rows):
        return None
    for cell in rows:
        if cell.tensor is None and not has_plan(cell):
            cell.value()
    strides = None if x.stride() == contiguous(x.shape) else x.stride()
    count = len(rows) if x._cell.inputs else None
    placeholder = Placeholder(len(cells), count, x._cell.joins, _CLASSES.index(type(x)), strides)
    cells += rows
    return placeholder


def has_plan(cell: Cell) -> bool:
    """Return True if the pixels of a deferred tensor can be computed in a batch."""
    node = cell.node
    if node is None or node.steps is None or node.state.kind == "Mask":
        return False
    # a gray file that was not converted may be a mask
    return node.root.mode == "RGB" or node.state.normalized or _is_converted(node)


def _is_converted(node: Node) -> bool:
    """Return True if the first operation on the file's image is convert("RGB"). Calls of copy() are ignored."""
    first = next((call for call in node.calls() if call.name != "copy"), None)
    return first is not None and first.name == "convert" and first.args[:1] == ("RGB",)


def _relative_cost(nodes: list[Node]) -> float:
    """Return the cost of computing one file's images in a batch, divided by the cost in the worker."""
    # both decode the file once; only the worker runs an operation once for several images
    shared: dict[int, int] = {}
    separate = 0
    for node in nodes:
        while node.parent is not None:
            separate += node.parent.pixels
            shared[id(node)] = node.parent.pixels
            node = node.parent
    decoding = _DECODING * nodes[0].root.pixels
    return (decoding + separate) / max(1, decoding + sum(shared.values()))


def _group(batch: TracedBatch, jobs: list[list[int]], cells: list[Cell]) -> None:
    """Set ``batch.jobs`` and ``batch.tails``. The argument ``jobs`` lists the rows of each file."""
    by_head: dict[Any, list[_Job]] = {}
    by_tail: dict[tuple[PixelFormat, Key], list[tuple[int, list[TailStep], tuple[int, int]]]] = {}
    for rows in filter(None, jobs):
        nodes = [cells[row].node for row in rows]
        keys, numbers = [], list[float]()
        for row, node in zip(rows, nodes, strict=True):
            assert node is not None and node.steps is not None
            head, head_numbers, tail = split_steps(node.steps, len(rows) == 1)
            keys.append(head)
            if tail:
                size = size_after(head, head_numbers, node.root.state.size)
                by_tail.setdefault((format_after(head), steps_without_flag(tail)), []).append((row, tail, size))
            numbers += head_numbers
        assert nodes[0] is not None
        source = nodes[0].root.source
        by_head.setdefault((tuple(keys), type(source) is MemorySource), []).append((rows, numbers, source))
    for (head_keys, in_memory), group in by_head.items():
        batch.jobs.append(_job_group(head_keys, in_memory, group))
    for (pixel_format, _), of_tail in by_tail.items():
        tail_rows, tails, sizes = zip(*of_tail, strict=True)
        key, tail_numbers = merge_tails(tails, sizes)
        batch.tails.append(
            TailGroup(pixel_format, key, np.array(tail_rows, np.int32), np.array(tail_numbers, np.float64))
        )


_Job = tuple[list[int], list[float], Any]
"""The rows of a file, the numbers of their heads, and the FileSource or MemorySource."""


def _job_group(keys: Any, in_memory: bool, jobs: list[_Job]) -> JobGroup:
    sources = [source for _, _, source in jobs]
    rows = np.array([rows for rows, _, _ in jobs], np.int32)
    numbers = np.array([numbers for _, numbers, _ in jobs], np.float64)
    ends = None
    if in_memory:
        paths: Any = torch.from_numpy(np.frombuffer(b"".join(one.data for one in sources), np.uint8).copy())
        ends = np.cumsum([len(one.data) for one in sources])
    else:
        paths = np.array([os.fsencode(one.path) for one in sources])
    header_records = np.frombuffer(b"".join(one.header_record for one in sources), FACTS)
    return JobGroup(keys, rows, numbers, paths, ends, np.array([one.slot for one in sources]), header_records)


# ---- small tensors


class _PickledByValue:
    """A tensor that is pickled with its values. torch would send a file descriptor, which takes longer."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor

    def __reduce__(self) -> Any:
        x = self._tensor
        values = x.as_subclass(torch.Tensor).reshape(-1).view(torch.uint8).numpy().tobytes()
        return _unpickled, (type(x), x.dtype, tuple(x.shape), bytearray(values), vars(x))


def _unpickled(cls: Any, dtype: torch.dtype, shape: Any, values: bytearray, attributes: Any) -> torch.Tensor:
    result = torch.frombuffer(values, dtype=dtype).view(shape).as_subclass(cls)
    vars(result).update(attributes)
    return result


def _by_value(value: Any) -> Any:
    """Return the batch with small tensors wrapped in _PickledByValue, except tensors that share memory."""
    tensors: dict[int, torch.Tensor] = {}
    mapped(value, lambda x: tensors.setdefault(id(x), x))
    addresses = {key: _storage_address(x) for key, x in tensors.items()}
    uses = Counter(addresses.values())
    wrapped = {
        key: _PickledByValue(x) for key, x in tensors.items() if uses[addresses[key]] == 1 and _is_small_and_plain(x)
    }
    return mapped(value, lambda x: wrapped.get(id(x), x)) if wrapped else value


def _storage_address(x: torch.Tensor) -> int | None:
    try:
        return x.untyped_storage().data_ptr()
    except Exception:  # sparse, or a wrapper subclass
        return None


def _is_small_and_plain(x: torch.Tensor) -> bool:
    """Return True if a tensor is small and _unpickled() can rebuild it."""
    if type(x) is not torch.Tensor and type(x) not in _TV_TENSORS:
        return False
    if x.device.type != "cpu" or x.layout != torch.strided:
        return False
    if x.requires_grad or x.is_quantized or x.is_shared():
        return False
    if (type(x) is torch.Tensor and vars(x)) or x.is_conj() or x.is_neg() or x.stride() != contiguous(x.shape):
        return False
    return 0 < x.nbytes <= _SMALL and x.nbytes == x.untyped_storage().nbytes()
