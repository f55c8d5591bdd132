"""Image sizes from headers, and the choice of files that PIL must decode."""

import io
import struct
import zlib

import numpy as np
import pytest
from faults import bitmaps
from faults.jpegs import pieces_of
from helpers import make_image, sizes_and_kinds
from PIL import Image, ImageFile

from dali_compat.data import headers
from dali_compat.data.header import DALI, PIL, SIZE_FIELD, UNREADABLE, read_header
from dali_compat.data.headers import Headers, header_hashes
from dali_compat.data.sources import ORIENTATION, Upright
from dali_compat.data.verdicts import BY_ENGINE

HEIGHT, WIDTH = 53, 71


def photo(mode="RGB") -> Image.Image:
    return Image.fromarray(make_image(np.random.default_rng(0), HEIGHT, WIDTH)).convert(mode)


def saved(kind, mode="RGB", **options) -> bytes:
    file = io.BytesIO()
    photo(mode).save(file, kind, **options)
    return file.getvalue()


def jpeg(**options) -> bytes:
    return saved("JPEG", **options)


def with_exif(orientation, size=0) -> bytes:
    exif = Image.Exif()
    exif[274] = orientation
    if size:
        exif[0x9286] = "x" * size
    return exif.tobytes()


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def after_start(data: bytes, inserted: bytes) -> bytes:
    return data[:2] + inserted + data[2:]


def without(data: bytes, *markers: int) -> bytes:
    return b"".join(piece for marker, piece in pieces_of(data) if marker not in markers)


def renamed(data: bytes, names: bytes) -> bytes:
    """Rename the three components in the frame and the only scan."""
    frame, scan = sof_at(data), data.index(b"\xff\xda")
    for number, name in enumerate(names):
        data = changed(changed(data, frame + 10 + 3 * number, name), scan + 5 + 2 * number, name)
    return data


def sof_at(data: bytes, marker=0xC0) -> int:
    return data.index(bytes([0xFF, marker, 0]))


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def sixteen_bits(kind) -> bytes:
    file = io.BytesIO()
    Image.fromarray((np.arange(HEIGHT * WIDTH, dtype=np.uint16) * 9).reshape(HEIGHT, WIDTH)).save(file, kind)
    return file.getvalue()


def sixteen_bit_colors() -> bytes:
    """Return a PNG that Pillow reads as RGB but cannot write."""
    rows = np.zeros((HEIGHT, 1 + 6 * WIDTH), np.uint8)  # a filter byte before each row
    rows[:, 1:] = np.random.default_rng(0).integers(0, 256, (HEIGHT, 6 * WIDTH))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")
    body = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def animated(kind) -> bytes:
    file = io.BytesIO()
    photo().save(file, kind, save_all=True, append_images=[photo("L").convert("RGB")])
    return file.getvalue()


def bitmap(name) -> bytes:
    return bitmaps.bmps(lambda mode="RGB": photo(mode))[name]


