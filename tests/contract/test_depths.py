"""Images of 16 and more bits keep their depth as in torchvision's conversions; dtypes at the end of a transform;
nested RandomApply in custom functions."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import dali_compat
from contract.both import assert_same_pixels, stock
from dali_compat import DALIArrayDataset, DataLoader, FallbackWarning

EDGES = 0, 1, 127, 128, 255, 256, 257, 32767, 32768, 65535  # values that differ after a conversion to 8 bits


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Folder with two classes: a gray PNG of 16 bits, TIFFs of 16 and 32 bits and of floats, and photos of 8 bits."""
    root, rng = tmp_path_factory.mktemp("depths"), np.random.default_rng(0)
    for name in "ab":
        (root / name).mkdir()
        deep = rng.integers(0, 1 << 16, (40, 48)).astype(np.uint16)
        deep[20, 16 : 16 + len(EDGES)] = EDGES
        Image.fromarray(deep).save(root / name / "0 I;16.png")
        Image.fromarray(deep).save(root / name / "1 I;16.tiff")
        Image.fromarray(deep.astype(np.int32) * 1000).save(root / name / "2 I.tiff")
        Image.fromarray(deep.astype(np.float32) / 7).save(root / name / "3 F.tiff")
        for number in (4, 5):
            Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).save(root / name / f"{number} RGB.png")
    return root


class OpensImages(data.Dataset):
    """A data set that opens images in their mode."""

    def __init__(self, paths, transform, mode: str = ""):
        self.paths, self.transform, self.mode = paths, transform, mode

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index])
        return self.transform(image.convert(self.mode) if self.mode else image), index


def files_named(root, word: str) -> list[Path]:
    return sorted(path for path in root.rglob("*.*") if word in path.name)


TRANSFORMS = {
    "PILToTensor": v1.PILToTensor(),
    "ToTensor": v1.ToTensor(),
    "crop, ToTensor": v1.Compose([v1.CenterCrop(32), v1.ToTensor()]),
    "resize": v1.Compose([v1.Resize((20, 20)), v1.PILToTensor()]),
    "flip, float": v1.Compose([v1.RandomHorizontalFlip(1), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    "ToImage": v2.ToImage(),
    "ToImage, crop, float": v2.Compose([v2.ToImage(), v2.CenterCrop(30), v2.ToDtype(torch.float32, scale=True)]),
    "int32": v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.int32)]),
    "float, not scaled": v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32)]),
    "NumPy": lambda image: torch.from_numpy(np.array(image).astype(np.float32)),
}


