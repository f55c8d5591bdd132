"""Replaced code of torchvision, torch and Pillow is used; ignoring it would silently give wrong data."""

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
from PIL import Image, ImageFile, ImageOps, JpegImagePlugin
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
from dali_compat.inspection.replaced import _functions, checked_functions, function_of


def _add_100_to_targets(original):
    def __getitem__(self, index):
        image, target = original(self, index)
        return image, target + 100

    return __getitem__


def _invert(original):
    return lambda *args, **kwargs: 255 - original(*args, **kwargs)


def _rotate(original):
    return lambda *args, **kwargs: original(*args, **kwargs).rotate(90)


V2_METHOD = "transform" if hasattr(v2.PILToTensor, "transform") else "_transform"  # of older torchvisions
V1 = T.Compose([T.CenterCrop(40), T.PILToTensor()])
V2 = v2.Compose([v2.CenterCrop(40), v2.PILToTensor()])
REPLACED = {
    "a data set's samples": (datasets.DatasetFolder, "__getitem__", _add_100_to_targets, V1),
    "what opens files": (folder, "pil_loader", _rotate, V1),
    "a transform's method": (T.CenterCrop, "forward", _rotate, V1),
    "a transform's __call__": (T.PILToTensor, "__call__", _invert, V1),
    "a function of transforms": (F, "pil_to_tensor", _invert, V1),
    "a method of v2": (v2.PILToTensor, V2_METHOD, _invert, V2),
    "a function of v2": (F2, "pil_to_tensor", _invert, V2),
}


@pytest.mark.parametrize("name", REPLACED)
def test_replaced_torchvision_code_is_used_until_it_is_restored(image_root, monkeypatch, name):
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


# ---- Pillow


def _fill_after_load(original):
    """Return a load() method that fills the image with one value."""

    def load(self):
        pixels = original(self)
        self.im.paste(self.size[0] % 256, (0, 0, *self.size))
        return pixels

    return load


def _add_reader(name, accepts):
    """Return a function that registers another reader in Pillow, to be tried first."""

    def register(patch):
        kind = type("Own", (JpegImagePlugin.JpegImageFile,), {"load": _fill_after_load(ImageFile.ImageFile.load)})
        patch.setattr(Image, "ID", [name, *Image.ID])
        patch.setattr(Image, "OPEN", Image.OPEN | {name: (kind, accepts)})

    return register


def _replace(owner, name, make):
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


PILLOW_CODE = {
    "open": _replace(Image, "open", _rotate),
    "open, partial": _replace(Image, "open", lambda original: functools.partial(_rotate(original))),
    "convert": _replace(Image.Image, "convert", _rotate),
    "crop": _replace(Image.Image, "crop", _rotate),
    "load": _replace(ImageFile.ImageFile, "load", _fill_after_load),
    "load of JPEGs": _replace(JpegImagePlugin.JpegImageFile, "load", _fill_after_load),
    "open()": _replace(builtins, "open", lambda original: lambda path, *how: original(REDIRECT.get(path, path), *how)),
    "crop in torchvision": _replace(_functional_pil, "crop", _rotate),
    "Image in torchvision": lambda patch: patch.setattr(folder, "Image", SimpleNamespace(open=_rotate(Image.open))),
    "another reader": _add_reader("OWN", lambda head: head[:2] == b"\xff\xd8"),
    "a reader of all": _add_reader("OWN", None),
    "a reader of JPEGs": _add_reader("JPEG", JpegImagePlugin._accept),
}
REDIRECT: dict[str, str] = {}  # for each path, the file that the replaced open() reads instead


@pytest.mark.parametrize("name", PILLOW_CODE)
def test_replaced_pillow_code_is_used_until_it_is_restored(image_root, monkeypatch, name):
    """This holds for loaders created before and after the replacement."""
    dataset = datasets.ImageFolder(image_root, V1)
    REDIRECT.update({path: dataset.samples[0][0] for path, _ in dataset.samples})
    loader = DataLoader(dataset, 12, device="cpu", fallback="silent")
    before = list(loader)
    with monkeypatch.context() as patch:
        PILLOW_CODE[name](patch)
        theirs = list(stock(dataset, 12))
        assert any(not torch.equal(*both) for both in zip(before[0], theirs[0], strict=True))
        assert_same_epoch(loader, theirs)
        assert_same_epoch(DataLoader(dataset, 12, device="cpu", fallback="silent"), theirs)
        if name == "Image in torchvision":  # torchvision's default_loader runs, and still opens the images with Pillow
            ours(dataset, 12, device="cpu")
        else:
            with pytest.raises(RuntimeError, match="torchvision does the work"):
                ours(dataset, 12, device="cpu")
    assert_same_epoch(loader, before)
    assert loader.explain().startswith("DALI route")


