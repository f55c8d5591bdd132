"""What somebody has put in the place of torchvision's, torch's or Pillow's code is used: wrong data would be silent."""

import builtins
import functools
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import programs
import pytest
import torch
import torchvision.transforms.functional as F
import torchvision.transforms.v2.functional as F2
from parity.catalogue import TRANSFORMS
from PIL import Image, ImageFile, JpegImagePlugin
from torch import nn
from torch.nn.modules import module
from torch.utils import data
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import datasets
from torchvision import transforms as T
from torchvision.datasets import folder
from torchvision.transforms import _functional_pil, v2

from contract.both import EXACT, assert_same_epoch, ours, said, stock
from dali_compat import (
    DALIArrayDataset,
    DALIHuggingFace,
    DALIImageFolder,
    DALIImageList,
    DALIImageTable,
    DALIRecordIO,
    DataLoader,
)
from dali_compat.archives.pack import pack
from dali_compat.inspection.replaced import _functions, function_of, looked_at


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
        assert any(words in loader.explain() for words in ("Python", "torchvision route", "its images are deferred"))
    assert_same_epoch(loader, before)
    assert "Python" not in loader.explain() and "its images are deferred" not in loader.explain()


# ---- Pillow's


def _filled(original):
    """A reader's load(), which makes all images alike."""

    def load(self):
        pixels = original(self)
        self.im.paste(self.size[0] % 256, (0, 0, *self.size))
        return pixels

    return load


def _reads(name, accepts):
    """Gives Pillow another reader, which comes first."""

    def give(patch):
        kind = type("Own", (JpegImagePlugin.JpegImageFile,), {"load": _filled(ImageFile.ImageFile.load)})
        patch.setattr(Image, "ID", [name, *Image.ID])
        patch.setattr(Image, "OPEN", Image.OPEN | {name: (kind, accepts)})

    return give


def _replaces(owner, name, make):
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


PILLOWS = {
    "open": _replaces(Image, "open", _turned),
    "open, partial": _replaces(Image, "open", lambda original: functools.partial(_turned(original))),
    "convert": _replaces(Image.Image, "convert", _turned),
    "crop": _replaces(Image.Image, "crop", _turned),
    "load": _replaces(ImageFile.ImageFile, "load", _filled),
    "load of JPEGs": _replaces(JpegImagePlugin.JpegImageFile, "load", _filled),
    "open()": _replaces(builtins, "open", lambda original: lambda path, *how: original(FIRST.get(path, path), *how)),
    "crop in torchvision": _replaces(_functional_pil, "crop", _turned),
    "Image in torchvision": lambda patch: patch.setattr(folder, "Image", SimpleNamespace(open=_turned(Image.open))),
    "another reader": _reads("OWN", lambda head: head[:2] == b"\xff\xd8"),
    "a reader of all": _reads("OWN", None),
    "a reader of JPEGs": _reads("JPEG", JpegImagePlugin._accept),
}
FIRST: dict[str, str] = {}  # files that open() reads, by their paths


@pytest.mark.parametrize("name", PILLOWS)
def test_replaced_code_of_pillows_is_used(image_root, monkeypatch, name):
    """Before the loader was made, after, and no longer when it is Pillow's again."""
    dataset = datasets.ImageFolder(image_root, V1)
    FIRST.update({path: dataset.samples[0][0] for path, _ in dataset.samples})
    loader = DataLoader(dataset, 12, device="cpu", fallback="silent")
    before = list(loader)
    with monkeypatch.context() as patch:
        PILLOWS[name](patch)
        theirs = list(stock(dataset, 12))
        assert any(not torch.equal(*both) for both in zip(before[0], theirs[0], strict=True))
        assert_same_epoch(loader, theirs)
        assert_same_epoch(DataLoader(dataset, 12, device="cpu", fallback="silent"), theirs)
        if name == "Image in torchvision":  # torchvision's loader runs, and opens images of Pillow's
            ours(dataset, 12, device="cpu")
        else:
            with pytest.raises(RuntimeError, match="torchvision does the work"):
                ours(dataset, 12, device="cpu")
    assert_same_epoch(loader, before)
    assert loader.explain().startswith("DALI route")


def test_readers_of_other_files_are_no_matter(image_root, monkeypatch):
    """As pillow-heif's and the like; nor are methods that somebody adds, as fastai does."""
    for accepts in (lambda head: head[4:8] == b"ftyp", lambda head: "not installed"):
        _reads(f"OWN{id(accepts)}", accepts)(monkeypatch)
    monkeypatch.setattr(Image.Image, "to_thumb", _filled, raising=False)
    assert len(ours(datasets.ImageFolder(image_root, V1), 12, device="cpu")) == 2


def _food(root):
    made = object.__new__(datasets.Food101)
    paths, labels = zip(*datasets.ImageFolder(root).samples, strict=True)
    vars(made).update(_image_files=list(map(Path, paths)), _labels=list(labels), target_transform=None)
    vars(made).update(transform=V1, loader=folder.default_loader)
    return made


def _listed_in_a_table(root):
    pd = pytest.importorskip("pandas")
    return DALIImageTable(pd.DataFrame(datasets.ImageFolder(root).samples, columns=["file", "label"]), transform=V1)


def _of_hugging_faces(root):
    hf = pytest.importorskip("datasets")
    table = {"image": [path for path, _ in datasets.ImageFolder(root).samples]}
    made = hf.Dataset.from_dict(table).cast_column("image", hf.Image())
    return DALIHuggingFace(made, target=None, transform=V1)


def _rows(root):
    """Of Hugging Face's, with a transform of the script's."""
    dataset = _of_hugging_faces(root).dataset
    return dataset.with_transform(lambda rows: {"image": [V1(one.convert("RGB")) for one in rows["image"]]})


