"""Consecutive batches of the resident route, computed together on the device."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from ..data.base_datasets import locate_all, nonnegative
from ..engine.fused import Program
from ..ops.draws import Arrays, ImageTooSmall, compute
from ..ops.kernels import stack_if_uniform
from ..plan import Plan, Step
from ..routes.resident import ResidentDataset, ResidentRoute
from ..runtime.decorators import named
from ..runtime.device import ViewBatches, to_device
from ..runtime.internals import current_stream_of
from .decode import RowImages, in_memory_format, sorted_by_row
from .epoch import Epoch
from .part import as_transformed

# (data set; rows of the chunk that are from this data set, None for all; indices of these samples, on the device)
_DatasetRows = tuple[ResidentDataset, np.ndarray | None, torch.Tensor]
_Selection = tuple[torch.Tensor, np.ndarray | None, torch.Tensor]  # (images or labels, rows, indices)
_Part = tuple[Plan, Sequence[int], list[_Selection], list[Any]]  # (plan, rows, image selections, step arguments)


class Chunk:
    _done: torch.cuda.Event  # recorded on _stream

    def __init__(self, epoch: Epoch[ResidentRoute], datasets: dict[int, ResidentDataset], batches: Sequence[Any]):
        self.epoch, self._position = epoch, epoch.rank_order.place_of(batches[0].begin)
        self._indices = [batch.indices for batch in batches]
        self._lengths = [len(batch) for batch in batches]
        self._count = sum(self._lengths)
        dataset_rows = self._dataset_rows(datasets, batches)
        by_plan: dict[Plan, list[_DatasetRows]] = {}
        for one in dataset_rows:
            by_plan.setdefault(one[0].plan, []).append(one)
        parts = [self._part(plan, of_plan) for plan, of_plan in by_plan.items()]
        # targets on the device; None if they have to be collated on the host
        self.labels = self._labels(dataset_rows) if epoch.default_collate else None
        self._stream: torch.cuda.Stream | None = None
        self._batches = self._sliced(parts)
        if epoch.route.device.type == "cuda":
            self._stream = torch.cuda.current_stream(epoch.route.device)
            self._done = self._stream.record_event()

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """Size of the computed images in bytes, without labels."""
        return sum(one.nbytes for images, _ in self._batches for one in _tensors(images))

    def take(self, number: int) -> tuple[Any, torch.Tensor | None]:
        """Return (images, labels) of the batch at position ``number`` in the chunk. Images are (N, C, H, W), or a list
        of N if they cannot be stacked. Labels are None if they have to be collated on the host."""
        taken = self._batches[number]
        if self._stream is not None and current_stream_of(self._stream.device) != self._stream.cuda_stream:
            stream = torch.cuda.current_stream(self._stream.device)
            stream.wait_event(self._done)
            for part in taken:
                for tensor in _tensors(part):
                    tensor.record_stream(stream)
        return taken

    @named("transform in memory")
    def _sliced(self, parts: list[_Part]) -> list[tuple[Any, torch.Tensor | None]]:
        images, lengths = _split(self._computed(parts), self._lengths), self._lengths
        labels = [None] * len(lengths) if self.labels is None else _split(self.labels, lengths)
        return list(zip(images, labels, strict=True))

    def position(self, row: int) -> int:
        return self._position + row * self.epoch.rank_order.world

    def compute(
        self, steps: tuple[Step, ...], rows: Sequence[int] | np.ndarray | slice, sizes: np.ndarray
    ) -> list[Arrays]:
        """Return the random arguments of ``steps`` for ``rows`` of the chunk. ``sizes`` has the (height, width) of each
        row's image."""
        try:
            return compute(steps, sizes, self.epoch.randoms(self._position, len(self)), rows)
        except ImageTooSmall as error:
            index = list(chain.from_iterable(self._indices))[np.arange(len(self))[rows][error.row]]
            raise ValueError(f"{error} (index {index})") from None

    def _dataset_rows(self, datasets: dict[int, ResidentDataset], batches: Sequence[Any]) -> list[_DatasetRows]:
        device = self.epoch.route.device
        try:
            numbers = (given if isinstance(given, np.ndarray) else array("q", given) for given in self._indices)
            indices = np.concatenate([np.asarray(given, np.int64) for given in numbers])
            found = [
                (datasets[id(dataset)], rows, index) for dataset, rows, index in locate_all(self.epoch.dataset, indices)
            ]
            found = [(one, rows, nonnegative(index, len(one))) for one, rows, index in found if len(index)]
        except Exception:
            if len(batches) > 1:
                raise
            found = [(datasets[id(dataset)], rows, index) for dataset, rows, index in batches[0].look_up()]
        return [(one, rows, to_device(index, device)) for one, rows, index in found]

    def _labels(self, dataset_rows: list[_DatasetRows]) -> torch.Tensor | None:
        found = [(one.table, rows, index) for one, rows, index in dataset_rows if one.dataset.target_transform is None]
        tables = [(table, rows, index) for table, rows, index in found if table is not None]
        kinds = {(table.dtype, table.shape[1:]) for table, _, _ in tables}
        if len(tables) < len(dataset_rows) or len(kinds) != 1:
            return None
        return _gathered(tables, len(self))

    def _part(self, plan: Plan, dataset_rows: list[_DatasetRows]) -> _Part:
        """Return (plan, its rows in the chunk, selections of images, random arguments of the steps)."""
        at: np.ndarray | slice = slice(None)
        rows: Sequence[int] = range(len(self))
        selections = [(one.on_device, own, index) for one, own, index in dataset_rows]
        if sum(len(index) for _, _, index in dataset_rows) < len(self):
            at = np.sort(np.concatenate([np.asarray(own) for _, own, _ in dataset_rows]))  # never None here
            rows = at.tolist()
            selections = [(values, np.searchsorted(at, np.asarray(own)), index) for values, own, index in selections]
        sizes = np.broadcast_to(np.array(plan.takes.size), (len(rows), 2)).copy(order="F")  # faster, as in Randoms
        arrays = [self.compute(one.batch, at, sizes) for one in plan.chains]
        return plan, rows, selections, arrays

    def _computed(self, parts: list[_Part]) -> Any:
        made, device = list[RowImages](), self.epoch.route.device
        for plan, rows, selections, arrays in parts:
            images = _transformed(device, plan, len(rows), selections, arrays)
            made.append((rows, as_transformed(self, plan, rows, images)))
        plan = parts[0][0]
        if len(made) == 1:
            return made[0][1]
        images = sorted_by_row(made)
        if all(isinstance(one, torch.Tensor) for _, one in made):
            images = stack_if_uniform(images)
        return in_memory_format(images, plan) if isinstance(images, torch.Tensor) and images.ndim == 4 else images


