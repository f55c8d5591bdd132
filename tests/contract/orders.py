"""Samplers and data sets whose order of samples is compared with torch's."""

import numpy as np
import torch
from torch.utils import data


class Yields:
    """A custom sampler that calls ``items()`` in every epoch."""

    def __init__(self, items, length):
        self.items, self.length = items, length

    def __iter__(self):
        return iter(self.items())

    def __len__(self):
        return self.length


CASES = {
    "plain": lambda ds: dict(batch_size=5),
    "default batch_size": lambda ds: {},
    "drop_last": lambda ds: dict(batch_size=5, drop_last=True),
    "larger than the data set": lambda ds: dict(batch_size=50),
    "drop_last of everything": lambda ds: dict(batch_size=50, drop_last=True),
    "shuffle": lambda ds: dict(batch_size=5, shuffle=True),
    "shuffle, drop_last": lambda ds: dict(batch_size=5, shuffle=True, drop_last=True),
    "generator": lambda ds: dict(batch_size=5, shuffle=True, generator=seeded_generator()),
    "generator without shuffle": lambda ds: dict(batch_size=5, generator=seeded_generator()),
    "random sampler": lambda ds: dict(batch_size=5, sampler=data.RandomSampler(ds, num_samples=60)),
    "replacement": lambda ds: dict(batch_size=5, sampler=data.RandomSampler(ds, True, 70)),
    "replacement, generator": lambda ds: dict(
        batch_size=5, sampler=data.RandomSampler(ds, True, 70, generator=seeded_generator())
    ),
    "weighted": lambda ds: dict(batch_size=5, sampler=data.WeightedRandomSampler(WEIGHTS, 30)),
    "weighted, no replacement": lambda ds: dict(batch_size=5, sampler=data.WeightedRandomSampler(WEIGHTS, 9, False)),
    "subset random": lambda ds: dict(batch_size=4, sampler=data.SubsetRandomSampler(range(3, 20))),
    "list": lambda ds: dict(batch_size=4, sampler=[5, 3, 3, 20, 11, 0]),
    "negative": lambda ds: dict(batch_size=4, sampler=[-1, -24, 5, -7, 0, 1]),
    "array": lambda ds: dict(batch_size=4, sampler=np.arange(20, 3, -2)),
    "tensor": lambda ds: dict(batch_size=4, sampler=torch.arange(3, 20, 2)),
    "zero-dimensional tensors": lambda ds: dict(batch_size=4, sampler=[torch.tensor(i) for i in (4, 2, 9, 20, 0)]),
    "generator function": lambda ds: dict(batch_size=4, sampler=Yields(lambda: (i * 7 % 24 for i in range(19)), 19)),
    "draws in the sampler": lambda ds: dict(
        batch_size=4, sampler=Yields(lambda: (int(torch.randint(24, ())) for _ in range(19)), 19)
    ),
    "draws at iter()": lambda ds: dict(batch_size=4, sampler=Yields(lambda: iter(torch.randperm(24).tolist()), 24)),
    "batch sampler": lambda ds: dict(batch_sampler=data.BatchSampler(data.RandomSampler(ds), 7, True)),
    "batch sampler that draws at iter()": lambda ds: dict(
        batch_sampler=Yields(lambda: iter(torch.randperm(24).view(6, 4).tolist()), 6)
    ),
    "varying batches": lambda ds: dict(batch_sampler=[[1], [2, 3, 4, 5, 6], [7, 8], list(range(24)), [0]]),
    "batches of tuples": lambda ds: dict(batch_sampler=[(1, 2), (3,)]),
    "batches of arrays": lambda ds: dict(batch_sampler=[np.array([1, 2]), np.array([-3, 4])]),
    "batches of tensors": lambda ds: dict(batch_sampler=[torch.tensor([1, 2]), torch.tensor([3, 4, 5])]),
    "batches of ranges": lambda ds: dict(batch_sampler=[range(5), range(20, 3, -6)]),
    "batch_size=None": lambda ds: dict(batch_size=None),
    "batch_size=None, shuffle": lambda ds: dict(batch_size=None, shuffle=True),
    "batch_size=None, sampler": lambda ds: dict(batch_size=None, sampler=[3, -1, 7]),
}


DATASETS = {
    "subset of a list": lambda ds: data.Subset(ds, [5, 1, 20, 20, 3, -1]),
    "subset of a range": lambda ds: data.Subset(ds, range(20, 0, -3)),
    "subset of an array": lambda ds: data.Subset(ds, np.array([5, 1, 20])),
    "subset of a tensor": lambda ds: data.Subset(ds, torch.tensor([5, 1, 20, 3])),
    "subset of a subset": lambda ds: data.Subset(data.Subset(ds, range(2, 24, 2)), [3, 0, 5, -1]),
    "random_split": lambda ds: data.random_split(ds, [10, 14], generator=seeded_generator())[1],
    "random_split by shares": lambda ds: data.random_split(ds, [0.3, 0.7], generator=seeded_generator())[0],
    "concat": lambda ds: data.ConcatDataset([ds, ds]),
    "concat by +": lambda ds: ds + ds,
    "concat of subsets": lambda ds: data.ConcatDataset([data.Subset(ds, [1, 9]), data.Subset(ds, range(20, 24))]),
    "concat of concats": lambda ds: data.ConcatDataset([data.ConcatDataset([ds, data.Subset(ds, [3, 4])]), ds]),
    "subset of a concat": lambda ds: data.Subset(data.ConcatDataset([ds, ds]), [3, 40, 24, 23, 0, -1]),
    "subset of a concat, tensor": lambda ds: data.Subset(data.ConcatDataset([ds, ds]), torch.tensor([3, 40, 24, -1])),
}


def global_states(loader, epochs: int = 2) -> list[bytes]:
    """Return torch's global random state after iter(), after each batch and after each epoch."""
    torch.manual_seed(7)
    states = []
    for _ in range(epochs):
        iterator = iter(loader)
        states.append(torch.get_rng_state().numpy().tobytes())
        states += [torch.get_rng_state().numpy().tobytes() for _ in iterator]
        states.append(torch.get_rng_state().numpy().tobytes())
    return states


WEIGHTS = torch.linspace(0.1, 1, 24)


def seeded_generator():
    return torch.Generator().manual_seed(3)
