"""EXIF orientation is applied as by ImageOps.exif_transpose(), by orient=True or by a call in the user's code."""

import os
import time
import warnings

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract.both import EXACT, assert_same_epoch, assert_same_pixels, ours, pixels, stock
from dali_compat import BadImageWarning, DALIImageFolder, DALIImageList
from dali_compat.engine import pil

KINDS = "jpg", "png", "tiff", "webp"
BY_DALI = ".jpg", ".png"
TRANSFORMS = {
    "windows": T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()]),
    "windows that are not resized": T.Compose([T.RandomCrop((40, 33)), T.PILToTensor()]),
    "one row": T.Compose([T.CenterCrop((1, 40)), T.PILToTensor()]),
    "one column": T.Compose([T.CenterCrop((40, 1)), T.PILToTensor()]),
    "a resize and a window": T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor(), T.Normalize(0.5, 0.5)]),
    "a pad": T.Compose([T.Pad((3, 50, 5, 7)), T.CenterCrop(70), T.PILToTensor()]),
    "in gray": T.Compose([T.Grayscale(), T.RandomCrop(40), T.ToTensor()]),
    "a rotation": T.Compose([T.RandomRotation(40), T.CenterCrop(30), T.ToTensor()]),
    "several crops": T.Compose([T.FiveCrop(30), T.Lambda(lambda crops: torch.stack([T.ToTensor()(c) for c in crops]))]),
    "nothing": T.ToTensor(),
}


def _exif(orientation) -> Image.Exif:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    if orientation:
        exif[0x0112] = orientation
    return exif


@pytest.fixture(scope="module")
def oriented(tmp_path_factory):
    """Images with each EXIF orientation, and with none, in several formats; all sizes differ."""
    root = tmp_path_factory.mktemp("turned")
    rng = np.random.default_rng(0)
    for number, kind in enumerate(KINDS):
        folder = root / f"class_{number}"
        folder.mkdir()
        for orientation in range(9):
            pixels = rng.integers(0, 256, (97 + 2 * orientation, 61 + number, 3), dtype=np.uint8)
            image, exif = Image.fromarray(pixels), _exif(orientation)
            image.save(folder / f"{orientation}.{kind}", exif=exif, **_lossless(kind))
            if kind == "jpg":
                image.convert("L").save(folder / f"{orientation} gray.jpg", exif=exif)
                image.save(folder / f"{orientation} progressive.jpg", exif=exif, progressive=True, subsampling=0)
            if kind == "png":
                image.convert("P").save(folder / f"{orientation} palette.png", exif=exif)
    return root


def _lossless(kind: str) -> dict:
    return {"lossless": True} if kind == "webp" else {}


def upright(path):
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


@pytest.fixture
def pil_loads(monkeypatch):
    """The files that Pillow decodes during the test."""
    decoded, original_load = [], pil.load

    def recording_load(source, *args):
        decoded.append(str(source))
        return original_load(source, *args)

    monkeypatch.setattr(pil, "load", recording_load)
    return decoded


def test_orient_gives_the_pixels_of_a_loader_that_calls_exif_transpose(oriented, pil_loads):
    mine, theirs = DALIImageFolder(oriented, EXACT, orient=True), ImageFolder(oriented, EXACT, loader=upright)
    for _ in range(2):
        loader = ours(mine, 5, num_workers=2, device="cpu")
        assert_same_epoch(loader, stock(theirs, 5))
        assert_same_epoch(loader, stock(theirs, 5))
    assert {os.path.splitext(path)[1] for path in pil_loads} == {".tiff", ".webp"}
    for index in range(len(mine)):
        assert torch.equal(mine[index][0], theirs[index][0]) and mine[index][1] == theirs[index][1]
    plain, changed = ImageFolder(oriented, EXACT), []
    for index in range(len(mine)):
        changed += [] if torch.equal(mine[index][0], plain[index][0]) else [os.path.splitext(mine.samples[index][0])[1]]
    # Pillow applies a TIFF's orientation itself
    assert sorted(set(changed)) == [".jpg", ".png", ".webp"] and len(changed) == 6 * 7


