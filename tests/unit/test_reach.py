"""Static detection of data sets whose code opens images, and of changes in a data set."""

import functools
import gc
import timeit
import weakref

import pytest
from PIL import Image
from torch.utils import data
from torchvision import datasets
from torchvision import transforms as T
from torchvision.datasets.folder import default_loader, pil_loader

from dali_compat.tracing import patches, static_checks
from dali_compat.tracing.static_checks import Signature, may_open, reads_images, with_inner


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


class Holder(data.Dataset):
    def __init__(self, transform):
        self.transform, self.number = transform, 0

    def __getitem__(self, i):
        return change(self.transform(i))


def change(value):
    return value


class Slots:
    __slots__ = ("inner",)

    def __call__(self, value):
        return value


def add_to_a_nested_compose(dataset):
    dataset.transform.transforms[0].transforms.append(T.ToTensor())


def replace_the_function_of_a_lambda(dataset):
    dataset.transform.transforms[1].lambd = lambda x: x


def replace_a_value_in_a_dictionary(dataset):
    dataset.others["a"] = [load]


def replace_an_argument_of_a_partial(dataset):
    dataset.other = functools.partial(load, path=Slots())


def replace_an_object_without_weak_references(dataset):
    dataset.slots = Slots()


def replace_an_inner_data_set(dataset):
    dataset.inner = Holder(T.ToTensor())


CHANGES = [
    add_to_a_nested_compose,
    replace_the_function_of_a_lambda,
    replace_a_value_in_a_dictionary,
    replace_an_argument_of_a_partial,
    replace_an_object_without_weak_references,
    replace_an_inner_data_set,
]


def changeable():
    dataset = Holder(T.Compose([T.Compose([T.Resize(3)]), T.Lambda(str)]))
    dataset.others, dataset.other, dataset.slots = {"a": [size]}, functools.partial(load, path=Slots()), Slots()
    dataset.inner, dataset.itself = Holder(T.ToTensor()), []
    dataset.itself.append(dataset.itself)
    return dataset


@pytest.mark.parametrize("modify", CHANGES, ids=lambda function: function.__name__)
def test_signature_when_an_object_is_replaced_differs(modify):
    dataset = changeable()
    signature = Signature(dataset, data.default_collate)
    assert signature.holds(dataset, data.default_collate)
    modify(dataset)
    assert not signature.holds(dataset, data.default_collate)


def test_signature_when_a_named_function_is_replaced_differs(monkeypatch):
    dataset = changeable()
    signature = Signature(dataset, None)
    monkeypatch.setitem(globals(), "change", lambda value: -value)
    assert not signature.holds(dataset, None)


def test_signature_when_collate_fn_is_replaced_differs():
    dataset = changeable()
    signature = Signature(dataset, dataset.__getitem__)
    assert signature.holds(dataset, dataset.__getitem__)  # another object, but the same method
    assert not signature.holds(dataset, changeable().__getitem__)


def test_signature_when_numbers_change_or_functions_are_replaced_for_tracing_holds():
    dataset = changeable()
    signature = Signature(dataset, data.default_collate)
    patches.install()
    dataset.number += 1
    assert signature.holds(dataset, data.default_collate)


def test_signature_when_an_object_reuses_an_address_differs():
    dataset = Holder(Loads())
    signature, address = Signature(dataset, None), id(dataset.transform)
    dataset.transform = None
    made = []
    while len(made) < 20000 and (not made or id(made[-1]) != address):
        made.append(Loads())
    dataset.transform = made[-1]
    assert not signature.holds(dataset, None)


def test_signature_does_not_keep_the_data_set():
    dataset = changeable()
    dataset.transform.transforms.append(dataset.__getitem__)
    signature, gone = Signature(dataset, dataset.__getitem__), weakref.ref(dataset)
    del dataset
    gc.collect()
    assert gone() is None and signature


def test_signature_takes_less_than_two_milliseconds():
    dataset = changeable()
    dataset.paths = [("path", 1)] * 1000
    signature = Signature(dataset, data.default_collate)
    assert min(timeit.repeat(lambda: signature.holds(dataset, data.default_collate), number=1, repeat=20)) < 2e-3
