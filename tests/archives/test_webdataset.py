"""Tar shards exchanged with webdataset, tarfile and DALI; header formats; refused files."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
from pathlib import Path

import pytest

from dali_compat import DALIWebDataset, ImageReadError
from dali_compat.archives import braces, expand
from dali_compat.archives import webdataset as tar
from dali_compat.cli import main


def write(path: Path, files: dict[str, bytes], format=tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def members(path: Path) -> list[tuple[str, int, int]]:
    with open(path, "rb") as file:
        return list(tar.members(file, str(path)))


def test_webdataset_reads_packed_shards(packed, stock):
    webdataset = pytest.importorskip("webdataset")
    found = list(webdataset.WebDataset(str(packed / "all.tar"), shardshuffle=False))
    assert len(found) == 12
    for number, (sample, (path, target)) in enumerate(zip(found, stock.samples, strict=True)):
        assert sample["__key__"] == f"{number:09d}"
        assert sample["png" if path.endswith("png") else "jpg"] == Path(path).read_bytes()
        assert sample["cls"] == str(target).encode()


def test_webdatasets_pipeline_decodes_packed_shards(packed, stock):
    webdataset = pytest.importorskip("webdataset")
    pipeline = (
        webdataset.WebDataset(str(packed / "all.tar"), shardshuffle=False).decode("pil").to_tuple("jpg;png", "cls")
    )
    for (image, label), (theirs, target) in zip(pipeline, stock, strict=True):
        assert image.convert("RGB").tobytes() == theirs.tobytes() and label == target


@pytest.mark.parametrize("labels", ["cls", "json"])
def test_shards_written_by_webdataset_are_read(stock, tmp_path, labels):
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "w-%04d.tar"), maxcount=5, verbose=0) as writer:
        for number, (path, target) in enumerate(stock.samples):
            label = target if labels == "cls" else {"label": target, "caption": "a picture"}
            image = {os.path.splitext(path)[1][1:]: Path(path).read_bytes()}
            writer.write({"__key__": f"sub.folder/{number:04d}", labels: label, **image})
    dataset = DALIWebDataset(str(tmp_path / "w-{0000..0002}.tar"))
    assert len(dataset.files) == 3 and dataset.targets == stock.targets
    for i, array in enumerate(dataset.read(range(12))):
        assert array.tobytes() == Path(stock.samples[i][0]).read_bytes()
        assert dataset[i][0].tobytes() == stock[i][0].tobytes()


def test_dalis_webdataset_reader_reads_the_same(packed, stock):
    fn = pytest.importorskip("nvidia.dali.fn")
    from nvidia.dali import pipeline_def

    @pipeline_def(batch_size=12, num_threads=1, device_id=None)
    def theirs():
        return tuple(fn.readers.webdataset(paths=[str(packed / "all.tar")], ext=["jpg;png", "cls"]))

    pipe = theirs()
    pipe.build()
    data, labels = pipe.run()
    assert [int(labels.at(i).tobytes()) for i in range(12)] == stock.targets
    for i, array in enumerate(DALIWebDataset(packed / "all.tar").read(range(12))):
        assert data.at(i).tobytes() == array.tobytes()


def test_tarfile_reads_packed_shards(packed):
    with tarfile.open(packed / "all.tar") as archive:
        expected = [(info.name, info.offset_data, info.size) for info in archive]
        assert all(info.isreg() and info.mode == 0o644 for info in archive)
    assert len(expected) == 24
    assert members(packed / "all.tar") == expected
    assert (packed / "all.tar").stat().st_size == expected[-1][1] + 512 + 1024


LONG = "folder_" * 20 + "/" + "name_" * 30 + "é"


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_header_format_is_read_as_by_tarfile(tmp_path, format):
    """Compares names too long for a header, links, folders and empty files with tarfile's results."""
    path = tmp_path / "a.tar"
    names = ["a.jpg", "empty.jpg", "x" * 99, "d/" * 40 + "y" * 90]
    if format != tarfile.USTAR_FORMAT:
        names += [LONG + ".jpg", LONG + ".cls", "é.jpg", "after.jpg"]
    with tarfile.open(path, "w", format=format) as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for i, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = 0 if name == "empty.jpg" else 500 + 300 * i
            archive.addfile(info, io.BytesIO(bytes([i]) * info.size))
            link = tarfile.TarInfo(f"link-{i}")
            link.type, link.linkname = (tarfile.SYMTYPE, tarfile.LNKTYPE)[i % 2], name[-90:]
            archive.addfile(link)
    with tarfile.open(path) as archive:
        expected = [(info.name, info.offset_data, info.size) for info in archive if info.isreg()]
    assert [name for name, _, _ in expected] == names
    assert members(path) == expected


