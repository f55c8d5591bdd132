"""DALIImageFolder compared with torchvision's ImageFolder, in samples, batches and later changes."""

import copy
import io
import os
import pickle

import pytest
import torch
import torchvision
from helpers import make_folder
from PIL import Image
from torchvision import datasets, tv_tensors
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.transforms import v2

from contract.both import (
    EXACT,
    RANDOM,
    assert_same_epoch,
    assert_same_pixels,
    error_of,
    ours,
    outlines,
    pixels,
    stock,
)
from dali_compat import DALIImageFolder, DataLoader


@pytest.mark.parametrize("arguments", [{}, {"loader": pil_loader}, {"is_valid_file": lambda path: path.endswith("g")}])
def test_attributes_are_torchvisions(image_root, arguments):
    mine, theirs = (kind(image_root, EXACT, **arguments) for kind in (DALIImageFolder, datasets.ImageFolder))
    for name in ("root", "classes", "class_to_idx", "samples", "imgs", "targets", "extensions", "loader", "transform"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert mine.imgs is mine.samples and len(mine) == len(theirs) == 24
    assert set(vars(mine)) - set(vars(theirs)) == {"return_index"}
    assert repr(mine) == repr(theirs).replace("ImageFolder", "DALIImageFolder")


@pytest.mark.parametrize("index", [0, 2, 23, -1])
@pytest.mark.parametrize("transform", [None, EXACT])
def test_samples_are_torchvisions(image_root, transform, index):
    def target_transform(target):
        return f"class {target}"

    mine, theirs = (
        kind(image_root, transform, target_transform)[index] for kind in (DALIImageFolder, datasets.ImageFolder)
    )
    assert mine[1] == theirs[1]
    if transform is None:
        assert isinstance(mine[0], Image.Image) and mine[0].tobytes() == theirs[0].tobytes()
    else:
        assert torch.equal(mine[0], theirs[0])


def test_random_samples_follow_torchs_seed(image_root):
    draws = []
    for kind in (DALIImageFolder, datasets.ImageFolder):
        torch.manual_seed(0)
        draws.append(torch.stack([kind(image_root, RANDOM)[i][0] for i in range(4)]))
    assert torch.equal(*draws)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_torchs_loader_are_the_same(image_root, num_workers):
    """The HF Trainer and Accelerate use this combination."""
    mine, theirs = (
        stock(kind(image_root, EXACT), 5, num_workers=num_workers) for kind in (DALIImageFolder, datasets.ImageFolder)
    )
    assert_same_pixels(pixels(mine), pixels(theirs))
    assert outlines(mine) == outlines(theirs)


def _saved_and_loaded(dataset):
    file = io.BytesIO()
    torch.save(dataset, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d)), _saved_and_loaded]
)
def test_copies_give_the_same_batches(exact_folder, copied):
    list(ours(exact_folder, 5))
    copy_ = copied(exact_folder)
    assert type(copy_) is DALIImageFolder and copy_.return_index and copy_.samples == exact_folder.samples
    assert_same_pixels(pixels(ours(copy_, 5, device="cpu")), pixels(stock(exact_folder, 5)))


def test_return_index_adds_the_index_to_samples_and_batches(image_root):
    dataset = DALIImageFolder(image_root, EXACT, return_index=True)
    image, target, index = dataset[5]
    assert (target, index) == (0, 5) and torch.equal(image, datasets.ImageFolder(image_root, EXACT)[5][0])
    _, labels, indices = next(iter(ours(dataset, 4, sampler=[9, 0, -1, 3])))
    assert labels.tolist() == [1, 0, 2, 0] and indices.tolist() == [9, 0, -1, 3] and indices.dtype == torch.int64
    dataset.return_index = False
    assert len(dataset[5]) == len(next(iter(ours(dataset, 4)))) == 2


# ---- subclasses


class OverridesGetitem(datasets.ImageFolder):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image * 1, target + 100


class OverridesGetitems(datasets.ImageFolder):
    def __getitems__(self, indices):
        return [(self[i][0], 50) for i in indices]


class OverridesFindClasses(datasets.ImageFolder):
    def find_classes(self, directory):
        return ["class_c", "class_a"], {"class_c": 0, "class_a": 1}


class OverridesMakeDataset(datasets.ImageFolder):
    @staticmethod
    def make_dataset(directory, class_to_idx, extensions=None, is_valid_file=None, allow_empty=False):
        return datasets.ImageFolder.make_dataset(directory, class_to_idx, extensions, is_valid_file, allow_empty)[::-2]


class OverridesLen(DALIImageFolder):
    def __len__(self):
        return 7


def test_a_subclass_that_overrides_getitem_falls_back(image_root):
    dataset = OverridesGetitem(image_root, EXACT)
    loader = DataLoader(dataset, 5, fallback="silent")
    assert "OverridesGetitem" in loader.explain() and "__getitem" in loader.explain()
    assert_same_epoch(loader, stock(dataset, 5))


def test_a_subclass_that_overrides_getitems_is_traced(image_root):
    dataset = OverridesGetitems(image_root, EXACT)
    loader = ours(dataset, 5, device="cpu")
    assert loader.explain().startswith("DALI route")
    assert_same_epoch(loader, stock(dataset, 5))


@pytest.mark.parametrize("kind", [OverridesFindClasses, OverridesMakeDataset, OverridesLen])
def test_subclasses_that_override_classes_samples_or_length_are_respected(image_root, kind):
    dataset = kind(image_root, EXACT)
    assert len(dataset) < 24
    assert_same_epoch(ours(dataset, 5, device="cpu"), stock(dataset, 5))


