"""The cached list of a folder, beside torchvision's own; and when it must not be believed."""

import multiprocessing
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import calls_of
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

from dali_compat import DALIImageFolder
from dali_compat.archives import folder_index
from dali_compat.archives.folder_index import cached_samples
from dali_compat.runtime import saved


def torchvisions(root, allow_empty=False):
    classes, class_to_idx = find_classes(root)
    return classes, class_to_idx, make_dataset(root, class_to_idx, IMG_EXTENSIONS, allow_empty=allow_empty)


def age(root, seconds: float = 60) -> None:
    """Make the folders look as if nobody had touched them for a while; without it no cache is trusted."""
    then = time.time() - seconds
    for path, _, _ in os.walk(root, followlinks=True):
        os.utime(path, (then, then))


def fill(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


@pytest.fixture
def root(tmp_path) -> Path:
    """Names that sort in odd ways, folders within folders, files that do not count, links."""
    root = tmp_path / "root"
    fill(root, [
        "b/2.jpg", "b/10.jpg", "b/1.JPEG", "b/notes.txt", "b/deep/er/3.png", "b/deep/4.webp", "b/deep-er/5.bmp",
        "a b/x.jpg", "a b/.hidden.jpg", "B/y.ppm", "ä/ö.tiff", "ä/new\nline.jpg", "not a class.jpg", "c/empty/.keep",
        "c/z.jpg",
    ])  # fmt: skip
    fill(tmp_path / "elsewhere", ["q.jpg", "sub/r.jpg"])
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "b" / "link").symlink_to(tmp_path / "elsewhere" / "sub")
    (root / "c" / "dead.jpg").symlink_to(tmp_path / "nothing")
    with open(os.fsencode(root) + b"/b/\xff\xfe.jpg", "w"):  # a name that is no UTF-8
        pass
    age(root)
    age(tmp_path / "elsewhere")
    return root


@pytest.fixture
def lists(monkeypatch):
    """Counts how often folders are walked."""
    seen = []
    walk = folder_index._list

    def spy(root):
        seen.append(root)
        return walk(root)

    monkeypatch.setattr(folder_index, "_list", spy)
    return seen


def test_equal_to_torchvision_in_order_and_type(root, lists):
    for _ in range(3):
        found = cached_samples(root)
        assert found == torchvisions(root)
        assert all(type(path) is str and type(target) is int for path, target in found[2])
    assert len(lists) == 1


@pytest.mark.parametrize(
    "form", [str, lambda root: f"{root}/", lambda root: os.path.relpath(root), lambda root: root / ".."]
)
def test_paths_begin_as_the_root_is_given(root, form, lists):
    given = form(root)
    if given == root / "..":
        given = root / ".." / "root"
    assert cached_samples(root) and cached_samples(given) == torchvisions(given)
    assert len(lists) == 1  # it is one folder


def test_a_home_folder(root, monkeypatch):
    monkeypatch.setenv("HOME", str(root.parent))
    assert cached_samples("~/root") == cached_samples(root)


