"""timm's data sets, transforms and create_loader."""

import importlib
import tarfile
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from contract import own_datasets as own
from contract.both import assert_same_epoch, ours, outlines, stock
from contract.test_odd_datasets import dataset_of
from contract.test_own_datasets import assert_same, seeded
from dali_compat import DataLoader, FallbackWarning, install, uninstall
from dali_compat.ops.draws import run, uniforms_of
from dali_compat.plan import draw

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    timm = pytest.importorskip("timm.data")
    tt = pytest.importorskip("timm.data.transforms")
if not hasattr(tt, "RandomCropOrPad"):
    pytest.skip("an older timm has other transforms", allow_module_level=True)

CPU = torch.device("cpu")
SIZES = np.array([[100, 80], [31, 200], [64, 64], [500, 33]])
SIMPLE = dict(crop_mode="squash", crop_pct=1.0, device=CPU)


@pytest.fixture
def installed():
    yield install(device="cpu", exact=True, fallback="error")
    uninstall()


@pytest.fixture(scope="session")
def squares(tmp_path_factory, image_root):
    """Images of 60 x 60."""
    place = tmp_path_factory.mktemp("squares")
    for path in sorted(image_root.glob("*/*.jpg")):
        (place / path.parent.name).mkdir(exist_ok=True)
        Image.open(path).convert("RGB").resize((60, 60)).save(place / path.parent.name / f"{path.stem}.png")
    return place


# ---- draws


@pytest.fixture(autouse=True)
def timm_translations():
    """Import the translations, which is otherwise done when a timm transform is first seen."""
    importlib.import_module("dali_compat.ops.timm")


class GivenNumbers:
    """A replacement of Python's random that returns given numbers of [0, 1) in order."""

    def __init__(self, numbers):
        self._numbers = iter(numbers)

    def random(self):
        return next(self._numbers)

    def uniform(self, low, high):
        return low + (high - low) * next(self._numbers)

    def randint(self, low, high):
        return low + int(next(self._numbers) * (high - low + 1))


def uniforms(drawn, seed=0):
    return np.random.default_rng(seed).random((len(SIZES), uniforms_of(drawn)))


