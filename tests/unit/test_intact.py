"""Recognition of complete images that DALI and Pillow decode to the same pixels."""

import io
import struct

import numpy as np
import pytest
from faults.bitmaps import bmp
from faults.jpegs import SOS, pieces_of, segment
from faults.originals import originals, picture, saved
from faults.pngs import chunks_of, with_chunks
from PIL import Image

from dali_compat.data.intact import intact

WHOLE = originals()
KNOWN = [
    "444.jpg",
    "444_progressive.jpg",
    "422.jpg",
    "422_progressive.jpg",
    "420.jpg",
    "420_progressive.jpg",
    "gray.jpg",
    "gray_progressive.jpg",
    "restarts.jpg",
    "restarts_by_rows.jpg",
    "restarts_progressive.jpg",
    "optimised.jpg",
    "quality_5.jpg",
    "quality_100.jpg",
    "EXIF.jpg",
    "comment_and_profile.jpg",
    "tail.jpg",
    "two_images.jpg",
    "pages.mpo",
    "lossy.webp",
    "lossless.webp",
    "lossy_alpha.webp",
    "lossless_alpha.webp",
    "profile.webp",
    "gray_8.png",
    "gray_8_tRNS.png",
    "gray_8_interlaced.png",
    "RGB_8.png",
    "RGB_8_interlaced.png",
    "RGB_8_tRNS.png",
    "palette_8.png",
    "palette_8_tRNS.png",
    "gray_alpha_8.png",
    "RGBA_8.png",
    "gamma.png",
    "sRGB.png",
    "primaries.png",
    "profile.png",
    "text.png",
    "unknown.png",
    "several_IDAT.png",
    "saved_RGB.png",
    "saved_L.png",
    "saved_P.png",
    "24.bmp",
    "1.bmp",
    "4.bmp",
    "8.bmp",
    "saved_1.bmp",
    "saved_L.bmp",
    "saved_P.bmp",
    "saved_RGB.bmp",
    "raw.ppm",
    "raw.pgm",
]
PILLOW_ONLY = [
    "CMYK.jpg",
    "EXIF.webp",
    "animated.webp",
    "plain.gif",
    "plain.tga",
    "gray_1.png",
    "palette_1.png",
    "palette_2.png",
    "gray_4.png",
    "gray_16.png",
    "RGB_16.png",
    "RGBA_16.png",
    "animated.png",
    "animated_of_one.png",
    "24_top_down.bmp",
    "24_old_header.bmp",
    "24_V4.bmp",
    "rle8.bmp",
    "555_fields.bmp",
    "565_fields.bmp",
    "XBGR_fields.bmp",
    "comment.ppm",
    "maxval_100.pgm",
    "16_bits.pgm",
    "plain.ppm",
    "raw.pbm",
    "tail.ppm",
    "RGB_II.tif",
    "pages.tif",
]


