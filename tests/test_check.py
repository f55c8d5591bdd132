"""python -m dali_compat check: findings, text and JSON reports, and exit codes."""

import faulthandler
import functools
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from helpers import make_image
from PIL import Image
from torchvision.datasets.folder import pil_loader
from tqdm import tqdm

from dali_compat import cli
from dali_compat.archives.pack import pack
from dali_compat.cli import check_files
from dali_compat.cli.check import text as text_of
from dali_compat.cli.check_files import decode

ARCHIVES = {"rec": "DALIRecordIO", "tfrecord": "DALITFRecord", "lmdb": "DALILMDB", "tar": "DALIWebDataset"}
KEYS = {
    *("path", "kind", "error", "complete", "exit_code", "counts", "dali_share", "broken", "pillow", "not_images"),
    *("bombs", "folders", "sizes", "formats", "warnings"),
}


def saved(format: str, picture: Image.Image | None = None, **options) -> bytes:
    file = io.BytesIO()
    (picture or Image.fromarray(make_image(np.random.default_rng(0), 60, 80))).save(file, format, **options)
    return file.getvalue()


def sixteen_bits() -> bytes:
    return saved("PNG", Image.fromarray((np.arange(4000, dtype=np.uint16) * 9).reshape(50, 80)))


JPEG, PNG = saved("JPEG"), saved("PNG")
DAMAGED = {
    "cut.jpg": (JPEG[: len(JPEG) // 2], "OSError", "truncated"),
    "cut.png": (PNG[: len(PNG) // 2], "OSError", "truncated"),
    "cut.bmp": (saved("BMP")[:500], "OSError", "truncated"),
    "cut.tif": (saved("TIFF")[:500], "OSError", "truncated"),
    "cut.webp": (saved("WEBP")[:300], "OSError", "decoder"),
    "flipped.png": (PNG[:60] + bytes([PNG[60] ^ 1]) + PNG[61:], "OSError", "broken data stream"),
    "chunk.png": (PNG.replace(b"IDAT", b"\0DAT"), "UnidentifiedImageError", "header is damaged"),
    "head.jpg": (JPEG[:3] + bytes(100), "UnidentifiedImageError", "header is damaged"),
    "empty.jpg": (b"", "UnidentifiedImageError", "an empty file"),
    "page.jpeg": (b"\n<!DOCTYPE html><html>404", "UnidentifiedImageError", "an HTML page"),
    "zeros.png": (bytes(5000), "UnidentifiedImageError", "only zero bytes"),
    "words.ppm": (b"nothing to see\n", "UnidentifiedImageError", "text"),
    "noise.webp": (bytes(range(255, 0, -1)), "UnidentifiedImageError", "unknown data"),
}
NOT_IMAGES = {"empty.jpg", "page.jpeg", "zeros.png", "words.ppm", "noise.webp"}


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def fill(folder: Path, **files: bytes) -> Path:
    """Write files named after their stems; the extension follows from the content."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, data in files.items():
        (folder / f"{stem}{'.png' if data[1:4] == b'PNG' else '.jpg'}").write_bytes(data)
    return folder


@pytest.fixture
def good_folder(tmp_path) -> Path:
    """A folder with two classes and five images."""
    fill(tmp_path / "good_folder" / "a", one=JPEG, two=PNG)
    return fill(tmp_path / "good_folder" / "b", three=JPEG, four=JPEG, five=JPEG).parent


def json_report(capsys, *argv) -> tuple[int, dict]:
    """Run check and return the exit code and the JSON report."""
    code = cli.main(["check", *map(str, argv), "--json", "--workers", "2"])
    return code, json.loads(capsys.readouterr().out)


def text_report(capsys, *argv) -> tuple[int, str]:
    """Run check and return the exit code and the text report."""
    code = cli.main(["check", *map(str, argv), "--workers", "2"])
    return code, capsys.readouterr().out


def names(entries: list[dict]) -> list[str]:
    return [os.path.basename(entry["path"]) for entry in entries]


def with_names(entries: list[dict], *keys: str) -> list[tuple]:
    return [(os.path.basename(entry["path"]), *(entry[key] for key in keys)) for entry in entries]


# --- findings ------------------------------------------------------------------------------------------------------


def test_check_of_a_good_folder_reports_counts_sizes_and_formats(good_folder, capsys):
    code, report = json_report(capsys, good_folder)
    assert code == report["exit_code"] == 0 and report["complete"] and set(report) == KEYS
    size = 4 * len(JPEG) + len(PNG)
    expected = {"files": 5, "images": 5, "bytes": size, "dali": 5}
    others = dict.fromkeys(("broken", "pillow", "not_images", "bombs", "outside"), 0)
    assert report["counts"] == {**expected, **others} and report["dali_share"] == 1
    assert report["sizes"]["height"] == {"min": 60, "median": 60, "max": 60}
    assert report["sizes"]["width"]["median"] == 80 and report["sizes"]["bytes"]["median"] == len(JPEG)
    assert report["formats"] == [
        {"format": "JPEG", "mode": "RGB", "images": 4, "dali": 4, "pillow": 0, "broken": 0},
        {"format": "PNG", "mode": "RGB", "images": 1, "dali": 1, "pillow": 0, "broken": 0},
    ]
    assert (report["path"], report["kind"]) == (str(good_folder), "folder")


def test_damaged_files_are_reported_with_the_error_torchvision_raises(good_folder, capsys):
    for name, (data, _, _) in DAMAGED.items():
        (good_folder / "a" / name).write_bytes(data)
    code, report = json_report(capsys, good_folder)
    assert code == 1 and names(report["broken"]) == sorted(DAMAGED)
    for entry in report["broken"]:
        _, error, reason = DAMAGED[os.path.basename(entry["path"])]
        assert entry["error"] == error and reason in entry["reason"], entry
        with pytest.raises(Exception) as raised:  # noqa: PT011  (whatever PIL raises)
            pil_loader(entry["path"])
        assert type(raised.value).__name__ == error
    assert all(entry["listed"] for entry in report["not_images"]) and set(names(report["not_images"])) == NOT_IMAGES
    assert report["counts"]["images"] == 5 + len(DAMAGED) and report["counts"]["dali"] == 5
    assert sum(row["broken"] for row in report["formats"]) == len(DAMAGED)


def test_images_outside_class_folders_count_only_if_there_are_class_folders(good_folder, capsys):
    assert json_report(capsys, good_folder / "a")[1]["counts"]["outside"] == 0
    shutil.copy(good_folder / "a" / "one.jpg", good_folder / "one.jpg")
    assert json_report(capsys, good_folder)[1]["counts"]["outside"] == 1


def test_sizes_include_only_images_that_decode(good_folder, capsys):
    """The header of a truncated file still claims a size."""
    file = io.BytesIO()
    Image.new("RGB", (900, 700)).save(file, "JPEG")
    (good_folder / "a" / "large.jpg").write_bytes(file.getvalue()[:-400])
    code, report = json_report(capsys, good_folder)
    assert code == 1 and names(report["broken"]) == ["large.jpg"]
    assert [report["sizes"][side]["max"] for side in ("height", "width", "bytes")] == [60, 80, max(len(JPEG), len(PNG))]


def test_odd_but_valid_files_are_not_reported_as_broken(odd, capsys):
    code, report = json_report(capsys, odd)
    assert code == 0 and report["counts"]["images"] == report["counts"]["dali"] + report["counts"]["pillow"]
    assert names(report["not_images"]) == ["cat-2184682_640.pbm"] and not report["not_images"][0]["listed"]


def test_files_that_only_pillow_decodes_are_listed(good_folder, capsys):
    fill(good_folder / "b", deep=sixteen_bits())
    code, report = json_report(capsys, good_folder)
    assert code == 0 and report["dali_share"] == 5 / 6
    assert report["pillow"] == [{"path": str(good_folder / "b" / "deep.png"), "format": "PNG", "mode": "I;16"}]


def test_files_with_other_extensions_are_reported_as_not_listed(good_folder, capsys):
    (good_folder / "a" / "notes.txt").write_text("hello")
    (good_folder / "a" / "moving.gif").write_bytes(saved("GIF"))
    (good_folder / "a" / "UPPER.JPG").write_bytes(JPEG)
    (good_folder / "beside.jpg").write_bytes(JPEG)
    code, report = json_report(capsys, good_folder)
    assert code == 0 and report["counts"]["images"] == 7 and report["counts"]["files"] == 9
    assert with_names(report["not_images"], "what", "listed") == [
        ("moving.gif", "GIF image", False),
        ("notes.txt", "text", False),
    ]
    assert report["counts"]["outside"] == 1


def test_empty_class_folders_and_symlink_loops_are_reported(good_folder, capsys):
    (good_folder / "empty" / "below").mkdir(parents=True)
    (good_folder / "a" / "deeper").mkdir()
    (good_folder / "b" / "circle").symlink_to(good_folder)
    code, report = json_report(capsys, good_folder)
    found = [(os.path.relpath(entry["path"], good_folder), entry["problem"]) for entry in report["folders"]]
    assert code == 0 and found == [("b/circle", "loop"), ("a/deeper", "empty"), ("empty", "empty")]
    assert report["counts"]["images"] == 5


def test_check_of_a_folder_without_images_exits_with_1(tmp_path, capsys):
    code, report = json_report(capsys, tmp_path)
    assert code == 1 and report["counts"]["files"] == 0 and report["dali_share"] is None
    assert report["sizes"] == {"height": None, "width": None, "bytes": None} and report["formats"] == []
    code, text = text_report(capsys, tmp_path)
    assert code == 1 and text.splitlines()[-1] == f"There are no images in {tmp_path}; exit code 1"


@pytest.mark.parametrize("command", ["check", "bench"])
@pytest.mark.parametrize("name", ["a", "a.jpg", "a.csv", "a.rec", "a.tar"])
@pytest.mark.parametrize("what", ["pipe", "device"])
def test_a_pipe_or_device_as_the_argument_is_refused(tmp_path, capsys, command, name, what):
    if what == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(SystemExit) as caught:
        cli.main([command, str(tmp_path / name)])
    assert f"{name} is neither a file nor a folder" in f"{caught.value} {capsys.readouterr().err}"


def test_symlinks_are_followed_and_dangling_ones_are_broken(good_folder, tmp_path, capsys):
    fill(tmp_path / "elsewhere", far=JPEG)
    (good_folder / "linked").symlink_to(tmp_path / "elsewhere")
    (good_folder / "a" / "link.jpg").symlink_to(tmp_path / "elsewhere" / "far.jpg")
    (good_folder / "a" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (good_folder / "a" / "self.jpg").symlink_to("self.jpg")
    code, report = json_report(capsys, good_folder)
    assert code == 1 and report["counts"]["images"] == 9 and report["counts"]["dali"] == 7
    assert with_names(report["broken"], "error") == [
        ("gone.jpg", "FileNotFoundError"),
        ("self.jpg", "OSError"),
    ]


def test_check_does_not_block_on_a_pipe(good_folder, capsys):
    os.mkfifo(good_folder / "a" / "pipe.jpg")
    os.mkfifo(good_folder / "a" / "pipe")
    code, report = json_report(capsys, good_folder)
    assert code == 1 and report["broken"][0]["reason"] == "it is not a regular file"
    assert report["not_images"][0]["what"] == "it is not a regular file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files_and_folders_are_reported(good_folder, capsys):
    (good_folder / "a" / "one.jpg").chmod(0)
    (good_folder / "b").chmod(0)
    try:
        code, report = json_report(capsys, good_folder)
    finally:
        (good_folder / "b").chmod(0o755)
    assert code == 1 and [entry["error"] for entry in report["broken"]] == ["PermissionError"]
    assert [entry["problem"] for entry in report["folders"]] == ["unreadable"]


def test_a_folder_that_cannot_be_listed_exits_with_1(good_folder, monkeypatch, capsys):
    scandir = os.scandir

    def refusing(path):
        if os.path.basename(path) == "b":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    code, report = json_report(capsys, good_folder)
    assert code == 1 and report["folders"] == [
        {"path": str(good_folder / "b"), "problem": "unreadable", "reason": "Permission denied"}
    ]
    assert text_report(capsys, good_folder)[1].splitlines()[-1] == (
        "All 2 images can be decoded, and 1 folder cannot be read; exit code 1"
    )


def test_file_names_that_are_not_utf8_or_printable_are_escaped(tmp_path, capsys):
    folder = tmp_path / "é 日本"
    found = (b"/\xff\xfe.jpg", "/日本.jpg".encode(), b"/two\nlines\x1b[2J.jpg")
    strange = [os.fsencode(folder / "a") + name for name in found]
    (folder / "a").mkdir(parents=True)
    for name in strange:
        Path(os.fsdecode(name)).write_bytes(JPEG[:300])
    code, report = json_report(capsys, folder)
    assert code == 1 and sorted(os.fsencode(entry["path"]) for entry in report["broken"]) == sorted(strange)
    _, text = text_report(capsys, folder)
    assert "\x1b" not in text
    assert all(name in text for name in (r"two\nlines\x1b[2J.jpg", "日本.jpg", r"\udcff\udcfe.jpg"))


def test_file_names_are_escaped_on_an_ascii_terminal(good_folder, monkeypatch):
    fill(good_folder / "a", 日本=JPEG[:300])
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["check", str(good_folder)]) == 1
    out.seek(0)
    assert r"\u65e5\u672c.jpg" in out.read()


def test_decompression_bombs_are_counted_and_refused_ones_are_broken(good_folder, monkeypatch, capsys):
    fill(
        good_folder / "a", large=saved("PNG", Image.new("L", (100, 80))), huge=saved("PNG", Image.new("L", (200, 100)))
    )
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 6000)  # workers are forked
    code, report = json_report(capsys, good_folder)
    assert code == 1 and report["counts"]["bombs"] == 2 and report["warnings"] == []
    assert with_names(report["bombs"], "refused") == [
        ("huge.png", True),
        ("large.png", False),
    ]
    assert [entry["error"] for entry in report["broken"]] == ["DecompressionBombError"]
    assert "could be decompression bomb" in report["bombs"][0]["reason"]


def test_warnings_are_counted_by_text_and_not_printed(good_folder, capfd):
    clear = Image.new("P", (20, 20))
    clear.putpalette(list(range(256)) * 3)
    for name in ("clear", "glass"):
        fill(good_folder / "b", **{name: saved("PNG", clear, transparency=bytes(200))})
    for tag in (271, 272):
        exif = Image.Exif()
        exif[tag] = "x" * 300  # truncated below
        fill(good_folder / "a", **{f"exif_{tag}": saved("JPEG", exif=exif.tobytes()[:60])})
    assert cli.main(["check", str(good_folder), "--json", "--workers", "2"]) == 0
    out, err = capfd.readouterr()
    complaints = {entry["text"]: entry["images"] for entry in json.loads(out)["warnings"]}
    assert "Warning" not in err and all(count == 2 for count in complaints.values()), complaints
    assert any(text.startswith("Palette images with Transparency") for text in complaints)
    last = "kipping tag N", "Truncated File Read"  # of Pillow 13, and of earlier versions
    assert any(text.endswith(last) for text in complaints)


# --- archives ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=ARCHIVES)
def archive(request, good_folder, tmp_path) -> Path:
    """An archive of six images; the second is damaged."""
    if request.param == "lmdb" and not find_spec("lmdb"):
        pytest.skip("needs lmdb")
    (good_folder / "a" / "other.jpg").write_bytes(JPEG[: len(JPEG) // 2])
    pack(good_folder, tmp_path / f"all.{request.param}")
    return tmp_path / f"all.{request.param}"


def test_a_damaged_image_in_an_archive_is_located_by_byte_and_index(archive, capsys):
    code, report = json_report(capsys, archive)
    assert code == 1 and report["kind"] == ARCHIVES[archive.suffix[1:]] and report["error"] is None
    assert report["counts"]["images"] == report["counts"]["files"] == 6 and report["counts"]["dali"] == 5
    (entry,) = report["broken"]
    inside = archive / "data.mdb" if archive.is_dir() else archive
    assert (entry["path"], entry["index"], entry["error"]) == (str(inside), 1, "OSError")
    assert inside.read_bytes()[entry["byte"] :].startswith(JPEG[: len(JPEG) // 2])
    assert (
        f"{inside}, byte {entry['byte']}, index 1  OSError: image file is truncated" in text_report(capsys, archive)[1]
    )


def test_archives_are_found_by_pattern_braces_list_and_content(archive, tmp_path, capsys):
    if archive.is_dir():
        archive = archive / "data.mdb"
    for number in (1, 2):
        shutil.copy(archive, tmp_path / f"part-0{number}")
    for names in (["part-*"], ["part-0{1..2}"], ["part-01", "part-02"]):
        code, report = json_report(capsys, *(tmp_path / name for name in names))
        assert code == 1 and report["counts"]["images"] == 12
        assert with_names(report["broken"], "index") == [("part-01", 1), ("part-02", 7)]


def test_a_truncated_archive_is_reported_as_not_openable(archive, capsys):
    inside = archive / "data.mdb" if archive.is_dir() else archive
    inside.write_bytes(inside.read_bytes()[:-3000])
    code, report = json_report(capsys, archive)
    assert code == 1 and str(inside) in report["error"] and report["counts"]["images"] == 0
    assert f"{archive} cannot be opened: " in text_report(capsys, archive)[1].splitlines()[-1]
    pattern = f"{archive.parent}/al[l]{archive.suffix}"
    code, report = json_report(capsys, pattern)
    assert code == 1 and report["kind"] == ARCHIVES[archive.suffix[1:]] and report["path"] == pattern


def test_options_are_passed_to_the_archive_class(good_folder, tmp_path, capsys):
    pack(good_folder, tmp_path / "all.tfrecord")
    with pytest.raises(SystemExit) as stop:
        cli.main(["check", str(tmp_path / "all.tfrecord"), "--option", "image_key=jpg"])
    assert stop.value.code == 2 and "jpg" in capsys.readouterr().err
    assert json_report(capsys, tmp_path / "all.tfrecord", "--option", "image_key=image/encoded")[0] == 0


@pytest.fixture
def table(good_folder):
    """A table of a folder's images: one listed twice, one without an extension, one damaged, and one missing."""
    shutil.copy(next(good_folder.rglob("*.jpg")), good_folder / "plain")
    (good_folder / "cut.jpg").write_bytes(JPEG[: len(JPEG) // 2])
    files = [str(path.relative_to(good_folder)) for path in sorted(good_folder.rglob("*.*")) if path.is_file()]
    rows = [f"{file},{len(file) % 2}" for file in [*files, files[0], "plain", "gone.jpg"]]
    (good_folder / "train.csv").write_text("\n".join(["file,label", *rows]) + "\n")
    return good_folder / "train.csv"


def test_check_of_a_table_reports_damaged_and_missing_files(table, capsys):
    code, report = json_report(capsys, table, "--option", f"root={table.parent}", "--option", "target=label")
    rows = len(table.read_text().splitlines()) - 1
    assert code == 1 and report["kind"] == "DALIImageTable" and report["path"] == str(table)
    assert report["counts"]["images"] == report["counts"]["files"] == rows and report["counts"]["broken"] == 2
    assert with_names(report["broken"], "error") == [("cut.jpg", "OSError"), ("gone.jpg", "FileNotFoundError")]
    assert "OSError: image file is truncated" in text_report(capsys, table, "--option", f"root={table.parent}")[1]


@pytest.mark.parametrize(
    "options, words",
    [
        (["image=path"], "no column 'path'"),
        (["target=kind"], "no column 'kind'"),
        (["labels=0"], "labels"),
        ([], "--option image=NAME names the column of files"),
    ],
)
def test_a_table_without_the_named_column_is_refused(table, options, words, capsys):
    table.write_text(table.read_text().replace("file,", "files,", int(not options)))
    for command in (["check"], ["bench"]):
        with pytest.raises(SystemExit) as stop:
            cli.main([*command, str(table), *(word for option in options for word in ("--option", option))])
        assert words in (capsys.readouterr().err + str(stop.value))


@pytest.mark.parametrize("command", ["check", "bench"])
def test_a_table_with_missing_files_suggests_the_root_option(good_folder, tmp_path, capsys, command):
    names = [str(path.relative_to(good_folder)) for path in good_folder.glob("*/*")]
    (tmp_path / "train.csv").write_text("\n".join(["file", *names]) + "\n")
    with pytest.raises(SystemExit) as stop:
        cli.main([command, str(tmp_path / "train.csv")])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and f"5 of 5 files are missing (they are in root={str(good_folder)!r})" in err
    assert err.endswith("; --option root=FOLDER gives their location\n") and err.count("\n") == 1
    assert cli.main(["check", str(tmp_path / "train.csv"), "--option", f"root={good_folder}"]) == 0


def test_two_tables_are_refused(table, capsys):
    with pytest.raises(SystemExit):
        cli.main(["check", str(table), str(table)])
    assert "2 tables given, expected one" in capsys.readouterr().err


# --- text report ---------------------------------------------------------------------------------------------------


def test_text_report_lists_sizes_formats_and_problems(good_folder, capsys):
    fill(good_folder / "a", bad=JPEG[: len(JPEG) // 2])
    fill(good_folder / "b", deep=sixteen_bits())
    (good_folder / "a" / "notes.txt").write_text("hello")
    (good_folder / "empty").mkdir()
    code, text = text_report(capsys, good_folder)
    lines = text.splitlines()
    assert code == 1 and lines[-1] == "1 of 7 images is broken; exit code 1"
    assert lines[0].startswith(f"{good_folder}: 7 images, 0.")
    assert lines[2:4] == ["size    min  median    max", "height   50      60     60"]
    assert lines[7:9] == ["format  mode  images  DALI  Pillow  broken", "JPEG    RGB        5     4       0       1"]
    assert lines[lines.index("Broken (1):") + 1].startswith(
        f"  {good_folder}/a/bad.jpg  OSError: image file is truncated"
    )
    assert "Not listed by ImageFolder, because of their extension (1):" in lines
    assert f"  {good_folder}/a/notes.txt  text" in lines
    assert lines[lines.index("Folders (1):") + 1] == f"  {good_folder}/empty  contains no images"
    assert f"  {good_folder}/b/deep.png  PNG I;16" in lines
    assert "DALI decodes 5 of 7 images (71.4%)." in lines
    assert 'on_error="replace"' in text and 'on_error="skip"' in text


def test_text_report_of_a_good_folder_has_no_problems(good_folder, capsys):
    code, text = text_report(capsys, good_folder)
    assert (code, text.splitlines()[-1]) == (0, "All 5 images can be decoded; exit code 0")
    assert "on_error" not in text and "Broken" not in text


@pytest.mark.parametrize("share, shown", [(1, "100%"), (0.99999, "99.9%"), (0.5, "50.0%")])
def test_dali_share_is_shown_as_100_percent_only_if_complete(good_folder, capsys, share, shown):
    report = json_report(capsys, good_folder)[1] | {"dali_share": share}
    assert f"DALI decodes 5 of 5 images ({shown})." in text_of(report, 5, 0)


@pytest.mark.parametrize("limit, shown", [("0", 8), ("3", 3), ("8", 8), ("20", 8)])
def test_limit_applies_to_each_list_of_the_report(tmp_path, capsys, limit, shown):
    fill(tmp_path / "a", **{f"bad{number}": JPEG[:300] for number in range(8)}, good=JPEG)
    for number in range(8):
        (tmp_path / "a" / f"{number}.txt").write_text("x")
        # damaged, and listed first among the files that are not images
        (tmp_path / "a" / f"{number}.png").write_text("x")
    code, text = text_report(capsys, tmp_path, "--limit", limit)
    assert code == 1 and text.count(".txt  text") == shown
    assert ("and 5 more: --limit 0 lists all" in text) == (shown == 3)
    assert text.splitlines()[-1] == "16 of 17 images are broken; exit code 1"
    broken = 16 if shown == 8 and limit in "0 20" else int(limit)
    assert text.count("OSError") + text.count("UnidentifiedImageError") == broken
    assert len(json_report(capsys, tmp_path, "--limit", limit)[1]["broken"]) == 16


@pytest.mark.parametrize(
    "options", [["--limit", "-1"], ["--limit", "x"], ["--workers", "0"], ["--option", "x"], ["--nonsense"]]
)
def test_check_with_wrong_options_exits_with_2(good_folder, options, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["check", str(good_folder), *options])
    assert stop.value.code == 2 and re.search(r"^(check: |.* error: )", capsys.readouterr().err, re.M)


@pytest.mark.parametrize(
    "argv", [["nowhere"], ["no*.tar"], [], ["good_folder/a/one.jpg"], ["good_folder", "good_folder"]]
)
def test_check_of_a_missing_or_wrong_path_exits_with_2(good_folder, monkeypatch, capsys, argv):
    monkeypatch.chdir(good_folder.parent)
    with pytest.raises(SystemExit) as stop:
        cli.main(["check", *argv])
    text_report = capsys.readouterr()
    assert stop.value.code == 2 and text_report.out == "" and "Traceback" not in text_report.err
    assert text_report.err.startswith("check: ") == bool(argv)
    assert not argv or argv[0] in text_report.err


# --- ends and interrupts -------------------------------------------------------------------------------------------


def replace_decode(monkeypatch, function) -> None:
    """Call ``function(path)`` before a file is decoded, in the forked workers."""
    monkeypatch.setattr(check_files, "decode", lambda path: function(path) or decode(path))


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_crashing_decoder_marks_only_its_file_as_broken(tmp_path, monkeypatch, capsys, number):
    fill(tmp_path / "a", **{f"{i:02d}": JPEG for i in range(40)}, **{"07x": JPEG, "25x": JPEG, "26x": JPEG})

    def crash(path):
        if path.endswith("x.jpg"):
            faulthandler.disable()  # pytest's handler would print
            os.kill(os.getpid(), number)

    replace_decode(monkeypatch, crash)
    code, report = json_report(capsys, tmp_path)
    assert code == 1 and report["counts"]["images"] == 43 and report["counts"]["dali"] == 40
    assert with_names(report["broken"], "error", "reason") == [
        (f"{name}.jpg", number.name, "crashes the decoder") for name in ("07x", "25x", "26x")
    ]
    assert not multiprocessing.active_children()


def test_a_file_is_checked_again_after_its_worker_is_killed(tmp_path, monkeypatch, capsys):
    """The out-of-memory killer may end a worker because of another process."""
    fill(tmp_path / "a", **{f"{i:02d}": JPEG for i in range(20)})

    def killed_once(path):
        if path.endswith("11.jpg") and not (tmp_path / "once").exists():
            (tmp_path / "once").write_text("")
            os.kill(os.getpid(), signal.SIGKILL)

    replace_decode(monkeypatch, killed_once)
    code, report = json_report(capsys, tmp_path / "a")
    assert code == 0 and report["counts"]["dali"] == 20 and (tmp_path / "once").exists()


def test_process_map_returns_results_in_order():
    def slow(item: int) -> int:
        time.sleep(0.003 * (item % 7 == 0))
        return -item

    assert list(check_files.process_map(slow, range(300), 3)) == [(item, -item) for item in range(300)]


def test_process_map_reads_few_items_ahead():
    asked = 0

    def items():
        nonlocal asked
        for asked in range(10_000):  # noqa: UP028  (the test reads it)
            yield asked

    for seen, _ in enumerate(check_files.process_map(abs, items(), 2)):
        assert asked - seen <= (check_files._AHEAD * 2 + 1) * check_files._CHUNK
    assert seen == 9_999


def processes_of(group: int) -> list[str]:
    """Return the processes of a process group, without zombies."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(folder.name)
    return found


@pytest.fixture
def slow_check(tmp_path, monkeypatch):
    """A check that does not end, in a separate process group: 99 good images and a damaged one.

    One image after the first half is decoded repeatedly until the parent process ends.
    """
    files = {f"image{number:02d}": JPEG for number in range(99)}
    fill(tmp_path / "data", bad=JPEG[: len(JPEG) // 2], **files)
    started = []

    def decode_repeatedly(path) -> None:
        parent = os.getppid()
        while path.endswith("image50.jpg") and os.getppid() == parent:
            decode(path)

    replace_decode(monkeypatch, decode_repeatedly)
    # redraw the bar at every update; a skipped update would not be repeated
    monkeypatch.setattr("dali_compat.cli.check.tqdm", functools.partial(tqdm, mininterval=0))

    def act(options) -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tqdm.set_lock(threading.RLock())  # tqdm's lock is shared by processes, and a killed process does not release it
        sys.stdout, sys.stderr = (open(tmp_path / name, "w", buffering=1) for name in ("out", "err"))
        sys.stderr.isatty = lambda: True  # otherwise tqdm shows no bar
        try:
            code = cli.main(["check", str(tmp_path / "data"), "--workers", "2", *options])
        except BaseException:
            traceback.print_exc()
            raise
        os._exit(code)

    def start(*options) -> multiprocessing.Process:
        """Fork the process, which saves seconds of imports."""
        started.append(multiprocessing.get_context("fork").Process(target=act, args=(options,)))
        started[0].start()
        while not (tmp_path / "err").exists() or "1 broken" not in (tmp_path / "err").read_text():
            assert started[0].is_alive(), (tmp_path / "err").read_text()
            time.sleep(0.02)
        return started[0]

    yield start
    for process in started:
        for number in processes_of(process.pid):
            os.kill(int(number), signal.SIGKILL)
        process.join()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_ctrl_c_prints_a_partial_report_and_exits_with_130(slow_check, tmp_path, options):
    process = slow_check(*options)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.join(100)
    assert process.exitcode == 130
    out, err = ((tmp_path / name).read_text() for name in ("out", "err"))
    assert "Traceback" not in out + err and not processes_of(process.pid)
    if options:
        report = json.loads(out)
        assert not report["complete"] and report["exit_code"] == 130 and names(report["broken"]) == ["bad.jpg"]
        assert 0 < report["counts"]["files"] < 100
    else:
        assert " of 100 files: 1 broken so far; exit code 130" in out.splitlines()[-1] and "bad.jpg" in out


def test_workers_end_when_their_parent_is_killed(slow_check):
    process = slow_check()
    assert len(processes_of(process.pid)) == 3
    process.kill()
    process.join()
    deadline = time.monotonic() + 60
    while processes_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(process.pid)
