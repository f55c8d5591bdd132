"""torchvision.io and torchcodec in a data set of the user's: DALI decodes where it gives their bits."""

import struct
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.io as tvio
from helpers import make_image
from PIL import Image
from torch.utils import data
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_file, read_image
from torchvision.transforms import v2

from contract.both import error_of, ours, stock
from contract.test_joint import differences
from contract.test_own_datasets import real, seeded

SMALL = v2.Compose([v2.Resize((32, 40)), v2.ToDtype(torch.float32, scale=True)])
FLIPPED = v2.Compose([v2.CenterCrop((40, 44)), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])


def from_bytes(path):
    return decode_image(torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8), "RGB")


def sized(path):
    image = decode_image(path, mode="rgb")
    _, height, width = image.shape
    return image[:, : height // 2, : width // 2]


DECODED = {
    "decode_image": lambda path: decode_image(path, mode=ImageReadMode.RGB),
    "decode_image, a Path": lambda path: decode_image(Path(path), mode="RGB"),
    "by the module": lambda path: tvio.decode_image(path, "RGB"),
    "unchanged": lambda path: decode_image(path),
    "read_image": lambda path: read_image(path),
    "read_file": lambda path: decode_jpeg(read_file(path), mode=ImageReadMode.RGB),
    "from bytes": from_bytes,
    "turned": lambda path: decode_image(path, "RGB", apply_exif_orientation=True),
    "sized": sized,
    "as tv_tensors": lambda path: tv_tensors.Image(read_image(path)),
}


class Own(data.Dataset):
    def __init__(self, root, decode, transform=SMALL):
        self.paths = sorted(map(str, Path(root).rglob("*.*")))
        self.decode, self.transform = decode, transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = self.decode(self.paths[i])
        return (self.transform(image) if self.transform else image), i


def compared(make, near=0.02, **options):
    """Whether our loader has torch's values, by default and to the last bit; gives the last one."""
    options = dict(shuffle=True, collate_fn=list) | options
    theirs = seeded(make(), 3, **options)(stock)
    loaders = []
    for exact in (False, True):

        def mine(*args, exact=exact, **kwargs):
            loaders.append(ours(*args, exact=exact, device="cpu", **kwargs))
            return loaders[-1]

        wrong = differences(seeded(make(), 3, **options)(mine), theirs)
        assert all(float(text.rpartition(": ")[2]) <= (0 if exact else near) for text in wrong), wrong[:3]
    return loaders[-1]


@pytest.mark.parametrize("name", DECODED)
def test_decoded(own_root, name):
    loader = compared(lambda: Own(own_root, DECODED[name]))
    assert real(loader) == 0 and loader.explain().startswith("DALI route")


def test_workers(own_root):
    fixed = v2.Compose([v2.CenterCrop((40, 44)), v2.ToDtype(torch.float32, scale=True)])
    assert real(compared(lambda: Own(own_root, DECODED["turned"], fixed), num_workers=2, shuffle=False)) == 0
    assert real(compared(lambda: Own(own_root, from_bytes, fixed), num_workers=1, shuffle=False)) == 0


def test_drawn(own_root):
    assert real(compared(lambda: Own(own_root, read_image, FLIPPED))) == 0


def test_as_a_loader(own_root):
    make = lambda: ImageFolder(own_root, FLIPPED, loader=lambda path: decode_image(path, "RGB"))  # noqa: E731
    assert real(compared(make)) == 0
    assert real(compared(lambda: ImageFolder(own_root, SMALL, loader=decode_image))) == 0


@pytest.fixture
def odd(tmp_path):
    """Files of all kinds of JPEG, and PNGs."""
    picture = Image.fromarray(make_image(np.random.default_rng(5), 61, 83))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[274] = orientation
        picture.save(tmp_path / f"turned{orientation}.jpg", exif=exif)
    for sampling in range(3):
        picture.save(tmp_path / f"sampling{sampling}.jpg", subsampling=sampling, quality=80)
        picture.save(tmp_path / f"progressive{sampling}.jpg", subsampling=sampling, progressive=True)
    picture.save(tmp_path / "rgb.jpg", keep_rgb=True)
    picture.convert("L").save(tmp_path / "gray.jpg")
    picture.convert("CMYK").save(tmp_path / "cmyk.jpg")
    alpha = picture.copy()
    alpha.putalpha(picture.convert("L"))
    for name, image in {"rgb": picture, "rgba": alpha, "la": alpha.convert("LA"), "l": picture.convert("L")}.items():
        image.save(tmp_path / f"{name}.png")
    picture.convert("P").save(tmp_path / "p.png")
    picture.convert("P").save(tmp_path / "trns.png", transparency=bytes(range(200)))
    picture.save(tmp_path / "exif.png", exif=exif)
    time.sleep(0.05)  # what was written just now is not left to DALI
    return tmp_path


def each_mode(path, mode, turned):
    """What a decoder says of a mode that it does not have is text, too."""
    try:
        return decode_image(path, mode, turned)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("mode", ["UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA"])
def test_modes(odd, mode, turned):
    """Files and modes: with exact=True each is torchvision's, wherever it is made."""
    if "ALPHA" in mode:  # of a palette torchvision gives what the memory had
        (odd / "p.png").unlink()
    options = dict(shuffle=True, collate_fn=list)
    theirs = seeded(Own(odd, lambda path: each_mode(path, mode, turned), None), 4, **options)(stock)

    def mine(*args, **kwargs):
        return ours(*args, exact=True, device="cpu", fallback="silent", **kwargs)

    wrong = differences(seeded(Own(odd, lambda path: each_mode(path, mode, turned), None), 4, **options)(mine), theirs)
    assert not wrong, wrong[:3]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("mode", ["UNCHANGED", "RGB"])
def test_strides_when_decoded_equal_torchvisions(odd, mode, turned):
    def strides(batch):
        return [one.stride() for one in batch]

    (odd / "p.png").unlink()
    dataset = Own(odd, lambda path: decode_image(path, mode, turned), None)
    theirs = list(stock(dataset, 4, collate_fn=list))
    mine = list(ours(dataset, 4, collate_fn=list, device="cpu", exact=True))
    for a, b in zip(mine, theirs, strict=True):
        assert strides(image for image, _ in a) == strides(image for image, _ in b)


@pytest.mark.parametrize("kind, value", [(3, 6), (4, 6), (1, 6)])
def test_orientation_when_its_entry_has_another_type_is_the_decoders(tmp_path, kind, value):
    picture = Image.fromarray(make_image(np.random.default_rng(5), 61, 83))
    for order in "<>":
        held = {1: "Bxxx", 3: "Hxx", 4: "I"}[kind]
        tiff = struct.pack(
            f"{order}2sHIHHHI{held}I", b"II" if order == "<" else b"MM", 42, 8, 1, 274, kind, 1, value, 0
        )
        picture.save(tmp_path / f"{ord(order)}.jpg", exif=b"Exif\0\0" + tiff)
    picture.save(tmp_path / "plain.jpg")
    time.sleep(0.05)
    compared(lambda: Own(tmp_path, DECODED["turned"]))


@pytest.mark.parametrize("workers", [0, 1])
def test_errors(own_root, workers):
    """As the decoder's, for the file that it was."""
    dataset = Own(own_root, lambda path: decode_image(path, "RGB"))
    whole = Path(dataset.paths[5]).read_bytes()
    for damaged in (whole[:-300], b"no image", None):
        if damaged is None:
            Path(dataset.paths[5]).unlink()
        else:
            Path(dataset.paths[5]).write_bytes(damaged)
            time.sleep(0.05)
        mine = ours(dataset, 2, device="cpu", num_workers=workers)
        error, theirs = error_of(list, mine), error_of(list, stock(dataset, 2, num_workers=workers))
        assert type(error) is type(theirs) is RuntimeError
        assert str(theirs).splitlines()[-1] == str(error).splitlines()[-1]


def test_bytes_that_are_looked_at(own_root):
    """A file's bytes are real then; and so is what was decoded of them, where they change."""

    def decode(path):
        encoded = read_file(path)
        length, first = encoded.numel(), int(encoded[0])
        return decode_jpeg(encoded, "RGB"), length, first, encoded[:3]

    theirs = seeded(Own(own_root, decode, None), 2, collate_fn=list)(stock)
    mine = seeded(Own(own_root, decode, None), 2, collate_fn=list)
    assert not differences(mine(lambda *args, **kw: ours(*args, exact=True, fallback="silent", **kw)), theirs)


def test_another_mode_is_the_reason(own_root):
    """That the bytes of a file were read is none."""
    loader = ours(Own(own_root, lambda path: decode_image(path, "GRAY")), 2, device="cpu", fallback="silent")
    assert "decodes files in other modes than RGB" in loader.explain() and "keeps" not in loader.explain()


cv2 = skimage = types.SimpleNamespace(imread=lambda path: np.asarray(Image.open(path).convert("RGB")))


def by_opencv(path):
    return torch.from_numpy(cv2.imread(path)).movedim(2, 0)


def by_another(path):
    return torch.from_numpy(skimage.io.imread(path)).movedim(2, 0)


@pytest.mark.parametrize("decode, name", [(by_opencv, "cv2"), (by_another, "skimage")])
def test_other_libraries_are_named(own_root, decode, name):
    with pytest.raises(
        RuntimeError, match=rf"opens images with imread\(\) of {name}; open them with Image.open\(path\)"
    ):
        ours(Own(own_root, decode), 2, device="cpu")


class Pennfudan(Own):
    """As torchvision's tutorial of detection has it."""

    def __getitem__(self, i):
        image, mask = read_image(self.paths[i]), read_image(self.paths[i]).amax(0, keepdim=True) // 100
        of_objects = torch.unique(mask)[1:]
        masks = (mask == of_objects[:, None, None]).to(torch.uint8)
        image = tv_tensors.Image(image)
        canvas = v2.functional.get_size(image)
        boxes = torch.tensor([[0.0, 0, n + 1, n + 2] for n in range(len(of_objects))]).reshape(-1, 4)
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=canvas),
            "masks": tv_tensors.Mask(masks),
        }
        return self.transform(image, target)


