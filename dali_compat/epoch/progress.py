"""The progress of an epoch, as plain data, and how to resume from it."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as data
from torch.utils.data.distributed import DistributedSampler

from ..runtime.messages import stack_level
from .samplers import (
    Generators,
    Indices,
    RankOrder,
    distributed,
    is_known,
    remaining_indices,
    sampler_generators,
    samplers_of,
)

_NONE = {"given": 0, "samples": 0, "drawn": 0, "exhausted": False, "last": [0, 0]}  # at the beginning of an epoch
Skip = Callable[[data.BatchSampler, int], Iterator[Any]]  # as skipped()


class Loaded(NamedTuple):
    """The batches that an epoch has loaded so far, including failed ones.

    Attributes:
        batches, samples: number of batches, and of their samples.
        size: number of samples in the last batch; None if unknown.
        indices: indices of the last batch.
    """

    batches: int = 0
    samples: int = 0
    size: int | None = None
    indices: Any = ()


class Progress:
    """The progress of one epoch, updated by its iterator, and the generator states at its beginning.

    Args:
        number: number of the epoch. A loader's first epoch is 0.
        torch_workers: whether torch's own loader uses workers. It then draws their base seed from a generator.
    """

    base_seed = lap = 0  # the seed is their sum; the lap counts epochs of a persistent iterator
    at_iter: dict[str, Any] | None = None  # generator states at iter()
    at_first: dict[str, Any] | None = None  # generator states before the first index is drawn
    given = samples = 0  # batches returned, and indices drawn for them
    drawn = 0  # batches drawn from the sampler
    exhausted = over = False  # whether the sampler, or the iterator, is exhausted
    ended_by: type[BaseException] | None = None  # class of the last error from next()
    last: Indices | tuple[()] = ()  # indices of the last batch returned; empty if unknown
    expected_last = 0, 0  # fingerprint() of ``last`` in the loaded state
    resumes = False  # whether this epoch resumes from a state
    restore_generators: Callable[[], None] | None = None  # called by finish_resume()
    dataset_state: Any = None  # the data set's state_dict() in the loaded state

    def __init__(self, loader, number: int, torch_workers: bool = False):
        self.number = number
        sampler = distributed(loader)
        self.rank_order = RankOrder() if sampler is None else RankOrder(0, sampler.num_replicas, sampler.rank)
        self.generators: Generators = sampler_generators(loader, torch_workers)
        self.mixed: set[str] = set()  # generators that other code draws from, too
        self.stateful_sampler = stateful_sampler(loader)
        self.users: dict[str, Any] = {}  # object_states() before iter()
        self._is_unknown = not is_known(loader)
        self._before: dict[str, Any] = {}  # custom samplers: snapshot of the generators after the previous draw
        # (number of batches drawn, state of the stateful sampler), from the last batch returned on
        self._sampler_states: deque[tuple[int, Any]] = deque()
        if self._is_unknown or torch_workers:
            self.at_iter = self.generators.states()

    @property
    def seed(self) -> int:
        return self.base_seed + self.lap

    # ---- during iteration

    def record_returned(self, loaded: Loaded) -> None:
        self.given, self.samples, self.last, self.expected_last = loaded.batches, loaded.samples, loaded.indices, (0, 0)
        self.ended_by = None

    def draw(self, indices: Iterator[Any]) -> Any:
        """Return the sampler's next item from the iterator ``indices``, and count it."""
        if not self.drawn:
            if self.resumes:
                self.generators.set(self.at_first)
            self.at_first = self.generators.states()
        if self.stateful_sampler is not None and not self._sampler_states:
            self._save_sampler_state()
        before = self.generators.snapshot() if self._is_unknown else {}
        others = _changed(self._before, before)
        try:
            index = next(indices)
        except StopIteration:
            self.exhausted = True
            raise
        finally:
            self._before = self.generators.snapshot() if self._is_unknown else {}
            if others:
                self.mixed |= others & _changed(before, self._before)
        self.drawn += 1
        if self.stateful_sampler is not None:
            self._save_sampler_state()
        return index

    def _save_sampler_state(self) -> None:
        # drop states that state() does not need
        while len(self._sampler_states) > 1 and self._sampler_states[1][0] < self.given:
            self._sampler_states.popleft()
        self._sampler_states.append((self.drawn, copy.deepcopy(self.stateful_sampler.state_dict())))

    # ---- as plain data

    def state(self) -> dict[str, Any]:
        """Return the progress and the generator states at the epoch's beginning as plain data."""
        sampler = [state for drawn, state in self._sampler_states if drawn <= self.given]
        if self.stateful_sampler is not None and not sampler:  # no batch was drawn yet
            sampler = [copy.deepcopy(self.stateful_sampler.state_dict())]
        state = {
            "number": self.number,
            "seed": [self.base_seed, self.lap],
            "places": list(self.rank_order),
            "at_iter": self.at_iter,
            "at_first": self.at_first,
            "given": self.given,
            "samples": self.samples,
            "drawn": self.drawn,
            "exhausted": self.exhausted,
            "last": list(fingerprint(self.last) if len(self.last) else self.expected_last),
            "sampler": sampler[-1] if sampler else None,
            "users": self.users,
        }
        return state | _NONE if self.restarts else state

    @property
    def restarts(self) -> bool:
        """True if resuming restarts the epoch, because the sampler's indices cannot be drawn again."""
        return bool(self.mixed) and self.stateful_sampler is None

    @classmethod
    def from_state(cls, loader, state: dict[str, Any], torch_workers: bool = False) -> Progress:
        """Return a Progress that resumes from ``state``, a result of state(). If the number of ranks has changed,
        divide the rest of the epoch among the new ranks."""
        made = cls(loader, state["number"], torch_workers)
        made.base_seed, made.lap = state["seed"]
        before, now = RankOrder(*state["places"]), made.rank_order
        made.at_iter, made.at_first, made.resumes = state["at_iter"], state["at_first"], True
        made.given, made.samples, made.drawn = state["given"], state["samples"], state["drawn"]
        made.exhausted, made.expected_last = state["exhausted"], tuple(state["last"])
        made.users = state.get("users", {})
        if state["sampler"] is not None:
            made._sampler_states.append((made.given, state["sampler"]))
        if before.world == now.world or distributed(loader) is None:
            made.rank_order = before._replace(rank=now.rank)
            if before.rank != now.rank:
                made.expected_last = 0, 0
            return made
        made.rank_order = now._replace(origin=before.origin + made.samples * before.world)
        made.given = made.samples = made.drawn = 0
        made.exhausted, made.expected_last = False, (0, 0)
        return made

    # ---- resuming

    def restore_at_iter(self) -> None:
        """If this epoch resumes, set the generators to their states at the original iter()."""
        if self.resumes:
            self.generators.set(self.at_iter)

    def seeded(self, base_seed: int) -> None:
        """Record the base seed of torch's iterator, unless the epoch already has one."""
        if not self.resumes and not self.lap:
            self.base_seed = base_seed

    def restart(self, loader) -> int:
        """Move back to the epoch's first batch. Return the number of batches that have to be loaded again."""
        if self.resumes:
            load_object_states(loader, self.users)
        given, self.given, self.samples, self.drawn = self.given, 0, 0, 0
        self.exhausted, self.expected_last = False, (0, 0)
        return given

    def finish_resume(self) -> None:
        """Restore the generators' states from the checkpoint. Call this after the indices have been drawn again."""
        restore, self.restore_generators = self.restore_generators, None
        if restore is not None:
            restore()

    def resumed_batches(self, loader, indices: Iterator[Any], skip: Skip | None = None) -> Iterator[Any]:
        """Return an iterator over the batches that were not returned yet. Warn and restart the epoch if the sampler
        returns different indices from those before the checkpoint.

        Args:
            indices: iter() of the sampler.
            skip: called instead of :func:`skipped`, if given.
        """
        sampler = loader._index_sampler
        if self.stateful_sampler is not None and self._sampler_states:
            self.stateful_sampler.load_state_dict(copy.deepcopy(self._sampler_states[-1][1]))
            # a short last batch shows that the sampler is exhausted
            short = type(sampler) is data.BatchSampler and not sampler.drop_last and self.samples % sampler.batch_size
            return iter(()) if short else iter(sampler)
        if not self.drawn and not self.rank_order.origin:
            return indices
        self.generators.set(self.at_first)
        if self.rank_order.origin:
            sampler = self.rest(loader)
            indices = iter(sampler)
        again: Any = ()
        if type(sampler) is data.BatchSampler:
            indices = (skip or skipped)(sampler, self.samples - self.expected_last[0])
            if self.expected_last[0]:
                again = next(indices, ())
        else:
            self.samples = 0
            for index in islice(indices, self.given):
                again = list(index) if loader._auto_collation else [index]
                self.samples += len(again)
        if self.expected_last[0] and fingerprint(again) != self.expected_last:
            text = "the sampler does not return the same indices as before the state was saved; the epoch restarts"
            warnings.warn(text, stacklevel=stack_level())
            self.restart(loader)
            return iter(sampler)
        return indices

    def rest(self, loader) -> Any:
        """Return a sampler for this rank's share of the rest of the epoch, after a change of the number of ranks."""
        rest = remaining_indices(samplers_of(loader)[-1], self.rank_order.origin)
        return data.BatchSampler(rest, loader.batch_size, loader.drop_last) if loader.batch_size else rest


