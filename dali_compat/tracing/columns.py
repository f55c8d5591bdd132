"""A traced batch as a few arrays, sent from the process that traces it to the one that computes its pixels.

A *row* is an image of the batch, deferred or computed. A *job* is a file that is decoded once for all rows derived from
it. Jobs whose rows have equal heads (plans.py) form a group, and so do rows whose tails can be merged.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torchvision import tv_tensors

from ..data.headers import FACTS
from ..runtime.device import mapped
from .nodes import Node
from .plans import Entry, Gives, Key, divided, gives, merged, size_after, skeleton
from .sources import MemorySource
from .tensors import REAL_CLASS, Cell, Join, TracedTensor, contiguous

_CLASSES = list(REAL_CLASS)
_MOST_REPEATED = 2.0  # limit of _repeated()
_SMALL = 64 << 10  # bytes of a tensor; a larger one is sent in shared memory
_TV_TENSORS = frozenset(one for one in vars(tv_tensors).values() if isinstance(one, type))
_DECODING = 2  # cost of decoding a pixel, relative to an operation on it


@dataclass(frozen=True)
class Place:
    """Placeholder for a deferred tensor in a batch.

    Attributes:
        row: the first row of the tensor.
        count: number of joined rows; None for a single row that is not joined.
        joins: how the rows are joined.
        kind: number of the tensor's class in _CLASSES.
        strides: strides of the tensor; None if it is contiguous.
    """

    row: int
    count: int | None
    joins: tuple[Join, ...]
    kind: int
    strides: tuple[int, ...] | None


class JobGroup(NamedTuple):
    """Files whose rows have equal heads.

    Attributes:
        keys: the head of each view.
        rows: (N, views) int32.
        numbers: (N, width of all heads) float64.
        paths: (N,) bytes, paths of files; or the concatenated encoded images, uint8.
        ends: (N,) int64, end of each encoded image in ``paths``; None for files.
        slots, facts: (N,) as in FileTable.
    """

    keys: tuple[Key, ...]
    rows: np.ndarray
    numbers: np.ndarray
    paths: Any
    ends: np.ndarray | None
    slots: np.ndarray
    facts: np.ndarray


class TailGroup(NamedTuple):
    """Rows whose tails were merged.

    Attributes:
        takes: the images before the tail.
        tail: key of the merged tail.
        rows: (M,) int32.
        numbers: (M, width of the tail) float64.
    """

    takes: Gives
    tail: Key
    rows: np.ndarray
    numbers: np.ndarray


class TracedBatch:
    """The result of the user's ``collate_fn``, with a Place for each deferred tensor.

    Attributes:
        value: the batch.
        count: number of rows.
        jobs, tails: groups of rows.
        computed: (row, tensor) of computed rows in a stack with deferred ones.
    """

    def __init__(self, value: Any):
        self.value, self.count = value, 0
        self.jobs: list[JobGroup] = []
        self.tails: list[TailGroup] = []
        self.computed: list[tuple[int, torch.Tensor]] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"value": _with_copies(self.value)}

    def pin_memory(self, device: Any = None) -> TracedBatch:
        """Pin real tensors; called by torch's pin_memory thread."""
        self.value = pin_memory(self.value, device)
        return self

    def filled(self, made: Callable[[Place], torch.Tensor]) -> Any:
        """Return the batch with each Place replaced by ``made(place)``."""
        tensors: dict[Place, torch.Tensor] = {}

        def fill(place: Place) -> torch.Tensor:
            if place not in tensors:
                tensor = made(place)
                tensors[place] = tensor.as_subclass(REAL_CLASS[_CLASSES[place.kind]]) if place.kind else tensor
            return tensors[place]

        return mapped(self.value, fill, Place) if self.count else self.value


def packed(value: Any) -> TracedBatch:
    """Return a batch for the loading process. Tensors without a plan are computed."""
    cells: list[Cell] = []
    places: dict[int, Place | None] = {}
    tensors: list[TracedTensor] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        if type(x) in REAL_CLASS and id(x) not in places:
            tensors.append(x)  # type: ignore[arg-type]  # a TracedTensor
            has_attributes = len(vars(x)) > 1  # besides _cell
            places[id(x)] = None if has_attributes else _place(x, cells)
        return x

    mapped(value, note)
    if not tensors:
        return TracedBatch(value)
    of_file: dict[int, list[int]] = {}
    for row, cell in enumerate(cells):
        if cell.tensor is None:
            assert cell.node is not None  # it has a plan
            of_file.setdefault(id(cell.node.root), []).append(row)
    for rows in of_file.values():
        if len(rows) > 1 and _repeated([cells[row].node for row in rows]) > _MOST_REPEATED:  # type: ignore[misc]  # not None, as above
            for row in rows:
                cells[row].value()
    batch = TracedBatch(mapped(value, lambda x: (places[id(x)] or x._real()) if type(x) in REAL_CLASS else x))
    batch.count = len(cells)
    # copied, as torch.stack does: the data set may change its tensors before they are sent
    batch.computed = [(row, cell.tensor.clone()) for row, cell in enumerate(cells) if cell.tensor is not None]
    _group(batch, [[row for row in rows if cells[row].tensor is None] for rows in of_file.values()], cells)
    return batch


