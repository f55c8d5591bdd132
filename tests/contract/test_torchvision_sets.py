"""torchvision's data sets of image files, recreated with tiny files in the original layouts.

The batches equal those of torch's loader without changes of the script, or the data set falls back.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import torchvision.datasets as tv
from helpers import make_image
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import v2

from contract.both import EXACT, assert_same_epoch, ours, stock
from dali_compat import DataLoader


def save(path: Path, number: int, mode: str = "RGB") -> Path:
    """Save an image whose size and content depend on ``number``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    pixels = make_image(rng, int(rng.integers(44, 60)), int(rng.integers(44, 60)))
    Image.fromarray(pixels).convert(mode).save(path, **({"quality": 92} if path.suffix in (".jpg", ".jpeg") else {}))
    return path


def mixed(number: int) -> str:
    """Make every third file gray."""
    return "L" if number % 3 == 1 else "RGB"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def no_integrity_checks(monkeypatch):
    """Accept files that are not torchvision's originals."""
    for module in ("flowers102", "celeba", "lfw", "places365", "imagenet"):
        monkeypatch.setattr(
            f"torchvision.datasets.{module}.check_integrity", lambda path, md5=None: Path(path).exists()
        )


@pytest.fixture
def matlab_files(monkeypatch):
    """Contents returned by scipy.io.loadmat, by file name."""
    contents: dict[str, dict] = {}
    io = ModuleType("scipy.io")
    io.loadmat = lambda path, squeeze_me=False: contents[Path(path).name]
    scipy = ModuleType("scipy")
    scipy.io = io
    monkeypatch.setitem(sys.modules, "scipy", scipy)
    monkeypatch.setitem(sys.modules, "scipy.io", io)
    return contents


# ---- layouts


def imagenet(root, **options):
    torch.save(({"n01": ("tench",), "n02": ("goldfish", "carp")}, []), root / "meta.bin")
    for number in range(6):
        save(root / "train" / f"n0{number % 2 + 1}" / f"{number}.JPEG", number, mixed(number))
    return tv.ImageNet(str(root), "train", **options)


def imagenette(root, **options):
    for number in range(6):
        wnid = ("n03888257", "n01440764")[number % 2]
        save(root / "imagenette2" / "val" / wnid / f"{number}.JPEG", number, mixed(number))
    for path in (root / "imagenette2").rglob("*.JPEG"):
        path.rename(path.with_suffix(".jpeg"))
    return tv.Imagenette(root, "val", **options)


def food101(root, **options):
    names = {"pho": ["pho/2", "pho/1"], "apple_pie": ["apple_pie/7"]}
    for number, name in enumerate(sum(names.values(), [])):
        save(root / "food-101" / "images" / f"{name}.jpg", number, mixed(number))
    write(root / "food-101" / "meta" / "train.json", json.dumps(names))
    return tv.Food101(root, **options)


def flowers102(root, matlab_files, **options):
    for number in range(1, 6):
        save(root / "flowers-102" / "jpg" / f"image_{number:05d}.jpg", number, mixed(number))
    matlab_files["setid.mat"] = {"trnid": np.array([5, 1, 4]), "valid": np.array([2]), "tstid": np.array([3])}
    matlab_files["imagelabels.mat"] = {"labels": np.array([77, 1, 3, 2, 102], np.uint8)}
    for name in matlab_files:
        write(root / "flowers-102" / name, "")
    return tv.Flowers102(root, **options)


def pets(root, **options):
    folder = root / "oxford-iiit-pet"
    for number, name in enumerate(("Bombay_1", "beagle_3", "beagle_12")):
        save(folder / "images" / f"{name}.jpg", number, mixed(number))
    write(folder / "annotations" / "trainval.txt", "Bombay_1 1 1 1\nbeagle_3 2 2 1\nbeagle_12 2 2 1\n")
    return tv.OxfordIIITPet(root, **options)


def cars(root, matlab_files, **options):
    kinds = np.dtype([("fname", "O"), ("class", "O")])
    names = [("00001.jpg", np.uint8(3)), ("00002.jpg", np.uint8(1)), ("00003.jpg", np.uint8(3))]
    for number, (name, _) in enumerate(names):
        save(root / "stanford_cars" / "cars_train" / name, number, mixed(number))
    matlab_files["cars_train_annos.mat"] = {"annotations": np.array(names, kinds)}
    matlab_files["cars_meta.mat"] = {"class_names": np.array(["a", "b", "c"])}
    write(root / "stanford_cars" / "devkit" / "cars_train_annos.mat", "")
    return tv.StanfordCars(root, **options)


