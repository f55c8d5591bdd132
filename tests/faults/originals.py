"""Intact files of every format and variant with detailed images, which mutations.py damages."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from helpers import make_image
from PIL import Image

from faults import bitmaps, pngs, tiffs

_JPEG = ".jpg", ".jpeg"
SIZES = ((53, 71), (33, 48), (64, 64), (90, 41))


def picture(mode: str = "RGB", number: int = 0) -> Image.Image:
    """Return a detailed image with some noise. ``number`` selects its size."""
    height, width = SIZES[number % len(SIZES)]
    rng = np.random.default_rng(number)
    pixels = make_image(rng, height, width).astype(np.int16) + rng.integers(-12, 13, (height, width, 3), np.int16)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode)


def saved(kind: str, mode: str = "RGB", number: int = 0, **options) -> bytes:
    file = io.BytesIO()
    picture(mode, number).save(file, kind, **options)
    return file.getvalue()


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif.update(
        {271: "a camera", 272: "a model", 274: orientation, 282: 72.0, 283: 72.0, 296: 2, 306: "2001:01:01 00:00:00"}
    )
    return exif.tobytes()


def jpegs() -> dict[str, bytes]:
    made = {}
    for sampling, name in enumerate(("444", "422", "420")):
        for progressive in (False, True):
            key = f"{name} progressive" if progressive else name
            made[f"{key}.jpg"] = saved(
                "JPEG", number=len(made), subsampling=sampling, progressive=progressive, quality=88
            )
    made["gray.jpg"] = saved("JPEG", "L")
    made["gray progressive.jpg"] = saved("JPEG", "L", 1, progressive=True)
    made["restarts.jpg"] = saved("JPEG", number=2, restart_marker_blocks=1)
    made["restarts by rows.jpg"] = saved("JPEG", number=3, restart_marker_rows=1, subsampling=0)
    made["restarts progressive.jpg"] = saved("JPEG", number=1, restart_marker_blocks=3, progressive=True)
    made["optimised.jpg"] = saved("JPEG", optimize=True, quality=60)
    made["quality 5.jpg"] = saved("JPEG", number=1, quality=5)
    made["quality 100.jpg"] = saved("JPEG", number=2, quality=100)
    made["EXIF.jpg"] = saved("JPEG", number=3, exif=_exif(6))
    made["comment and profile.jpg"] = saved("JPEG", comment=b"a comment", icc_profile=b"a profile" * 20, dpi=(72, 72))
    made["CMYK.jpg"] = saved("JPEG", "CMYK")
    made["RGB.jpg"] = saved("JPEG", keep_rgb=True)
    made["tail.jpg"] = saved("JPEG", number=1) + b"trailing bytes" * 5
    made["two images.jpg"] = saved("JPEG", number=2) + saved("JPEG")
    made["pages.mpo"] = saved("MPO", save_all=True, append_images=[picture(number=4)])
    return made


def webps() -> dict[str, bytes]:
    return {
        "lossy.webp": saved("WEBP", quality=80),
        "lossless.webp": saved("WEBP", number=1, lossless=True),
        "lossy alpha.webp": _with_alpha("WEBP", quality=80),
        "lossless alpha.webp": _with_alpha("WEBP", lossless=True),
        "EXIF.webp": saved("WEBP", number=2, exif=_exif(3)),
        "profile.webp": saved("WEBP", number=3, icc_profile=b"a profile" * 20),
        "animated.webp": saved("WEBP", save_all=True, append_images=[picture(number=4)]),
    }


def others() -> dict[str, bytes]:
    return {
        "plain.gif": saved("GIF", "P"),
        "animated.gif": saved("GIF", save_all=True, append_images=[picture(number=4)]),
        "plain.ico": saved("ICO", sizes=[(48, 33)], number=1),
        "plain.tga": saved("TGA"),
        "rle.tga": saved("TGA", compression="tga_rle"),
        "plain.jp2": saved("JPEG2000"),
    }


def _with_alpha(kind: str, **options) -> bytes:
    image = picture().convert("RGBA")
    image.putalpha(picture("L", 4))
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def originals(photos: Path | None = None) -> dict[str, bytes]:
    """Return encoded files by name, with the ending of the format.

    Add some small photos of the folder ``photos``, if given.
    """
    made = {**jpegs(), **webps(), **others(), **pngs.files(picture), **bitmaps.files(picture), **tiffs.files(picture)}
    made["alpha saved.png"] = _with_alpha("PNG")
    if photos is not None:
        found = sorted(
            (path.stat().st_size, str(path)) for path in Path(photos).rglob("*") if path.suffix.lower() in _JPEG
        )
        made.update((f"photo {number}.jpg", Path(path).read_bytes()) for number, (_, path) in enumerate(found[:12]))
    return made
