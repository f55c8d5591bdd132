"""What somebody has put in the place of torchvision's or torch's code is used: wrong data would be silent."""

import functools

import numpy as np
import programs
import pytest
import torch
import torchvision.transforms.functional as F
import torchvision.transforms.v2.functional as F2
from PIL import Image
from torch.utils import data
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import datasets
from torchvision import transforms as T
from torchvision.datasets import folder
from torchvision.transforms import v2

from contract.both import EXACT, assert_same_epoch, ours, said, stock
from dali_compat import DALIArrayDataset, DALIImageFolder, DataLoader
from dali_compat.translate.replaced import _functions


def _plus_100(original):
    def __getitem__(self, index):
        image, target = original(self, index)
        return image, target + 100

    return __getitem__


def _inverted(original):
    return lambda *args, **kwargs: 255 - original(*args, **kwargs)


def _turned(original):
    return lambda *args, **kwargs: original(*args, **kwargs).rotate(90)


V2_METHOD = "transform" if hasattr(v2.PILToTensor, "transform") else "_transform"  # of older torchvisions
V1 = T.Compose([T.CenterCrop(40), T.PILToTensor()])
V2 = v2.Compose([v2.CenterCrop(40), v2.PILToTensor()])
REPLACED = {
    "a data set's samples": (datasets.DatasetFolder, "__getitem__", _plus_100, V1),
    "what opens files": (folder, "pil_loader", _turned, V1),
    "a transform's method": (T.CenterCrop, "forward", _turned, V1),
    "a transform's __call__": (T.PILToTensor, "__call__", _inverted, V1),
    "a function of transforms": (F, "pil_to_tensor", _inverted, V1),
    "a method of v2": (v2.PILToTensor, V2_METHOD, _inverted, V2),
    "a function of v2": (F2, "pil_to_tensor", _inverted, V2),
}


@pytest.mark.parametrize("name", REPLACED)
def test_replaced_code_is_used(image_root, monkeypatch, name):
    """It is again torchvision's, afterwards."""
    place, attribute, replacement, transform = REPLACED[name]
    dataset = datasets.ImageFolder(image_root, transform)
    loader = DataLoader(dataset, 6, device="cpu", fallback="silent")
    before = list(loader)
    with monkeypatch.context() as patch:
        patch.setattr(place, attribute, replacement(getattr(place, attribute)))
        theirs = list(stock(dataset, 6))
        assert any(not torch.equal(*both) for both in zip(before[0], theirs[0], strict=True))
        assert_same_epoch(loader, theirs)
        assert any(words in loader.explain() for words in ("Python", "torchvision route", "is asked for each sample"))
    assert_same_epoch(loader, before)
    assert "Python" not in loader.explain() and "is asked" not in loader.explain()


class _Own(data.Dataset):
    def __init__(self, root):
        self.paths, self.transform = [path for path, _ in datasets.ImageFolder(root).samples], V1

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


def test_transforms_that_were_first_seen_in_a_data_set_of_ones_own(image_root, monkeypatch):
    """There something else stands in the place of their methods."""
    _functions.cache_clear()
    dataset = _Own(image_root)
    loader = DataLoader(dataset, 12, device="cpu", fallback="silent")
    list(loader)
    monkeypatch.setattr(F, "pil_to_tensor", _inverted(F.pil_to_tensor))
    assert_same_epoch(loader, list(stock(dataset, 12)))


class _OfItsOwn(T.RandomCrop):
    """No method but a constructor, which puts another function in a method's place."""

    def __init__(self, size):
        super().__init__(size)
        self.get_params = lambda image, size: (3, 5, *size)


V2_CROP = v2.CenterCrop(40)
setattr(V2_CROP, V2_METHOD, lambda image, params: F2.vertical_flip(F2.center_crop(image, [40, 40])))


@pytest.mark.parametrize("transform", [_OfItsOwn((40, 40)), V2_CROP], ids=["v1", "v2"])
def test_methods_of_one_object(image_root, transform):
    dataset = datasets.ImageFolder(image_root, T.Compose([transform, T.PILToTensor()]))
    loader = DataLoader(dataset, 6, device="cpu", fallback="silent")
    assert_same_epoch(loader, list(stock(dataset, 6)))
    assert "on the instance" in loader.explain()


