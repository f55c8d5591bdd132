"""Iterator and batches of the resident route."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch

from ..data.arrays import target
from ..data.base_datasets import locate
from ..data.lookup import Samples
from ..routes.resident import ResidentRoute
from ..runtime.decorators import profiles
from ..runtime.device import ViewBatches
from .batch import Batch
from .chunk import Chunk
from .collate import collate, collated_views
from .epoch import Epoch
from .iterator import OrderedIterator
from .samplers import Indices, array_batches, max_draw_ahead


class ResidentBatch(Batch):
    """A batch of the resident route, computed in a Chunk. ``indices`` is a list or an int64 array."""

    epoch: Epoch[ResidentRoute]
    chunk: Chunk | None = None  # None before the chunk is computed
    number = 0  # number of the batch in the chunk
    is_separate = False  # whether to compute this batch separately, because its chunk has failed
    _labels: torch.Tensor | None

    @property
    def ready(self) -> bool:
        return self.chunk is not None or self.error is not None

    def discard(self) -> None:
        """Do nothing, because a chunk cannot be cancelled."""

    def look_up(self) -> list[tuple[Any, np.ndarray, np.ndarray]]:
        """Return (data set, rows of the batch, indices in the data set) for each innermost data set. Accept the indices
        that torch accepts, and raise torch's errors."""
        found: dict[int, tuple[Any, list, list]] = {}
        for row, index in enumerate(self._listed()):
            dataset, local = locate(self.epoch.dataset, index)
            target(dataset, local)
            _, rows, locals_ = found.setdefault(id(dataset), (dataset, [], []))
            rows.append(row)
            locals_.append(local if local >= 0 else local + len(dataset.data))
        return [(dataset, np.array(rows), np.array(indices)) for dataset, rows, indices in found.values()]

    def _listed(self) -> list:
        return self.indices.tolist() if isinstance(self.indices, np.ndarray) else self.indices

    def _located(self) -> Samples:
        places = [locate(self.epoch.dataset, index) for index in self._listed()]
        transformed = any(dataset.target_transform for dataset, _ in places)
        given = self.epoch.copied_targets([target(dataset, local) for dataset, local in places], transformed)
        with self.epoch.worker_generators(self.begin) if transformed else nullcontext():
            targets = [
                one if dataset.target_transform is None else dataset.target_transform(one)
                for one, (dataset, _) in zip(given, places, strict=True)
            ]
        return Samples(places, [], targets)

    def _images(self):
        images, self._labels = self.chunk.take(self.number)  # type: ignore[union-attr]  # without a chunk, ``error`` is set
        return images

    def _collate(self, images) -> Any:
        if self._labels is not None and len(self) and isinstance(images, torch.Tensor):
            return [images, self._labels]
        if self._labels is not None and len(self) and isinstance(images, ViewBatches):
            return [collated_views(images), self._labels]
        return collate(self.epoch, self._located(), images, self.begin, lambda row: f"index {self.indices[row]}")


class ResidentIterator(OrderedIterator):
    """Iterator of the resident route. It draws a whole chunk's indices ahead if this changes no generator state that
    the user sees."""

    _batch = ResidentBatch

    def _begin(self, loader, route: ResidentRoute) -> None:
        self._datasets = route.datasets
        self._ahead = loader.num_workers * (loader.prefetch_factor or 0) or 1  # as in torch
        self._max_draw_ahead = max_draw_ahead(self._index_sampler)
        in_bulk = array_batches(self._index_sampler)
        self._in_arrays = in_bulk is not None
        self._sampler_iter = in_bulk or self._sampler_iter
        super()._begin(loader, route)

    def _epoch_of(self, loader, route: ResidentRoute) -> Epoch[ResidentRoute]:
        return Epoch(loader, route, self.progress)

    def _skipped(self, sampler, samples: int) -> Iterator[Any]:
        in_bulk = array_batches(sampler, samples)
        self._in_arrays = in_bulk is not None
        return in_bulk or super()._skipped(sampler, samples)

    def _indices(self, index) -> Indices:
        return index if self._in_arrays else super()._indices(index)

    def __next__(self):
        if profiles():
            return super().__next__()  # records a range, which takes a quarter of the time
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _make(self) -> tuple[ResidentBatch, Any]:
        if not self._drawn or not self._drawn[0].ready:
            self._fill()
        self._stop_at_the_end()
        return self._finish_first()

    def _work_ahead(self) -> None:
        if self._num_workers:
            self._draw_indices()

    def _fill(self) -> None:
        """Compute the next chunk. The first chunk of an epoch is a single batch, for a quick start."""
        self._draw_indices()
        if not self._drawn or self._drawn[0].ready:
            return
        most = self._epoch.route.samples_at_once if self._consumed > self._first else 1
        count = max(1, most // max(1, len(self._drawn[0])))
        self._draw_indices(min(count, self._max_draw_ahead - self._consumed))
        batches, samples = [self._drawn[0]], len(self._drawn[0])
        for batch in islice(self._drawn, 1, None):
            samples += len(batch)
            if samples > most or batch.ready or batch.is_separate or batches[0].is_separate:
                break
            batches.append(batch)
        self._compute(batches)

    def _compute(self, batches: list[ResidentBatch]) -> None:
        """Compute batches as a chunk. If that fails, compute only the first batch, to raise the error for the right
        batch."""
        try:
            # results are used in any mode; a model's autocast must not affect images
            with torch.inference_mode(False), torch.autocast(self._epoch.route.device.type, enabled=False):
                chunk = Chunk(self._epoch, self._datasets, batches)
        except Exception as error:
            if len(batches) == 1:
                batches[0].error = error
                return
            for batch in batches:
                batch.is_separate = True
            self._compute(batches[:1])
            return
        for number, batch in enumerate(batches):
            batch.chunk, batch.number = chunk, number
        self._epoch.meter.set_ahead(chunk.bytes, self._epoch.route)

    @property
    def in_flight(self) -> int:
        """Number of batches computed but not returned. Thread-safe."""
        return sum(batch.ready for batch in list(self._drawn))
