"""TFRecord files exchanged with the tfrecord package, TensorFlow and DALI; checksums, and refused files."""

import gzip
import shutil
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from dali_compat import DALITFRecord, ImageReadError
from dali_compat.archives import protobuf, tfrecord


def offsets_of(path: Path) -> list[int]:
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        found.append(at)
        at += 16 + struct.unpack_from("<Q", data, at)[0]
    return found


def test_tfrecord_package_reads_packed_files(packed, stock):
    tfrecord_loader = pytest.importorskip("tfrecord").tfrecord_loader
    records = list(tfrecord_loader(str(packed / "all.tfrecord"), None))
    assert len(records) == 12
    for record, (path, target) in zip(records, stock.samples, strict=True):
        assert bytes(record["image/encoded"]) == Path(path).read_bytes()
        assert record["image/class/label"].tolist() == [target]
        assert bytes(record["image/class/text"]).decode() == stock.classes[target] == Path(path).parent.name
        assert bytes(record["image/filename"]).decode() == str(Path(path).relative_to(stock.root))
        assert bytes(record["image/format"]) == (b"PNG" if path.endswith("png") else b"JPEG")


def test_files_of_the_tfrecord_package_are_read(stock, tmp_path):
    """With other feature names, and with features of other types."""
    peer = pytest.importorskip("tfrecord")
    path = str(tmp_path / "a.tfrecord")
    writer = peer.TFRecordWriter(path)
    for number, (name, target) in enumerate(stock.samples):
        boxes = [0.1 * i for i in range(number)]
        writer.write({
            "width": (640, "int"),
            "picture": (Path(name).read_bytes(), "byte"),
            "class": (target * 1000 - 1, "int"),
            "boxes": (boxes, "float"),
        })  # fmt: skip
    writer.close()
    dataset = DALITFRecord(path, image_key="picture", label_key="class")
    assert dataset.targets == [target * 1000 - 1 for target in stock.targets]  # the first are negative
    for i, array in enumerate(dataset.read(range(12))):
        assert array.tobytes() == Path(stock.samples[i][0]).read_bytes()
        assert dataset[i][0].tobytes() == stock[i][0].tobytes()


def test_dalis_tfrecord_reader_reads_the_same(packed, stock, tmp_path):
    fn = pytest.importorskip("nvidia.dali.fn")
    from nvidia.dali import pipeline_def
    from nvidia.dali import tfrecord as tf

    path = packed / "all.tfrecord"
    starts = [*offsets_of(path), path.stat().st_size]
    lines = [f"{a} {b - a}" for a, b in pairwise(starts)]
    (tmp_path / "idx").write_text("\n".join(lines) + "\n")

    @pipeline_def(batch_size=12, num_threads=1, device_id=None)
    def theirs():
        features = {
            "image/encoded": tf.FixedLenFeature((), tf.string, ""),
            "image/class/label": tf.FixedLenFeature([1], tf.int64, -1),
        }
        out = fn.readers.tfrecord(path=[str(path)], index_path=[str(tmp_path / "idx")], features=features)
        return out["image/encoded"], out["image/class/label"]

    pipe = theirs()
    pipe.build()
    data, labels = pipe.run()
    assert [int(labels.at(i)[0]) for i in range(12)] == stock.targets
    for i, array in enumerate(DALITFRecord(path).read(range(12))):
        assert data.at(i).tobytes() == array.tobytes()


def test_files_are_exchanged_with_tensorflow(packed, stock, tmp_path):
    """Passed with TensorFlow 2.21 when it was last installed."""
    tf = pytest.importorskip("tensorflow")
    examples = [record.numpy() for record in tf.data.TFRecordDataset(str(packed / "all.tfrecord"))]
    for example, (path, target) in zip(examples, stock.samples, strict=True):
        features = tf.train.Example.FromString(example).features.feature
        assert features["image/encoded"].bytes_list.value[0] == Path(path).read_bytes()
        assert features["image/class/label"].int64_list.value[0] == target
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for example in examples:
            writer.write(tf.train.Example.FromString(example).SerializeToString())
    dataset = DALITFRecord(tmp_path / "theirs")
    assert dataset.targets == stock.targets
    assert [array.tobytes() for array in dataset.read(range(12))] == [
        Path(path).read_bytes() for path, _ in stock.samples
    ]


def test_shards_are_given_by_patterns(packed, tmp_path, stock):
    for i in (2, 0, 1):
        shutil.copy(packed / "all.tfrecord", tmp_path / f"train-{i:05d}-of-00003")
    for path in (tmp_path / "train-*", str(tmp_path / "train-{00000..00002}-of-00003")):
        dataset = DALITFRecord(path)
        assert [Path(file).name for file in dataset.files] == [f"train-{i:05d}-of-00003" for i in range(3)]
        assert dataset.targets == stock.targets * 3


@pytest.mark.parametrize("field, reason", [
    ("length", "checksum of its length is wrong"),
    ("length's crc", "checksum of its length is wrong"),
    ("data", "checksum of its data is wrong"),
    ("data's crc", "checksum of its data is wrong"),
])  # fmt: skip
def test_wrong_checksums_are_reported_with_the_record(packed, tmp_path, field, reason):
    path = tmp_path / "a.tfrecord"
    shutil.copy(packed / "all.tfrecord", path)
    begin, end = offsets_of(path)[7:9]
    data = bytearray(path.read_bytes())
    data[{"length": begin, "length's crc": begin + 9, "data": end - 1000, "data's crc": end - 1}[field]] ^= 1
    path.write_bytes(data)
    with pytest.raises(ImageReadError, match=reason) as caught:
        DALITFRecord(path)
    assert f"{path}, record 7 at byte {begin}" in str(caught.value)


