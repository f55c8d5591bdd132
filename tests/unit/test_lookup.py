"""Samples that are looked up at once, and one by one, equal ``dataset[index]``."""

import os
import pathlib
import random

import numpy as np
import pytest
import torch
from torch.utils import data
from torchvision.datasets import DatasetFolder

from dali_compat import DALIImageFolder, DALIImageList, DALIRecordIO
from dali_compat.archives.pack import pack
from dali_compat.data.base_datasets import leaves_of
from dali_compat.data.headers import headers_of
from dali_compat.data.lookup import (
    _look_up_in_lists,
    _look_up_one_by_one,
    has_plain_samples,
    is_plain,
    look_up,
    paths_digest,
)
from dali_compat.data.sources import BYTES, PATHS, Upright
from dali_compat.engine.dali.pipeline import _as_matrix


class Folder(DatasetFolder):
    """An image folder without files: its images are their paths."""

    def __init__(self, name: str, count: int):
        self.samples = [(f"{name}/{'x' * (i % 5)}{i}", 100 * i) for i in range(count)]
        self.transform, self.target_transform, self.loader = None, None, str


class CustomList(list):
    """A custom sequence."""


def plain_leaves(dataset) -> set[int]:
    return {id(leaf) for leaf in leaves_of(dataset) if has_plain_samples(leaf)}


def at_once(dataset, indices, folder: str = "", upright: bool = False):
    """Return the result of the fast look-up, or None if the samples have to be looked up one by one."""
    try:
        return _look_up_in_lists(dataset, indices, folder, lambda leaf: upright)
    except Exception:
        return None


def one_by_one(dataset, indices, folder: str = "", upright: bool = False):
    return _look_up_one_by_one(dataset, indices, folder, lambda leaf: upright)


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
    wanted = [dataset[int(index)] for index in indices]
    count = len(indices)
    both = at_once(dataset, indices), one_by_one(dataset, indices)
    for samples, found in both:
        assert [*zip(samples.sources, samples.targets, strict=True)] == wanted
        assert [leaf[local] for leaf, local in samples.locations] == wanted
        assert [row for row, *_ in by_row(found)] == list(range(count))
        for one in found:
            assert one.rows.dtype == one.index.dtype == one.keys.dtype == np.int64 and one.input == PATHS
            assert (np.diff(one.rows) > 0).all() and one.headers is headers_of(one.leaf)
            assert [one.leaf[i] for i in one.index.tolist()] == [wanted[row] for row in one.rows.tolist()]
            assert one.index.min() >= 0 and one.index.max() < len(one.leaf)
        assert {id(leaf) for leaf in samples.leaves} == {id(one.leaf) for one in found}
    (first, found), (second, others) = both
    assert [(id(leaf), local) for leaf, local in first.locations] == [
        (id(leaf), local) for leaf, local in second.locations
    ]
    assert by_row(found) == by_row(others)


def by_row(found) -> list[tuple]:
    """Return (row, leaf, index, key) of each sample."""
    return sorted(
        (row, id(one.leaf), index, key)
        for one in found
        for row, index, key in zip(one.rows.tolist(), one.index.tolist(), one.keys.tolist(), strict=True)
    )


@pytest.mark.parametrize("seed", range(60))
def test_both_look_ups_agree_for_nested_data_sets(seed):
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
def test_boolean_indices_are_looked_up_one_by_one(make, index):
    """A bool is an index of a list, and a mask of an array."""
    folder = Folder("a", 3)
    subset = data.Subset(folder, make([2, 1, 0]))
    for dataset in (folder, subset, data.ConcatDataset([folder, subset]), data.Subset(subset, [1, 0])):
        assert at_once(dataset, [0, index]) is None
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
    """Assert that look_up() ends like torch's fetcher."""
    wanted = outcome(lambda: [dataset[index] for index in indices])
    assert outcome(lambda: [*zip(*_columns(dataset, indices), strict=True)]) == wanted


