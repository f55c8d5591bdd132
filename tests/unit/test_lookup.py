"""Samples found with tables, and one by one, equal ``dataset[index]``."""

import random

import numpy as np
import pytest
import torch
from torch.utils import data
from torchvision.datasets import DatasetFolder

from dali_compat import DALIRecordIO
from dali_compat.archives.pack import pack
from dali_compat.data.base_datasets import leaves_of
from dali_compat.data.headers import headers_of
from dali_compat.data.lookup import in_tables, is_plain, look_up
from dali_compat.data.sources import BYTES, PATHS
from dali_compat.data.table import table_of


class Folder(DatasetFolder):
    """An image folder without files: its images are their paths."""

    def __init__(self, name: str, count: int):
        self.samples = [(f"{name}/{'x' * (i % 5)}{i}", 100 * i) for i in range(count)]
        self.transform, self.target_transform, self.loader = None, None, str


class CustomList(list):
    """A custom sequence."""


def tables_of(dataset) -> dict:
    return {id(leaf): table_of(leaf) for leaf in leaves_of(dataset)}


def _as_list(indices: list[int]):
    return indices


def _as_tensor(indices: list[int]):
    return torch.tensor(indices, dtype=torch.int64)


def _as_array(indices: list[int]):
    return np.array(indices, np.int32)


KINDS = [_as_list, tuple, _as_tensor, _as_array, lambda indices: range(-len(indices), 0)]


def nested(rng: random.Random, folders: list[Folder], depth: int) -> data.Dataset:
    """Return a folder, or nested Subsets and ConcatDatasets of folders, never empty."""
    kind = rng.choice(["folder", "subset", "concat"]) if depth else "folder"
    if kind == "folder":
        return rng.choice(folders)
    if kind == "concat":
        return data.ConcatDataset([nested(rng, folders, depth - 1) for _ in range(rng.randint(1, 3))])
    inner = nested(rng, folders, depth - 1)
    count = rng.randint(1, len(inner))
    return data.Subset(inner, rng.choice(KINDS)([rng.randrange(-len(inner), len(inner)) for _ in range(count)]))


def random_index(rng: random.Random, index: int):
    """Return an index of a type that samplers use."""
    return rng.choice([int, int, np.int64, np.int32, torch.tensor, lambda i: torch.tensor(i, dtype=torch.int32)])(index)


def assert_lookups_agree(dataset, indices) -> None:
    tabled, listed = in_tables(dataset, indices, tables_of(dataset)), look_up(dataset, indices)
    assert tabled is not None
    wanted = [dataset[int(index)] for index in indices]
    count = len(indices)
    assert [*zip(listed.sources, listed.targets, strict=True)] == wanted
    assert [*zip(tabled.sources, tabled.targets.tolist(), strict=True)] == wanted
    assert [(id(leaf), local) for leaf, local in tabled.locations] == [
        (id(leaf), local) for leaf, local in listed.locations
    ]
    assert [leaf[local] for leaf, local in tabled.locations] == wanted
    assert tabled.locals.tolist() == listed.locals == [local for _, local in listed.locations]
    assert {id(leaf) for leaf in tabled.leaves} == {id(leaf) for leaf in listed.leaves}
    for rows in np.arange(count), np.flatnonzero(np.arange(count) % 2 == 0):
        paths = tabled.paths(rows)
        if not isinstance(paths, list):
            paths = [row.tobytes().rstrip(b"\0").decode() for row in paths]
        assert paths == listed.paths(rows) == [wanted[row][0] for row in rows]
    assert by_row(tabled.leaf_rows()) == by_row(listed.leaf_rows())
    assert [row for row, *_ in by_row(listed.leaf_rows())] == list(range(count))
    for one in tabled.leaf_rows() + listed.leaf_rows():
        assert one.rows.dtype == one.index.dtype == one.keys.dtype == np.int64 and one.input == PATHS
        assert (np.diff(one.rows) > 0).all() and one.headers is headers_of(one.leaf)
        assert [one.leaf[i] for i in one.index.tolist()] == [wanted[row] for row in one.rows.tolist()]
        assert one.index.min() >= 0 and one.index.max() < len(one.leaf)


def by_row(found) -> list[tuple]:
    """Return (row, leaf, index, key) of each sample."""
    return sorted(
        (row, id(one.leaf), index, key)
        for one in found
        for row, index, key in zip(one.rows.tolist(), one.index.tolist(), one.keys.tolist(), strict=True)
    )


