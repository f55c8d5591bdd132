"""RecordIO compared with an independent implementation of its documented layout, and with DALI's MXNet reader."""

import io
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_compat import DALIRecordIO, ImageReadError
from dali_compat.archives import recordio

MAGIC = bytes.fromhex("0a23d7ce")


def dmlc_encoded(data: bytes) -> bytes:
    """Encode a record as dmlc-core's RecordIOWriter::WriteRecord does (src/recordio.cc)."""

    def prefix(part: int, length: int) -> bytes:
        return MAGIC + struct.pack("<I", part << 29 | length)

    out, begin = b"", 0
    for at in range(0, len(data) // 4 * 4, 4):
        if data[at : at + 4] == MAGIC:
            out += prefix(1 if begin == 0 else 2, at - begin) + data[begin:at]
            begin = at + 4
    out += prefix(3 if begin else 0, len(data) - begin) + data[begin:]
    return out + b"\0" * ((4 - (len(data) - begin) % 4) % 4)


def mxnet_encoded(label: float | list[float], index: int, image: bytes) -> bytes:
    """Encode as MXNet's recordio.pack(IRHeader(0, label, index, 0), image) does (python/mxnet/recordio.py)."""
    if isinstance(label, list):
        return struct.pack("<IfQQ", len(label), 0, index, 0) + np.array(label, np.float32).tobytes() + image
    return struct.pack("<IfQQ", 0, label, index, 0) + image


def picture(color, comment: bytes = b"") -> bytes:
    """Return a JPEG with a comment segment that contains these bytes."""
    written = io.BytesIO()
    Image.new("RGB", (20, 10), color).save(written, "JPEG", comment=comment)
    return written.getvalue()


def write(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(dmlc_encoded(record) for record in records))
    return path


def with_magic(offset: int, count: int = 1) -> bytes:
    """Return a JPEG with ``count`` magic numbers from an offset modulo 4."""
    head = len(picture("red", b"")[: picture("red", b"?").index(b"?")])
    return picture("red", b"." * (-(head - offset) % 4) + MAGIC * count + b"tail")


def test_packed_file_has_the_documented_layout(packed, stock):
    expected, idx, at = b"", "", 0
    for number, (path, target) in enumerate(stock.samples):
        record = dmlc_encoded(mxnet_encoded(float(target), number, Path(path).read_bytes()))
        expected += record
        idx += f"{number}\t{at}\n"
        at += len(record)
    assert (packed / "all.rec").read_bytes() == expected
    assert (packed / "all.idx").read_text() == idx


@pytest.mark.parametrize("idx", [False, True])
def test_dalis_mxnet_reader_reads_the_same(packed, stock, idx, tmp_path):
    """Includes records in several parts."""
    fn = pytest.importorskip("nvidia.dali.fn")
    from nvidia.dali import pipeline_def

    images = [Path(path).read_bytes() for path, _ in stock.samples] + [with_magic(0), with_magic(0, 3), with_magic(2)]
    path, offsets, at = tmp_path / "a.rec", "", 0
    with open(path, "wb") as file:
        for number, image in enumerate(images):
            offsets += f"{number}\t{at}\n"
            at += file.write(recordio.encode(number, number % 5, image))
    (tmp_path / ("a.idx" if idx else "a.other")).write_text(offsets)

    @pipeline_def(batch_size=len(images), num_threads=1, device_id=None)
    def theirs():
        return tuple(fn.readers.mxnet(path=[str(path)], index_path=[str(tmp_path / ("a.idx" if idx else "a.other"))]))

    pipe = theirs()
    pipe.build()
    data, labels = pipe.run()
    dataset = DALIRecordIO(path)
    assert [int(labels.at(i)[0]) for i in range(len(images))] == dataset.targets
    for i, array in enumerate(dataset.read(range(len(images)))):
        assert data.at(i).tobytes() == array.tobytes() == images[i]


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_images_in_several_parts_are_joined(tmp_path, offset, count):
    """Writers split a record at a magic number that lies at a multiple of 4 bytes, and omit the number."""
    image = with_magic(offset, count)
    records = [
        mxnet_encoded(1.0, 0, picture("blue")),
        mxnet_encoded(2.0, 1, image),
        mxnet_encoded(3.0, 2, picture("green")),
    ]
    assert recordio.encode(1, 2, image) == dmlc_encoded(records[1])
    split = offset == 0  # MXNet's header has 24 bytes
    assert (dmlc_encoded(records[1])[7] >> 5 == 1) == split
    dataset = DALIRecordIO(write(tmp_path / "a.rec", records))
    assert dataset.targets == [1, 2, 3]
    array = dataset.read([2, 1])[1]
    assert array.tobytes() == image and not array.flags.writeable
    assert dataset.locations([1])[2].tolist() == [len(image)]
    assert dataset[1][0].tobytes() == Image.open(io.BytesIO(image)).convert("RGB").tobytes()
    again = DALIRecordIO(tmp_path / "a.rec")  # from the cached index
    assert again.read([1])[0].tobytes() == image


def test_many_images_in_several_parts_are_read_at_once(tmp_path):
    images = [with_magic(i % 4, i % 3) for i in range(24)]
    half = [mxnet_encoded(float(i), i, image) for i, image in enumerate(images)]
    paths = [write(tmp_path / "a.rec", half[:12]), write(tmp_path / "b.rec", half[12:])]
    dataset = DALIRecordIO(paths)
    assert [array.tobytes() for array in dataset.read(range(23, -1, -1))] == images[::-1]
    assert [dataset.copied(i - 24) for i in range(24)] == images
    assert [dataset.read([i - 24])[0].tobytes() for i in range(24)] == images


def test_a_list_of_one_label_is_read_as_the_label(tmp_path):
    records = [mxnet_encoded([7.0], 0, picture("red")), mxnet_encoded(8.0, 1, picture("blue"))]
    dataset = DALIRecordIO(write(tmp_path / "a.rec", records))
    assert dataset.targets == [7, 8] and dataset.read([0])[0].tobytes() == picture("red")


REFUSED = {
    "several labels": ([mxnet_encoded([1.0, 2.0], 1, b"image")], ValueError, "has 2 labels"),
    "no class number": ([mxnet_encoded(0.5, 1, b"image")], ValueError, "label 0.5 is not a class number"),
    "not a number": ([mxnet_encoded(float("nan"), 1, b"image")], ValueError, "not a class number"),
    "too short": ([b"short"], ImageReadError, "5 bytes are too few"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_records_are_refused_with_their_position(tmp_path, name):
    records, error, reason = REFUSED[name]
    first = mxnet_encoded(0.0, 0, picture("red"))
    path = write(tmp_path / "a.rec", [first, *records])
    with pytest.raises(error, match=reason) as caught:
        DALIRecordIO(path)
    assert f"{path}, record 1 at byte {len(dmlc_encoded(first))}" in str(caught.value)


@pytest.mark.parametrize("idx", [False, True])
def test_damage_is_reported_with_record_and_byte(packed, tmp_path, idx):
    path = tmp_path / "a.rec"
    whole = (packed / "all.rec").read_bytes()
    offsets = [int(line.split()[1]) for line in (packed / "all.idx").read_text().splitlines()]
    if idx:
        shutil.copy(packed / "all.idx", tmp_path / "a.idx")

    def fails(data: bytes, number: int, reason: str) -> None:
        path.write_bytes(data)
        with pytest.raises(ImageReadError) as caught:
            DALIRecordIO(path)
        assert f"{path}, record {number} at byte {offsets[number]}: " in str(caught.value)
        assert reason in str(caught.value)

    at = offsets[4]
    fails(whole[:at] + b"\0" + whole[at + 1 :], 4, "begins with 0xced72300, not with the magic number")
    fails(whole[: at + 7] + b"\x60" + whole[at + 8 :], 4, "this is the middle or end of a record, not its beginning")
    fails(whole[:-100], 11, "the file ends 100 bytes")
    fails(whole[: offsets[11] + 5], 11, "the file has only ")


def test_a_record_with_a_missing_part_is_refused(tmp_path):
    first = dmlc_encoded(mxnet_encoded(1.0, 0, with_magic(0)))
    second = first.index(MAGIC, 4)
    path = tmp_path / "a.rec"
    for data in (first[:second], first[:second] + b"????" + first[second + 4 :]):
        path.write_bytes(data)
        with pytest.raises(ImageReadError, match=rf"record 0 at byte 0: .* not at byte {second}"):
            DALIRecordIO(path)
    path.write_bytes(first[:second] + dmlc_encoded(mxnet_encoded(1.0, 1, picture("red"))))
    with pytest.raises(ImageReadError, match=rf"another record begins at byte {second}, before the last part"):
        DALIRecordIO(path)


def test_idx_file_selects_and_orders_the_records(packed, stock, tmp_path):
    shutil.copy(packed / "all.rec", tmp_path / "a.rec")
    assert len(DALIRecordIO(tmp_path / "a.rec")) == 12
    lines = (packed / "all.idx").read_text().splitlines()
    (tmp_path / "a.idx").write_text("\n".join([lines[9], lines[2], lines[5]]))
    dataset = DALIRecordIO(tmp_path / "a.rec")
    assert dataset.targets == [stock.targets[i] for i in (9, 2, 5)]
    assert [a.tobytes() for a in dataset.read(range(3))] == [Path(stock.samples[i][0]).read_bytes() for i in (9, 2, 5)]
    (tmp_path / "a.idx").unlink()
    assert len(DALIRecordIO(tmp_path / "a.rec")) == 12


@pytest.mark.parametrize("text, error, reason", [
    ("0\t0\n1\t12\n", ImageReadError, "record 1 at byte 12: it begins with .*a.idx may belong to another file"),
    ("0\t999999999\n", ImageReadError, r"the file has only \d+ bytes; .*a.idx may belong"),
    ("", ValueError, "a.idx, line 1: the file lists no records; remove it"),
    ("0\t0\nnonsense\n", ValueError, "a.idx, line 2: 'nonsense' is not a key and an offset"),
])  # fmt: skip
def test_an_idx_file_that_does_not_match_is_refused(packed, tmp_path, text, error, reason):
    shutil.copy(packed / "all.rec", tmp_path / "a.rec")
    (tmp_path / "a.idx").write_text(text)
    with pytest.raises(error, match=reason):
        DALIRecordIO(tmp_path / "a.rec")


def test_a_record_without_its_padding_is_refused(tmp_path):
    """The record's end was cut off, along with anything after it."""
    data = recordio.encode(0, 1, b"image" * 5)
    assert len(data) % 4 == 0 and data.endswith(b"\0")
    (tmp_path / "a.rec").write_bytes(data[:-1])
    with pytest.raises(
        ImageReadError, match=r"a\.rec, record 0 at byte 0: the file ends 1 bytes before the record does"
    ):
        DALIRecordIO(tmp_path / "a.rec")
