"""Images that DALI turns as ImageOps.exif_transpose() turns them: DALIImageFolder(..., orient=True), and where a
transform or a data set of one's own calls it."""

import os
import time

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract.both import EXACT, assert_same_epoch, ours, stock
from dali_compat import DALIImageFolder, DALIImageList
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
def turned(tmp_path_factory):
    """All orientations of EXIF, and none, in several formats; of no two the size is the same."""
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
def by_pillow(monkeypatch):
    """The files that Pillow has decoded."""
    found, really = [], pil.load

    def noted(source, *args):
        found.append(str(source))
        return really(source, *args)

    monkeypatch.setattr(pil, "load", noted)
    return found


def test_batches_are_those_of_a_loader_that_turns(turned, by_pillow):
    mine, theirs = DALIImageFolder(turned, EXACT, orient=True), ImageFolder(turned, EXACT, loader=upright)
    for _ in range(2):
        loader = ours(mine, 5, num_workers=2, device="cpu")
        assert_same_epoch(loader, stock(theirs, 5))
        assert_same_epoch(loader, stock(theirs, 5))
    assert {os.path.splitext(path)[1] for path in by_pillow} == {".tiff", ".webp"}
    for index in range(len(mine)):
        assert torch.equal(mine[index][0], theirs[index][0]) and mine[index][1] == theirs[index][1]
    plain, changed = ImageFolder(turned, EXACT), []
    for index in range(len(mine)):
        changed += [] if torch.equal(mine[index][0], plain[index][0]) else [os.path.splitext(mine.samples[index][0])[1]]
    assert sorted(set(changed)) == [".jpg", ".png", ".webp"] and len(changed) == 6 * 7  # a TIFF Pillow turns


def _epochs(folder, case, exact, device, orient=False, **options):
    torch.manual_seed(0)
    dataset, several = DALIImageFolder(folder, TRANSFORMS[case], orient=orient), 1 if case == "nothing" else 7
    loader = ours(dataset, several, exact=exact, device=device, fallback="silent", **options)
    return [image.cpu() for _ in range(2) for images, _ in loader for image in images]


@pytest.fixture(scope="module")
def both(turned):
    """What is turned as EXIF says, and the same images as PNG, turned before."""
    copies = turned.parent / f"{turned.name} turned"
    for path, _ in DALIImageFolder(turned).samples:
        target = (copies / path[len(str(turned)) + 1 :]).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        target = target.with_name(f"{os.path.basename(path)}.png")
        upright(path).save(target)
    return turned, copies


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("case", TRANSFORMS)
def test_they_are_those_of_turned_copies(both, case, exact):
    """Numbers that are drawn depend on the sizes: those are the turned image's."""
    made, expected = (_epochs(folder, case, exact, "cpu", orient=folder is both[0]) for folder in both)
    for a, b, path in zip(made, expected, _paths(both[0]), strict=True):
        assert a.shape == b.shape, path
        if exact or path.endswith(BY_DALI):  # Pillow resizes others
            assert torch.equal(a, b), path


def _paths(folder) -> list[str]:
    """Of two epochs."""
    return [path for path, _ in DALIImageFolder(folder).samples] * 2


def _level(image) -> float:
    """One of 256, of a normalized image at most."""
    return 2 / 255 if image.dtype.is_floating_point else 1


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("case", TRANSFORMS)
def test_on_a_gpu(both, case, exact):
    """nvJPEG repeats samples of chroma where Pillow interpolates them. For this noise that is 14 levels on average, and
    up to 18 for a row of 40 pixels (measured with libjpeg's fast upsampling); another orientation is 80 levels off."""
    made, expected = (_epochs(folder, case, exact, "cuda", orient=folder is both[0]) for folder in both)
    for a, b, path in zip(made, expected, _paths(both[0]), strict=True):
        assert a.shape == b.shape, path
        if exact:
            assert torch.equal(a, b), path
        else:
            assert (a.float() - b.float()).abs().mean() <= (25 if path.endswith(".jpg") else 2) * _level(a), path


@pytest.mark.parametrize("case", ["windows", "a resize and a window", "nothing"])
def test_decoded_images_are_kept_turned(both, case):
    made = _epochs(both[0], case, True, "cpu", orient=True, cache=1 << 26)
    for a, b in zip(made, _epochs(both[1], case, True, "cpu"), strict=True):
        assert torch.equal(a, b)


class Turning:
    def __init__(self, rest):
        self.rest = rest

    def __call__(self, image):
        return self.rest(ImageOps.exif_transpose(image))


