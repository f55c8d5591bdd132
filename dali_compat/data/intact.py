"""Check that an encoded image is complete and has a structure that all decoders read in the same way.

Decoders tolerate different kinds of damage, so this module does not search for damage. It accepts only structures that
DALI decodes exactly as Pillow does in tests (tests/faults). Pillow decodes all other files.

Compressed data is not decoded. Flipped bits in it are detected only in PNG, because PNG has checksums. Pillow does not
detect them in other formats, either.
"""

from __future__ import annotations

import re
import struct
import zlib

import numpy as np

from .intact_jpeg import Jpeg, UnknownStructure, require


def intact(data: np.ndarray) -> bool:
    """Return True if the image with these bytes is complete, and of a structure that DALI decodes as Pillow does."""
    view = data.data
    head = bytes(view[:64])
    try:
        if head.startswith(b"\xff\xd8"):
            return Jpeg(data).is_whole()
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return _is_whole_png(view)
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return _is_whole_webp(view)
        return is_whole_bitmap(head, len(data))
    except (UnknownStructure, IndexError, struct.error):  # the last two mean that the file ends early
        return False


def is_intact(image) -> bool:
    """Return the result of intact() for encoded bytes or a path. Return False if the file cannot be read."""
    try:
        return intact(np.fromfile(image, np.uint8) if isinstance(image, str) else np.asarray(image))
    except OSError:
        return False


# ---- PNG

_COLOURS = (0, 2, 3, 4, 6)
_ANCILLARY = 32  # bit of the first letter of a chunk's type
_ANIMATION = frozenset((b"acTL", b"fcTL", b"fdAT"))
_AFTER_DATA = frozenset((b"tEXt", b"tIME"))


def _is_whole_png(view: memoryview) -> bool:
    """Return True if a PNG has all chunks up to IEND, with correct checksums, and a known structure."""
    chunks: list[tuple[bytes, memoryview]] = []
    at = 8
    while not chunks or chunks[-1][0] != b"IEND":
        length, kind = struct.unpack_from(">I4s", view, at)
        (checksum,) = struct.unpack_from(">I", view, at + 8 + length)
        require(zlib.crc32(view[at + 4 : at + 8 + length]) == checksum)
        chunks.append((kind, view[at + 8 : at + 8 + length]))
        at += 12 + length
    kinds = [kind for kind, _ in chunks]
    first = kinds.index(b"IDAT") if b"IDAT" in kinds else 0
    last = first + kinds.count(b"IDAT")
    require(first and kinds[0] == b"IHDR" and set(kinds[first:last]) == {b"IDAT"} and not len(chunks[-1][1]))
    require(all(kind == b"PLTE" or (kind[0] & _ANCILLARY and kind not in _ANIMATION) for kind in kinds[1:first]))
    require(_AFTER_DATA.issuperset(kinds[last:-1]))
    return _is_known_png(chunks[0][1], {kind: len(content) for kind, content in chunks[1:first]}, kinds)


def _is_known_png(header: memoryview, lengths: dict[bytes, int], kinds: list[bytes]) -> bool:
    """Return True if DALI supports a PNG's color type, palette and transparency.

    ``lengths`` has the lengths of the chunks before the pixels. ``kinds`` has the types of all chunks.
    """
    _, _, depth, colour, compression, filtering, interlaced = struct.unpack(">IIBBBBB", header)
    require(depth == 8 and colour in _COLOURS and compression == filtering == 0 and interlaced in (0, 1))
    palette, transparent = lengths.get(b"PLTE", 0), lengths.get(b"tRNS", 0)
    require(kinds.count(b"PLTE") <= 1 and kinds.count(b"tRNS") <= 1 and palette % 3 == 0)
    if colour == 3:
        return 0 < palette <= 768 and transparent <= palette // 3
    return (palette == 0 or colour in (2, 6)) and transparent in (0, {0: 2, 2: 6}.get(colour, 0))


# ---- the rest


def _is_whole_webp(view: memoryview) -> bool:
    """Return True if a WebP contains one picture, and all its chunks are complete."""
    require(struct.unpack_from("<I", view, 4)[0] == len(view) - 8)
    kinds, at = [], 12
    while at < len(view):
        kind, length = struct.unpack_from("<4sI", view, at)
        kinds.append(kind)
        at += 8 + length + length % 2
    require(at == len(view))
    if kinds[0] != b"VP8X":
        return kinds in ([b"VP8 "], [b"VP8L"])
    known = {b"VP8X", b"ICCP", b"ALPH", b"VP8 ", b"VP8L", b"XMP "}
    return known.issuperset(kinds) and len(set(kinds)) == len(kinds) and (b"VP8 " in kinds) != (b"VP8L" in kinds)


_NETPBM = re.compile(rb"P([56])\s(\d{1,9})\s(\d{1,9})\s255\s")


def is_whole_bitmap(head: bytes, size: int) -> bool:
    """Return True for a complete uncompressed BMP without masks, and for a complete 8-bit PPM or PGM.

    ``head`` has the first 64 bytes of the file, and ``size`` is its size. Raise struct.error if ``head`` is too short.
    """
    if head.startswith(b"BM"):
        return _is_whole_bmp(head, size)
    found = _NETPBM.match(head)
    if found is None:
        return False
    kind, width, height = map(int, found.groups())
    return size == found.end() + width * height * (3 if kind == 6 else 1)


def _is_whole_bmp(head: bytes, size: int) -> bool:
    start, header, width, height, planes, bits, compression = struct.unpack_from("<IIiiHHI", head, 10)
    (colours,) = struct.unpack_from("<I", head, 46)
    known = header == 40 and planes == 1 and bits in (1, 4, 8, 24) and compression == 0 and width > 0 and height > 0
    if bits == 24:
        known, palette = known and colours == 0, 0
    else:  # PIL treats some images with two colors as gray
        known, palette = known and (colours in (0, 1 << bits) or 2 < colours < 1 << bits), colours or 1 << bits
    pixels = height * ((width * bits + 31) // 32 * 4)
    return known and start == 54 + 4 * palette and size == start + pixels
