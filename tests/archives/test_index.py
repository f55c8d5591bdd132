"""The cached index of an archive: reuse, rebuilding, storage location, and concurrent use by several processes."""

import fcntl
import multiprocessing
import os
import shutil
import sys
import warnings
from collections import defaultdict

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from archives.conftest import inside, opened
from dali_compat import DALIRecordIO, DALITFRecord, ImageReadError
from dali_compat.archives import index, recordio
from dali_compat.archives.folder_index import cached_samples
from dali_compat.data.verdicts import Verdicts
from dali_compat.runtime import saved


@pytest.fixture
def scans(monkeypatch):
    """Return the list of paths that are scanned during the test."""
    seen = []
    build = index.Entry.build

    def spy(entry, scan, progress):
        seen.append(os.path.basename(entry.path))
        return build(entry, scan, progress)

    monkeypatch.setattr(index.Entry, "build", spy)
    return seen


@pytest.fixture
def rec(packed, tmp_path):
    """Return a copy of the .rec file in a separate folder, without an index."""
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(packed / "all.rec", folder / "all.rec")
    return folder / "all.rec"


def caches(folder) -> list[str]:
    return sorted(path.name for path in folder.rglob("*dali_compat-index.npz"))


def test_a_saved_index_is_reused(archive_copy, scans):
    first = opened(archive_copy)
    again = opened(archive_copy)
    assert scans == [inside(archive_copy).name]
    assert again.targets == first.targets
    assert [a.tobytes() for a in again.read(range(12))] == [a.tobytes() for a in first.read(range(12))]
    [name] = caches(inside(archive_copy).parent)
    assert name.startswith(f".{inside(archive_copy).name}.")


@pytest.mark.parametrize("change", ["longer", "touched", "same size and time"])
def test_a_changed_file_is_scanned_again(rec, scans, change):
    before = DALIRecordIO(rec)
    stat = rec.stat()
    data = bytearray(rec.read_bytes())
    data[12:16] = np.float32(2).tobytes()  # label of the first record
    if change == "longer":
        data += recordio.encode(12, 1, b"another")
    if change != "touched":
        rec.write_bytes(data)
    os.utime(rec, ns=(1, stat.st_mtime_ns + (change == "touched")))
    after = DALIRecordIO(rec)
    assert len(scans) == 2
    assert len(after) == 12 + (change == "longer")
    assert after.targets[0] == (0 if change == "touched" else 2) and before.targets[0] == 0
    assert len(after.read(range(len(after)))) == len(after)


def test_a_change_of_the_last_record_is_noticed(rec, scans):
    """Only the last record changes, and the modification time stays the same."""
    before = b"".join(recordio.encode(number, 1, bytes(9000)) for number in range(5))
    for label in (2, 3):
        rec.write_bytes(before + recordio.encode(5, label, b"image"))
        os.utime(rec, ns=(1, 1))
        assert DALIRecordIO(rec).targets == [1] * 5 + [label]
    assert len(scans) == 2


def test_each_set_of_options_has_a_separate_index(packed, tmp_path, scans):
    path = tmp_path / "all.tfrecord"
    shutil.copy(packed / "all.tfrecord", path)
    assert DALITFRecord(path).targets == DALITFRecord(path).targets
    assert DALITFRecord(path, image_key="image/filename").copied(0) == b"class_a/00.jpg"
    assert len(scans) == len(caches(tmp_path)) == 2


@pytest.mark.parametrize("damage", [b"", b"PK\3\4 nothing", None])
def test_a_damaged_index_is_rebuilt(rec, scans, damage):
    DALIRecordIO(rec)
    [name] = caches(rec.parent)
    path = rec.parent / name
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    assert len(DALIRecordIO(rec)) == 12 and len(scans) == 2
    assert len(DALIRecordIO(rec)) == 12 and len(scans) == 2