def skipped(sampler: data.BatchSampler, samples: int) -> Iterator[list[Any]]:
    """Return an iterator over a sampler's batches after the first ``samples`` samples."""
    return iter(data.BatchSampler(islice(iter(sampler.sampler), samples, None), sampler.batch_size, sampler.drop_last))


def stateful_sampler(loader) -> Any:
    """Return the loader's first sampler that has a state_dict(), or None. DistributedSampler is ignored, because it can
    draw its indices again."""
    found = (one for one in samplers_of(loader) if _has_state(one) and not isinstance(one, DistributedSampler))
    return next(found, None)


def stateful_objects(loader) -> dict[str, Any]:
    """Return {"sampler": sampler, "dataset": data set}, without objects that have no state_dict()."""
    dataset = loader.dataset if _has_state(loader.dataset) else None
    return {name: one for name, one in [("sampler", stateful_sampler(loader)), ("dataset", dataset)] if one is not None}


def object_states(loader) -> dict[str, Any]:
    return {name: _state(one) for name, one in stateful_objects(loader).items()}


def load_object_states(loader, states: dict[str, Any]) -> bool:
    """Load the states of the custom sampler and data set. Return True if this has changed the state of either."""
    changed = False
    for name, one in stateful_objects(loader).items() if states else ():
        before = _state(one)
        if states.get(name) is None or _same(before, states[name]):
            continue
        try:
            one.load_state_dict(copy.deepcopy(states[name]))
            changed = True
        except AttributeError:
            if before is not None or not isinstance(one, data.IterableDataset):
                raise  # an iterable data set may create its state in iter()
    return changed


