"""Tables of the samples of image folders: their contents, and detection of every change of the list."""

import gc
import os
import pathlib
import weakref

import numpy as np
import pytest
import torch
from contract.both import EXACT, ours
from torchvision.datasets import DatasetFolder, ImageFolder

from dali_compat import DALIImageFolder
from dali_compat.data import table as module
from dali_compat.data.readers import columns_of_pairs
from dali_compat.data.table import SampleTable, table_of
from dali_compat.epoch.epoch import DaliEpoch

PATHS = ["a", "bb/longer.jpg", "", "ccc", "größe/雪.png", os.fsdecode(b"bytes \xff\xfe.jpg"), "z" * 300, "\n"]
SAMPLES = [(path, 3 * at - 4) for at, path in enumerate(PATHS)]


class Incomparable:
    def __eq__(self, other):
        raise RuntimeError("of no use for comparing")

    __hash__ = None


def table_for(samples) -> SampleTable:
    """Return the table of an image folder's samples."""
    return SampleTable((samples,), columns_of_pairs(samples))


def folder_of(samples) -> DatasetFolder:
    """Return an image folder without files."""
    folder = DatasetFolder.__new__(DatasetFolder)
    folder.samples, folder.transform, folder.target_transform, folder.loader = samples, None, None, str
    return folder


# ---- contents


@pytest.mark.parametrize("index", [range(8), [3], [6], [2], [2, 2], [0, 3], [5, 4, 1], [7, 6, 0, 6]])
def test_paths_are_rows_padded_with_zeros(index):
    rows = table_for(SAMPLES).paths(np.array(index))
    encoded = [os.fsencode(PATHS[i]) for i in index]
    width = max(map(len, encoded))
    assert rows.dtype == np.uint8 and rows.shape == (len(index), width)
    assert [row.tobytes() for row in rows] == [path.ljust(width, b"\0") for path in encoded]


def test_writing_to_paths_does_not_change_the_table():
    table = table_for(SAMPLES)
    table.paths(np.array([0, 1, 3]))[:] = 1
    table.paths(np.array([3, 3]))[:] = 1
    assert table.paths(np.array([3])).tobytes() == b"ccc"


def test_table_has_the_targets_keys_and_paths_of_the_samples():
    table = table_for(SAMPLES)
    assert len(table) == len(SAMPLES)
    assert table.targets.dtype == np.int64 and table.targets.tolist() == [target for _, target in SAMPLES]
    assert table.keys.dtype == np.int64 and table.keys.tolist() == [hash(path) for path in PATHS]
    assert table.texts(np.arange(len(table))) == PATHS


def test_targets_may_be_any_int64():
    extremes = [np.iinfo(np.int64).min, -1, 0, np.iinfo(np.int64).max]
    assert table_for([("a", target) for target in extremes]).targets.tolist() == extremes


# ---- unchanged lists


def _equal_entry(samples):
    path, target = samples[1]
    samples[1] = (str(path.encode(), "utf-8"), target)
    assert samples[1] is not SAMPLES[1]


def _equal_entries(samples):
    samples[:] = [(path, target) for path, target in samples]


SAME = {
    "nothing": lambda samples: None,
    "an equal entry": _equal_entry,
    "equal entries": _equal_entries,
    "there and back": lambda samples: (samples.append(("b", 1)), samples.pop()),
}


@pytest.mark.parametrize("change", SAME)
@pytest.mark.parametrize("index", [[1], [0, 1], range(8)])
def test_list_with_equal_entries_is_unchanged(change, index):
    samples = list(SAMPLES)
    table = table_for(samples)
    SAME[change](samples)
    assert table.matches((samples,)) is True and table.holds((samples,), np.array(index)) is True


def test_another_list_with_the_same_entries_is_unchanged():
    table = table_for(list(SAMPLES))
    assert table.matches((list(SAMPLES),)) and table.holds((list(SAMPLES),), np.array([0, 7]))


def _entry(make):
    def change(samples):
        samples[1] = make(*samples[1])

    return change


class Text(str):
    """A path that equals its text."""