@pytest.mark.parametrize("seed", range(60))
def test_tables_and_look_up_agree_for_nested_data_sets(seed):
    rng = random.Random(seed)
    folders = [Folder(name, rng.randint(1, 9)) for name in "abc"]
    dataset = nested(rng, folders, seed % 4)
    for count in (1, 2, 17):
        assert_lookups_agree(
            dataset, [random_index(rng, rng.randrange(-len(dataset), len(dataset))) for _ in range(count)]
        )


def test_look_up_when_a_data_set_occurs_twice():
    folder = Folder("a", 5)
    dataset = data.ConcatDataset([folder, data.Subset(folder, [4, -5]), folder])
    assert_lookups_agree(dataset, [11, 0, 5, 6, 7, -1, -12])
    assert_lookups_agree(dataset, [4, 5, 11])
    assert_lookups_agree(data.ConcatDataset([dataset, dataset]), [0, 12, 23, -24])


BOOLS = [True, False, torch.tensor(True), np.array(True)]


@pytest.mark.parametrize("index", BOOLS, ids=repr)
@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
def test_boolean_indices_are_not_taken_from_tables(make, index):
    """A bool is an index of a list, and a mask of an array."""
    folder = Folder("a", 3)
    subset = data.Subset(folder, make([2, 1, 0]))
    for dataset in (folder, subset, data.ConcatDataset([folder, subset]), data.Subset(subset, [1, 0])):
        assert in_tables(dataset, [0, index], tables_of(dataset)) is None
        assert_same_outcome(dataset, [0, index])


def test_look_up_accepts_an_array_of_indices():
    assert_lookups_agree(data.Subset(Folder("a", 3), [2, 1]), np.array([1, 0, -1]))
    assert_lookups_agree(data.Subset(Folder("a", 3), [2, 1]), torch.tensor([1, 0, -1]))


# ---- errors


def outcome(function, *args):
    try:
        return "result", function(*args)
    except Exception as error:
        return type(error), str(error)


def assert_same_outcome(dataset, indices) -> None:
    """Assert that look_up() ends like torch's fetcher and that in_tables() gives the same or nothing."""
    wanted = outcome(lambda: [dataset[index] for index in indices])
    found = outcome(lambda: [*map(tuple, zip(*_columns(look_up(dataset, indices)), strict=True))])
    assert found == wanted
    tabled = in_tables(dataset, indices, tables_of(dataset))
    if tabled is not None:
        assert ("result", [*zip(*_columns(tabled), strict=True)]) == wanted


def _columns(found):
    return found.sources, list(found.targets)


def wrong_data_sets():
    folder = Folder("a", 4)
    yield "folder", folder
    yield "Subset", data.Subset(folder, [3, 2, 1, 0])
    yield "Subset of a range", data.Subset(folder, range(4))
    yield "Subset of an array", data.Subset(folder, np.arange(4))
    yield "Subset of a tensor", data.Subset(folder, torch.arange(4))
    yield "ConcatDataset", data.ConcatDataset([folder, data.Subset(folder, [1])])
    yield "Subset of a ConcatDataset", data.Subset(data.ConcatDataset([folder, folder]), [7, -8, 0])


pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # torch, for a wrong index
WRONG = [-1000, 1000, 1.0, None, "1", (1,), 1 << 70, torch.tensor(1.0), torch.tensor([0, 1]), np.float64(1), object]


@pytest.mark.parametrize("index", WRONG, ids=str)
@pytest.mark.parametrize("name", dict(wrong_data_sets()))
def test_wrong_index_raises_the_error_of_the_data_set(name, index):
    dataset = dict(wrong_data_sets())[name]
    assert in_tables(dataset, [0, index, 1], tables_of(dataset)) is None
    assert_same_outcome(dataset, [0, index, 1])
    assert outcome(look_up, dataset, [0, index])[0] == outcome(lambda: dataset[index])[0]


@pytest.mark.parametrize("indices", [[0, 9], [0, -5], [0.0, 1.0], ["0"], [None], np.array([0.0]), torch.tensor([9, 0])])
def test_subset_with_wrong_indices_raises_only_for_these_samples(indices):
    dataset = data.Subset(Folder("a", 4), indices)
    for positions in [[0], [0, len(indices) - 1], [len(indices)]]:
        assert_same_outcome(dataset, positions)


def test_empty_batch_has_no_samples():
    folder = Folder("a", 4)
    assert in_tables(folder, [], tables_of(folder)) is None
    assert look_up(folder, []).leaf_rows() == [] and look_up(folder, []).sources == []


