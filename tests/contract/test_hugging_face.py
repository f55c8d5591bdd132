"""DALIHuggingFace: rows equal those of datasets, bytes are Arrow's, and unsupported data sets are refused."""

import copy
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from contract.both import EXACT, assert_same_epoch, ours, stock
from dali_compat import BadImageWarning, DALIHuggingFace, DataLoader, ImageReadError

hf = pytest.importorskip("datasets")
COUNT = 24


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    """Keep files out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))
        yield


@pytest.fixture(scope="module")
def rows(image_root):
    """(path, label) pairs of an image folder."""
    return ImageFolder(image_root).samples


def make_dataset(rows, embed=True, **columns):
    """Return a data set of encoded bytes or of paths."""
    images = [
        {"bytes": Path(path).read_bytes() if embed else None, "path": Path(path).name if embed else path}
        for path, _ in rows
    ]
    labels = hf.ClassLabel(names=["c", "a", "b"])
    features = {"image": hf.Image(), "label": labels}
    table = {"image": images, "label": [label for _, label in rows]}
    dataset = hf.Dataset.from_dict(table, features=hf.Features(features))
    for name, values in columns.items():
        dataset = dataset.add_column(name, values)
    return dataset


class TypicalDataset(data.Dataset):
    """A data set as in a typical script."""

    def __init__(self, dataset, transform):
        self.dataset, self.transform = dataset, transform

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        row = self.dataset[index]
        return self.transform(row["image"].convert("RGB")), row["label"]


def assert_rows(dataset, loader=None) -> None:
    """Check that loaders of dali_compat and of torch give the rows of the data set."""
    theirs = list(stock(TypicalDataset(dataset, EXACT), 7))
    mine = DALIHuggingFace(dataset, transform=EXACT)
    loader = ours(mine, 7, device="cpu")
    assert loader.explain().startswith("DALI route")
    assert_same_epoch(loader, theirs)
    assert_same_epoch(stock(mine, 7), theirs)


@pytest.mark.parametrize("embed", [True, False], ids=["bytes", "paths"])
def test_rows_labels_and_classes_equal_those_of_datasets(rows, embed):
    dataset = make_dataset(rows, embed)
    assert_rows(dataset)
    assert (DALIHuggingFace(dataset).paths is None) == embed
    mine = DALIHuggingFace(dataset, transform=EXACT, target_transform=lambda target: -target)
    assert mine.classes == ["c", "a", "b"] and mine.class_to_idx == {"c": 0, "a": 1, "b": 2}
    assert mine[-1][1] == -2 and len(mine) == COUNT
    assert [batch[1].tolist() for batch in ours(mine, 12, device="cpu")] == [
        [-label for _, label in rows[:12]],
        [-label for _, label in rows[12:]],
    ]


VIEWS = {
    "select": lambda dataset: dataset.select([5, 2, 2, 23]),
    "range": lambda dataset: dataset.select(range(3, 11)),
    "shuffle": lambda dataset: dataset.shuffle(seed=1),
    "both": lambda dataset: dataset.shuffle(seed=1).select(range(9)),
    "split": lambda dataset: dataset.train_test_split(0.3, seed=0)["test"],
    "concatenated": lambda dataset: hf.concatenate_datasets([dataset.select([3]), dataset, dataset.select([9, 1])]),
    "not decoded": lambda dataset: dataset.cast_column("image", hf.Image(decode=False)).cast_column(
        "image", hf.Image()
    ),
}


@pytest.mark.parametrize("view", VIEWS)
def test_rows_of_views_equal_those_of_datasets(rows, view):
    assert_rows(VIEWS[view](make_dataset(rows)))


@pytest.mark.parametrize("embed", [True, False], ids=["bytes", "paths"])
def test_rows_loaded_from_parquet_and_folders_equal_those_of_datasets(rows, image_root, tmp_path, embed):
    if embed:
        make_dataset(rows).to_parquet(tmp_path / "a.parquet", batch_size=7)
        dataset = hf.load_dataset("parquet", data_files=str(tmp_path / "a.parquet"), split="train", cache_dir=tmp_path)
    else:
        dataset = hf.load_dataset("imagefolder", data_dir=str(image_root), split="train", cache_dir=tmp_path)
    assert_rows(dataset.shuffle(seed=3))


def test_bytes_are_views_of_arrows_buffer(rows):
    """Bytes are not copied, in any order of rows."""
    dataset = make_dataset(rows).shuffle(seed=0)
    mine = DALIHuggingFace(dataset)
    (chunk,) = dataset.data.column("image").chunks
    buffers = [buffer for buffer in chunk.field("bytes").buffers() if buffer is not None]
    low, high = buffers[-1].address, buffers[-1].address + buffers[-1].size
    order = dataset._indices.column(0).to_pylist()
    for row, image in enumerate(mine.read(range(COUNT))):
        assert image.tobytes() == Path(rows[order[row]][0]).read_bytes()
        assert not image.flags.writeable and low <= image.ctypes.data < high
    assert [image.tobytes() for image in mine.read([-1])] == [mine.read([COUNT - 1])[0].tobytes()]
    with pytest.raises(IndexError, match="24"):
        mine.read([COUNT])


def test_rows_with_paths_and_rows_with_bytes_can_be_mixed(rows, tmp_path):
    both = hf.concatenate_datasets([make_dataset(rows[:5]), make_dataset(rows[5:9], embed=False)])
    assert_rows(both)
    mine = DALIHuggingFace(make_dataset([*rows[:2], (str(tmp_path / "none.jpg"), 1)], embed=False))
    with pytest.raises(OSError, match=r"none\.jpg"):
        mine[2]


@pytest.mark.parametrize("embed", [True, False], ids=["bytes", "paths"])
def test_images_are_turned_by_their_exif_orientation(tmp_path, embed):
    rows = []
    for orientation in (1, 6, 3, None):
        exif = Image.Exif()
        exif[0x010F] = "a camera"
        if orientation:
            exif[0x0112] = orientation
        pixels = np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8)
        for kind in ("jpg", "png"):
            rows.append((str(tmp_path / f"{orientation}.{kind}"), 0))
            Image.fromarray(pixels).save(rows[-1][0], exif=exif)
    assert_rows(make_dataset(rows, embed))


def test_targets_come_from_columns_of_any_type(rows):
    dataset = make_dataset(
        rows,
        score=[i / 3 for i in range(COUNT)],
        name=["x", "a"] * 12,
        hot=[[1.0, 0.0, 2.0]] * COUNT,
        number=list(range(COUNT)),
        yes=[True, False] * 12,
    ).shuffle(seed=2)

    def targets(name):
        return DALIHuggingFace(dataset, target=name).targets

    assert targets("number") == dataset["number"][:] and targets("yes") == [int(yes) for yes in dataset["yes"]]
    assert torch.equal(targets("score"), torch.tensor(dataset["score"][:], dtype=torch.float32))
    assert targets("hot").dtype == torch.float32 and targets("hot").shape == (COUNT, 3)
    assert targets(["score", "yes"]).shape == (COUNT, 2) and targets(None) == [-1] * COUNT
    named = DALIHuggingFace(dataset, target="name", transform=EXACT)
    assert named.classes == ["a", "x"] and [named.classes[i] for i in named.targets] == dataset["name"][:]
    for mine, theirs in zip(
        ours(DALIHuggingFace(dataset, target="score", transform=EXACT), 7, device="cpu"),
        stock(DALIHuggingFace(dataset, target="score", transform=EXACT), 7),
        strict=True,
    ):
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1]) and mine[1].dtype == torch.float32


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_give_the_same_batches(rows, copied):
    mine = DALIHuggingFace(make_dataset(rows).select([4, 1, 7]), transform=EXACT)
    assert_same_epoch(ours(copied(mine), 2, device="cpu"), stock(mine, 2))


def test_a_state_of_rows_in_another_order_is_refused(rows):
    """The rows have no names and equal targets."""
    table = make_dataset([(path, 0) for path, _ in rows]).cast_column("image", hf.Image(decode=False)).to_dict()
    for image in table["image"]:
        image["path"] = None
    dataset = hf.Dataset.from_dict(table, features=hf.Features(image=hf.Image(), label=hf.Value("int64")))
    states = [
        ours(DALIHuggingFace(one, transform=EXACT), 5, device="cpu").state_dict()
        for one in (dataset, dataset.select(range(COUNT)[::-1]))
    ]
    loader = ours(DALIHuggingFace(dataset, transform=EXACT), 5, device="cpu")
    loader.load_state_dict(states[0])
    with pytest.raises(ValueError, match="data set"):
        loader.load_state_dict(states[1])


def test_torchs_workers_give_the_same_batches(rows):
    mine = DALIHuggingFace(make_dataset(rows), transform=EXACT)
    assert_same_epoch(data.DataLoader(mine, 12, num_workers=1), ours(mine, 12, device="cpu"))


@pytest.mark.filterwarnings("ignore:epoch 0")
def test_a_damaged_image_is_named_or_skipped(rows):
    dataset = make_dataset(rows[:4])
    table = dataset.cast_column("image", hf.Image(decode=False)).to_dict()
    table["image"][2]["bytes"] = b"no image"
    mine = DALIHuggingFace(hf.Dataset.from_dict(table, features=dataset.features), transform=EXACT)
    place = rf"row 2 of 'image' \({Path(rows[2][0]).name}\)"
    with pytest.raises(ImageReadError, match=f"cannot decode {place}"):
        mine[2]
    with pytest.raises(ImageReadError, match=place):
        list(ours(mine, 4, device="cpu"))
    with pytest.warns(BadImageWarning, match="row 2"):
        assert [len(images) for images, _ in ours(mine, 4, device="cpu", on_error="skip")] == [3]


def test_unsupported_data_sets_and_columns_are_refused(rows):
    dataset = make_dataset(rows[:4], text=["a", "b", "c", None])
    refused = {
        "a streamed data set has no random access": (TypeError, dataset.to_iterable_dataset(), {}),
        r"pass a split such as dataset\['train'\]": (TypeError, hf.DatasetDict(train=dataset), {}),
        "must be a datasets.Dataset, got list": (TypeError, [], {}),
        "pass the transform as transform=": (ValueError, dataset.with_transform(lambda batch: batch), {}),
        "no column 'img' .did you mean 'image'..; it has 'image', 'label', 'text'": (
            ValueError,
            dataset,
            {"image": "img"},
        ),
        "no column 'labels'": (ValueError, dataset, {"target": "labels"}),
        "cast_column\\('text', datasets.Image\\(\\)\\)": (ValueError, dataset, {"image": "text"}),
        "1 row has an empty 'text': row 3": (ValueError, dataset, {"target": "text"}),
        "images of mode 'L'": (ValueError, dataset.cast_column("image", hf.Image(mode="L")), {}),
    }
    for text, (kind, given, options) in refused.items():
        with pytest.raises(kind, match=text):
            DALIHuggingFace(given, **options)
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    table = {"image": [None, {"bytes": buffer.getvalue(), "path": None}, None], "label": [0, 1, 2]}
    features = hf.Features(image=hf.Image(), label=hf.Value("int64"))
    with pytest.raises(ValueError, match="2 rows have no image in 'image': row 0, row 2"):
        DALIHuggingFace(hf.Dataset.from_dict(table, features=features))


def test_following_the_remedy_for_a_formatted_data_set_keeps_the_rows(rows):
    """Batches are equal dictionaries."""
    dataset = make_dataset(rows[:4]).cast_column("image", hf.Image(mode="RGB")).with_format("torch")
    assert "; create its tensors in dataset.with_transform(...)" in DataLoader(dataset, 1, fallback="silent").explain()
    assert ";" not in DataLoader(dataset.remove_columns("image"), 2, fallback="silent").explain()

    def tensors(batch):
        return batch | {"image": [T.functional.pil_to_tensor(image) for image in batch["image"]]}

    mine = ours(dataset.with_transform(tensors), 1, device="cpu", exact=True)
    assert mine.explain().startswith("DALI route")
    for batch, theirs in zip(mine, stock(dataset, 1), strict=True):
        assert batch.keys() == theirs.keys()
        assert all(torch.equal(batch[name], theirs[name]) for name in theirs)


def test_cells_that_are_not_numbers_name_their_row(rows):
    columns = {"hot": [[1.0, None], [1.0, 2.0]], "text": [["1", "2"]] * 2, "large": np.array([1, 2**63], np.uint64)}
    for name, values in columns.items():
        with pytest.raises(ValueError, match=f"in '{name}'.*: row "):
            DALIHuggingFace(make_dataset(rows[:2], **{name: values}), target=name)


def test_assigning_another_data_set_is_refused(rows):
    mine = DALIHuggingFace(make_dataset(rows[:4]))
    with pytest.raises(AttributeError, match="create another DALIHuggingFace"):
        mine.dataset = make_dataset(rows)
    assert len(mine) == len(mine.targets) == 4
