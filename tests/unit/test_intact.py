"""Which encoded images are known to be whole, and alike to DALI and Pillow."""

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
PILLOWS = [
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


def whole(data: bytes) -> bool:
    return intact(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("name", KNOWN)
def test_known(name):
    assert whole(WHOLE[name.replace("_", " ")])


@pytest.mark.parametrize("name", PILLOWS)
def test_pillows(name):
    assert not whole(WHOLE[name.replace("_", " ")])


@pytest.mark.parametrize("name", KNOWN)
def test_a_cut_anywhere_is_found(name):
    data = WHOLE[name.replace("_", " ")]
    end = data.index(b"\xff\xd9") + 2 if name in ("tail.jpg", "two_images.jpg", "pages.mpo") else len(data)
    for length in {*range(0, end, max(1, end // 50)), *range(max(0, end - 20), end)}:
        assert not whole(data[:length]), length


def test_photos(photos):
    """All of them: what is not known costs time."""
    paths = [path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")]
    assert paths and all(whole(path.read_bytes()) for path in paths)


def test_large_images_of_all_samplings():
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
            assert whole(file.getvalue()), options


# ---- JPEG


def _edited(name: str, change) -> bytes:
    pieces = [list(piece) for piece in pieces_of(WHOLE[name])]
    change(pieces)
    return b"".join(piece for _, piece in pieces)


def _place(pieces: list, marker: int) -> int:
    return [piece[0] for piece in pieces].index(marker)


@pytest.mark.parametrize("marker", [0x01, 0x27, 0xC0, 0xC4, 0xD0, 0xD8, 0xDA, 0xDD, 0xFE, 0xFF])
@pytest.mark.parametrize("name", ["420.jpg", "420 progressive.jpg", "restarts.jpg"])
def test_a_marker_in_a_scan(name, marker):
    def change(pieces):
        piece = pieces[_place(pieces, SOS)]
        at = len(piece[1]) // 2
        piece[1] = piece[1][:at] + bytes([0x55, 0xFF, marker]) + piece[1][at + 3 :]

    assert not whole(_edited(name, change))


def test_an_end_marker_in_a_scan():
    """Libjpeg accepts a picture that ends early, and so do all decoders; what cannot be is found."""
    data = WHOLE["restarts.jpg"]
    at = data.index(b"\xff\xd3")
    assert not whole(data[: at + 1] + b"\xd9" + data[at + 2 :])
    data = WHOLE["420 progressive.jpg"]
    at = data.index(b"\xff\xda") + 40
    assert not whole(data[:at] + b"\xff\xd9" + data[at + 2 :])


def test_restart_markers_out_of_order_lost_or_without_an_interval():
    data = WHOLE["restarts.jpg"]
    first, second = data.index(b"\xff\xd0"), data.index(b"\xff\xd1")
    assert not whole(data[: first + 1] + b"\xd1" + data[first + 2 :])
    assert not whole(data[:first] + data[second:])
    at = data.index(b"\xff\xdd")
    assert not whole(data[:at] + data[at + 6 :])


@pytest.mark.parametrize("lost", range(10))
def test_every_scan_of_a_progressive_picture_is_needed(lost):
    def change(pieces):
        del pieces[[i for i, (marker, _) in enumerate(pieces) if marker == SOS][lost]]

    assert not whole(_edited("420 progressive.jpg", change))


def test_every_bit_of_a_coefficient_is_refined_in_its_turn():
    """A scan claims to bring two bits at once, and that which brings the second is gone."""

    def told(piece) -> tuple[int, int, int]:
        """Component, first coefficient, and bits that were and are still to come, of a scan of one component."""
        return piece[1][5], piece[1][7], piece[1][9]

    def change(pieces):
        alone = [piece for piece in pieces if piece[0] == SOS and piece[1][4] == 1]
        first = next(scan for scan in alone if told(scan)[2] == 0x21)
        (second,) = [scan for scan in alone if told(scan) == (*told(first)[:2], 0x10)]
        first[1] = first[1][:9] + b"\x20" + first[1][10:]
        pieces.remove(second)

    assert not whole(_edited("420 progressive.jpg", change))


@pytest.mark.parametrize("marker", [0xDB, 0xC0, 0xC4, 0xDA, 0xD9])
def test_every_segment_is_needed(marker):
    def change(pieces):
        del pieces[_place(pieces, marker)]

    assert not whole(_edited("420.jpg", change))


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
    "codes of ones alone": (segment(0xC4, b"\0\2" + bytes(15) + b"\0\1"), False),
    "too many codes": (segment(0xC4, b"\0\3" + bytes(15) + b"\0\1\2"), False),
    "length of one": (b"\xff\xfe\0\1", False),
    "fill bytes": (b"\xff\xff", False),
    "a byte": (b"\0", False),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_segment_more(name):
    added, known = ADDED[name]
    assert whole(_edited("420.jpg", lambda pieces: pieces.insert(2, (0, added)))) == known


def test_quantisers_behind_a_scan():
    """Decoders differ in which of the coefficients they take them for."""
    quantiser = (0, segment(0xDB, b"\3" + b"\1" * 64))
    data = "420 progressive.jpg"
    assert whole(_edited(data, lambda pieces: pieces.insert(_place(pieces, SOS), quantiser)))
    assert not whole(_edited(data, lambda pieces: pieces.insert(_place(pieces, SOS) + 1, quantiser)))


def test_adobes_marker_behind_the_frame():
    """header.py, which asks whether colours are YCbCr, reads no further than the frame."""
    adobe = segment(0xEE, b"Adobe\0\x64\0\0\0\0\0")
    assert whole(_edited("420.jpg", lambda pieces: pieces.insert(1, (0, adobe))))
    assert not whole(_edited("420.jpg", lambda pieces: pieces.insert(_place(pieces, SOS), (0, adobe))))


def test_a_claimed_height_that_the_data_cannot_hold():
    def change(pieces):
        frame = pieces[_place(pieces, 0xC0)]
        frame[1] = frame[1][:5] + struct.pack(">H", 9000) + frame[1][7:]

    assert not whole(_edited("420.jpg", change))


# ---- PNG and WebP


def test_one_bit_anywhere_in_a_png():
    data = WHOLE["gray 4.png"]
    for at in range(0, len(data), 7):
        assert not whole(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]), at


@pytest.mark.parametrize("kind", [b"acTL", b"fcTL", b"fdAT", b"ABCD", b"PLTE", b"tRNS"])
def test_chunks_that_change_the_picture(kind):
    chunks = chunks_of(WHOLE["palette 8.png"])
    assert not whole(with_chunks([*chunks[:2], (kind, bytes(12)), (kind, bytes(12)), *chunks[2:]]))


@pytest.mark.parametrize(
    ("kind", "known"),
    [(b"tEXt", True), (b"tIME", True), *((kind, False) for kind in (b"tRNS", b"PLTE", b"eXIf", b"ABCD"))],
)
def test_chunks_behind_the_data(kind, known):
    """Descriptions alone may stand there; of the rest decoders differ in what they heed."""
    chunks = chunks_of(WHOLE["RGB 8.png"])
    assert whole(with_chunks([*chunks[:-1], (kind, bytes(6)), chunks[-1]])) == known


def test_chunks_of_length_zero_and_missing_ones():
    chunks = chunks_of(WHOLE["RGB 8.png"])
    for left_out in range(3):
        assert not whole(with_chunks([chunk for i, chunk in enumerate(chunks) if i != left_out]))
    assert not whole(with_chunks([chunks[0], (b"IEND", b"")]))


def test_sizes_of_a_webp():
    data = saved("WEBP")
    assert whole(data) and not whole(data + b"\0") and not whole(data[:4] + struct.pack("<I", len(data)) + data[8:])
    assert not whole(data[:16] + struct.pack("<I", len(data)) + data[20:])


@pytest.mark.parametrize("kind", [b"VP8 ", b"ALPH", b"ICCP"])
def test_one_picture_in_a_webp(kind):
    """Of two pictures, alphas or profiles one decoder may take the first, and another the last."""
    data = WHOLE["lossy alpha.webp"]
    for more, known in ((b"XMP ", True), (kind, kind == b"ICCP"), (kind + kind, False)):
        chunks = b"".join(bytes([*more[i : i + 4], 2, 0, 0, 0, 1, 1]) for i in range(0, len(more), 4))
        assert whole(b"RIFF" + struct.pack("<I", len(data) + len(chunks) - 8) + data[8:] + chunks) == known, more


@pytest.mark.parametrize("bits", [4, 8])
def test_a_bitmap_of_two_colours(bits):
    """Pillow takes some of these for black and white, of which a pixel has one bit."""
    rows = np.random.default_rng(0).integers(0, 2, (9, 24 * bits // 8), np.uint8)
    data = [bmp(rows, 24, bits, palette=bytes(4) * (count - 1) + b"\xff\xff\xff\0") for count in (2, 3)]
    assert [whole(one) for one in data] == [False, True]


def test_anything_else():
    assert not whole(b"") and not whole(b"\xff") and not whole(b"\xff\xd8") and not whole(b"no image" * 20)
    assert not whole(b"\xff" * 1000) and not whole(bytes(1000))
    with Image.open(io.BytesIO(WHOLE["plain.gif"])) as image:
        assert image.format == "GIF" and not whole(WHOLE["plain.gif"])