def test_readers_of_other_formats_do_not_prevent_dali(image_root, monkeypatch):
    """pillow-heif adds such readers, and fastai adds methods to images."""
    for accepts in (lambda head: head[4:8] == b"ftyp", lambda head: "not installed"):
        _add_reader(f"OWN{id(accepts)}", accepts)(monkeypatch)
    monkeypatch.setattr(Image.Image, "to_thumb", _fill_after_load, raising=False)
    assert len(ours(datasets.ImageFolder(image_root, V1), 12, device="cpu")) == 2


def _food101(root):
    made = object.__new__(datasets.Food101)
    paths, labels = zip(*datasets.ImageFolder(root).samples, strict=True)
    vars(made).update(_image_files=list(map(Path, paths)), _labels=list(labels), target_transform=None)
    vars(made).update(transform=V1, loader=folder.default_loader)
    return made


def _image_table(root):
    pd = pytest.importorskip("pandas")
    return DALIImageTable(pd.DataFrame(datasets.ImageFolder(root).samples, columns=["file", "label"]), transform=V1)


def _hugging_face(root):
    hf = pytest.importorskip("datasets")
    table = {"image": [path for path, _ in datasets.ImageFolder(root).samples]}
    made = hf.Dataset.from_dict(table).cast_column("image", hf.Image())
    return DALIHuggingFace(made, target=None, transform=V1)


def _hugging_face_with_transform(root):
    """A Hugging Face data set with a custom transform."""
    dataset = _hugging_face(root).dataset
    return dataset.with_transform(lambda rows: {"image": [V1(one.convert("RGB")) for one in rows["image"]]})


def _record_io(root):
    pack(root, root.parent / "packed.rec")
    return DALIRecordIO(str(root.parent / "packed.rec"), V1)


def _timm_dataset(root):
    return pytest.importorskip("timm.data").ImageDataset(str(root), transform=V1)


READERS = {
    "DALIImageFolder": lambda root: DALIImageFolder(root, V1),
    "DALIImageList": lambda root: DALIImageList([path for path, _ in datasets.ImageFolder(root).samples], None, V1),
    "DALIImageTable": _image_table,
    "Food101": _food101,
    "DALIHuggingFace": _hugging_face,
    "DALIRecordIO": _record_io,
    "timm": _timm_dataset,
    "Subset": lambda root: data.Subset(datasets.ImageFolder(root, V1), range(6)),
    "own": lambda root: _CustomDataset(root),
}


@pytest.mark.filterwarnings("ignore:torch's own loader reads")
@pytest.mark.parametrize("kind", READERS)
def test_replaced_open_is_used_by_every_reader(own_root, monkeypatch, kind):
    dataset = READERS[kind](own_root)
    loader = DataLoader(dataset, 8, device="cpu", fallback="silent")
    before = list(loader)
    with monkeypatch.context() as patch:
        _replace(Image, "open", _rotate)(patch)
        theirs = list(stock(dataset, 8))
        assert not torch.equal(before[0][0], theirs[0][0])
        assert_same_epoch(loader, theirs)
    assert_same_epoch(loader, before)


def _set_target_77(original):
    return lambda self, index: (original(self, index)[0], 77)


def test_replaced_code_of_timm_is_used(own_root, monkeypatch):
    dataset = _timm_dataset(own_root)
    loader = DataLoader(dataset, 8, device="cpu", fallback="silent")
    for kind in (type(dataset), type(dataset.reader)):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "__getitem__", _set_target_77(kind.__getitem__))
            assert next(iter(loader))[1].tolist() == [77] * 8
    assert loader.explain().startswith("DALI route")


def test_replaced_decoder_of_hugging_face_is_used(own_root, monkeypatch):
    dataset = _hugging_face_with_transform(own_root)
    loader = DataLoader(dataset, 8, device="cpu", fallback="silent")
    before = next(iter(loader))["image"]
    feature = type(dataset.features["image"])
    monkeypatch.setattr(feature, "decode_example", _rotate(feature.decode_example))
    after = next(iter(loader))["image"]
    assert not torch.equal(before, after) and torch.equal(after, next(iter(stock(dataset, 8)))["image"])


