"""Batches do not depend on torch.set_default_device() or ``with torch.device(...)``; these are meant for models.

"meta" stands for any device other than the loader's. It holds no data, so no values could be copied from it.
"""

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


def equal_batches(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.device == other.device and torch.equal(one, other)
    if isinstance(one, dict):
        return all(equal_batches(one[key], other[key]) for key in one)
    return all(map(equal_batches, one, other)) if isinstance(one, (list, tuple)) else one == other


def batches_on(loader, device="cpu") -> list:
    """Set the default device after iter(), because iter() draws a number on it in torch."""
    torch.manual_seed(0)
    iterator = iter(loader)
    with torch.device(device):
        return list(iterator)


def assert_unaffected(dataset, **arguments):
    loader = ours(dataset, 5, device="cpu", num_workers=2, **arguments)
    for one, other in zip(batches_on(loader, "meta"), batches_on(loader), strict=True):
        assert equal_batches(one, other)


@pytest.mark.parametrize("chain", CHAINS)
def test_folders_ignore_the_default_device(image_root, chain):
    assert_unaffected(DALIImageFolder(image_root, CHAINS[chain]))


@pytest.mark.parametrize("chain", CHAINS)
def test_arrays_ignore_the_default_device(chain):
    assert_unaffected(DALIArrayDataset(pictures(40, 32, 32, 3), labels(), CHAINS[chain]))


def test_random_crops_of_arrays_ignore_the_default_device():
    chain = T.Compose([T.RandomCrop(32, padding=4, fill=9), T.RandomHorizontalFlip(), T.ToTensor()])
    assert_unaffected(DALIArrayDataset(pictures(40, 32, 32, 3), labels(), chain))


def test_several_views_ignore_the_default_device(image_root):
    chain = T.Compose([T.Resize((20, 20)), T.Lambda(two_views)])
    assert_unaffected(DALIImageFolder(image_root, chain), fallback="silent")


def two_views(image):
    to_tensor = T.ToTensor()
    return [to_tensor(image), to_tensor(image)]


@pytest.mark.parametrize("kind", [own_datasets.Plain, own_datasets.AsDict, own_datasets.UsesLoaders])
def test_custom_data_sets_ignore_the_default_device(image_root, kind):
    assert_unaffected(kind(ImageFolder(image_root)))


def test_labels_equal_torchs_under_another_default_device(image_root):
    """torch's workers start before the default device changes."""
    theirs = batches_on(stock(own_datasets.AsDict(ImageFolder(image_root)), 5, num_workers=2), "meta")
    mine = batches_on(ours(own_datasets.AsDict(ImageFolder(image_root)), 5, device="cpu", num_workers=2), "meta")
    assert [one["label"].tolist() for one in mine] == [one["label"].tolist() for one in theirs]


def test_target_tables_are_on_the_cpu():
    arrays = DALIArrayDataset(pictures(4, 8, 8, 3), [3, 1, 2, 0])
    with torch.device("meta"):
        assert target_table(arrays).tolist() == [3, 1, 2, 0]
        assert as_targets(np.eye(2)).tolist() == np.eye(2).tolist()


def test_a_state_taken_under_another_default_device_resumes(image_root):
    """A state includes the numbers of generators."""
    loader = ours(DALIImageFolder(image_root, CHAINS["plain"]), 5, device="cpu", num_workers=2)
    iterator = iter(loader)
    next(iterator)
    with torch.device("meta"):
        state = loader.state_dict()
    again = ours(DALIImageFolder(image_root, CHAINS["plain"]), 5, device="cpu", num_workers=2)
    again.load_state_dict(state)
    assert all(map(equal_batches, again, iterator))
