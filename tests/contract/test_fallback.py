"""Batches and warnings of torchvision's route, and effects of importing the package."""

import os
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from contract.both import EXACT, REPOSITORY, assert_same_pixels, ours, outlines, pixels, python, said, stock
from dali_compat import DALIArrayDataset, DALIImageFolder, DataLoader, FallbackWarning

PACKAGE = REPOSITORY / "dali_compat"


class HalveSize:
    def __call__(self, image):
        return image.resize((image.width // 2, image.height // 2))

    def __repr__(self):
        return "HalveSize()"


class CenterCropSubclass(T.CenterCrop):
    """A subclass, which may do anything."""

    def forward(self, img):
        return super().forward(img)


class ComposeSubclass(T.Compose):
    """A Compose that rotates the image first."""

    def __call__(self, image):
        return super().__call__(image.rotate(90))


UNTRANSLATABLE = {
    "a custom callable": (T.Compose([HalveSize(), EXACT]), "HalveSize()"),
    "a subclass": (T.Compose([CenterCropSubclass(40), T.PILToTensor()]), "CenterCropSubclass"),
    "a subclass of Compose": (ComposeSubclass([EXACT]), "ComposeSubclass"),
    "a function": (lambda image: EXACT(image.rotate(90)), "lambda"),
    "a hook": (T.Compose([T.CenterCrop(40), T.PILToTensor()]), "hook"),
    "a replaced forward": (T.Compose([T.CenterCrop(40), T.PILToTensor()]), "replaced"),
}
UNTRANSLATABLE["a hook"][0].transforms[0].register_forward_hook(lambda module, args, output: output.rotate(180))
UNTRANSLATABLE["a replaced forward"][0].transforms[0].forward = lambda image: image.resize((40, 40))


def _warned(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function()
    return result, [w for w in caught if issubclass(w.category, FallbackWarning)]


@pytest.mark.parametrize("case", UNTRANSLATABLE)
def test_a_transform_without_a_translation_is_traced(image_root, case):
    transform, name = UNTRANSLATABLE[case]
    dataset = ImageFolder(image_root, transform)
    loader, caught = _warned(lambda: DataLoader(dataset, 5, exact=True, fallback="error"))
    (batches, explained), more = _warned(lambda: ([pixels(loader), pixels(loader)], loader.explain()))
    assert caught == more == []
    reason = next(line for line in explained.splitlines() if line.startswith("  because"))
    assert explained.startswith("DALI route") and "its images are deferred" in explained and name in reason
    for epoch in batches:
        assert_same_pixels(epoch, pixels(stock(dataset, 5)))


READS_PIXELS = {
    "a function": (lambda image: EXACT(Image.fromarray(np.asarray(image).copy())), "the image's pixels"),
    "a tensor's function": (T.Compose([EXACT, T.Lambda(lambda image: image.sort().values)]), "the tensor's sort"),
}


@pytest.mark.parametrize("case", READS_PIXELS)
def test_a_fallback_warns_once_and_gives_torchs_batches(image_root, case):
    transform, reason = READS_PIXELS[case]
    dataset = ImageFolder(image_root, transform)
    loader, caught = _warned(lambda: DataLoader(dataset, 5))
    assert len(caught) == 1 and reason in str(caught[0].message) and "\n" not in str(caught[0].message)
    assert caught[0].filename == __file__  # the user's line, not one of dali_compat's
    (batches, explained), more = _warned(lambda: ([pixels(loader), pixels(loader)], loader.explain()))
    assert more == []
    assert explained.startswith("torchvision route") and reason in explained
    for epoch in batches:
        assert_same_pixels(epoch, pixels(stock(dataset, 5)))


def test_a_fallback_warns_again_for_another_reason(image_root):
    dataset = ImageFolder(image_root, EXACT)
    loader, caught = _warned(lambda: DataLoader(dataset, 5))
    assert caught == []
    for transform, _ in READS_PIXELS.values():
        dataset.transform = transform
        for expected in (1, 0):
            _, caught = _warned(lambda: list(loader))
            assert len(caught) == expected
    dataset.transform = EXACT
    assert _warned(lambda: list(loader))[1] == [] and loader.explain().startswith("DALI route")


def test_fallback_silent_does_not_warn(image_root):
    loader, caught = _warned(
        lambda: DataLoader(ImageFolder(image_root, READS_PIXELS["a function"][0]), fallback="silent")
    )
    assert caught == [] and _warned(lambda: list(loader))[1] == []
    assert loader.explain().startswith("torchvision route")


@pytest.mark.parametrize("case", READS_PIXELS)
def test_fallback_error_raises_with_the_reason(image_root, case):
    transform, reason = READS_PIXELS[case]
    with pytest.raises(RuntimeError, match="fallback='error'") as caught:
        DataLoader(ImageFolder(image_root, transform), fallback="error")
    assert reason in str(caught.value)


def test_fallback_error_raises_for_a_later_change(image_root):
    dataset = ImageFolder(image_root, EXACT)
    loader = ours(dataset, 5)
    dataset.transform = READS_PIXELS["a function"][0]
    with pytest.raises(RuntimeError, match="fallback='error'"):
        iter(loader)


class MaybeToTensor(T.ToTensor):
    """open_clip's class."""

    def __call__(self, image):
        return image if isinstance(image, torch.Tensor) else super().__call__(image)


def test_a_custom_to_tensor_stays_on_the_dali_route(image_root):
    transform = T.Compose([T.CenterCrop(40), MaybeToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3)])
    dataset = ImageFolder(image_root, transform)
    loader, caught = _warned(lambda: DataLoader(dataset, 5, exact=True, fallback="error"))
    assert caught == [] and loader.explain().startswith("DALI route")
    assert_same_pixels(pixels(loader), pixels(stock(dataset, 5)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_returns_text_gives_torchs_batches(image_root, workers):
    """default_collate makes a tuple of strings."""
    dataset = ImageFolder(image_root, lambda image: str(image.size))
    loader = DataLoader(dataset, 5, num_workers=workers, fallback="silent", device="cpu")
    assert outlines(loader, 1) == outlines(stock(dataset, 5), 1)
    assert type(next(iter(loader))[0]) is tuple


class RaisesInRepr:
    """A transform whose repr raises an error."""

    def __call__(self, image):
        return image.crop((0, 0, 40, 40))

    def __repr__(self):
        raise KeyError("no such mode")


def _with_an_unexpected_attribute():
    crop = T.RandomResizedCrop(40)
    crop.interpolation = 2  # as in torchvision before the enum
    with pytest.raises(AttributeError):
        repr(crop)
    return T.Compose([crop, T.PILToTensor()])


WITHOUT_REPR = {
    "a custom callable": T.Compose([RaisesInRepr(), T.PILToTensor()]),
    "within a wrapper": lambda image: T.Compose([RaisesInRepr(), T.PILToTensor()])(image),
    "a transform of torchvision's": _with_an_unexpected_attribute(),
}


@pytest.mark.parametrize("case", WITHOUT_REPR)
def test_a_transform_whose_repr_raises_is_accepted(image_root, case):
    """torch does not call repr()."""
    dataset = ImageFolder(image_root, WITHOUT_REPR[case])
    loader = DataLoader(dataset, 5, fallback="silent")
    loader.load_state_dict(loader.state_dict())
    assert loader.explain().startswith("DALI route")
    assert outlines(loader, 1) == outlines(stock(dataset, 5), 1)
    dataset.loader = lambda path: Image.fromarray(np.asarray(Image.open(path).convert("RGB")))
    assert loader.explain().startswith("torchvision route") and loader.state_dict()


def test_convert_of_rgb_images_equals_torchs(image_root):
    """The images are already RGB, so convert() has no effect."""
    for convert in (lambda image: image.convert("RGB"), T.Lambda(lambda image: image.convert(mode="L"))):
        for chain in ([convert, EXACT], [T.CenterCrop(40), convert, T.PILToTensor()]):
            dataset = ImageFolder(image_root, T.Compose(chain))
            assert_same_pixels(pixels(ours(dataset, 5, exact=True, device="cpu")), pixels(stock(dataset, 5)))
            gray = DALIArrayDataset(torch.arange(192, dtype=torch.uint8).reshape(3, 8, 8), [0] * 3, dataset.transform)
            mine = ours(gray, 3, exact=True, device="cpu")
            assert_same_pixels(pixels(mine), [torch.stack([gray[i][0] for i in range(3)])])


def test_convert_of_other_modes_equals_torchs_and_fails_for_tensors(image_root):
    rgb = lambda image: image.convert("RGB")  # noqa: E731
    others = {"RGBA": lambda image: image.convert("RGBA"), "P": lambda image: image.quantize(9)}
    for function in others.values():
        dataset = ImageFolder(image_root, T.Compose([T.CenterCrop(40), function, rgb, T.PILToTensor()]))
        loader = DataLoader(dataset, 5, fallback="silent", device="cpu")
        assert_same_pixels(pixels(loader), pixels(stock(dataset, 5)))
    dataset = ImageFolder(image_root, T.Compose([T.CenterCrop(40), T.PILToTensor(), rgb]))
    for loader in (DataLoader(dataset, 5, fallback="silent"), stock(dataset, 5)):
        with pytest.raises(AttributeError, match="convert"):
            next(iter(loader))


class Stream(data.IterableDataset):
    def __iter__(self):
        worker = data.get_worker_info()
        return iter(range(worker.id if worker else 0, 9, worker.num_workers if worker else 1))


OTHER_DATASETS = {
    "tensors": lambda: data.TensorDataset(torch.arange(30.0).reshape(10, 3), torch.arange(10)),
    "list": lambda: list(range(10)),
    "dicts": lambda: [{"a": i, "b": [i, str(i)]} for i in range(10)],
    "iterable": Stream,
    "chain": lambda: data.ChainDataset([Stream(), Stream()]),
    "no transform is a list": lambda: [(torch.ones(2), "x")] * 5,
}


@pytest.mark.parametrize("case, num_workers", [*((case, 0) for case in OTHER_DATASETS), ("dicts", 2), ("iterable", 2)])
def test_other_data_sets_give_torchs_batches(case, num_workers):
    options = dict(batch_size=3, num_workers=num_workers, shuffle=None if case in ("iterable", "chain") else True)
    mine = DataLoader(OTHER_DATASETS[case](), fallback="silent", **options)
    assert outlines(mine) == outlines(stock(OTHER_DATASETS[case](), **options))


@pytest.mark.parametrize("options", [dict(num_workers=2, persistent_workers=True), dict(num_workers=1, timeout=60)])
def test_worker_arguments_reach_torchs_workers(options):
    def seed_worker(worker):
        torch.manual_seed(worker)

    mine, theirs = (
        make(list(range(8)), 2, worker_init_fn=seed_worker, **options)
        for make in (lambda *a, **k: DataLoader(*a, fallback="silent", **k), stock)
    )
    assert outlines(mine) == outlines(theirs)


def test_a_folder_without_transform_raises_torchs_error_with_a_remedy(image_root):
    loader = DataLoader(DALIImageFolder(image_root), fallback="silent")
    with pytest.raises(TypeError, match="default_collate") as mine:
        list(loader)
    with pytest.raises(TypeError) as theirs:
        list(stock(ImageFolder(image_root)))
    assert str(mine.value) == f"{theirs.value}. Add ToTensor() or v2.ToImage() to the transform"
    assert "samples are PIL images" in loader.explain()


# ---- DALI is not installed

_BLOCK = """
import importlib.abc
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "nvidia.dali" or name.startswith("nvidia.dali."):
            raise ModuleNotFoundError(f"No module named {name!r}", name="nvidia.dali")
sys.meta_path.insert(0, Block())
import importlib.metadata
real = importlib.metadata.distributions
others = lambda found: [d for d in found if "dali" not in (d.metadata["Name"] or "").lower()]
importlib.metadata.distributions = lambda **kw: others(real(**kw))
"""


def test_without_dali_folders_fall_back_and_arrays_do_not(image_root):
    code = """
import warnings, torch
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from contract.both import EXACT
from dali_compat import DataLoader, DALIArrayDataset, DALIImageFolder
arrays = DALIArrayDataset(torch.zeros(5, 4, 4, dtype=torch.uint8), range(5), T.ToTensor())
print([y.tolist() for x, y in DataLoader(arrays, 2, fallback="error", device="cpu")])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    datasets = [kind(sys.argv[1], EXACT) for kind in (ImageFolder, DALIImageFolder)]
    loaders = [DataLoader(dataset, 5, shuffle=True, device="cpu") for dataset in datasets]
for warning in caught:
    print(warning.message)
for loader in loaders:
    torch.manual_seed(0)
    mine = list(loader)
    torch.manual_seed(0)
    theirs = list(torch.utils.data.DataLoader(loader.dataset, 5, shuffle=True))
    assert all(torch.equal(a, b) for x, y in zip(mine, theirs, strict=True) for a, b in zip(x, y, strict=True))
print(loader.explain())
assert "nvidia.dali" not in sys.modules
"""
    of_arrays, *lines = said(python(_BLOCK + code, str(image_root))).splitlines()
    assert of_arrays == "[[0, 1], [2, 3], [4]]"
    assert len(lines) >= 4
    for line in lines[:2]:  # one line per loader
        assert "DALI is not installed" in line and "pip install" in line and "nvidia-dali-cuda" in line
    assert lines[2].startswith("torchvision route") and "pip install" in lines[3]


# ---- importing


@pytest.mark.parametrize("first", ["", "import torch; "])
def test_importing_loads_neither_dali_nor_torchvision(first):
    code = (
        first
        + "import dali_compat; print(sorted(m for m in sys.modules if m.split('.')[0] in ('nvidia', 'torchvision')))"
    )
    assert said(python(code)) == "[]\n"


@pytest.mark.parametrize("given", [None, "4"])
def test_importing_sets_cuda_max_connections_unless_set(monkeypatch, given):
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if given:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", given)
    before = dict(os.environ)
    changed = "{k: v for k, v in os.environ.items() if before.get(k) != v}"
    code = f"import os; before = dict(os.environ); import dali_compat; print({changed})"
    expected = {} if given else {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    assert said(python(code)) == f"{expected}\n" and dict(os.environ) == before


def test_unknown_names_of_the_package_raise_attribute_error():
    import dali_compat

    with pytest.raises(AttributeError, match="no attribute 'Loader'"):
        _ = dali_compat.Loader
