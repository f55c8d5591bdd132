"""DALIImageList and DALIImageTable: batches, targets from columns, and error messages."""

import copy
import csv
import os
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from contract.both import EXACT, assert_same_epoch, ours, stock
from dali_compat import (
    BadImageWarning,
    DALIArrayDataset,
    DALIImageList,
    DALIImageTable,
    DataLoader,
    FallbackWarning,
)

COUNT = 24


@pytest.fixture
def folder(image_root) -> ImageFolder:
    return ImageFolder(image_root)


@pytest.fixture
def files(folder) -> list[str]:
    return [path for path, _ in folder.samples]


def assert_equals_torch(dataset, loader=None) -> list:
    """Check that batches equal torch's in values and dtypes, and return torch's."""
    mine = loader or ours(dataset, 5, device="cpu")
    assert mine.explain().startswith("DALI route")
    theirs = list(stock(dataset, 5))
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1]) and a[1].dtype == b[1].dtype
    return theirs


# ---- lists


TARGETS = {
    "ints": (list(range(COUNT)), torch.int64),
    "floats": ([i / 7 for i in range(COUNT)], torch.float64),
    "vectors": ([torch.tensor([i, 1.0, -i]) for i in range(COUNT)], torch.float32),
    "a tensor of vectors": (torch.arange(3.0 * COUNT).reshape(COUNT, 3), torch.float32),
    "a tensor of numbers": (torch.arange(COUNT, dtype=torch.int32), torch.int32),
    "an array of ints": (np.arange(COUNT, dtype=np.uint8), torch.int64),
    "an array of floats": (np.linspace(0, 1, COUNT, dtype=np.float32), torch.float32),
    "an array of vectors": (np.eye(COUNT, dtype=np.float64), torch.float64),
    "an array read backwards": (np.arange(3.0 * COUNT).reshape(COUNT, 3)[::-1], torch.float64),
    "a big-endian array": (np.arange(COUNT, dtype=">f4"), torch.float32),
    "numpy's numbers": ([np.int32(i) for i in range(COUNT)], torch.int64),
    "bools": ([i % 2 == 0 for i in range(COUNT)], torch.bool),
    "None": (None, torch.int64),
}


@pytest.mark.parametrize("case", TARGETS)
def test_targets_of_any_type_are_collated_as_torchs(files, case):
    targets, dtype = TARGETS[case]
    theirs = assert_equals_torch(DALIImageList(files, targets, EXACT))
    assert theirs[0][1].dtype == dtype
    expected = [-1] * COUNT if targets is None else [np.asarray(target).tolist() for target in targets]
    assert [value for batch in theirs for value in batch[1].tolist()] == expected


def test_samples_equal_those_of_an_image_folder(folder, files):
    dataset = DALIImageList(files, folder.targets, EXACT, lambda target: target + 10)
    assert dataset.samples == folder.samples and dataset.targets == folder.targets and len(dataset) == COUNT
    folder.transform, folder.target_transform = EXACT, dataset.target_transform
    for index in (0, 2, -1):
        assert torch.equal(dataset[index][0], folder[index][0]) and dataset[index][1] == folder[index][1]
    assert_same_epoch(ours(dataset, 5, device="cpu"), stock(folder, 5))
    workers = data.DataLoader(DALIImageList(files, folder.targets, EXACT), 12, num_workers=1)
    folder.target_transform = None
    assert_same_epoch(workers, stock(folder, 12))


@pytest.mark.parametrize("kind", [str, os.fsencode, Path], ids=["str", "bytes", "Path"])
def test_paths_of_any_type_are_accepted(files, image_root, kind):
    assert DALIImageList(map(kind, files)).paths == files
    relative_paths = [kind(os.path.relpath(path, image_root)) for path in files]
    assert DALIImageList(relative_paths, root=image_root).paths == files
    assert DALIImageList([*relative_paths[:1], kind(files[1])], root=str(image_root)).paths == files[:2]


