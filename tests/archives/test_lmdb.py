"""LMDB with Caffe's Datum or plain images, compared with the lmdb package and DALI's Caffe reader."""

import io
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from archives.conftest import inside
from dali_compat import DALILMDB, ImageReadError
from dali_compat.archives import protobuf
from dali_compat.archives.lmdb import Database

lmdb = pytest.importorskip("lmdb")


def write(path: Path, items: dict[bytes, bytes], subdir: bool = True) -> Path:
    with lmdb.open(str(path), subdir=subdir, map_size=1 << 26) as env, env.begin(write=True) as transaction:
        for key, value in items.items():
            transaction.put(key, value)
    return path


def picture(color, format: str = "JPEG", size=(20, 10)) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", size, color).save(written, format)
    return written.getvalue()


def datum(label: int | None, data: bytes, encoded: bool = True, **fields: bytes | int) -> bytes:
    """Encode Caffe's Datum as protoc's C++ code does, with fields in order."""
    out = b"".join(bytes([tag << 3]) + protobuf.encode_varint(fields[name]) for tag, name in
                   ((1, "channels"), (2, "height"), (3, "width")) if name in fields)  # fmt: skip
    out += b"\x22" + protobuf.encode_varint(len(data)) + data
    if label is not None:
        out += b"\x28" + protobuf.encode_varint(label)
    return out + (b"\x38\x01" if encoded else b"")


def test_packed_database_has_caffes_format(packed, stock):
    with lmdb.open(str(packed / "all.lmdb"), readonly=True, lock=False) as env, env.begin() as transaction:
        items = list(transaction.cursor())
    assert len(items) == 12
    for number, (key, value) in enumerate(items):
        path, target = stock.samples[number]
        assert key.decode() == f"{number:08d}_{Path(path).relative_to(stock.root)}"  # as in convert_imageset.cpp
        assert value == datum(target, Path(path).read_bytes())


def test_dalis_caffe_reader_reads_the_same(packed, stock):
    fn = pytest.importorskip("nvidia.dali.fn")
    from nvidia.dali import pipeline_def

    @pipeline_def(batch_size=12, num_threads=1, device_id=None)
    def theirs():
        return tuple(fn.readers.caffe(path=str(packed / "all.lmdb")))

    pipe = theirs()
    pipe.build()
    data, labels = pipe.run()
    assert [int(labels.at(i)[0]) for i in range(12)] == stock.targets
    for i, array in enumerate(DALILMDB(packed / "all.lmdb").read(range(12))):
        assert data.at(i).tobytes() == array.tobytes()


