"""The pack command: what it writes, what it refuses, and that an interrupted run continues."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock
from helpers import make_folder
from tqdm import tqdm

from archives.conftest import KINDS, inside, opened
from dali_compat import cli
from dali_compat.archives import pack as packing
from dali_compat.archives.pack import CannotPack, pack


@pytest.fixture
def source(packed, tmp_path) -> Path:
    """A copy of the folder that a test may change."""
    shutil.copytree(packed / "images", tmp_path / "images")
    return tmp_path / "images"


def content(path: Path) -> object:
    """LMDB's pages depend on its transactions, its keys and values do not."""
    if path.suffix != ".lmdb":
        return path.read_bytes()
    import lmdb

    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        return list(transaction.cursor())


def stop_after(monkeypatch, count: int, error: BaseException) -> None:
    """Reading the image after ``count`` raises, once."""
    read = packing._Source._sample

    def stopping(self, number):
        if number == count:
            raise error
        return read(self, number)

    monkeypatch.setattr(packing._Source, "_sample", stopping)


@pytest.mark.parametrize("count", [0, 1, 7, 11])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk")])
def test_an_interrupted_run_continues(packed, kind, tmp_path, monkeypatch, count, error):
    out, told, done = tmp_path / f"all.{kind}", [], []
    with monkeypatch.context() as patch:
        stop_after(patch, count, error)
        with pytest.raises(type(error)):
            pack(packed / "images", out)
    assert os.listdir(tmp_path) == [f"all.{kind}.partial"]
    assert pack(packed / "images", out, lambda *numbers: told.append(numbers), lambda: done.append(1)) == 12
    assert told == [(12, count)] and len(done) == 12 - count
    assert content(out) == content(packed / f"all.{kind}")
    names = [out.name, f"{out.name}.classes.txt"] + (["all.idx"] if kind == "rec" else [])
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    for name in names[1:]:
        assert (tmp_path / name).read_bytes() == (packed / name).read_bytes()
    assert opened(out).targets == opened(packed / f"all.{kind}").targets


