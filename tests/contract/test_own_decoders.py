"""Custom data sets that decode with torchvision.io or torchcodec; DALI decodes if the pixels are bit-identical."""

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


def decode_from_bytes(path):
    return decode_image(torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8), "RGB")


def decode_top_left_quarter(path):
    image = decode_image(path, mode="rgb")
    _, height, width = image.shape
    return image[:, : height // 2, : width // 2]


DECODERS = {
    "decode_image": lambda path: decode_image(path, mode=ImageReadMode.RGB),
    "decode_image, a Path": lambda path: decode_image(Path(path), mode="RGB"),
    "by the module": lambda path: tvio.decode_image(path, "RGB"),
    "unchanged": lambda path: decode_image(path),
    "read_image": lambda path: read_image(path),
    "read_file": lambda path: decode_jpeg(read_file(path), mode=ImageReadMode.RGB),
    "from bytes": decode_from_bytes,
    "turned": lambda path: decode_image(path, "RGB", apply_exif_orientation=True),
    "sized": decode_top_left_quarter,
    "as tv_tensors": lambda path: tv_tensors.Image(read_image(path)),
}


class Decoded(data.Dataset):
    def __init__(self, root, decode, transform=SMALL):
        self.paths = sorted(map(str, Path(root).rglob("*.*")))
        self.decode, self.transform = decode, transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = self.decode(self.paths[i])
        return (self.transform(image) if self.transform else image), i


def compare(make, near=0.02, **options):
    """Compare the batches with torch's, approximately by default and bit for bit with exact=True. Return the exact
    loader."""
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


@pytest.mark.parametrize("name", DECODERS)
def test_images_of_each_decoder_are_deferred_and_equal_torchs(own_root, name):
    loader = compare(lambda: Decoded(own_root, DECODERS[name]))
    assert real(loader) == 0 and loader.explain().startswith("DALI route")


def test_decoded_images_are_deferred_in_workers(own_root):
    fixed = v2.Compose([v2.CenterCrop((40, 44)), v2.ToDtype(torch.float32, scale=True)])
    assert real(compare(lambda: Decoded(own_root, DECODERS["turned"], fixed), num_workers=2, shuffle=False)) == 0
    assert real(compare(lambda: Decoded(own_root, decode_from_bytes, fixed), num_workers=1, shuffle=False)) == 0


def test_decoded_images_are_deferred_if_transforms_are_random(own_root):
    assert real(compare(lambda: Decoded(own_root, read_image, FLIPPED))) == 0


def test_decoder_as_loader_of_image_folder_is_deferred(own_root):
    make = lambda: ImageFolder(own_root, FLIPPED, loader=lambda path: decode_image(path, "RGB"))  # noqa: E731
    assert real(compare(make)) == 0
    assert real(compare(lambda: ImageFolder(own_root, SMALL, loader=decode_image))) == 0


@pytest.fixture
def odd_files(tmp_path):
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
    time.sleep(0.05)  # recently written files are not decoded by DALI
    return tmp_path


def decode_or_error(path, mode, turned):
    """Return the decoded image, or the error's text if the decoder does not support the mode."""
    try:
        return decode_image(path, mode, turned)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("mode", ["UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA"])
def test_pixels_with_exact_equal_torchvisions_for_each_file_and_mode(odd_files, mode, turned):
    if "ALPHA" in mode:  # torchvision leaves memory uninitialized when it decodes a palette
        (odd_files / "p.png").unlink()
    options = dict(shuffle=True, collate_fn=list)
    theirs = seeded(Decoded(odd_files, lambda path: decode_or_error(path, mode, turned), None), 4, **options)(stock)

    def mine(*args, **kwargs):
        return ours(*args, exact=True, device="cpu", fallback="silent", **kwargs)

    wrong = differences(
        seeded(Decoded(odd_files, lambda path: decode_or_error(path, mode, turned), None), 4, **options)(mine), theirs
    )
    assert not wrong, wrong[:3]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("mode", ["UNCHANGED", "RGB"])
def test_strides_when_decoded_equal_torchvisions(odd_files, mode, turned):
    def strides(batch):
        return [one.stride() for one in batch]

    (odd_files / "p.png").unlink()
    dataset = Decoded(odd_files, lambda path: decode_image(path, mode, turned), None)
    theirs = list(stock(dataset, 4, collate_fn=list))
    mine = list(ours(dataset, 4, collate_fn=list, device="cpu", exact=True))
    for a, b in zip(mine, theirs, strict=True):
        assert strides(image for image, _ in a) == strides(image for image, _ in b)


@pytest.mark.parametrize("kind, value", [(3, 6), (4, 6), (1, 6)])
def test_orientation_equals_the_decoders_if_its_exif_type_is_unusual(tmp_path, kind, value):
    picture = Image.fromarray(make_image(np.random.default_rng(5), 61, 83))
    for order in "<>":
        held = {1: "Bxxx", 3: "Hxx", 4: "I"}[kind]
        tiff = struct.pack(
            f"{order}2sHIHHHI{held}I", b"II" if order == "<" else b"MM", 42, 8, 1, 274, kind, 1, value, 0
        )
        picture.save(tmp_path / f"{ord(order)}.jpg", exif=b"Exif\0\0" + tiff)
    picture.save(tmp_path / "plain.jpg")
    time.sleep(0.05)
    compare(lambda: Decoded(tmp_path, DECODERS["turned"]))


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_file_raises_the_decoders_error(own_root, workers):
    dataset = Decoded(own_root, lambda path: decode_image(path, "RGB"))
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


def test_batches_equal_torchs_if_encoded_bytes_are_inspected(own_root):
    """Inspecting the bytes loads them, and then the image decoded from them must be real, too."""

    def decode(path):
        encoded = read_file(path)
        length, first = encoded.numel(), int(encoded[0])
        return decode_jpeg(encoded, "RGB"), length, first, encoded[:3]

    theirs = seeded(Decoded(own_root, decode, None), 2, collate_fn=list)(stock)
    mine = seeded(Decoded(own_root, decode, None), 2, collate_fn=list)
    assert not differences(mine(lambda *args, **kw: ours(*args, exact=True, fallback="silent", **kw)), theirs)


def test_explain_names_the_color_mode_as_the_reason_for_the_fallback(own_root):
    """Reading the bytes of a file is not a reason for the fallback."""
    loader = ours(Decoded(own_root, lambda path: decode_image(path, "GRAY")), 2, device="cpu", fallback="silent")
    assert "decodes files in modes other than RGB" in loader.explain() and "keeps" not in loader.explain()


cv2 = skimage = types.SimpleNamespace(imread=lambda path: np.asarray(Image.open(path).convert("RGB")))


def decode_with_opencv(path):
    return torch.from_numpy(cv2.imread(path)).movedim(2, 0)


def decode_with_skimage(path):
    return torch.from_numpy(skimage.io.imread(path)).movedim(2, 0)


@pytest.mark.parametrize("decode, name", [(decode_with_opencv, "cv2"), (decode_with_skimage, "skimage")])
def test_error_names_an_unsupported_decoding_library(own_root, decode, name):
    with pytest.raises(
        RuntimeError, match=rf"opens images with imread\(\) of {name}; open them with Image.open\(path\)"
    ):
        ours(Decoded(own_root, decode), 2, device="cpu")


class PennFudan(Decoded):
    """The data set of torchvision's object detection tutorial."""

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


def test_data_set_of_the_detection_tutorial_is_deferred(own_root):
    transform = v2.Compose(
        [v2.RandomHorizontalFlip(0.5), v2.ToDtype(torch.float, scale=True), v2.ToPureTensor()],
    )
    assert real(compare(lambda: PennFudan(own_root, None, transform))) == 0


@pytest.fixture
def torchcodec():
    """The module ``torchcodec.decoders``, unloaded after the test."""
    before = set(sys.modules)
    decoders = pytest.importorskip("torchcodec.decoders", exc_type=Exception)
    yield decoders
    for name in set(sys.modules) - before:
        if name.startswith("torchcodec"):
            del sys.modules[name]


def test_torchcodec_images_equal_torchs(own_root, odd_files, torchcodec):
    assert real(compare(lambda: Decoded(own_root, torchcodec.decode_image))) == 0
    assert real(compare(lambda: Decoded(own_root, torchcodec.decode_jpeg), num_workers=1, shuffle=False)) == 0

    def encoded(path):
        return torchcodec.decode_image(Path(path).read_bytes(), mode="RGB")

    assert real(compare(lambda: Decoded(own_root, encoded, FLIPPED))) == 0
    for mode in ("UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA"):
        for dtype in (torch.uint8, torch.uint16):

            def decode(path, mode=mode, dtype=dtype):
                return torchcodec.decode_image(path, mode=mode, output_dtype=dtype)

            theirs = seeded(Decoded(odd_files, decode, None), 4, collate_fn=list)(stock)
            mine = seeded(Decoded(odd_files, decode, None), 4, collate_fn=list)(
                lambda *args, **kw: ours(*args, exact=True, device="cpu", fallback="silent", **kw)
            )
            assert not differences(mine, theirs), (mode, dtype, differences(mine, theirs)[:3])


@pytest.mark.parametrize("suffix", ["bmp", "ppm"])
@pytest.mark.parametrize("workers", [0, 2])
def test_file_that_the_decoder_refuses_raises_its_error_in_the_data_set(own_root, tmp_path, suffix, workers):
    """Pillow and DALI read these formats."""

    def decode(path):
        try:
            return decode_image(path, "RGB")
        except RuntimeError:
            return torch.zeros(3, 50, 60, dtype=torch.uint8)

    for number, path in enumerate(sorted(own_root.rglob("*.jpg"))[:4]):
        Image.open(path).convert("RGB").save(tmp_path / f"{number}.{suffix if number == 2 else 'png'}")
    time.sleep(0.2)  # recently written files are not deferred
    dataset = Decoded(tmp_path, decode)
    mine = list(ours(dataset, 4, device="cpu", exact=True, num_workers=workers))
    assert not differences(mine, list(stock(dataset, 4)))
    assert not mine[0][0][2].any() and mine[0][0][3].any()