def _images_of_two_epochs(folder, case, exact, device, orient=False, **options):
    torch.manual_seed(0)
    dataset, several = DALIImageFolder(folder, TRANSFORMS[case], orient=orient), 1 if case == "nothing" else 7
    loader = ours(dataset, several, exact=exact, device=device, fallback="silent", **options)
    return [image.cpu() for _ in range(2) for images, _ in loader for image in images]


@pytest.fixture(scope="module")
def folders(oriented):
    """The folder of oriented images, and a folder of upright copies as PNG."""
    copies = oriented.parent / f"{oriented.name} turned"
    for path, _ in DALIImageFolder(oriented).samples:
        target = (copies / path[len(str(oriented)) + 1 :]).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        target = target.with_name(f"{os.path.basename(path)}.png")
        upright(path).save(target)
    return oriented, copies


@pytest.mark.alike
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("case", TRANSFORMS)
def test_oriented_images_equal_upright_copies_after_each_transform(folders, case, exact):
    """Random numbers that depend on the size must be drawn for the upright image."""
    made, expected = (
        _images_of_two_epochs(folder, case, exact, "cpu", orient=folder is folders[0]) for folder in folders
    )
    for a, b, path in zip(made, expected, _paths(folders[0]), strict=True):
        assert a.shape == b.shape, path
        if exact or path.endswith(BY_DALI):  # Pillow resizes the other formats
            assert torch.equal(a, b), path


def _paths(folder) -> list[str]:
    """Return the paths of two epochs."""
    return [path for path, _ in DALIImageFolder(folder).samples] * 2


def _one_level(image) -> float:
    """Return one of 256 levels; for a normalized image, an upper bound."""
    return 2 / 255 if image.dtype.is_floating_point else 1


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("case", TRANSFORMS)
def test_oriented_images_on_gpu_are_close_to_upright_copies(folders, case, exact):
    """nvJPEG repeats chroma samples, whereas Pillow interpolates them. For this noise the mean difference is 14 levels,
    and up to 18 for a row of 40 pixels (measured with libjpeg's fast upsampling); a wrong orientation differs by 80
    levels."""
    made, expected = (
        _images_of_two_epochs(folder, case, exact, "cuda", orient=folder is folders[0]) for folder in folders
    )
    for a, b, path in zip(made, expected, _paths(folders[0]), strict=True):
        assert a.shape == b.shape, path
        if exact:
            assert torch.equal(a, b), path
        else:
            assert (a.float() - b.float()).abs().mean() <= (25 if path.endswith(".jpg") else 2) * _one_level(a), path


class ExifTranspose:
    def __init__(self, rest):
        self.rest = rest

    def __call__(self, image):
        return self.rest(ImageOps.exif_transpose(image))


EXIF_TRANSPOSE_FIRST = {
    "the function": T.Compose([ImageOps.exif_transpose, EXACT]),
    "a Lambda": T.Compose([T.Lambda(ImageOps.exif_transpose), EXACT]),
    "a Lambda of v2": v2.Compose([v2.Lambda(ImageOps.exif_transpose), EXACT]),
    "a lambda": T.Compose([T.Lambda(lambda image: ImageOps.exif_transpose(image)), EXACT]),
    "in a container": T.Compose([T.Compose([torch.nn.Identity(), ImageOps.exif_transpose]), EXACT]),
    "in a class": ExifTranspose(EXACT),
    "and converted": T.Compose([lambda image: ImageOps.exif_transpose(image).convert("RGB"), EXACT]),
    "twice": T.Compose([ImageOps.exif_transpose, ImageOps.exif_transpose, EXACT]),
    "and called in Python": T.Compose([ImageOps.exif_transpose, T.Lambda(lambda image: image.resize((50, 70))), EXACT]),
}