def test_base_256_and_pax_sizes_are_read(tmp_path):
    """Sizes are GNU's base 256, or pax's size record, which replaces the header's."""
    for pax in (False, True):
        header = bytearray(tar.member("a.jpg", b"")[:512])
        header[124:136] = b"\x80" + (700).to_bytes(11, "big") if not pax else b"00000000000\0"
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        record = b"12 size=700\n"
        extended = bytearray(tar.member("pax", record))
        extended[156:157] = b"x"
        extended[148:156] = b" " * 8
        extended[148:156] = b"%06o\0 " % sum(extended[:512])
        data = (bytes(extended) if pax else b"") + bytes(header) + b"i" * 700 + bytes(324)
        (tmp_path / "a.tar").write_bytes(data + tar.member("b.jpg", b"abc") + tar.END)
        assert members(tmp_path / "a.tar") == [("a.jpg", 512 + 1024 * pax, 700), ("b.jpg", 2048 + 1024 * pax, 3)]


def test_a_hard_links_size_is_ignored(tmp_path):
    """Old tar programs give a hard link the size of its target."""
    header = bytearray(tar.member("link.jpg", b"x" * 700)[:512])
    header[156:157] = b"1"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + tar.member("a.jpg", b"abc") + tar.END)
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert [info.offset_data for info in archive if info.isreg()] == [1024]
    assert members(tmp_path / "a.tar") == [("a.jpg", 1024, 3)]


def test_files_are_grouped_into_samples_as_by_webdataset(tmp_path):
    files = {
        "README": b"no extension",
        "__meta__": b"for webdataset",
        "__meta.json__": b"for webdataset, too",
        "a.png": b"second choice",
        "a.JPG": b"first choice",
        "a.cls": b" 3\n",
        "a.seg.png": b"no image",
        "d.ir/b.jpeg": b"other",
        "d.ir/b.json": json.dumps({"label": 4, "id": 77}).encode(),
        "c.jpg": b"both",
        "c.cls": b"5",
        "c.json": b"{}",
        "b//.jpg": b"no name but a folder's",
        "b//.cls": b"6",
    }
    path = write(tmp_path / "a.tar", files)
    dataset = DALIWebDataset(path)
    assert dataset.targets == [3, 4, 5, 6]
    assert [array.tobytes() for array in dataset.read(range(4))] == [
        b"first choice",
        b"other",
        b"both",
        b"no name but a folder's",
    ]
    dataset = DALIWebDataset(path, image_extensions=["seg.png", ".jpeg", ".jpg"], json_field="id")
    assert dataset.targets == [3, 77, 5, 6]
    assert dataset.read([0])[0].tobytes() == b"no image"