@pytest.mark.parametrize("size", [(1, 1), (20, 10), (1500, 900)])
@pytest.mark.parametrize("subdir", [True, False])
def test_values_of_every_size_are_read(tmp_path, size, subdir):
    """Small values are stored in a page of the tree, large ones in separate pages."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(40):
        written = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8)).save(written, "JPEG", quality=30)
        images.append(written.getvalue())
    items = {b"%05d" % i: datum(i % 7, image) for i, image in enumerate(images)}
    dataset = DALILMDB(write(tmp_path / "db.lmdb", items, subdir))
    assert dataset.targets == [i % 7 for i in range(40)]
    assert [array.tobytes() for array in dataset.read(range(40))] == images
    _, offsets, lengths = dataset.locations(range(40))
    whole = Path(dataset.files[0]).read_bytes()
    assert [whole[a : a + n] for a, n in zip(offsets, lengths, strict=True)] == images


def test_a_database_with_deleted_and_rewritten_values_is_read(tmp_path):
    """Deleting and rewriting values leaves unused pages in the file; the order follows the keys."""
    path = tmp_path / "db"
    rng = np.random.default_rng(1)
    images = {i: picture(tuple(rng.integers(0, 256, 3).tolist()), size=(50 + i, 60)) for i in range(60)}
    write(path, {b"%d" % i: datum(i, images[i] + bytes(5000)) for i in range(60)})
    with lmdb.open(str(path), map_size=1 << 26) as env:
        for i in range(0, 60, 2):
            with env.begin(write=True) as transaction:
                transaction.delete(b"%d" % i)
                transaction.put(b"%d" % (i + 1), datum(i + 1, images[i + 1]))
    dataset = DALILMDB(path)
    order = sorted(range(1, 60, 2), key=str)
    assert dataset.targets == order
    assert [array.tobytes() for array in dataset.read(range(30))] == [images[i] for i in order]


def test_a_database_is_indexed_again_after_a_transaction(tmp_path):
    path = write(tmp_path / "db", {b"a": datum(1, picture("red"))})
    assert DALILMDB(path).targets == [1]
    stat = (path / "data.mdb").stat()
    write(path, {b"a": datum(2, picture("red"))})
    os.utime(path / "data.mdb", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert DALILMDB(path).targets == [2]


def test_labels_are_read_from_datum_or_given(tmp_path):
    red = picture("red")
    items = {b"a": datum(-1, red), b"b": datum(None, red), b"c": datum(2**31 - 1, red), b"d": datum(3, red, False)}
    dataset = DALILMDB(write(tmp_path / "db", items))
    assert dataset.targets == [
        -1,
        0,
        2**31 - 1,
        3,
    ]  # a missing label is proto2's default; d: encoded is not set, but true
    assert dataset[0][1] == -1 and dataset.read([3])[0].tobytes() == red
    assert DALILMDB(tmp_path / "db", labels={"a": 5, "b": 6, "c": 7, "d": 8}).targets == [5, 6, 7, 8]


def test_images_without_labels_need_given_labels(tmp_path):
    path = write(
        tmp_path / "db", {b"a": datum(1, picture("red")), b"b": picture("blue"), b"c": datum(2, picture("red"))}
    )
    with pytest.raises(ValueError, match="contains images without labels"):
        DALILMDB(path)
    assert DALILMDB(path, labels=[4, 5, 6]).targets == [4, 5, 6]


@pytest.fixture
def raw(tmp_path) -> Path:
    """A database of plain images in several formats, like torchvision's LSUN, with keys that are not images."""
    items = {
        b"dog/2.png": picture("red", "PNG"),
        b"cat/1.jpg": picture("blue"),
        b"cat/7.webp": picture("green", "WEBP"),
        b"__len__": pickle.dumps(3),
        b"__keys__": pickle.dumps([b"1", b"2"]),
    }
    return write(tmp_path / "raw", items)


def test_classes_are_sorted_in_any_order_of_keys(tmp_path):
    names = ["goat", "dog", "ant", "fox", "cat", "eel", "bat"]
    path = write(tmp_path / "db", {b"%d_%s" % (i, name.encode()): picture("red") for i, name in enumerate(names)})
    dataset = DALILMDB(path, label_pattern=r"_(\w+)")
    assert dataset.classes == sorted(names) and [dataset.classes[target] for target in dataset.targets] == names
    assert dataset.class_to_idx == {name: number for number, name in enumerate(sorted(names))}


@pytest.mark.parametrize("arguments, targets, classes", [
    ({"labels": 4}, [4, 4, 4], None),
    ({"labels": np.int64(4)}, [4, 4, 4], None),
    ({"labels": {"cat/1.jpg": 1, "cat/7.webp": 2, "dog/2.png": 3, "unused": 9}}, [1, 2, 3], None),
    ({"labels": [7, 8, 9]}, [7, 8, 9], None),
    ({"labels": np.array([7, 8, 9], np.int32)}, [7, 8, 9], None),
    ({"label_pattern": r"^(\w+)/"}, [0, 0, 1], ["cat", "dog"]),
    ({"label_pattern": r"\d+"}, [1, 7, 2], None),
])  # fmt: skip
def test_labels_of_plain_images_come_from_arguments(raw, arguments, targets, classes):
    dataset = DALILMDB(raw, **arguments)
    assert dataset.targets == targets and dataset.classes == classes
    assert dataset.class_to_idx == (classes and {"cat": 0, "dog": 1})
    assert dataset[1][0].getpixel((3, 3)) == Image.open(io.BytesIO(picture("green", "WEBP"))).getpixel((3, 3))
    again = pickle.loads(pickle.dumps(dataset))
    assert again.targets == targets and again[2][1] == targets[2]


def test_several_databases_form_one_data_set(raw, tmp_path):
    other = write(tmp_path / "other", {b"x": picture("white")})
    assert DALILMDB([raw, other], labels=[0, 0, 0, 1]).targets == [0, 0, 0, 1]


