"""The cached file list of a folder equals torchvision's list, and is rebuilt if it is out of date or not
trustworthy."""

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


def torchvision_list(root, allow_empty=False):
    classes, class_to_idx = find_classes(root)
    return classes, class_to_idx, make_dataset(root, class_to_idx, IMG_EXTENSIONS, allow_empty=allow_empty)


def age(root, seconds: float = 60) -> None:
    """Set the folders' times to the past. The cache of a recently changed folder is not trusted."""
    then = time.time() - seconds
    for path, _, _ in os.walk(root, followlinks=True):
        os.utime(path, (then, then))


def fill(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


@pytest.fixture
def root(tmp_path) -> Path:
    """A folder with unusual sort orders, nested folders, files of other types, and links."""
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
    with open(os.fsencode(root) + b"/b/\xff\xfe.jpg", "w"):  # a name that is not valid UTF-8
        pass
    age(root)
    age(tmp_path / "elsewhere")
    return root


@pytest.fixture
def lists(monkeypatch):
    """Record each time a folder is walked."""
    seen = []
    walk = folder_index._list

    def spy(root):
        seen.append(root)
        return walk(root)

    monkeypatch.setattr(folder_index, "_list", spy)
    return seen


def test_cached_samples_equal_torchvision_in_order_and_type(root, lists):
    for _ in range(3):
        found = cached_samples(root)
        assert found == torchvision_list(root)
        assert all(type(path) is str and type(target) is int for path, target in found[2])
    assert len(lists) == 1


@pytest.mark.parametrize(
    "form", [str, lambda root: f"{root}/", lambda root: os.path.relpath(root), lambda root: root / ".."]
)
def test_paths_start_with_the_root_as_given(root, form, lists):
    given = form(root)
    if given == root / "..":
        given = root / ".." / "root"
    assert cached_samples(root) and cached_samples(given) == torchvision_list(given)
    assert len(lists) == 1  # they are the same folder


def test_tilde_in_the_root_is_expanded(root, monkeypatch):
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
def test_a_changed_folder_is_listed_again(root, change, lists):
    before = cached_samples(root)
    CHANGES[change](root)
    after = cached_samples(root)
    assert after == torchvision_list(root) and after != before and len(lists) == 2


def test_a_replaced_folder_with_equal_times_is_listed_again(root, lists):
    """After `mv other root` or a restored backup, only the inode differs."""
    cached_samples(root)
    times = {name: (root / name).stat().st_mtime_ns for name in ("", "B")}
    (root / "B").rename(root.parent / "old")
    fill(root, ["B/other.jpg"])
    for name, when in times.items():
        os.utime(root / name, ns=(when, when))
    assert cached_samples(root) == torchvision_list(root) and len(lists) == 2


def test_a_list_made_just_after_a_change_is_not_trusted(tmp_path, lists):
    """A folder that changed just before it was listed may change again without a new timestamp."""
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


def test_cached_samples_raises_torchvisions_errors(tmp_path):
    def raises(root) -> None:
        with pytest.raises(FileNotFoundError) as theirs:
            torchvision_list(root)
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
        assert found == torchvision_list(tmp_path / "root", allow_empty=True)
    fill(tmp_path / "none", ["a/1.txt"])
    assert cached_samples(tmp_path / "none", allow_empty=True) == (["a"], {"a": 0}, [])
    assert cached_samples(tmp_path / "none", allow_empty=True) == (["a"], {"a": 0}, [])


def test_a_damaged_or_unwritable_cache_is_ignored(root, lists, cache_home):
    cached_samples(root)
    [path] = (cache_home / "folders").glob("*.npz")
    path.write_bytes(path.read_bytes()[:-200])
    assert cached_samples(root) == torchvision_list(root) and len(lists) == 2
    shutil.rmtree(cache_home)
    cache_home.touch()
    with pytest.warns(UserWarning, match="cannot be saved"):
        assert cached_samples(root) == torchvision_list(root)
    assert len(lists) == 3


@pytest.mark.parametrize("is_new", [False, True])
def test_ranks_that_start_together_list_the_folder_once(root, tmp_path, is_new):
    """This includes a new folder, whose cache is not trusted: all ranks request the list before one of them walks
    the folder."""
    if is_new:
        age(root, seconds=-3600)  # however late they request it
    context = multiprocessing.get_context("fork")
    gate, log, expected = context.Barrier(4), tmp_path / "walks", torchvision_list(root)

    def rank() -> None:
        walk = folder_index._list

        def logged_walk(*args):
            with open(log, "a") as file:
                file.write("x")
            return walk(*args)

        def wait_and_lock(name, lock=saved.lock):
            gate.wait(100)
            return lock(name)

        folder_index._list, saved.lock = logged_walk, wait_and_lock
        os._exit(0 if cached_samples(root) == expected else 1)

    ranks = [context.Process(target=rank) for _ in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(100)
    assert [process.exitcode for process in ranks] == [0] * 4 and log.read_text() == "x"


def test_a_cached_list_of_many_files_loads_with_few_calls(tmp_path, lists):
    """The target is 1.28 million files in less than 2 s (see benchmarks/archives.py), so files must not be examined
    again."""
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
    assert len(lists) == 1 and first == found[0] == torchvision_list(root) and len(first[2]) == 20_000
    assert calls < 10_000, calls


def test_progress_is_shown_on_a_terminal_if_listing_is_slow(root, capsys, monkeypatch):
    cached_samples(root)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(folder_index, "_SLOW", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fill(root, ["b/new.jpg"])
    cached_samples(root)
    assert "listing root" in capsys.readouterr().err


# ---- DALIImageFolder(index_cache=...)


@pytest.mark.parametrize("place", [True, "here", Path("here")])
def test_index_cache_gives_the_attributes_of_imagefolder(root, place, lists, cache_home, tmp_path, monkeypatch):
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


def test_without_index_cache_nothing_is_cached(root, lists, cache_home):
    DALIImageFolder(root, allow_empty=True)
    assert not lists and not cache_home.exists()


def test_index_cache_raises_torchvisions_errors(root):
    with pytest.raises(FileNotFoundError) as theirs:
        ImageFolder(root.parent / "missing")
    with pytest.raises(FileNotFoundError) as mine:
        DALIImageFolder(root.parent / "missing", index_cache=True)
    assert str(mine.value) == str(theirs.value)


def test_index_cache_is_refused_with_custom_file_selection(root):
    class OwnClasses(DALIImageFolder):
        def find_classes(self, directory):
            return ["b"], {"b": 0}

    for kind, options in ((OwnClasses, {}), (DALIImageFolder, {"is_valid_file": os.path.isfile})):
        with pytest.raises(ValueError, match="index_cache"):
            kind(root, index_cache=True, **options)
        assert kind(root, **options).samples


# ---- cached lists that another user created or changed


@pytest.fixture
def stored(root, lists, cache_home):
    """Return the path and the content of a cached list."""
    cached_samples(root)
    [path] = (cache_home / "folders").glob("*.npz")
    return path, saved.load(path)[0]


def test_cached_list_is_readable_only_by_its_user(root, cache_home):
    before = os.umask(0)
    try:
        cached_samples(root)
    finally:
        os.umask(before)
    [path] = (cache_home / "folders").glob("*.npz")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o664])
def test_a_list_that_others_may_write_is_rebuilt(root, stored, lists, mode):
    stored[0].chmod(mode)
    assert cached_samples(root) == torchvision_list(root) and len(lists) == 2
    assert stored[0].stat().st_mode & 0o777 == 0o600
    assert cached_samples(root) == torchvision_list(root) and len(lists) == 2


def test_a_list_of_another_user_is_rebuilt(root, stored, lists, monkeypatch):
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert cached_samples(root) == torchvision_list(root) and len(lists) == 2


def _replace_value(column: int, value, new):
    """Return a function that replaces a value in the folders of a cached list."""

    def damage(stored: dict) -> None:
        [folder] = [folder for folder in stored["folders"] if folder[column] == value][:1]
        folder[column] = new

    return damage


def _rename_file(by: str):
    """Return a function that renames a file in a cached list."""

    def damage(stored: dict) -> None:
        [names] = [names for *_, names in stored["folders"] if "2.jpg" in names][:1]
        names[names.index("2.jpg")] = by

    return damage


INVALID_ENTRIES = {
    "an absolute folder": _replace_value(1, "b", "/etc"),
    "a folder above the root": _replace_value(1, "b", "b/../../elsewhere"),
    "a number for a folder": _replace_value(1, "b", 1),
    "an absolute file": _rename_file("/etc/passwd"),
    "a file above": _rename_file("../../elsewhere/q.jpg"),
    "a file in a folder": _rename_file("deep/4.webp"),
    "a parent": _rename_file(".."),
    "a number for a file": _rename_file(1),
    "another root": _replace_value(1, "", "b"),
    "a target without a class": _replace_value(0, 0, 99),
    "a target below": _replace_value(0, 0, -2),
    "another number": _replace_value(0, 0, 0.0),
    "fewer columns": lambda stored: stored["folders"][0].pop(),
    "no folders": lambda stored: stored.update(folders=[]),
    "no classes": lambda stored: stored.pop("classes"),
    "no time": lambda stored: stored.pop("time"),
    "a time that is none": lambda stored: stored.update(time=None),
    "a time of letters": lambda stored: stored.update(time="x"),
}


@pytest.mark.parametrize("damage", INVALID_ENTRIES)
def test_a_list_with_invalid_entries_is_rebuilt(root, stored, lists, damage, monkeypatch):
    """Even if this user owns the list. The folders' times match the recorded ones."""
    path, meta = stored
    marks = iter([(time, inode) for _, _, time, inode, _ in meta["folders"]] * 2)
    INVALID_ENTRIES[damage](meta)
    monkeypatch.setattr(folder_index, "_stamp", lambda _: next(marks))
    saved.save(path, meta, {})
    assert cached_samples(root) == torchvision_list(root) and len(lists) == 2


def test_a_cache_file_without_a_list_is_rebuilt(root, stored, lists):
    saved.save(stored[0], [], {})
    assert cached_samples(root) == torchvision_list(root) and len(lists) == 2


def test_links_that_lead_out_of_the_root_are_followed(root, stored, lists):
    """torchvision follows them, too. Only the recorded path must stay within the root."""
    found = cached_samples(root)
    assert len(lists) == 1 and found == torchvision_list(root)
    assert str(root / "link" / "sub" / "r.jpg") in [path for path, _ in found[2]]
