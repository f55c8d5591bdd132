"""Batches do not depend on the environment of the loader: working directory, warning filters, torch.compile."""

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
    """Two folders with equal file names and different images."""
    folders = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    for number, folder in enumerate(folders):
        for name in "abcdef":
            path = folder / "data" / "class" / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (ord(name), 100 * number, 7)).save(path)
    return folders


def test_relative_paths_refer_to_the_directory_at_the_start_of_the_epoch(two_folders, monkeypatch):
    """torch's workers behave in the same way. Headers of files with equal names in different directories are cached
    separately."""

    def epochs(loader):
        for folder in (*two_folders, two_folders[0]):
            monkeypatch.chdir(folder)
            for batch in loader:
                yield batch
                monkeypatch.chdir("/")

    monkeypatch.chdir(two_folders[0])
    dataset = ImageFolder("data", SMALL)
    mine = ours(dataset, 1, device="cpu", exact=True, num_workers=1)
    assert_same_epoch(epochs(mine), epochs(stock(dataset, 1, num_workers=1)))


def test_relative_paths_are_resolved_once_if_target_transform_changes_directory(two_folders, monkeypatch):
    monkeypatch.chdir(two_folders[1])
    dataset = ImageFolder("data", SMALL, target_transform=lambda target: os.chdir("/") or target)
    expected = [dataset.transform(read_rgb(path)) for path, _ in dataset.samples]
    batches = list(ours(dataset, 1, device="cpu", exact=True))
    assert all(torch.equal(images[0], image) for (images, _), image in zip(batches, expected, strict=True))


def test_training_loop_can_be_compiled(image_root, recwarn):
    def sums(loader):
        return [images.sum() + labels.sum() for images, labels in loader]

    gc.collect()
    recwarn.clear()  # files left open by other tests
    dataset = ImageFolder(image_root, T.Compose([T.CenterCrop(16), T.ToTensor()]))
    compiled = torch.compile(sums, backend="eager")(ours(dataset, 9, device="cpu", exact=True))
    assert compiled == sums(stock(dataset, 9))
    assert [str(warning.message) for warning in recwarn] == []


class AnyIndex(Plain):
    def __getitem__(self, index):
        number = index["index"] if isinstance(index, dict) else torch.as_tensor(index).reshape(-1)[0]
        return super().__getitem__(int(number))


@pytest.mark.parametrize("index", [lambda i: [i, 2], lambda i: {"index": i}, lambda i: torch.tensor([i, 2])])
def test_custom_data_set_can_have_indices_other_than_numbers(image_root, index):
    dataset = AnyIndex(ImageFolder(image_root), SMALL)
    sampler = [index(i) for i in (3, 1, 3, 20)]
    mine = ours(dataset, 2, sampler=sampler, device="cpu", exact=True)
    assert_same_epoch(mine, stock(dataset, 2, sampler=sampler))


class WithoutWarnings(Plain):
    """Returns another image if Pillow warns."""

    def __getitem__(self, i):
        with warnings.catch_warnings(record=self.records) as caught:
            warnings.simplefilter("always" if self.records else "error")
            try:
                image = read_rgb(self.paths[i])
            except UserWarning as warning:
                caught = [warning]
        return self.transform(Image.new("RGB", (20, 20)) if caught else image), len(caught or ())


@pytest.mark.parametrize("records", [False, True])
def test_custom_data_set_that_catches_warnings_equals_torchs(tmp_path, image_root, records):
    dataset = WithoutWarnings(ImageFolder(image_root), SMALL)
    dataset.records = records
    Image.new("P", (20, 20), 1).save(tmp_path / "warns.png", transparency=bytes(range(256)))
    dataset.paths[1] = str(tmp_path / "warns.png")
    mine = ours(dataset, 4, device="cpu", exact=True)
    assert_same_epoch(mine, stock(dataset, 4))
    assert "DALI route" in mine.explain()