def aircraft(root, **options):
    folder = root / "fgvc-aircraft-2013b" / "data"
    write(folder / "families.txt", "Boeing 737\nA300\n")
    write(folder / "images_family_trainval.txt", "0034309 A300\n1025794 Boeing 737\n0056978 A300\n")
    for number, name in enumerate(("0034309", "1025794", "0056978")):
        save(folder / "images" / f"{name}.jpg", number, mixed(number))
    return tv.FGVCAircraft(root, annotation_level="family", **options)


def caltech101(root, mode=lambda number: "RGB", **options):
    folder = root / "caltech101" / "101_ObjectCategories"
    (folder / "BACKGROUND_Google").mkdir(parents=True)
    for number in range(6):
        save(folder / ("Faces", "ant")[number % 2] / f"image_{number // 2 + 1:04d}.jpg", number, mode(number))
    return tv.Caltech101(root, **options)


def caltech256(root, mode=lambda number: "RGB", **options):
    folder = root / "caltech256" / "256_ObjectCategories"
    for number in range(6):
        kind = number % 2
        name = f"{kind + 1:03d}_{number // 2 + 1:04d}.jpg"
        save(folder / ("001.ak47", "002.american-flag")[kind] / name, number, mode(number))
    return tv.Caltech256(str(root), **options)


def celeba(root, mode=lambda number: "RGB", **options):
    folder, rng = root / "celeba", np.random.default_rng(0)
    names = [f"{number:06d}.jpg" for number in range(1, 8)]
    for number, name in enumerate(names):
        save(folder / "img_align_celeba" / name, number, mode(number))

    def table(low, high, columns, header=""):
        rows = [f"{name} {' '.join(map(str, rng.integers(low, high, columns) | 1))}" for name in names]
        return header + "\n".join(rows) + "\n"

    write(folder / "list_eval_partition.txt", "".join(f"{name} {i % 3 // 2}\n" for i, name in enumerate(names)))
    write(folder / "identity_CelebA.txt", table(1, 9000, 1))
    write(folder / "list_bbox_celeba.txt", table(1, 200, 4, "7\nname x y w h\n"))
    write(folder / "list_landmarks_align_celeba.txt", table(1, 200, 10, "7\n" + " ".join("abcdefghij") + "\n"))
    write(folder / "list_attr_celeba.txt", table(-1, 2, 40, "7\n" + " ".join(map(str, range(40))) + "\n"))
    return tv.CelebA(root, **options)


def country211(root, **options):
    for number in range(4):
        save(root / "country211" / "train" / ("AD", "ZW")[number % 2] / f"{number}.jpg", number, mixed(number))
    return tv.Country211(root, **options)


def dtd(root, **options):
    names = ("dotted/dotted_2.jpg", "banded/banded_1.jpg", "dotted/dotted_1.jpg")
    for number, name in enumerate(names):
        save(root / "dtd" / "dtd" / "images" / name, number, mixed(number))
    write(root / "dtd" / "dtd" / "labels" / "val3.txt", "\n".join(names) + "\n")
    return tv.DTD(root, "val", 3, **options)


def eurosat(root, **options):
    for number in range(4):
        save(root / "eurosat" / "2750" / ("Forest", "River")[number % 2] / f"{number}.jpg", number, mixed(number))
    return tv.EuroSAT(root, **options)


def traffic_signs(root, **options):
    for number in range(4):
        save(root / "gtsrb" / "GTSRB" / "Training" / f"{number % 2:05d}" / f"{number}.ppm", number)
    return tv.GTSRB(root, **options)


def traffic_signs_test(root, **options):
    folder = root / "gtsrb"
    for number in range(3):
        save(folder / "GTSRB" / "Final_Test" / "Images" / f"{number:05d}.ppm", number)
    write(folder / "GT-final_test.csv", "Filename;ClassId\n00002.ppm;16\n00000.ppm;1\n00001.ppm;38\n")
    return tv.GTSRB(root, "test", **options)