def _columns(dataset, indices):
    samples, _ = look_up(dataset, indices)
    return samples.sources, list(samples.targets)


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
    assert at_once(dataset, [0, index, 1]) is None
    assert_same_outcome(dataset, [0, index, 1])
    assert outcome(look_up, dataset, [0, index])[0] == outcome(lambda: dataset[index])[0]


@pytest.mark.parametrize("indices", [[0, 9], [0, -5], [0.0, 1.0], ["0"], [None], np.array([0.0]), torch.tensor([9, 0])])
def test_subset_with_wrong_indices_raises_only_for_these_samples(indices):
    dataset = data.Subset(Folder("a", 4), indices)
    for positions in [[0], [0, len(indices) - 1], [len(indices)]]:
        assert_same_outcome(dataset, positions)


def test_empty_batch_has_no_samples():
    samples, found = look_up(Folder("a", 4), [])
    assert samples.sources == samples.targets == samples.locations == found == []


def test_only_and_but_select_rows():
    folder = Folder("a", 4)
    dataset = data.ConcatDataset([folder, Folder("b", 4)])
    samples, found = look_up(dataset, [1, 6, 2, -1])
    some = samples.only([1, 2])
    assert (some.sources, some.targets) == (["b/xx2", "a/xx2"], [200, 200])
    assert [local for _, local in some.locations] == [2, 2] and some.leaves == [dataset.datasets[1], folder]
    for one in found:
        kept = one.but({0: "bad", 3: "worse"})
        assert kept.leaf is one.leaf and kept.rows.tolist() == [2 if kept.leaf is folder else 1]
        assert kept.index.tolist() == [2] and kept.keys.tolist() == [hash(kept.leaf.samples[2][0])]


def test_look_up_of_record_archive_returns_records(image_root, tmp_path):
    pack(image_root, tmp_path / "all.rec")
    archive = DALIRecordIO(tmp_path / "all.rec")
    assert at_once(archive, [0, 1]) is None
    samples, [found] = look_up(data.Subset(archive, [3, -1]), [1, 0])
    assert [source.index for source in samples.sources] == [23, 3]
    assert [local for _, local in samples.locations] == [-1, 3]
    assert found.index.tolist() == [23, 3] and found.input == BYTES
    assert found.keys.tolist() == [hash(source) for source in samples.sources]
    assert is_plain(archive, plain_leaves(archive))
    archive.target_transform = str
    assert not is_plain(archive, plain_leaves(archive))


# ---- paths and targets

PATHS_OF_FILES = ["a", "bb/longer.jpg", "ccc", "größe/雪.png", os.fsdecode(b"bytes \xff\xfe.jpg"), "/z" * 150, "\n"]


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_paths_are_joined_to_the_folder(kind, upright):
    dataset = DALIImageList(list(PATHS_OF_FILES), range(7))
    dataset.paths = list(map(kind, PATHS_OF_FILES))
    expected = [path if path[0] == "/" else "/folder/" + path for path in PATHS_OF_FILES]
    for way in at_once, one_by_one:
        samples, [found] = way(dataset, range(7), "/folder/", upright)
        assert samples.sources == list(map(Upright if upright else str, expected))
        assert set(map(type, samples.sources)) == {Upright if upright else str}
        assert found.keys.tolist() == list(map(hash, samples.sources))


@pytest.mark.parametrize("index", [range(7), [3], [2, 2], [0, 3], [5, 4, 1], [6, 5, 0, 5]])
def test_paths_for_dali_are_rows_padded_with_zeros(index):
    encoded = [os.fsencode(PATHS_OF_FILES[i]) for i in index]
    width = max(map(len, encoded))
    rows = _as_matrix([Upright(PATHS_OF_FILES[i]) for i in index])
    assert rows.dtype == np.uint8 and rows.shape == (len(index), width)
    assert [row.tobytes() for row in rows] == [path.ljust(width, b"\0") for path in encoded]


def test_path_with_a_null_byte_raises_the_error_of_open():
    with pytest.raises(ValueError, match="embedded null byte"):
        _as_matrix(["a\0b", "c"])