CHANGES = {
    "a file is added": lambda root: (root / "b" / "0.jpg").touch(),
    "a file is removed": lambda root: (root / "b" / "2.jpg").unlink(),
    "a file is renamed": lambda root: (root / "b" / "2.jpg").rename(root / "b" / "3.jpg"),
    "deep down": lambda root: (root / "b" / "deep" / "er" / "7.jpg").touch(),
    "where there were no images": lambda root: (root / "c" / "empty" / "7.jpg").touch(),
    "behind a link": lambda root: (root / "link" / "sub" / "7.jpg").touch(),
    "a class is added": lambda root: fill(root, ["aa/1.jpg"]),
    "a class is removed": lambda root: shutil.rmtree(root / "B"),
    "a class is renamed": lambda root: (root / "B").rename(root / "C"),
    "a class is replaced": lambda root: ((root / "B").rename(root.parent / "old"), fill(root, ["B/k.jpg"])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(root, change, lists):
    before = cached_samples(root)
    CHANGES[change](root)
    after = cached_samples(root)
    assert after == torchvisions(root) and after != before and len(lists) == 2


def test_another_folder_of_the_same_name_and_times(root, lists):
    """As after `mv other root` or a restored backup: the inode tells."""
    cached_samples(root)
    times = {name: (root / name).stat().st_mtime_ns for name in ("", "B")}
    (root / "B").rename(root.parent / "old")
    fill(root, ["B/other.jpg"])
    for name, when in times.items():
        os.utime(root / name, ns=(when, when))
    assert cached_samples(root) == torchvisions(root) and len(lists) == 2


def test_a_change_within_the_clocks_tick_is_not_missed(tmp_path, lists):
    """A folder that changed just before it was listed may change again without a new time."""
    root = tmp_path / "root"
    fill(root, ["a/1.jpg"])
    age(root, seconds=-3600)  # however late it is listed
    for _ in range(2):
        assert len(cached_samples(root)[2]) == 1
    assert len(lists) == 2
    stat = (root / "a").stat()
    (root / "a" / "2.jpg").touch()
    os.utime(root / "a", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert len(cached_samples(root)[2]) == 2
    age(root)
    cached_samples(root), cached_samples(root)
    assert len(lists) == 4


def test_errors_are_torchvisions(tmp_path):
    def raises(root) -> None:
        with pytest.raises(FileNotFoundError) as theirs:
            torchvisions(root)
        for _ in range(2):
            with pytest.raises(FileNotFoundError) as ours:
                cached_samples(root)
            assert str(ours.value) == str(theirs.value)
            if root.exists():
                age(root)

    raises(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    raises(tmp_path / "empty")
    fill(tmp_path / "root", ["a/1.jpg", "b/1.txt", "c/2.txt"])
    raises(tmp_path / "root")
    for _ in range(2):
        found = cached_samples(tmp_path / "root", allow_empty=True)
        assert found == torchvisions(tmp_path / "root", allow_empty=True)
    fill(tmp_path / "none", ["a/1.txt"])
    assert cached_samples(tmp_path / "none", allow_empty=True) == (["a"], {"a": 0}, [])
    assert cached_samples(tmp_path / "none", allow_empty=True) == (["a"], {"a": 0}, [])


def test_a_damaged_cache_and_no_room_for_one(root, lists, cache_home):
    cached_samples(root)
    [path] = (cache_home / "folders").glob("*.npz")
    path.write_bytes(path.read_bytes()[:-200])
    assert cached_samples(root) == torchvisions(root) and len(lists) == 2
    shutil.rmtree(cache_home)
    cache_home.touch()
    with pytest.warns(UserWarning, match="cannot be saved"):
        assert cached_samples(root) == torchvisions(root)
    assert len(lists) == 3


@pytest.mark.parametrize("is_new", [False, True])
def test_ranks_walk_once(root, tmp_path, is_new):
    """Also where the folder has just been written: all have asked before one of them lists it."""
    if is_new:
        age(root, seconds=-3600)  # however late they ask
    context = multiprocessing.get_context("fork")
    gate, log, expected = context.Barrier(4), tmp_path / "walks", torchvisions(root)

    def rank() -> None:
        walk = folder_index._list

        def noted(*args):
            with open(log, "a") as file:
                file.write("x")
            return walk(*args)

        def all_at_once(name, lock=saved.lock):
            gate.wait(100)
            return lock(name)

        folder_index._list, saved.lock = noted, all_at_once
        os._exit(0 if cached_samples(root) == expected else 1)

    ranks = [context.Process(target=rank) for _ in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(100)
    assert [process.exitcode for process in ranks] == [0] * 4 and log.read_text() == "x"


def test_twenty_thousand_files(tmp_path, lists):
    """The promise is 1.28 million in less than 2 s (benchmarks/archives.py measures it): no file is looked at again."""
    root = tmp_path / "large"
    rng = np.random.default_rng(0)
    for label in range(100):
        folder = root / f"n{label:08d}"
        folder.mkdir(parents=True)
        for number in rng.permutation(10_000)[:200].tolist():
            os.close(os.open(folder / f"n{label:08d}_{number}.JPEG", os.O_CREAT))
    age(root)
    first = cached_samples(root)
    found = []
    calls = calls_of(lambda: found.append(cached_samples(root)))
    assert len(lists) == 1 and first == found[0] == torchvisions(root) and len(first[2]) == 20_000
    assert calls < 10_000, calls


def test_progress_is_shown_if_it_is_slow_and_at_a_terminal(root, capsys, monkeypatch):
    cached_samples(root)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(folder_index, "_SLOW", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fill(root, ["b/new.jpg"])
    cached_samples(root)
    assert "listing root" in capsys.readouterr().err


# ---- DALIImageFolder(index_cache=...)


@pytest.mark.parametrize("place", [True, "here", Path("here")])
def test_a_data_set_of_the_cached_list(root, place, lists, cache_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs = ImageFolder(root, len, abs, allow_empty=True)
    for _ in range(2):
        mine = DALIImageFolder(root, len, abs, allow_empty=True, index_cache=place)
        attributes = vars(theirs) | {"return_index": False}
        assert vars(mine).keys() == {*attributes, "_index_file"} and mine.imgs is mine.samples
        for name in attributes.keys() - {"transforms"}:
            assert getattr(mine, name) == attributes[name], name
        assert repr(mine) == repr(theirs).replace("ImageFolder", "DALIImageFolder")
    folder = cache_home / "folders" if place is True else tmp_path / "here"
    assert len(lists) == 1 and list(folder.glob("*.npz")) == [mine._index_file]
    fill(root, ["b/new.jpg"])
    assert (
        DALIImageFolder(root, allow_empty=True, index_cache=place).samples
        == ImageFolder(root, allow_empty=True).samples
    )


def test_a_data_set_without_a_cached_list(root, lists, cache_home):
    DALIImageFolder(root, allow_empty=True)
    assert not lists and not cache_home.exists()


def test_errors_of_the_data_set_are_torchvisions(root):
    with pytest.raises(FileNotFoundError) as theirs:
        ImageFolder(root.parent / "missing")
    with pytest.raises(FileNotFoundError) as mine:
        DALIImageFolder(root.parent / "missing", index_cache=True)
    assert str(mine.value) == str(theirs.value)


def test_lists_of_ones_own_are_not_cached(root):
    class OwnClasses(DALIImageFolder):
        def find_classes(self, directory):
            return ["b"], {"b": 0}

    for kind, options in ((OwnClasses, {}), (DALIImageFolder, {"is_valid_file": os.path.isfile})):
        with pytest.raises(ValueError, match="index_cache"):
            kind(root, index_cache=True, **options)
        assert kind(root, **options).samples


# ---- a cached list that somebody else has made, or changed


@pytest.fixture
def stored(root, lists, cache_home):
    """(path of the cached list, what it holds)."""
    cached_samples(root)
    [path] = (cache_home / "folders").glob("*.npz")
    return path, saved.load(path)[0]


def test_the_list_is_its_users_alone(root, cache_home):
    before = os.umask(0)
    try:
        cached_samples(root)
    finally:
        os.umask(before)
    [path] = (cache_home / "folders").glob("*.npz")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o664])
def test_a_list_that_others_may_write_is_made_anew(root, stored, lists, mode):
    stored[0].chmod(mode)
    assert cached_samples(root) == torchvisions(root) and len(lists) == 2
    assert stored[0].stat().st_mode & 0o777 == 0o600
    assert cached_samples(root) == torchvisions(root) and len(lists) == 2


def test_a_list_of_another_user_is_made_anew(root, stored, lists, monkeypatch):
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert cached_samples(root) == torchvisions(root) and len(lists) == 2


def _with(column: int, value, new):
    """What takes a list, and puts one value of its folders in the place of another."""

    def poison(stored: dict) -> None:
        [folder] = [folder for folder in stored["folders"] if folder[column] == value][:1]
        folder[column] = new

    return poison


def _file(by: str):
    """What takes a list, and gives a file another name."""

    def poison(stored: dict) -> None:
        [names] = [names for *_, names in stored["folders"] if "2.jpg" in names][:1]
        names[names.index("2.jpg")] = by

    return poison


POISON = {
    "an absolute folder": _with(1, "b", "/etc"),
    "a folder above the root": _with(1, "b", "b/../../elsewhere"),
    "a number for a folder": _with(1, "b", 1),
    "an absolute file": _file("/etc/passwd"),
    "a file above": _file("../../elsewhere/q.jpg"),
    "a file in a folder": _file("deep/4.webp"),
    "a parent": _file(".."),
    "a number for a file": _file(1),
    "another root": _with(1, "", "b"),
    "a target without a class": _with(0, 0, 99),
    "a target below": _with(0, 0, -2),
    "another number": _with(0, 0, 0.0),
    "fewer columns": lambda stored: stored["folders"][0].pop(),
    "no folders": lambda stored: stored.update(folders=[]),
    "no classes": lambda stored: stored.pop("classes"),
    "no time": lambda stored: stored.pop("time"),
    "a time that is none": lambda stored: stored.update(time=None),
    "a time of letters": lambda stored: stored.update(time="x"),
}


@pytest.mark.parametrize("poison", POISON)
def test_a_poisoned_list_is_made_anew(root, stored, lists, poison, monkeypatch):
    """Even where it is this user's. The times of the folders that it names are those that it says."""
    path, meta = stored
    marks = iter([(time, inode) for _, _, time, inode, _ in meta["folders"]] * 2)
    POISON[poison](meta)
    monkeypatch.setattr(folder_index, "_mark", lambda _: next(marks))
    saved.save(path, meta, {})
    assert cached_samples(root) == torchvisions(root) and len(lists) == 2


def test_a_file_without_a_list_is_made_anew(root, stored, lists):
    saved.save(stored[0], [], {})
    assert cached_samples(root) == torchvisions(root) and len(lists) == 2


def test_links_that_lead_out_of_the_root_are_followed(root, stored, lists):
    """As torchvision does: the recorded path is what must stay within."""
    found = cached_samples(root)
    assert len(lists) == 1 and found == torchvisions(root)
    assert str(root / "link" / "sub" / "r.jpg") in [path for path, _ in found[2]]