def test_what_was_written_after_the_last_checkpoint_is_written_again(packed, kind, tmp_path, monkeypatch):
    """As after a power cut: the journal is behind the file, which ends anywhere."""
    out = tmp_path / f"all.{kind}"
    with monkeypatch.context() as patch:
        stop_after(patch, 5, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            pack(packed / "images", out)
    work = tmp_path / f"all.{kind}.partial"
    if kind != "lmdb":  # whose transactions see to it
        for path in work.iterdir():
            if path.name != "journal.json":
                path.write_bytes(path.read_bytes() + b"half a record")
    told = []
    pack(packed / "images", out, lambda *numbers: told.append(numbers))
    assert told == [(12, 5)] and content(out) == content(packed / f"all.{kind}")


def child(run) -> multiprocessing.Process:
    """A process forked from this one, which spares it seconds of imports; run() returns its exit code."""

    def act() -> None:
        tqdm.set_lock(threading.RLock())  # tqdm's own is shared by processes, and whoever is killed keeps it
        os._exit(run())

    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    return process


def test_a_killed_process(kind, tmp_path, packed, monkeypatch):
    """SIGKILL in the middle, with a checkpoint after each image."""
    out, told, done = tmp_path / f"all.{kind}", [], []
    monkeypatch.setattr(packing, "_SECONDS", 0)

    def count() -> None:
        done.append(1)
        if len(done) == 7:
            os.kill(os.getpid(), signal.SIGKILL)

    process = child(lambda: pack(packed / "images", out, done=count))
    process.join(100)
    assert process.exitcode == -signal.SIGKILL
    pack(packed / "images", out, lambda *numbers: told.append(numbers))
    assert told == [(12, 6)] and content(out) == content(packed / f"all.{kind}")


def test_nothing_is_overwritten(packed, kind, tmp_path):
    out = tmp_path / f"all.{kind}"
    names = [out.name, f"{out.name}.classes.txt"] + (["all.idx"] if kind == "rec" else [])
    for name in names:
        (tmp_path / name).write_text("precious")
        with pytest.raises(CannotPack, match=f"{name} exists, and is not overwritten"):
            pack(packed / "images", out)
        assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "precious"
        (tmp_path / name).unlink()
    out.symlink_to("nowhere")
    with pytest.raises(CannotPack, match="exists"):
        pack(packed / "images", out)


def test_the_name_comes_last(packed, kind, tmp_path, monkeypatch):
    """Stopped just before the archive gets its name, everything is there, and the next run names it."""
    out = tmp_path / f"all.{kind}"

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(packed / "images", out)
    assert not out.exists()
    told = []
    assert pack(packed / "images", out, lambda *numbers: told.append(numbers)) == 12
    assert content(out) == content(packed / f"all.{kind}")
    assert opened(out).targets == opened(packed / f"all.{kind}").targets


@pytest.mark.parametrize("change", ["a new file", "another file", "a class"])
def test_a_folder_that_changed_meanwhile(source, tmp_path, monkeypatch, change):
    out = tmp_path / "all.rec"
    with monkeypatch.context() as patch:
        stop_after(patch, 5, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            pack(source, out)
    if change == "a new file":
        shutil.copy(source / "class_a" / "00.jpg", source / "class_b" / "99.jpg")
    elif change == "another file":
        os.utime(source / "class_a" / "00.jpg", (1, 1))
    else:
        (source / "class_b").rename(source / "class_bb")
    with pytest.raises(CannotPack, match=r"all\.rec\.partial is of another folder, or this one has changed: remove it"):
        pack(source, out)
    shutil.rmtree(tmp_path / "all.rec.partial")
    assert pack(source, out) == 12 + (change == "a new file")


def test_a_file_that_changes_while_it_is_packed(source, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: b"short")
        with pytest.raises(OSError, match=r"class_a/00\.jpg has changed while the folder was packed"):
            pack(source, tmp_path / "all.rec")


def test_a_partial_file_that_lost_its_end(packed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 5, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            pack(packed / "images", tmp_path / "all.rec")
    os.truncate(tmp_path / "all.rec.partial" / "data", 100)
    with pytest.raises(OSError, match=r"shorter than its journal says: remove .*all\.rec\.partial"):
        pack(packed / "images", tmp_path / "all.rec")


def test_two_processes_at_once(packed, tmp_path):
    (tmp_path / "all.rec.partial").mkdir()
    with FileLock(tmp_path / "all.rec.partial" / "lock"), pytest.raises(CannotPack, match="another process is packing"):
        pack(packed / "images", tmp_path / "all.rec")
    assert pack(packed / "images", tmp_path / "all.rec") == 12


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(packed, kind, tmp_path, capsys):
    out = tmp_path / f"all.{kind}"
    assert cli.main(["pack", str(packed / "images"), str(out)]) == 0
    said = capsys.readouterr()
    assert (
        f"{out}: 12 images of 3 classes, 0." in said.out
        and f"dali_compat.{KINDS[kind]}('{out}', transform)" in said.out
    )
    assert "packing: 100%" in said.err and "12/12" in said.err
    assert list(inside(out).parent.glob(".*.dali_compat-index.npz"))  # training starts at once
    assert content(out) == content(packed / f"all.{kind}")
    assert cli.main(["pack", str(packed / "images"), str(out)]) == 1
    assert capsys.readouterr().err == f"pack: {out} exists, and is not overwritten\n"


def test_the_command_after_an_interrupt(packed, tmp_path, capsys, monkeypatch):
    out = tmp_path / "all.rec"
    with monkeypatch.context() as patch:
        stop_after(patch, 9, KeyboardInterrupt())
        assert cli.main(["pack", str(packed / "images"), str(out)]) == 130
    assert "interrupted; the same command continues" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        stop_after(patch, 11, OSError(28, "No space left on device"))
        assert cli.main(["pack", str(packed / "images"), str(out)]) == 1
    assert "No space left on device\nWhat is packed is kept: the same command continues." in capsys.readouterr().err
    assert cli.main(["pack", str(packed / "images"), str(out)]) == 0
    assert "11 of 12 images are packed already" in capsys.readouterr().out
    assert content(out) == content(packed / "all.rec")


@pytest.mark.parametrize("folder, out, reason", [
    ("images", "all.zip", "all.zip must end in one of .rec, .tfrecord, .lmdb, .tar"),
    ("images", "none/all.rec", "there is no folder"),
    ("images", "/proc/all.rec", "cannot write in /proc: No such file or directory"),
])  # fmt: skip
def test_the_command_says_what_is_wrong(packed, tmp_path, capsys, folder, out, reason):
    assert cli.main(["pack", str(packed / folder), str(tmp_path / out)]) == 1
    assert reason in capsys.readouterr().err and os.listdir(tmp_path) == []


def test_the_command_counts_what_it_reads_again(packed, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(packing, "pack", lambda *args: pack(*args) + 1)
    out = tmp_path / "all.rec"
    assert cli.main(["pack", str(packed / "images"), str(out)]) == 1
    assert capsys.readouterr().err.endswith(f"pack: {out} shows 12 images after 13 were packed\n")


def test_without_the_lmdb_package(packed, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert cli.main(["pack", str(packed / "images"), str(tmp_path / "all.lmdb")]) == 1
    assert "pip install lmdb" in capsys.readouterr().err


def test_interrupt_amid_a_lock(packed, tmp_path, monkeypatch, capsys):
    """threading.Semaphore.acquire(), interrupted as it leaves its condition, raises a RuntimeError.
    Another one is a bug."""
    out = tmp_path / "all.tar"
    for cause, told in ((KeyboardInterrupt, 130), (ValueError, RuntimeError)):

        def fail(self, number, cause=cause):
            try:
                raise cause
            finally:
                raise RuntimeError("release unlocked lock")

        monkeypatch.setattr(packing._Source, "_sample", fail)
        if told == 130:
            assert cli.main(["pack", str(packed / "images"), str(out)]) == told
            assert "the same command continues" in capsys.readouterr().err
        else:
            with pytest.raises(told):
                cli.main(["pack", str(packed / "images"), str(out)])


def test_interrupt_of_a_real_process(tmp_path, monkeypatch):
    """Ctrl-C while the command runs, then the same command again."""
    source, out = tmp_path / "many", tmp_path / "all.tar"
    for label in range(4):
        (source / f"c{label}").mkdir(parents=True)
        for number in range(500):
            (source / f"c{label}" / f"{number}.jpg").write_bytes(b"%d" % number * 200)
    sample, there = packing._Source._sample, tmp_path / "there"

    def waits(self, number):
        while number == 1000:
            there.touch()
            time.sleep(0.01)
            if there.with_name("over").exists():
                break
        return sample(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(packing._Source, "_sample", waits)
        process = child(lambda: cli.main(["pack", str(source), str(out)]))
    while not there.exists() and process.is_alive():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    (tmp_path / "over").touch()
    process.join(100)
    assert process.exitcode == 130
    assert (tmp_path / "all.tar.partial").is_dir() and not out.exists()
    assert cli.main(["pack", str(source), str(out)]) == 0
    dataset = opened(out)
    assert dataset.targets == [label for label in range(4) for _ in range(500)]
    names = [name for label in range(4) for name in sorted(map(str, range(500)), key=lambda name: f"{name}.jpg")]
    assert [array.tobytes() for array in dataset.read(range(2000))] == [name.encode() * 200 for name in names]


def test_long_names_in_lmdb(tmp_path):
    """LMDB's keys have at most 511 bytes; the number at a key's beginning keeps it unique."""
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
