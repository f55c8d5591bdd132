"""Whether a data set's code says that it opens images: nothing of it runs."""

import functools

import pytest
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets.folder import default_loader, pil_loader

from dali_compat.lazy.reach import opens_images


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


class Of(data.Dataset):
    """Something of its own that is called."""

    def __init__(self, loader):
        self.loader = loader

    def __getitem__(self, i):
        return self.loader(i)


class Several(Of):
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


class Tokens(data.Dataset):
    def __init__(self):
        self.tokenizer, self.tables = Loads.__init__, {"a": size}

    def __getitem__(self, i):
        return self.tokenizer(self.tables["a"](i))


OPENS = {
    "default_loader": Of(default_loader),
    "pil_loader": Of(functools.partial(pil_loader)),
    "a function": Of(load),
    "a lambda": Of(lambda path: load(path)),
    "an object": Of(Loads()),
    "a method": Of(Loads().__call__),
    "of a list": Several([str, load]),
    "within Compose": Of(T.Compose([load, T.ToTensor()])),
    "a class": Static(),
    "a property": Property(),
}


@pytest.mark.parametrize("way", OPENS)
def test_opens(way):
    assert opens_images(OPENS[way])


def test_does_not():
    itself = Several([])
    itself.loader.append(itself.__getitem__)
    for dataset in (Tokens(), Of(size), Of(T.Compose([T.ToTensor()])), Of(None), itself, data.Subset([1], [0])):
        assert not opens_images(dataset)