def test_invalid_arguments_of_a_list_are_refused(files):
    with pytest.raises(ValueError, match="24 paths, but 2 targets; pass one target per path"):
        DALIImageList(files, [0, 1])
    with pytest.raises(TypeError, match="must be str, bytes or PathLike"):
        DALIImageList([1, 2])
    with pytest.raises(TypeError, match="a sequence of paths, got a single path"):
        DALIImageList("a.jpg")
    hidden = DALIImageList(files, np.ma.masked_array(np.arange(24.0), np.arange(24) == 3), EXACT)
    with pytest.raises(TypeError, match="NoneType"):
        list(ours(hidden, 5, device="cpu"))


def test_changes_of_targets_and_paths_take_effect_and_are_copied(files):
    dataset = DALIImageList(files, list(range(COUNT)), EXACT)
    loader = ours(dataset, 5, device="cpu")
    assert_equals_torch(dataset, loader)
    dataset.targets[3] = 99
    dataset.paths[0], dataset.paths[5] = dataset.paths[5], dataset.paths[0]
    assert_equals_torch(dataset, loader)
    dataset.targets = torch.rand(COUNT, 2)
    assert_equals_torch(dataset, loader)
    dataset.targets[2] = 5
    assert_equals_torch(dataset, loader)
    for copied in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert copied.paths == dataset.paths and torch.equal(copied.targets, dataset.targets)


def test_a_batch_may_mix_lists_folders_and_subsets(folder, files):
    """One batch has rows of a list with ints, of a folder, and of a list with a tensor."""
    folder.transform = EXACT
    tensors = DALIImageList(files, torch.arange(COUNT), EXACT, int)
    whole = data.ConcatDataset([DALIImageList(files, folder.targets, EXACT), data.Subset(folder, [5, 2]), tensors])
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0)).tolist()
    assert_same_epoch(ours(whole, 7, sampler=order, device="cpu"), stock(whole, 7, sampler=order))


def test_collate_fn_gets_targets_of_their_types(files):
    for targets in (list(range(COUNT)), [i / 3 for i in range(COUNT)], torch.rand(COUNT, 2), ["a", None] * 12):
        dataset = DALIImageList(files, targets, EXACT)
        samples = [sample for batch in ours(dataset, 9, device="cpu", collate_fn=list) for sample in batch]
        assert [type(target) for _, target in samples] == [type(dataset[0][1]), type(dataset[1][1])] * 12
        assert [str(target) for _, target in samples] == [str(target) for target in dataset.targets]


def _change_in_place(target):
    if isinstance(target, list):
        target.append(len(target))
        return sum(target)
    if isinstance(target, dict):
        target["a"] += 1
        return target["a"]
    target += 1
    return target


def _collate_changed_targets(samples):
    return [_change_in_place(target) for _, target in samples]


MUTABLE = {
    "lists": lambda: [[i, 1] for i in range(COUNT)],
    "dicts": lambda: [{"a": i} for i in range(COUNT)],
    "arrays": lambda: [np.full(2, i) for i in range(COUNT)],
    "tensors": lambda: [torch.full((2,), i) for i in range(COUNT)],
    "a tensor": lambda: torch.zeros(COUNT, 2),
}


@pytest.mark.alike
@pytest.mark.parametrize("case", MUTABLE)
@pytest.mark.parametrize(
    "options", [{"batch_size": 9, "collate_fn": _collate_changed_targets}, {"batch_size": None}, {"batch_size": 9}]
)
@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "files"])
def test_targets_changed_in_place_are_unchanged_in_the_data_set(files, case, options, arrays):
    """torch's workers change a copy that is made for each epoch."""
    targets = MUTABLE[case]()
    changes = None if "collate_fn" in options else _change_in_place
    if arrays:
        dataset = DALIArrayDataset(np.zeros((COUNT, 8, 8, 3), np.uint8), targets, T.PILToTensor(), changes)
    else:
        dataset = DALIImageList(files, targets, EXACT, changes)
    loader = ours(dataset, device="cpu", num_workers=1, **options)
    # One batch ahead: torch's worker moves the memory of the targets that it sends, and loses changes made meanwhile.
    torchs = stock(dataset, num_workers=1, prefetch_factor=1, **options)
    for _ in range(2):
        for mine, theirs in zip(loader, torchs, strict=True):
            assert str(mine[1:]) == str(theirs[1:])
    assert str(dataset.targets) == str(MUTABLE[case]())


