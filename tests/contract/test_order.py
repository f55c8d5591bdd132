"""The samples and their order equal those of torch's loader under the same seed."""

import random

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

from contract.both import EXACT, EXACT_FLIPPED, assert_same_pixels, ours, outlines, pixels, stock
from dali_compat import DALIImageFolder

WEIGHTS = torch.linspace(0.1, 1, 24)


class Yields:
    """A custom sampler that calls ``items()`` in every epoch."""

    def __init__(self, items, length):
        self.items, self.length = items, length

    def __iter__(self):
        return iter(self.items())

    def __len__(self):
        return self.length


def _seeded():
    return torch.Generator().manual_seed(3)


CASES = {
    "plain": lambda ds: dict(batch_size=5),
    "default batch_size": lambda ds: {},
    "drop_last": lambda ds: dict(batch_size=5, drop_last=True),
    "larger than the data set": lambda ds: dict(batch_size=50),
    "drop_last of everything": lambda ds: dict(batch_size=50, drop_last=True),
    "shuffle": lambda ds: dict(batch_size=5, shuffle=True),
    "shuffle, drop_last": lambda ds: dict(batch_size=5, shuffle=True, drop_last=True),
    "generator": lambda ds: dict(batch_size=5, shuffle=True, generator=_seeded()),
    "generator without shuffle": lambda ds: dict(batch_size=5, generator=_seeded()),
    "random sampler": lambda ds: dict(batch_size=5, sampler=data.RandomSampler(ds, num_samples=60)),
    "replacement": lambda ds: dict(batch_size=5, sampler=data.RandomSampler(ds, True, 70)),
    "replacement, generator": lambda ds: dict(
        batch_size=5, sampler=data.RandomSampler(ds, True, 70, generator=_seeded())
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


@pytest.mark.alike
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_batches_equal_torchs_for_each_sampler(folder, case, num_workers):
    mine = ours(folder, num_workers=num_workers, **CASES[case](folder))
    theirs = stock(folder, num_workers=num_workers, **CASES[case](folder))
    assert len(mine) == len(theirs)
    assert outlines(mine) == outlines(theirs)


def test_batches_equal_torchs_if_the_batch_sampler_reuses_one_tensor(folder):
    def batches():
        batch = torch.zeros(3, dtype=torch.int64)
        for number in range(4):
            yield torch.add(torch.arange(3), 5 * number, out=batch)
            batch.zero_()

    mine, theirs = (make(folder, batch_sampler=Yields(batches, 4)) for make in (ours, stock))
    assert outlines(mine) == outlines(theirs)


@pytest.mark.alike
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_distributed_sampler_gives_torchs_shards(folder, replicas, drop_last, shuffle):
    dataset = data.Subset(folder, range(22))  # Not a multiple of 3 or 4, so that padding and dropping matter.
    for rank in range(replicas):
        runs = []
        for make in (ours, stock):
            sampler = DistributedSampler(dataset, replicas, rank, shuffle=shuffle, drop_last=drop_last)
            loader = make(dataset, 4, sampler=sampler)
            epochs = []
            for epoch in range(3):
                sampler.set_epoch(epoch)
                epochs.append(outlines(loader, epochs=1))
            runs.append((len(loader), epochs))
        assert runs[0] == runs[1]


DATASETS = {
    "subset of a list": lambda ds: data.Subset(ds, [5, 1, 20, 20, 3, -1]),
    "subset of a range": lambda ds: data.Subset(ds, range(20, 0, -3)),
    "subset of an array": lambda ds: data.Subset(ds, np.array([5, 1, 20])),
    "subset of a tensor": lambda ds: data.Subset(ds, torch.tensor([5, 1, 20, 3])),
    "subset of a subset": lambda ds: data.Subset(data.Subset(ds, range(2, 24, 2)), [3, 0, 5, -1]),
    "random_split": lambda ds: data.random_split(ds, [10, 14], generator=_seeded())[1],
    "random_split by shares": lambda ds: data.random_split(ds, [0.3, 0.7], generator=_seeded())[0],
    "concat": lambda ds: data.ConcatDataset([ds, ds]),
    "concat by +": lambda ds: ds + ds,
    "concat of subsets": lambda ds: data.ConcatDataset([data.Subset(ds, [1, 9]), data.Subset(ds, range(20, 24))]),
    "concat of concats": lambda ds: data.ConcatDataset([data.ConcatDataset([ds, data.Subset(ds, [3, 4])]), ds]),
    "subset of a concat": lambda ds: data.Subset(data.ConcatDataset([ds, ds]), [3, 40, 24, 23, 0, -1]),
    "subset of a concat, tensor": lambda ds: data.Subset(data.ConcatDataset([ds, ds]), torch.tensor([3, 40, 24, -1])),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("case", DATASETS)
def test_batches_equal_torchs_for_subsets_and_concatenations(folder, case, shuffle):
    mine, theirs = (make(DATASETS[case](folder), 4, shuffle=shuffle) for make in (ours, stock))
    assert len(mine) == len(theirs)
    assert outlines(mine) == outlines(theirs)


@pytest.mark.parametrize("index", [30, -30, torch.tensor(30), torch.tensor(-30), np.int64(30)])
def test_indices_of_the_user_are_not_modified(folder, index):
    """An in-place addition to a view of the tensor would change the samples of the second epoch."""
    dataset = data.ConcatDataset([folder, folder])
    sampler = [index]
    outlines(ours(dataset, sampler=sampler), epochs=2)
    assert sampler == [index] and int(sampler[0]) in (30, -30)
    indices = torch.tensor([30, 3, -1])
    outlines(ours(data.Subset(dataset, indices)), epochs=1)
    assert indices.tolist() == [30, 3, -1]


def test_each_part_of_a_concat_dataset_keeps_its_transforms(image_root):
    def parts(kind):
        return data.ConcatDataset(
            [
                kind(image_root, EXACT),
                kind(image_root, EXACT_FLIPPED, target_transform=lambda target: target + 10),
                kind(image_root, EXACT, target_transform=lambda target: -target),
            ]
        )

    order = [0, 30, 60, 71, 25, 1, 2, 49, 50]
    mine = list(ours(parts(DALIImageFolder), 4, sampler=order, device="cpu"))
    theirs = list(stock(parts(ImageFolder), 4, sampler=order))
    assert [b[1].tolist() for b in mine] == [b[1].tolist() for b in theirs]
    assert_same_pixels([b[0] for b in mine], [b[0] for b in theirs])


@pytest.mark.parametrize("batch", [[0, 1, 2, -1], [-1, -2, -24], [3, -21], [23, -1, 0]])
def test_pixels_equal_torchs_when_indices_are_negative(image_root, batch):
    """A batch keeps its files apart even if one index counts from the end."""
    dataset = ImageFolder(image_root, EXACT)
    mine = ours(dataset, batch_sampler=[batch], device="cpu")
    assert_same_pixels(pixels(mine), pixels(stock(dataset, batch_sampler=[batch])))


def _states(loader, epochs: int = 2) -> list[bytes]:
    """Return torch's global random state after iter(), after each batch and after each epoch."""
    torch.manual_seed(7)
    states = []
    for _ in range(epochs):
        iterator = iter(loader)
        states.append(torch.get_rng_state().numpy().tobytes())
        states += [torch.get_rng_state().numpy().tobytes() for _ in iterator]
        states.append(torch.get_rng_state().numpy().tobytes())
    return states


_RNG_CASES = ["plain", "shuffle", "generator", "random sampler", "replacement", "weighted", "batch sampler"]


@pytest.mark.alike
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"prefetch_factor": 1}, {"prefetch_factor": 4}])
@pytest.mark.parametrize("case", [*_RNG_CASES, "draws in the sampler", "batch sampler that draws at iter()"])
def test_global_random_state_equals_torchs_with_workers(random_folder, case, options):
    """In torch's loader transforms draw in the workers, so only base seeds and samplers change the global state."""
    # the number of workers determines how many batches are requested in advance
    options = options | {"num_workers": 2 if case == "draws in the sampler" else 1}
    mine = ours(random_folder, **options, **CASES[case](random_folder))
    theirs = stock(random_folder, **options, **CASES[case](random_folder))
    assert _states(mine) == _states(theirs)


