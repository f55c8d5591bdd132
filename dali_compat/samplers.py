"""What is known of torch's samplers."""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.utils.data as data
from torch.utils.data.distributed import DistributedSampler

# They draw all their random numbers with their first index, or none
_AT_ONCE = {
    *(list, tuple, range, np.ndarray, torch.Tensor),
    *(data.SequentialSampler, data.SubsetRandomSampler, data.WeightedRandomSampler, DistributedSampler),
}


def may_draw(sampler) -> int:
    """How many batches of an epoch may be drawn before their time, so that every generator is, whenever the user looks,
    where torch would have it.

    Only a RandomSampler with a generator of its own tells: it draws from that when it ends.
    """
    inner = sampler.sampler if type(sampler) is data.BatchSampler else sampler
    if type(inner) in _AT_ONCE:
        return sys.maxsize
    if type(inner) is not data.RandomSampler:
        return 0
    if inner.generator is None:
        return sys.maxsize
    once = not inner.replacement and inner.num_samples <= len(inner.data_source)
    return len(sampler) - 1 if once else 0