def inaturalist(root, mode=lambda number: "RGB", **options):
    kinds = ("00000_Animalia_Annelida_A_B_C_D_E", "00001_Animalia_Mollusca_A_B_C_D_F", "00002_Plantae_X_Y_Z_W_V_U")
    for number in range(6):
        save(root / "2021_train" / kinds[number % 3] / f"{number}.jpg", number, mode(number))
    return tv.INaturalist(root, **options)


def inaturalist_2018(root, **options):
    for number in range(4):
        save(root / "2018" / ("Birds", "Fungi")[number % 2] / str(number % 2) / f"{number}.jpg", number)
    return tv.INaturalist(root, "2018", **options)


def people(root, **options):
    folder = root / "lfw-py"
    for number in range(3):
        save(folder / "lfw_funneled" / "Ann_B" / f"Ann_B_{number + 1:04d}.jpg", number, mixed(number))
    save(folder / "lfw_funneled" / "Al_C" / "Al_C_0001.jpg", 3)
    for name in ("lfw-funneled.tgz",):
        write(folder / name, "")
    write(folder / "lfw-names.txt", "Al_C\t1\nAnn_B\t3\n")
    write(folder / "peopleDevTrain.txt", "2\nAnn_B\t3\nAl_C\t1\n")
    return tv.LFWPeople(str(root), "train", **options)


def places365(root, **options):
    write(root / "categories_places365.txt", "/a/airfield 0\n/b/bar 1\n")
    write(root / "places365_val.txt", "Places365_val_2.jpg 1\nPlaces365_val_1.jpg 0\nPlaces365_val_3.jpg 1\n")
    for number in range(1, 4):
        save(root / "val_256" / f"Places365_val_{number}.jpg", number, mixed(number))
    return tv.Places365(str(root), "val", small=True, **options)


def rendered(root, **options):
    for number in range(4):
        name = ("positive", "negative")[number % 2]
        save(root / "rendered-sst2" / "valid" / name / f"{number}.png", number, ("RGB", "RGBA", "L")[number % 3])
    return tv.RenderedSST2(root, "val", **options)


def clevr(root, **options):
    folder, scenes = root / "clevr" / "CLEVR_v1.0", []
    for number in range(3):
        save(folder / "images" / "val" / f"CLEVR_val_{number}.png", number, ("RGBA", "RGB", "L")[number])
        scenes.append({"image_filename": f"CLEVR_val_{number}.png", "objects": [{}] * (3 + number)})
    write(folder / "scenes" / "CLEVR_val_scenes.json", json.dumps({"scenes": scenes}))
    return tv.CLEVRClassification(root, "val", **options)


def sun397(root, **options):
    write(root / "SUN397" / "ClassName.txt", "/a/abbey\n/b/bar/indoor\n")
    for number in range(4):
        folder = ("a/abbey", "b/bar/indoor")[number % 2]
        save(root / "SUN397" / folder / f"sun_{number}.jpg", number, mixed(number))
    return tv.SUN397(root, **options)


LAYOUTS = {
    **{made.__name__: made for made in (imagenet, imagenette, food101, flowers102, pets, cars, aircraft)},
    **{made.__name__: made for made in (country211, dtd, eurosat, traffic_signs, traffic_signs_test, places365)},
    **{made.__name__: made for made in (rendered, clevr, sun397)},
}
TRACED = caltech101, caltech256, celeba, inaturalist, inaturalist_2018, people
"""Data sets that are traced like custom ones."""


@pytest.fixture
def make(tmp_path, no_integrity_checks, matlab_files):
    """Return a function that creates a data set of a layout."""

    def made(layout, **options):
        if layout in (flowers102, cars):
            options["matlab_files"] = matlab_files
        return layout(tmp_path, **options)

    return made


def on_cpu(dataset, *args, **options) -> DataLoader:
    return ours(dataset, *args, device="cpu", **options)


def assert_equals_torchs(dataset, loader=None, batch_size=2) -> None:
    """Compare order, targets with their dtypes, and pixels."""
    mine, theirs = list(loader or on_cpu(dataset, batch_size)), list(stock(dataset, batch_size))
    assert_same_epoch(mine, theirs)
    assert [batch[1].dtype for batch in mine] == [batch[1].dtype for batch in theirs]


# ---- batches equal torch's


