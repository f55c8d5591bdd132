"""Changes of a data set after its loader was made take effect in the next epoch, as in torch."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ImageOps
from torch.utils import data
from torchvision import datasets
from torchvision import transforms as T

from contract.both import EXACT, EXACT_FLIPPED, assert_same_epoch, ours, stock
from dali_compat import DALIArrayDataset, DALIImageFolder, DALIImageList, DataLoader
from dali_compat.epoch.dali_batch import DaliBatch


def _set_transform(dataset):
    dataset.transform = EXACT_FLIPPED


def _extend_transform(dataset):
    dataset.transform = copy.deepcopy(EXACT)
    dataset.transform.transforms.insert(0, T.RandomHorizontalFlip(1.0))


def _edit_transform(dataset):
    dataset.transform = T.Compose([T.CenterCrop(40), T.PILToTensor()])
    dataset.transform.transforms[0].size = (24, 32)


def _set_target_transform(dataset):
    dataset.target_transform = lambda target: target * 2


def _replace_samples(dataset):
    dataset.samples = dataset.samples[10:16]


def _reverse_samples(dataset):
    dataset.samples.reverse()


def _relabel(dataset):
    dataset.samples[:] = [(path, 7) for path, _ in dataset.samples]


def _set_float_labels(dataset):
    dataset.samples[:] = [(path, float(label)) for path, label in dataset.samples]


def _swap_two(dataset):
    dataset.samples[0], dataset.samples[1] = dataset.samples[1], dataset.samples[0]


CHANGES = [
    _set_transform,
    _extend_transform,
    _edit_transform,
    _set_target_transform,
    _replace_samples,
    _reverse_samples,
    _relabel,
    _set_float_labels,
    _swap_two,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [DALIImageFolder, datasets.ImageFolder])
def test_changes_reach_the_next_epoch(image_root, kind, change):
    dataset = kind(image_root, EXACT)
    sampler = range(6)
    loader = ours(dataset, 4, sampler=sampler, device="cpu")
    assert_same_epoch(loader, stock(dataset, 4, sampler=sampler))
    change(dataset)
    assert_same_epoch(loader, stock(dataset, 4, sampler=sampler))


def _identity(image):
    return image


def _of_arrays(image_root, transform):
    return DALIArrayDataset(np.random.default_rng(0).integers(0, 256, (9, 20, 24, 3), np.uint8), range(9), transform)


@pytest.mark.filterwarnings("ignore:torch's own loader reads DALIArrayDataset")
@pytest.mark.parametrize("make", [datasets.ImageFolder, _of_arrays])
def test_changes_of_a_transform_after_a_function_reach_the_next_epoch(image_root, make):
    dataset = make(image_root, T.Compose([_identity, T.CenterCrop(16), T.PILToTensor()]))
    loader = ours(dataset, 4, sampler=range(6), device="cpu", fallback="silent")
    list(loader)
    dataset.transform.transforms[1].size = (12, 8)
    assert_same_epoch(loader, stock(dataset, 4, sampler=range(6)))


@pytest.mark.parametrize("change", CHANGES)
def test_changes_before_the_first_epoch_take_effect(image_root, change):
    """timm sets dataset.transform after it has prepared the loader's arguments."""
    dataset = DALIImageFolder(image_root)
    loader = DataLoader(dataset, 4, sampler=range(6), fallback="silent", device="cpu")
    dataset.transform = EXACT
    change(dataset)
    assert_same_epoch(loader, stock(dataset, 4, sampler=range(6)))
    assert loader.explain().startswith("DALI route")


@pytest.mark.parametrize("exact", [True, False])
def test_a_change_of_exact_reaches_the_next_epoch(image_root, exact):
    """The fastest kernels resize differently from torchvision."""
    transform = T.Compose([T.Resize((33, 47), T.InterpolationMode.BICUBIC), T.PILToTensor()])
    loaders = [
        ours(DALIImageFolder(image_root, transform), 24, exact=first, device="cpu") for first in (exact, not exact)
    ]
    list(loaders[1])
    loaders[1].exact = exact
    (wanted, _), (found, _) = (next(iter(loader)) for loader in loaders)
    assert torch.equal(wanted, found)
    assert torch.equal(found, next(iter(stock(loaders[1].dataset, 24)))[0]) == exact


def test_a_transform_changed_in_one_part_reaches_the_next_epoch(image_root):
    """The set of distinct transforms stays the same; only their assignment to parts changes."""
    parts = [DALIImageFolder(image_root, transform) for transform in (EXACT, EXACT_FLIPPED, EXACT)]
    dataset = data.ConcatDataset(parts)
    loader = ours(dataset, 24, device="cpu")
    assert_same_epoch(loader, stock(dataset, 24))
    parts[2].transform = EXACT_FLIPPED
    assert_same_epoch(loader, stock(dataset, 24))


@pytest.mark.parametrize("transform", [EXACT, EXACT_FLIPPED])
def test_a_replaced_data_set_of_a_subset_reaches_the_next_epoch(image_root, transform):
    subset = data.Subset(DALIImageFolder(image_root, EXACT), range(6))
    loader = ours(subset, 4, device="cpu")
    assert_same_epoch(loader, stock(subset, 4))
    subset.dataset = DALIImageFolder(image_root, transform)
    subset.indices = [3, 20, 2]
    loader = ours(subset, 4, device="cpu")
    assert_same_epoch(loader, stock(subset, 4))
    subset.dataset = DALIImageFolder(image_root, transform)
    assert_same_epoch(loader, stock(subset, 4))