class Number(int):
    """A target that equals its value."""


class Pair(tuple):
    """A custom sample class."""


ANOTHER_ENTRY = {
    "path": _entry(lambda path, target: (path + "x", target)),
    "target": _entry(lambda path, target: (path, target + 1)),
    "a list": _entry(lambda path, target: [path, target]),
    "a custom tuple": _entry(lambda path, target: Pair((path, target))),
    "three values": _entry(lambda path, target: (path, target, 0)),
    "one value": _entry(lambda path, target: (path,)),
    "None": _entry(lambda path, target: None),
    "PathLike": _entry(lambda path, target: (pathlib.PurePosixPath(path), target)),
    "bytes": _entry(lambda path, target: (path.encode(), target)),
    "a custom str": _entry(lambda path, target: (Text(path), target)),
    "numpy int": _entry(lambda path, target: (path, np.int64(target))),
    "numpy int32": _entry(lambda path, target: (path, np.int32(target))),
    "float": _entry(lambda path, target: (path, float(target))),
    "tensor": _entry(lambda path, target: (path, torch.tensor(target))),
    "a custom int": _entry(lambda path, target: (path, Number(target))),
    "target None": _entry(lambda path, target: (path, None)),
    "arrays": _entry(lambda path, target: (path, np.array([target, target]))),
    "incomparable": _entry(lambda path, target: (path, Incomparable())),
}


@pytest.mark.parametrize("change", ANOTHER_ENTRY)
def test_changed_entry_is_detected(change):
    """torch's default_collate treats equal values of another type differently."""
    samples = list(SAMPLES)
    table = table_for(samples)
    ANOTHER_ENTRY[change](samples)
    assert table.matches((samples,)) is False
    assert table.holds((samples,), np.array([1])) is False
    assert table.holds((samples,), np.array([0, 1, 2])) is False
    assert table.holds((samples,), np.array([0])) is True
    assert table.holds((samples,), np.array([7, 2, 0])) is True


@pytest.mark.parametrize("target", [True, False])
def test_bool_target_in_place_of_a_number_is_detected(target):
    samples = [("a", int(target)), ("b", 5)]
    table = table_for(samples)
    samples[0] = ("a", target)
    assert (
        not table.matches((samples,))
        and not table.holds((samples,), np.array([0, 1]))
        and table.holds((samples,), np.array([1]))
    )


def test_swapped_entries_are_detected():
    samples = list(SAMPLES)
    table = table_for(samples)
    samples[0], samples[3] = samples[3], samples[0]
    assert not table.matches((samples,))
    assert not table.holds((samples,), np.array([0])) and not table.holds((samples,), np.array([1, 3]))
    assert table.holds((samples,), np.array([1, 2, 4]))


class Samples(list):
    """A custom list."""

    def __getitem__(self, index):
        return ("other", 0)


ANOTHER_LIST = {
    "appended": lambda samples: [*samples, ("new", 0)],
    "shortened": lambda samples: samples[:-1],
    "empty": lambda samples: [],
    "a tuple": tuple,
    "an array": lambda samples: np.array(samples, dtype=object),
    "a custom list": Samples,
    "None": lambda samples: None,
}


@pytest.mark.parametrize("change", ANOTHER_LIST)
def test_changed_list_is_detected(change):
    """Even if the requested entries are unchanged, because a negative index would refer to another."""
    samples = ANOTHER_LIST[change](list(SAMPLES))
    table = table_for(list(SAMPLES))
    assert table.matches((samples,)) is False
    assert table.holds((samples,), np.array([0])) is False and table.holds((samples,), np.array([0, 2])) is False


def test_table_does_not_change_with_its_list():
    samples = list(SAMPLES)
    table = table_for(samples)
    samples.clear()
    assert table.texts(np.array([6])) == [PATHS[6]] and len(table) == 8 and not table.matches((samples,))


def test_user_objects_are_not_compared():
    """Tables are used in a thread."""
    compared = []

    class Target:
        def __eq__(self, other):
            compared.append(other)
            return True

        __hash__ = None

    samples = list(SAMPLES)
    table = table_for(samples)
    samples[1] = (samples[1][0], Target())
    assert not table.matches((samples,)) and not table.holds((samples,), np.array([1])) and compared == []


