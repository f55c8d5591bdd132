"""A loader's samplers, an epoch's random generators, and their states as plain data."""

from __future__ import annotations

import base64
import copy
import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as data
from torch.utils.data import default_collate, default_convert
from torch.utils.data.distributed import DistributedSampler

from ..data.base_datasets import leaves_of
from ..data.readers import reader_of, transforms_of

Indices = list[Any] | np.ndarray
"""Indices of a batch, from a sampler or array_batches()."""

# Samplers that draw all random numbers before their first index, or draw none
_DRAW_AT_ONCE = {
    *(list, tuple, range, np.ndarray, torch.Tensor),
    *(data.SequentialSampler, data.SubsetRandomSampler, data.WeightedRandomSampler, DistributedSampler),
}


def max_draw_ahead(sampler) -> int:
    """Return how many batches of an epoch may be drawn early without a visible difference; 0 for custom samplers.

    Of torch's samplers, only a RandomSampler with a ``generator`` is limited. It draws random numbers from the
    generator after its last index, and also between indices if samples may repeat.
    """
    inner = sampler.sampler if type(sampler) is data.BatchSampler else sampler
    if type(inner) in _DRAW_AT_ONCE:
        return sys.maxsize
    if type(inner) is not data.RandomSampler:
        return 0
    if inner.generator is None:
        return sys.maxsize
    once = not inner.replacement and inner.num_samples <= len(inner.data_source)
    return len(sampler) - 1 if once else 0


def replacement_indices(loader) -> Sequence[int]:
    """Return the indices of samples that may replace unreadable ones. These are the sampler's indices if it is a
    SubsetRandomSampler or a sequence, otherwise all indices."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if type(sampler) is data.SubsetRandomSampler:
        return sampler.indices
    if (
        type(sampler) in (list, tuple, range, np.ndarray, torch.Tensor)
        and loader.batch_size is not None
        and len(sampler)
    ):
        return sampler
    return range(len(loader.dataset))


class RankOrder(NamedTuple):
    """Positions of this rank's samples among all ranks' samples. A sample's random numbers depend on its position."""

    origin: int = 0  # place of the first sample of rank 0
    world: int = 1  # number of ranks, whose samples alternate
    rank: int = 0  # number of this rank

    def place_of(self, position: int) -> int:
        return self.origin + position * self.world + self.rank


def samplers_of(loader) -> list[Any]:
    """Return the loader's batch sampler or sampler, and the samplers nested in it, outermost first."""
    found = [loader._index_sampler]
    while True:
        inner = (getattr(found[-1], name, None) for name in ("sampler", "batch_sampler"))
        deeper = [one for one in inner if hasattr(one, "__iter__") and not any(one is known for known in found)]
        if not deeper:
            return found
        found.append(deeper[0])


def is_known(loader) -> bool:
    """Return True if each sampler of the loader is a sequence of indices, or of one of torch's own classes."""
    *outer, inner = samplers_of(loader)
    return type(inner) in {*_DRAW_AT_ONCE, data.RandomSampler} and all(type(o) is data.BatchSampler for o in outer)


def loop_dependent(loader) -> str:
    """Return the name of user code that may depend on the training loop: the class of a custom sampler, or
    "target_transform". Return "" if there is none."""
    if not is_known(loader):
        return type(samplers_of(loader)[-1]).__name__
    return "target_transform" if any(map(_target_transform, leaves_of(loader.dataset))) else ""


def distributed(loader) -> DistributedSampler | None:
    """Return the loader's DistributedSampler. Return None if the loader has none, or if a custom sampler contains
    it."""
    samplers = samplers_of(loader)
    return samplers[-1] if is_known(loader) and type(samplers[-1]) is DistributedSampler else None


def remaining_indices(sampler: DistributedSampler, origin: int) -> list[Any]:
    """Return this rank's share of an epoch's indices after the first ``origin`` samples."""
    whole = copy.copy(sampler)
    whole.num_replicas, whole.rank = 1, 0
    whole.num_samples = whole.total_size = len(sampler.dataset)  # type: ignore[arg-type]  # it has a length
    order = list(whole)
    rest, world = order[origin:], sampler.num_replicas
    if sampler.drop_last:
        rest = rest[: len(rest) - len(rest) % world]
    else:
        rest += islice(cycle(order), -len(rest) % world)
    return rest[sampler.rank :: world]


def array_batches(sampler, begin: int = 0) -> Iterator[np.ndarray] | None:
    """Return an iterator over a BatchSampler's batches as int64 arrays, from sample ``begin`` on. Return None
    unless the sampler yields every sample once, in order or shuffled.

    Random numbers are drawn when torch would draw them, from the same generator. torch's lists would take 20 times as
    long.
    """
    if type(sampler) is not data.BatchSampler:
        return None
    inner = sampler.sampler
    once = type(inner) is data.RandomSampler and not inner.replacement and inner.num_samples == len(inner.data_source)
    if not once and type(inner) is not data.SequentialSampler:
        return None
    return _batches(inner, sampler.batch_size, sampler.drop_last, begin)


def _batches(sampler, size: int, drop_last: bool, begin: int) -> Iterator[np.ndarray]:
    count, generator = len(sampler.data_source), getattr(sampler, "generator", None)
    order = np.arange(count) if type(sampler) is data.SequentialSampler else _shuffled(count, generator)
    begin = min(begin, count)
    full = count - (count - begin) % size
    for at in range(begin, full, size):
        yield order[at : at + size]
    if generator is not None:
        _shuffled(count, generator)  # RandomSampler also draws an unused permutation
    if full < count and not drop_last:
        yield order[full:]


