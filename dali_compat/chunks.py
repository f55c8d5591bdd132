"""One epoch on the resident route: batches are computed many at a time, and handed out as slices."""

from __future__ import annotations

from array import array
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as data

from .arrays import target
from .batch import Batch
from .dataset import from_the_front, locate, places
from .engine.resident import to_device
from .iterator import DALIIterator, Epoch
from .params import ImageTooSmall, Randoms, compute
from .parts import Part, in_format
from .plan import Plan
from .resident import Held, ResidentRoute
from .samplers import in_arrays, may_draw


class ResidentIterator(DALIIterator):
    """As DALIIterator; but indices of a whole chunk of batches are drawn ahead where nothing can tell the difference."""

    def _begin(self, loader, route: ResidentRoute) -> None:
        self._held = route.held
        self._ahead = loader.num_workers * (loader.prefetch_factor or 0) or 1  # as torch
        self._may_draw = may_draw(self._index_sampler)
        in_bulk = in_arrays(self._index_sampler)
        self._in_arrays = in_bulk is not None
        self._sampler_iter = in_bulk or self._sampler_iter
        self._calls = any(plan.call for plan in route.plans)
        self._taken = 0
        super()._begin(loader, route)

    def _batch(self, *args) -> ResidentBatch:
        return ResidentBatch(*args)

    def _indices(self, index) -> list | np.ndarray:
        return index if self._in_arrays else super()._indices(index)

    def __next__(self):
        if torch.autograd._profiler_enabled():
            return super().__next__()  # which records a range, at a quarter of the cost of a batch
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _next_data(self):
        if self._calls:  # Python works on batches one by one, in other processes
            return super()._next_data()
        self._check_process()
        if not self._drawn or not self._drawn[0].ready:
            self._fill()
        if not self._drawn:
            self._epoch.end()
            raise StopIteration
        batch = self._drawn.popleft()
        self._taken += 1
        try:
            return batch.finish()
        finally:
            if self._num_workers:
                self._draw_indices()

    def _fill(self) -> None:
        """The next chunk. The first is one batch, which comes at once."""
        self._draw_indices()
        if not self._drawn or self._drawn[0].ready:
            return
        together = self._epoch.route.together if self._taken else 1
        count = max(1, together // max(1, len(self._drawn[0])))
        self._draw_indices(min(count, self._may_draw - self._taken))
        batches, samples = [self._drawn[0]], len(self._drawn[0])
        for batch in islice(self._drawn, 1, None):
            samples += len(batch)
            if samples > together or batch.ready or batch.alone or batches[0].alone:
                break
            batches.append(batch)
        self._compute(batches)

    def _start_batches(self, called: int = 0) -> None:
        for batch in islice(self._drawn, self._epoch.route.depth + called):
            if not batch.ready:
                self._compute([batch])

    def _compute(self, batches: list[ResidentBatch]) -> None:
        """Errors go to the batch that they belong to."""
        try:
            with torch.inference_mode(False):  # batches may be handed out in another mode than that of now
                chunk = Chunk(self._epoch, self._held, batches)
        except Exception as error:
            if len(batches) == 1:
                batches[0].fail(error)
                return
            for batch in batches:
                batch.alone = True
            self._compute(batches[:1])
            return
        end = 0
        for batch in batches:
            begin, end = end, end + len(batch)
            batch.chunk, batch.rows = chunk, slice(begin, end)


class ResidentBatch(Batch):
    """Rows of a chunk.

    Attributes:
        indices: a list, or an int64 array.
        chunk, rows: which; None before it is computed.
        alone: not to be computed with others, for one of them fails.
    """

    chunk: Chunk | None = None
    rows: slice | None = None
    alone = False

    @property
    def ready(self) -> bool:
        return self.chunk is not None or self._error is not None

    def fail(self, error: Exception) -> None:
        self._error = error

    def advance(self) -> None:
        try:
            if self._error is None:
                self.chunk.advance()
        except Exception as error:
            self._error = error

    def discard(self) -> None:
        if self.chunk is not None:
            self.chunk.discard()

    def look_up(self) -> list[tuple[data.Dataset, np.ndarray, np.ndarray]]:
        """As places(), one index after another: indices that are no plain numbers, and errors as torch raises them."""
        found: dict[int, tuple[data.Dataset, list, list]] = {}
        for row, index in enumerate(self._listed()):
            dataset, local = locate(self.epoch.dataset, index)
            target(dataset, local)
            _, rows, locals_ = found.setdefault(id(dataset), (dataset, [], []))
            rows.append(row)
            locals_.append(local if local >= 0 else local + len(dataset.data))
        return [(dataset, np.array(rows), np.array(indices)) for dataset, rows, indices in found.values()]

    def _listed(self) -> list:
        return self.indices.tolist() if isinstance(self.indices, np.ndarray) else self.indices

    def _locate(self) -> None:
        self.places = [locate(self.epoch.dataset, index) for index in self._listed()]
        with self._as_in_a_worker(any(dataset.target_transform for dataset, _ in self.places)):
            self.targets = [
                target(dataset, local)
                if dataset.target_transform is None
                else dataset.target_transform(target(dataset, local))
                for dataset, local in self.places
            ]

    def _images(self):
        images, self._labels = self.chunk.take(self.rows)
        return images

    def _collate(self, images) -> Any:
        if self._labels is not None and len(self) and isinstance(images, torch.Tensor):
            return [images, self._labels]
        self._locate()
        return super()._collate(images)


class Chunk:
    """Consecutive batches, computed together.

    Attributes:
        labels: their targets on the device, or None where default_collate has to make these, or a function of the user's.
    """

    def __init__(self, epoch: Epoch, held: dict[int, Held], batches: list[ResidentBatch]):
        self.epoch, self._position = epoch, batches[0].position(0)
        self._indices = [batch.indices for batch in batches]
        self._count = sum(map(len, self._indices))
        sources = self._sources(held, batches)
        by_plan: dict[Plan, list[_Source]] = {}
        for source in sources:
            by_plan.setdefault(source.held.plan, []).append(source)
        self._parts = [_Rows(self, plan, of_plan) for plan, of_plan in by_plan.items()]
        self.labels = self._labels(sources) if epoch.default_collate else None
        self._images = None
        if not any(part.plan.call for part in self._parts):
            self._images = self._made()
        self._stream = self._done = None
        self._record()

    def _record(self) -> None:
        if self.epoch.route.device.type == "cuda":
            self._stream = torch.cuda.current_stream(self.epoch.route.device)
            self._done = self._stream.record_event()

    def __len__(self) -> int:
        return self._count

    def advance(self) -> None:
        for part in self._parts:
            part.advance()

    def discard(self) -> None:
        while self._parts:
            self._parts.pop().discard()

    def images(self):
        """(N, C, H, W), or a list of N where sizes differ or they are no images."""
        if self._images is None:  # they wait for Python; by now another stream may be the current one
            if self._stream is not None:
                torch.cuda.current_stream(self._stream.device).wait_event(self._done)
            self._images = self._made()
            self._record()
        return self._images

    def take(self, rows: slice) -> tuple[Any, torch.Tensor | None]:
        """Images and labels of some rows. No views, to autograd: who writes to one batch must not make another's look
        changed."""
        taken = self.images()[rows], None if self.labels is None else self.labels[rows]
        taken = tuple(part.data if isinstance(part, torch.Tensor) else part for part in taken)
        if self._stream is not None:
            stream = torch.cuda.current_stream(self._stream.device)
            if stream != self._stream:
                stream.wait_event(self._done)
                for part in taken:
                    if isinstance(part, torch.Tensor):
                        part.record_stream(stream)
        return taken

    def position(self, row: int) -> int:
        return self._position + row

    def compute(self, steps, rows, sizes: np.ndarray) -> list[dict]:
        """Per-sample arguments of ``steps`` for these rows (numbers, or a slice), as Batch.compute()."""
        try:
            return compute(steps, sizes, Randoms(self.epoch.seed, self._position, len(self)), rows)
        except ImageTooSmall as error:
            index = list(chain.from_iterable(self._indices))[np.arange(len(self))[rows][error.row]]
            raise ValueError(f"{error} (index {index})") from None

    def _sources(self, held: dict[int, Held], batches: list[ResidentBatch]) -> list[_Source]:
        device = self.epoch.route.device
        try:
            indices = np.concatenate([_whole_numbers(given) for given in self._indices])
            found = [(held[id(dataset)], rows, index) for dataset, rows, index in places(self.epoch.dataset, indices)]
            found = [(one, rows, from_the_front(index, len(one))) for one, rows, index in found if len(index)]
        except Exception:
            if len(batches) > 1:
                raise
            found = [(held[id(dataset)], rows, index) for dataset, rows, index in batches[0].look_up()]
        return [_Source(one, rows, to_device(index, device)) for one, rows, index in found]

    def _labels(self, sources: list[_Source]) -> torch.Tensor | None:
        tables = [source.held.targets.table for source in sources if source.held.dataset.target_transform is None]
        kinds = {None if table is None else (table.dtype, table.shape[1:]) for table in tables}
        if len(tables) < len(sources) or len(kinds) != 1 or None in kinds:
            return None
        return _selected([(table, s.rows, s.index) for table, s in zip(tables, sources)], len(self))

    def _made(self):
        made = [(part, part.outcome()) for part in self._parts]
        self._parts = []
        if len(made) == 1:
            return made[0][1]
        kinds = {(one.dtype, one.shape[1:]) if isinstance(one, torch.Tensor) else None for _, one in made}
        if len(kinds) == 1 and None not in kinds:
            first = made[0][1]
            images = first.new_empty((len(self), *first.shape[1:]))
            for part, one in made:
                images.index_copy_(0, to_device(np.array(part.rows), images.device), one)
            return in_format(images, made[0][0].plan) if images.ndim == 4 else images
        images = [None] * len(self)
        for part, several in made:
            for row, image in zip(part.rows, several, strict=True):
                images[row] = image
        return images


class _Source(NamedTuple):
    """Rows of a chunk that come from one data set.

    Attributes:
        held: the data set.
        rows: which; None for all.
        index: of their samples in the data set, on the device.
    """

    held: Held
    rows: np.ndarray | None
    index: torch.Tensor


class _Rows(Part):
    """Rows of a chunk that share a plan."""

    def __init__(self, chunk: Chunk, plan: Plan, sources: list[_Source]):
        super().__init__(chunk, plan)
        whole = sum(len(source.index) for source in sources) == len(chunk)
        rows = None if whole else np.sort(np.concatenate([source.rows for source in sources]))
        self.rows = range(len(chunk)) if whole else rows.tolist()
        sizes = np.broadcast_to(np.array(plan.takes.size), (len(self.rows), 2)).copy(order="F")  # as Randoms does
        self._arrays = chunk.compute(plan.batch, slice(None) if whole else rows, sizes)
        self._sources = [
            (s.held.pixels.images, s.rows if whole else np.searchsorted(rows, s.rows), s.index) for s in sources
        ]

    def _images(self):
        images = _selected(self._sources, len(self.rows))
        return self.batch.epoch.route.program(self.plan)(images, self._arrays)


def _whole_numbers(indices: list | np.ndarray) -> np.ndarray:
    """(N,) int64. Raises TypeError, OverflowError for other things."""
    return indices if isinstance(indices, np.ndarray) else np.array(array("q", indices), np.int64)


def _selected(sources: list[tuple[torch.Tensor, np.ndarray | None, torch.Tensor]], count: int) -> torch.Tensor:
    """``values[index]`` of every (values, rows, index) in its rows of a result; None are all of them."""
    values, rows, index = sources[0]
    if rows is None:
        return values.index_select(0, index)
    made = values.new_empty((count, *values.shape[1:]))
    for values, rows, index in sources:
        made.index_copy_(0, to_device(rows, made.device), values.index_select(0, index))
    return made