def test_each_pillow_method_that_transforms_call_is_checked(image_root):
    """Methods that return only size or mode are exempt."""
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
    watched = {
        getattr(function_of(vars(owner)[name]), "__code__", None) for owner, name in checked_functions(opens=True)
    }
    others = {code.co_name for code in called - watched}
    assert others <= {"mode", "size", "width", "height", "__array_interface__", "count", "sum", "mean"} and called


# ---- hooks


def _flip_output(module, inputs, output):
    return output.flip(-1) if isinstance(output, torch.Tensor) else output.transpose(Image.Transpose.ROTATE_180)


def _flip_input(module, inputs):
    return tuple(_flip_output(module, (), one) for one in inputs)


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


@pytest.mark.parametrize(
    "name, where, hook",
    [
        ("v1", "all modules", "forward_hook"),
        ("v2", "one object", "forward_pre_hook"),
        ("Sequential", "one object", "forward_hook"),
        ("own", "all modules", "forward_pre_hook"),
        ("within a function", "one object", "forward_hook"),
    ],
)
def test_forward_hooks_are_called_until_they_are_removed(image_root, name, where, hook):
    """The hooks are registered after the loader was created."""
    transform = HOOKED[name]
    for dataset in (datasets.ImageFolder(image_root, transform), _CustomDataset(image_root, transform)):
        loader = DataLoader(dataset, 12, device="cpu", fallback="silent")
        before = list(loader)
        one = transform.transforms[0] if name == "v1" else HOOKED["own"] if name == "within a function" else transform
        place, prefix = (module, "register_module_") if where == "all modules" else (one, "register_")
        handle = getattr(place, prefix + hook)(_flip_output if hook == "forward_hook" else _flip_input)
        try:
            theirs = list(stock(dataset, 12))
            assert not torch.equal(before[0][0], theirs[0][0])
            assert_same_epoch(loader, theirs)
        finally:
            handle.remove()
        assert_same_epoch(loader, before)


class _CustomDataset(data.Dataset):
    def __init__(self, root, transform=V1):
        self.paths, self.transform = [path for path, _ in datasets.ImageFolder(root).samples], transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


def test_replaced_function_is_used_in_a_custom_data_set_after_tracing(image_root, monkeypatch):
    """Tracing replaces methods of transforms, which must not be mistaken for the originals."""
    _functions.cache_clear()
    dataset = _CustomDataset(image_root)
    loader = DataLoader(dataset, 12, device="cpu", fallback="silent")
    list(loader)
    monkeypatch.setattr(F, "pil_to_tensor", _invert(F.pil_to_tensor))
    assert_same_epoch(loader, list(stock(dataset, 12)))


class _CropWithOwnGetParams(T.RandomCrop):
    """A crop that only replaces get_params, and only on the instance."""

    def __init__(self, size):
        super().__init__(size)
        self.get_params = lambda image, size: (3, 5, *size)


V2_CROP = v2.CenterCrop(40)
setattr(V2_CROP, V2_METHOD, lambda image, params: F2.vertical_flip(F2.center_crop(image, [40, 40])))


def _mirrored(original):
    def resize(image, *args, **kwargs):
        made = original(image, *args, **kwargs)
        return made.flip(-1) if isinstance(made, torch.Tensor) else ImageOps.mirror(made)

    return resize


REPLACEMENTS = {
    "a function": _mirrored,
    "a lambda": lambda original: lambda *args, **kwargs: _mirrored(original)(*args, **kwargs),
    "a wrapped function": lambda original: functools.wraps(original)(_mirrored(original)),
    "a partial": lambda original: functools.partial(_mirrored(original)),
}


@pytest.mark.alike
@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("when", ["before the loader", "after the loader", "between epochs"])
def test_function_replaced_at_any_time_is_used_in_a_custom_data_set(image_root, monkeypatch, kind, num_workers, when):
    """exact=True, because the kernels of this package then call the same function."""
    dataset = _CustomDataset(image_root, T.Compose([T.Resize((20, 30)), T.ToTensor()]))

    def epochs(make, **options):
        with monkeypatch.context() as patch:
            made, found = None, []
            for now in ("before the loader", "after the loader", "between epochs"):
                if now == when:
                    patch.setattr(F, "resize", REPLACEMENTS[kind](F.resize))
                if made is None:
                    made = make(dataset, 6, num_workers=num_workers, **options)
                else:
                    found.append(torch.cat([images for images, _ in made]))
            return found

    theirs = epochs(stock)
    assert torch.equal(*theirs) == (when != "between epochs")
    for mine, expected in zip(epochs(DataLoader, device="cpu", exact=True, fallback="silent"), theirs, strict=True):
        assert torch.equal(mine, expected)