@pytest.mark.parametrize("name", LAYOUTS)
def test_batches_equal_torchs(make, name):
    """The target_transform gets the same targets as in torchvision, also if it is set later."""
    targets = []

    def function(target):
        targets.append((type(target), np.asarray(target).tolist()))
        return 7

    dataset = make(LAYOUTS[name], transform=EXACT)
    assert len(dataset) >= 3
    loader = on_cpu(dataset, 2)
    assert loader.explain().startswith("DALI route")
    assert_equals_torchs(dataset, loader)
    if name in ("pets", "places365"):  # these use the transforms passed to their constructor
        dataset.transforms = tv.vision.StandardTransform(EXACT, function)
    else:
        dataset.target_transform = function
    assert_equals_torchs(dataset, loader)
    assert len(targets) == 2 * len(dataset) and targets[: len(dataset)] == targets[len(dataset) :]


def test_parts_of_several_classes_equal_torchs(make):
    """The parts are in one batch, and their transforms are replaced later."""
    signs, food, pairs = (make(layout, transform=EXACT) for layout in (traffic_signs, food101, rendered))
    dataset = torch.utils.data.ConcatDataset([signs, torch.utils.data.Subset(food, [2, 0]), pairs])
    loader = on_cpu(dataset, 4)
    assert_equals_torchs(dataset, loader, batch_size=4)
    for part in (signs, food, pairs):
        part.transform = v2.Compose([v2.CenterCrop(20), v2.PILToTensor()])
    assert next(iter(loader))[0].shape[-1] == 20
    assert_equals_torchs(dataset, loader, batch_size=4)


@pytest.mark.parametrize("layout", [pets, places365])
def test_transforms_attribute_can_be_replaced(make, layout):
    """These two data sets call the attribute ``transforms``."""
    dataset = make(layout, transform=EXACT)
    dataset.transform = T.PILToTensor()
    loader = on_cpu(dataset, 2)
    assert_equals_torchs(dataset, loader)
    dataset.transforms = tv.vision.StandardTransform(T.Compose([T.CenterCrop(30), T.PILToTensor()]), lambda x: -x)
    assert next(iter(loader))[0].shape[-1] == 30
    assert_equals_torchs(dataset, loader)
    dataset.transforms = None
    samples = list(on_cpu(dataset, 2, collate_fn=list))
    assert [image.size for batch in samples for image, _ in batch] == [image.size for image, _ in dataset]


def test_in_place_changes_of_targets_and_files_apply_to_the_next_epoch(make):
    food = make(food101, transform=EXACT)
    loader = on_cpu(food, 3)
    list(loader)
    food._labels[1] = 55
    food._image_files.reverse()
    assert_equals_torchs(food, loader, batch_size=3)


# ---- traced data sets


def assert_traced(dataset) -> None:
    """Compare with the batches of torch's loader, after the files have reached a minimum age."""
    time.sleep(0.02)
    loader = DataLoader(dataset, 2, fallback="silent", device="cpu")
    assert f"{type(dataset).__name__} runs in" in loader.explain()
    for mine, theirs in zip(loader, stock(dataset, 2), strict=True):
        assert torch.equal(mine[0], theirs[0])
        targets = [batch[1] if isinstance(batch[1], list) else [batch[1]] for batch in (mine, theirs)]
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(*targets, strict=True))


TARGETS = {
    **{layout.__name__: (layout, {}) for layout in TRACED},
    "identity": (celeba, {"target_type": "identity"}),
    "several": (celeba, {"target_type": ["identity", "attr"]}),
    "binary pets": (pets, {"target_types": "binary-category"}),
    "pets": (pets, {"target_types": ["binary-category", "category"]}),
    "kingdom": (inaturalist, {"target_type": "kingdom"}),
}


@pytest.mark.parametrize("case", TARGETS)
def test_data_sets_with_several_kinds_of_targets_are_traced(make, case):
    layout, options = TARGETS[case]
    assert_traced(make(layout, transform=EXACT, **options))


CHAINS = {
    "Grayscale": T.Compose([T.Grayscale(), EXACT]),
    "RGB": v2.Compose([v2.RGB(), v2.CenterCrop(40), v2.PILToTensor()]),
    "convert": T.Compose([T.Lambda(lambda image: image.convert("RGB")), EXACT]),
}


@pytest.mark.parametrize("layout", [caltech101, caltech256, celeba, inaturalist])
@pytest.mark.parametrize("chain", CHAINS)
def test_gray_files_among_others_equal_torchs(make, layout, chain):
    """These data sets do not convert to RGB."""
    dataset = make(layout, mode=mixed, transform=CHAINS[chain])
    time.sleep(0.02)
    loader, theirs = DataLoader(dataset, 4, fallback="silent", device="cpu"), list(stock(dataset, 4))
    for _ in range(2):
        assert_same_epoch(loader, theirs)


