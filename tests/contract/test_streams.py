"""Iterable data sets: torch's loader reads them, and DALI makes the images."""

from __future__ import annotations

import io
import itertools
import pickle
import random
import tarfile
import warnings
import zipfile

import pytest
import torch
from black_box import difference
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.transforms import v2

from contract.both import ours, stock
from contract.test_own_datasets import real
from dali_compat import DataLoader, FallbackWarning

TRAINING = T.Compose(
    [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3)]
)
SMALL = T.Compose([T.Resize((24, 20)), T.ToTensor()])
JOINT = v2.Compose(
    [v2.RandomHorizontalFlip(), v2.Resize((24, 20)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
)


def opened(path):
    return Image.open(path).convert("RGB")


class Stream(data.IterableDataset):
    """Of the files that are this worker's."""

    def __init__(self, files):
        self.files = files

    def mine(self):
        info = data.get_worker_info()
        return self.files if info is None else self.files[info.id :: info.num_workers]

    def __iter__(self):
        for number, path in enumerate(self.mine()):
            yield TRAINING(opened(path)), number


class InAllWorkers(Stream):
    def __iter__(self):
        return ((SMALL(opened(path)), path) for path in self.files)


class WithLength(Stream):
    def __len__(self):
        return len(self.files)


class FromBytes(Stream):
    def __iter__(self):
        for path in self.mine():
            with open(path, "rb") as file:
                yield {"image": TRAINING(Image.open(io.BytesIO(file.read())).convert("RGB")), "name": path}


class Views(Stream):
    def __iter__(self):
        for path in self.mine():
            image = opened(path)
            yield [TRAINING(image), TRAINING(image)], SMALL(image)


class WithBoxes(Stream):
    def __iter__(self):
        for path in self.mine():
            image = opened(path)
            mask = tv_tensors.Mask(torch.arange(image.height * image.width).reshape(image.height, image.width) % 3)
            boxes = tv_tensors.BoundingBoxes([[2, 3, 9, 12]], format="XYXY", canvas_size=(image.height, image.width))
            yield JOINT(image, {"mask": mask, "boxes": boxes})


class Shuffled(Stream):
    """By a buffer of deferred images."""

    def __iter__(self):
        held = []
        for number, path in enumerate(self.mine()):
            held.append((TRAINING(opened(path)), number))
            if len(held) > 5:
                yield held.pop(random.randrange(len(held)))
        yield from held


class InBatches(Stream):
    """Made by the data set."""

    def __iter__(self):
        samples = iter(self.mine())
        while paths := list(itertools.islice(samples, 4)):
            yield torch.stack([TRAINING(opened(path)) for path in paths]), torch.arange(len(paths))


class Epochs(Stream):
    """Each epoch is another."""

    epoch = 0

    def __iter__(self):
        self.epoch += 1
        for path in self.mine():
            yield SMALL(opened(path)), self.epoch


class Tar(Stream):
    """Members of an archive that is read once."""

    def __init__(self, files):
        super().__init__(files)
        self.tar = io.BytesIO()
        with tarfile.open(fileobj=self.tar, mode="w") as tar:
            for path in files:
                tar.add(path)

    def __iter__(self):
        with tarfile.open(fileobj=io.BytesIO(self.tar.getvalue())) as tar:
            for member in tar:
                yield SMALL(Image.open(tar.extractfile(member)).convert("RGB")), member.name


class Zip(Stream):
    """Members of a compressed archive."""

    def __iter__(self):
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in self.files:
                archive.write(path)
        with zipfile.ZipFile(held) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    yield SMALL(Image.open(member).convert("RGB")), name, member.tell()


KINDS = [Stream, InAllWorkers, WithLength, FromBytes, Views, WithBoxes, Shuffled, InBatches, Epochs, Tar, Zip]


@pytest.fixture(scope="module")
def files(image_root):
    return sorted(map(str, image_root.glob("*/*.jpg")))


def seeded():
    torch.manual_seed(5)
    random.seed(5)


def twice(loader):
    seeded()
    return [list(loader), list(loader)]


def both(make, *args, **options):
    """Return two epochs of torch's loader and of ours, and ours."""
    theirs = twice(stock(make(), *args, **options))
    loader = ours(make(), *args, device="cpu", exact=True, **options)
    return theirs, twice(loader), loader


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_batches_of_a_stream_are_torchs(files, kind, workers):
    size = None if kind is InBatches else 4
    theirs, mine, loader = both(lambda: kind(files), size, num_workers=workers)
    assert difference(theirs, mine) == ""
    assert real(loader) == 0


@pytest.mark.parametrize(
    "options", [{"drop_last": True}, {"prefetch_factor": 1}, {"persistent_workers": True}], ids=str
)
def test_options_of_the_loader_are_torchs(files, options):
    theirs, mine, _ = both(lambda: Stream(files), 5, num_workers=2, **options)
    assert difference(theirs, mine) == ""


@pytest.mark.alike
@pytest.mark.parametrize("kind", [Stream, Shuffled, InBatches, Tar], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_resumes_gives_the_rest(files, kind, workers):
    def loader():
        return ours(kind(files), None if kind is InBatches else 3, num_workers=workers, device="cpu", exact=True)

    seeded()
    whole = list(loader())
    for count in (1, len(whole) - 1):
        seeded()
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


def test_a_state_of_another_number_of_workers_is_refused(files):
    first = ours(Stream(files), 3, num_workers=2, device="cpu")
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    second = ours(Stream(files), 3, device="cpu")
    with pytest.raises(ValueError, match="num_workers=2"):
        second.load_state_dict(state)


class ByTheClock(Stream):
    """In another order each time."""

    def __iter__(self):
        order = list(self.files)
        random.SystemRandom().shuffle(order)
        return ((SMALL(opened(path)), path) for path in order)


def test_a_stream_in_another_order_each_time_is_on_dali(files):
    loader = ours(ByTheClock(files), None, device="cpu", exact=True)
    made = {path: image for image, path in loader}
    assert sorted(made) == files and real(loader) == 0
    for path, image in made.items():
        assert torch.equal(image, SMALL(opened(path)))


class Failing(Stream):
    def __iter__(self):
        for number, sample in enumerate(super().__iter__()):
            if number == 7:
                raise KeyError("seven")
            yield sample


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_stream_is_raised_after_its_batches(files, workers):
    def until(loader):
        seeded()
        made = []
        try:
            made.extend(loader)
        except KeyError as error:
            return made, "seven" in str(error)
        return made, False

    theirs = until(stock(Failing(files), 2, num_workers=workers))
    mine = until(ours(Failing(files), 2, num_workers=workers, device="cpu", exact=True))
    assert theirs[1] and difference(theirs, mine) == ""


def test_a_stream_without_samples_has_no_batches():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        assert list(DataLoader(Stream([]), 4, device="cpu")) == []


class Endless(Stream):
    def __iter__(self):
        while True:
            yield from super().__iter__()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_stream_is_left_at_any_time(files, workers):
    loader = ours(Endless(files), 4, num_workers=workers, device="cpu")
    for _ in range(2):
        assert sum(len(labels) for _, labels in itertools.islice(loader, 20)) == 80
    loader.close()


# ---- libraries


@pytest.fixture(scope="module")
def tar_files(files, tmp_path_factory):
    root = tmp_path_factory.mktemp("shards")
    for shard in range(2):
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for number, path in enumerate(files[shard::2]):
                with open(path, "rb") as file:
                    encoded = file.read()
                for ending, held in (("jpg", encoded), ("cls", b"%d" % (number % 3)), ("json", b'{"a": [1, 2]}')):
                    member = tarfile.TarInfo(f"{shard}{number:04}.{ending}")
                    member.size = len(held)
                    tar.addfile(member, io.BytesIO(held))
    return str(root / "{0..1}.tar")


def same(value):
    return value


def text(value):
    return str(value)


def decoded(held):
    return SMALL(opened(io.BytesIO(held)))


WEBDATASETS = {
    "pil": (4, lambda one: one.decode("pil").to_tuple("jpg", "cls").map_tuple(TRAINING, same)),
    "pilrgb": (4, lambda one: one.decode("pilrgb").rename(image="jpg").map_dict(image=SMALL).to_tuple("image", "cls")),
    "a dictionary": (4, lambda one: one.decode("pil").map_dict(jpg=TRAINING, json=text)),
    "a map": (4, lambda one: one.decode("pil").map(lambda sample: (SMALL(sample["jpg"]), sample["__key__"]))),
    "batched": (None, lambda one: one.decode("pil").to_tuple("jpg", "cls").map_tuple(TRAINING, same).batched(3)),
    "encoded": (
        4,
        lambda one: one.to_tuple("jpg", "cls").map_tuple(lambda held: SMALL(opened(io.BytesIO(held))), text),
    ),
}


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", WEBDATASETS)
def test_batches_of_webdataset_are_torchs(tar_files, kind, workers):
    wds = pytest.importorskip("webdataset")
    size, steps = WEBDATASETS[kind]
    theirs, mine, loader = both(
        lambda: steps(wds.WebDataset(tar_files, shardshuffle=False, empty_check=False)), size, num_workers=workers
    )
    assert difference(theirs, mine) == ""
    assert real(loader) == 0


def test_webdataset_that_shuffles_is_on_dali(tar_files, files):
    """By a seed of the process's, so that torch's loader does not give the same twice."""
    wds = pytest.importorskip("webdataset")
    dataset = wds.WebDataset(tar_files, shardshuffle=2, empty_check=False).shuffle(5).decode("pil")
    loader = ours(dataset.to_tuple("jpg", "__key__").map_tuple(SMALL, same), None, device="cpu", exact=True)
    made = {key: image for image, key in loader}
    assert len(made) == len(files) and real(loader) == 0
    for key, image in made.items():
        assert torch.equal(image, SMALL(opened(files[int(key[0]) :: 2][int(key[1:])])))


def test_webdataset_that_decodes_to_arrays_is_torchs(tar_files):
    wds = pytest.importorskip("webdataset")
    dataset = wds.WebDataset(tar_files, shardshuffle=False, empty_check=False).decode("torchrgb").to_tuple("jpg", "cls")
    with pytest.warns(FallbackWarning, match="WebDataset uses the image's pixels"):
        list(DataLoader(dataset, None, device="cpu"))


def transformed(examples):
    return {"pixels": [TRAINING(image.convert("RGB")) for image in examples["image"]], "label": examples["label"]}


STREAMED = {
    "map": lambda one: one.map(lambda row: {"pixels": SMALL(row["image"].convert("RGB"))}, remove_columns=["image"]),
    "a map of batches": lambda one: one.map(transformed, batched=True, batch_size=4, remove_columns=["image"]),
    "shuffle": lambda one: one.shuffle(seed=3, buffer_size=6).map(
        transformed, batched=True, batch_size=4, remove_columns=["image"]
    ),
}


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", STREAMED)
def test_batches_of_hugging_faces_streams_are_torchs(files, kind, workers):
    hf = pytest.importorskip("datasets")
    features = hf.Features({"image": hf.Image(), "label": hf.Value("int64")})

    def make():
        rows = {"image": [{"path": path, "bytes": None} for path in files], "label": list(range(len(files)))}
        return STREAMED[kind](hf.Dataset.from_dict(rows, features=features).to_iterable_dataset(num_shards=2))

    theirs, mine, loader = both(make, 4, num_workers=workers)
    assert difference(theirs, mine) == ""
    assert real(loader) == 0
