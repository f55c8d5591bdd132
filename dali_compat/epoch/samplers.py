"""What is known of torch's samplers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.utils.data as data
from torch.utils.data.distributed import DistributedSampler

# They draw all their random numbers with their first index, or none
_AT_ONCE = {
    *(list, tuple, range, np.ndarray, torch.Tensor),
    *(data.SequentialSampler, data.SubsetRandomSampler, data.WeightedRandomSampler, DistributedSampler),
}


def may_draw(sampler, unknown: int = 0) -> int:
    """How many batches of an epoch may be drawn early without anybody noticing; ``unknown`` of samplers that are not
    torch's.

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


def in_arrays(sampler) -> Iterator[np.ndarray] | None:
    """A BatchSampler's batches as int64 arrays, where it takes every sample once, in order or shuffled; else None.

    Each random number is drawn when torch draws it, and from the same generator. Torch makes lists, which take 20 times
    as long: 6 ms of 50,000 indices.
    """
    if type(sampler) is not data.BatchSampler:
        return None
    inner = sampler.sampler
    once = type(inner) is data.RandomSampler and not inner.replacement and inner.num_samples == len(inner.data_source)
    if not once and type(inner) is not data.SequentialSampler:
        return None
    return _batches(inner, sampler.batch_size, sampler.drop_last)


def _batches(sampler, size: int, drop_last: bool) -> Iterator[np.ndarray]:
    count, generator = len(sampler.data_source), getattr(sampler, "generator", None)
    order = np.arange(count) if type(sampler) is data.SequentialSampler else _shuffled(count, generator)
    full = count - count % size
    for begin in range(0, full, size):
        yield order[begin : begin + size]
    if generator is not None:
        _shuffled(count, generator)  # as RandomSampler does when it is asked for more; it takes nothing of that
    if full < count and not drop_last:
        yield order[full:]


def _shuffled(count: int, generator: torch.Generator | None) -> np.ndarray:
    """As RandomSampler."""
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    return torch.randperm(count, generator=generator).cpu().numpy()