def test_the_tutorials(own_root):
    transform = v2.Compose(
        [v2.RandomHorizontalFlip(0.5), v2.ToDtype(torch.float, scale=True), v2.ToPureTensor()],
    )
    assert real(compared(lambda: Pennfudan(own_root, None, transform))) == 0


@pytest.fixture
def torchcodec():
    """Its decoders."""
    before = set(sys.modules)
    decoders = pytest.importorskip("torchcodec.decoders", exc_type=Exception)
    yield decoders
    for name in set(sys.modules) - before:
        if name.startswith("torchcodec"):
            del sys.modules[name]


def test_torchcodec(own_root, odd, torchcodec):
    assert real(compared(lambda: Own(own_root, torchcodec.decode_image))) == 0
    assert real(compared(lambda: Own(own_root, torchcodec.decode_jpeg), num_workers=1, shuffle=False)) == 0

    def encoded(path):
        return torchcodec.decode_image(Path(path).read_bytes(), mode="RGB")

    assert real(compared(lambda: Own(own_root, encoded, FLIPPED))) == 0
    for mode in ("UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA"):
        for dtype in (torch.uint8, torch.uint16):

            def decode(path, mode=mode, dtype=dtype):
                return torchcodec.decode_image(path, mode=mode, output_dtype=dtype)

            theirs = seeded(Own(odd, decode, None), 4, collate_fn=list)(stock)
            mine = seeded(Own(odd, decode, None), 4, collate_fn=list)(
                lambda *args, **kw: ours(*args, exact=True, device="cpu", fallback="silent", **kw)
            )
            assert not differences(mine, theirs), (mode, dtype, differences(mine, theirs)[:3])