@pytest.mark.parametrize("case", _RNG_CASES)
def test_global_random_state_equals_torchs_without_workers(folder, case):
    """The transforms draw nothing.

    "draws in the sampler" is missing. Without workers torch's loader requests one batch at a time from the sampler and
    this loader requests two, because DALI prepares the second one in the meantime. The states agree again after the
    epoch.
    """
    mine, theirs = (make(folder, **CASES[case](folder)) for make in (ours, stock))
    assert _states(mine) == _states(theirs)


def test_global_random_state_after_an_epoch_equals_torchs_if_the_sampler_draws(folder):
    case = CASES["draws in the sampler"]
    mine, theirs = (make(folder, **case(folder)) for make in (ours, stock))
    assert _states(mine)[-1] == _states(theirs)[-1]


def test_only_the_generator_is_drawn_from_when_one_is_passed(folder):
    states = []
    for make in (ours, stock):
        generator = _seeded()
        outlines(make(folder, 5, shuffle=True, generator=generator, num_workers=2), epochs=2, seed=0)
        states.append(generator.get_state())
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(0).get_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("taken", range(6))
def test_generator_state_equals_torchs_when_an_epoch_ends_early(folder, taken):
    """A RandomSampler draws from its generator again with the last batch, so that batch must not be requested early."""
    states = []
    for make in (ours, stock):
        generator = _seeded()
        iterator = iter(make(folder, 5, shuffle=True, generator=generator))
        for _ in range(taken):
            next(iterator, None)
        states.append(generator.get_state())
    assert torch.equal(*states)


def test_python_and_numpy_random_states_are_unchanged(random_folder):
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    for _ in range(2):
        for _ in ours(random_folder, 5, shuffle=True):
            pass
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sampler_error_is_raised_after_the_batches_before_it(folder, num_workers):
    def items():
        yield from range(6)
        raise KeyError("the sampler")

    counts = []
    for make in (ours, stock):
        count = 0
        with pytest.raises(KeyError, match="the sampler"):  # noqa: PT012  (after some batches)
            for _ in make(folder, 2, sampler=Yields(items, 6), num_workers=num_workers):
                count += 1
        counts.append(count)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("index", [24, -25, 1.5, "3", None, torch.tensor(99)])
def test_wrong_index_raises_torchs_error(folder, index):
    errors = []
    for make in (ours, stock):
        with pytest.raises(Exception) as caught:  # noqa: PT011  (whatever torch raises)
            list(make(folder, batch_sampler=[[0, index]]))
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0][0] is errors[1][0] and errors[0][1].startswith(errors[1][1])


@pytest.mark.parametrize("index", [48, -49])
def test_wrong_index_of_a_concat_dataset_raises_torchs_error(folder, index):
    dataset = data.ConcatDataset([folder, folder])
    errors = []
    for make in (ours, stock):
        with pytest.raises(Exception) as caught:  # noqa: PT011  (whatever torch raises)
            list(make(dataset, batch_sampler=[[0, index]]))
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0][0] is errors[1][0] and errors[0][1].startswith(errors[1][1])
