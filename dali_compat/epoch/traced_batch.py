"""Compute the images of a traced batch (tracing/columns.py) group by group, with DALI and then torch."""

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
from ..tracing.columns import JobGroup, Place, TailGroup, TracedBatch
from ..tracing.plans import head_plan, sizes_after, tail_plan, width
from ..tracing.tensors import together
from .decodable import JobRows
from .decode import in_memory_format
from .part import RowsDecoding


class TracedImages:
    """The images of one traced batch.

    Args:
        epoch: epoch of the batch.
        batch: the traced batch.
    """

    def __init__(self, epoch: Any, batch: TracedBatch):
        self._epoch, self._batch = epoch, batch
        self._chunk = np.full(batch.count, -1)  # for each row the number of its chunk, and its place there
        self._place = np.zeros(batch.count, np.int64)
        self._chunks: list[Any] = []
        self._pending: list[tuple[JobGroup, RowsDecoding]] = []
        epoch.route.realized += not batch.jobs
        for group in batch.jobs:
            self._start(group)

    def _start(self, group: JobGroup) -> None:
        epoch = self._epoch
        plan = self._head_plan(group)
        decoding = RowsDecoding(JobRows(epoch, group, epoch.table, epoch.headers), plan)
        self._pending.append((group, decoding))
        given = PATHS if group.ends is None else BYTES
        kind = (DALI, given) if epoch.may_have_pipeline(plan) else (PIL, "")
        decoding.start({kind: np.arange(len(group.rows))})

    def _head_plan(self, group: JobGroup) -> Plan:
        at, sizes = 0, []
        for key in group.keys:
            end = at + width(key)
            sizes.append(_one_size(sizes_after(key, group.numbers[:, at:end], group.facts["sizes"])))
            at = end
        return head_plan(group.keys, tuple(sizes), self._epoch.options)

    def decode(self) -> None:
        """Start decoding on a GPU's JPEG engine, if there is one."""
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
            for number, of_view in enumerate(views):
                self._put(group.rows[rows, number], of_view)
        for tail in self._batch.tails:
            self._finish_tail(tail)
        for row, tensor in self._batch.computed:
            self._put(np.array([row]), moved(tensor, self._epoch.route.device)[None])
        return self._batch.filled(self._tensor)

    def discard(self) -> None:
        """Release batches in flight."""
        while self._pending:
            self._pending.pop()[1].discard()

    def _put(self, rows: np.ndarray, images: Any) -> None:
        self._chunk[rows], self._place[rows] = len(self._chunks), np.arange(len(rows))
        self._chunks.append(images)

    def _images(self, rows: np.ndarray) -> Any:
        """Return the images of rows as (N, C, H, W), or as a list if sizes differ."""
        chunks, of_chunk = np.unique(self._chunk[rows], return_inverse=True)
        held, places = [self._chunks[chunk] for chunk in chunks.tolist()], self._place[rows]
        first = held[0]
        if len(held) == 1 and isinstance(first, torch.Tensor):
            if np.array_equal(places, np.arange(places[0], places[0] + len(places))):
                return first[places[0] : places[0] + len(places)]
            return first.index_select(0, to_device(places, first.device))
        if _is_uniform(held) and first.is_cuda:  # a few calls, not one for each image
            parts = [
                images.index_select(0, to_device(places[of_chunk == number], first.device))
                for number, images in enumerate(held)
            ]
            order = np.argsort(np.argsort(of_chunk, kind="stable"))
            return torch.cat(parts).index_select(0, to_device(order, first.device))
        pairs = zip(of_chunk.tolist(), places.tolist(), strict=True)
        return stack_if_uniform([held[chunk][place] for chunk, place in pairs])

    def _finish_tail(self, group: TailGroup) -> None:
        images = self._images(group.rows)
        sizes = _sizes_of(images, len(group.rows))
        after = _one_size(sizes_after(group.tail, group.numbers, sizes))
        plan = tail_plan(group.takes, group.tail, (_one_size(sizes), after), self._epoch.options)
        numbers = group.numbers
        arrays = compute(plan.batch, sizes, lambda stream, k: numbers[:, :k], slice(None))
        self._put(group.rows, run_all(plan.batch, images, arrays))

    def _tensor(self, place: Place) -> torch.Tensor:
        """Return the tensor of a place in the batch."""
        if place.count is not None:
            images = self._images(np.arange(place.row, place.row + place.count))
            if not isinstance(images, torch.Tensor):
                raise RuntimeError("the images of a stack have different sizes; a file changed after it was opened")
            return in_memory_format(together(images.detach(), place.joins), self._epoch)
        images = self._chunks[self._chunk[place.row]]
        image = images[int(self._place[place.row])].detach()
        if place.strides is not None:
            held = image[tuple(slice(None if stride else 1) for stride in place.strides)]  # without repeated channels
            made = torch.empty_strided(held.shape, place.strides, dtype=image.dtype, device=image.device).copy_(held)
            return made.expand(image.shape)
        return image.reshape(-1).view(image.shape)  # contiguous() would keep unusual strides of dimensions of size 1