FILL = b"\xff" * 300  # any number of these bytes may precede a marker
FILES = {
    "baseline": (jpeg, DALI),
    "progressive": (lambda: jpeg(progressive=True), DALI),
    "gray": (lambda: jpeg(mode="L"), DALI),
    "4:4:4": (lambda: jpeg(subsampling=0), DALI),
    "RGB inside": (lambda: jpeg(keep_rgb=True), PIL),
    "RGB by the names of components": (lambda: without(jpeg(keep_rgb=True), 0xE0, 0xEE), PIL),
    "other names of components": (lambda: renamed(without(jpeg(), 0xE0), b"abc"), DALI),
    "restart markers": (lambda: jpeg(restart_marker_blocks=1), DALI),
    "no JFIF header": (lambda: jpeg()[:2] + jpeg()[2 + 2 + struct.unpack(">H", jpeg()[4:6])[0] :], DALI),
    "orientation": (lambda: jpeg(exif=with_exif(6)), DALI),  # torchvision does not rotate either
    "CMYK": (lambda: jpeg(mode="CMYK"), PIL),
    "long EXIF": (lambda: jpeg(exif=with_exif(6, 60000)), DALI),
    "long comments": (lambda: after_start(jpeg(), segment(0xFE, b"c" * 4083) + segment(0xFE, b"d" * 65000)), DALI),
    "a frame in a comment": (
        lambda: after_start(jpeg(), segment(0xFE, b"\xff\xc0\x00\x11\x08\x00\x01\x00\x01\x03")),
        DALI,
    ),
    "a thumbnail": (lambda: after_start(jpeg(), segment(0xE1, jpeg(mode="L")[:5000])), DALI),
    "fill bytes": (lambda: after_start(jpeg(), FILL), DALI),
    "many fill bytes": (lambda: after_start(jpeg(), FILL * 30), DALI),
    "trailing bytes": (lambda: jpeg() + b"trailing", DALI),
    "trailing zero": (lambda: jpeg() + b"\0", DALI),
    "two images": (lambda: jpeg() + jpeg(), DALI),
    "no end marker": (lambda: jpeg()[:-2], None),  # PIL may forgive it
    "truncated": (lambda: jpeg()[: len(jpeg()) // 2], PIL),  # PIL raises the error
    "truncated header": (lambda: jpeg()[:30], UNREADABLE),
    "only the start marker": (lambda: b"\xff\xd8", UNREADABLE),
    "12 bits": (lambda: changed(jpeg(), sof_at(jpeg()) + 4, 12), (PIL, UNREADABLE)),
    "no height": (lambda: changed(changed(jpeg(), sof_at(jpeg()) + 5, 0), sof_at(jpeg()) + 6, 0), (PIL, UNREADABLE)),
    "arithmetic": (lambda: changed(jpeg(), sof_at(jpeg()) + 1, 0xC9), PIL),
    "lossless": (lambda: changed(jpeg(), sof_at(jpeg()) + 1, 0xC3), (PIL, UNREADABLE)),
    "PNG": (lambda: saved("PNG"), DALI),
    "PNG gray": (lambda: saved("PNG", "L"), DALI),
    "PNG one bit": (lambda: saved("PNG", "1"), PIL),
    "PNG palette": (lambda: saved("PNG", "P"), DALI),
    "PNG alpha": (lambda: saved("PNG", "RGBA"), DALI),
    "PNG gray alpha": (lambda: saved("PNG", "LA"), DALI),
    "PNG 16 bits": (lambda: sixteen_bits("PNG"), PIL),
    "PNG 16 bits RGB": (sixteen_bit_colors, PIL),
    "PNG animated": (lambda: animated("PNG"), PIL),
    "TIFF": (lambda: saved("TIFF"), PIL),
    "TIFF orientation 3": (lambda: saved("TIFF", exif=with_exif(3)), PIL),
    "TIFF 16 bits": (lambda: sixteen_bits("TIFF"), PIL),
    "TIFF pages": (lambda: animated("TIFF"), PIL),
    "TIFF CMYK": (lambda: saved("TIFF", "CMYK"), PIL),
    "GIF": (lambda: saved("GIF"), PIL),
    "WebP": (lambda: saved("WEBP"), DALI),
    "WebP EXIF": (lambda: saved("WEBP", exif=with_exif(6)), PIL),
    "WebP animated": (lambda: animated("WEBP"), PIL),
    "BMP": (lambda: saved("BMP"), DALI),
    "BMP bit fields": (lambda: bitmap("565 fields.bmp"), PIL),
    "BMP masks": (lambda: bitmap("XBGR fields.bmp"), PIL),
    "BMP runs": (lambda: bitmap("rle8.bmp"), PIL),
    "BMP top down": (lambda: bitmap("24 top down.bmp"), PIL),
    "BMP truncated": (lambda: bitmap("24.bmp")[:-9], PIL),
    "PPM truncated": (lambda: saved("PPM")[:-9], PIL),
    "extended": (lambda: changed(jpeg(), sof_at(jpeg()) + 1, 0xC1), PIL),
    "BMP palette": (lambda: saved("BMP", "P"), DALI),
    "PPM": (lambda: saved("PPM"), DALI),
    "PGM 16 bits": (lambda: sixteen_bits("PPM"), PIL),
    "ICO": (lambda: saved("ICO", sizes=[(WIDTH, HEIGHT)]), PIL),
    "TGA": (lambda: saved("TGA"), PIL),
    "text": (lambda: b"this is no image", UNREADABLE),
    "empty": (lambda: b"", UNREADABLE),
    "one byte": (lambda: b"\xff", UNREADABLE),
}


def write(path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("name", FILES)
def test_read_header_returns_kind_and_size(name, tmp_path):
    make, kind = FILES[name]
    try:
        data = make()
    except (OSError, KeyError) as error:
        pytest.skip(f"this Pillow cannot write it: {error}")
    found, *size = read_header(write(tmp_path / "named.jpg", data))[:3]
    if kind is not None:
        assert found in (kind if isinstance(kind, tuple) else (kind,))
    if found != UNREADABLE:
        with Image.open(io.BytesIO(data)) as image:
            assert size == [image.height, image.width]


@pytest.mark.parametrize("name", [name for name, (_, kind) in FILES.items() if kind == DALI])
def test_files_for_dali_can_be_decoded_by_pil(name, tmp_path):
    Image.open(write(tmp_path / "named.jpg", FILES[name][0]())).convert("RGB")


def test_truncated_file_is_never_decoded_by_dali(tmp_path):
    """A decoder that reads only a window may not notice that the rest is missing."""
    data = jpeg()
    start = sof_at(data)
    for length in [*range(0, len(data) - 40, max(1, len(data) // 60)), start + 3, start + 9, start + 10]:
        assert read_header(write(tmp_path / "cut.jpg", data[:length]))[0] in (PIL, UNREADABLE)


def test_frame_header_across_the_end_of_the_first_read_is_found(tmp_path):
    """Markers are read in blocks of 4096 bytes."""
    data = jpeg(mode="L")
    at = sof_at(data)
    for place in range(4080, 4110):
        padded = after_start(data, segment(0xFE, b"c" * (place - at - 4)))
        assert sof_at(padded) == place
        assert read_header(write(tmp_path / "padded.jpg", padded))[:3] == (DALI, HEIGHT, WIDTH)


def test_truncated_file_with_load_truncated_images_goes_to_pil(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for data in (jpeg()[:-2], jpeg()[: len(jpeg()) // 2]):
        assert read_header(write(tmp_path / "cut.jpg", data))[:3] == (PIL, HEIGHT, WIDTH)


def test_missing_files_and_folders_are_unreadable(tmp_path):
    for path in (tmp_path / "missing.jpg", tmp_path):
        assert read_header(str(path))[:3] == (UNREADABLE, 1, 1)


# ---- caching


@pytest.fixture
def read_paths(monkeypatch):
    """The paths whose headers were read."""
    paths = []
    original = headers.read_header
    monkeypatch.setattr(headers, "read_header", lambda path: paths.append(path) or original(path))
    return paths


def test_headers_are_read_once(tmp_path, read_paths):
    paths = [write(tmp_path / f"{i}.jpg", jpeg()) for i in range(40)]
    table = Headers()
    sizes, kinds = sizes_and_kinds(table, [3, 0, 39], [paths[3], paths[0], paths[39]])
    assert read_paths == [paths[3], paths[0], paths[39]]
    assert sizes.tolist() == [[HEIGHT, WIDTH]] * 3 and sizes.dtype == np.int64 and kinds.tolist() == [DALI] * 3
    sizes_and_kinds(table, [0, 1, 39], [paths[0], paths[1], paths[39]])
    assert read_paths[3:] == [paths[1]]
    sizes_and_kinds(table, [1000], [paths[2]])  # a data set that has grown
    sizes_and_kinds(table, [0, 3], [paths[0], paths[3]])
    assert read_paths[4:] == [paths[2]]


def test_unreadable_file_when_repaired_is_read_again(tmp_path, read_paths):
    path, table = write(tmp_path / "a.jpg", b"garbage"), Headers()
    for _ in range(2):
        assert sizes_and_kinds(table, [0], [path])[1].tolist() == [UNREADABLE]
    write(tmp_path / "a.jpg", saved("GIF"))
    for _ in range(2):
        sizes, kinds = sizes_and_kinds(table, [0], [path])
        assert kinds.tolist() == [PIL] and sizes.tolist() == [[HEIGHT, WIDTH]]
    assert len(read_paths) == 3


def test_header_is_read_again_when_index_has_another_file(tmp_path):
    small = write(tmp_path / "b.png", saved("PNG", "L"))
    Image.new("RGB", (5, 4)).save(small)
    paths, table = [write(tmp_path / "a.jpg", jpeg()), small], Headers()
    assert sizes_and_kinds(table, [0, 1], paths)[0].tolist() == [[HEIGHT, WIDTH], [4, 5]]
    assert sizes_and_kinds(table, [0, 1], paths[::-1])[0].tolist() == [[4, 5], [HEIGHT, WIDTH]]


def test_verdicts_are_cleared_when_index_has_another_file(tmp_path):
    """Verdicts from other processes remain valid for files not seen here and for files that cannot be read yet."""
    paths = [write(tmp_path / f"{i}.jpg", jpeg() if i else b"garbage") for i in range(4)]
    table, index = Headers(), np.arange(4)
    verdicts = table.verdicts("one")
    verdicts.put(index, np.full(4, BY_ENGINE, np.uint64))
    for _ in range(2):
        sizes_and_kinds(table, index, paths)
        assert verdicts.decoders(4).tolist() == [BY_ENGINE] * 4
    sizes_and_kinds(table, index, [paths[0], paths[2], paths[1], paths[3]])
    assert verdicts.decoders(4).tolist() == [BY_ENGINE, 0, 0, BY_ENGINE]


def test_header_is_read_again_when_exif_orientation_is_applied(tmp_path):
    """A data set may switch to applying the EXIF orientation."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "a.jpg", exif=exif)
    path, table = str(tmp_path / "a.jpg"), Headers()
    for source, size in ((path, [HEIGHT, WIDTH]), (Upright(path), [WIDTH, HEIGHT]), (path, [HEIGHT, WIDTH])):
        assert sizes_and_kinds(table, [0], [source])[0].tolist() == [size]


def test_file_that_dali_failed_on_goes_to_pil(tmp_path):
    path, table = write(tmp_path / "a.jpg", jpeg()), Headers()
    assert sizes_and_kinds(table, [2], [path])[1].tolist() == [DALI]
    table.use_pil(2)
    sizes, kinds = sizes_and_kinds(table, [2], [path])
    assert kinds.tolist() == [PIL] and sizes.tolist() == [[HEIGHT, WIDTH]]


def test_change_of_max_image_pixels_changes_the_kind(tmp_path, monkeypatch):
    paths, table = [write(tmp_path / "a.jpg", jpeg()), write(tmp_path / "b.jpg", jpeg(mode="L"))], Headers()
    Image.new("RGB", (5, 4)).save(paths[1])
    for limit, kinds in (
        (None, [DALI, DALI]),
        (HEIGHT * WIDTH - 1, [PIL, DALI]),
        (1, [PIL, PIL]),
        (HEIGHT * WIDTH, [DALI, DALI]),
    ):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        sizes, found = sizes_and_kinds(table, [0, 1], paths)
        assert found.tolist() == kinds and sizes.tolist() == [[HEIGHT, WIDTH], [4, 5]]


def test_headers_read_in_threads_equal_those_read_sequentially(tmp_path, monkeypatch):
    paths = [write(tmp_path / f"{i}.jpg", saved("JPEG") if i % 3 else b"") for i in range(50)]
    expected = sizes_and_kinds(Headers(), list(range(50)), paths)
    monkeypatch.setattr(headers, "_SLOW", -1.0)
    found = sizes_and_kinds(Headers(), list(range(50)), paths)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert (expected[1] == UNREADABLE).sum() == 17


# ---- the bytes that state an image's size


def test_header_hash_changes_with_any_single_byte():
    """Also if the sum is unchanged, and at either end of a word."""
    rng = np.random.default_rng(0)
    constant = (np.full(SIZE_FIELD, value, np.uint8) for value in (0, 255))
    for size_field in (rng.integers(0, 256, SIZE_FIELD, np.uint8), *constant):
        others = np.repeat(size_field[None], SIZE_FIELD * 255, 0)
        at = np.repeat(np.arange(SIZE_FIELD), 255)
        others[np.arange(len(others)), at] += np.tile(np.arange(1, 256), SIZE_FIELD).astype(np.uint8)
        found = header_hashes(others)
        assert found.dtype == np.uint64 and len(found) == SIZE_FIELD * 255
        assert not (found == header_hashes(size_field[None])[0]).any()
        assert len(np.unique(found[at < 8])) == 8 * 255  # two changes within a word give different hashes


def test_header_hash_of_a_row_does_not_depend_on_other_rows():
    rows = np.random.default_rng(1).integers(0, 256, (7, SIZE_FIELD), np.uint8)
    assert header_hashes(rows).tolist() == [int(header_hashes(row[None])[0]) for row in rows]
    back = rows[:, ::-1]
    assert header_hashes(back).tolist() == header_hashes(back.copy()).tolist()  # independent of the memory layout
    swapped = rows.reshape(7, -1, 8)[:, ::-1].reshape(7, SIZE_FIELD)
    assert not (header_hashes(swapped) == header_hashes(rows)).any()


def sized(kind: str, height: int, width: int, prefix: bytes = b"", **options) -> bytes:
    """Return an image with these sides. ``prefix`` is inserted after the first bytes of a JPEG."""
    file = io.BytesIO()
    Image.fromarray(make_image(np.random.default_rng(1), height, width)).save(file, kind, **options)
    return after_start(file.getvalue(), prefix) if prefix else file.getvalue()


APPS = segment(0xE2, b"ICC_PROFILE\0" * 20) + segment(0xE1, b"Exif\0\0" + bytes(9000))
STATING = {
    "JPEG": ("JPEG", {}),
    "JPEG after segments": ("JPEG", {"prefix": APPS}),
    "JPEG after fill bytes": ("JPEG", {"prefix": FILL * 20}),
    "progressive JPEG": ("JPEG", {"progressive": True}),
    "PNG": ("PNG", {}),
    "BMP": ("BMP", {}),
    "PPM": ("PPM", {}),
    "WebP": ("WEBP", {}),
    "lossless WebP": ("WEBP", {"lossless": True}),
}
OTHER_SIDES = [(HEIGHT + 1, WIDTH), (HEIGHT, WIDTH + 1), (HEIGHT - 1, WIDTH), (WIDTH, HEIGHT), (HEIGHT + 256, WIDTH)]


def hash_of(header) -> int:
    """Mark of the bytes that contain the size."""
    return int(header_hashes(np.frombuffer(header.size_field, np.uint8)[None])[0])


def header_and_hash(path, data: bytes):
    """Return the header of a file and a function that computes the hash at a position."""
    found = read_header(write(path, data))

    def hash_at(place: int, other: bytes = data) -> int:
        return int(header_hashes(np.frombuffer(other[place:].ljust(SIZE_FIELD, b"\0")[:SIZE_FIELD], np.uint8)[None])[0])

    return found, hash_at


@pytest.mark.parametrize("name", STATING)
def test_header_hash_changes_when_the_size_changes(name, tmp_path):
    """Comparing the bytes at this position detects other sides even if the length of the file is the same."""
    kind, options = STATING[name]
    data = sized(kind, HEIGHT, WIDTH, **options)
    found, hash_at = header_and_hash(tmp_path / "a", data)
    assert found[:3] == (DALI, HEIGHT, WIDTH) and hash_of(found) == hash_at(found.at)
    for height, width in OTHER_SIDES:
        other = sized(kind, height, width, **options)
        longest = max(len(data), len(other))
        assert hash_at(found.at, other.ljust(longest, b"\0")) != hash_of(found), (height, width)
        again = read_header(write(tmp_path / "b", other))
        assert (again.height, again.width) == (height, width) and hash_of(again) != hash_of(found)


@pytest.mark.parametrize("name", ["JPEG", "JPEG after segments", "progressive JPEG"])
def test_header_hash_changes_with_each_byte_of_the_size_in_a_jpeg_frame(name, tmp_path):
    kind, options = STATING[name]
    data = sized(kind, HEIGHT, WIDTH, **options)
    found, hash_at = header_and_hash(tmp_path / "a", data)
    assert data[found.at] == 0xFF and struct.unpack(">HH", data[found.at + 5 : found.at + 9]) == (HEIGHT, WIDTH)
    for at in range(found.at + 5, found.at + 9):
        other = changed(data, at, data[at] ^ 1)
        again = read_header(write(tmp_path / "b", other))
        assert (again.height, again.width) != (HEIGHT, WIDTH) and again.at == found.at
        assert hash_at(found.at, other) == hash_of(again) != hash_of(found)


def test_facts_equal_the_headers(tmp_path):
    data = [sized("JPEG", HEIGHT, WIDTH, prefix=APPS), sized("PNG", 9, 8), sized("BMP", 20, 30), b"no image"]
    paths, table = [write(tmp_path / str(i), one) for i, one in enumerate(data)], Headers()
    keys = np.array(list(map(hash, paths)))
    found = table.facts(np.array([5, 0, 2, 1]), keys, paths.__getitem__)
    wanted = [read_header(path) for path in paths]
    assert found["kinds"].tolist() == [one.kind for one in wanted]
    assert found["sizes"].tolist() == [[one.height, one.width] for one in wanted]
    assert found["lengths"][:3].tolist() == [len(one) for one in data[:3]]
    assert found["intact"].tolist() == [one.intact for one in wanted] == [False, True, False, False]
    assert found["size_field_at"].tolist() == [one.at for one in wanted]
    assert found["header_hashes"].tolist() == [hash_of(one) for one in wanted]
    assert found["size_field_at"][0] > 9000
