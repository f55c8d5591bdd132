"""Damaged and hostile archives and indices must give images or an error that names the file.

They must not cause a hang or a huge allocation. Each mutation follows from its seed. The time limit in conftest.py
detects hangs.
"""

import copy
import os
import shutil
import struct
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from helpers import ALL, make_folder
from torchvision.datasets import ImageFolder

import dali_compat
from dali_compat import ImageReadError
from dali_compat.archives import folder_index
from dali_compat.archives import webdataset as tar
from dali_compat.archives.pack import pack
from dali_compat.archives.tfrecord import masked_crc32c
from dali_compat.runtime import saved

KINDS = {".rec": "DALIRecordIO", ".tfrecord": "DALITFRecord", ".lmdb": "DALILMDB", ".tar": "DALIWebDataset"}
COUNT = 300 if ALL else 45  # mutations of each kind
MEMORY_LIMIT = 32 << 20  # bytes; the archives have about 10 KB
NUMBERS = [
    0,
    1,
    0x7F,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x1FFFFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
TEXT_VALUES = [
    b"-1",
    b"-99",
    b"99999999999",
    b"9223372036854775807",
    b"9" * 30,
    b"1e30",
    b"inf",
    b"\xff",
    b"0",
    b" ",
    b"\n",
    b"\0",
]


@pytest.fixture(scope="session")
def small_archives(tmp_path_factory) -> Path:
    """A folder ``images`` with 4 small images, and archives of it."""
    root = tmp_path_factory.mktemp("small")
    make_folder(root / "images", classes=2, per_class=2, low=20, high=30)
    for ending in KINDS if find_spec("lmdb") else KINDS.keys() - {".lmdb"}:
        pack(root / "images", root / f"all{ending}")
    return root


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dali_compat"


def mutated(data: bytes, seed: int) -> bytes:
    """Change one or two positions of the data.

    A change replaces bits, bytes, numbers or digits, removes, inserts or repeats a part, or truncates the data.
    """
    rng, data = np.random.default_rng(seed), bytearray(data)
    for _ in range(rng.integers(1, 3)):
        at, length = int(rng.integers(len(data))), int(rng.integers(1, 40))
        number, text = NUMBERS[rng.integers(len(NUMBERS))], TEXT_VALUES[rng.integers(len(TEXT_VALUES))]
        change = rng.integers(9)
        if change == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif change == 1:
            data[at] = int(rng.integers(256))
        elif change == 2:
            del data[max(1, at) :]
        elif change == 3:
            data[at : at + 4] = struct.pack("<I", number & 0xFFFFFFFF)
        elif change == 4:
            data[at : at + 8] = struct.pack("<Q", number)
        elif change == 5:
            data[at : at + len(text)] = text
        elif change == 6:
            data[at:at] = rng.bytes(length)
        elif change == 7:
            del data[at : at + length]
            data = data or bytearray(1)
        else:
            data[at:at] = data[at : at + length]
    return bytes(data)


def _all(data: bytes, seed: int) -> bytes:
    return mutated(data, seed)


def _head(data: bytes, seed: int) -> bytes:
    return mutated(data[:200], seed) + data[200:]


def _tar_header(data: bytes, seed: int) -> bytes:
    """Damage a header and correct its checksum, so that its contents are read."""
    header = bytearray(mutated(data[: tar.BLOCK], seed)[: tar.BLOCK].ljust(tar.BLOCK, b"\0"))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[tar.BLOCK :]


def _tar_text(data: bytes, seed: int) -> bytes:
    """Prepend an extended header or a long name with damaged text."""
    kind = b"xL"[seed % 2]
    text = b"".join(b"%d %s\n" % (len(line) + 4, line) for line in (b"path=000000000.jpg", b"comment=" + b"a" * 40))
    header = bytearray(tar.member("text", mutated(text, seed)))
    header[156] = kind
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[: tar.BLOCK])
    return bytes(header) + data


def _tfrecord_data(data: bytes, seed: int) -> bytes:
    """Damage the Example and correct the checksums, so that its contents are read."""
    (length,) = struct.unpack("<Q", data[:8])
    head, rest = data[12 : 12 + 200], data[12 + 200 : 12 + length]
    example = mutated(head, seed) + rest
    size = struct.pack("<Q", len(example))
    first = size + struct.pack("<I", masked_crc32c(size)) + example + struct.pack("<I", masked_crc32c(example))
    return first + data[12 + length + 4 :]