@pytest.mark.filterwarnings("ignore:torch's own loader reads DALIArrayDataset")
def test_samples_in_memory(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (20, 9, 9, 3), dtype=np.uint8)
    dataset = DALIArrayDataset(images, list(range(20)), T.PILToTensor())
    loader = DataLoader(dataset, 6, device="cpu", fallback="silent")
    before = list(loader)
    monkeypatch.setattr(DALIArrayDataset, "__getitem__", _plus_100(DALIArrayDataset.__getitem__))
    theirs = list(stock(dataset, 6))
    assert not torch.equal(theirs[0][1], before[0][1])
    assert_same_epoch(loader, theirs)


BEFORE_IMPORT = """
import sys
import torchvision.datasets as datasets, torchvision.transforms as T
items = datasets.{kind}.__getitem__
datasets.{kind}.__getitem__ = lambda self, index: (items(self, index)[0], 77)
from dali_compat import DataLoader
if "{kind}" == "CIFAR10":
    import numpy
    dataset = object.__new__(datasets.CIFAR10)
    vars(dataset).update(data=numpy.zeros((6, 4, 4, 3), "uint8"), targets=[0] * 6)
    vars(dataset).update(transform=T.PILToTensor(), target_transform=None)
else:
    dataset = datasets.ImageFolder(sys.argv[1], T.Compose([T.CenterCrop(9), T.PILToTensor()]))
loader = DataLoader(dataset, 6, device="cpu", fallback="silent")
print(loader.explain().splitlines()[0], next(iter(loader))[1].tolist())
"""


@pytest.mark.parametrize(("kind", "route"), [("DatasetFolder", "DALI route"), ("CIFAR10", "torchvision route")])
def test_replaced_before_the_import(image_root, kind, route):
    """Of one that opens files, the replaced code says what each sample is."""
    told = said(programs.run(BEFORE_IMPORT.format(kind=kind), str(image_root)))
    assert told.startswith(route) and told.strip().endswith(str([77] * 6))


def _listed(batch, *, collate_fn_map=None):
    return list(batch)


def _sizes(batch, *, collate_fn_map=None):
    return [image.size for image in batch]


def _int32(batch, *, collate_fn_map=None):
    return torch.tensor(batch, dtype=torch.int32)


@pytest.mark.parametrize("kind, function", [(torch.Tensor, _listed), (Image.Image, _sizes), (int, _int32)])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_table_of_default_collate_that_was_changed(image_root, monkeypatch, kind, function, workers):
    transform = T.CenterCrop(40) if kind is Image.Image else EXACT
    datasets_ = [datasets.ImageFolder(image_root, transform)]
    if kind is not Image.Image:
        datasets_.append(DALIArrayDataset(np.zeros((8, 9, 9, 3), np.uint8), list(range(8)), T.PILToTensor()))
    monkeypatch.setitem(default_collate_fn_map, kind, function)
    for dataset in datasets_:
        for mine, theirs in zip(ours(dataset, 4, num_workers=workers, device="cpu"), stock(dataset, 4), strict=True):
            assert _plain(mine) == _plain(theirs)


def _plain(batch):
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.tolist()
    return [_plain(one) for one in batch] if isinstance(batch, list) else batch


def test_a_table_with_a_type_of_ones_own_is_no_matter(image_root, monkeypatch):
    """Batches are made as fast as ever."""
    monkeypatch.setitem(default_collate_fn_map, type("Own", (), {}), _listed)
    monkeypatch.setitem(default_collate_fn_map, type("Other", (), {}), functools.partial(_listed))  # has no __globals__
    loader = ours(DALIImageFolder(image_root, EXACT), 4, device="cpu")
    iterator = iter(loader)
    assert iterator._epoch.default_collate and next(iterator)[0].shape[0] == 4
    monkeypatch.setitem(default_collate_fn_map, int, _int32)
    assert not iter(loader)._epoch.default_collate