def assert_same(dataset, theirs=None, **options) -> None:
    """Check that batches, or the error, equal torch's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        loader = DataLoader(dataset, 2, device="cpu", exact=True, **options)
        expected = list(_batches_and_error(stock(theirs or dataset, 2)))
        made = list(_batches_and_error(loader))
    assert list(map(type, made)) == list(map(type, expected))
    images = [one for one in expected if isinstance(one, torch.Tensor)]
    if images:
        assert_same_pixels([one for one in made if isinstance(one, torch.Tensor)], images)


def _batches_and_error(loader):
    torch.manual_seed(0)
    try:
        for batch in loader:
            yield batch[0]
    except Exception as error:
        yield error


@pytest.mark.alike
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind", ["0 I;16", "1 I;16", "2 I", "3 F"])
def test_a_custom_data_set_keeps_the_depth(root, kind, name):
    assert_same(OpensImages(files_named(root, kind), TRANSFORMS[name]))


@pytest.mark.alike
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind", ["0 I;16", "1 I;16", "2 I", "3 F"])
def test_a_custom_data_set_keeps_the_depth_with_workers(root, kind, name):
    assert_same(OpensImages(files_named(root, kind), TRANSFORMS[name]), num_workers=1)


@pytest.mark.parametrize("kind, mode", [("0 I;16", "I;16"), ("2 I", "I"), ("3 F", "F")])
def test_the_fallback_warning_names_the_mode_and_line(root, kind, mode):
    message = rf"opens images in mode {mode}, which has more than 8 bits per channel \(.*test_depths\.py:\d+\)$"
    with pytest.warns(FallbackWarning, match=message):
        DataLoader(OpensImages(files_named(root, kind), TRANSFORMS["crop, ToTensor"]), 2, device="cpu")


def test_all_sixteen_bits_reach_the_batch(root):
    loader = DataLoader(OpensImages(files_named(root, "0 I;16"), v1.PILToTensor()), 2, device="cpu", fallback="silent")
    ((images, _),) = loader
    assert images.dtype in (torch.uint16, torch.int32)  # dtypes of new and old torchvision
    assert images[0, 0, 20, 16 : 16 + len(EDGES)].tolist() == list(EDGES)


@pytest.mark.alike
@pytest.mark.parametrize("mode", ["I", "F", "L", "RGB", "I;16"])
@pytest.mark.parametrize("kind", ["0 I;16", "1 I;16", "2 I", "3 F", "RGB"])
def test_conversions_to_other_modes_equal_pillows(root, kind, mode):
    assert_same(OpensImages(files_named(root, kind), v1.ToTensor(), mode))


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["PILToTensor", "ToTensor", "crop, ToTensor", "ToImage, crop, float", "NumPy"])
def test_deep_images_after_photos_keep_their_depth(root, name, workers):
    """DALI decodes the photos."""
    gray = lambda image: image.convert("L") if image.mode == "RGB" else image  # noqa: E731
    for first in ("RGB", "I;16"):
        paths = [
            *files_named(root, first),
            *files_named(root, "RGB"),
            *files_named(root, "0 I;16"),
            *files_named(root, "1 I;16"),
        ]
        assert_same(OpensImages(paths, TRANSFORMS[name]), num_workers=workers)
        assert_same(OpensImages(paths, v1.Compose([v1.Lambda(gray), TRANSFORMS[name]])), num_workers=workers)


@pytest.mark.parametrize("kind", ["0 I;16", "1 I;16", "2 I", "3 F", "RGB"])
def test_image_open_as_loader_keeps_the_depth(root, kind):
    for make in (ImageFolder, dali_compat.DALIImageFolder):
        assert_same(make(root, v1.ToTensor(), loader=Image.open, is_valid_file=lambda path: kind in path))


def test_torchvisions_default_loader_converts_to_eight_bits(root):
    """pil_loader converts to RGB."""
    assert_same(ImageFolder(root, v1.PILToTensor()))
    assert_same(dali_compat.DALIImageFolder(root, v1.PILToTensor()), ImageFolder(root, v1.PILToTensor()))


# ---- dtypes


class Half:
    def __call__(self, image):
        return image.half()


class Float:
    def __call__(self, image):
        return image.float()


class CustomCompose:
    """A custom Compose."""

    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


CROP, TENSOR = v1.CenterCrop(32), v1.ToTensor()
NORMALIZE = v2.Normalize((0.5,) * 3, (0.5,) * 3)
ENDS = {
    "a lambda's half": v1.Compose([CROP, TENSOR, v1.Lambda(lambda image: image.half())]),
    "a class's half": v1.Compose([CROP, TENSOR, Half()]),
    "half within a wrapper": CustomCompose(CROP, TENSOR, Half()),
    "bfloat16 of bytes": v1.Compose([CROP, v1.PILToTensor(), v1.Lambda(lambda image: image.bfloat16())]),
    "float of a tv_tensor": v2.Compose([CROP, v2.ToImage(), Float(), NORMALIZE]),
    "half, then more": v1.Compose([CROP, TENSOR, Half(), v1.RandomHorizontalFlip(1)]),
    "ConvertImageDtype": v1.Compose([CROP, TENSOR, v1.ConvertImageDtype(torch.half)]),
    "ToDtype": v2.Compose([v2.ToImage(), CROP, v2.ToDtype(torch.bfloat16, scale=True), NORMALIZE]),
    "ToDtype, not scaled": v2.Compose([v2.ToImage(), CROP, v2.ToDtype(torch.bfloat16)]),
    "float32, then bfloat16": v2.Compose(
        [v2.ToImage(), CROP, v2.ToDtype(torch.float32, scale=True), NORMALIZE, v2.ToDtype(torch.bfloat16)]
    ),
    "chances in chances": v1.Compose(
        [CROP, v1.RandomApply([v1.RandomApply([CustomCompose(v1.RandomHorizontalFlip(1))], 1.0)], 1.0), TENSOR]
    ),
    "a wrapper in a chance in a wrapper": CustomCompose(
        CROP,
        v1.RandomApply([CustomCompose(v1.RandomApply([v1.RandomVerticalFlip(1)], 1.0), v1.Grayscale(3))], 1.0),
        TENSOR,
    ),
    "v2's": v2.Compose(
        [CROP, v2.RandomApply([CustomCompose(v2.RandomApply([v2.RandomVerticalFlip(1)], 1.0))], 1.0), v2.ToImage()]
    ),
}


@pytest.mark.alike
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("of", ["folder", "array", "own"])
def test_dtypes_and_nested_random_apply_equal_torchs(root, name, of):
    if of == "folder":
        dataset = ImageFolder(root, ENDS[name], is_valid_file=lambda path: "RGB" in path)
    elif of == "array":
        images = np.random.default_rng(0).integers(0, 256, (5, 40, 44, 3), np.uint8)
        dataset = DALIArrayDataset(images, list(range(5)), ENDS[name])
    else:
        dataset = OpensImages(files_named(root, "RGB"), ENDS[name])
    seen = (of, name) != ("own", "float of a tv_tensor")
    assert_same(dataset, fallback="error" if seen else "silent")


@pytest.mark.parametrize("chance", [v1.RandomApply, v2.RandomApply])
def test_probabilities_of_nested_random_apply_multiply(chance):
    flip = CustomCompose(chance([CustomCompose(chance([v1.RandomHorizontalFlip(1)], 0.5))], 0.5))
    images = np.zeros((400, 8, 8, 3), np.uint8)
    images[:, :, 0] = 255
    torch.manual_seed(0)
    loader = DataLoader(
        DALIArrayDataset(images, [0] * 400, v1.Compose([flip, TENSOR])), 400, device="cpu", fallback="error"
    )
    ((made, _),) = loader
    assert 70 < int(made[:, 0, 0, -1].sum()) < 130


def test_half_of_a_pil_image_raises_attribute_error(root):
    dataset = ImageFolder(root, v1.Compose([CROP, Half()]), is_valid_file=lambda path: "RGB" in path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        with pytest.raises(AttributeError, match="half"):
            list(DataLoader(dataset, 2, device="cpu"))