def _state(one: Any) -> Any:
    """Return a copy of the object's state_dict(), or None if that fails, for example before the first sample."""
    with contextlib.suppress(Exception):
        return copy.deepcopy(one.state_dict())


def _has_state(one: Any) -> bool:
    """Return True if the object follows torchdata's Stateful protocol. Hugging Face's data sets do not count, because
    their state lacks the shuffle buffer."""
    if type(one).__module__.partition(".")[0] == "datasets":
        return False
    try:
        inspect.signature(one.state_dict).bind()
        return callable(one.load_state_dict)
    except (AttributeError, TypeError, ValueError):
        return False


def fingerprint(indices: Indices | tuple[()]) -> tuple[int, int]:
    """Return the number of indices, and their checksum."""
    try:
        whole = np.asarray([int(index) for index in indices] if isinstance(indices, list) else indices, np.int64)
        return len(whole), zlib.crc32(whole.tobytes())
    except (TypeError, ValueError, OverflowError):
        return len(indices), zlib.crc32(repr(indices).encode())


def _changed(before: dict[str, Any], now: dict[str, Any]) -> set[str]:
    return {name for name, state in before.items() if not _same(state, now[name])}


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (torch.Tensor, np.ndarray)):
        return a.shape == b.shape and bool((a == b).all())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    return bool(a == b)