def test_a_dataset_folder_gives_torchs_batches(image_root):
    dataset = datasets.DatasetFolder(image_root, pil_loader, extensions=(".png",), transform=EXACT, allow_empty=True)
    assert len(dataset) == 1
    assert_same_epoch(ours(dataset, device="cpu"), stock(dataset))


def load_gray(path):
    return default_loader(path).point(lambda value: value).convert("L")


def test_a_custom_loader_function_falls_back(image_root):
    dataset = DALIImageFolder(image_root, EXACT, loader=load_gray)
    loader = DataLoader(dataset, 5, fallback="silent")
    assert "loader" in loader.explain() and next(iter(loader))[0].shape[1] == 1
    assert_same_epoch(loader, stock(dataset, 5))
    dataset.loader = default_loader
    assert loader.explain().startswith("DALI route")
    assert next(iter(loader))[0].shape[1] == 3


class HalvesPixels(datasets.ImageFolder):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image // 2, label


def test_explain_names_the_line_that_computes_with_pixels(image_root):
    loader = DataLoader(HalvesPixels(image_root, EXACT), 5, fallback="silent")
    where = f"test_dataset.py:{HalvesPixels.__getitem__.__code__.co_firstlineno + 2}"
    assert "overrides __getitem__, and uses the tensor's floor_divide (" in loader.explain()
    assert f"{where}); do this on the batch, in the training loop" in loader.explain()
    assert_same_epoch(loader, stock(HalvesPixels(image_root, EXACT), 5))


def test_a_folder_wrapped_for_transforms_v2_is_deferred(image_root):
    """torchvision makes the class at run time, with another __getitem__."""
    results = []
    for kind in (DALIImageFolder, datasets.ImageFolder):
        folder = kind(image_root, v2.Compose([v2.ToImage(), v2.CenterCrop(40)]))
        dataset = datasets.wrap_dataset_for_transforms_v2(folder)
        assert type(dataset[0][0]) is tv_tensors.Image
        results.append(ours(dataset, 5, device="cpu", exact=True))
        assert "its images are deferred" in results[-1].explain()
        assert_same_epoch(results[-1], stock(dataset, 5))
    assert_same_epoch(*results)


def test_another_image_backend_falls_back(image_root, monkeypatch):
    """torchvision's default loader uses the backend; pil_loader does not."""
    loader = DataLoader(DALIImageFolder(image_root, EXACT), fallback="silent", device="cpu")
    assert loader.explain().startswith("DALI route")
    monkeypatch.setattr(torchvision, "_image_backend", "accimage")
    assert "torchvision's image backend is 'accimage'" in loader.explain()
    loader.dataset.loader = pil_loader
    assert loader.explain().startswith("DALI route")


# ---- files and errors of the constructor


def test_unusual_file_names_are_read(tmp_path):
    root = make_folder(tmp_path / "Bilder ümläut 画像 [x]*?", classes=1, per_class=5, special=False)
    names = ["ü.jpg", "with space.jpg", "a'\"$(b).jpg", "x" * 200 + ".JPG", os.fsdecode(b"not utf-8 \xff.jpeg")]
    for path, name in zip(sorted((root / "class_a").iterdir()), names, strict=True):
        path.rename(path.with_name(name))
    dataset = DALIImageFolder(root, EXACT)
    assert len(dataset) == 5
    assert_same_epoch(ours(dataset, 2, device="cpu"), stock(dataset, 2))


@pytest.mark.parametrize("convert", [str, os.fsencode, lambda path: __import__("pathlib").Path(path)])
def test_paths_of_type_str_bytes_and_path_are_read(image_root, convert):
    dataset = DALIImageFolder(image_root, EXACT)
    dataset.samples = [(convert(path), target) for path, target in dataset.samples]
    assert_same_epoch(ours(dataset, 5, device="cpu"), stock(dataset, 5))


def test_a_relative_root_is_read(image_root, monkeypatch):
    monkeypatch.chdir(image_root.parent)
    dataset = DALIImageFolder(image_root.name, EXACT)
    assert_same_epoch(ours(dataset, 5, device="cpu"), stock(dataset, 5))


def _no_classes(tmp_path):
    return (tmp_path,), {}


def _missing_root(tmp_path):
    return (tmp_path / "missing",), {}


def _empty_class(tmp_path):
    (tmp_path / "empty").mkdir()
    return (tmp_path,), {}


def _no_images(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x")
    return (tmp_path,), {}


def _root_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    return (tmp_path / "file",), {}


@pytest.mark.parametrize("case", [_no_classes, _missing_root, _empty_class, _no_images, _root_is_a_file])
def test_errors_of_the_constructor_are_torchvisions(tmp_path, case):
    arguments, options = case(tmp_path)
    mine, theirs = (error_of(kind, *arguments, **options) for kind in (DALIImageFolder, datasets.ImageFolder))
    assert type(mine) is type(theirs) and str(mine) == str(theirs)


@pytest.mark.parametrize(
    "arguments", [dict(), dict(root=3), dict(root="x", no_such=1), dict(root=None), dict(transform=EXACT)]
)
def test_errors_of_wrong_arguments_are_torchvisions(arguments):
    mine, theirs = (error_of(kind, **arguments) for kind in (DALIImageFolder, datasets.ImageFolder))
    assert type(mine) is type(theirs)
    assert str(mine).replace("DALIImageFolder", "ImageFolder") == str(theirs)


def test_empty_classes_are_accepted_with_allow_empty(own_root):
    (own_root / "class_c").mkdir()
    dataset = DALIImageFolder(own_root, EXACT, allow_empty=True)
    assert dataset.classes == ["class_a", "class_b", "class_c"]
    assert_same_epoch(ours(dataset, 3, device="cpu"), stock(dataset, 3))
