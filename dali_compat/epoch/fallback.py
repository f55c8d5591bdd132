"""torch's own iterators, with batches moved to the loader's device."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterator
from functools import partial
from threading import RLock
from typing import Any, NamedTuple

import torch
import torch.utils.data as data
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from ..data.base_datasets import locate, sample
from ..errors import read_error, remedy_of, with_remedy
from ..randoms import replacement
from ..runtime.dataset_base import QuietWorker
from ..runtime.decorators import one_at_a_time
from ..runtime.device import moved
from ..runtime.forks import end_daemons_at_exit
from ..runtime.internals import file_of
from ..tracing import worker
from .collate import add_remedy, collate_by_default
from .on_error import ATTEMPTS, NOTHING, Errors
from .progress import Loaded, Progress, load_object_states
from .samplers import replacement_indices
from .stats import Meter


class TorchIterator(_BaseDataLoaderIter):
    """Base class that moves batches to the loader's device. Subclasses also derive from one of torch's iterators."""

    _count = 0  # number of samples of the current batch
    _dataset_fetcher: Any

    def __init__(self, loader, route: Any, before: Progress | None):
        self._device = route.device
        self._drawn: deque[Any] = deque()  # indices that _resume() has drawn ahead
        self._begin(loader, before)
        super().__init__(self._wrapped(loader))
        self.progress.seeded(int(self._base_seed))
        if isinstance(self._dataset, _OnErrorDataset):
            self._dataset.seed = self.progress.seed
        if self.progress.resumes:
            self._resume(loader)
        self.progress.finish_resume()

    def _wrapped(self, loader):
        """Return a copy of the loader with wrapped collate_fn, worker_init_fn and data set. The copy shares counters
        and errors with the original."""
        made, errors = copy.copy(loader), loader._errors
        vars(made).update(_errors=errors, _stats=loader._stats, _history=loader._history)
        if loader.num_workers:
            made.worker_init_fn = QuietWorker(loader.worker_init_fn)
        if loader._auto_collation and loader.collate_fn is data.default_collate:
            made.collate_fn = collate_by_default
        if self.progress.lap:  # a persistent iterator must not draw another seed
            made.generator = torch.Generator().manual_seed(self.progress.seed)
        if errors.policy != "raise" and not isinstance(loader.dataset, data.IterableDataset):
            # a data set may have no length, which is needed only here
            candidates = replacement_indices(loader) if errors.policy == "replace" else ()
            tolerant = _OnErrorDataset(loader.dataset, errors, candidates)
            vars(made).update(dataset=tolerant, collate_fn=_OnErrorCollate(made.collate_fn, loader._auto_collation))
        return made

    def _begin(self, loader, before: Progress | None = None) -> None:
        """Initialize an epoch, before torch draws its first indices."""
        self.progress: Progress = loader._history.begin(loader, self._draws_worker_seeds(loader), before)
        self._to_reload, self._remaining, self.next_lock = 0, None, RLock()
        self._loaded = Loaded()
        self._draw_until = self.progress.drawn + self.progress.exhausted
        if self._reloads_batches(loader):
            self._to_reload = self.progress.restart(loader)
            self._remaining = iter(self.progress.rest(loader)) if self.progress.rank_order.origin else None
        self._errors = loader._errors
        self._errors.begin(bool(self._to_reload))
        self._meter: Meter = loader._stats.begin(loader.collate_fn)
        self._meter.follow(self)
        # (number of samples, None if unknown; indices) of each batch in flight
        self._requested: deque[tuple[int | None, Any]] = deque()

    def _draws_worker_seeds(self, loader) -> bool:
        return loader.num_workers > 0

    def _reloads_batches(self, loader) -> bool:
        """Return True if resuming has to load earlier batches again, because the states of workers and iterable data
        sets cannot be saved."""
        return loader.num_workers > 0 or isinstance(loader.dataset, data.IterableDataset)

    def _reset(self, loader, first_iter=False):
        if not first_iter:
            self._meter.close()
            self._begin(loader, self.progress)
        super()._reset(loader, first_iter)

    def _resume(self, loader) -> None:
        """Skip the batches that were returned before the checkpoint."""
        if not self._reloads_batches(loader):
            self._skip_drawn(loader)
        self._loaded = Loaded(self.progress.given, self.progress.samples)
        while (before := self._loaded.batches) < self._to_reload:
            try:
                self._next_one()
            except StopIteration:
                break
            except Exception:  # was raised before the checkpoint, too
                if self._loaded.batches == before:  # not an error of a batch, but for example of a worker that has died
                    raise
        if self._to_reload:
            self.progress.record_returned(self._loaded)
        states = {"dataset": self.progress.dataset_state}
        if self._to_reload and not loader.num_workers and load_object_states(loader, states):
            # the data set's state_dict() determines the position
            # if the data set is its own iterator, iter() would restart it
            if self._dataset_fetcher.dataset_iter is not self._dataset:
                self._dataset_fetcher.dataset_iter = iter(self._dataset)
            self._dataset_fetcher.ended = False
            self.progress.given = self.progress.drawn = self._to_reload
            self._loaded = self._loaded._replace(batches=self._to_reload)
        with contextlib.suppress(StopIteration):
            while self.progress.drawn < self._draw_until:
                self._drawn.append(self._draw())

    @property
    def in_flight(self) -> int:
        """Number of batches requested from workers. Thread-safe."""
        return getattr(self, "_tasks_outstanding", 0)

    def _draw(self) -> Any:
        if self.progress.drawn >= self._draw_until:
            self.progress.finish_resume()
        return self.progress.draw(self._remaining or self._sampler_iter)

    def _next_index(self):
        index = self._drawn.popleft() if self._drawn else self._draw()
        if isinstance(self._dataset, data.IterableDataset):
            self._requested.append((None if self._auto_collation else 1, ()))
        elif not self._auto_collation:
            self._requested.append((1, [index]))
        else:
            known = hasattr(index, "__len__")
            self._requested.append((len(index), list(index)) if known else (None, ()))
        return self._seeded(index)

    def _seeded(self, index: Any) -> Any:
        """Return an index, or the indices of a batch, with the seeds that a worker needs."""
        return index

    @end_daemons_at_exit
    @with_remedy()
    @one_at_a_time
    def _next_data(self):
        since = self._meter.clocks()
        try:
            made: Any = NOTHING
            while made is NOTHING:
                made = self._next_one()
            made = made if self._device.type == "cpu" else moved(made, self._device)
        except BaseException as error:
            self._meter.add_time(since)
            if isinstance(error, StopIteration):
                self.progress.over = True
                self._meter.exhausted()
            else:
                self.progress.ended_by = type(error)
            raise
        self._meter.count_batch(self._count, made)
        self._meter.add_time(since)
        self.progress.record_returned(self._loaded)
        return made

    def _skip_drawn(self, loader) -> None:
        self._sampler_iter = self.progress.resumed_batches(loader, self._sampler_iter)
        self._draw_until = self.progress.drawn + self.progress.exhausted
        self.progress.drawn, self.progress.exhausted = self.progress.given, False

    def _fetch(self) -> Any:
        return super()._next_data()

    def _count_loaded(self) -> None:
        """Count the next batch as loaded, even if it raises an error."""
        size, indices = self._requested.popleft()
        batches, samples, *_ = self._loaded
        self._loaded = Loaded(batches + 1, samples + (size or 0), size, indices)

    def _next_one(self) -> Any:
        """Return torch's next batch, and store its length. Return NOTHING if on_error has skipped all its samples."""
        made: Any
        try:
            made = self._fetch()
        except StopIteration:
            self._errors.end(self._loaded.samples)
            raise
        except Exception as error:
            if self._errors.policy == "raise":
                add_remedy(error, self._dataset, self._loaded.indices, partial(_named, self._dataset))
            raise
        if not isinstance(made, _OnErrorResult):
            self._count = _length(made) if self._loaded.size is None else self._loaded.size
            return made
        self._count = made.samples
        for failure in made.failures:
            self._errors.add(*failure)
        return made.made[0] if made.samples else NOTHING