def is_intact(data: bytes) -> bool:
    return intact(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("name", KNOWN)
def test_known_kinds_are_intact(name):
    assert is_intact(WHOLE[name.replace("_", " ")])


@pytest.mark.parametrize("name", PILLOW_ONLY)
def test_kinds_only_for_pillow_are_not_intact(name):
    assert not is_intact(WHOLE[name.replace("_", " ")])


@pytest.mark.parametrize("name", KNOWN)
def test_truncated_file_is_not_intact(name):
    data = WHOLE[name.replace("_", " ")]
    end = data.index(b"\xff\xd9") + 2 if name in ("tail.jpg", "two_images.jpg", "pages.mpo") else len(data)
    for length in {*range(0, end, max(1, end // 50)), *range(max(0, end - 20), end)}:
        assert not is_intact(data[:length]), length


def test_photos_are_intact(photos):
    """Every photo that is not recognized costs time."""
    paths = [path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")]
    assert paths and all(is_intact(path.read_bytes()) for path in paths)


def test_large_images_with_any_sampling_are_intact():
    image = picture().resize((700, 500))
    for options in (
        {"subsampling": 0},
        {"subsampling": 1},
        {"subsampling": 2},
        {"restart_marker_blocks": 7},
        {"quality": 3},
    ):
        for progressive in (False, True):
            file = io.BytesIO()
            image.save(file, "JPEG", progressive=progressive, **options)
            assert is_intact(file.getvalue()), options


# ---- JPEG


def _edited(name: str, change) -> bytes:
    pieces = [list(piece) for piece in pieces_of(WHOLE[name])]
    change(pieces)
    return b"".join(piece for _, piece in pieces)


def _index_of(pieces: list, marker: int) -> int:
    return [piece[0] for piece in pieces].index(marker)


@pytest.mark.parametrize("marker", [0x01, 0x27, 0xC0, 0xC4, 0xD0, 0xD8, 0xDA, 0xDD, 0xFE, 0xFF])
@pytest.mark.parametrize("name", ["420.jpg", "420 progressive.jpg", "restarts.jpg"])
def test_marker_inside_a_scan_is_not_intact(name, marker):
    def change(pieces):
        piece = pieces[_index_of(pieces, SOS)]
        at = len(piece[1]) // 2
        piece[1] = piece[1][:at] + bytes([0x55, 0xFF, marker]) + piece[1][at + 3 :]

    assert not is_intact(_edited(name, change))


def test_end_marker_inside_a_scan_is_not_intact():
    """libjpeg and all decoders accept an image that ends early. Impossible data is still detected."""
    data = WHOLE["restarts.jpg"]
    at = data.index(b"\xff\xd3")
    assert not is_intact(data[: at + 1] + b"\xd9" + data[at + 2 :])
    data = WHOLE["420 progressive.jpg"]
    at = data.index(b"\xff\xda") + 40
    assert not is_intact(data[:at] + b"\xff\xd9" + data[at + 2 :])


def test_wrong_or_missing_restart_markers_are_not_intact():
    data = WHOLE["restarts.jpg"]
    first, second = data.index(b"\xff\xd0"), data.index(b"\xff\xd1")
    assert not is_intact(data[: first + 1] + b"\xd1" + data[first + 2 :])
    assert not is_intact(data[:first] + data[second:])
    at = data.index(b"\xff\xdd")
    assert not is_intact(data[:at] + data[at + 6 :])


@pytest.mark.parametrize("lost", range(10))
def test_progressive_image_without_a_scan_is_not_intact(lost):
    def change(pieces):
        del pieces[[i for i, (marker, _) in enumerate(pieces) if marker == SOS][lost]]

    assert not is_intact(_edited("420 progressive.jpg", change))


def test_progressive_scan_that_skips_a_refinement_is_not_intact():
    """One scan claims to contain two bits, and the scan with the second bit is removed."""

    def parameters(piece) -> tuple[int, int, int]:
        """Component, first coefficient and bit range of a scan of one component."""
        return piece[1][5], piece[1][7], piece[1][9]

    def change(pieces):
        single = [piece for piece in pieces if piece[0] == SOS and piece[1][4] == 1]
        first = next(scan for scan in single if parameters(scan)[2] == 0x21)
        (second,) = [scan for scan in single if parameters(scan) == (*parameters(first)[:2], 0x10)]
        first[1] = first[1][:9] + b"\x20" + first[1][10:]
        pieces.remove(second)

    assert not is_intact(_edited("420 progressive.jpg", change))


@pytest.mark.parametrize("marker", [0xDB, 0xC0, 0xC4, 0xDA, 0xD9])
def test_jpeg_without_a_segment_is_not_intact(marker):
    def change(pieces):
        del pieces[_index_of(pieces, marker)]

    assert not is_intact(_edited("420.jpg", change))


ADDED = {
    "nothing": (b"", True),
    "a comment": (segment(0xFE, b"text"), True),
    "another application": (segment(0xE5, b"\xff\xda\xff\xd9"), True),
    "Photoshop": (segment(0xED, b"Photoshop 3.0\x008BIM\4\4\0\0\0\0\0\2ab"), True),
    "Photoshop, cut": (segment(0xED, b"Photoshop 3.0\x008BIM\4\4"), False),
    "half of JFIF": (segment(0xE0, b"JFIF\0\1\1"), False),
    "half of Adobe": (segment(0xEE, b"Adobe"), False),
    "half of a profile": (segment(0xE2, b"ICC_PROFILE\0"), False),
    "reserved": (segment(0xF7, b"text"), False),
    "number of lines": (segment(0xDC, b"\0\x10"), False),
    "16-bit quantiser": (segment(0xDB, b"\x12" + b"\1\1" * 64), False),
    "no quantiser": (segment(0xDB, b""), False),
    "a quantiser and a byte": (segment(0xDB, b"\2" + b"\1" * 64 + b"\3"), False),
    "quantiser with a zero": (segment(0xDB, b"\2" + bytes(64)), False),
    "codes of only ones": (segment(0xC4, b"\0\2" + bytes(15) + b"\0\1"), False),
    "too many codes": (segment(0xC4, b"\0\3" + bytes(15) + b"\0\1\2"), False),
    "length of one": (b"\xff\xfe\0\1", False),
    "fill bytes": (b"\xff\xff", False),
    "a byte": (b"\0", False),
}


@pytest.mark.parametrize("name", ADDED)
def test_jpeg_with_an_added_segment_is_intact_only_if_it_is_valid(name):
    added, known = ADDED[name]
    assert is_intact(_edited("420.jpg", lambda pieces: pieces.insert(2, (0, added)))) == known


def test_quantization_table_after_a_scan_is_not_intact():
    """Decoders differ in the coefficients that they apply it to."""
    quantiser = (0, segment(0xDB, b"\3" + b"\1" * 64))
    data = "420 progressive.jpg"
    assert is_intact(_edited(data, lambda pieces: pieces.insert(_index_of(pieces, SOS), quantiser)))
    assert not is_intact(_edited(data, lambda pieces: pieces.insert(_index_of(pieces, SOS) + 1, quantiser)))


def test_adobe_marker_after_the_frame_is_not_intact():
    """header.py reads the color space up to the frame only."""
    adobe = segment(0xEE, b"Adobe\0\x64\0\0\0\0\0")
    assert is_intact(_edited("420.jpg", lambda pieces: pieces.insert(1, (0, adobe))))
    assert not is_intact(_edited("420.jpg", lambda pieces: pieces.insert(_index_of(pieces, SOS), (0, adobe))))


def test_height_larger_than_the_data_is_not_intact():
    def change(pieces):
        frame = pieces[_index_of(pieces, 0xC0)]
        frame[1] = frame[1][:5] + struct.pack(">H", 9000) + frame[1][7:]

    assert not is_intact(_edited("420.jpg", change))


# ---- PNG and WebP


def test_png_with_a_flipped_bit_is_not_intact():
    data = WHOLE["gray 4.png"]
    for at in range(0, len(data), 7):
        assert not is_intact(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]), at


@pytest.mark.parametrize("kind", [b"acTL", b"fcTL", b"fdAT", b"ABCD", b"PLTE", b"tRNS"])
def test_png_with_chunks_that_change_the_image_is_not_intact(kind):
    chunks = chunks_of(WHOLE["palette 8.png"])
    assert not is_intact(with_chunks([*chunks[:2], (kind, bytes(12)), (kind, bytes(12)), *chunks[2:]]))


@pytest.mark.parametrize(
    ("kind", "known"),
    [(b"tEXt", True), (b"tIME", True), *((kind, False) for kind in (b"tRNS", b"PLTE", b"eXIf", b"ABCD"))],
)
def test_png_with_other_chunks_than_metadata_after_the_data_is_not_intact(kind, known):
    """Only descriptions are allowed there; decoders differ in their use of other chunks."""
    chunks = chunks_of(WHOLE["RGB 8.png"])
    assert is_intact(with_chunks([*chunks[:-1], (kind, bytes(6)), chunks[-1]])) == known


def test_png_with_missing_chunks_is_not_intact():
    chunks = chunks_of(WHOLE["RGB 8.png"])
    for left_out in range(3):
        assert not is_intact(with_chunks([chunk for i, chunk in enumerate(chunks) if i != left_out]))
    assert not is_intact(with_chunks([chunks[0], (b"IEND", b"")]))


def test_webp_with_wrong_sizes_is_not_intact():
    data = saved("WEBP")
    assert (
        is_intact(data)
        and not is_intact(data + b"\0")
        and not is_intact(data[:4] + struct.pack("<I", len(data)) + data[8:])
    )
    assert not is_intact(data[:16] + struct.pack("<I", len(data)) + data[20:])


@pytest.mark.parametrize("kind", [b"VP8 ", b"ALPH", b"ICCP"])
def test_webp_with_repeated_chunks_is_not_intact(kind):
    """If an image, alpha or profile is repeated, one decoder may use the first and another the last."""
    data = WHOLE["lossy alpha.webp"]
    for more, known in ((b"XMP ", True), (kind, kind == b"ICCP"), (kind + kind, False)):
        chunks = b"".join(bytes([*more[i : i + 4], 2, 0, 0, 0, 1, 1]) for i in range(0, len(more), 4))
        assert is_intact(b"RIFF" + struct.pack("<I", len(data) + len(chunks) - 8) + data[8:] + chunks) == known, more


@pytest.mark.parametrize("bits", [4, 8])
def test_bitmap_with_two_colors_is_not_intact(bits):
    """Pillow reads some of these as black and white, with one bit per pixel."""
    rows = np.random.default_rng(0).integers(0, 2, (9, 24 * bits // 8), np.uint8)
    data = [bmp(rows, 24, bits, palette=bytes(4) * (count - 1) + b"\xff\xff\xff\0") for count in (2, 3)]
    assert [is_intact(one) for one in data] == [False, True]


def test_other_data_is_not_intact():
    assert (
        not is_intact(b"") and not is_intact(b"\xff") and not is_intact(b"\xff\xd8") and not is_intact(b"no image" * 20)
    )
    assert not is_intact(b"\xff" * 1000) and not is_intact(bytes(1000))
    with Image.open(io.BytesIO(WHOLE["plain.gif"])) as image:
        assert image.format == "GIF" and not is_intact(WHOLE["plain.gif"])