def _transformed(device: torch.device, plan: Plan, count: int, selections: list[_Selection], arrays: list[Any]) -> Any:
    """Gather ``count`` images and transform them by the plan."""
    images, made = _gathered(selections, count), []
    for number, (one, drawn) in enumerate(zip(plan.chains, arrays, strict=True), 1):
        own = images if number == len(arrays) else images.clone()  # a step may modify it in place
        made.append(Program(one.batch, one.takes, device)(own, drawn))
    return ViewBatches(made) if plan.views else made[0]


def _tensors(images: Any) -> list[torch.Tensor]:
    batches = images.batches if isinstance(images, ViewBatches) else [images]
    return [one for one in batches if isinstance(one, torch.Tensor)]


def _split(whole, lengths: list[int]) -> Sequence[Any]:
    """Split images or labels into batches. The caller may modify each batch in place."""
    if isinstance(whole, ViewBatches):
        of_views = zip(*(_split(view, lengths) for view in whole.batches), strict=True)
        return [ViewBatches(batches, whole.structure) for batches in of_views]
    if isinstance(whole, torch.Tensor):
        return torch.unsafe_split_with_sizes(whole, lengths)  # a version counter of autograd for each batch
    rows = iter(whole)
    return [list(islice(rows, length)) for length in lengths]


def _gathered(selections: Sequence[_Selection], count: int) -> torch.Tensor:
    """Return a tensor of ``count`` rows. Each selection (values, rows, index) sets ``result[rows] = values[index]``. A
    single selection may have None as ``rows``, for all rows."""
    values, rows, index = selections[0]
    if rows is None:
        return values.index_select(0, index)
    made = values.new_empty((count, *values.shape[1:]))
    for values, rows, index in selections:
        assert rows is not None  # only a single selection has None
        made.index_copy_(0, to_device(rows, made.device), values.index_select(0, index))
    return made