@pytest.mark.parametrize("cut, reason", [(-1, "ends 1 bytes before"), (-3000, "bytes before the record does")])
def test_a_truncated_file_is_refused(packed, tmp_path, cut, reason):
    path = tmp_path / "a.tfrecord"
    path.write_bytes((packed / "all.tfrecord").read_bytes()[:cut])
    with pytest.raises(ImageReadError, match=rf"record 11 at byte \d+: .*{reason}"):
        DALITFRecord(path)
    path.write_bytes((packed / "all.tfrecord").read_bytes()[: offsets_of(packed / "all.tfrecord")[3] + 5])
    with pytest.raises(ImageReadError, match=r"record 3 at byte .*ends within the record"):
        DALITFRecord(path)


def test_compressed_files_are_refused(packed, tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(gzip.compress((packed / "all.tfrecord").read_bytes()))
    with pytest.raises(ValueError, match=r"a\.tfrecord, record 0 at byte 0: .*gzip.*decompress"):
        DALITFRecord(path)


def record(*features: tuple[str, bytes]) -> bytes:
    """Return a record of encoded features."""
    data = protobuf.encode(1, b"".join(
        protobuf.encode(1, protobuf.encode(1, name.encode()) + protobuf.encode(2, value)) for name, value in features
    ))  # fmt: skip
    return tfrecord_of(data)


def tfrecord_of(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    parts = length, tfrecord.masked_crc32c(length), data, tfrecord.masked_crc32c(data)
    return b"".join(part if isinstance(part, bytes) else struct.pack("<I", part) for part in parts)


IMAGE = protobuf.encode(1, protobuf.encode(1, b"an image"))
LABEL = protobuf.encode(3, protobuf.encode(1, 3))  # unpacked encoding


def test_examples_are_encoded_as_documented():
    """The bytes are Example{features{feature{key: "i" value{int64_list{value: 5}}}}} and the frame."""
    data = tfrecord.encode({"i": 5})
    assert data[:8] == struct.pack("<Q", len(data) - 16)
    assert data[12:-4] == bytes([0x0A, 12, 0x0A, 10, 0x0A, 1, ord("i"), 0x12, 5, 0x1A, 3, 0x0A, 1, 5])


def test_odd_but_valid_examples_are_read(tmp_path):
    path = tmp_path / "a.tfrecord"
    twice = ("image/encoded", protobuf.encode(1, protobuf.encode(1, b"the last counts")))
    unknown = protobuf.encode(9, 1) + protobuf.encode(8, b"unknown fields")
    path.write_bytes(
        record(("image/encoded", IMAGE), ("image/class/label", LABEL))
        + record(("image/class/label", LABEL), ("image/encoded", IMAGE), twice)
        + record(("image/encoded", unknown + IMAGE), ("image/class/label", LABEL + unknown))
    )
    dataset = DALITFRecord(path)
    assert dataset.targets == [3, 3, 3]
    assert [array.tobytes() for array in dataset.read(range(3))] == [b"an image", b"the last counts", b"an image"]


TWO = protobuf.encode(1, protobuf.encode(1, b"one") + protobuf.encode(1, b"two"))
FLOAT = protobuf.encode(2, protobuf.encode(1, b"\0\0\0\0"))


@pytest.mark.parametrize("features, reason", [
    ([("image/encoded", IMAGE)], r"no feature 'image/class/label'; its features are: image/encoded"),
    ([("image/class/label", LABEL)], r"no feature 'image/encoded'; its features are: image/class/label"),
    ([], r"no feature 'image/encoded'; its features are: none"),
    ([("image/encoded", TWO), ("image/class/label", LABEL)], r"one value of type bytes, but has 2 of type bytes"),
    ([("image/encoded", LABEL), ("image/class/label", LABEL)], r"one value of type bytes, but has 1 of type int64s"),
    ([("image/encoded", IMAGE), ("image/class/label", FLOAT)], r"one value of type int64s, but has 1 of type floats"),
    ([("image/encoded", IMAGE), ("image/class/label", b"")], r"one value of type int64s, but has 0 of type nothing"),
])  # fmt: skip
def test_examples_with_missing_or_wrong_features_are_refused(tmp_path, features, reason):
    path = tmp_path / "a.tfrecord"
    good = record(("image/encoded", IMAGE), ("image/class/label", LABEL))
    path.write_bytes(good + record(*features))
    with pytest.raises(ValueError, match=rf"a\.tfrecord, record 1 at byte {len(good)}: .*{reason}"):
        DALITFRecord(path)


@pytest.mark.parametrize("data", [b"\x0a\x7f", b"\xff" * 12, b"\x0b", b"\x0a\x03\x0a\x05\x00"])
def test_records_that_are_not_examples_are_refused(tmp_path, data):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(tfrecord_of(data))
    with pytest.raises(ImageReadError, match=r"record 0 at byte 0: it is not a tf\.train\.Example"):
        DALITFRecord(path)
