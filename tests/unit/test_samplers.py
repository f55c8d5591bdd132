"""Batches of indices as arrays equal those of torch's BatchSampler and consume the same random numbers."""

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from dali_compat.epoch.samplers import RankOrder, array_batches, remaining_indices
from dali_compat.randoms import Randoms

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
def test_array_batches_equal_torchs_and_leave_the_same_generator_states(kind, size, drop_last):
    """The states are compared after every batch and at the end of two epochs."""
    runs = []
    for arrays in (False, True):
        torch.manual_seed(7)
        sampler, seen = _sampler(kind), []
        batches = data.BatchSampler(sampler, size, drop_last)
        for _ in range(2):
            iterator = array_batches(batches) if arrays else iter(batches)
            while (batch := next(iterator, None)) is not None:
                assert not arrays or batch.dtype == np.int64
                seen.append(([*map(int, batch)], _states(sampler) if kind != "in order" else None))
            seen.append(_states(sampler) if kind != "in order" else None)
        runs.append(seen)
    assert runs[0] == runs[1]


class Backwards(data.SequentialSampler):
    def __iter__(self):
        return reversed(range(len(self.data_source)))


@pytest.mark.parametrize("kind", ["in order", "shuffled", "generator"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("begin", [0, 3, 10, COUNT, COUNT + 5])
def test_array_batches_that_begin_at_a_sample_equal_the_rest(kind, drop_last, begin):
    whole, rest = [
        np.concatenate([[], *array_batches(data.BatchSampler(sampler, 1 if at == 0 else 5, drop_last), at)])
        for at in (0, begin)
        if (sampler := _sampler(kind)) and torch.manual_seed(0)
    ]
    left = COUNT - min(begin, COUNT)
    assert rest.tolist() == whole[COUNT - left :].tolist()[: left - left % 5 if drop_last and begin else left]


@pytest.mark.parametrize("drop_last", [False, True])
def test_rest_of_an_epoch_is_dealt_to_a_changed_number_of_ranks(drop_last):
    whole = list(DistributedSampler(range(COUNT), 1, 0, seed=5))
    rest = [
        remaining_indices(DistributedSampler(range(COUNT), 4, rank, seed=5, drop_last=drop_last), 10)
        for rank in range(4)
    ]
    dealt = [index for row in zip(*rest, strict=True) for index in row]
    assert dealt == (whole[10:22] if drop_last else whole[10:] + whole[:2])
    assert [RankOrder(10, 4, 3).place_of(position) for position in range(2)] == [13, 17]


@pytest.mark.parametrize("stride", [2, 7, 256, 257, 1000])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_random_numbers_of_a_rank_are_those_of_its_positions(stride, k):
    every = Randoms(3, 11, 4 * stride)(2, k)
    assert (Randoms(3, 11, 4, stride)(2, k) == every[::stride]).all()
    assert Randoms(3, 11, 0, stride)(2, k).shape == (0, k)


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
def test_other_samplers_have_no_array_batches(sampler):
    assert array_batches(sampler) is None
