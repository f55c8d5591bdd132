"""Pillow's metadata of an image, as passed to functions without a translation."""

import copy
import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from contract.both import assert_same_epoch, stock
from dali_compat import DALIHuggingFace, DALIImageFolder, DALIImageList, DataLoader
from dali_compat.data.sources import Info

TAIL = T.Compose([T.CenterCrop((20, 24)), T.PILToTensor()])


@pytest.fixture
def turned(tmp_path):
    """Folder with a JPEG and a PNG of each orientation."""
    (tmp_path / "class").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[274] = orientation
        for suffix in ("jpg", "png"):
            Image.fromarray(pixels).save(tmp_path / "class" / f"{orientation}.{suffix}", exif=exif, dpi=(72, 72))
    return tmp_path


def _identity(image):
    return image


def _write_exif_into_the_corner(image):
    """Read the metadata in a custom function."""
    image.putpixel((0, 0), (image.getexif().get(274, 0), len(image.info), 0))
    return image


FUNCTIONS = {
    "a custom function": T.Compose([_write_exif_into_the_corner, TAIL]),
    "after geometry, which keeps metadata": T.Compose(
        [T.RandomHorizontalFlip(1.0), T.CenterCrop(36), ImageOps.exif_transpose, TAIL]
    ),
    "after other transforms that keep metadata": T.Compose(
        [T.RandomInvert(1.0), T.RandomEqualize(1.0), ImageOps.exif_transpose, TAIL]
    ),
    "after padding, which drops metadata": T.Compose([T.Pad(2), ImageOps.exif_transpose, TAIL]),
    "after color jitter, which drops metadata": T.Compose([T.ColorJitter((0.5, 0.5)), ImageOps.exif_transpose, TAIL]),
    "after another function": T.Compose([_identity, T.RandomVerticalFlip(1.0), ImageOps.exif_transpose, TAIL]),
    "after an identity function": T.Compose([_identity, ImageOps.exif_transpose, TAIL]),
}


@pytest.mark.parametrize("case, num_workers", [*((case, 0) for case in FUNCTIONS), ("a custom function", 2)])
def test_functions_get_the_metadata_of_torchvisions_images(turned, case, num_workers):
    dataset = DALIImageFolder(turned, FUNCTIONS[case])
    loader = _silent(dataset, 5, num_workers=num_workers, exact=True)
    assert "because" in loader.explain()  # its transform has no translation
    assert_same_epoch(loader, stock(ImageFolder(turned, FUNCTIONS[case]), 5))


def test_collate_fn_gets_the_metadata_of_pil_images(turned):

    def orientations(samples):
        return [image.getexif().get(274) for image, _ in samples]

    mine, theirs = (make(DALIImageFolder(turned), 4, collate_fn=orientations) for make in (_silent, stock))
    assert list(mine) == list(theirs) and {1, 6} < set(sum(mine, []))


def _silent(*args, **options):
    return DataLoader(*args, fallback="silent", device="cpu", **options)


def test_functions_of_several_crops_get_the_metadata(turned):
    transform = T.Compose(
        [T.FiveCrop(30), lambda crops: torch.stack([TAIL(ImageOps.exif_transpose(c)) for c in crops])]
    )
    assert_same_epoch(_silent(DALIImageFolder(turned, transform), 4), stock(ImageFolder(turned, transform), 4))


def test_functions_get_the_metadata_of_images_without_a_path(turned):
    """datasets applies the orientation itself, and the metadata must reflect that."""
    arrow = pytest.importorskip("datasets")
    paths = [path for path, _ in ImageFolder(turned).samples]
    rows = [{"bytes": open(path, "rb").read(), "path": None} for path in paths]
    table = arrow.Dataset.from_dict({"image": rows, "label": list(range(len(rows)))}).cast_column(
        "image", arrow.Image()
    )
    dataset = DALIHuggingFace(table, "image", "label", transform=FUNCTIONS["a custom function"])
    assert_same_epoch(_silent(dataset, 5, num_workers=2), stock(dataset, 5))


def test_functions_get_the_metadata_of_a_list_of_files(turned):
    paths = [path for path, _ in ImageFolder(turned).samples]
    dataset = DALIImageList(paths, list(range(len(paths))), FUNCTIONS["after an identity function"])
    assert_same_epoch(_silent(data.Subset(dataset, [3, 0, 9]), 2), stock(data.Subset(dataset, [3, 0, 9]), 2))


def test_metadata_is_read_only_on_access(tmp_path):
    info = Info(str(tmp_path / "no such file.jpg"))
    again = pickle.loads(pickle.dumps(copy.copy(copy.deepcopy(info.copy()))))
    with pytest.raises(FileNotFoundError, match="no such file"):
        again.get("exif")


def test_metadata_behaves_as_a_dict(turned):
    path = str(turned / "class" / "6.jpg")
    info, known = Info(path), Image.open(path).convert("RGB").info
    assert dict(info) == known == dict(info.copy()) and repr(info) == repr(known) and len(info) == len(known)
    assert info | {"exif": 1} == known | {"exif": 1} and {"exif": 1} | info == known and copy.copy(info) == known
    info["mine"] = 1
    del info["exif"]
    assert dict(pickle.loads(pickle.dumps(info))) == {k: v for k, v in (known | {"mine": 1}).items() if k != "exif"}