def test_an_index_with_wrong_arrays_is_rebuilt(rec, scans):
    DALIRecordIO(rec)
    [name] = caches(rec.parent)
    meta, arrays = saved.load(rec.parent / name)
    for wrong in ({**arrays, "columns": arrays["columns"][:2]}, {**arrays, "gaps": arrays["gaps"].astype(np.int32)}):
        saved.save(rec.parent / name, meta, wrong)
        assert len(DALIRecordIO(rec).read([11])) == 1
    saved.save(rec.parent / name, meta, {"columns": arrays["columns"]})
    assert len(DALIRecordIO(rec)) == 12 and len(scans) == 4


@pytest.fixture
def read_only_folder(rec, monkeypatch):
    """Make the folder of the archive read-only. Saving is patched because tests may run as root."""
    save = saved.save

    def refuse(path, *args):
        if path.parent == rec.parent:
            raise PermissionError(13, "Permission denied", str(path))
        return save(path, *args)

    monkeypatch.setattr(saved, "save", refuse)


def test_index_of_a_read_only_folder_is_saved_in_the_cache_folder(rec, scans, read_only_folder, cache_home):
    assert len(DALIRecordIO(rec)) == len(DALIRecordIO(rec)) == 12
    assert scans == ["all.rec"] and caches(rec.parent) == []
    assert len(list((cache_home / "index").glob("*.npz"))) == 1


def test_an_index_that_cannot_be_saved_causes_a_warning(rec, scans, read_only_folder, cache_home):
    cache_home.parent.mkdir()
    cache_home.touch()  # a file in place of the folder
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"cannot save the index of .*all\.rec"):
            assert len(DALIRecordIO(rec)) == 12
    assert len(scans) == 2