# ---- table_of


@pytest.mark.parametrize("change", [*ANOTHER_ENTRY, "bool", "too large", "zero byte"])
def test_table_of_is_none_for_other_entries(change):
    """Both for a new data set and for one that had a table before."""
    more = {
        "bool": _entry(lambda path, target: (path, True)),
        "too large": _entry(lambda path, target: (path, 1 << 63)),
        "zero byte": _entry(lambda path, target: ("a\0b", target)),
    }
    samples = list(SAMPLES)
    with_table = folder_of(list(SAMPLES))
    assert table_of(with_table) is not None
    (ANOTHER_ENTRY | more)[change](samples)
    (ANOTHER_ENTRY | more)[change](with_table.samples)
    if change in ("path", "target"):
        assert table_of(folder_of(samples)).matches((samples,)) and table_of(with_table).matches((samples,))
    else:
        assert table_of(folder_of(samples)) is None and table_of(with_table) is None


@pytest.mark.parametrize("change", sorted(set(ANOTHER_LIST) - {"appended", "shortened"}))
def test_table_of_is_none_for_other_lists(change):
    folder = folder_of(list(SAMPLES))
    assert table_of(folder) is not None
    folder.samples = ANOTHER_LIST[change](folder.samples)
    assert table_of(folder) is None
    folder.samples = list(SAMPLES)
    assert table_of(folder).matches((SAMPLES,))


def test_table_of_is_none_for_other_data_sets():
    assert table_of(torch.utils.data.TensorDataset(torch.zeros(3))) is None and table_of(SAMPLES) is None


@pytest.mark.parametrize("kind", [ImageFolder, DALIImageFolder])
def test_table_is_reused_while_the_samples_are_unchanged(image_root, kind):
    dataset = kind(image_root)
    table = table_of(dataset)
    assert table_of(dataset) is table and table.targets.tolist() == dataset.targets
    dataset.samples = list(dataset.samples)
    assert table_of(dataset) is table
    assert table_of(kind(image_root)) is not table


@pytest.mark.parametrize("change", ["path", "target"])
def test_table_is_rebuilt_when_samples_change(image_root, change):
    dataset = ImageFolder(image_root)
    table = table_of(dataset)
    ANOTHER_ENTRY[change](dataset.samples)
    again = table_of(dataset)
    assert again is not table and again.matches((dataset.samples,)) and table_of(dataset) is again
    dataset.samples = dataset.samples[:3]
    assert len(table_of(dataset)) == 3


def test_table_is_shared_by_all_loaders_of_a_data_set(image_root, monkeypatch):
    table_for, epochs = [], []
    init, begin = SampleTable.__init__, DaliEpoch.__init__
    monkeypatch.setattr(SampleTable, "__init__", lambda self, *args: (table_for.append(self), init(self, *args))[1])
    monkeypatch.setattr(DaliEpoch, "__init__", lambda self, *args: (epochs.append(self), begin(self, *args))[1])
    dataset = DALIImageFolder(image_root, EXACT)
    loaders = [ours(dataset, 5, device="cpu"), ours(torch.utils.data.Subset(dataset, [3, 1]), 2, device="cpu")]
    for _ in range(2):
        for loader in loaders:
            assert sum(len(labels) for _, labels in loader) == len(loader.sampler)
    assert len(table_for) == 1 and len(epochs) == 4
    assert all(list(epoch.tables.items()) == [(id(dataset), table_for[0])] for epoch in epochs)


def test_table_is_freed_with_its_data_set(image_root):
    gc.collect()
    before = len(module._tables._kept)
    dataset = ImageFolder(image_root)
    table = weakref.ref(table_of(dataset))
    dataset.samples[0] = (dataset.samples[0][0], 7)
    again = weakref.ref(table_of(dataset))
    assert table() is None and again() is not None and len(module._tables._kept) == before + 1
    del dataset
    gc.collect()
    assert again() is None and len(module._tables._kept) == before
