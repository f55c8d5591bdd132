"""The images of a traced batch (tracing/columns.py), computed group by group by DALI and torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from ..data.header import DALI, PIL
from ..data.sources import BYTES, PATHS
from ..ops.draws import compute
from ..ops.image_by_image import run_all
from ..ops.pixels.lists import stack_if_uniform
from ..plan import Plan
from ..runtime.device import ViewBatches, moved, to_device
from ..tracing.cells import join_rows, unexpanded
from ..tracing.columns import JobGroup, Placeholder, TailGroup, TracedBatch
from ..tracing.plans import Key, head_plan, number_count, size_after, tail_plan
from .decodable import JobRows
from .decode import in_memory_format
from .part import RowsDecoding
from .progress import Loaded


class TracedImages:
    """The images of a traced batch. The constructor submits them to DALI."""

    def __init__(self, epoch: Any, batch: TracedBatch):
        self._epoch, self._batch = epoch, batch
        # image of row r: _chunks[_chunk_of_row[r]][_index_in_chunk[r]]
        self._chunks: list[Any] = []
        self._chunk_of_row = np.full(batch.count, -1)
        self._index_in_chunk = np.zeros(batch.count, np.int64)
        self._pending: list[tuple[JobGroup, RowsDecoding]] = []
        epoch.route.realized += not batch.jobs
        for group in batch.jobs:
            self._start(group)

    def _start(self, group: JobGroup) -> None:
        epoch = self._epoch
        plan = self._head_plan(group)
        decoding = RowsDecoding(JobRows(epoch, group, epoch.table, epoch.headers), plan)
        self._pending.append((group, decoding))
        form = PATHS if group.ends is None else BYTES
        decoder = (DALI, form) if epoch.may_have_pipeline(plan) else (PIL, "")
        decoding.start({decoder: np.arange(len(group.rows))})

    def _head_plan(self, group: JobGroup) -> Plan:
        at, sizes = 0, []
        for key in group.keys:
            end = at + number_count(key)
            sizes.append(_common_size_after(key, group.numbers[:, at:end], group.header_records["sizes"]))
            at = end
        return head_plan(group.keys, tuple(sizes), self._epoch.options)

    def decode(self) -> None:
        """Submit JPEGs to the GPU's JPEG engine."""
        for _, decoding in self._pending:
            decoding.decode()

    def finish(self) -> Any:
        """Return the batch on the loader's device.

        Raises:
            ImageReadError: a file can no longer be read.
        """
        while self._pending:
            group, decoding = self._pending[-1]
            rows, images = decoding.result()
            self._pending.pop()
            views = images.batches if isinstance(images, ViewBatches) else [images]
            for number, view in enumerate(views):
                self._add_chunk(group.rows[rows, number], view)
        for tail in self._batch.tails:
            self._finish_tail(tail)
        for row, tensor in self._batch.computed_rows:
            self._add_chunk(np.array([row]), moved(tensor, self._epoch.route.device)[None])
        return self._batch.fill(self._tensor)

    def discard(self) -> None:
        while self._pending:
            self._pending.pop()[1].discard()

    def _add_chunk(self, rows: np.ndarray, images: Any) -> None:
        self._chunk_of_row[rows], self._index_in_chunk[rows] = len(self._chunks), np.arange(len(rows))
        self._chunks.append(images)

    def _images(self, rows: np.ndarray) -> Any:
        """Return the images of rows as (N, C, H, W), or as a list if sizes differ."""
        numbers, chunk_of_row = np.unique(self._chunk_of_row[rows], return_inverse=True)
        chunks, indices = [self._chunks[number] for number in numbers.tolist()], self._index_in_chunk[rows]
        first = chunks[0]
        if len(chunks) == 1 and isinstance(first, torch.Tensor):
            if np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
                return first[indices[0] : indices[0] + len(indices)]
            return first.index_select(0, to_device(indices, first.device))
        if _is_uniform(chunks) and first.is_cuda:  # a few calls instead of one for each image
            selected = [
                images.index_select(0, to_device(indices[chunk_of_row == number], first.device))
                for number, images in enumerate(chunks)
            ]
            order = np.argsort(np.argsort(chunk_of_row, kind="stable"))
            return torch.cat(selected).index_select(0, to_device(order, first.device))
        pairs = zip(chunk_of_row.tolist(), indices.tolist(), strict=True)
        return stack_if_uniform([chunks[number][index] for number, index in pairs])

    def _finish_tail(self, group: TailGroup) -> None:
        """Run the steps of a group's tail on its images, and store the results."""
        images = self._images(group.rows)
        sizes = _sizes_of(images, len(group.rows))
        before, after = _common_size(sizes), _common_size_after(group.tail, group.numbers, sizes)
        plan = tail_plan(group.pixel_format, group.tail, (before, after), self._epoch.options)
        numbers = group.numbers
        arrays = compute(plan.batch, sizes, lambda stream, k: numbers[:, :k], slice(None))
        self._add_chunk(group.rows, run_all(plan.batch, images, arrays))

    def _tensor(self, placeholder: Placeholder) -> torch.Tensor:
        row, strides = placeholder.row, placeholder.strides
        if placeholder.count is not None:
            images = self._images(np.arange(row, row + placeholder.count))
            if not isinstance(images, torch.Tensor):
                raise RuntimeError(
                    "images of a stacked tensor differ in size because a file has changed; do not write files while "
                    "they are being loaded"
                )
            image = join_rows(images.detach(), placeholder.joins)
            if strides is None:
                return in_memory_format(image, self._epoch)
        else:
            image = self._chunks[self._chunk_of_row[row]][int(self._index_in_chunk[row])].detach()
        if strides is None:
            return image.reshape(-1).view(image.shape)  # contiguous() would keep the strides of dimensions of size 1
        once = unexpanded(image, strides)
        result = torch.empty_strided(once.shape, strides, dtype=image.dtype, device=image.device)
        return result.copy_(once).expand(image.shape)