def test_a_part_added_to_a_concat_data_set_reaches_the_next_epoch(image_root):
    dataset = data.ConcatDataset([DALIImageFolder(image_root, EXACT)])
    loader = ours(dataset, 5, sampler=[0, 1, 23], device="cpu")
    assert_same_epoch(loader, stock(dataset, 5, sampler=[0, 1, 23]))
    dataset.datasets.append(DALIImageFolder(image_root, EXACT))
    dataset.cumulative_sizes = dataset.cumsum(dataset.datasets)
    loader.sampler.extend([24, 47])
    assert_same_epoch(loader, stock(dataset, 5, sampler=[0, 1, 23, 24, 47]))


# ---- samples that change while an epoch runs


def _replace_entries(dataset):
    for at in range(0, len(dataset.samples), 3):
        dataset.samples[at] = (dataset.samples[-1 - at][0], 100 + at)


def _as_floats(dataset):
    """Give equal targets with another dtype."""
    dataset.samples[:] = [(path, float(target)) for path, target in dataset.samples]


def _as_bools(dataset):
    dataset.samples = [(path, bool(target)) for path, target in dataset.samples]


def _some_as_paths(dataset):
    dataset.samples[::2] = [(Path(path), target) for path, target in dataset.samples[::2]]


EDITS = [_replace_entries, _as_floats, _as_bools, _some_as_paths, _reverse_samples, _relabel, _swap_two]
NESTED = {
    "folder": lambda folder: folder,
    "Subset": lambda folder: data.Subset(folder, [5, 0, 1, -1, 3, 2, 9, 15, -7]),
    "ConcatDataset": lambda folder: data.ConcatDataset([data.Subset(folder, [0, 3, 1]), folder, folder]),
}


def _assert_same_batches(mine, theirs):
    assert_same_epoch(mine, theirs)
    assert [labels.dtype for _, labels in mine] == [labels.dtype for _, labels in theirs]


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("edit", EDITS)
def test_samples_edited_during_an_epoch_reach_batches_not_yet_started(image_root, edit, nested, workers):
    """Edit before the first batch and after the second one. With workers, batches already in flight may have either
    samples. torch's loader has no workers here, because workers hold copies of the data set."""
    folder = DALIImageFolder(image_root, EXACT)
    dataset = NESTED[nested](folder)
    loader, torchs = ours(dataset, 2, num_workers=workers, device="cpu"), stock(dataset, 2)
    iterator, wanted = iter(loader), iter(torchs)
    edit(folder)
    first = [next(iterator) for _ in range(2)]
    _assert_same_batches(first, [next(wanted) for _ in range(2)])
    count, before = len(loader), list(torchs)
    edit(folder)
    rest, after = list(iterator), list(wanted)
    under_way = loader._route.depth if workers else 0
    assert len(rest) == len(after) == count - 2
    if len(after) > under_way:
        _assert_same_batches(rest[under_way:], after[under_way:])
    rows = [[*zip(images, labels.tolist(), strict=True)] for images, labels in rest[:under_way]]
    for at, made in enumerate(rows):
        for row, (image, label) in enumerate(made):
            either = [(images[row], labels[row].item()) for images, labels in (before[2 + at], after[at])]
            assert any(torch.equal(image, one) and label == target for one, target in either)
    _assert_same_batches(list(loader), list(torchs))


def test_target_transform_without_workers_sees_each_step_of_the_loop(image_root):
    def targets(make):
        step, found = [0], []
        folder = DALIImageFolder(image_root, EXACT, target_transform=lambda target: 100 * step[0] + target)
        for _, labels in make(folder, 2):
            found += labels.tolist()
            step[0] += 1
        return found

    assert targets(ours) == targets(stock)


@pytest.mark.parametrize("targets", [list(range(24)), torch.arange(24), torch.full((24,), float("nan"))])
def test_batches_are_located_once_if_nothing_changes(image_root, targets, monkeypatch):
    folder = DALIImageFolder(image_root, EXACT)
    paths = [path for path, _ in folder.samples]
    located, original = [], DaliBatch._locate
    monkeypatch.setattr(DaliBatch, "_locate", lambda batch: (located.append(batch), original(batch)))
    assert len(list(ours(DALIImageList(paths, targets, EXACT), 4))) == len(located) == 6


def test_explain_reports_that_a_target_transform_keeps_batches_from_being_loaded_ahead(image_root):
    folder = DALIImageFolder(image_root, EXACT, target_transform=abs)
    line = "batches are not loaded ahead, because target_transform may depend on the training loop"
    assert line in ours(folder, 2).explain()
    assert line not in ours(folder, 2, num_workers=1).explain()


def _mirrored(image):
    return ImageOps.mirror(image)


def test_persistent_workers_use_a_new_transform_without_translation(image_root):
    """The order of the next epoch is also torch's."""
    dataset, options = DALIImageFolder(image_root, EXACT), dict(shuffle=True, num_workers=2, persistent_workers=True)
    loader = ours(dataset, 5, device="cpu", exact=True, **options)
    torch.manual_seed(0)
    list(loader)
    dataset.transform = T.Compose([_mirrored, EXACT])
    mine, theirs = list(loader), stock(dataset, 5, **options)
    torch.manual_seed(0)
    list(theirs)
    for batch, other in zip(mine, theirs, strict=True):
        assert all(map(torch.equal, batch, other))
