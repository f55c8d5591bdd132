"""Data sets that change after a loader was made: the next epoch follows, as torch's does."""

import copy

import pytest
import torch
from torch.utils import data
from torchvision import datasets
from torchvision import transforms as T

from contract.both import EXACT, EXACT_FLIPPED, assert_same_epoch, ours, stock
from dali_compat import DALIImageFolder, DataLoader


def _set_transform(dataset):
    dataset.transform = EXACT_FLIPPED


def _extend_transform(dataset):
    dataset.transform = copy.deepcopy(EXACT)
    dataset.transform.transforms.insert(0, T.RandomHorizontalFlip(1.0))


def _edit_transform(dataset):
    dataset.transform = T.Compose([T.CenterCrop(40), T.PILToTensor()])
    dataset.transform.transforms[0].size = (24, 32)


def _target_transform(dataset):
    dataset.target_transform = lambda target: target * 2


def _samples(dataset):
    dataset.samples = dataset.samples[10:16]


def _edit_samples(dataset):
    dataset.samples.reverse()


def _relabel(dataset):
    dataset.samples[:] = [(path, 7) for path, _ in dataset.samples]


def _float_labels(dataset):
    dataset.samples[:] = [(path, float(label)) for path, label in dataset.samples]


def _swap_two(dataset):
    dataset.samples[0], dataset.samples[1] = dataset.samples[1], dataset.samples[0]


CHANGES = [
    _set_transform,
    _extend_transform,
    _edit_transform,
    _target_transform,
    _samples,
    _edit_samples,
    _relabel,
    _float_labels,
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


@pytest.mark.parametrize("change", CHANGES)
def test_changes_before_the_first_epoch(image_root, change):
    """timm sets dataset.transform after it has made the loader's arguments."""
    dataset = DALIImageFolder(image_root)
    loader = DataLoader(dataset, 4, sampler=range(6), fallback="silent", device="cpu")
    dataset.transform = EXACT
    change(dataset)
    assert_same_epoch(loader, stock(dataset, 4, sampler=range(6)))
    assert loader.explain().startswith("DALI route")


@pytest.mark.parametrize("exact", [True, False])
def test_another_fidelity_reaches_the_next_epoch(image_root, exact):
    """Of the same transform, which the fastest kernels resize otherwise than torchvision."""
    transform = T.Compose([T.Resize((33, 47)), T.PILToTensor()])
    loaders = [
        ours(DALIImageFolder(image_root, transform), 24, exact=first, device="cpu") for first in (exact, not exact)
    ]
    list(loaders[1])
    loaders[1].exact = exact
    (wanted, _), (found, _) = (next(iter(loader)) for loader in loaders)
    assert torch.equal(wanted, found)
    assert torch.equal(found, next(iter(stock(loaders[1].dataset, 24)))[0]) == exact


def test_one_part_of_several_changes(image_root):
    """The distinct transforms stay the same two; which part has which does not."""
    parts = [DALIImageFolder(image_root, transform) for transform in (EXACT, EXACT_FLIPPED, EXACT)]
    dataset = data.ConcatDataset(parts)
    loader = ours(dataset, 24, device="cpu")
    assert_same_epoch(loader, stock(dataset, 24))
    parts[2].transform = EXACT_FLIPPED
    assert_same_epoch(loader, stock(dataset, 24))


@pytest.mark.parametrize("transform", [EXACT, EXACT_FLIPPED])
def test_a_part_is_replaced(image_root, transform):
    subset = data.Subset(DALIImageFolder(image_root, EXACT), range(6))
    loader = ours(subset, 4, device="cpu")
    assert_same_epoch(loader, stock(subset, 4))
    subset.dataset = DALIImageFolder(image_root, transform)
    subset.indices = [3, 20, 2]
    loader = ours(subset, 4, device="cpu")
    assert_same_epoch(loader, stock(subset, 4))
    subset.dataset = DALIImageFolder(image_root, transform)
    assert_same_epoch(loader, stock(subset, 4))


def test_a_part_is_added(image_root):
    dataset = data.ConcatDataset([DALIImageFolder(image_root, EXACT)])
    loader = ours(dataset, 5, sampler=[0, 1, 23], device="cpu")
    assert_same_epoch(loader, stock(dataset, 5, sampler=[0, 1, 23]))
    dataset.datasets.append(DALIImageFolder(image_root, EXACT))
    dataset.cumulative_sizes = dataset.cumsum(dataset.datasets)
    loader.sampler.extend([24, 47])
    assert_same_epoch(loader, stock(dataset, 5, sampler=[0, 1, 23, 24, 47]))