def test_an_interrupted_save_leaves_no_partial_index(rec, monkeypatch):
    def stop(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", stop)
    with pytest.raises(KeyboardInterrupt):
        DALIRecordIO(rec)
    assert os.listdir(rec.parent) == ["all.rec"]


def test_a_file_that_changes_during_indexing_raises(rec, monkeypatch):
    scan = DALIRecordIO._scan

    def and_change(self, path, progress):
        rows = scan(self, path, progress)
        os.utime(path, (1, 1))
        return rows

    monkeypatch.setattr(DALIRecordIO, "_scan", and_change)
    with pytest.raises(ImageReadError, match=r"all\.rec changed while it was being indexed"):
        DALIRecordIO(rec)
    assert caches(rec.parent) == []


def test_processes_that_start_together_scan_once(rec, tmp_path):
    """With eight ranks of a training job, one builds the index and the others wait and load it."""
    context = multiprocessing.get_context("fork")
    gate, log = context.Barrier(8), tmp_path / "scans"

    def rank() -> None:
        scan = DALIRecordIO._scan

        def logged_scan(self, path, progress):
            with open(log, "a") as file:
                file.write("x")
            return scan(self, path, progress)

        DALIRecordIO._scan = logged_scan
        gate.wait(100)
        dataset = DALIRecordIO(rec)
        os._exit(0 if len(dataset) == 12 and dataset.targets == sorted(dataset.targets) else 1)

    ranks = [context.Process(target=rank) for _ in range(8)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(100)
    assert [process.exitcode for process in ranks] == [0] * 8
    assert log.read_text() == "x"
    assert len(caches(rec.parent)) == 1


def test_index_is_built_without_file_locks(rec, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert len(DALIRecordIO(rec)) == 12 and len(caches(rec.parent)) == 1


@pytest.mark.parametrize("what", ["archive", "folder", "verdicts"])
def test_a_lock_held_too_long_is_skipped_with_one_warning(rec, packed, tmp_path, monkeypatch, cache_home, what):
    """The process may be stopped, or run on a server that is gone. Loading continues after a timeout and warns once."""
    monkeypatch.setattr(saved, "_patience", defaultdict(lambda: 0.05))

    def use():
        if what == "archive":
            assert len(DALIRecordIO(rec)) == 12
            for cache in caches(rec.parent):
                os.unlink(os.path.join(rec.parent, cache))
        elif what == "folder":
            place = tmp_path / f"lists{len(list(tmp_path.iterdir()))}"
            assert cached_samples(packed / "images", cache=place)[2] == ImageFolder(packed / "images").samples
        else:
            Verdicts("engine").share(tmp_path / "list.npz", "samples", 3)

    use()
    held = [open(lock, "w") for lock in (cache_home / "locks").iterdir()]
    assert held
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX)
    with pytest.warns(UserWarning, match=r"has held the lock .*dali_compat/locks/.* for 0\.05 s; continuing"):
        use()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use()
    for file in held:
        file.close()


def test_only_the_changed_file_of_many_is_scanned_again(rec, scans, tmp_path):
    paths = []
    for i in range(4):
        paths.append(rec.parent / f"part-{i}.rec")
        shutil.copy(rec, paths[-1])
    assert len(DALIRecordIO(str(rec.parent / "part-*.rec"))) == 48
    os.utime(paths[2], (1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(DALIRecordIO(paths)) == 48
    assert sorted(scans[:4]) == [path.name for path in paths] and scans[4:] == ["part-2.rec"]


def test_a_damaged_file_among_many_is_reported(rec):
    for i in range(4):
        shutil.copy(rec, rec.parent / f"part-{i}.rec")
    (rec.parent / "part-2.rec").write_bytes(b"nonsense" * 100)
    with pytest.raises(ImageReadError, match=r"part-2\.rec, record 0 at byte 0: it begins with"):
        DALIRecordIO(str(rec.parent / "part-*.rec"))


def test_progress_is_shown_on_a_terminal_if_indexing_is_slow(rec, capsys, monkeypatch):
    DALIRecordIO(rec)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(index, "_SLOW", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    os.utime(rec, (1, 1))
    DALIRecordIO(rec)
    assert "indexing all.rec" in capsys.readouterr().err


# ---- indexes that another user created or changed


def _saved_index(rec):
    DALIRecordIO(rec)
    [name] = caches(rec.parent)
    return rec.parent / name


def test_index_is_readable_by_all_users(rec):
    before = os.umask(0)
    try:
        assert _saved_index(rec).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_an_index_that_others_may_write_is_rebuilt(rec, scans, mode):
    _saved_index(rec).chmod(mode)
    assert len(DALIRecordIO(rec)) == len(DALIRecordIO(rec)) == 12 and len(scans) == 2


@pytest.mark.parametrize("owner, trusted", [("the archive's", True), ("somebody else's", False)])
def test_an_index_is_trusted_only_from_this_user_or_the_archives_owner(rec, scans, monkeypatch, owner, trusted):
    _saved_index(rec)
    mine, stat = os.geteuid(), os.stat
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    if not trusted:
        other = list(stat(rec)[:10])
        other[4] = mine + 2
        monkeypatch.setattr(
            index.os, "stat", lambda path, **kw: os.stat_result(other) if str(path) == str(rec) else stat(path, **kw)
        )
    assert len(DALIRecordIO(rec)) == 12 and len(scans) == (1 if trusted else 2)


@pytest.mark.parametrize(
    "column, row, value",
    [
        (0, 0, -1),
        (0, 3, 1 << 40),
        (1, 0, -1),
        (1, 11, 1 << 40),
        (1, 5, 2**63 - 1),
    ],
)
def test_an_index_with_rows_outside_the_file_is_rebuilt(rec, scans, column, row, value):
    path = _saved_index(rec)
    meta, arrays = saved.load(path)
    arrays["columns"][column, row] = value
    saved.save(path, meta, arrays)
    images = DALIRecordIO(rec).read(range(12))
    assert all(image[0] == 0xFF or image[0] == 0x89 for image in images) and len(images) == 12 and len(scans) == 2


@pytest.mark.parametrize("gap", [(-1, 0), (12, 0), (0, -1), (0, 1 << 40), (11, 0)])
def test_an_index_with_gaps_outside_the_rows_is_rebuilt(rec, scans, gap):
    path = _saved_index(rec)
    meta, arrays = saved.load(path)
    saved.save(path, meta, arrays | {"gaps": np.array([gap], np.int64)})
    assert len(DALIRecordIO(rec).read(range(12))) == 12 and len(scans) == 2
