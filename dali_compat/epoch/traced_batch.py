"""Compute the images of a traced batch (tracing/columns.py) group by group, with DALI and then torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..data.header import DALI, PIL
from ..data.headers import Headers
from ..data.sources import BYTES, PATHS, Info, Record
from ..errors import ImageReadError, read_error
from ..ops.draws import Computed, compute
from ..ops.image_by_image import run_all
from ..ops.kernels import rows_of
from ..ops.pixels.lists import uniform
from ..plan import Plan, Step
from ..runtime.decorators import named
from ..runtime.device import ViewBatches, moved, to_device
from ..tracing.columns import JobGroup, Place, TailGroup, TracedBatch
from ..tracing.plans import head_plan, sizes_after, tail_plan, width
from ..tracing.sources import FileTable
from ..tracing.tensors import together
from .decode import in_format
from .epoch import DaliEpoch
from .part import RowsDecoding


class _Encoded:
    """A store (data/sources.py) of encoded images that were sent with the batch."""

    def __init__(self, block: np.ndarray, ends: np.ndarray):
        self._block, self._ends = block, ends

    def read(self, indices: Sequence[Any]) -> list[np.ndarray]:
        begins = np.concatenate([[0], self._ends[:-1]])
        return [self._block[begins[index] : self._ends[index]] for index in indices]

    def changed(self, indices: Sequence[Any]) -> np.ndarray:
        return np.zeros(len(indices), bool)

    def copied(self, index: Any) -> bytes:
        return self.read([index])[0].tobytes()

    def place(self, index: Any) -> str:
        return "an image in memory"


class JobRows:
    """The jobs of a group, with the interface of rows.Rows, for decoders.

    Args:
        epoch: epoch of the batch.
        group: the jobs.
        table: facts of the data set's files.
        headers: stores the verdicts of a GPU's JPEG engine on these files.
    """

    pixels: Sequence[Any] = ()
    begin = 0

    def __init__(self, epoch: DaliEpoch, group: JobGroup, table: FileTable, headers: Headers):
        self.epoch, self._group, self._table, self._headers = epoch, group, table, headers
        self.facts = group.facts
        if epoch.engine is not None:
            headers.add(group.slots, group.facts["keys"], group.facts)
            self.words = headers.verdicts(epoch.engine.name).words(group.slots)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def samples(self) -> JobRows:
        """Itself, since it also provides the sources."""
        return self

    @cached_property
    def sources(self) -> list[Any]:
        """The path of each file, or a Record of its bytes."""
        paths, ends = self._group.paths, self._group.ends
        if ends is None:
            return [os.fsdecode(path) for path in paths.tolist()]
        store = _Encoded(paths.numpy(), ends)
        return [Record(store, index) for index in range(len(self))]

    def paths(self, rows: np.ndarray) -> np.ndarray:
        """Return the paths as (len(rows), L) uint8, zero-padded."""
        chosen = self._group.paths[rows]
        matrix: np.ndarray = chosen.view(np.uint8).reshape(len(chosen), -1)
        return matrix

    def infos(self, rows: Sequence[int]) -> list[Info]:
        """Return the ``info`` of the PIL images that these rows start from."""
        return [Info(self.sources[row]) for row in rows]

    def name(self, row: int) -> str:
        """Return the row's file, for messages."""
        return str(self.sources[row])

    def position(self, row: int) -> int:
        """Return the row; positions are unused here, since all numbers were drawn before."""
        return row

    def give_up(self, failures: dict[int, Exception]) -> None:
        """Raise the first error."""
        if failures:
            raise failures.pop(min(failures))

    def unreadable(self, row: int, error: Exception) -> ImageReadError:
        """Return an error that names the row's file, with its reason."""
        made = read_error(f"cannot decode {self.name(row)}: {type(error).__name__}: {error}", error)
        made.__cause__ = error
        return made

    def set_intact(self, rows: list[int]) -> None:
        """Do nothing, since files were checked when they were opened."""

    def forget(self, rows: list[int]) -> None:
        """Do nothing, since a changed file gets a new entry in the table."""

    def use_pil(self, row: int) -> None:
        """Leave this file to Pillow from now on."""
        self._table.leave_to_pillow(int(self._group.slots[row]), int(self.facts["keys"][row]))

    def words_to(self, rows: list[int]) -> Callable[[np.ndarray], None]:
        """Return a function that stores the JPEG engine's verdicts on these files."""
        assert self.epoch.engine is not None
        verdicts, slots = self._headers.verdicts(self.epoch.engine.name), self._group.slots[rows]
        return lambda words: verdicts.put(slots, np.broadcast_to(words, len(slots)))

    @named("draw")
    def compute(
        self,
        steps: tuple[Step, ...],
        rows: Sequence[int] | np.ndarray,
        sizes: np.ndarray | None = None,
        begin: int = 0,
        count: int | None = None,
    ) -> Computed:
        """Return the arguments of ``steps`` for these rows, as Rows.compute() does."""
        sizes = self.facts["sizes"][rows] if sizes is None else sizes
        numbers = self._group.numbers[begin:]
        return compute(steps, sizes, lambda stream, k: numbers[:, :k], rows)

    def compute_one(self, steps: tuple[Step, ...], row: int, size: tuple[int, int]) -> list[Any]:
        """Return compute() for one image of a (height, width)."""
        return [rows_of(values, 0) for values in self.compute(steps, [0], np.array([size]), row, 1)]


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
        self._under_way: list[tuple[JobGroup, RowsDecoding]] = []
        epoch.route.realized += not batch.jobs
        for group in batch.jobs:
            self._start(group)

    def _start(self, group: JobGroup) -> None:
        epoch = self._epoch
        plan = self._head_plan(group)
        decoding = RowsDecoding(JobRows(epoch, group, epoch.table, epoch.headers), plan)  # type: ignore[arg-type]  # a TracedEpoch, of which it uses what a DaliEpoch has
        self._under_way.append((group, decoding))
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
        for _, decoding in self._under_way:
            decoding.decode()

    def finish(self) -> Any:
        """Return the batch on the loader's device.

        Raises:
            ImageReadError: a file can no longer be read.
        """
        while self._under_way:
            group, decoding = self._under_way[-1]
            rows, images = decoding.result()
            self._under_way.pop()
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
        while self._under_way:
            self._under_way.pop()[1].discard()

    def _put(self, rows: np.ndarray, images: Any) -> None:
        self._chunk[rows], self._place[rows] = len(self._chunks), np.arange(len(rows))
        self._chunks.append(images)

    def _images(self, rows: np.ndarray) -> Any:
        """Return the images of rows as (N, C, H, W), or as a list if sizes differ."""
        chunks = np.unique(self._chunk[rows]).tolist()
        places = self._place[rows]
        if len(chunks) == 1:
            images = self._chunks[chunks[0]]
            if isinstance(images, torch.Tensor):
                first = int(places[0])
                if np.array_equal(places, np.arange(first, first + len(places))):
                    return images[first : first + len(places)]
                return images.index_select(0, to_device(places, images.device))
        several = [
            self._chunks[chunk][place] for chunk, place in zip(self._chunk[rows].tolist(), places.tolist(), strict=True)
        ]
        return uniform(several)

    def _finish_tail(self, group: TailGroup) -> None:
        images = self._images(group.rows)
        sizes = _sizes_of(images, len(group.rows))
        after = _one_size(sizes_after(group.tail, group.numbers, sizes))
        plan = tail_plan(group.head, group.tail, (_one_size(sizes), after), self._epoch.options)
        numbers = group.numbers
        arrays = compute(plan.batch, sizes, lambda stream, k: numbers[:, :k], slice(None))
        self._put(group.rows, run_all(plan.batch, images, arrays))

    def _tensor(self, place: Place) -> torch.Tensor:
        """Return the tensor of a place in the batch."""
        if place.count is not None:
            images = self._images(np.arange(place.row, place.row + place.count))
            if not isinstance(images, torch.Tensor):
                raise RuntimeError("the images of a stack have different sizes; a file changed after it was opened")
            return in_format(together(images.detach(), place.joins), self._epoch)
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
        over: number of batches, and of samples, up to and including this batch.
        samples: number of samples.
        last: indices of the samples.
    """

    _is_started = _is_finished = False

    def __init__(self, made: Any, error: BaseException | None, over: tuple[int, int], samples: int | None, last: Any):
        self.made, self.error, self.over, self.samples, self.last = made, error, over, samples, last

    def start(self, epoch: Any) -> None:
        """Submit the images to DALI."""
        if not self._is_started:
            self._is_started, self._device = True, epoch.route.device.type
            self._become(lambda batch: TracedImages(epoch, batch))

    def decode(self) -> None:
        """Start the JPEG engine of a GPU, if it decodes images of the batch."""
        if self.error is None and not self._is_finished:
            _mapped(self.made, TracedImages.decode)

    def finish(self) -> None:
        """Wait for the images."""
        if not self._is_finished:
            self._is_finished = True
            with torch.autocast(self._device, enabled=False):  # autocast is meant for models
                self._become(TracedImages.finish)

    def discard(self) -> None:
        """Release the images in flight."""
        if self.error is None and self._is_started and not self._is_finished:
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


def make_ahead(ready: list[ReceivedBatch], epoch: Any) -> None:
    """Submit all batches, and finish the first one. Called in the prefetch thread."""
    for received in ready:
        received.start(epoch)
    for received in ready:
        received.decode()
    ready[0].finish()


def discard_all(ready: list[ReceivedBatch], epoch: Any) -> None:
    """Discard batches that will not be requested, and end the epoch."""
    for received in ready:
        received.discard()
    if epoch is not None:
        epoch.end()


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