def test_sparse_targets_reach_collate_fn(files):
    dataset = DALIImageList(files, torch.eye(COUNT).to_sparse(), EXACT)
    batches = ours(dataset, 9, device="cpu", collate_fn=lambda samples: [target.to_dense() for _, target in samples])
    assert torch.equal(torch.stack([target for batch in batches for target in batch]), torch.eye(COUNT))


@pytest.mark.filterwarnings("ignore:epoch 0")
def test_a_bad_file_is_named_or_skipped(files, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"nothing")
    dataset = DALIImageList([files[0], str(bad), files[2]], torch.rand(3, 2), EXACT)
    with pytest.raises(OSError, match=r"bad\.jpg, index 1"):
        list(ours(dataset, 3, device="cpu"))
    with pytest.warns(BadImageWarning, match=r"bad\.jpg"):
        ((images, targets),) = ours(dataset, 3, device="cpu", on_error="skip")
    assert len(images) == 2 and torch.equal(targets, dataset.targets[[0, 2]])


def test_a_subclass_that_overrides_getitem_is_traced(files):
    class Named(DALIImageList):
        title = "mine"

    class Changed(DALIImageList):
        def __getitem__(self, index):
            return super().__getitem__(index)[0], 5

    assert ours(Named(files, None, EXACT), device="cpu").explain().startswith("DALI route")
    changed = Changed(files, None, EXACT)
    loader = ours(changed, 5, device="cpu")
    assert "Changed runs in" in loader.explain()
    assert_same_epoch(loader, stock(changed, 5))


# ---- tables


