"""PNG files of all color types and bit depths, written chunk by chunk because Pillow writes few of them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_CHANNELS = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGBA: 4}
_DEPTHS = {_GRAY: (1, 2, 4, 8, 16), _RGB: (8, 16), _PALETTE: (1, 2, 4, 8), _GRAY_ALPHA: (8, 16), _RGBA: (8, 16)}
_NAMES = {_GRAY: "gray", _RGB: "RGB", _PALETTE: "palette", _GRAY_ALPHA: "gray alpha", _RGBA: "RGBA"}
_PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))  # Adam7

Chunk = tuple[bytes, bytes]


def chunks_of(data: bytes) -> list[Chunk]:
    """Return (type, content) of each chunk of a whole PNG."""
    found, at = [], len(SIGNATURE)
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def with_chunks(chunks: list[Chunk]) -> bytes:
    """Return a PNG of these chunks, with correct lengths and checksums."""
    body = (struct.pack(">I", len(content)) + kind + content for kind, content in chunks)
    sums = (struct.pack(">I", zlib.crc32(kind + content)) for kind, content in chunks)
    return SIGNATURE + b"".join(part for pair in zip(body, sums, strict=True) for part in pair)


def png(samples: np.ndarray, color: int, depth: int, extra: list[Chunk] = (), interlaced: bool = False) -> bytes:
    """Return a PNG of ``samples`` (H, W, C) with ``depth`` bits. ``extra`` chunks come before the data."""
    height, width, _ = samples.shape
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)
    parts = [samples[y::dy, x::dx] for y, x, dy, dx in _PASSES] if interlaced else [samples]
    rows = b"".join(_rows(part, depth) for part in parts if part.size)
    return with_chunks([(b"IHDR", header), *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")])


def _rows(samples: np.ndarray, depth: int) -> bytes:
    """Return packed samples, each row after a filter byte of zero."""
    rows = samples.reshape(len(samples), -1)
    if depth == 16:
        packed = rows.astype(">u2").view(np.uint8)
    elif depth == 8:
        packed = rows.astype(np.uint8)
    else:
        bits = np.unpackbits(rows.astype(np.uint8)[..., None], axis=-1)[..., 8 - depth :]
        packed = np.packbits(bits.reshape(len(rows), -1), axis=1)
    return b"".join(b"\0" + row.tobytes() for row in packed)


def samples_of(picture: Callable, color: int, depth: int) -> tuple[np.ndarray, list[Chunk]]:
    """Return samples (H, W, C) of an image, and the palette that they need."""
    if color == _PALETTE:
        image = picture().quantize(1 << depth)
        palette = bytes(image.getpalette()[: 3 << depth])
        return np.asarray(image)[..., None], [(b"PLTE", palette.ljust(3 << depth, b"\x40"))]
    image = picture("L" if color in (_GRAY, _GRAY_ALPHA) else "RGB")
    samples = np.asarray(image).reshape(image.height, image.width, -1)
    if color in (_GRAY_ALPHA, _RGBA):
        samples = np.concatenate([samples, samples[::-1, ::-1, :1]], axis=2)
    if depth == 16:
        return samples.astype(np.uint16) * 251 + 17, []
    return samples >> (8 - depth), []


def files(picture: Callable) -> dict[str, bytes]:
    made = {}
    for color, name in _NAMES.items():
        for depth in _DEPTHS[color]:
            samples, palette = samples_of(picture, color, depth)
            made[f"{name} {depth}.png"] = png(samples, color, depth, palette)
            made[f"{name} {depth} interlaced.png"] = png(samples, color, depth, palette, interlaced=True)
            transparent = _transparency(samples, color)
            if transparent:
                made[f"{name} {depth} tRNS.png"] = png(samples, color, depth, [*palette, (b"tRNS", transparent)])
    samples, _ = samples_of(picture, _RGB, 8)
    for name, chunks in _ANCILLARY.items():
        made[f"{name}.png"] = png(samples, _RGB, 8, chunks)
    indices, palette = samples_of(picture, _PALETTE, 4)
    made["short palette.png"] = png(indices, _PALETTE, 4, [(b"PLTE", palette[0][1][:15])])
    made["palette gamma.png"] = png(indices, _PALETTE, 4, [_ANCILLARY["gamma"][0], *palette])
    made["several IDAT.png"] = _split(png(samples, _RGB, 8))
    for color in ("RGB", "L", "P", "1"):
        file = io.BytesIO()
        picture(color).save(file, "PNG")  # with all kinds of filters
        made[f"saved {color}.png"] = file.getvalue()
    file = io.BytesIO()
    picture().save(file, "PNG", save_all=True, append_images=[picture(number=4)])
    made["animated.png"] = file.getvalue()
    made["animated of one.png"] = _animated_of_one(file.getvalue())
    return made


_ANCILLARY = {
    "gamma": [(b"gAMA", struct.pack(">I", 100000))],
    "sRGB": [(b"sRGB", b"\0"), (b"gAMA", struct.pack(">I", 45455))],
    "primaries": [(b"cHRM", struct.pack(">8I", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000))],
    "profile": [(b"iCCP", b"a name\0\0" + zlib.compress(b"no profile" * 20))],
    "background": [(b"bKGD", struct.pack(">3H", 200, 10, 10))],
    "significant bits": [(b"sBIT", b"\5\6\5")],
    "text": [(b"tEXt", b"Comment\0text"), (b"zTXt", b"More\0\0" + zlib.compress(b"text"))],
    "resolution": [(b"pHYs", b"\0\0\x0b\x13" * 2 + b"\1")],
    "unknown": [(b"abCd", b"anything")],
    "suggested palette": [(b"PLTE", bytes(range(30)))],
    "EXIF": [(b"eXIf", b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0")],
}


def _transparency(samples: np.ndarray, color: int) -> bytes:
    if color == _PALETTE:
        return bytes(range(0, 2 * min(len(np.unique(samples)), 100), 2))
    return samples[5, 5].astype(">u2").tobytes() if color in (_GRAY, _RGB) else b""


def _split(data: bytes) -> bytes:
    chunks = []
    for kind, content in chunks_of(data):
        pieces = [content[i : i + 700] for i in range(0, len(content), 700)] if kind == b"IDAT" else [content]
        chunks.extend((kind, piece) for piece in pieces)
    return with_chunks(chunks)


def _animated_of_one(data: bytes) -> bytes:
    """Return a PNG with one frame, and a default image outside the animation."""
    chunks = dict(reversed(chunks_of(data)))
    frame = struct.pack(">I", 0) + chunks[b"fcTL"][4:]
    order = [b"IHDR", b"acTL", b"IDAT", b"fcTL", b"fdAT", b"IEND"]
    chunks[b"acTL"], chunks[b"fcTL"] = struct.pack(">II", 1, 0), frame
    chunks[b"fdAT"] = struct.pack(">I", 1) + chunks[b"IDAT"]
    return with_chunks([(kind, chunks[kind]) for kind in order])


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))