@pytest.mark.alike
@pytest.mark.parametrize("case", EXIF_TRANSPOSE_FIRST)
def test_transform_that_starts_with_exif_transpose_gives_torchvisions_pixels(oriented, pil_loads, case):
    transform, in_python = EXIF_TRANSPOSE_FIRST[case], case in ("twice", "and called in Python")
    sets = [ImageFolder(oriented, transform)]
    if case in ("the function", "and called in Python"):
        sets += [DALIImageFolder(oriented, transform, orient=True), _image_list(oriented, case)]
    for made in sets:
        loader = ours(made, 5, num_workers=2, device="cpu", exact=True, fallback="error")
        assert in_python or "upright" in loader.explain()
        theirs = stock(ImageFolder(oriented, transform), 5)
        assert_same_epoch(loader, theirs)
        assert_same_epoch(loader, theirs)
        assert in_python or {os.path.splitext(path)[1] for path in pil_loads} == {".tiff", ".webp"}


def _image_list(folder, case):
    paths, targets = zip(*ImageFolder(folder).samples, strict=True)
    return DALIImageList(list(paths), list(targets), EXIF_TRANSPOSE_FIRST[case])


def test_pixels_equal_torchs_when_the_transform_is_replaced(oriented):
    """The transform changes between epochs; a second loader of the data set sees the change, too."""
    dataset, plain = DALIImageFolder(oriented, EXACT), ImageFolder(oriented, EXACT)
    loader = ours(dataset, 5, device="cpu")
    for transform in (EXACT, EXIF_TRANSPOSE_FIRST["a Lambda"], EXACT, EXIF_TRANSPOSE_FIRST["a lambda"]):
        dataset.transform = plain.transform = transform
        assert_same_epoch(loader, stock(plain, 5))
        assert_same_epoch(ours(data.Subset(dataset, range(len(dataset))), 5, device="cpu"), stock(plain, 5))


def _with_labels_as_text(dataset: DALIImageList) -> None:
    dataset.targets = list(map(str, dataset.targets))


def _with_damaged_files(dataset: DALIImageList) -> None:
    dataset.paths[::3] = [__file__] * len(dataset.paths[::3])


@pytest.mark.parametrize("change", [_with_labels_as_text, _with_damaged_files])
def test_running_epoch_rotates_images_when_another_loader_does_not(oriented, change):
    """The transform is replaced before the second loader starts. Substitutes of damaged files are rotated, too."""
    options = dict(num_workers=1, prefetch_factor=1, device="cpu", exact=True, on_error="replace")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadImageWarning)
        dataset = _image_list(oriented, "the function")
        change(dataset)
        torch.manual_seed(0)
        expected = list(ours(dataset, 3, **options))
        torch.manual_seed(0)
        running = iter(ours(dataset, 3, **options))
        found = [next(running) for _ in range(2)]
        dataset.transform = EXACT
        next(iter(ours(dataset, 3, **options)))
        found += running
    assert_same_pixels(pixels(found), pixels(expected))
    assert [list(labels) for _, labels in found] == [list(labels) for _, labels in expected]


@pytest.mark.parametrize("form", ["files", "a loader"])
def test_custom_data_set_that_calls_exif_transpose_gives_torchs_pixels(oriented, pil_loads, form):
    class CustomDataset(data.Dataset):
        def __init__(self):
            self.samples = ImageFolder(oriented).samples

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, i):
            path, target = self.samples[i]
            return EXACT(upright(path)), target

    dataset = CustomDataset() if form == "files" else ImageFolder(oriented, EXACT, loader=upright)
    time.sleep(0.05)  # recently written files are not decoded by DALI
    loader = ours(dataset, 5, device="cpu")
    assert "rotate" not in loader.explain()
    assert_same_epoch(loader, stock(dataset, 5))
    assert not [path for path in pil_loads if path.endswith(".jpg")]


