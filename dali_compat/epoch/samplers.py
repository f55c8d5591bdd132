"""Knows torch's samplers, and which generators an epoch draws from; their states as plain data."""

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
"""The indices of a batch, as a sampler or in_arrays() gives them."""

# They draw all their random numbers with their first index, or none
_AT_ONCE = {
    *(list, tuple, range, np.ndarray, torch.Tensor),
    *(data.SequentialSampler, data.SubsetRandomSampler, data.WeightedRandomSampler, DistributedSampler),
}


def may_draw(sampler, unknown: int = 0) -> int:
    """Returns how many batches of an epoch may be drawn early without anybody noticing; ``unknown`` of samplers that
    are not torch's.

    Drawing early must leave every generator in the state that torch would leave it in. Of torch's samplers only a
    RandomSampler with a generator of its own can tell the difference: it draws from that once more when it ends.
    """
    inner = sampler.sampler if type(sampler) is data.BatchSampler else sampler
    if type(inner) in _AT_ONCE:
        return sys.maxsize
    if type(inner) is not data.RandomSampler:
        return unknown
    if inner.generator is None:
        return sys.maxsize
    once = not inner.replacement and inner.num_samples <= len(inner.data_source)
    return len(sampler) - 1 if once else 0


def indices_among(loader) -> Sequence[int]:
    """A data set's samples; where the sampler keeps to some of them, these."""
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
    """The order of an epoch's samples over all ranks, and which of them are this rank's. Random numbers follow it.

    Attributes:
        origin: the place of the first sample of all.
        world, rank: how many ranks take turns, and which this is.
    """

    origin: int = 0
    world: int = 1
    rank: int = 0

    def place_of(self, position: int) -> int:
        """The place in that order of the rank's sample number ``position``."""
        return self.origin + position * self.world + self.rank


def samplers_of(loader) -> list[Any]:
    """The loader's batch sampler, or sampler, and those within it, from the outside in."""
    found = [loader._index_sampler]
    while True:
        inner = (getattr(found[-1], name, None) for name in ("sampler", "batch_sampler"))
        deeper = [one for one in inner if hasattr(one, "__iter__") and not any(one is known for known in found)]
        if not deeper:
            return found
        found.append(deeper[0])


def is_known(loader) -> bool:
    """Returns whether all samplers are torch's, or sequences."""
    samplers = samplers_of(loader)
    outer = samplers[:-1]
    return type(samplers[-1]) in {*_AT_ONCE, data.RandomSampler} and all(type(o) is data.BatchSampler for o in outer)


def distributed(loader) -> DistributedSampler | None:
    """The loader's sampler, where it is torch's DistributedSampler and batches are made of it in order."""
    samplers = samplers_of(loader)
    return samplers[-1] if is_known(loader) and type(samplers[-1]) is DistributedSampler else None


def of_the_rest(sampler: DistributedSampler, origin: int) -> list[Any]:
    """A rank's indices of an epoch whose first ``origin`` samples were given already, by whatever number of ranks."""
    whole = copy.copy(sampler)
    whole.num_replicas, whole.rank = 1, 0
    whole.num_samples = whole.total_size = len(sampler.dataset)  # type: ignore[arg-type]  # which has a length
    order = list(whole)
    rest, world = order[origin:], sampler.num_replicas
    if sampler.drop_last:
        rest = rest[: len(rest) - len(rest) % world]
    else:
        rest += islice(cycle(order), -len(rest) % world)
    return rest[sampler.rank :: world]


def in_arrays(sampler, begin: int = 0) -> Iterator[np.ndarray] | None:
    """A BatchSampler's batches as int64 arrays, from a sample on, where it takes every sample once, in order or
    shuffled; else None.

    Each random number is drawn when torch draws it, and from the same generator. Torch makes lists, which take 20 times
    as long: 6 ms of 50,000 indices.
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
        _shuffled(count, generator)  # as RandomSampler does when it is asked for more; it takes nothing of that
    if full < count and not drop_last:
        yield order[full:]


def _shuffled(count: int, generator: torch.Generator | None) -> np.ndarray:
    """A permutation of ``count`` indices, drawn as RandomSampler draws it."""
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    return torch.randperm(count, generator=generator).cpu().numpy()


# ---- generators

TORCH, PYTHON, NUMPY = "torch", "python", "numpy"
BASE64 = "base64:"  # before bytes as text
_SAMPLERS = "sampler's generator"  # or "generator of sampler 1", where all are kept
GLOBAL: dict[str, Any] = {TORCH: torch.default_generator, PYTHON: random, NUMPY: np.random}
_KINDS = torch.Generator, random.Random, np.random.RandomState, np.random.Generator


class Generators:
    """Generators and samplers' epochs by name; those that are one object have one name."""

    def __init__(self, generators: dict[str, Any], epochs: dict[str, Any]):
        names: dict[int, str] = {}
        self._named = {name: one for name, one in generators.items() if one is not None}
        self._generators = {name: one for name, one in self._named.items() if names.setdefault(id(one), name) == name}
        self._epochs = epochs

    @property
    def owned(self) -> bool:
        """True if one of them is none of the global ones."""
        return not self._generators.keys() <= GLOBAL.keys()

    def states(self) -> dict[str, Any]:
        """Numbers, texts and lists, which a later draw leaves as they are."""
        found = {name: _state(one) for name, one in self._generators.items()}
        return found | {name: int(sampler.epoch) for name, sampler in self._epochs.items()}

    def set(self, states: dict[str, Any] | None) -> None:
        """Puts those that have a state there into it."""
        for name, state in (states or {}).items():
            if name in self._epochs:
                sampler = self._epochs[name]
                getattr(sampler, "set_epoch", partial(setattr, sampler, "epoch"))(state)
            elif name in self._named:
                _set(self._named[name], state)


def of_indices(loader, all_of_them: bool = False) -> Generators:
    """Returns what the sampler draws from. Of samplers that are not torch's, and with ``all_of_them``, all that it
    may."""
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


def of_loader(loader, in_process: bool) -> Generators:
    """All that goes on after a state is taken: what of_indices() has, that of the seed, and what the user's functions
    draw from where they run ``in_process``."""
    found = of_indices(loader)
    base = {TORCH: GLOBAL[TORCH]} if loader.generator is None else {"generator": loader.generator}
    users = GLOBAL if in_process else {}
    return Generators(found._named | base | users, found._epochs)


def runs_users_functions(loader, samples: bool) -> bool:
    """Returns whether code of the user's draws in this process: collate_fn, target_transform, and, with ``samples``,
    what makes these: a data set that is asked, or transforms of torch's own loader."""
    if loader.num_workers:
        return False
    plain = loader.collate_fn in (default_collate, default_convert)
    return samples or not plain or any(map(_target_transform, leaves_of(loader.dataset)))


def _target_transform(leaf: Any) -> Any:
    return getattr(leaf, "target_transform", None) if reader_of(leaf) is None else transforms_of(leaf)[1]


def _owned(samplers: list[Any]) -> dict[str, Any]:
    """Generators that are attributes of samplers."""
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
    """An array's bytes, as JSON has them."""
    return BASE64 + base64.b64encode(array.tobytes()).decode()


def _array(text: str, dtype: type) -> np.ndarray:
    return np.frombuffer(bytearray(base64.b64decode(text.removeprefix(BASE64))), dtype)


def _plain(value: Any) -> Any:
    """Arrays as text, and tuples as lists."""
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