def _place(x: Any, cells: list[Cell]) -> Place | None:
    """Return the place of a tensor, and append its rows to ``cells``; None if the tensor has to be computed."""
    parts = x._cell.parts or (x._cell,)
    if not x._cell.is_deferred or not any(part.tensor is None and _has_plan(part) for part in parts):
        return None
    for part in parts:
        if part.tensor is None and not _has_plan(part):
            part.value()
    strides = None if x.stride() == contiguous(x.shape) else x.stride()
    place = Place(len(cells), len(parts) if x._cell.parts else None, x._cell.joins, _CLASSES.index(type(x)), strides)
    cells += parts
    return place


def _has_plan(cell: Cell) -> bool:
    node = cell.node
    if node is None or node.steps is None or node.state.kind == "Mask":
        return False
    # a gray file that was not converted may be a mask
    return node.root.mode == "RGB" or node.state.normalized or _is_converted(node)


def _is_converted(node: Node) -> bool:
    first = next((call for call in node.calls() if call.name != "copy"), None)
    return first is not None and first.name == "convert" and first.args[:1] == ("RGB",)


def _repeated(nodes: list[Node]) -> float:
    """Return the cost of computing each image of a file on its own, relative to computing shared steps once."""
    once: dict[int, int] = {}
    total = 0
    for node in nodes:
        while node.parent is not None:
            total += node.parent.pixels
            once[id(node)] = node.parent.pixels
            node = node.parent
    decoding = _DECODING * nodes[0].root.pixels
    return (decoding + total) / max(1, decoding + sum(once.values()))


def _group(batch: TracedBatch, jobs: list[list[int]], cells: list[Cell]) -> None:
    by_head: dict[Any, list[_Job]] = {}
    by_tail: dict[tuple[Gives, Key], list[tuple[int, list[Entry], tuple[int, int]]]] = {}
    for rows in filter(None, jobs):
        nodes = [cells[row].node for row in rows]
        keys, numbers = [], list[float]()
        for row, node in zip(rows, nodes, strict=True):
            assert node is not None and node.steps is not None
            head, of_head, tail = divided(node.steps, len(rows) == 1)
            keys.append(head)
            if tail:
                size = size_after(head, of_head, node.root.state.size)
                by_tail.setdefault((gives(head), skeleton(tail)), []).append((row, tail, size))
            numbers += of_head
        assert nodes[0] is not None
        source = nodes[0].root.source
        by_head.setdefault((tuple(keys), type(source) is MemorySource), []).append((rows, numbers, source))
    for (keys_of_views, in_memory), of_group in by_head.items():
        batch.jobs.append(_job_group(keys_of_views, in_memory, of_group))
    for (takes, _), of_tail in by_tail.items():
        of_rows, tails, sizes = zip(*of_tail, strict=True)
        whole, several = merged(tails, sizes)
        batch.tails.append(TailGroup(takes, whole, np.array(of_rows, np.int32), np.array(several, np.float64)))


_Job = tuple[list[int], list[float], Any]
"""Rows, their numbers, and the source of the file."""


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
    facts = np.frombuffer(b"".join(one.facts for one in sources), FACTS)
    return JobGroup(keys, rows, numbers, paths, ends, np.array([one.slot for one in sources]), facts)


# ---- small tensors


class _Copied:
    """A tensor that is pickled with its values. torch sends a file descriptor for each tensor, which takes longer."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor

    def __reduce__(self) -> Any:
        x = self._tensor
        held = x.as_subclass(torch.Tensor).reshape(-1).view(torch.uint8).numpy().tobytes()
        return _restored, (type(x), x.dtype, tuple(x.shape), bytearray(held), vars(x))


def _restored(kind: Any, dtype: torch.dtype, shape: tuple[int, ...], held: bytearray, attributes: Any) -> torch.Tensor:
    made = torch.frombuffer(held, dtype=dtype).view(shape).as_subclass(kind)
    vars(made).update(attributes)
    return made


def _with_copies(value: Any) -> Any:
    """Return a batch whose small tensors are replaced by _Copied, unless they share memory."""
    tensors: dict[int, torch.Tensor] = {}
    mapped(value, lambda x: tensors.setdefault(id(x), x))
    memory = {key: _memory(x) for key, x in tensors.items()}
    uses = Counter(memory.values())
    copies = {key: _Copied(x) for key, x in tensors.items() if uses[memory[key]] == 1 and _is_plain(x)}
    return mapped(value, lambda x: copies.get(id(x), x)) if copies else value


def _memory(x: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage; None if it has none."""
    try:
        return x.untyped_storage().data_ptr()
    except Exception:  # sparse, or a subclass without memory
        return None


def _is_plain(x: torch.Tensor) -> bool:
    """Return True if a tensor is small and has all of its memory, and no other attributes than tv_tensors have."""
    if type(x) is not torch.Tensor and type(x) not in _TV_TENSORS:
        return False
    if x.device.type != "cpu" or x.layout != torch.strided:
        return False
    if x.requires_grad or x.is_quantized or x.is_shared():
        return False
    if (type(x) is torch.Tensor and vars(x)) or x.is_conj() or x.is_neg() or x.stride() != contiguous(x.shape):
        return False
    return 0 < x.nbytes <= _SMALL and x.nbytes == x.untyped_storage().nbytes()


def real(value: Any) -> Any:
    """Return a batch or sample with all deferred tensors computed."""
    return mapped(value, lambda one: one._real() if type(one) in REAL_CLASS else one)