@pytest.fixture
def table(tmp_path, image_root):
    """Function that writes a CSV file and returns its path."""

    def write(columns: dict[str, list], name="train.csv") -> Path:
        with open(tmp_path / name, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        return tmp_path / name

    return write


@pytest.fixture
def relative_paths(files, image_root) -> list[str]:
    """Paths relative to the root."""
    return [os.path.relpath(path, image_root) for path in files]


NAMES = ["größe", "ant", "zoo, big"] * 8


def test_classes_of_a_column_are_sorted(table, relative_paths, image_root):
    path = table({"id": range(COUNT), "file": relative_paths, "label": NAMES})
    dataset = DALIImageTable(path, root=image_root, transform=EXACT)
    assert dataset.classes == ["ant", "größe", "zoo, big"]
    assert dataset.class_to_idx == {"ant": 0, "größe": 1, "zoo, big": 2}
    assert dataset.targets == [1, 0, 2] * 8
    assert_equals_torch(dataset)


COLUMNS = {
    "ints": (["3", "-1", " 0"] * 8, [3, -1, 0] * 8, torch.int64),
    "floats": (["1.5", "2", "-1e-2"] * 8, [1.5, 2, -0.01] * 8, torch.float32),
    "names of numbers and text": (["a1", "b", "c"] * 8, [0, 1, 2] * 8, torch.int64),
    "booleans": (["True", "False", "True"] * 8, [1, 0, 1] * 8, torch.int64),
    "one boolean": (["true"] * COUNT, [1] * COUNT, torch.int64),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_column_of_numbers_or_names_becomes_targets(table, relative_paths, image_root, case):
    cells, expected, dtype = COLUMNS[case]
    dataset = DALIImageTable(table({"file": relative_paths, "label": cells}), root=image_root, transform=EXACT)
    theirs = assert_equals_torch(dataset)
    assert theirs[0][1].dtype == dtype
    assert np.allclose([value for batch in theirs for value in batch[1].tolist()], expected)


SEVERAL = {  # separator, cells, classes, targets
    "spaces": (" ", ["cat dog", "", " ant  cat "], ["ant", "cat", "dog"], [[0, 1, 1], [0, 0, 0], [1, 1, 0]]),
    "commas": (",", ["b, a", "b", "a c,b,b"], ["a", "a c", "b"], [[1, 0, 1], [0, 0, 1], [0, 1, 1]]),
    "numbers": ("|", ["10|2", "2", "9"], ["2", "9", "10"], [[1, 0, 1], [1, 0, 0], [0, 1, 0]]),
    "numbers and text": (" ", ["10 x", "9", "x"], ["10", "9", "x"], [[1, 0, 1], [0, 1, 0], [0, 0, 1]]),
    "one in each": (";", ["a", "b", "a"], ["a", "b"], [[1, 0], [0, 1], [1, 0]]),
}


@pytest.mark.parametrize("case", SEVERAL)
@pytest.mark.parametrize("of_pandas", [False, True], ids=["csv", "pandas"])
def test_several_labels_in_a_cell_become_vectors(table, relative_paths, image_root, case, of_pandas):
    separator, cells, classes, targets = SEVERAL[case]
    source = table({"file": relative_paths, "label": cells * 8})
    if of_pandas:
        source = pytest.importorskip("pandas").read_csv(source, dtype=str)
    dataset = DALIImageTable(source, root=image_root, transform=EXACT, separator=separator)
    assert dataset.classes == classes and dataset.class_to_idx == {name: at for at, name in enumerate(classes)}
    assert dataset.targets.dtype == torch.float32 and dataset.targets.tolist() == targets * 8
    assert assert_equals_torch(dataset)[0][1].tolist() == (targets * 8)[:5]


def test_an_empty_cell_error_suggests_the_separator(table):
    cells = ["cat dog", "", "dog", "cat"]
    with pytest.raises(ValueError, match=r"1 row has an empty 'label' \(separator=' ' lets a cell have .*\): line 3"):
        DALIImageTable(table({"file": list("abcd"), "label": cells}), check_files=False)


def test_several_labels_with_classes_of_another_table_become_vectors(table, relative_paths, image_root):
    options = {"root": image_root, "separator": " ", "classes": ["dog", "emu", "cat"]}
    val = DALIImageTable(table({"file": relative_paths[:2], "label": ["cat dog", "cat"]}), **options)
    assert val.classes == options["classes"] and val.targets.tolist() == [[1, 0, 1], [0, 0, 1]]
    path = table({"file": relative_paths[:3], "label": ["cat", "cat cow", "hen"]})
    with pytest.raises(ValueError, match="2 rows have a label in 'label' that is not in classes: line 3, line 4"):
        DALIImageTable(path, **options)


@pytest.mark.parametrize("target, separator", [("label", ""), (["label"], " "), (None, " "), (["label", "file"], " ")])
def test_a_separator_needs_one_column(table, target, separator):
    with pytest.raises(ValueError, match="needs a non-empty text and one target column"):
        DALIImageTable(table({"file": ["a"], "label": ["b"]}), "file", target, separator=separator, check_files=False)


def test_a_separator_needs_text():
    frame = pytest.importorskip("pandas").DataFrame({"file": ["a", "b", "c"], "label": ["1 2", 3, 0.5]})
    with pytest.raises(ValueError, match="2 rows have no text in 'label', which separator= needs: row 1, row 2"):
        DALIImageTable(frame, separator=" ", check_files=False)


SEPARATOR_HINTS = {
    "two of two": (["cat dog", "cat", "dog"], " "),
    "of many": (["a;b;c", "a", "b", "c", "a;c"], ";"),
    "names with spaces": (["golden retriever", "labrador retriever", "cat"], None),
    "colours and kinds": ([f"{a} {b}" for a in ("red", "blue", "green") for b in ("car", "bus", "van")], None),
    "one name": (["cat"], None),
    "a name within another name": (["bear", "polar bear", "brown bear", "cat"], None),
}


@pytest.mark.parametrize("case", SEPARATOR_HINTS)
def test_cells_that_look_like_several_labels_give_a_hint(table, case):
    cells, separator = SEPARATOR_HINTS[case]
    path = table({"file": cells, "label": cells})

    def message_of(**options) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            DALIImageTable(path, check_files=False, **options)
        return [str(one.message) for one in caught if one.filename == __file__] + caught[1:]

    assert [f"separator={separator!r} for vectors" in text for text in message_of()] == [True] * bool(separator)
    assert message_of(classes=sorted(set(cells))) == message_of(separator="/") == []


def test_several_columns_become_vectors(table, relative_paths, image_root):
    path = table({"a": ["1", "0"] * 12, "image": relative_paths, "b": ["0.5", "2"] * 12})
    dataset = DALIImageTable(path, "image", ["b", "a"], EXACT, root=image_root)
    assert dataset.targets.dtype == torch.float32 and dataset.targets[:2].tolist() == [[0.5, 1], [2, 0]]
    assert dataset.classes is None
    assert_equals_torch(dataset)
    one = DALIImageTable(path, "image", ["b"], root=image_root)
    assert one.targets.shape == (COUNT, 1)
    assert DALIImageTable(path, "image", ["a", "a", "b"], root=image_root).targets[1].tolist() == [0, 0, 2]
    assert DALIImageTable(path, "image", None, root=image_root).targets == [-1] * COUNT


def test_classes_of_another_table_number_the_labels(table, relative_paths, image_root):
    first = DALIImageTable(table({"file": relative_paths, "label": NAMES}), root=image_root)
    path = table({"file": relative_paths[:2], "label": ["zoo, big", "ant"]}, "val.csv")
    second = DALIImageTable(path, root=image_root, classes=first.classes)
    assert second.targets == [2, 0] and second.classes == first.classes
    with pytest.raises(ValueError, match="1 row has a 'label' that is not in classes: line 3"):
        DALIImageTable(path, root=image_root, classes=["zoo, big"])
    path = table({"file": relative_paths[:3], "label": ["10", "9", "x"]}, "numbers.csv")
    assert DALIImageTable(path, root=image_root, classes=["x", "9", "10"]).targets == [2, 1, 0]


def test_missing_files_are_named_with_their_lines(table, relative_paths, image_root, files):
    relative_paths[3], relative_paths[20] = "class_a/no.jpg", "nowhere/a.jpg"
    path = table({"file": relative_paths, "label": NAMES})
    with pytest.raises(FileNotFoundError, match=r"^2 of 24 files are missing: line 5: .*no\.jpg; line 22: .*a\.jpg$"):
        DALIImageTable(path, root=image_root)
    assert len(DALIImageTable(path, root=image_root, check_files=False)) == COUNT
    with pytest.raises(FileNotFoundError, match=r"^24 of 24 files are missing: line 2: .*; line 6: [^;]*$"):
        DALIImageTable(path)
    os.symlink(image_root, path.parent / "images")
    path = table({"file": [f"images/{name}" for name in relative_paths[:2]], "label": NAMES[:2]})
    with pytest.raises(FileNotFoundError, match=rf"\(they are in root='{path.parent}'\)"):
        DALIImageTable(path)
    assert len(DALIImageTable(table({"file": files, "label": NAMES}))) == COUNT


@pytest.mark.parametrize("of_pandas", [False, True], ids=["csv", "pandas"])
def test_missing_files_found_elsewhere_give_a_hint(tmp_path, monkeypatch, of_pandas):
    monkeypatch.chdir(tmp_path)
    for name in ("data/photos/1.jpg", "data/photos/2.jpg", "data/other/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")

    def message_of(text: str, **options) -> str:
        (tmp_path / "data" / "a.csv").write_text(text)
        source = (
            pytest.importorskip("pandas").read_csv(tmp_path / "data/a.csv", dtype=str) if of_pandas else "data/a.csv"
        )
        with pytest.raises(FileNotFoundError) as raised:
            DALIImageTable(source, target=None, **options)
        return str(raised.value).partition(": line" if not of_pandas else ": row")[0]

    found_in = "" if of_pandas else f" (they are in root={f'{tmp_path}/data/photos'!r}"
    names, plain = "file\n1.jpg\n2.jpg\n", "file\n1\n2\n"
    assert message_of(names) == "2 of 2 files are missing" + (found_in and f"{found_in})")
    assert message_of(plain) == "2 of 2 files are missing" + (
        found_in and f"{found_in}, and end in '.jpg': add it to the column)"
    )
    missing = "2 of 2 files are missing (they are"
    assert message_of(names, root="data") == f"{missing} in root='data/photos')"
    assert message_of(plain, root="data/photos") == f"{missing} there, and end in '.jpg': add it to the column)"
    assert message_of("file\n1.jpg\n3.jpg\n4.jpg\n", root="data") == "3 of 3 files are missing"
    assert message_of(names, root="nowhere") == "2 of 2 files are missing"
    monkeypatch.chdir(tmp_path / "data" / "photos")
    if of_pandas:
        assert message_of(plain) == f"{missing} there, and end in '.jpg': add it to the column)"


REFUSED = {
    "unknown column": (
        {"fil": ["a"], "label": ["b"]},
        r"no column 'file' \(did you mean 'fil'\?\); it has 'fil', 'label'",
    ),
    "empty label": ({"file": list("abc"), "label": ["", "x", " "]}, "2 rows have an empty 'label': line 2, line 4"),
    "empty file": ({"file": [""] * 7, "label": list("abcdefg")}, "7 rows have an empty 'file': .*line 6, ..."),
    "too many digits": (
        {"file": list("abc"), "label": ["1", str(2**63), str(-(2**63))]},
        "1 row has a number in 'label' that does not fit into int64: line 3$",
    ),
    "other digits": ({"file": list("abc"), "label": ["1", "٢", "3"]}, "no number in 'label'.*: line 3"),
    "text among numbers": ({"file": list("abc"), "label": ["1", "nan", "2.5"]}, "no number in 'label'.*: line 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_columns_and_cells_are_refused(table, case):
    columns, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        DALIImageTable(table(columns))


def test_invalid_tables_are_refused(table, tmp_path):
    path = table({"file": ["a", "b"], "x": ["1", "2"], "y": ["c", "d"]})
    with pytest.raises(ValueError, match="2 rows have no number in 'y': line 2, line 3"):
        DALIImageTable(path, target=["x", "y"])
    path.write_text("file,label\na,1\nb,2,3\n")
    with pytest.raises(ValueError, match="line 3: the line has 3 cells, but the header has 2"):
        DALIImageTable(path)
    path.write_text("file,label,label\na,1,2\n")
    with pytest.raises(ValueError, match="several columns named 'label'"):
        DALIImageTable(path)
    path.write_text("")
    with pytest.raises(ValueError, match="no column 'file'; it has none"):
        DALIImageTable(path)
    with pytest.raises(FileNotFoundError, match="absent"):
        DALIImageTable(tmp_path / "absent.csv")


DAMAGED = {
    "a quote that is not closed": (b'file,label\na,"x\nb,y\nc,z\n', "line 2: unexpected end of data"),
    "after cells of several lines": (b'file,label\n"a\na",x\nb,"y\n', "line 4: unexpected end"),
    "a quote within a cell's quotes": (b'file,label\na,x\nb,"y"z\n', "line 3: ',' expected"),
    "UTF-16": ("file,label\na,x\n".encode("utf-16"), "line 1: 'utf-8' codec can't decode"),
    "Latin-1": ("file,label\na,x\nb,größe\n".encode("latin-1"), "line 3: 'utf-8' codec can't decode"),
    "a large field": (f"file,label,note\na,x,\nb,y,{'n' * 140_000}\n".encode(), "line 3: field larger than"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_tables_name_the_line_and_a_remedy(tmp_path, case):
    """pandas also refuses most of these files."""
    content, text = DAMAGED[case]
    path = tmp_path / "damaged.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"damaged\.csv, {text}.*; repair the file, or read it with pandas"):
        DALIImageTable(path, check_files=False)


CLASSES = {
    "twice": (["cat", "b", "cat"], "'cat' 2 times"),
    "numbers": ([1, 2], "1, but cells are text; write '1'"),
    "no order": ({"a", "b"}, "must be an ordered list of names, got a set"),
    "one name": ("ab", "must be an ordered list of names, got a str"),
    "numbers of names": ({"a": 1, "b": 0}, "must be an ordered list of names, got a dict"),
}


@pytest.mark.parametrize("case", CLASSES)
def test_invalid_classes_are_refused(table, case):
    classes, text = CLASSES[case]
    with pytest.raises(ValueError, match=f"classes (contains )?{text}"):
        DALIImageTable(table({"file": ["a", "b"], "label": ["a", "b"]}), classes=classes, check_files=False)


def test_line_numbers_in_errors_are_those_of_the_file(table, relative_paths, image_root, tmp_path):
    """The file has a byte order mark, empty lines and a cell of several lines."""
    text = f'\ufefffile,note,label\r\n{relative_paths[0]},"two\r\nlines",a\r\n\r\n{relative_paths[1]},,\r\n'
    path = tmp_path / "marked.csv"
    path.write_bytes(text.encode())
    with pytest.raises(ValueError, match="1 row has an empty 'label': line 5"):
        DALIImageTable(path, root=image_root)


def test_a_csv_file_is_read_without_pandas(table, relative_paths, image_root, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert DALIImageTable(table({"file": relative_paths, "label": NAMES}), root=image_root).targets == [1, 0, 2] * 8


def test_a_data_frame_gives_the_same_samples_as_a_csv_file(table, relative_paths, image_root):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"file": relative_paths, "label": NAMES, "age": np.arange(COUNT) / 2, "n": range(COUNT)})
    dataset = DALIImageTable(frame, root=image_root, transform=EXACT)
    same = DALIImageTable(table({"file": relative_paths, "label": NAMES}), root=image_root)
    assert (dataset.samples, dataset.classes) == (same.samples, same.classes)
    assert_equals_torch(dataset)
    assert DALIImageTable(frame.astype({"label": "category"}), root=image_root).classes == same.classes
    assert DALIImageTable(frame, target="n", root=image_root).targets == list(range(COUNT))
    ages = DALIImageTable(frame, target="age", root=image_root).targets
    assert ages.dtype == torch.float32 and ages.tolist() == [i / 2 for i in range(COUNT)]
    assert DALIImageTable(frame, target=["age", "n"], root=image_root).targets[3].tolist() == [1.5, 3]
    frame.loc[frame.index[4], "label"] = None
    frame.loc[frame.index[6], "age"] = float("nan")
    frame.index = [f"id{i}" for i in range(COUNT)]
    for column, row in (("label", "id4"), ("age", "id6")):
        with pytest.raises(ValueError, match=f"1 row has an empty '{column}': row {row}$"):
            DALIImageTable(frame, target=column, root=image_root)
    with pytest.raises(ValueError, match="the table has no column 'labels'"):
        DALIImageTable(frame, target="labels")


def test_column_names_may_be_numbers_or_tuples(relative_paths, image_root):
    """A MultiIndex has tuples as names."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({0: relative_paths, 1: range(COUNT), 2: 0.5})
    assert DALIImageTable(frame, 0, 1, root=image_root).targets == list(range(COUNT))
    assert DALIImageTable(frame, 0, (2, 1), root=image_root).targets[3].tolist() == [0.5, 3]
    with pytest.raises(ValueError, match="no column 5; it has 0, 1, 2"):
        DALIImageTable(frame, 0, 5, root=image_root)
    frame.columns = pandas.MultiIndex.from_tuples([("image", "file"), ("label", "a"), ("label", "b")])
    image, a, b = frame.columns
    assert DALIImageTable(frame, image, a, root=image_root).targets == list(range(COUNT))
    assert DALIImageTable(frame, image, [b, a], root=image_root).targets[3].tolist() == [0.5, 3]
    with pytest.raises(ValueError, match="no column 'label'"):
        DALIImageTable(frame, image, "label", root=image_root)


VECTORS = {
    "one without a value": [[1.0, None], [1.0, 2.0]],
    "text": [["1", "2"], [1, 2]],
    "objects": [np.array([1.0, None], object), np.ones(2)],
    "lists of several lengths": [[[1, 2], [3]], [1, 2]],
}


@pytest.mark.parametrize("case", VECTORS)
def test_vectors_with_other_values_than_numbers_are_refused(case):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"^1 row has something other than 2 numbers in 'label': row 0$"):
        DALIImageTable(pandas.DataFrame({"file": ["a", "b"], "label": VECTORS[case]}), check_files=False)


# ---- warnings for custom data sets


class CustomDataset(data.Dataset):
    def __init__(self, files, labels, transform):
        self.names, self.labels, self.transform = files, labels, transform

    def __len__(self):
        return len(self.names)


class HalvesPixels(CustomDataset):
    def __getitem__(self, index):
        image = Image.open(self.names[index]).convert("RGB")
        return self.transform(image) // self.divisor, self.labels[index]

    divisor = 2


class MirrorsPixels(CustomDataset):
    def __getitem__(self, index):
        pixels = np.asarray(Image.open(self.names[index]).convert("RGB"))
        return self.transform(Image.fromarray(np.ascontiguousarray(pixels[:, ::-1]))), self.labels[index]


class OnlyTransforms(CustomDataset):
    """A data set that changes the image only by its transform."""

    def __getitem__(self, index):
        return self.transform(Image.open(self.names[index]).convert("RGB")), self.labels[index]


class GivesImages(CustomDataset):
    def __getitem__(self, index):
        return self.opened(self.names[index]), self.labels[index]

    def opened(self, name):
        return Image.open(name)


def collate_cropped(samples):
    images, labels = zip(*samples, strict=True)
    return [torch.stack([EXACT(image.convert("RGB")) for image in images]), torch.tensor(labels)]


# Reason: data set, its arguments, remedy in the warning, transform that follows the remedy, and the computation that
# remains for the training loop
REMEDIES = {
    "uses the tensor's floor_divide": (HalvesPixels, {}, "do this on the batch", EXACT, lambda images: images // 2),
    "uses the image's": (
        MirrorsPixels,
        {},
        "do this with torchvision's transforms",
        T.Compose([T.RandomHorizontalFlip(1), EXACT]),
        None,
    ),
}


@pytest.mark.parametrize("reason", REMEDIES)
def test_following_the_remedy_of_a_warning_gives_the_same_batches(folder, files, reason):
    """The warning names the reason. Code that follows the remedy runs on the DALI route."""
    kind, options, remedy, transform, in_the_loop = REMEDIES[reason]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(kind(files, folder.targets, EXACT), 5, **options)
    (message,) = [str(one.message) for one in caught if issubclass(one.category, FallbackWarning)]
    assert message.startswith(f"torchvision does the work: {kind.__name__} {reason}") and remedy in message
    assert "is not an image folder" not in message
    assert remedy in loader.explain() and "DALIImageList" not in message
    mine = ours(OnlyTransforms(files, folder.targets, transform), 5, device="cpu", exact=True)
    assert mine.explain().startswith("DALI route")
    batches = [[in_the_loop(images) if in_the_loop else images, labels] for images, labels in mine]
    assert_same_epoch(batches, stock(kind(files, folder.targets, EXACT), 5, **options))


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_that_collate_fn_makes_of_images_come_from_dali(folder, files, workers):
    options = {"collate_fn": collate_cropped, "num_workers": workers, "shuffle": True}
    mine = ours(GivesImages(files, folder.targets, EXACT), 5, device="cpu", exact=True, **options)
    torch.manual_seed(3)
    batches = list(mine)
    torch.manual_seed(3)
    assert_same_epoch(batches, stock(GivesImages(files, folder.targets, EXACT), 5, **options))
    assert mine._route.realized == 0


def test_collate_fn_that_keeps_images_falls_back(folder, files):
    with pytest.warns(FallbackWarning, match="GivesImages returns images, not tensors; convert them to tensors"):
        DataLoader(GivesImages(files, folder.targets, EXACT), 5, collate_fn=list, device="cpu")


class InMemory(torch.utils.data.Dataset):
    def __init__(self, files):
        self.images = [Image.open(file).convert("RGB") for file in files]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return EXACT(self.images[index]), index


def test_images_in_memory_fall_back_with_advice(files):
    with pytest.warns(FallbackWarning, match="InMemory opens no image file.*DALIArrayDataset"):
        DataLoader(InMemory(files[:3]), 2, device="cpu")