@pytest.mark.parametrize("files, reason", [
    ({"b.jpg": b"x"}, r"sample 'b' at byte \d+: it has neither .cls nor .json, only 'jpg'"),
    ({"b.cls": b"1", "b.txt": b""}, r"sample 'b' at byte \d+: it has no image, only 'cls', 'txt'"),
    ({"b.jpg": b"x", "b.cls": b"dog"}, r"its .cls holds b'dog', not a class number"),
    ({"b.jpg": b"x", "b.json": b"{"}, r"its .json holds b'\{', not a class number"),
    ({"b.jpg": b"x", "b.json": b"[1]"}, r"its .json holds b'\[1\]', not a class number"),
    ({"b.jpg": b"x", "b.json": b'{"class": 1}'}, r"its .json has no field 'label'; pass the name of the target's"),
    ({"b.jpg": b"x", "b.json": b'{"label": true}'}, r"'label' of its .json is True, not a class number"),
    ({"b.jpg": b"x", "b.JPG": b"y", "b.cls": b"1"}, r"'b.JPG' appears twice"),
])  # fmt: skip
def test_unusable_samples_are_refused(tmp_path, files, reason):
    path = write(tmp_path / "a.tar", {"a.jpg": b"x", "a.cls": b"1", **files})
    with pytest.raises(ValueError, match=reason) as caught:
        DALIWebDataset(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("compress, name", [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")])
def test_compressed_files_are_refused(packed, tmp_path, compress, name):
    path = tmp_path / "a.tar"
    path.write_bytes(compress((packed / "all.tar").read_bytes()))
    with pytest.raises(ValueError, match=rf"a\.tar, byte 0: the file is compressed \({name}\)"):
        DALIWebDataset(path)


def test_sparse_files_are_refused(tmp_path):
    header = bytearray(tar.member("a.jpg", b"x" * 600))
    header[156:157] = b"S"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    (tmp_path / "a.tar").write_bytes(bytes(header))
    with pytest.raises(ValueError, match="sparse"):
        members(tmp_path / "a.tar")


def test_damage_is_reported_with_the_headers_position(packed, tmp_path):
    path = tmp_path / "a.tar"
    whole = (packed / "all.tar").read_bytes()
    header = members(packed / "all.tar")[6][1] - 512

    def fails(data: bytes, reason: str) -> None:
        path.write_bytes(data)
        with pytest.raises(ImageReadError, match=reason) as caught:
            DALIWebDataset(path)
        assert f"{path}, header at byte {header}" in str(caught.value)

    fails(whole[: header + 3] + b"?" + whole[header + 4 :], "it is damaged")
    fails(whole[: header + 124] + b"z" + whole[header + 125 :], "it is damaged")
    fails(whole[: header + 100], "the file ends within the header")
    fails(whole[: header + 600], "bytes before the member does")


def header(kind: bytes, size: int) -> bytes:
    """Return the header of a member with this type and size."""
    made = bytearray(tar.member("other", b""))
    made[124:136], made[156:157], made[148:156] = b"%011o\0" % size, kind, b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


@pytest.mark.parametrize("kind", [bytes([kind]) for kind in b"0\x007VDMNAZ8"])
@pytest.mark.parametrize("size", [10**9, 5000, 1100])
def test_a_member_that_extends_past_the_end_is_refused(tmp_path, capsys, kind, size):
    """tarfile raises ReadError, since all members after it would be lost."""
    path = tmp_path / "a.tar"
    files = [tar.member("a.jpg", b"x"), tar.member("a.cls", b"1"), header(kind, size), tar.member("b.jpg", b"y")]
    path.write_bytes(b"".join(files))
    with pytest.raises(tarfile.ReadError), tarfile.open(path) as archive:
        archive.getmembers()
    for _ in range(2):  # the failed index is not kept
        with pytest.raises(
            ImageReadError, match=r"a\.tar, header at byte 2048: the file ends \d+ bytes before the mem"
        ):
            DALIWebDataset(path)
    assert main(["check", str(path)]) == 1
    assert "a.tar, header at byte 2048: the file ends" in capsys.readouterr().out


@pytest.mark.parametrize("end", [b"", tar.END])
@pytest.mark.parametrize("kind", [b"x", b"X", b"L", b"K", b"g"])
def test_an_extended_header_without_its_member_is_refused(tmp_path, kind, end):
    path = tmp_path / "a.tar"
    text = b"12 path=bbb\n" + bytes(500)
    path.write_bytes(tar.member("a.jpg", b"x") + tar.member("a.cls", b"1") + header(kind, 12) + text + end)
    with pytest.raises(tarfile.ReadError), tarfile.open(path) as archive:
        archive.getmembers()
    with pytest.raises(ImageReadError, match=r"a\.tar, header at byte 2048: it is damaged"):
        DALIWebDataset(path)


def test_extended_headers_of_solaris_are_read(tmp_path):
    (tmp_path / "a.tar").write_bytes(
        header(b"X", 14) + b"14 path=n.jpg\n".ljust(512, b"\0") + tar.member("a.jpg", b"x")
    )
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert members(tmp_path / "a.tar") == [(info.name, info.offset_data, info.size) for info in archive]


def test_a_shard_without_an_end_mark_is_read(packed, tmp_path, stock):
    """Python's tarfile and webdataset read such files, too."""
    path = tmp_path / "a.tar"
    path.write_bytes((packed / "all.tar").read_bytes()[:-1024])
    assert DALIWebDataset(path).targets == stock.targets


# --- file names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, expected", [
    ("a", ["a"]),
    ("a{1,2}b{x,y}", ["a1bx", "a1by", "a2bx", "a2by"]),
    ("{08..11}", ["08", "09", "10", "11"]),
    ("{8..11}", ["8", "9", "10", "11"]),
    ("{0..10..", ["{0..10.."]),
    ("{9..10}{0..1}", ["90", "91", "100", "101"]),
    ("{11..0}", [str(i) for i in range(11, -1, -1)]),
    ("{3..1}", ["3", "2", "1"]),
    ("{000000..000002}.tar", ["000000.tar", "000001.tar", "000002.tar"]),
    ("{a,b{1..2}}c{3,4}", ["ac3", "ac4", "b1c3", "b1c4", "b2c3", "b2c4"]),
    ("{{1,2}}", ["{1}", "{2}"]),
    ("a{", ["a{"]),
    ("{1,2}{", ["{1,2}{"]),
    ("a{,b}", ["a", "ab"]),
    ("{alone}.{0,1}", ["{alone}.0", "{alone}.1"]),
])  # fmt: skip
def test_braces_expand_as_in_bash(name, expected):
    assert braces(name) == expected


def test_existing_names_are_taken_literally(tmp_path, monkeypatch):
    for name in ("[a]*{1,2}.rec", "b1", "b2"):
        (tmp_path / name).touch()
    assert expand(tmp_path / "[a]*{1,2}.rec") == [str(tmp_path / "[a]*{1,2}.rec")]
    assert expand([str(tmp_path / "b?"), tmp_path / "b1"]) == [str(tmp_path / name) for name in ("b1", "b2", "b1")]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand("~/b2") == [str(tmp_path / "b2")]
    with pytest.raises(FileNotFoundError, match="b3"):
        expand(str(tmp_path / "b{1..3}"))