@pytest.mark.parametrize("area", [False, True])
@pytest.mark.parametrize("longest", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("chances", [(0, 0), (1, 0), (0, 1), (0.5, 0.5)])
def test_sizes_of_resize_keep_ratio_equal_timms(monkeypatch, area, longest, chances):
    scale, aspect = (chances[0], 0.7, 1.2, area), (chances[1], 0.8, 1.25)
    drawn = draw("resize_keep_ratio", size=(40, 56), longest=longest, scale=scale, aspect=aspect)
    for seed in range(5):
        u = uniforms(drawn, seed)
        values, after = run(drawn, SIZES, u)
        assert (values["size"] == after).all()
        for size, row, numbers in zip(SIZES, after, u, strict=True):
            used = [number for i, (chance, part) in enumerate([(chances[0], numbers[:2]), (chances[1], numbers[2:])])
                     if chance for number in (part if part[0] < chance else part[:1])]  # fmt: skip
            monkeypatch.setattr(tt, "random", GivenNumbers(used))
            image = Image.new("RGB", tuple(size[::-1].tolist()))
            args = ((40, 56), longest, chances[0], scale[1:3], area, chances[1], aspect[1:])
            assert tt.ResizeKeepRatio.get_params(image, *args) == row.tolist()


def test_random_choices_are_equally_likely():
    drawn = draw("with_choice", inner=draw("resize", size=(8, 8), max_size=None), count=2)
    values, _ = run(drawn, np.full((1000, 2), 50), np.random.default_rng(0).random((1000, 1)))
    assert set(values["choice"]) == {0, 1} and abs(values["choice"].mean() - 0.5) < 0.05


# ---- pixels

RESIZES = {
    "shortest": tt.ResizeKeepRatio((40, 60), interpolation="bicubic"),
    "longest": tt.ResizeKeepRatio(64, longest=1.0),
}


@pytest.mark.parametrize("name", RESIZES)
def test_pixels_of_resize_keep_ratio_equal_timms(image_root, name):
    transform = T.Compose([RESIZES[name], T.CenterCrop(50), tt.MaybePILToTensor()])
    folder = timm.ImageDataset(str(image_root), transform=transform)
    loader = DataLoader(folder, 5, exact=True, fallback="error", device="cpu")
    assert "Python" not in loader.explain()
    assert_same_epoch(loader, data.DataLoader(folder, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.float16])
def test_conversions_to_tensors_equal_timms(image_root, dtype):
    end = [tt.ToTensor(dtype), tt.MaybeToTensor(), tt.MaybePILToTensor()]
    folder = timm.ImageDataset(str(image_root), transform=T.Compose([T.CenterCrop(32), *end]))
    loader = DataLoader(folder, 5, fallback="error", device="cpu")
    assert "Python" not in loader.explain()
    assert_same_epoch(loader, data.DataLoader(folder, 5))


@pytest.mark.parametrize("exact", [True, False])
def test_random_interpolation_is_bilinear_or_bicubic(squares, exact):
    whole = dict(scale=(1.0, 1.0), ratio=(1.0, 1.0))
    kinds = {}
    for name in ("bilinear", "bicubic"):
        one = T.Compose([tt.RandomResizedCropAndInterpolation(24, interpolation=name, **whole), tt.MaybePILToTensor()])
        kinds[name] = next(iter(data.DataLoader(timm.ImageDataset(str(squares), transform=one), 100)))[0].float()
    mixed = T.Compose(
        [tt.RandomResizedCropAndInterpolation(24, interpolation="random", **whole), tt.MaybePILToTensor()]
    )
    loader = DataLoader(timm.ImageDataset(str(squares), transform=mixed), 100, exact=exact, device="cpu")
    images = next(iter(loader))[0].float()
    away = torch.stack([(images - kind).abs().mean((1, 2, 3)) for kind in kinds.values()])
    closest = away.min(0)
    assert set(closest.indices.tolist()) == {0, 1}
    assert (closest.values == 0).all() if exact else (closest.values < away.max(0).values / 4).all()


# ---- data sets


@pytest.mark.parametrize("prefetcher", [True, False])
def test_create_loader_uses_dali_under_install(image_root, prefetcher):
    options, dataset = SIMPLE | dict(use_prefetcher=prefetcher, num_workers=1), timm.ImageDataset(str(image_root))
    with install(device="cpu", exact=True, fallback="error"):
        loader = timm.create_loader(dataset, (3, 32, 32), 5, **options)
    inner = loader.loader if prefetcher else loader
    assert isinstance(inner, DataLoader) and inner.explain().startswith("DALI route")
    assert type(next(iter(inner))) is (tuple if prefetcher else list)  # as from fast_collate and from default_collate
    assert_same_epoch(loader, timm.create_loader(dataset, (3, 32, 32), 5, **options))


def test_multi_epochs_loader_uses_dali_under_install(image_root, installed):
    options = SIMPLE | dict(use_multi_epochs_loader=True, use_prefetcher=False, num_workers=1)
    loader = timm.create_loader(timm.ImageDataset(str(image_root)), (3, 32, 32), 5, **options)
    assert isinstance(loader, DataLoader) and type(loader).__name__ == "MultiEpochsDataLoader" and loader.exact
    first, second = outlines(loader)
    assert first == second and len(first) == 5


def test_training_loader_uses_dali_under_install(image_root, installed):
    loader = timm.create_loader(
        timm.ImageDataset(str(image_root)), (3, 32, 32), 5, is_training=True, interpolation="random", device=CPU,
        num_workers=1, re_prob=0.5, color_jitter=0.3,
    )  # fmt: skip
    assert "Python" not in loader.loader.explain() and len(list(loader)) == 4


def test_targets_and_concatenated_parts_equal_timms(image_root):
    transform = T.Compose([T.CenterCrop(32), tt.MaybePILToTensor()])
    dataset = timm.ImageDataset(str(image_root), transform=transform, target_transform=lambda target: target * 10)
    parts = data.ConcatDataset([data.Subset(dataset, range(3, 9)), dataset])
    loader = DataLoader(parts, 5, fallback="error", device="cpu")
    assert_same_epoch(loader, data.DataLoader(parts, 5))
    dataset.reader.samples = dataset.reader.samples[:4]
    dataset.transform = T.Compose([T.CenterCrop(16), tt.MaybePILToTensor()])
    assert_same_epoch(DataLoader(dataset, 5, fallback="error", device="cpu"), data.DataLoader(dataset, 5))


def _set_targets_to_none(dataset, which):
    dataset.reader.samples = [
        (path, None if which(i) else target) for i, (path, target) in enumerate(dataset.reader.samples)
    ]


@pytest.mark.parametrize("which", [lambda i: True, lambda i: i % 3 == 1], ids=["all", "some"])
def test_targets_of_none_become_minus_one(image_root, which):
    """The target_transform does not get such targets, and it may be replaced at any time."""
    dataset = timm.ImageDataset(str(image_root), transform=T.Compose([T.CenterCrop(32), tt.MaybePILToTensor()]))
    _set_targets_to_none(dataset, which)
    loader = DataLoader(dataset, 5, fallback="error", device="cpu")
    for change in (None, lambda target: target * 10, lambda target: target + 3, None):
        dataset.target_transform = change
        assert_same_epoch(loader, data.DataLoader(dataset, 5))
    _, labels = next(iter(loader))
    assert labels[1] == -1


def test_targets_changed_to_none_become_minus_one(image_root):
    dataset = timm.ImageDataset(str(image_root), transform=T.Compose([T.CenterCrop(32), tt.MaybePILToTensor()]))
    loader = DataLoader(dataset, 5, fallback="error", device="cpu")
    assert_same_epoch(loader, data.DataLoader(dataset, 5))
    dataset.reader.samples[2] = dataset.reader.samples[2][0], None
    assert_same_epoch(loader, data.DataLoader(dataset, 5))
    dataset.target_transform = lambda target: target * 10
    assert_same_epoch(loader, data.DataLoader(dataset, 5))


def test_state_of_other_files_raises(image_root, own_root):
    transform = T.Compose([T.CenterCrop(32), tt.MaybePILToTensor()])
    ours = [timm.ImageDataset(str(root), transform=transform) for root in (image_root, own_root)]
    ours[0].reader.samples = ours[0].reader.samples[-len(ours[1]) :]
    states = [DataLoader(dataset, 5, fallback="error", device="cpu").state_dict() for dataset in ours]
    DataLoader(ours[0], 5, fallback="error", device="cpu").load_state_dict(states[0])
    with pytest.raises(ValueError, match="data set"):
        DataLoader(ours[0], 5, fallback="error", device="cpu").load_state_dict(states[1])


def test_unreadable_file_is_replaced(own_root):
    """timm returns the next image instead."""
    (own_root / "class_a" / "00.jpg").write_bytes(b"no image")
    dataset = timm.ImageDataset(str(own_root))
    with install(device="cpu"):
        loader = timm.create_loader(dataset, (3, 32, 32), 4, use_prefetcher=False, num_workers=0, **SIMPLE)
        assert loader.on_error == "replace"
    with pytest.warns(UserWarning, match="replaced"):
        assert sum(len(labels) for _, labels in loader) == 8


CROPPED = T.Compose([T.CenterCrop(32), T.PILToTensor()])


def test_unsupported_options_are_named_in_a_warning(image_root):
    dataset = timm.ImageDataset(str(image_root), transform=CROPPED, load_bytes=True)
    with pytest.warns(FallbackWarning, match="load_bytes, input_img_mode, additional_features"):
        DataLoader(dataset, 5)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # unclosed by timm
def test_custom_modes_readers_and_subclasses_are_deferred(image_root):
    gray = timm.ImageDataset(str(image_root), transform=CROPPED, input_img_mode="L")
    read = timm.ImageDataset(str(image_root), transform=CROPPED)
    read.reader = type("Mine", (type(read.reader),), {})(str(image_root))
    mine = type("Mine", (timm.ImageDataset,), {})(str(image_root), transform=CROPPED)
    for dataset in (gray, read, mine):
        loader = DataLoader(dataset, 5, fallback="error", device="cpu", exact=True)
        assert "its images are deferred" in loader.explain()
        assert_same_epoch(loader, data.DataLoader(dataset, 5))


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # unclosed by timm
def test_images_in_tar_files_equal_timms(image_root, tmp_path):
    from timm.data.readers.reader_image_tar import ReaderImageTar

    with tarfile.open(tmp_path / "a.tar", "w") as file:
        for one in sorted(image_root.glob("*/*")):
            file.add(one, arcname=str(one.relative_to(image_root)))
    dataset = timm.ImageDataset("", reader=ReaderImageTar(str(tmp_path / "a.tar")), transform=CROPPED)
    loader = DataLoader(dataset, 5, fallback="error", device="cpu", exact=True)
    assert_same_epoch(loader, data.DataLoader(dataset, 5))


@pytest.mark.parametrize(
    "options",
    [
        dict(is_training=True, color_jitter=0.3),
        dict(is_training=True, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25, re_mode="pixel"),
        dict(is_training=False, interpolation="bicubic"),
    ],
    ids=["plain", "policy and erasing", "evaluation"],
)
def test_custom_data_set_with_timms_transforms_draws_timms_numbers(image_root, options):
    transform = timm.create_transform(input_size=24, **options)

    def get(self, i):
        return transform(own.read_rgb(self.paths[i])), i

    made = seeded(dataset_of(ImageFolder(image_root), get), 5, shuffle=True)
    assert_same(made(lambda *a, **kw: ours(*a, device="cpu", exact=True, **kw)), made(stock))