FIRST = {
    "the function": T.Compose([ImageOps.exif_transpose, EXACT]),
    "a Lambda": T.Compose([T.Lambda(ImageOps.exif_transpose), EXACT]),
    "a Lambda of v2": v2.Compose([v2.Lambda(ImageOps.exif_transpose), EXACT]),
    "a lambda": T.Compose([T.Lambda(lambda image: ImageOps.exif_transpose(image)), EXACT]),
    "in a container": T.Compose([T.Compose([torch.nn.Identity(), ImageOps.exif_transpose]), EXACT]),
    "in a class": Turning(EXACT),
    "and converted": T.Compose([lambda image: ImageOps.exif_transpose(image).convert("RGB"), EXACT]),
    "twice": T.Compose([ImageOps.exif_transpose, ImageOps.exif_transpose, EXACT]),
    "and called in Python": T.Compose([ImageOps.exif_transpose, T.Lambda(lambda image: image.resize((50, 70))), EXACT]),
}


@pytest.mark.parametrize("case", FIRST)
def test_a_transform_that_turns_first(turned, by_pillow, case):
    transform, in_python = FIRST[case], case in ("twice", "and called in Python")
    for made in (
        ImageFolder(turned, transform),
        DALIImageFolder(turned, transform, orient=True),
        _listed(turned, case),
    ):
        loader = ours(made, 5, num_workers=2, device="cpu", exact=True, fallback="error")
        assert in_python or "upright" in loader.explain()
        theirs = stock(ImageFolder(turned, transform), 5)
        assert_same_epoch(loader, theirs)
        assert_same_epoch(loader, theirs)
        assert in_python or {os.path.splitext(path)[1] for path in by_pillow} == {".tiff", ".webp"}


def _listed(folder, case):
    paths, targets = zip(*ImageFolder(folder).samples, strict=True)
    return DALIImageList(list(paths), list(targets), FIRST[case])


def test_the_transform_may_change(turned):
    """Between epochs, and for two loaders of one data set."""
    dataset, plain = DALIImageFolder(turned, EXACT), ImageFolder(turned, EXACT)
    loader = ours(dataset, 5, device="cpu")
    for transform in (EXACT, FIRST["a Lambda"], EXACT, FIRST["a lambda"]):
        dataset.transform = plain.transform = transform
        assert_same_epoch(loader, stock(plain, 5))
        assert_same_epoch(ours(data.Subset(dataset, range(len(dataset))), 5, device="cpu"), stock(plain, 5))


@pytest.mark.parametrize("form", ["files", "a loader"])
def test_a_data_set_of_ones_own(turned, by_pillow, form):
    class Own(data.Dataset):
        def __init__(self):
            self.samples = ImageFolder(turned).samples

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, i):
            path, target = self.samples[i]
            return EXACT(upright(path)), target

    dataset = Own() if form == "files" else ImageFolder(turned, EXACT, loader=upright)
    time.sleep(0.05)  # what was written just now is not left to DALI
    loader = ours(dataset, 5, device="cpu")
    assert "rotate" not in loader.explain()
    assert_same_epoch(loader, stock(dataset, 5))
    assert not [path for path in by_pillow if path.endswith(".jpg")]


def _segments(path):
    """Odd EXIF in a JPEG of a known picture: the bytes of its APP1 segment."""
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


ODD = list(_segments(""))


@pytest.mark.parametrize("several", ["", "six", "three"], ids=["alone", "after 6", "before 3"])
@pytest.mark.parametrize("case", ODD)
def test_odd_exif(tmp_path, case, several):
    """Pillow says how an image is turned, or that it cannot be."""
    (tmp_path / "class").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 64, 3), dtype=np.uint8)
    whole = tmp_path / "class" / "0.jpg"
    Image.fromarray(pixels).save(whole)
    segments = [_segments("")[case]]
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
def test_one_that_is_turned_meanwhile(tmp_path, device):
    """As viewers do it: one number in the EXIF changes."""
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


def test_it_is_not_for_a_loader_of_the_users_own(turned):
    with pytest.raises(ValueError, match=r"call ImageOps\.exif_transpose in your loader"):
        DALIImageFolder(turned, loader=upright, orient=True)


def test_in_object_storage(turned, by_pillow):
    pytest.importorskip("obstore")
    from remote.server import Running

    with Running(turned) as server:
        mine = DALIImageFolder(server.url, EXACT, orient=True, storage_options=server.options)
        theirs = ImageFolder(turned, EXACT, loader=upright)
        assert_same_epoch(ours(mine, 5, num_workers=2, device="cpu"), stock(theirs, 5))
        assert torch.equal(mine[6][0], theirs[6][0])
    assert {os.path.splitext(path.rpartition(",")[0] or path)[1][:5] for path in by_pillow} == {".tiff", ".webp"}