def test_targets_that_are_rows_of_a_tensor_stay_a_tensor():
    targets = torch.arange(12).reshape(4, 3)
    dataset = DALIImageList(["a", "b", "c", "d"], targets)
    assert torch.equal(at_once(dataset, [3, 0, -2])[0].targets, targets[[3, 0, 2]])
    joined, _ = at_once(data.ConcatDataset([dataset, Folder("a", 2)]), [5, 3, 4])
    assert [torch.as_tensor(one).tolist() for one in joined.targets] == [100, [9, 10, 11], 0]


def test_indices_beyond_len_have_headers_of_their_own():
    """A subclass may limit ``__len__`` only."""

    class Limited(Folder):
        def __len__(self):
            return 2

    for way in at_once, one_by_one:
        samples, [found] = way(Limited("a", 6), [1, 5, 3])
        assert found.index.tolist() == [1, 5, 3] and samples.sources == ["a/x1", "a/5", "a/xxx3"]


def test_digest_depends_on_paths_and_order_only(image_root):
    folder = DALIImageFolder(image_root)
    before = paths_digest(folder, "")
    folder.samples = [(pathlib.Path(path), target + 1) for path, target in folder.samples]
    assert paths_digest(folder, "/elsewhere/") == before
    folder.samples.reverse()
    assert paths_digest(folder, "") != before


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
        assert is_plain(dataset, plain_leaves(dataset)) is True


def _transformed(folder: Folder) -> data.Dataset:
    folder.target_transform = str
    return folder


def _in_another_list(folder: Folder) -> data.Dataset:
    folder.samples = CustomList(folder.samples)
    return folder


class CustomSubset(data.Subset):
    """A subclass that may behave differently."""


NOT_PLAIN = {
    "target_transform": _transformed,
    "another sequence": lambda folder: data.Subset(folder, CustomList([1, 0])),
    "a text": lambda folder: data.Subset(folder, "10"),
    "samples in another sequence": _in_another_list,
    "a custom Subset": lambda folder: CustomSubset(folder, [1, 0]),
    "another data set": lambda folder: data.TensorDataset(torch.zeros(3)),
}


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_other_data_sets_and_indices_are_not_plain(case):
    dataset = NOT_PLAIN[case](Folder("a", 4))
    nested = data.ConcatDataset([Folder("b", 2), dataset]), data.Subset(dataset, [0]), data.ConcatDataset([dataset])
    for outer in (dataset, *nested):
        leaves = [leaf for leaf in leaves_of(outer) if isinstance(leaf, Folder)]
        assert is_plain(outer, {id(leaf) for leaf in leaves if has_plain_samples(leaf)}) is False


def test_custom_sequence_of_indices_is_read_like_in_torch():
    folder = Folder("a", 4)
    dataset = data.Subset(folder, CustomList([3, -4]))
    assert_lookups_agree(dataset, [0, 1, -1])


class Text(str):
    """A custom path."""


class Number(int):
    """A custom target."""


class Pair(tuple):
    """A custom sample."""


@pytest.mark.parametrize("sample", [("a", 1), ("a", 1.5), ("a", "text"), ("a", None), (pathlib.Path("a"), 1)], ids=str)
def test_samples_of_known_types_are_plain(sample):
    folder, other = Folder("a", 4), DALIImageList(["a"], [sample[1]])
    folder.samples[1] = sample
    assert has_plain_samples(folder) and has_plain_samples(other)
    other.targets = torch.zeros(1, 2)
    assert has_plain_samples(other)


CUSTOM = [(Text("a"), 1), ("a", Number(1)), Pair(("a", 1)), ["a", 1], ("a", torch.tensor(1)), ("a", object()), None]


@pytest.mark.parametrize("sample", CUSTOM)
def test_samples_of_other_types_are_not_plain(sample):
    folder = Folder("a", 4)
    folder.samples[1] = sample
    assert not has_plain_samples(folder)


def test_is_plain_is_false_when_a_list_is_replaced_by_another_sequence():
    folder = Folder("a", 4)
    plain = plain_leaves(folder)
    folder.samples = CustomList(folder.samples)
    assert not is_plain(folder, plain)
