"""Iterable data sets are read by torch's loader, and DALI computes the images."""

from __future__ import annotations

import itertools
import pickle
import random
import re
import types
import warnings

import numpy as np
import pytest
import torch
from black_box import difference
from torch.utils import data

from contract.both import ours, stock
from contract.streams import (
    PROGRAMS,
    SMALL,
    TRAINING,
    Endless,
    InBatches,
    Shuffled,
    Stream,
    Tar,
    identity,
    open_rgb,
    program_inputs,
)
from contract.test_own_datasets import real
from dali_compat import DataLoader, FallbackWarning, install

MAX_BATCHES = 12  # maximum per epoch


@pytest.fixture(scope="module")
def files(image_root):
    return sorted(map(str, image_root.glob("*/*.jpg")))[::2]


@pytest.fixture(scope="module")
def everything(files, tmp_path_factory):
    with program_inputs(files, tmp_path_factory.mktemp("streams")) as one:
        yield one


@pytest.fixture
def tar_files(everything):
    return everything.shards


def seed_all():
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def epoch_of(loader, number):
    set_epoch = getattr(loader.dataset, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(number)
    return list(itertools.islice(loader, MAX_BATCHES))


def two_epochs(loader):
    seed_all()
    return [epoch_of(loader, number) for number in range(2)]


def both_loaders(make, *args, **options):
    """Return two epochs from torch's loader, two from our loader, and our loader."""
    theirs = two_epochs(stock(make(), *args, **options))
    dataset = make()
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(0)
    loader = ours(dataset, *args, device="cpu", exact=True, **options)
    return theirs, two_epochs(loader), loader


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_batches_of_a_stream_equal_torchs(everything, name, workers):
    program = PROGRAMS[name]
    pytest.importorskip(program.needs)
    theirs, mine, loader = both_loaders(
        lambda: program.make(everything), program.batch_size, num_workers=workers, **program.options
    )
    assert difference(theirs, mine) == ""
    assert all(theirs) and real(loader) == 0


@pytest.mark.parametrize(
    "options", [{"drop_last": True}, {"prefetch_factor": 1}, {"persistent_workers": True}], ids=str
)
def test_batches_of_a_stream_equal_torchs_for_each_loader_option(files, options):
    theirs, mine, _ = both_loaders(lambda: Stream(files), 5, num_workers=2, **options)
    assert difference(theirs, mine) == ""


@pytest.mark.alike
@pytest.mark.parametrize("kind", [Stream, Shuffled, InBatches, Tar], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_stream_gives_the_remaining_batches(files, kind, workers):
    def loader():
        return ours(kind(files), None if kind is InBatches else 3, num_workers=workers, device="cpu", exact=True)

    seed_all()
    whole = list(loader())
    for count in (1, len(whole) - 1):
        seed_all()
        first = loader()
        iterator = iter(first)
        begun = [next(iterator) for _ in range(count)]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        del iterator
        first.close()
        random.seed(5)
        second = loader()
        second.load_state_dict(state)
        assert difference(whole, begun + list(second)) == ""


@pytest.mark.parametrize("workers", [0, 2])
def test_repeatedly_resumed_stream_gives_the_remaining_batches(files, workers):
    def loader():
        return ours(Stream(2 * files), 1, num_workers=workers, device="cpu", exact=True)

    seed_all()
    whole = list(loader())
    seed_all()
    made, state = [], None
    while len(made) < len(whole):
        one = loader()
        if state is not None:
            one.load_state_dict(state)
        iterator = iter(one)
        made += itertools.islice(iterator, 7)
        state = one.state_dict()
        del iterator
        one.close()
    assert difference(whole, made) == ""


class Resumable(Stream):
    """A stream that continues from the position of its state in the first iteration after load_state_dict()."""

    at = resumed = 0

    def __iter__(self):
        self.at, self.resumed = self.resumed, 0
        for path in self.mine()[self.at :]:
            self.at += 1
            yield TRAINING(open_rgb(path)), self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.resumed = state["at"]


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_with_state_dict_when_resumed_between_epochs_gives_the_whole_next_epoch(files, workers):
    def loader():
        return ours(Resumable(files), 3, num_workers=workers, device="cpu", exact=True)

    seed_all()
    one = loader()
    list(one)
    state = one.state_dict()
    whole = list(one)
    other = loader()
    other.load_state_dict(state)
    assert len(whole) > 0
    assert difference(whole, list(other)) == ""


def test_state_with_another_number_of_workers_raises(files):
    first = ours(Stream(files), 3, num_workers=2, device="cpu")
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    second = ours(Stream(files), 3, device="cpu")
    with pytest.raises(ValueError, match="num_workers=2"):
        second.load_state_dict(state)


class UnseededOrder(Stream):
    """A stream in a different order each time."""

    def __iter__(self):
        order = list(self.files)
        random.SystemRandom().shuffle(order)
        return ((SMALL(open_rgb(path)), path) for path in order)


def test_stream_with_an_unseeded_order_is_deferred(files):
    loader = ours(UnseededOrder(files), None, device="cpu", exact=True)
    made = {path: image for image, path in loader}
    assert sorted(made) == files and real(loader) == 0
    for path, image in made.items():
        assert torch.equal(image, SMALL(open_rgb(path)))


class RaisesAtFour(Stream):
    def __iter__(self):
        for number, sample in enumerate(super().__iter__()):
            if number == 4:
                raise KeyError("four")
            yield sample


@pytest.mark.parametrize("workers", [0, 2])
def test_error_of_a_stream_is_raised_after_its_batches(files, workers):
    def batches_and_error(loader):
        seed_all()
        made = []
        try:
            made.extend(loader)
        except KeyError as error:
            return made, "four" in str(error)
        return made, False

    theirs = batches_and_error(stock(RaisesAtFour(files), 2, num_workers=workers))
    mine = batches_and_error(ours(RaisesAtFour(files), 2, num_workers=workers, device="cpu", exact=True))
    assert theirs[1] and difference(theirs, mine) == ""


def test_empty_stream_has_no_batches():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        assert list(DataLoader(Stream([]), 4, device="cpu")) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_endless_stream_can_be_abandoned(files, workers):
    loader = ours(Endless(files), 4, num_workers=workers, device="cpu")
    for _ in range(2):
        assert sum(len(labels) for _, labels in itertools.islice(loader, 20)) == 80
    loader.close()


# ---- libraries


def test_shuffling_webdataset_is_deferred(tar_files, files):
    """The shuffle depends on the process, so torch's loader does not give the same order twice."""
    wds = pytest.importorskip("webdataset")
    dataset = wds.WebDataset(tar_files, shardshuffle=2, empty_check=False).shuffle(5).decode("pil")
    loader = ours(dataset.to_tuple("jpg", "__key__").map_tuple(SMALL, identity), None, device="cpu", exact=True)
    made = {key: image for image, key in loader}
    assert len(made) == len(files) and real(loader) == 0
    for key, image in made.items():
        assert torch.equal(image, SMALL(open_rgb(files[int(key[0]) :: 2][int(key[1:])])))


def pad_texts(samples):
    """A collate_fn for texts of different lengths."""
    images, texts = zip(*samples, strict=True)
    return torch.stack(images), torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], True)


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffling_webdataset_with_texts_of_different_lengths_is_deferred(tar_files, files, workers):
    wds = pytest.importorskip("webdataset")
    dataset = wds.WebDataset(tar_files, shardshuffle=2, empty_check=False).shuffle(9).decode("pil")
    dataset = dataset.map(lambda sample: (SMALL(sample["jpg"]), [1] * (1 + sample["json"]["b"])))
    loader = ours(dataset, 4, num_workers=workers, collate_fn=pad_texts, device="cpu", exact=True)
    made = [(image, int(text.sum()) - 1) for images, texts in loader for image, text in zip(images, texts, strict=True)]
    assert len(made) == len(files) and real(loader) == 0
    for image, number in made:
        same_number = files[2 * number : 2 * number + 2]  # one file per shard
        assert any(torch.equal(image, SMALL(open_rgb(path))) for path in same_number)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_webloader_equal_torchs_under_install(tar_files, workers):
    wds = pytest.importorskip("webdataset")

    def batches():
        dataset = wds.WebDataset(tar_files, shardshuffle=False, empty_check=False, seed=1).shuffle(8, seed=2)
        dataset = dataset.decode("pil").to_tuple("jpg", "cls").map_tuple(TRAINING, identity).batched(4)
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
        seed_all()
        loaded = loader.unbatched().shuffle(9, seed=3).batched(5)
        return [list(loaded) for _ in range(2)], loader.pipeline[0]

    theirs, _ = batches()
    with install(device="cpu", exact=True, fallback="error"):
        mine, loader = batches()
    assert difference(theirs, mine) == ""
    assert isinstance(loader, DataLoader) and real(loader) == 0


