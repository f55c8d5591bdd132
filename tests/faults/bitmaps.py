"""BMP and PPM files of all kinds, written field by field because Pillow writes few of them."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np

_RGB, _RLE8, _RLE4, _FIELDS, _ALPHA_FIELDS = 0, 1, 2, 3, 6
_MASKS = {
    "555": (16, 0x7C00, 0x3E0, 0x1F, 0),
    "565": (16, 0xF800, 0x7E0, 0x1F, 0),
    "BGRX": (32, 0xFF0000, 0xFF00, 0xFF, 0),
    "XBGR": (32, 0xFF000000, 0xFF0000, 0xFF00, 0),
    "BGRA": (32, 0xFF0000, 0xFF00, 0xFF, 0xFF000000),
    "RGBA": (32, 0xFF, 0xFF00, 0xFF0000, 0xFF000000),
}


def bmp(
    rows: np.ndarray, width: int, bits: int, compression=_RGB, palette=b"", masks=(), header=40, top_down=False
) -> bytes:
    """Return a BMP of ``rows``, (H, bytes) uint8 from the top, or of compressed data, (1, bytes)."""
    height = rows.shape[0] if compression not in (_RLE8, _RLE4) else masks[0]
    if compression in (_RLE8, _RLE4):
        masks, pixels = (), rows.tobytes()
    else:
        padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))
        pixels = (padded if top_down else padded[::-1]).tobytes()
    lines = -height if top_down else height
    info = struct.pack("<IiiHHIIiiII", header, width, lines, 1, bits, compression, len(pixels),
                       2835, 2835, len(palette) // 4, 0)  # fmt: skip
    if header == 12:
        info = struct.pack("<IHHHH", 12, width, height, 1, bits)
    fields = struct.pack(f"<{len(masks)}I", *masks)
    info = (info + fields).ljust(header, b"\0") if header > 40 else info + fields
    start = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + info + palette + pixels


def _indexed(picture: Callable, bits: int) -> tuple[np.ndarray, bytes]:
    """Return packed indices (H, bytes), and the palette with 4 bytes for each color."""
    image = picture().quantize(1 << bits)
    colors = np.array(image.getpalette()[: 3 << bits], np.uint8)
    colors = np.pad(colors, (0, (3 << bits) - len(colors))).reshape(-1, 3)
    palette = np.pad(colors[:, ::-1], ((0, 0), (0, 1))).tobytes()
    return _packed(np.asarray(image), bits), palette


def _packed(indices: np.ndarray, bits: int) -> np.ndarray:
    unpacked = np.unpackbits(indices[..., None], axis=-1)[..., 8 - bits :]
    return np.packbits(unpacked.reshape(len(indices), -1), axis=1)


def _fielded(pixels: np.ndarray, bits: int, *masks: int) -> np.ndarray:
    """Return (H, bytes), with each color at the position of its mask and an alpha of 200."""
    values = np.zeros(pixels.shape[:2], np.uint32)
    planes = [*np.moveaxis(pixels, -1, 0).astype(np.uint32), np.full(pixels.shape[:2], 200, np.uint32)]
    for plane, mask in zip(planes, masks, strict=False):
        size, shift = mask.bit_count(), (mask & -mask).bit_length() - 1
        if mask:
            values |= (plane >> (8 - size)) << shift
    return values.astype("<u2" if bits == 16 else "<u4").view(np.uint8)


def _run_lengths(indices: np.ndarray) -> bytes:
    """Return RLE8 data from the bottom, with one run for each pixel and an end for each row."""
    rows = (b"".join(bytes([1, value]) for value in row) for row in indices[::-1].tolist())
    return b"\0\0".join(rows) + b"\0\1"


def bmps(picture: Callable) -> dict[str, bytes]:
    pixels = np.asarray(picture())
    height, width, _ = pixels.shape
    bgr = pixels[..., ::-1].reshape(height, -1)
    made = {"24.bmp": bmp(bgr, width, 24), "24 top down.bmp": bmp(bgr, width, 24, top_down=True)}
    made["24 old header.bmp"] = bmp(bgr, width, 24, header=12)
    made["24 V4.bmp"], made["24 V5.bmp"] = bmp(bgr, width, 24, header=108), bmp(bgr, width, 24, header=124)
    for bits in (1, 4, 8):
        rows, palette = _indexed(picture, bits)
        made[f"{bits}.bmp"] = bmp(rows, width, bits, palette=palette)
        made[f"{bits} top down.bmp"] = bmp(rows, width, bits, palette=palette, top_down=True)
        made[f"{bits} short palette.bmp"] = bmp(rows, width, bits, palette=palette[:-4])
    gray = np.repeat(np.arange(256, dtype=np.uint8), 4)
    gray[3::4] = 0
    made["8 gray.bmp"] = bmp(np.asarray(picture("L")), width, 8, palette=gray.tobytes())
    indices = np.asarray(picture("L"))
    made["rle8.bmp"] = bmp(
        np.frombuffer(_run_lengths(indices), np.uint8)[None], width, 8, _RLE8, gray.tobytes(), (height,)
    )
    for name, (bits, *masks) in _MASKS.items():
        kept = masks if masks[3] else masks[:3]
        rows = _fielded(pixels, bits, *masks)
        made[f"{name} fields.bmp"] = bmp(rows, width, bits, _FIELDS, masks=kept)
        made[f"{name} fields V4.bmp"] = bmp(rows, width, bits, _FIELDS, masks=masks, header=108)
        made[f"{name}.bmp"] = bmp(rows, width, bits)
    return made


def pnms(picture: Callable) -> dict[str, bytes]:
    pixels, gray = np.asarray(picture()), np.asarray(picture("L"))
    height, width = gray.shape
    size = f"{width} {height}".encode()
    wide = (gray.astype(">u2") * 257).tobytes()
    plain = b"\n".join(b" ".join(b"%d" % value for value in row) for row in pixels.reshape(height, -1).tolist())
    return {
        "raw.ppm": b"P6\n" + size + b"\n255\n" + pixels.tobytes(),
        "comment.ppm": b"P6 # a comment\n" + size + b"\n# another\n255\n" + pixels.tobytes(),
        "tabs.ppm": b"P6\t" + size.replace(b" ", b"\r\n") + b" 255 " + pixels.tobytes(),
        "raw.pgm": b"P5\n" + size + b"\n255\n" + gray.tobytes(),
        "maxval 100.pgm": b"P5\n" + size + b"\n100\n" + (gray // 3).tobytes(),
        "maxval 100.ppm": b"P6\n" + size + b"\n100\n" + (pixels // 3).tobytes(),
        "maxval 1000.pgm": b"P5\n" + size + b"\n1000\n" + (gray.astype(">u2") * 3).tobytes(),
        "16 bits.pgm": b"P5\n" + size + b"\n65535\n" + wide,
        "plain.ppm": b"P3\n" + size + b"\n255\n" + plain + b"\n",
        "plain.pgm": b"P2\n"
        + size
        + b"\n255\n"
        + b"\n".join(b" ".join(b"%d" % v for v in row) for row in gray.tolist()),
        "plain.pbm": b"P1\n"
        + size
        + b"\n"
        + b"\n".join(b" ".join(b"%d" % (v > 99) for v in row) for row in gray.tolist()),
        "raw.pbm": b"P4\n" + size + b"\n" + np.packbits(gray > 99, axis=1).tobytes(),
        "float.pfm": b"Pf\n" + size + b"\n-1.0\n" + gray.astype("<f4").tobytes(),
        "tail.ppm": b"P6\n" + size + b"\n255\n" + pixels.tobytes() + b"tail",
    }


def files(picture: Callable) -> dict[str, bytes]:
    made = {**bmps(picture), **pnms(picture)}
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        file = io.BytesIO()
        picture(mode).save(file, "BMP")
        made[f"saved {mode}.bmp"] = file.getvalue()
    return made