# ---- fallback


def _reason(dataset) -> str:
    loader = DataLoader(dataset, 2, fallback="silent", device="cpu")
    lines = loader.explain().splitlines()
    assert lines[0].startswith("torchvision route")
    return lines[1]


FILES = [made for made in LAYOUTS.values() if made not in (imagenet, country211, eurosat)]


@pytest.mark.parametrize("layout", FILES, ids=lambda made: made.__name__)
def test_subclass_is_traced(make, layout):
    dataset = make(layout, transform=EXACT)
    dataset.__class__ = type("Mine", (type(dataset),), {})
    time.sleep(0.02)  # recently written files are not decoded by DALI
    loader = DataLoader(dataset, 2, fallback="silent", device="cpu")
    assert "Mine runs in" in loader.explain() or "image that is not RGB" in loader.explain()
    assert_same_epoch(loader, stock(dataset, 2))


MISSING = {
    **dict.fromkeys((food101, flowers102, aircraft, dtd, clevr, sun397), "_labels"),
    **dict.fromkeys((imagenette, cars, traffic_signs, traffic_signs_test, rendered), "_samples"),
    pets: "_images",
    places365: "imgs",
}


@pytest.mark.parametrize("layout", FILES, ids=lambda made: made.__name__)
def test_data_set_falls_back_if_an_attribute_is_missing_or_invalid(make, layout):
    dataset, name = make(layout, transform=EXACT), MISSING[layout]
    value = getattr(dataset, name)
    delattr(dataset, name)
    type(dataset).__len__, before = (lambda self: len(value)), type(dataset).__len__
    try:
        assert f"{type(dataset).__name__} has no attribute {name!r}" in _reason(dataset)
    finally:
        type(dataset).__len__ = before
    setattr(dataset, name, tuple(value))
    assert f"{type(dataset).__name__}.{name} is not a list of" in _reason(dataset)
    setattr(dataset, name, value)
    assert on_cpu(dataset).explain().startswith("DALI route")


@pytest.mark.parametrize("layout", FILES, ids=lambda made: made.__name__)
def test_unknown_version_falls_back(make, layout, monkeypatch):
    dataset = make(layout, transform=EXACT)
    kind = type(dataset)

    def another(self, index):
        return self.transform(Image.open(self.another[index]).convert("RGB")), 0

    monkeypatch.setattr(kind, "__getitem__", another)
    assert f"{kind.__name__}.__getitem__ of torchvision" in _reason(dataset)


@pytest.mark.parametrize("layout", [food101, imagenette, places365])
def test_custom_loader_falls_back(make, layout):
    if "loader" not in tv.Food101.__getitem__.__code__.co_names and layout is not places365:
        pytest.skip("this torchvision has none")
    dataset = make(layout, transform=EXACT, loader=lambda path: Image.open(path).convert("RGB").quantize(8))
    assert "has a custom loader" in _reason(dataset)


OTHER_TARGETS = {
    "segmentation": (pets, {"target_types": "segmentation"}, "target_types=['segmentation']"),
    "annotation": (caltech101, {"target_type": "annotation"}, "Caltech101 raises KeyError"),
}


@pytest.mark.parametrize("case", OTHER_TARGETS)
def test_unsupported_targets_fall_back(make, case):
    layout, options, text = OTHER_TARGETS[case]
    assert text in _reason(make(layout, transform=EXACT, **options))


@pytest.mark.parametrize("layout", [pets, places365])
def test_joint_transforms_are_called(make, layout):
    """If the files were written recently, torch's loader is used; otherwise the data set is traced."""
    dataset = make(layout)
    dataset.transforms = lambda image, target: (EXACT(image), target + 1)
    assert_same_epoch(DataLoader(dataset, 2, fallback="silent", device="cpu"), stock(dataset, 2))


def test_missing_file_raises_an_error_with_its_name(make):
    dataset = make(dtd, transform=EXACT)
    os.unlink(dataset._image_files[1])
    with pytest.raises(OSError, match=r"banded_1\.jpg, index 1: FileNotFoundError"):
        list(on_cpu(dataset, 3))
