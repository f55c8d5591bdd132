"""Epochs: abandoned, repeated, concurrent and in threads; effects of a seed; release of resources."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch.utils import data
from torchvision import transforms as T

from contract.both import (
    EXACT,
    RANDOM,
    assert_same_pixels,
    error_of,
    ours,
    pixels,
    stock,
)
from dali_compat import DALIImageFolder, DataLoader


def _indices(loader) -> list[int]:
    return [index for batch in loader for index in batch[-1].tolist()]


# ---- epochs


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_abandoned_epoch_does_not_affect_the_next(exact_folder, num_workers, taken, persistent):
    if persistent and not num_workers:
        pytest.skip("torch refuses it")
    loader = ours(exact_folder, 5, num_workers=num_workers, persistent_workers=persistent, device="cpu")
    for _ in range(3):
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
    del iterator
    assert_same_pixels(pixels(loader), pixels(stock(exact_folder, 5)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_order_after_an_abandoned_epoch_is_torchs(folder, num_workers):
    runs = []
    for make in (ours, stock):
        loader = make(folder, 5, shuffle=True, num_workers=num_workers)
        torch.manual_seed(1)
        next(iter(loader))
        runs.append([_indices(loader), _indices(loader)])
    assert runs[0] == runs[1]


def test_two_iterators_at_once_each_give_all_batches(exact_folder):
    loader = ours(exact_folder, 3, device="cpu")
    expected = pixels(stock(exact_folder, 3))
    first, second = iter(loader), iter(loader)
    taken = [[next(first), next(first)], []]
    for a, b in zip(first, second, strict=False):  # the second iterator has two more
        taken[0].append(a)
        taken[1].append(b)
    taken[1] += second
    for batches in taken:
        assert_same_pixels([batch[0] for batch in batches], expected)


def test_nested_loops_over_one_loader_give_all_pairs(exact_folder):
    loader = ours(exact_folder, 8)
    assert [_indices([a]) + _indices([b]) for a in loader for b in loader] == [
        [*range(a, a + 8), *range(b, b + 8)] for a in (0, 8, 16) for b in (0, 8, 16)
    ]


def test_alternating_train_and_validation_loaders_give_their_batches(exact_folder, image_root):
    train = ours(exact_folder, 5, shuffle=True, device="cpu")
    validation = ours(DALIImageFolder(image_root, EXACT), 7, device="cpu")
    expected = pixels(stock(DALIImageFolder(image_root, EXACT), 7))
    for _ in range(3):
        assert sorted(_indices(train)) == list(range(24))
        assert_same_pixels(pixels(validation), expected)


def test_an_exhausted_iterator_stays_exhausted(folder):
    iterator = iter(ours(folder, 20))
    assert len(list(iterator)) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)
    assert list(iterator) == []


def test_an_iterator_behaves_as_torchs(folder):
    loader = ours(folder, 5)
    iterator = iter(loader)
    assert isinstance(iterator, data.dataloader._BaseDataLoaderIter)
    assert iter(iterator) is iterator and len(iterator) == len(loader) == 5
    assert loader._iterator is None  # Composer's DataSpec reads it
    mine, theirs = error_of(copy.deepcopy, iterator), error_of(copy.deepcopy, iter(stock(folder, 5)))
    assert type(mine) is type(theirs) is NotImplementedError


def test_persistent_workers_keep_the_iterator(folder):
    loader = ours(folder, 5, num_workers=2, persistent_workers=True)
    first = iter(loader)
    assert iter(loader) is first is loader._iterator


def test_an_iterator_outlives_its_loader(exact_folder):
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    assert_same_pixels([batch[0] for batch in iterator], pixels(stock(exact_folder, 5)))


def test_an_endless_sampler_is_read_as_needed(folder):
    class Endless:
        def __iter__(self):
            while True:
                yield from (3, 1, 2)

    iterator = iter(ours(folder, 4, sampler=Endless(), num_workers=2))
    assert [next(iterator)[2].tolist() for _ in range(3)] == [[3, 1, 2, 3], [1, 2, 3, 1], [2, 3, 1, 2]]


def test_a_closed_loader_can_start_a_new_epoch(exact_folder):
    loader = ours(exact_folder, 5, device="cpu")
    expected = pixels(stock(exact_folder, 5))
    assert_same_pixels(pixels(loader), expected)
    loader.close()
    loader.close()
    assert_same_pixels(pixels(loader), expected)
    iterator = iter(loader)
    next(iterator)
    loader.close()  # close() during an epoch frees resources that this iterator needs
    with pytest.raises(RuntimeError, match="closed during this epoch"):
        next(iterator)
    assert_same_pixels(pixels(loader), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_batches_are_the_same_in_any_grad_mode(exact_folder, mode):
    with mode():
        batches = [batch[0] for batch in ours(exact_folder, 5, device="cpu")]
    assert_same_pixels(batches, pixels(stock(exact_folder, 5)))


def test_each_batch_follows_the_grad_mode_of_its_request(exact_folder):
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    with torch.inference_mode():
        inside = next(iterator)[0]
    outside = next(iterator)[0]
    assert inside.is_inference() and not outside.is_inference()


# ---- effects of a seed


def _augmented(root, seed=0, **options) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.cat(pixels(ours(DALIImageFolder(root, RANDOM), **options)))


@pytest.mark.parametrize(
    "options",
    [
        dict(batch_size=1),
        dict(batch_size=24),
        dict(batch_size=5, num_workers=1),
        dict(batch_size=5, num_workers=3, prefetch_factor=1),
        dict(batch_size=5, num_workers=2, prefetch_factor=4),
        dict(batch_size=5, num_workers=2, persistent_workers=True),
        dict(batch_sampler=[[0, 1], list(range(2, 20)), [20], [21, 22, 23]]),
    ],
)
def test_augmentations_do_not_depend_on_batches_or_workers(image_root, options):
    assert torch.equal(_augmented(image_root, **options), _augmented(image_root, batch_size=5))


@pytest.mark.parametrize("options", [dict(), dict(num_workers=2, persistent_workers=True)])
def test_augmentations_differ_between_epochs_and_repeat_under_one_seed(image_root, options):
    def epochs(seed):
        torch.manual_seed(seed)
        loader = ours(DALIImageFolder(image_root, RANDOM), 6, **options)
        return [torch.cat(pixels(loader)) for _ in range(3)]

    first, again, other = epochs(0), epochs(0), epochs(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for a, b in [(first[0], first[1]), (first[1], first[2]), (first[0], first[2]), (first[0], other[0])]:
        same = (a == b).flatten(1).all(1)
        assert not same.any()  # none of 24 windows repeats


def test_the_generator_argument_seeds_augmentations(image_root):
    def run(seed):
        loader = ours(DALIImageFolder(image_root, RANDOM), 6, generator=torch.Generator().manual_seed(seed))
        return torch.cat(pixels(loader))

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))


def test_repeats_of_a_sample_in_a_batch_are_augmented_independently(image_root):
    torch.manual_seed(0)
    images = next(iter(ours(DALIImageFolder(image_root, RANDOM), 12, sampler=[5] * 12)))[0]
    assert len({image.cpu().numpy().tobytes() for image in images}) == 12


# ---- release of resources


def _only_pipeline(loader):
    (pipeline,) = loader._route._pipelines
    return pipeline


def test_results_of_abandoned_epochs_are_released(exact_folder):
    loader = ours(exact_folder, 4, device="cpu")
    for _ in range(10):
        next(iter(loader))
    pipeline = _only_pipeline(loader)
    assert len(pipeline._done) <= pipeline.depth and len(pipeline._expected) <= pipeline.depth
    list(loader)
    assert not pipeline._done and not pipeline._expected


def test_discarded_tickets_are_released(exact_folder):
    """This includes tickets whose results are already complete."""
    from dali_compat.engine.dali.pipeline import DecodePipeline

    loader = ours(exact_folder, 4, device="cpu")
    list(loader)
    own = _only_pipeline(loader)
    pipeline = DecodePipeline(own.plan, torch.device("cpu"), threads=1, depth=2, batch_size=4)
    paths = [path for path, _ in exact_folder.samples[:4]]
    arrays = [{"start": np.zeros((4, 2), np.int32), "shape": np.full((4, 2), 40, np.int32)} for _ in own.plan.dali]
    tickets = [pipeline.submit(paths, arrays) for _ in range(6)]
    for ticket in tickets:
        pipeline.discard(ticket)
    pipeline.receive(pipeline.submit(paths, arrays))
    assert not pipeline._done and not pipeline._expected


def test_pipelines_are_idle_after_an_epoch_while_its_iterator_exists(exact_folder):
    loader = ours(exact_folder, 4, device="cpu")
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    assert not _only_pipeline(loader).idle
    assert next(iterator, None) is None
    assert _only_pipeline(loader).idle


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("taken", [1, 2, 5, 6])
def test_the_state_of_a_generator_equals_torchs_after_any_batch(exact_folder, taken, replacement):
    """The epoch is abandoned after ``taken`` of its six batches."""
    states = []
    for make in (ours, stock):
        generator = torch.Generator().manual_seed(3)
        sampler = data.RandomSampler(exact_folder, replacement=replacement, generator=generator)
        iterator = iter(make(exact_folder, 4, sampler=sampler, generator=generator))
        for _ in range(taken):
            next(iterator)
        del iterator
        states.append(generator.get_state())
    assert torch.equal(*states)


def test_data_sets_with_equal_transforms_may_alternate_in_a_batch(own_root):
    """Both data sets use one plan."""
    first, second = (DALIImageFolder(own_root, EXACT, return_index=True) for _ in range(2))
    both = data.ConcatDataset([data.Subset(first, range(0, 8, 2)), data.Subset(second, range(1, 8, 2))])
    for batch in ours(both, batch_sampler=[[0, 4, 1, 5], [7, 2, 6, 3]], device="cpu"):
        for image, label, index in zip(batch[0], batch[1].tolist(), batch[2].tolist(), strict=True):
            expected, target, _ = first[index]
            assert label == target and torch.equal(image, expected)


class _WithoutImages(data.Dataset):
    """A data set without images, which uses torch's loader."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.zeros(2), index


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("route", ["folder", "torch"])
@pytest.mark.filterwarnings("ignore")
def test_threads_that_share_an_iterator_get_each_batch_once(image_root, route, num_workers):
    crop = T.Compose([T.CenterCrop(16), T.PILToTensor()])
    dataset = DALIImageFolder(image_root, crop, return_index=True) if route == "folder" else _WithoutImages()
    iterator, received, errors = iter(DataLoader(dataset, 2, num_workers=num_workers, device="cpu")), [], []

    def loop():
        try:
            received.extend(number for batch in iterator for number in batch[-1].tolist())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and sorted(received) == list(range(len(dataset)))