@pytest.mark.parametrize("arguments, reason", [
    ({}, r"raw contains images without labels; pass labels="),
    ({"labels": {"cat/1.jpg": 1}}, r"no target for 2 of 3 keys, such as 'cat/7.webp'"),
    ({"labels": [1, 2]}, r"labels has 2 targets, but there are 3 images"),
    ({"labels": [1.0, 2.0, 3.0]}, r"labels must be integers, got float64"),
    ({"labels": [2**63] * 3}, r"labels must be class numbers, got 9223372036854775808"),
    ({"labels": 2**63}, r"labels must be class numbers, got 9223372036854775808"),
    ({"labels": [[1], [2], [3]]}, r"labels must be class numbers, got \[3\]"),
    ({"labels": [[0, 1], [0, 2], [0, 3]]}, r"labels must be class numbers, got \[0 3\]"),
    ({"label_pattern": "(dog)?"}, r"finds no target in the key 'cat/1.jpg'"),
    ({"label_pattern": "^dog"}, r"finds no target in the key 'cat/1.jpg'"),
    ({"labels": 1, "label_pattern": "."}, r"mutually exclusive"),
])  # fmt: skip
def test_labels_that_do_not_match_are_refused(raw, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        DALILMDB(raw, **arguments)


class Bomb:
    def __reduce__(self):
        return sys.exit, ("unpickled",)


@pytest.mark.parametrize("value, reason", [
    (pickle.dumps((b"\xff\xd8\xff image", 3)), r"pickled, and unpickling it would run code from the file"),
    (pickle.dumps(Bomb()), r"pickled"),
    (datum(1, bytes(3 * 4 * 5), False, channels=3, height=4, width=5), r"decoded pixels \(3 x 4 x 5\), not an encoded"),
    (b"\x08\x03\x10\x01\x18\x01\x35\0\0\0\0", r"decoded pixels \(3 x 1 x 1\)"),  # float_data
    (b"nothing known", r"neither an image nor a Caffe Datum"),
    (b"", r"neither an image nor a Caffe Datum"),
    (b"\x80", r"neither an image nor a Caffe Datum"),
    (datum(1, picture("red"))[:100], r"neither an image nor a Caffe Datum"),
])  # fmt: skip
def test_values_that_are_not_images_are_refused(tmp_path, value, reason):
    path = write(tmp_path / "db", {b"0": datum(1, picture("red")), b"17": value})
    with pytest.raises(ValueError, match=reason) as caught:
        DALILMDB(path)
    assert str(path / "data.mdb") in str(caught.value) and "key b'17'" in str(caught.value)


@pytest.mark.parametrize("keep", [0.5, 0.98, 8192, 5000, 100])
def test_a_truncated_database_is_refused(packed, tmp_path, keep):
    """The lmdb package would be killed by SIGBUS."""
    shutil.copytree(packed / "all.lmdb", tmp_path / "db", ignore=shutil.ignore_patterns("*.npz"))
    path = tmp_path / "db" / "data.mdb"
    os.truncate(path, int(keep if keep > 1 else path.stat().st_size * keep))
    with pytest.raises(ImageReadError) as caught:
        DALILMDB(tmp_path / "db")
    assert str(path) in str(caught.value)


def test_a_database_with_fewer_keys_than_declared_is_refused(packed, tmp_path):
    """The last pages of the file may be lost."""
    shutil.copytree(packed / "all.lmdb", tmp_path / "db", ignore=shutil.ignore_patterns("*.npz"))
    path = tmp_path / "db" / "data.mdb"
    data = bytearray(path.read_bytes())
    for meta in (0, 4096):
        data[meta + 120 : meta + 128] = (13).to_bytes(8, "little")  # MDB_meta.mm_dbs[MAIN_DBI].md_entries
    path.write_bytes(data)
    with pytest.raises(ImageReadError, match="it declares 13 keys, but the database has 12"):
        DALILMDB(tmp_path / "db")


def test_a_page_referenced_by_two_branches_is_refused(tmp_path):
    """The number of keys is as declared, but some appear twice and others are missing."""
    path = write(tmp_path / "db", {b"%05d" % i: picture((i, 0, 0), "PNG") for i in range(200)}) / "data.mdb"
    data = bytearray(path.read_bytes())
    database = Database(memoryview(data), str(path))
    begin, _, nodes = database._nodes(database._root)
    _, second, third, *_ = (begin + node for node in nodes)
    assert len({len(database._nodes(database._child(begin, node - begin))[2]) for node in (second, third)}) == 1
    data[second : second + 6] = data[third : third + 6]
    path.write_bytes(data)
    with pytest.raises(ImageReadError, match=r"data\.mdb, page \d+: it is referenced twice"):
        DALILMDB(tmp_path / "db", labels=0)


def test_a_value_referenced_by_two_keys_is_refused(tmp_path):
    large = os.urandom(9000)
    path = write(tmp_path / "db", {b"a": b"\xff\xd8\xff" + large, b"b": b"\xff\xd8\xff" + large[::-1]}) / "data.mdb"
    data = bytearray(path.read_bytes())
    begin = Database(memoryview(data), str(path))._root * 4096
    page = [
        at
        for at in range(begin, begin + 4096 - 8)
        if data[at - 1 : at] in (b"a", b"b") and data[at + 1 : at + 8] == bytes(7)
    ]
    assert len(page) == 2
    data[page[0] : page[0] + 8] = data[page[1] : page[1] + 8]
    path.write_bytes(data)
    with pytest.raises(ImageReadError, match=r"data\.mdb, page \d+: it is referenced twice"):
        DALILMDB(tmp_path / "db", labels=0)


def test_a_file_that_is_not_a_database_is_refused(tmp_path):
    path = tmp_path / "db.lmdb"
    path.write_bytes(b"nonsense" * 2000)
    with pytest.raises(ImageReadError, match=r"db\.lmdb, byte 16: the file is not an LMDB database"):
        DALILMDB(path)


def test_reading_does_not_need_the_lmdb_package(packed, tmp_path, monkeypatch, stock):
    shutil.copytree(packed / "all.lmdb", tmp_path / "db", ignore=shutil.ignore_patterns("*.npz"))
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert DALILMDB(tmp_path / "db").targets == stock.targets


@pytest.mark.parametrize("subdir", [False, True])
@pytest.mark.parametrize("count", [0, 1, 40, 2000])
def test_every_key_and_value_is_found(tmp_path, count, subdir):
    """Includes deleted values, values of all size classes, several levels of branches, and free pages."""
    rng, path = np.random.default_rng(count), tmp_path / "db"
    for _ in range(3):
        sizes = rng.choice([0, 1, 100, 1990, 2020, 2040, 5000, 9000], count)
        write(path, {rng.bytes(int(rng.integers(1, 300))): rng.bytes(int(size)) for size in sizes}, subdir)
        with lmdb.open(str(path), subdir=subdir, map_size=1 << 26) as env, env.begin(write=True) as transaction:
            for key in [key for key, _ in transaction.cursor()][::3]:
                transaction.delete(key)
            expected = list(transaction.cursor())
    data = memoryview((path / "data.mdb" if subdir else path).read_bytes())
    database = Database(data, "db")
    assert [(key, data[at : at + size]) for key, at, size in database.items()] == expected
    assert database.entries == len(expected)


def test_named_and_dupsort_databases_are_refused(tmp_path):
    for name, options in (("named", {}), ("sorted", {"dupsort": True})):
        with lmdb.open(str(tmp_path / name), max_dbs=1, map_size=1 << 20) as env, env.begin(write=True) as transaction:
            transaction.put(b"a", b"b", db=env.open_db(b"inner", transaction, **options))
        with pytest.raises(ValueError, match=r"data\.mdb, page \d+ at byte \d+: it holds another database"):
            DALILMDB(tmp_path / name)


def test_a_database_opened_by_another_reader_is_read(packed, stock):
    """A reader in another process does not interfere."""
    dataset = DALILMDB(packed / "all.lmdb")
    with lmdb.open(str(packed / "all.lmdb"), readonly=True, lock=False) as env, env.begin() as transaction:
        assert transaction.stat()["entries"] == len(dataset)
        assert dataset[3][0].tobytes() == stock[3][0].tobytes()
    assert inside(packed / "all.lmdb").name == "data.mdb"