def test_batch_with_changed_samples_is_not_taken_from_tables():
    folder, other = Folder("a", 4), Folder("b", 4)
    dataset = data.ConcatDataset([folder, other])
    tables = tables_of(dataset)
    other.samples[2] = ("new", 7)
    assert in_tables(dataset, [0, 6, 1], tables) is None and in_tables(dataset, [-2], tables) is None
    assert in_tables(dataset, [0, 5, 7], tables).sources == look_up(dataset, [0, 5, 7]).sources
    assert look_up(dataset, [0, 6]).sources == ["a/0", "new"]
    folder.samples = folder.samples[1:]
    assert in_tables(dataset, [0], tables) is None


def test_batch_with_a_data_set_without_table_is_not_taken_from_tables():
    dataset = data.ConcatDataset([Folder("a", 4), Folder("b", 4)])
    tables = tables_of(dataset)
    del tables[id(dataset.datasets[1])]
    assert in_tables(dataset, [0, 3], tables).sources == ["a/0", "a/xxx3"]
    assert in_tables(dataset, [0, 4], tables) is None


def test_only_and_but_select_rows():
    folder = Folder("a", 4)
    dataset = data.ConcatDataset([folder, Folder("b", 4)])
    listed = look_up(dataset, [1, 6, 2, -1])
    some = listed.only([1, 2])
    assert (some.sources, some.targets, some.locals) == (["b/xx2", "a/xx2"], [200, 200], [2, 2])
    assert some.leaves == [dataset.datasets[1], folder]
    for found in in_tables(dataset, [1, 6, 2, -1], tables_of(dataset)).leaf_rows():
        kept = found.but({0: "bad", 3: "worse"})
        assert kept.leaf is found.leaf and kept.rows.tolist() == [2 if kept.leaf is folder else 1]
        assert kept.index.tolist() == [2] and kept.keys.tolist() == [hash(kept.leaf.samples[2][0])]


def test_look_up_of_record_archive_has_no_table(image_root, tmp_path):
    pack(image_root, tmp_path / "all.rec")
    archive = DALIRecordIO(tmp_path / "all.rec")
    assert in_tables(archive, [0, 1], {}) is None
    listed = look_up(data.Subset(archive, [3, -1]), [1, 0])
    assert [source.index for source in listed.sources] == [23, 3] and listed.locals == [-1, 3]
    [found] = listed.leaf_rows()
    assert found.index.tolist() == [23, 3] and found.input == BYTES
    assert found.keys.tolist() == [hash(source) for source in listed.sources]
    assert is_plain(archive, {})
    archive.target_transform = str
    assert not is_plain(archive, {})


# ---- whose code runs

PLAIN = {
    "list": [1, 0],
    "tuple": (1, 0),
    "range": range(2),
    "array": np.array([1, 0]),
    "tensor": torch.tensor([1, 0]),
}


@pytest.mark.parametrize("indices", PLAIN)
def test_known_data_sets_with_known_indices_are_plain(indices):
    folder = Folder("a", 4)
    subset = data.Subset(folder, PLAIN[indices])
    for dataset in (folder, subset, data.ConcatDataset([folder, subset]), data.Subset(subset, PLAIN[indices])):
        assert is_plain(dataset, tables_of(dataset)) is True


def _transformed(folder: Folder) -> data.Dataset:
    folder.target_transform = str
    return folder


def _not_tabled(folder: Folder) -> data.Dataset:
    folder.samples = tuple(folder.samples)
    return folder


class CustomSubset(data.Subset):
    """A subclass that may behave differently."""


NOT_PLAIN = {
    "target_transform": _transformed,
    "another sequence": lambda folder: data.Subset(folder, CustomList([1, 0])),
    "a text": lambda folder: data.Subset(folder, "10"),
    "no table": _not_tabled,
    "a custom Subset": lambda folder: CustomSubset(folder, [1, 0]),
    "another data set": lambda folder: data.TensorDataset(torch.zeros(3)),
}


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_other_data_sets_and_indices_are_not_plain(case):
    dataset = NOT_PLAIN[case](Folder("a", 4))
    nested = data.ConcatDataset([Folder("b", 2), dataset]), data.Subset(dataset, [0]), data.ConcatDataset([dataset])
    for outer in (dataset, *nested):
        tables = {key: table for key, table in tables_of(outer).items() if table is not None}
        assert is_plain(outer, tables) is False


def test_custom_sequence_of_indices_is_read_like_in_torch():
    folder = Folder("a", 4)
    dataset = data.Subset(folder, CustomList([3, -4]))
    assert_lookups_agree(dataset, [0, 1, -1])