class ReceivedBatch:
    """A batch of torch's iterator.

    Attributes:
        made: the batch, which start() submits to DALI and finish() completes.
        error: the exception raised in its place.
        consumed: number of batches, and of samples, up to and including this batch.
        samples: number of samples.
        last: indices of the samples.
        is_finished: whether finish() was called.
    """

    _is_started = is_finished = False

    def __init__(
        self, made: Any, error: BaseException | None, consumed: tuple[int, int], samples: int | None, last: Any
    ):
        self.made, self.error, self.consumed, self.samples, self.last = made, error, consumed, samples, last

    def start(self, epoch: Any) -> None:
        """Submit the images to DALI."""
        if not self._is_started:
            self._is_started, self._device = True, epoch.route.device.type
            self._become(lambda batch: TracedImages(epoch, batch))

    def decode(self) -> None:
        """Start the JPEG engine of a GPU, if it decodes images of the batch."""
        if self.error is None and not self.is_finished:
            _mapped(self.made, TracedImages.decode)

    def finish(self) -> None:
        """Wait for the images."""
        if not self.is_finished:
            self.is_finished = True
            with torch.autocast(self._device, enabled=False):  # autocast is meant for models
                self._become(TracedImages.finish)

    def discard(self) -> None:
        """Release the images in flight."""
        if self.error is None and self._is_started and not self.is_finished:
            _mapped(self.made, TracedImages.discard)

    def _become(self, function: Callable[[Any], Any]) -> None:
        if self.error is None:
            try:
                self.made = _mapped(self.made, function)
            except Exception as error:
                self.error = error


def _mapped(made: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to a batch, also within the results of ``on_error``."""
    if isinstance(made, (TracedBatch, TracedImages)):
        return function(made)
    return made._replace(made=tuple(map(function, made.made)))


def start_all(ready: Iterable[ReceivedBatch], epoch: Any) -> None:
    """Submit all batches to DALI."""
    for received in ready:
        received.start(epoch)


def make_ahead(ready: list[ReceivedBatch], epoch: Any) -> None:
    """Submit all batches, and finish the first one. Called in the prefetch thread."""
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
    """Return True if all chunks are tensors whose images have one shape and dtype."""
    if not all(isinstance(images, torch.Tensor) for images in chunks):
        return False
    return len({(images.shape[1:], images.dtype) for images in chunks}) == 1


def _one_size(sizes: np.ndarray) -> tuple[int, int] | None:
    """Return the common (height, width) of all rows; None if they differ."""
    if not len(sizes) or (sizes != sizes[0]).any():
        return None
    height, width = sizes[0]
    return int(height), int(width)


def _sizes_of(images: Any, count: int) -> np.ndarray:
    if isinstance(images, torch.Tensor):
        return np.tile(np.array(images.shape[-2:], np.int64), (count, 1))
    return np.array([image.shape[-2:] for image in images], np.int64)