# ---- streams that fall back to torch


def crop_with_numpy(image):
    return torch.from_numpy(np.array(image)[:20, :20])


cv2 = types.SimpleNamespace(imdecode=lambda held, flags: np.zeros((24, 24, 3), np.uint8))


def decode_with_opencv(held):
    return torch.from_numpy(cv2.imdecode(held, 1)[:20, :20])


class Arrays(Stream):
    def __iter__(self):
        return (crop_with_numpy(open_rgb(path)) for path in self.mine())


def webdataset(shards):
    return pytest.importorskip("webdataset").WebDataset(shards, shardshuffle=False, empty_check=False)


def hugging_face(files):
    hf = pytest.importorskip("datasets")
    rows = {"image": [{"path": path, "bytes": None} for path in files]}
    return hf.Dataset.from_dict(rows, features=hf.Features({"image": hf.Image()})).to_iterable_dataset()


PIXELS = r"uses the image's pixels \(.*:\d+\); "
BY_TRANSFORMS = "do this with torchvision's transforms, or on the batch, in the training loop"
BY_DECODE = f"WebDataset {PIXELS}use decode\\('pil'\\) and torchvision's transforms"
FALLS_BACK = {  # data sets, and the reasons for the fallback
    "NumPy": (lambda one: Arrays(one.files), f"Arrays {PIXELS}{BY_TRANSFORMS}"),
    "torchrgb": (lambda one: webdataset(one.shards).decode("torchrgb").to_tuple("jpg"), BY_DECODE),
    "rgb": (lambda one: webdataset(one.shards).decode("rgb").to_tuple("jpg"), BY_DECODE),
    "NumPy in a map": (
        lambda one: webdataset(one.shards).decode("pil").to_tuple("jpg").map_tuple(crop_with_numpy),
        f"WebDataset {PIXELS}{BY_TRANSFORMS}",
    ),
    "OpenCV": (
        lambda one: webdataset(one.shards).to_tuple("jpg").map_tuple(decode_with_opencv),
        r"WebDataset opens images with imdecode\(\) of cv2; open them with Image.open\(path\)",
    ),
    "Pillow's images": (
        lambda one: webdataset(one.shards).decode("pil").to_tuple("jpg"),
        r"WebDataset returns images, not tensors; convert them to tensors with ToTensor\(\)",
    ),
    "a format": (
        lambda one: hugging_face(one.files).with_format("torch"),
        f"IterableDataset {PIXELS}use map\\(\\) with torchvision's transforms, without with_format",
    ),
}


@pytest.mark.parametrize("name", FALLS_BACK)
def test_stream_that_falls_back_gives_one_reason_and_a_remedy(everything, name, capsys):
    make, reason = FALLS_BACK[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(make(everything), None, device="cpu")
        for _ in range(2):
            next(iter(loader))
        with install(device="cpu"):
            made = [data.DataLoader(make(everything), None)]
        messages = [str(one.message) for one in caught if one.category is FallbackWarning]
        assert len(messages) == 2, messages
        with install(device="cpu", verbose=True):
            made.append(data.DataLoader(make(everything), None))
    assert not any(isinstance(one, DataLoader) for one in made)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "runs on" in line]
    for text in (*messages, line):
        assert re.search(reason, text), text


def test_stream_without_images_falls_back_without_a_warning(everything, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with install(device="cpu"):
            data.DataLoader(webdataset(everything.shards).decode().to_tuple("cls", "json"), None)
    with install(device="cpu", verbose=True):
        data.DataLoader(webdataset(everything.shards).decode().to_tuple("cls", "json"), None)
    assert "no images were found in WebDataset" in capsys.readouterr().err