class SingleProcessIterator(TorchIterator, _SingleProcessDataLoaderIter):
    def __init__(self, loader, route: Any, before: Progress | None):
        super().__init__(loader, route, before)
        progress, fetcher = self.progress, self._dataset_fetcher
        if isinstance(self._dataset, data.IterableDataset) and progress.dataset_state and not progress.resumes:
            fetcher.dataset_iter = _next_epoch(self._dataset, fetcher.dataset_iter)

    def _next_index(self):
        index = super()._next_index()
        self._count_loaded()
        return index


class MultiProcessIterator(TorchIterator, _MultiProcessingDataLoaderIter):
    _shutdown = True  # for torch's __del__(), if the constructor fails

    def _seeded(self, index: Any) -> Any:
        if not isinstance(self._dataset, _OnErrorDataset):
            return index
        self.progress.seeded(int(self._base_seed))  # torch sends the first indices before __init__() records the seed
        return (worker.SeededIndices if self._auto_collation else worker.SeededIndex)(index, self.progress.seed)

    def _process_data(self, *args):
        self._count_loaded()
        return super()._process_data(*args)


def _next_epoch(dataset: Any, samples: Iterator[Any]) -> Iterator[Any]:
    """Yield ``samples``, or those of iter(dataset) if there are none. The first iter() of a data set that resumes
    between two epochs may be empty, because it ends the previous epoch."""
    empty = True
    for one in samples:
        empty = False
        yield one
    if empty:
        yield from dataset


