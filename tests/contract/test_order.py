"""The samples and their order equal those of torch's loader under the same seed."""

import queue
import random

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder

from contract.both import EXACT, EXACT_FLIPPED, assert_same_pixels, ours, outlines, pixels, stock
from contract.orders import CASES, DATASETS, Yields, global_states, seeded_generator
from dali_compat import DALIImageFolder


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
    assert global_states(mine) == global_states(theirs)


@pytest.mark.parametrize("case", _RNG_CASES)
def test_global_random_state_equals_torchs_without_workers(folder, case):
    """The transforms draw nothing.

    "draws in the sampler" is missing. Without workers torch's loader requests one batch at a time from the sampler and
    this loader requests two, because DALI prepares the second one in the meantime. The states agree again after the
    epoch.
    """
    mine, theirs = (make(folder, **CASES[case](folder)) for make in (ours, stock))
    assert global_states(mine) == global_states(theirs)


def test_global_random_state_after_an_epoch_equals_torchs_if_the_sampler_draws(folder):
    case = CASES["draws in the sampler"]
    mine, theirs = (make(folder, **case(folder)) for make in (ours, stock))
    assert global_states(mine)[-1] == global_states(theirs)[-1]


def test_only_the_generator_is_drawn_from_when_one_is_passed(folder):
    states = []
    for make in (ours, stock):
        generator = seeded_generator()
        outlines(make(folder, 5, shuffle=True, generator=generator, num_workers=2), epochs=2, seed=0)
        states.append(generator.get_state())
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(0).get_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("taken", range(6))
def test_generator_state_equals_torchs_when_an_epoch_ends_early(folder, taken):
    """A RandomSampler draws from its generator again with the last batch, so that batch must not be requested early."""
    states = []
    for make in (ours, stock):
        generator = seeded_generator()
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


class Fed(data.Sampler):
    """Indices that the training loop puts into a queue, as in active learning."""

    def __init__(self):
        self.queue = queue.Queue()
        self.queue.put(0)

    def __iter__(self):
        while (index := self.queue.get(timeout=60)) is not None:
            yield index


def test_sampler_that_the_loop_feeds_is_drawn_batch_by_batch(folder):
    def indices(make):
        sampler, found = Fed(), []
        for images, _, index in make(folder, 1, sampler=sampler):
            assert len(images) == 1
            found += index.tolist()
            sampler.queue.put(2 * len(found) if len(found) < 5 else None)
        return found

    assert indices(ours) == indices(stock) == [0, 2, 4, 6, 8]


def test_explain_reports_that_a_custom_sampler_is_drawn_batch_by_batch(folder):
    line = "batches are not loaded ahead, because Fed may depend on the training loop"
    assert line in ours(folder, 1, sampler=Fed()).explain()
    assert line not in ours(folder, 1, sampler=Fed(), num_workers=1).explain()
    assert line not in ours(folder, 1, shuffle=True).explain()
