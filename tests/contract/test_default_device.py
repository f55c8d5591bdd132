"""Batches do not depend on torch.set_default_device(), nor on ``with torch.device(...)``: that is for models. "meta"
stands for any device that is not the loader's: it holds no data, so nothing can come back from there."""

import numpy as np
import pytest
import torch
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract import own_datasets
from contract.arrays import labels, pictures
from contract.both import ours, stock
from dali_compat import DALIArrayDataset, DALIImageFolder
from dali_compat.data.arrays import target_table
from dali_compat.data.image_table import as_targets

START = T.Resize((20, 20)), T.ToTensor()
CHAINS = {
    "plain": T.Compose(START),
    "erasing": T.Compose([*START, T.RandomErasing(p=1, value=0.3)]),
    "affine": T.Compose([*START, T.RandomAffine(20), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]),
    "jpeg": v2.Compose([v2.Resize((20, 20)), v2.JPEG(50), v2.ToImage()]),
}


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.device == other.device and torch.equal(one, other)
    if isinstance(one, dict):
        return all(same(one[key], other[key]) for key in one)
    return all(map(same, one, other)) if isinstance(one, (list, tuple)) else one == other


def batches(loader, device="cpu") -> list:
    """The device is the default from the first batch on: torch's iter() draws a number there."""
    torch.manual_seed(0)
    iterator = iter(loader)
    with torch.device(device):
        return list(iterator)


def assert_as_before(dataset, **arguments):
    loader = ours(dataset, 5, device="cpu", num_workers=2, **arguments)
    for one, other in zip(batches(loader, "meta"), batches(loader), strict=True):
        assert same(one, other)


@pytest.mark.parametrize("chain", CHAINS)
def test_folders(image_root, chain):
    assert_as_before(DALIImageFolder(image_root, CHAINS[chain]))


@pytest.mark.parametrize("chain", CHAINS)
def test_arrays(chain):
    assert_as_before(DALIArrayDataset(pictures(40, 32, 32, 3), labels(), CHAINS[chain]))


def test_windows_of_arrays():
    chain = T.Compose([T.RandomCrop(32, padding=4, fill=9), T.RandomHorizontalFlip(), T.ToTensor()])
    assert_as_before(DALIArrayDataset(pictures(40, 32, 32, 3), labels(), chain))


def test_several_views(image_root):
    chain = T.Compose([T.Resize((20, 20)), T.Lambda(two_views)])
    assert_as_before(DALIImageFolder(image_root, chain), fallback="silent")


def two_views(image):
    to_tensor = T.ToTensor()
    return [to_tensor(image), to_tensor(image)]


@pytest.mark.parametrize("kind", [own_datasets.Plain, own_datasets.AsDict, own_datasets.Loaded])
def test_own_data_sets(image_root, kind):
    assert_as_before(kind(ImageFolder(image_root)))


def test_as_torch(image_root):
    """Its workers have begun before."""
    theirs = batches(stock(own_datasets.AsDict(ImageFolder(image_root)), 5, num_workers=2), "meta")
    mine = batches(ours(own_datasets.AsDict(ImageFolder(image_root)), 5, device="cpu", num_workers=2), "meta")
    assert [one["label"].tolist() for one in mine] == [one["label"].tolist() for one in theirs]


def test_targets():
    arrays = DALIArrayDataset(pictures(4, 8, 8, 3), [3, 1, 2, 0])
    with torch.device("meta"):
        assert target_table(arrays).tolist() == [3, 1, 2, 0]
        assert as_targets(np.eye(2)).tolist() == np.eye(2).tolist()


def test_states(image_root):
    """They hold numbers of generators."""
    loader = ours(DALIImageFolder(image_root, CHAINS["plain"]), 5, device="cpu", num_workers=2)
    iterator = iter(loader)
    next(iterator)
    with torch.device("meta"):
        state = loader.state_dict()
    again = ours(DALIImageFolder(image_root, CHAINS["plain"]), 5, device="cpu", num_workers=2)
    again.load_state_dict(state)
    assert all(map(same, again, iterator))
