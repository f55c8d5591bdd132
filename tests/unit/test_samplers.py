"""Batches as arrays are those of torch's BatchSampler, and draw as it draws."""

import numpy as np
import pytest
import torch
from torch.utils import data

from dali_compat.epoch.samplers import in_arrays

COUNT = 24


def _sampler(kind):
    generator = torch.Generator().manual_seed(3) if kind == "generator" else None
    return (
        data.SequentialSampler(range(COUNT))
        if kind == "in order"
        else data.RandomSampler(range(COUNT), generator=generator)
    )


def _states(sampler):
    return torch.get_rng_state().tolist(), sampler.generator and sampler.generator.get_state().tolist()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 5, 8, 24, 30])
@pytest.mark.parametrize("kind", ["in order", "shuffled", "generator"])
def test_as_torch_draws(kind, size, drop_last):
    """The states of the generators, too, after every batch and at the end, of two epochs."""
    runs = []
    for arrays in (False, True):
        torch.manual_seed(7)
        sampler, seen = _sampler(kind), []
        batches = data.BatchSampler(sampler, size, drop_last)
        for _ in range(2):
            iterator = in_arrays(batches) if arrays else iter(batches)
            while (batch := next(iterator, None)) is not None:
                assert not arrays or batch.dtype == np.int64
                seen.append(([*map(int, batch)], _states(sampler) if kind != "in order" else None))
            seen.append(_states(sampler) if kind != "in order" else None)
        runs.append(seen)
    assert runs[0] == runs[1]


class Backwards(data.SequentialSampler):
    def __iter__(self):
        return reversed(range(len(self.data_source)))


class InPairs(data.BatchSampler):
    pass


@pytest.mark.parametrize(
    "sampler",
    [
        range(COUNT),
        data.RandomSampler(range(COUNT)),
        data.BatchSampler(range(COUNT), 5, False),
        data.BatchSampler(Backwards(range(COUNT)), 5, False),
        data.BatchSampler(data.RandomSampler(range(COUNT), replacement=True), 5, False),
        data.BatchSampler(data.RandomSampler(range(COUNT), num_samples=COUNT + 1), 5, False),
        data.BatchSampler(data.RandomSampler(range(COUNT), num_samples=COUNT - 1), 5, False),
        InPairs(data.SequentialSampler(range(COUNT)), 2, False),
    ],
)
def test_others_are_asked_themselves(sampler):
    assert in_arrays(sampler) is None