class ReceivedBatch:
    """A batch from torch's iterator, or the iterator's error.

    Attributes:
        batch: the traced batch; after start() its TracedImages, and after finish() the user's batch.
        error: the exception raised by torch's iterator, start() or finish(); None if there is none.
        loaded: the counts up to and including this batch.
        is_finished: whether finish() was called.
    """

    _is_started = is_finished = False

    def __init__(self, batch: Any, error: BaseException | None, loaded: Loaded):
        self.batch, self.error, self.loaded = batch, error, loaded

    def start(self, epoch: Any) -> None:
        if not self._is_started:
            self._is_started, self._device = True, epoch.route.device.type
            self._replace_batch(lambda batch: TracedImages(epoch, batch))

    def decode(self) -> None:
        if self.error is None and not self.is_finished:
            _call_with_batch(TracedImages.decode, self.batch)

    def finish(self) -> None:
        if not self.is_finished:
            self.is_finished = True
            with torch.autocast(self._device, enabled=False):  # autocast is meant for models
                self._replace_batch(TracedImages.finish)

    def discard(self) -> None:
        if self.error is None and self._is_started and not self.is_finished:
            _call_with_batch(TracedImages.discard, self.batch)

    def _replace_batch(self, function: Callable[[Any], Any]) -> None:
        if self.error is None:
            try:
                self.batch = _call_with_batch(function, self.batch)
            except Exception as error:
                self.error = error


def _call_with_batch(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return ``function(batch)``. If ``batch`` is an _OnErrorResult, apply ``function`` to the batch in it."""
    if isinstance(batch, (TracedBatch, TracedImages)):
        return function(batch)
    return batch._replace(made=tuple(map(function, batch.made)))


def start_all(ready: Iterable[ReceivedBatch], epoch: Any) -> None:
    for received in ready:
        received.start(epoch)


def finish_first(ready: list[ReceivedBatch], epoch: Any) -> None:
    """Submit the images of all batches, and finish the first batch. Called in the prefetch thread."""
    start_all(ready, epoch)
    for received in ready:
        received.decode()
    ready[0].finish()


def discard_all(ready: list[ReceivedBatch], epoch: Any) -> None:
    """Discard batches that will not be requested, and end the epoch."""
    for received in ready:
        received.discard()
    if epoch is not None:
        epoch.end()


def _is_uniform(chunks: list[Any]) -> bool:
    """Return True if all chunks are tensors, and their images have one shape and dtype."""
    if not all(isinstance(images, torch.Tensor) for images in chunks):
        return False
    return len({(images.shape[1:], images.dtype) for images in chunks}) == 1


def _common_size(sizes: np.ndarray) -> tuple[int, int] | None:
    """Return the (height, width) of all images; None if sizes differ."""
    if not len(sizes) or (sizes != sizes[0]).any():
        return None
    height, width = sizes[0]
    return int(height), int(width)


def _common_size_after(key: Key, numbers: np.ndarray, sizes: np.ndarray) -> tuple[int, int] | None:
    """Return the (height, width) of all images after the steps of ``key``; None if sizes differ. ``sizes`` are those
    before the steps."""
    return _common_size(np.stack(size_after(key, numbers.T, sizes.T), axis=1))


def _sizes_of(images: Any, count: int) -> np.ndarray:
    if isinstance(images, torch.Tensor):
        return np.tile(np.array(images.shape[-2:], np.int64), (count, 1))
    return np.array([image.shape[-2:] for image in images], np.int64)