def test_function_of_v1_that_is_replaced_is_not_called_for_v2(image_root, monkeypatch):
    """torchvision's v2 transforms do not call it, but kernels of this package would."""
    dataset = datasets.ImageFolder(image_root, v2.Compose([v2.Resize((20, 30)), v2.PILToTensor()]))
    theirs = list(stock(dataset, 6))
    monkeypatch.setattr(F, "resize", _mirrored(F.resize))
    assert_same_epoch(DataLoader(dataset, 6, device="cpu", exact=True, fallback="silent"), theirs)


@pytest.mark.parametrize("transform", [_CropWithOwnGetParams((40, 40)), V2_CROP], ids=["v1", "v2"])
def test_method_replaced_on_an_instance_is_used(image_root, transform):
    dataset = datasets.ImageFolder(image_root, T.Compose([transform, T.PILToTensor()]))
    loader = DataLoader(dataset, 6, device="cpu", fallback="silent")
    assert_same_epoch(loader, list(stock(dataset, 6)))
    assert "on the instance" in loader.explain()


@pytest.mark.filterwarnings("ignore:torch's own loader reads DALIArrayDataset")
def test_replaced_getitem_of_an_array_data_set_is_used(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (20, 9, 9, 3), dtype=np.uint8)
    dataset = DALIArrayDataset(images, list(range(20)), T.PILToTensor())
    loader = DataLoader(dataset, 6, device="cpu", fallback="silent")
    before = list(loader)
    monkeypatch.setattr(DALIArrayDataset, "__getitem__", _add_100_to_targets(DALIArrayDataset.__getitem__))
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
def test_code_replaced_before_the_import_is_used(image_root, kind, route):
    """If the data set opens files, the replaced code runs on the DALI route."""
    stdout = said(programs.run(BEFORE_IMPORT.format(kind=kind), str(image_root)))
    assert stdout.startswith(route) and stdout.strip().endswith(str([77] * 6))


def _to_list(batch, *, collate_fn_map=None):
    return list(batch)


def _to_sizes(batch, *, collate_fn_map=None):
    return [image.size for image in batch]


def _to_int32(batch, *, collate_fn_map=None):
    return torch.tensor(batch, dtype=torch.int32)


@pytest.mark.parametrize("kind, function", [(torch.Tensor, _to_list), (Image.Image, _to_sizes), (int, _to_int32)])
@pytest.mark.parametrize("workers", [0, 2])
def test_changed_default_collate_fn_map_is_used(image_root, monkeypatch, kind, function, workers):
    transform = T.CenterCrop(40) if kind is Image.Image else EXACT
    datasets_ = [datasets.ImageFolder(image_root, transform)]
    if kind is not Image.Image:
        datasets_.append(DALIArrayDataset(np.zeros((8, 9, 9, 3), np.uint8), list(range(8)), T.PILToTensor()))
    monkeypatch.setitem(default_collate_fn_map, kind, function)
    for dataset in datasets_:
        for mine, theirs in zip(ours(dataset, 4, num_workers=workers, device="cpu"), stock(dataset, 4), strict=True):
            assert _as_lists(mine) == _as_lists(theirs)


def _as_lists(batch):
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.tolist()
    return [_as_lists(one) for one in batch] if isinstance(batch, list) else batch


def test_default_collate_fn_map_with_a_custom_type_keeps_the_fast_path(image_root, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, type("Own", (), {}), _to_list)
    # partial objects have no __globals__
    monkeypatch.setitem(default_collate_fn_map, type("Other", (), {}), functools.partial(_to_list))
    loader = ours(DALIImageFolder(image_root, EXACT), 4, device="cpu")
    iterator = iter(loader)
    assert iterator._epoch.default_collate and next(iterator)[0].shape[0] == 4
    monkeypatch.setitem(default_collate_fn_map, int, _to_int32)
    assert not iter(loader)._epoch.default_collate
