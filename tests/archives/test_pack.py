"""The pack command: its output, its refusals, and cleanup after interrupts."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from helpers import make_folder
from torchvision.datasets import ImageFolder

from archives.conftest import KINDS, inside, opened
from dali_compat import cli
from dali_compat.archives import pack as packing
from dali_compat.archives.pack import CannotPack, pack


@pytest.fixture
def source(packed, tmp_path) -> Path:
    """Return a copy of the folder, which a test may change."""
    shutil.copytree(packed / "images", tmp_path / "images")
    return tmp_path / "images"


def content(path: Path) -> object:
    """Return the content of an archive. For LMDB, pages depend on transactions, so keys and values are compared."""
    if path.suffix != ".lmdb":
        return path.read_bytes()
    import lmdb

    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        return list(transaction.cursor())


def stop_after(monkeypatch, folder: Path, count: int, error: BaseException) -> None:
    """Make reading the image after the first ``count`` raise an error."""
    read, (last, _) = packing._bytes, ImageFolder(folder).samples[count]

    def stopping(path):
        if path == last:
            raise error
        return read(path)

    monkeypatch.setattr(packing, "_bytes", stopping)


@pytest.mark.parametrize("count", [0, 7])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk")])
def test_stopped_packing_leaves_no_files_and_can_be_repeated(packed, kind, tmp_path, monkeypatch, count, error):
    out = tmp_path / f"all.{kind}"
    with monkeypatch.context() as patch:
        stop_after(patch, packed / "images", count, error)
        with pytest.raises(type(error)):
            pack(packed / "images", out)
    assert os.listdir(tmp_path) == []
    assert pack(packed / "images", out) == 12
    assert content(out) == content(packed / f"all.{kind}")
    names = [out.name, f"{out.name}.classes.txt"] + (["all.idx"] if kind == "rec" else [])
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_lmdb_is_written_in_several_transactions(tmp_path, monkeypatch):
    pytest.importorskip("lmdb")
    monkeypatch.setattr(packing, "_AT_ONCE", 2)
    make_folder(tmp_path / "images", classes=1, per_class=5, special=False)
    assert pack(tmp_path / "images", tmp_path / "all.lmdb") == 5
    assert len(opened(tmp_path / "all.lmdb")) == 5


def test_pack_does_not_overwrite_files(packed, kind, tmp_path):
    out = tmp_path / f"all.{kind}"
    names = [out.name, f"{out.name}.classes.txt"] + (["all.idx"] if kind == "rec" else [])
    for name in names:
        (tmp_path / name).write_text("precious")
        with pytest.raises(CannotPack, match=f"{name} exists; remove it"):
            pack(packed / "images", out)
        assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "precious"
        (tmp_path / name).unlink()
    out.symlink_to("nowhere")
    with pytest.raises(CannotPack, match="exists"):
        pack(packed / "images", out)


def test_a_file_that_changes_during_packing_raises(source, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: b"short")
        with pytest.raises(OSError, match=r"class_a/00\.jpg has changed while the folder was being packed"):
            pack(source, tmp_path / "all.rec")


def test_pack_is_refused_while_another_process_packs(packed, tmp_path):
    (tmp_path / "all.rec.partial").mkdir()
    with pytest.raises(CannotPack, match=r"exists, so another process may be packing; if not, remove this folder"):
        pack(packed / "images", tmp_path / "all.rec")
    (tmp_path / "all.rec.partial").rmdir()
    assert pack(packed / "images", tmp_path / "all.rec") == 12


# --- the command -----------------------------------------------------------------------------------------------------


def test_pack_command_writes_the_archive_and_its_index(packed, kind, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    out = tmp_path / f"all.{kind}"
    assert cli.main(["pack", str(packed / "images"), str(out)]) == 0
    said = capsys.readouterr()
    assert (
        f"{out}: 12 images of 3 classes, 0." in said.out
        and f"dali_compat.{KINDS[kind]}('{out}', transform)" in said.out
    )
    assert "packing: 100%" in said.err and "12/12" in said.err
    assert list(inside(out).parent.glob(".*.dali_compat-index.npz"))  # so that training starts without indexing
    assert content(out) == content(packed / f"all.{kind}")
    assert cli.main(["pack", str(packed / "images"), str(out)]) == 1
    assert capsys.readouterr().err == f"pack: {out} exists; remove it, or write to another path\n"


def test_pack_command_after_an_error_leaves_no_files(packed, tmp_path, capsys, monkeypatch):
    out = tmp_path / "all.rec"
    for error, code, told in [
        (KeyboardInterrupt(), 130, "pack: interrupted"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
    ]:
        with monkeypatch.context() as patch:
            stop_after(patch, packed / "images", 9, error)
            assert cli.main(["pack", str(packed / "images"), str(out)]) == code
        assert told in capsys.readouterr().err and os.listdir(tmp_path) == []


@pytest.mark.parametrize("folder, out, reason", [
    ("images", "all.zip", "all.zip must end in one of .rec, .tfrecord, .lmdb, .tar"),
    ("images", "none/all.rec", "there is no folder"),
    ("images", "/proc/all.rec", "cannot write to /proc: No such file or directory"),
])  # fmt: skip
def test_pack_command_with_wrong_paths_names_the_reason(packed, tmp_path, capsys, folder, out, reason):
    assert cli.main(["pack", str(packed / folder), str(tmp_path / out)]) == 1
    assert reason in capsys.readouterr().err and os.listdir(tmp_path) == []


def test_pack_command_fails_if_the_archive_has_another_number_of_images(packed, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(packing, "pack", lambda *args: pack(*args) + 1)
    out = tmp_path / "all.rec"
    assert cli.main(["pack", str(packed / "images"), str(out)]) == 1
    assert capsys.readouterr().err.endswith(f"pack: {out} has 12 images, but 13 were packed\n")


def test_pack_without_the_lmdb_package_names_the_install_command(packed, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert cli.main(["pack", str(packed / "images"), str(tmp_path / "all.lmdb")]) == 1
    assert "pip install lmdb" in capsys.readouterr().err


def test_long_names_are_truncated_in_lmdb_keys(tmp_path):
    """LMDB's keys have at most 511 bytes; the number at the start keeps them unique."""
    lmdb = pytest.importorskip("lmdb")
    folder = tmp_path / "images" / "class" / "/".join("n" * 200 for _ in range(3))
    make_folder(tmp_path / "some", classes=1, per_class=3, special=False)
    shutil.copytree(tmp_path / "some" / "class_a", folder)
    pack(tmp_path / "images", tmp_path / "all.lmdb")
    with lmdb.open(str(tmp_path / "all.lmdb"), readonly=True, lock=False) as env, env.begin() as transaction:
        keys = [key for key, _ in transaction.cursor()]
    assert keys == [(b"%08d_class/" % number + b"/".join([b"n" * 200] * 3))[:511] for number in range(3)]
    assert [a.tobytes() for a in opened(tmp_path / "all.lmdb").read(range(3))] == [
        path.read_bytes() for path in sorted(folder.iterdir())
    ]