def _odd_exif_segments(path):
    """Return malformed or unusual EXIF, as the bytes of a JPEG's APP1 segment."""
    big = b"Exif\0\0MM\0*\0\0\0\x08"
    entry = b"\x01\x12\0\x03\0\0\0\x01\0%c\0\0"
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/>'
    return {
        "zero": big + b"\0\1" + entry % 0 + bytes(4),
        "nine": big + b"\0\1" + entry % 9 + bytes(4),
        "no directory": big,
        "cut": (big + b"\0\1" + entry % 6)[:-3],
        "another offset": b"Exif\0\0MM\0*\0\0\0\xf0" + b"\0\1" + entry % 6 + bytes(4),
        "more entries than there are": big + b"\0\x09" + entry % 6 + bytes(4),
        "as a long": big + b"\0\1" + b"\x01\x12\0\x04\0\0\0\x01\0\0\0\6" + bytes(4),
        "as text": big + b"\0\1" + b"\x01\x12\0\x02\0\0\0\x026\0\0\0" + bytes(4),
        "two of them": big + b"\0\1" + b"\x01\x12\0\x03\0\0\0\x02\0\6\0\3" + bytes(4),
        "twice": big + b"\0\2" + entry % 6 + entry % 3 + bytes(4),
        "little-endian": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0" + bytes(4),
        "the wrong order": b"Exif\0\0II*\0\x08\0\0\0\1\0" + entry % 6 + bytes(4),
        "XMP": xmp,
        "empty": b"Exif\0\0",
        "nothing": b"",
    }


ODD = list(_odd_exif_segments(""))


@pytest.mark.parametrize("several", ["", "six", "three"], ids=["only segment", "after 6", "before 3"])
@pytest.mark.parametrize("case", ODD)
def test_odd_exif_has_the_effect_that_it_has_in_pillow(tmp_path, case, several):
    """The image is rotated as by Pillow, or an error of the same type is raised."""
    (tmp_path / "class").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 64, 3), dtype=np.uint8)
    whole = tmp_path / "class" / "0.jpg"
    Image.fromarray(pixels).save(whole)
    segments = [_odd_exif_segments("")[case]]
    six, three = (b"Exif\0\0" + _exif(number).tobytes().removeprefix(b"Exif\0\0") for number in (6, 3))
    segments = {"": segments, "six": [six, *segments], "three": [*segments, three]}[several]
    encoded = whole.read_bytes()
    inserted = b"".join(b"\xff\xe1" + (len(one) + 2).to_bytes(2, "big") + one for one in segments)
    whole.write_bytes(encoded[:2] + inserted + encoded[2:])
    mine, theirs = DALIImageFolder(tmp_path, EXACT, orient=True), ImageFolder(tmp_path, EXACT, loader=upright)
    try:
        expected = next(iter(stock(theirs, 1)))
    except Exception as error:
        with pytest.raises(Exception, match=type(error).__name__):
            next(iter(ours(mine, 1, device="cpu")))
        return
    made = next(iter(ours(mine, 1, device="cpu")))
    assert torch.equal(made[0], expected[0])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_orientation_that_changes_between_epochs_is_seen(tmp_path, device):
    """Image viewers rotate a photo by changing only its EXIF orientation."""
    (tmp_path / "class").mkdir()
    paths = [tmp_path / "class" / f"{number}.png" for number in range(3)]
    pixels = np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8)
    mine, theirs = None, ImageFolder
    for orientations in [(1, 6, 3), (8, 6, 1), (8, 1, 2)]:
        for path, orientation in zip(paths, orientations, strict=True):
            Image.fromarray(pixels).save(path, exif=_exif(orientation))
        if mine is None:
            mine, theirs = DALIImageFolder(tmp_path, EXACT, orient=True), ImageFolder(tmp_path, EXACT, loader=upright)
            loader = ours(mine, 3, device=device)
        (made, _), (expected, _) = next(iter(loader)), next(iter(stock(theirs, 3)))
        assert torch.equal(made.cpu(), expected), orientations


def test_orient_with_a_custom_loader_raises_value_error(oriented):
    with pytest.raises(ValueError, match=r"call ImageOps\.exif_transpose in your loader"):
        DALIImageFolder(oriented, loader=upright, orient=True)


def test_orient_in_object_storage_gives_the_pixels_of_local_files(oriented, pil_loads):
    pytest.importorskip("obstore")
    from remote.server import Running

    with Running(oriented) as server:
        mine = DALIImageFolder(server.url, EXACT, orient=True, storage_options=server.options)
        theirs = ImageFolder(oriented, EXACT, loader=upright)
        assert_same_epoch(ours(mine, 5, num_workers=2, device="cpu"), stock(theirs, 5))
        assert torch.equal(mine[6][0], theirs[6][0])
    assert {os.path.splitext(path.rpartition(",")[0] or path)[1][:5] for path in pil_loads} == {".tiff", ".webp"}