def _shuffled(count: int, generator: torch.Generator | None) -> np.ndarray:
    """Return a permutation of ``count`` indices, as RandomSampler draws it."""
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    return torch.randperm(count, generator=generator).cpu().numpy()


# ---- generators

TORCH, PYTHON, NUMPY = "torch", "python", "numpy"
BASE64 = "base64:"  # prefix of bytes encoded as text
_SAMPLERS = "sampler's generator"  # name of the ``generator`` of torch's samplers, unless it is the loader's
GLOBAL: dict[str, Any] = {TORCH: torch.default_generator, PYTHON: random, NUMPY: np.random}
_KINDS = torch.Generator, random.Random, np.random.RandomState, np.random.Generator


class Generators:
    """Named random generators and samplers with an epoch number. An object may have several names."""

    def __init__(self, generators: dict[str, Any], epochs: dict[str, Any]):
        names: dict[int, str] = {}
        self._named = {name: one for name, one in generators.items() if one is not None}
        self._generators = {name: one for name, one in self._named.items() if names.setdefault(id(one), name) == name}
        self._epochs = epochs

    def states(self) -> dict[str, Any]:
        """Return copies of the states, as plain data."""
        found = {name: _state(one) for name, one in self._generators.items()}
        return found | {name: int(sampler.epoch) for name, sampler in self._epochs.items()}

    def snapshot(self) -> dict[str, Any]:
        """Return the states for comparison only. This takes less time than states()."""
        return {name: _snapshot(one) for name, one in self._generators.items()}

    def set(self, states: dict[str, Any] | None) -> None:
        for name, state in (states or {}).items():
            if name in self._epochs:
                sampler = self._epochs[name]
                getattr(sampler, "set_epoch", partial(setattr, sampler, "epoch"))(state)
            elif name in self._named:
                _set(self._named[name], state)


def sampler_generators(loader, all_of_them: bool = False) -> Generators:
    """Return the generators that the loader's sampler draws from. For a custom sampler, or if ``all_of_them`` is True,
    return all generators that it might draw from."""
    samplers = samplers_of(loader)
    epochs = {
        f"epoch of sampler {number}": sampler
        for number, sampler in enumerate(samplers)
        if isinstance(getattr(sampler, "epoch", None), int)
    }
    inner, owned = samplers[-1], _owned(samplers)
    if is_known(loader) and not all_of_them:
        draws = type(inner) in (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)
        own = getattr(inner, "generator", None)
        name = TORCH if own is None else "generator" if own is loader.generator else _SAMPLERS
        named = {name: own or GLOBAL[TORCH]} | owned
        return Generators(named if draws else {}, epochs)
    aliases = {_SAMPLERS: getattr(inner, "generator", None)} if is_known(loader) else {}
    return Generators(GLOBAL | {"generator": loader.generator} | owned | aliases, epochs)


def checkpoint_generators(loader, in_process: bool) -> Generators:
    """Return every generator whose state a checkpoint needs. ``in_process`` is whether user functions run in this
    process and may use the global generators."""
    found = sampler_generators(loader)
    base = {TORCH: GLOBAL[TORCH]} if loader.generator is None else {"generator": loader.generator}
    users = GLOBAL if in_process else {}
    return Generators(found._named | base | users, found._epochs)


def runs_users_functions(loader, samples: bool) -> bool:
    """Return True if user functions may draw random numbers in this process. ``samples`` is whether they load or
    transform the samples."""
    if loader.num_workers:
        return False
    plain = loader.collate_fn in (default_collate, default_convert)
    return samples or not plain or any(map(_target_transform, leaves_of(loader.dataset)))


def _target_transform(leaf: Any) -> Any:
    return getattr(leaf, "target_transform", None) if reader_of(leaf) is None else transforms_of(leaf)[1]


def _owned(samplers: list[Any]) -> dict[str, Any]:
    return {
        f"{name} of sampler {number}": value
        for number, sampler in enumerate(samplers)
        for name, value in vars(sampler if hasattr(sampler, "__dict__") else object).items()
        if isinstance(value, _KINDS)
    }


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return _text(generator.get_state().numpy())
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    if generator is np.random or isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state())
    version, numbers, gauss = generator.getstate()
    return [version, _text(np.array(numbers, np.uint64)), gauss]


def _snapshot(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if generator is np.random or isinstance(generator, np.random.RandomState):
        name, numbers, *rest = generator.get_state()
        return name, np.asarray(numbers).tobytes(), *rest
    return _state(generator) if isinstance(generator, np.random.Generator) else generator.getstate()


def _set(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.from_numpy(_array(state, np.uint8)))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _restored(state)
    elif generator is np.random or isinstance(generator, np.random.RandomState):
        generator.set_state(_restored(state))
    else:
        version, numbers, gauss = state
        generator.setstate((version, tuple(_array(numbers, np.uint64).tolist()), gauss))


def _text(array: np.ndarray) -> str:
    """Return an array's bytes as base64 text, for JSON."""
    return BASE64 + base64.b64encode(array.tobytes()).decode()


def _array(text: str, dtype: type) -> np.ndarray:
    return np.frombuffer(bytearray(base64.b64decode(text.removeprefix(BASE64))), dtype)


def _plain(value: Any) -> Any:
    """Convert a generator state to JSON types: arrays to text, and tuples to lists."""
    if isinstance(value, np.ndarray):
        return _text(value.astype(np.uint64))
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def _restored(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(BASE64):
        return _array(value, np.uint64)
    if isinstance(value, dict):
        return {key: _restored(inner) for key, inner in value.items()}
    return [_restored(inner) for inner in value] if isinstance(value, list) else value
