"""Batches do not depend on what surrounds the loader: the working directory, warnings, compiled code."""

import gc
import os
import warnings

import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from contract.both import SMALL, assert_same_epoch, ours, stock
from contract.own_datasets import Plain, read_rgb


@pytest.fixture(scope="module")
def two_folders(tmp_path_factory):
    """The same names in both, and other images."""
    both = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    for number, folder in enumerate(both):
        for name in "abcdef":
            path = folder / "data" / "class" / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (ord(name), 100 * number, 7)).save(path)
    return both


@pytest.mark.parametrize("options", [{}, {"cache": 1 << 20}])
def test_relative_paths_when_the_directory_changes(two_folders, monkeypatch, options):
    """They are in the directory in which the epoch began, as for torch's workers. Nothing is kept of the same names
    in another one."""

    def epochs(loader):
        for folder in (*two_folders, two_folders[0]):
            monkeypatch.chdir(folder)
            for batch in loader:
                yield batch
                monkeypatch.chdir("/")

    monkeypatch.chdir(two_folders[0])
    dataset = ImageFolder("data", SMALL)
    mine = ours(dataset, 1, device="cpu", exact=True, num_workers=1, **options)
    assert_same_epoch(epochs(mine), epochs(stock(dataset, 1, num_workers=1)))


def test_relative_paths_that_are_looked_up_one_by_one(two_folders, monkeypatch):
    monkeypatch.chdir(two_folders[1])
    dataset = ImageFolder("data", SMALL, target_transform=lambda target: os.chdir("/") or target)
    expected = [dataset.transform(read_rgb(path)) for path, _ in dataset.samples]
    batches = list(ours(dataset, 1, device="cpu", exact=True))
    assert all(torch.equal(images[0], image) for (images, _), image in zip(batches, expected, strict=True))


def test_a_loop_that_torch_compiles(image_root, recwarn):
    def sums(loader):
        return [images.sum() + labels.sum() for images, labels in loader]

    gc.collect()
    recwarn.clear()  # of files that other tests have left open
    dataset = ImageFolder(image_root, T.Compose([T.CenterCrop(16), T.ToTensor()]))
    compiled = torch.compile(sums, backend="eager")(ours(dataset, 9, device="cpu", exact=True))
    assert compiled == sums(stock(dataset, 9))
    assert [str(warning.message) for warning in recwarn] == []


class OfAnything(Plain):
    def __getitem__(self, given):
        number = given["index"] if isinstance(given, dict) else torch.as_tensor(given).reshape(-1)[0]
        return super().__getitem__(int(number))


@pytest.mark.parametrize("index", [lambda i: [i, 2], lambda i: {"index": i}, lambda i: torch.tensor([i, 2])])
def test_an_own_data_set_with_other_indices_than_numbers(image_root, index):
    dataset = OfAnything(ImageFolder(image_root), SMALL)
    sampler = [index(i) for i in (3, 1, 3, 20)]
    mine = ours(dataset, 2, sampler=sampler, device="cpu", exact=True)
    assert_same_epoch(mine, stock(dataset, 2, sampler=sampler))


class WithoutWarnings(Plain):
    """Gives another image if Pillow warns of one."""

    def __getitem__(self, i):
        with warnings.catch_warnings(record=self.records) as heard:
            warnings.simplefilter("always" if self.records else "error")
            try:
                image = read_rgb(self.paths[i])
            except UserWarning as warning:
                heard = [warning]
        return self.transform(Image.new("RGB", (20, 20)) if heard else image), len(heard or ())


@pytest.mark.parametrize("records", [False, True])
def test_a_custom_data_set_that_catches_warnings(tmp_path, image_root, records):
    dataset = WithoutWarnings(ImageFolder(image_root), SMALL)
    dataset.records = records
    Image.new("P", (20, 20), 1).save(tmp_path / "warns.png", transparency=bytes(range(256)))
    dataset.paths[1] = str(tmp_path / "warns.png")
    mine = ours(dataset, 4, device="cpu", exact=True)
    assert_same_epoch(mine, stock(dataset, 4))
    assert "DALI route" in mine.explain()
