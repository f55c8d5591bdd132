"""Files that DALI decodes differently or not at all have PIL's pixels, in batches with ordinary JPEGs."""

import shutil

import numpy as np
import pytest
import torch
from helpers import make_folder, make_image
from PIL import Image
from torchvision import transforms as T

from contract.both import EXACT, assert_same_pixels, ours, pixels, stock
from dali_compat import DALIImageFolder
from dali_compat.data.header import DALI, PIL, read_header


def _photo(height=70, width=90, seed=0):
    return Image.fromarray(make_image(np.random.default_rng(seed), height, width))


def _save_with_orientation(path, orientation, **options):
    exif = Image.Exif()
    exif[274] = orientation
    _photo().save(path, exif=exif, **options)


def _save_sixteen_bits(path):
    Image.fromarray((np.arange(70 * 90, dtype=np.uint16) * 10).reshape(70, 90)).save(path, "PNG")


def _saver(kind, **options):
    return lambda path: _photo().save(path, kind, **options)


def _save_with_tail(path):
    _photo().save(path, quality=90)
    path.write_bytes(path.read_bytes() + b"trailing bytes" * 5)


ODD = {
    "16-bit.png": _save_sixteen_bits,
    "gray.png": lambda path: _photo().convert("L").save(path),
    "one bit.png": lambda path: _photo().convert("1").save(path),
    "palette.png": lambda path: _photo().quantize(64).save(path),
    "transparent palette.png": lambda path: _photo().quantize(64).save(path, transparency=3),
    "alpha.png": lambda path: _photo().convert("RGBA").rotate(20).save(path),
    "gray and alpha.png": lambda path: _photo().convert("LA").save(path),
    "animated.png": lambda path: _photo().save(path, save_all=True, append_images=[_photo(seed=1)]),
    "cmyk.jpg": lambda path: _photo().convert("CMYK").save(path),
    "gray.jpg": lambda path: _photo().convert("L").save(path),
    "progressive.jpg": _saver("JPEG", progressive=True),
    "444.jpg": _saver("JPEG", subsampling=0),
    "422.jpg": _saver("JPEG", subsampling=1),
    "rgb.jpg": _saver("JPEG", keep_rgb=True),
    "quality 5.jpg": _saver("JPEG", quality=5),
    "tail.jpg": _save_with_tail,
    "orientation 6.jpg": lambda path: _save_with_orientation(path, 6),
    "orientation 6.webp": lambda path: _save_with_orientation(path, 6, lossless=True),
    "orientation 6.png": lambda path: _save_with_orientation(path, 6),
    "orientation 1.tiff": lambda path: _save_with_orientation(path, 1),
    "orientation 6.tiff": lambda path: _save_with_orientation(path, 6),
    "lzw.tif": _saver("TIFF", compression="tiff_lzw"),
    "pages.tif": lambda path: _photo().save(path, save_all=True, append_images=[_photo(seed=1)]),
    "gif.jpg": _saver("GIF"),
    "png.jpg": _saver("PNG"),
    "jpeg.png": _saver("JPEG"),
    "lossy.webp": _saver("WEBP", quality=80),
    "lossless.webp": _saver("WEBP", lossless=True),
    "alpha.webp": lambda path: _photo().convert("RGBA").rotate(20).save(path, lossless=True),
    "plain.bmp": _saver("BMP"),
    "plain.ppm": _saver("PPM"),
    "plain.pgm": lambda path: _photo().convert("L").save(path),
    "tiny.png": lambda path: _photo(1, 1).save(path),
    "tiny.jpg": lambda path: _photo(1, 2).save(path),
}


def _write_or_skip(path, name):
    try:
        ODD[name](path)
    except (OSError, KeyError, ValueError) as error:
        pytest.skip(f"this Pillow cannot write it: {error}")


def make_odd_folder(root):
    """Write all odd files and 20 ordinary JPEGs, and return the root."""
    make_folder(root, classes=1, per_class=20, special=False)
    (root / "class_b").mkdir()
    for name in ODD:
        _write_or_skip(root / "class_b" / name, name)
    return root


def test_odd_files_mixed_with_ordinary_ones_equal_torchs(tmp_path):
    dataset = DALIImageFolder(make_odd_folder(tmp_path / "odd"), EXACT)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    assert len(dataset) == 20 + len(ODD)
    loader = ours(dataset, 6, sampler=order, device="cpu")
    expected = pixels(stock(dataset, 6, sampler=order))
    for _ in range(2):  # headers read in the first epoch are used in the second
        assert_same_pixels(pixels(loader), expected)


def test_random_transforms_do_not_depend_on_the_decoder(tmp_path):
    """The numbers depend only on the position in the epoch."""
    readers = {"PNG": DALI, "TIFF": PIL}
    for kind in readers:
        (tmp_path / kind / "class_a").mkdir(parents=True)
        for seed in range(8):
            path = tmp_path / kind / "class_a" / f"{seed}.{kind.lower()}"
            _photo(seed=seed).save(path, kind, **({"compression": "tiff_lzw"} if kind == "TIFF" else {}))
            assert read_header(str(path))[0] == readers[kind]
    transform = T.Compose([T.RandomCrop(40), T.RandomHorizontalFlip(), T.PILToTensor()])
    batches_of_kinds = []
    for kind in readers:
        torch.manual_seed(0)
        batches_of_kinds.append(pixels(ours(DALIImageFolder(tmp_path / kind, transform), 3, device="cpu")))
    assert_same_pixels(*batches_of_kinds)


@pytest.mark.parametrize("name", ODD)
def test_each_odd_file_equals_torchs(tmp_path, name):
    root = make_folder(tmp_path / "odd", classes=1, per_class=2, special=False)
    _write_or_skip(root / "class_a" / name, name)
    dataset = DALIImageFolder(root, EXACT)
    assert_same_pixels(pixels(ours(dataset, 3, device="cpu")), pixels(stock(dataset, 3)))


def test_files_of_the_odd_folder_equal_torchs(odd, own_root):
    for path in odd.iterdir():
        shutil.copy(path, own_root / "class_a")
    dataset = DALIImageFolder(own_root, EXACT)
    assert_same_pixels(pixels(ours(dataset, 5, device="cpu")), pixels(stock(dataset, 5)))


@pytest.mark.parametrize("odd", [[0], [0, 1, 2, 3]])
def test_channels_last_of_images_decoded_by_pil(own_root, odd):
    """PIL decodes some images of the batch, or all."""
    dataset = DALIImageFolder(own_root, EXACT)
    for index in odd:
        path = dataset.samples[index][0]
        Image.open(path).convert("CMYK").save(path)
    images, _ = next(iter(ours(dataset, 4, memory_format=torch.channels_last, device="cpu")))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert_same_pixels([images], [next(iter(stock(dataset, 4)))[0]])


def test_channels_last_of_a_batch_with_a_changed_file(own_root):
    dataset = DALIImageFolder(own_root, EXACT)
    loader = ours(dataset, 4, memory_format=torch.channels_last, device="cpu")
    pixels(loader)
    _photo().save(dataset.samples[1][0])
    images, _ = next(iter(loader))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert_same_pixels([images], [next(iter(stock(dataset, 4)))[0]])
