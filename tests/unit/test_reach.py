"""Static detection of data sets whose code opens images."""

import functools

import pytest
from PIL import Image
from torch.utils import data
from torchvision import datasets
from torchvision import transforms as T
from torchvision.datasets.folder import default_loader, pil_loader

from dali_compat.tracing import static_checks
from dali_compat.tracing.static_checks import may_open, reads_images, with_inner


def load(path):
    return Image.open(path).convert("RGB")


def size(path):
    return len(path)


class Loads:
    def __call__(self, path):
        return load(path)

    @staticmethod
    def static(path):
        return load(path)


class Calls(data.Dataset):
    """A data set that calls the given function."""

    def __init__(self, loader):
        self.loader = loader

    def __getitem__(self, i):
        return self.loader(i)


class CallsEach(Calls):
    def __getitem__(self, i):
        for one in self.loader:
            i = one(i)
        return i


class Static(data.Dataset):
    def __getitem__(self, i):
        return Loads.static(i)


class Property(data.Dataset):
    @property
    def image(self):
        return load("")

    def __getitem__(self, i):
        return self.image


class Cached(data.Dataset):
    @functools.lru_cache  # noqa: B019
    def load(self, path):
        return load(path)

    @functools.cached_property
    def first(self):
        return self.load("")

    def __getitem__(self, i):
        return self.first


def of_torchvision(kind):
    return kind.__new__(kind)


class Holds(data.Dataset):
    """A data set that holds one of torchvision's and calls its method."""

    def __init__(self):
        self.coco = of_torchvision(datasets.CocoDetection)

    def __getitem__(self, i):
        return self.coco._load_image(i)


class Tokens(data.Dataset):
    def __init__(self):
        self.tokenizer, self.tables = Loads.__init__, {"a": size}

    def __getitem__(self, i):
        return self.tokenizer(self.tables["a"](i))


OPENS = {
    "default_loader": Calls(default_loader),
    "pil_loader": Calls(functools.partial(pil_loader)),
    "a function": Calls(load),
    "a lambda": Calls(lambda path: load(path)),
    "an object": Calls(Loads()),
    "a method": Calls(Loads().__call__),
    "of a list": CallsEach([str, load]),
    "within Compose": Calls(T.Compose([load, T.ToTensor()])),
    "a class": Static(),
    "a property": Property(),
    "kept by functools": Cached(),
    "torchvision's, in a method": of_torchvision(datasets.CocoDetection),
    "torchvision's, in a base's method": of_torchvision(datasets.CocoCaptions),
    "torchvision's, of pairs": of_torchvision(datasets.CarlaStereo),
    "a method of torchvision's": Holds(),
}


@pytest.mark.parametrize("way", OPENS)
def test_data_set_that_opens_images_is_detected(way):
    dataset = OPENS[way]
    assert may_open(dataset) and any(map(reads_images, with_inner(dataset)))


def test_data_set_that_opens_no_images_is_not_detected():
    itself = CallsEach([])
    itself.loader.append(itself.__getitem__)
    for dataset in (
        Tokens(),
        Calls(size),
        Calls(T.Compose([T.ToTensor()])),
        Calls(None),
        itself,
        data.Subset([1], [0]),
    ):
        assert not may_open(dataset) and not reads_images(dataset)


def test_installed_package_that_can_open_images_is_not_user_code(monkeypatch):
    """For example, a tokenizer."""
    dataset = Calls(Loads())
    monkeypatch.setattr(static_checks, "is_installed", lambda path: path == load.__code__.co_filename)
    assert may_open(dataset) and not reads_images(dataset)