class _OnErrorResult(NamedTuple):
    """A sample or batch, and the samples that have failed."""

    made: tuple  # (sample,) or (batch,), or () if all samples failed
    samples: int
    failures: list[tuple[str, Any, str]]  # (path, index, reason) of samples that failed


class _OnErrorDataset(data.Dataset):
    """A wrapper that applies on_error to a data set. Its samples are of class _OnErrorResult."""

    seed = 0  # the epoch's seed, in the main process

    def __init__(self, dataset, errors: Errors, candidates):
        self.dataset, self._candidates = dataset, candidates
        self._replaces = errors.policy == "replace"
        self._covers = errors.covers

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str):
        # unpickling looks up names before ``dataset`` is set; torch must not call the data set's __getitems__()
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value) -> None:
        """Set an attribute of the wrapped data set, as a worker_init_fn may do, or one of the wrapper's own."""
        own = name in ("dataset", "seed", "_candidates", "_replaces", "_covers")
        object.__setattr__(self if own else self.dataset, name, value)

    def __getitem__(self, index) -> _OnErrorResult:
        failures: list = []
        requested = index
        while True:
            try:
                return _OnErrorResult((self.dataset[index],), 1, failures)
            except self._covers as error:
                if remedy_of(error):
                    raise
                failures.append((path_of(self.dataset, index, error), index, f"{type(error).__name__}: {error}"))
                if not self._replaces:
                    return _OnErrorResult((), 0, failures)
                if len(failures) > ATTEMPTS:
                    path, index, why = failures[-1]
                    raise read_error(f"cannot read {path}, index {index}: {why}", error) from error
                if not hasattr(requested, "__index__"):
                    raise
            index = self._candidates[replacement(self._seed(), int(requested), len(failures), len(self._candidates))]

    def _seed(self) -> int:
        return self.seed if data.get_worker_info() is None else worker.epoch_seed


class _OnErrorCollate:
    """A wrapper of the loader's collate_fn, for samples of _OnErrorDataset."""

    def __init__(self, collate_fn, batched: bool):
        self.function, self._batched = collate_fn, batched

    def __call__(self, given: Any) -> _OnErrorResult:
        """Return the collated batch of a list of _OnErrorResult, or of a single one if batching is off."""
        tried: list[_OnErrorResult] = given if self._batched else [given]
        failures = [failure for one in tried for failure in one.failures]
        samples = [sample for one in tried for sample in one.made]
        batch = (self.function(samples if self._batched else samples[0]),) if samples else ()
        return _OnErrorResult(batch, len(samples), failures)


def _length(batch: Any) -> int:
    """Return the length of a batch's first leaf, or 1 for a leaf without a length."""
    while isinstance(batch, (list, tuple, dict)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch) if isinstance(batch, torch.Tensor) and batch.ndim else 1


def _named(dataset: Any, index: Any) -> str:
    """Return a sample's index and, if known, its file, for error messages."""
    path = path_of(dataset, index)
    return f"index {index}" if path == type(dataset).__name__ else f"{path}, index {index}"


def path_of(dataset: Any, index: Any, error: BaseException | None = None) -> str:
    """Return the path of a sample's image, for error messages. For a custom data set, return the file that ``error``
    refers to, or else the data set's class name."""
    try:
        return str(sample(*locate(dataset, index))[0])
    except Exception:
        return file_of(error) or type(dataset).__name__
