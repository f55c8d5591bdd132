"""DALIHuggingFace: rows as datasets gives them, bytes as Arrow has them, and what is refused."""

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
    """Nothing is written to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))
        yield


@pytest.fixture(scope="module")
def rows(image_root):
    """(path, label) of an image folder."""
    return ImageFolder(image_root).samples


def made(rows, embed=True, **columns):
    """Of encoded bytes, or of paths."""
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


class Rows(data.Dataset):
    """What a script would write."""

    def __init__(self, dataset, transform):
        self.dataset, self.transform = dataset, transform

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        row = self.dataset[index]
        return self.transform(row["image"].convert("RGB")), row["label"]


def assert_rows(dataset, loader=None) -> None:
    """Ours over it, and torch's, give its rows."""
    theirs = list(stock(Rows(dataset, EXACT), 7))
    mine = DALIHuggingFace(dataset, transform=EXACT)
    loader = ours(mine, 7, device="cpu")
    assert loader.explain().startswith("DALI route")
    assert_same_epoch(loader, theirs)
    assert_same_epoch(stock(mine, 7), theirs)


@pytest.mark.parametrize("embed", [True, False], ids=["bytes", "paths"])
def test_rows(rows, embed):
    dataset = made(rows, embed)
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
def test_views_of_a_data_set(rows, view):
    assert_rows(VIEWS[view](made(rows)))


@pytest.mark.parametrize("embed", [True, False], ids=["bytes", "paths"])
def test_parquet_and_folders(rows, image_root, tmp_path, embed):
    """As they are loaded from disk."""
    if embed:
        made(rows).to_parquet(tmp_path / "a.parquet", batch_size=7)
        dataset = hf.load_dataset("parquet", data_files=str(tmp_path / "a.parquet"), split="train", cache_dir=tmp_path)
    else:
        dataset = hf.load_dataset("imagefolder", data_dir=str(image_root), split="train", cache_dir=tmp_path)
    assert_rows(dataset.shuffle(seed=3))


def test_bytes_are_arrows(rows):
    """No copy: a view of the buffer, whatever the order of rows."""
    dataset = made(rows).shuffle(seed=0)
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


def test_rows_with_paths_and_rows_with_bytes(rows, tmp_path):
    both = hf.concatenate_datasets([made(rows[:5]), made(rows[5:9], embed=False)])
    assert_rows(both)
    mine = DALIHuggingFace(made([*rows[:2], (str(tmp_path / "none.jpg"), 1)], embed=False))
    with pytest.raises(OSError, match=r"none\.jpg"):
        mine[2]


@pytest.mark.parametrize("embed", [True, False], ids=["bytes", "paths"])
def test_images_are_turned_as_their_exif_says(tmp_path, embed):
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
    assert_rows(made(rows, embed))


def test_columns_of_targets(rows):
    dataset = made(
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
def test_copies(rows, copied):
    mine = DALIHuggingFace(made(rows).select([4, 1, 7]), transform=EXACT)
    assert_same_epoch(ours(copied(mine), 2, device="cpu"), stock(mine, 2))


def test_a_state_of_another_order_is_refused(rows):
    """Where rows have no names and all targets are alike."""
    table = made([(path, 0) for path, _ in rows]).cast_column("image", hf.Image(decode=False)).to_dict()
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


def test_in_torchs_workers(rows):
    mine = DALIHuggingFace(made(rows), transform=EXACT)
    assert_same_epoch(data.DataLoader(mine, 12, num_workers=1), ours(mine, 12, device="cpu"))


@pytest.mark.filterwarnings("ignore:epoch 0")
def test_a_damaged_image(rows):
    dataset = made(rows[:4])
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


def test_what_is_refused(rows):
    dataset = made(rows[:4], text=["a", "b", "c", None])
    refused = {
        "a streamed data set has no random access": (TypeError, dataset.to_iterable_dataset(), {}),
        r"pass a split such as dataset\['train'\]": (TypeError, hf.DatasetDict(train=dataset), {}),
        "must be a datasets.Dataset, got list": (TypeError, [], {}),
        "pass it as transform= instead": (ValueError, dataset.with_transform(lambda batch: batch), {}),
        "no column 'img' .did you mean 'image'..; it has 'image', 'label', 'text'": (
            ValueError,
            dataset,
            {"image": "img"},
        ),
        "no column 'labels'": (ValueError, dataset, {"target": "labels"}),
        "cast_column\\('text', datasets.Image\\(\\)\\)": (ValueError, dataset, {"image": "text"}),
        "1 row with an empty 'text': row 3": (ValueError, dataset, {"target": "text"}),
        "images of mode 'L'": (ValueError, dataset.cast_column("image", hf.Image(mode="L")), {}),
    }
    for text, (kind, given, options) in refused.items():
        with pytest.raises(kind, match=text):
            DALIHuggingFace(given, **options)
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    table = {"image": [None, {"bytes": buffer.getvalue(), "path": None}, None], "label": [0, 1, 2]}
    features = hf.Features(image=hf.Image(), label=hf.Value("int64"))
    with pytest.raises(ValueError, match="2 rows with no image in 'image': row 0, row 2"):
        DALIHuggingFace(hf.Dataset.from_dict(table, features=features))


def test_the_remedy_keeps_the_rows(rows):
    """What the warning says is followed: batches are the same dictionaries."""
    dataset = made(rows[:4]).cast_column("image", hf.Image(mode="RGB")).with_format("torch")
    assert "; create its tensors in dataset.with_transform(...)" in DataLoader(dataset, 1, fallback="silent").explain()
    assert ";" not in DataLoader(dataset.remove_columns("image"), 2, fallback="silent").explain()

    def tensors(batch):
        return batch | {"image": [T.functional.pil_to_tensor(image) for image in batch["image"]]}

    mine = ours(dataset.with_transform(tensors), 1, device="cpu", exact=True)
    assert mine.explain().startswith("DALI route")
    for batch, theirs in zip(mine, stock(dataset, 1), strict=True):
        assert batch.keys() == theirs.keys()
        assert all(torch.equal(batch[name], theirs[name]) for name in theirs)


def test_cells_that_are_no_numbers(rows):
    columns = {"hot": [[1.0, None], [1.0, 2.0]], "text": [["1", "2"]] * 2, "large": np.array([1, 2**63], np.uint64)}
    for name, values in columns.items():
        with pytest.raises(ValueError, match=f"in '{name}'.*: row "):
            DALIHuggingFace(made(rows[:2], **{name: values}), target=name)


def test_another_data_set_in_its_place(rows):
    mine = DALIHuggingFace(made(rows[:4]))
    with pytest.raises(AttributeError, match="create another DALIHuggingFace"):
        mine.dataset = made(rows)
    assert len(mine) == len(mine.targets) == 4
