"""Files that DALI once accepted or decoded unlike torchvision."""

import io
import struct

import numpy as np
import pytest
import torch
from helpers import make_image
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from dali_compat import DataLoader
from faults import bitmaps, pngs, tiffs
from faults.compare import AGREED, compare, write
from faults.jpegs import SOS, pieces_of
from faults.originals import picture, saved

LARGE = Image.fromarray(make_image(np.random.default_rng(0), 375, 500))


def _large(kind="JPEG", **options) -> bytes:
    file = io.BytesIO()
    LARGE.save(file, kind, **options)
    return file.getvalue()


def _in_scan(marker: int, offset: int = 2000) -> bytes:
    data = _large(quality=95)
    at = data.index(b"\xff\xda") + offset
    return data[:at] + bytes([0xFF, marker]) + data[at + 2 :]


def _scans_left_out() -> bytes:
    """Return a complete progressive image without its refinement scans, which libjpeg smooths."""
    pieces = pieces_of(_large(progressive=True))
    scans = [i for i, (marker, _) in enumerate(pieces) if marker == SOS]
    return b"".join(piece for _, piece in pieces[: scans[2]] + pieces[-1:])


def _inverted_by_adobe() -> bytes:
    """Return a JPEG with Adobe's marker for RGB colors after the frame."""
    data = saved("JPEG", subsampling=0)
    data = data[:2] + data[4 + struct.unpack_from(">H", data, 4)[0] :]  # no JFIF
    at = data.index(b"\xff\xda")
    return data[:at] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0" + data[at:]


def _webp_repeated() -> bytes:
    data = saved("WEBP", number=1, lossless=True)
    return data[:900] + data[700:]


def _rows(count: int) -> bytes:
    """Return a TIFF with fewer rows in its only strip than its header claims."""
    return tiffs.of_samples(np.asarray(picture()), ROWS=count)


BMPS, TIFFS = bitmaps.bmps(picture), tiffs.written(picture)
FINDINGS = {
    **{
        f"marker {marker:02X} in the scan.jpg": _in_scan(marker)
        for marker in (0x27, 0x02, 0xD9, 0xD8, 0xC0, 0xD3, 0xFF)
    },
    "scans left out.jpg": _scans_left_out(),
    "Adobe behind the frame.jpg": _inverted_by_adobe(),
    "a second end.jpg": saved("JPEG")[:-2] + b"\xff\xd8\xff\xd9",
    "cut.png": _large("PNG")[:-40],
    "checksum.png": (lambda data: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])(_large("PNG")),
    "cut.webp": _large("WEBP")[:-40],
    "repeated.webp": _webp_repeated(),
    "cut.tif": _large("TIFF")[: 500 * 300 * 3],
    "cut.bmp": _large("BMP")[:-40],
    "small cut.bmp": BMPS["24.bmp"][:-40],
    "small cut 32.bmp": BMPS["BGRX.bmp"][:-40],
    "cut rle8.bmp": BMPS["rle8.bmp"][:-3000],
    "565 fields.bmp": BMPS["565 fields.bmp"],
    "555 fields.bmp": BMPS["555 fields.bmp"],
    "XBGR fields.bmp": BMPS["XBGR fields.bmp"],
    "gray extra.tif": TIFFS["gray extra.tif"],
    "planar one.tif": tiffs.of_samples(np.asarray(picture()), rows=7, PLANAR=2),
    "fill order.tif": TIFFS["fill order.tif"],
    "predictor.tif": TIFFS["predictor.tif"],
    "one row a strip.tif": _rows(1),
    "junk next page.tif": TIFFS["junk next page.tif"],
    "next page in the data.tif": TIFFS["next page in the data.tif"],
    "animated of one.png": pngs.files(picture)["animated of one.png"],
}


@pytest.mark.parametrize("window", [False, True], ids=["whole", "window"])
@pytest.mark.parametrize("name", FINDINGS)
def test_loaders_agree_on_file(name, window, tmp_path):
    write(tmp_path / "class_a" / name, FINDINGS[name])
    (found,) = compare(tmp_path, window=window)
    assert found.outcome == AGREED, found


@pytest.mark.parametrize("name", ["junk next page.tif", "next page in the data.tif"])
def test_file_that_falls_back_to_pillow_gets_all_steps(name, tmp_path):
    write(tmp_path / "class_a" / name, FINDINGS[name])
    transform = T.Compose([T.Resize((20, 30)), T.ToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3)])
    folder = ImageFolder(tmp_path, transform)
    ((image, _),) = DataLoader(folder, device="cpu", exact=True, fallback="error")
    assert image.shape == (1, 3, 20, 30) and image.dtype == torch.float32
    torch.testing.assert_close(image[0], folder[0][0], atol=1e-6, rtol=0)


def test_max_image_pixels_lowered_between_epochs_takes_effect(tmp_path, monkeypatch):
    write(tmp_path / "class_a" / "a.jpg", saved("JPEG"))
    loader = DataLoader(ImageFolder(tmp_path, T.PILToTensor()), device="cpu", fallback="error")
    assert len(list(loader)) == 1
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(OSError, match=r"a\.jpg.*DecompressionBombError"):
        list(loader)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 53 * 71 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        list(loader)
    monkeypatch.undo()
    assert len(list(loader)) == 1