def _lmdb_pages(data: bytes, seed: int) -> bytes:
    """Damage the start of a page, with its header and the positions of nodes, or its end, with the nodes."""
    page = 4096 * (seed % (len(data) // 4096))
    part = slice(page, page + 200) if seed % 3 else slice(page + 4096 - 200, page + 4096)
    return data[: part.start] + mutated(data[part], seed)[:200].ljust(200, b"\0") + data[part.stop :]


CASES = {
    "idx": ("all.rec", "all.idx", _all),
    "rec": ("all.rec", "all.rec", _all),
    "rec, its first header": ("all.rec", "all.rec", _head),
    "tfrecord": ("all.tfrecord", "all.tfrecord", _all),
    "tfrecord, sums mended": ("all.tfrecord", "all.tfrecord", _tfrecord_data),
    "lmdb": ("all.lmdb", "data.mdb", _all),
    "lmdb, its pages": ("all.lmdb", "data.mdb", _lmdb_pages),
    "tar": ("all.tar", "all.tar", _all),
    "tar, sums mended": ("all.tar", "all.tar", _tar_header),
    "tar, extended": ("all.tar", "all.tar", _tar_text),
}


def outcome(archive: Path) -> str:
    """Return "read" or the kind of the error. Every error must name the archive's files."""
    try:
        dataset = getattr(dali_compat, KINDS[archive.suffix])(archive)
    except (ImageReadError, ValueError) as error:
        assert str(archive.with_suffix("")) in str(error), repr(error)
        return "ImageReadError" if isinstance(error, ImageReadError) else type(error).__name__
    for index in range(len(dataset)):
        try:
            dataset[index]
        except ImageReadError as error:
            assert str(archive.with_suffix("")) in str(error)
    dataset.read(range(len(dataset)))
    return "read"


def _copy(small_archives: Path, name: str, folder: Path) -> Path:
    if not (small_archives / name).exists():
        pytest.skip("lmdb is not installed")
    folder.mkdir()
    for source in small_archives.glob(f"{Path(name).stem}{Path(name).suffix}"):
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    if name == "all.rec":
        shutil.copy(small_archives / "all.idx", folder / "all.idx")
    return folder / name


@pytest.mark.parametrize("case", CASES)
def test_damaged_archive_is_read_or_raises_with_the_file_name(small_archives, tmp_path, case):
    name, damaged, mutate = CASES[case]
    archive = _copy(small_archives, name, tmp_path / "data")
    if case.startswith("rec"):
        (tmp_path / "data" / "all.idx").unlink()
    [target] = (tmp_path / "data").rglob(damaged) if archive.is_dir() else [tmp_path / "data" / damaged]
    whole, found = target.read_bytes(), []
    outcome(archive)  # import everything now, so that it does not count below
    for seed in range(COUNT):
        for index in (tmp_path / "data").rglob("*.npz"):
            index.unlink()
        target.write_bytes(mutate(whole, seed))
        tracemalloc.start()
        try:
            found.append(outcome(archive))
            assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT, seed
        except BaseException as error:
            raise AssertionError(f"mutation {seed}") from error
        finally:
            tracemalloc.stop()
    assert len(found) == COUNT and set(found) - {"read"}  # some are harmless


IDX_LINES = [
    "0\t-5",
    "0\t-9223372036854775809",
    f"0\t{2**63 - 1}",
    f"0\t{2**63 - 4}",
    f"0\t{'9' * 30}",
    f"0\t{'9' * 5000}",
]


@pytest.mark.parametrize("line", IDX_LINES, ids=lambda line: line[2:14])
def test_index_with_an_impossible_offset_raises(small_archives, tmp_path, line):
    archive = _copy(small_archives, "all.rec", tmp_path / "data")
    archive.with_suffix(".idx").write_text(f"0\t0\n{line}\n")
    with pytest.raises((ImageReadError, ValueError), match=r"all\.(rec, record 1 at byte|idx, line 2).*"):
        dali_compat.DALIRecordIO(archive)


def test_index_without_end_of_line_raises_without_reading_all_of_it(small_archives, tmp_path):
    archive = _copy(small_archives, "all.rec", tmp_path / "data")
    archive.with_suffix(".idx").write_bytes(b"7" * (64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"all\.idx, line 1: "):
            dali_compat.DALIRecordIO(archive)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("label", [1e30, -1e19, 2.0**63])
def test_label_beyond_64_bits_raises(tmp_path, label):
    record = struct.pack("<IfQQ", 0, label, 0, 0) + b"image!!!"
    (tmp_path / "a.rec").write_bytes(struct.pack("<II", 0xCED7230A, len(record)) + record)
    with pytest.raises(ValueError, match=r"a\.rec, record 0 at byte 0: its label .* is not a class number"):
        dali_compat.DALIRecordIO(tmp_path / "a.rec")
    number = int(label)
    for name, text in (("b.cls", b"%d" % number), ("b.json", b'{"label": %d}' % number)):
        (tmp_path / "a.tar").write_bytes(tar.member("b.jpg", b"x") + tar.member(name, text))
        with pytest.raises(ValueError, match=r"a\.tar, sample 'b' at byte 512: .* not a class number"):
            dali_compat.DALIWebDataset(tmp_path / "a.tar")


DAMAGED_HEADERS = [  # Python 3.13 refuses all of them
    (b"0 path=a.jpg\n", "$^"),
    (b"3 path=a.jpg\n", "contains no images"),
    (b"9" * 18 + b" path=a.jpg\n", "sample 'a' at byte 1536: it has no image, only '.{79}$"),  # a name of 512 bytes
    (b"17 size=" + b"9" * 30, "header at byte 0: the file ends [0-9]+ bytes before the member does"),
]


@pytest.mark.parametrize("text, words", DAMAGED_HEADERS)
def test_damaged_extended_tar_header_raises(tmp_path, text, words):
    header = bytearray(tar.member("x", text))
    header[156] = ord("x")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[: tar.BLOCK])
    (tmp_path / "a.tar").write_bytes(bytes(header) + tar.member("a.jpg", b"x"))
    with pytest.raises((ImageReadError, ValueError), match=rf"a\.tar,? (header at byte 0: it is damaged|{words})"):
        dali_compat.DALIWebDataset(tmp_path / "a.tar")


@pytest.mark.parametrize("kind", [b"x", b"L", b"K", b"g"])
@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\0" * 3 + b"\xff" * 8, b"\xff" * 12])
def test_tar_header_with_text_beyond_the_file_raises(tmp_path, kind, size):
    header = bytearray(tar.member("x", b""))
    header[124:136], header[156:157], header[148:156] = size, kind, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + tar.member("a.jpg", b"x"))
    with pytest.raises((ImageReadError, ValueError), match=r"a\.tar"):
        dali_compat.DALIWebDataset(tmp_path / "a.tar")


# ---- cached indices, which are rebuilt if damaged


def _index_of(folder: Path) -> Path:
    [index] = folder.rglob("*.npz")
    return index


@pytest.mark.parametrize("ending", KINDS)
def test_damaged_archive_index_is_rebuilt(small_archives, tmp_path, ending):
    archive = _copy(small_archives, f"all{ending}", tmp_path / "data")
    make = getattr(dali_compat, KINDS[ending])
    expected = make(archive)
    index = _index_of(tmp_path / "data")
    whole = index.read_bytes()
    for seed in range(COUNT // 3):
        index.write_bytes(mutated(whole, seed))
        found = make(archive)
        assert found.targets == expected.targets, seed
        assert all(
            np.array_equal(a, b) for a, b in zip(found.locations(range(4)), expected.locations(range(4)), strict=True)
        )


def _poisoned(arrays: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Change one number, the shape or the type of one array."""
    rng = np.random.default_rng(seed)
    name = sorted(arrays)[rng.integers(len(arrays))]
    array = arrays[name].copy()
    change = rng.integers(4)
    if change < 2 and array.size:
        value = np.uint64(NUMBERS[rng.integers(len(NUMBERS))])
        array.reshape(-1)[rng.integers(array.size)] = value.astype(array.dtype)
    elif change == 2:
        array = array[: rng.integers(len(array) + 1)]
    else:
        array = array.astype([np.float64, np.int32, np.uint64, "S3"][rng.integers(4)])
    return arrays | {name: array}


@pytest.mark.parametrize("ending", KINDS)
def test_archive_index_with_wrong_numbers_is_rebuilt_or_raises_for_its_files(small_archives, tmp_path, ending):
    """If its rows lie inside the archive they are used, else the index is rebuilt.

    Reading can then fail only because of the bytes that are read. An index without rows, or without the labels of LMDB,
    raises an error.
    """
    archive = _copy(small_archives, f"all{ending}", tmp_path / "data")
    outcome(archive)
    index = _index_of(tmp_path / "data")
    meta, arrays = saved.load(index)
    for seed in range(COUNT // 3):
        saved.save(index, meta, _poisoned(arrays, seed))
        assert outcome(archive) in ("read", "ValueError"), seed


WRONG_VALUES = [None, -1, 1, 1 << 70, 0.5, "", "..", "../x", "/etc", [], [1], ["../q.jpg"], ["a/b.jpg"], [".."], {}]


def test_damaged_folder_index_is_rebuilt_and_never_leaves_the_folder(small_archives, cache_home, monkeypatch):
    monkeypatch.setattr(folder_index, "_TICK", 0)
    root = small_archives / "images"
    expected = ImageFolder(root)
    folder_index.cached_samples(root)
    index = _index_of(cache_home)
    whole, (meta, _) = index.read_bytes(), saved.load(index)
    below = os.path.join(root, "")
    for seed in range(COUNT):
        if seed % 2:
            index.write_bytes(mutated(whole, seed))
            assert folder_index.cached_samples(root)[2] == expected.samples, seed
        else:
            rng, other = np.random.default_rng(seed), copy.deepcopy(meta)
            row = other["folders"][rng.integers(len(other["folders"]))]
            row[rng.integers(len(row))] = WRONG_VALUES[rng.integers(len(WRONG_VALUES))]
            saved.save(index, other, {})
            try:
                samples = folder_index.cached_samples(root)[2]
            except FileNotFoundError:  # a class without images according to the index
                continue
            assert all(path.startswith(below) and ".." not in path[len(below) :].split("/") for path, _ in samples), (
                seed
            )
            assert {target for _, target in samples} <= {0, 1}, seed