def _packed(root):
    pack(root, root.parent / "packed.rec")
    return DALIRecordIO(str(root.parent / "packed.rec"), V1)


def _of_timms(root):
    return pytest.importorskip("timm.data").ImageDataset(str(root), transform=V1)


READERS = {
    "DALIImageFolder": lambda root: DALIImageFolder(root, V1),
    "DALIImageList": lambda root: DALIImageList([path for path, _ in datasets.ImageFolder(root).samples], None, V1),
    "DALIImageTable": _listed_in_a_table,
    "Food101": _food,
    "DALIHuggingFace": _of_hugging_faces,
    "DALIRecordIO": _packed,
    "timm": _of_timms,
    "Subset": lambda root: data.Subset(datasets.ImageFolder(root, V1), range(6)),
    "own": lambda root: _Own(root),
}


@pytest.mark.filterwarnings("ignore:torch's own loader reads")
@pytest.mark.parametrize("kind", READERS)
def test_replaced_open_is_used_by_every_reader(own_root, monkeypatch, kind):
    dataset = READERS[kind](own_root)
    loader = DataLoader(dataset, 8, device="cpu", fallback="silent")
    before = list(loader)
    with monkeypatch.context() as patch:
        _replaces(Image, "open", _turned)(patch)
        theirs = list(stock(dataset, 8))
        assert not torch.equal(before[0][0], theirs[0][0])
        assert_same_epoch(loader, theirs)
    assert_same_epoch(loader, before)


def _labelled(original):
    return lambda self, index: (original(self, index)[0], 77)


def test_code_that_was_replaced_in_timm(own_root, monkeypatch):
    dataset = _of_timms(own_root)
    loader = DataLoader(dataset, 8, device="cpu", fallback="silent")
    for kind in (type(dataset), type(dataset.reader)):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "__getitem__", _labelled(kind.__getitem__))
            assert next(iter(loader))[1].tolist() == [77] * 8
    assert loader.explain().startswith("DALI route")


def test_what_decodes_for_hugging_faces(own_root, monkeypatch):
    dataset = _rows(own_root)
    loader = DataLoader(dataset, 8, device="cpu", fallback="silent")
    before = next(iter(loader))["image"]
    feature = type(dataset.features["image"])
    monkeypatch.setattr(feature, "decode_example", _turned(feature.decode_example))
    after = next(iter(loader))["image"]
    assert not torch.equal(before, after) and torch.equal(after, next(iter(stock(dataset, 8)))["image"])


def test_all_that_transforms_call_of_pillow_is_looked_at(image_root):
    """But for what tells an image's size and mode."""
    chains = [entry.made(version) for entry in TRANSFORMS for version in entry.versions()]
    called = set()

    def profile(frame, event, argument):
        of, by = (str(one.f_globals.get("__name__")) for one in (frame, frame.f_back))
        is_entered = of.startswith("PIL.") and not by.startswith(("PIL.", "dali_compat."))
        if event == "call" and is_entered and "self" in frame.f_code.co_varnames:
            called.add(frame.f_code)

    sys.setprofile(profile)
    try:
        for chain in chains:
            chain(folder.pil_loader(next(image_root.glob("*/*.jpg"))))
    finally:
        sys.setprofile(None)
    watched = {getattr(function_of(vars(owner)[name]), "__code__", None) for owner, name in looked_at(opens=True)}
    others = {code.co_name for code in called - watched}
    assert others <= {"mode", "size", "width", "height", "__array_interface__", "count", "sum", "mean"} and called


# ---- hooks


def _turned_output(module, inputs, output):
    return output.flip(-1) if isinstance(output, torch.Tensor) else output.transpose(Image.Transpose.ROTATE_180)


def _turned_input(module, inputs):
    return tuple(_turned_output(module, (), one) for one in inputs)


class _Preset(nn.Module):
    def __init__(self, *transforms):
        super().__init__()
        self.transforms = nn.Sequential(*transforms)

    def forward(self, image):
        return self.transforms(image)


HOOKED = {
    "v1": V1,
    "v2": V2,
    "Sequential": nn.Sequential(v2.CenterCrop(40), v2.PILToTensor()),
    "own": _Preset(v2.CenterCrop(40), v2.PILToTensor()),
    "within a function": lambda image: HOOKED["own"](image),
}


@pytest.mark.alike
@pytest.mark.parametrize("hook", ["forward_hook", "forward_pre_hook"])
@pytest.mark.parametrize("where", ["all modules", "one object"])
@pytest.mark.parametrize("name", HOOKED)
def test_forward_hooks_are_called(image_root, name, where, hook):
    """Those that come when the loader is there already, too."""
    transform = HOOKED[name]
    for dataset in (datasets.ImageFolder(image_root, transform), _Own(image_root, transform)):
        loader = DataLoader(dataset, 12, device="cpu", fallback="silent")
        before = list(loader)
        one = transform.transforms[0] if name == "v1" else HOOKED["own"] if name == "within a function" else transform
        place, prefix = (module, "register_module_") if where == "all modules" else (one, "register_")
        handle = getattr(place, prefix + hook)(_turned_output if hook == "forward_hook" else _turned_input)
        try:
            theirs = list(stock(dataset, 12))
            assert not torch.equal(before[0][0], theirs[0][0])
            assert_same_epoch(loader, theirs)
        finally:
            handle.remove()
        assert_same_epoch(loader, before)


class _Own(data.Dataset):
    def __init__(self, root, transform=V1):
        self.paths, self.transform = [path for path, _ in datasets.ImageFolder(root).samples], transform

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
