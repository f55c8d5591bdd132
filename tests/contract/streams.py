"""Programs that read images from an iterable data set, with the arguments of their loaders."""

from __future__ import annotations

import contextlib
import http.server
import io
import itertools
import json
import random
import tarfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import functional as F
from torchvision.transforms import v2

TRAINING = T.Compose(
    [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3)]
)
SMALL = T.Compose([T.Resize((24, 20)), T.ToTensor()])
JOINT = v2.Compose(
    [v2.RandomHorizontalFlip(), v2.Resize((24, 20)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
)


def open_rgb(path):
    return Image.open(path).convert("RGB")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def decode(encoded_bytes):
    return SMALL(open_rgb(io.BytesIO(encoded_bytes)))


def identity(value):
    return value


# ---- custom data sets


class Stream(data.IterableDataset):
    """A stream of this worker's share of the files."""

    def __init__(self, files):
        self.files = files

    def mine(self):
        info = data.get_worker_info()
        return self.files if info is None else self.files[info.id :: info.num_workers]

    def __iter__(self):
        for number, path in enumerate(self.mine()):
            yield TRAINING(open_rgb(path)), number


class InAllWorkers(Stream):
    def __iter__(self):
        return ((SMALL(open_rgb(path)), path) for path in self.files)


class WithLength(Stream):
    def __len__(self):
        return len(self.files)


class FromBytes(Stream):
    def __iter__(self):
        for path in self.mine():
            yield {"image": TRAINING(Image.open(io.BytesIO(read(path))).convert("RGB")), "name": path}


class Views(Stream):
    def __iter__(self):
        for path in self.mine():
            image = open_rgb(path)
            yield [TRAINING(image), TRAINING(image)], SMALL(image)


class Frames(Stream):
    """Three files per sample, in a nested dict."""

    def __iter__(self):
        for paths in zip(*[iter(self.mine())] * 3, strict=False):
            yield {"clip": {"frames": torch.stack([SMALL(open_rgb(path)) for path in paths]), "names": list(paths)}}


class WithBoxes(Stream):
    def __iter__(self):
        for path in self.mine():
            image = open_rgb(path)
            mask = tv_tensors.Mask(torch.arange(image.height * image.width).reshape(image.height, image.width) % 3)
            boxes = tv_tensors.BoundingBoxes([[2, 3, 9, 12]], format="XYXY", canvas_size=(image.height, image.width))
            yield JOINT(image, {"mask": mask, "boxes": boxes})


class WithMaskFiles(Stream):
    def __init__(self, files, masks):
        super().__init__(files)
        self.masks = masks

    def __iter__(self):
        for path in self.mine():
            mask = Image.open(self.masks / f"{Path(path).parent.name}{Path(path).stem}.png")
            yield JOINT(open_rgb(path), tv_tensors.Mask(F.pil_to_tensor(mask)))


class Shuffled(Stream):
    """A shuffle buffer of deferred images."""

    def __iter__(self):
        pending = []
        for number, path in enumerate(self.mine()):
            pending.append((TRAINING(open_rgb(path)), number))
            if len(pending) > 5:
                yield pending.pop(random.randrange(len(pending)))
        yield from pending


class ShuffledBytes(Stream):
    """A shuffle buffer of encoded images, with a custom generator."""

    def __init__(self, files):
        super().__init__(files)
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self):
        pending = []
        for path in self.mine():
            pending.append(read(path))
            if len(pending) > 5:
                yield decode(pending.pop(int(torch.randint(len(pending), (), generator=self.generator))))
        yield from map(decode, pending)


class OneBuffer(Stream):
    """One buffer, overwritten for each image."""

    def __iter__(self):
        buffer = io.BytesIO()
        for path in self.mine():
            buffer.seek(0)
            buffer.truncate()
            buffer.write(read(path))
            yield TRAINING(open_rgb(buffer))


class OtherFiles(Stream):
    """A file without a name for every third image."""

    def __iter__(self):
        for number, path in enumerate(self.mine()):
            file = io.BytesIO(read(path))
            yield SMALL(open_rgb(io.BufferedReader(file) if number % 3 == 2 else file))


class InThreads(Stream):
    """Transforms in threads."""

    def __iter__(self):
        with ThreadPoolExecutor(2) as pool:
            yield from pool.map(SMALL, map(open_rgb, self.mine()))


class InBatches(Stream):
    """Batches made by the data set."""

    def __iter__(self):
        samples = iter(self.mine())
        while paths := list(itertools.islice(samples, 4)):
            yield torch.stack([TRAINING(open_rgb(path)) for path in paths]), torch.arange(len(paths))


class Epochs(Stream):
    """The number of the epoch as label."""

    epoch = 0

    def __iter__(self):
        self.epoch += 1
        for path in self.mine():
            yield SMALL(open_rgb(path)), self.epoch


class SetEpoch(Stream):
    """An order that depends on the epoch set by the training loop."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = list(self.mine())
        random.Random(self.epoch).shuffle(order)
        for path in order:
            yield TRAINING(open_rgb(path)), path


class Endless(Stream):
    def __iter__(self):
        while True:
            yield from super().__iter__()


class PartOfRank(Stream):
    """The part of one rank in a world of two."""

    rank, world = 1, 2

    def __iter__(self):
        for path in self.mine()[self.rank :: self.world]:
            yield TRAINING(open_rgb(path)), path


class Mixed(Stream):
    """Two sources, chosen by weights."""

    def __iter__(self):
        paths = self.mine()
        sources = [iter(paths[::2]), iter(paths[1::2])]
        while True:
            number = random.choices([0, 1], [0.7, 0.3])[0]
            try:
                yield SMALL(open_rgb(next(sources[number]))), number
            except StopIteration:
                return


class ItsOwnIterator(Stream):
    def __iter__(self):
        self.left = list(self.mine())
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return TRAINING(open_rgb(self.left.pop(0)))


class SkipsBroken(Stream):
    def __iter__(self):
        for number, path in enumerate(self.mine()):
            encoded_bytes = read(path)
            for one in (encoded_bytes[:20] if number % 3 == 1 else encoded_bytes, encoded_bytes):
                try:
                    yield decode(one), number
                except OSError:
                    continue


class BySize(Stream):
    """Only wide images, selected by their headers."""

    def __iter__(self):
        for path in self.mine():
            image = Image.open(path)
            if image.width > image.height:
                yield TRAINING(image.convert("RGB")), image.size


class OfPillow(Stream):
    def __iter__(self):
        for path in self.mine():
            yield open_rgb(path), path


def tensors_of(samples):
    images, paths = zip(*samples, strict=True)
    return torch.stack([TRAINING(image) for image in images]), list(paths)


class DifferentSizes(Stream):
    """Images of different sizes."""

    def __iter__(self):
        for path in self.mine():
            yield T.functional.to_tensor(open_rgb(path))


class ByTorchvision(Stream):
    def __iter__(self):
        for path in self.mine():
            encoded = torch.frombuffer(bytearray(read(path)), dtype=torch.uint8)
            yield v2.functional.resize(decode_image(encoded, ImageReadMode.RGB), [24, 20])


class Tar(Stream):
    """Members of a tar archive, read sequentially."""

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
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in self.files:
                archive.write(path)
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    yield SMALL(Image.open(member).convert("RGB")), name, member.tell()


class FromTheWeb(Stream):
    """Responses of a web server; Pillow reads every other one directly, to its end."""

    def __init__(self, files, address):
        super().__init__(files)
        self.address = address

    def __iter__(self):
        for number, path in enumerate(self.mine()):
            with urllib.request.urlopen(f"{self.address}{path}") as response:
                image = Image.open(response if number % 2 else io.BytesIO(response.read()))
                yield TRAINING(image.convert("RGB")), number


def keep_part_of_worker(number):
    """Keep the worker's part of the files, in a worker_init_fn as in torch's documentation."""
    info = data.get_worker_info()
    info.dataset.files = info.dataset.files[number :: info.num_workers]


# ---- inputs of the programs


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


class ProgramInputs(NamedTuple):
    """Inputs of the programs.

    Attributes:
        files: paths of JPEGs.
        masks: folder with a PNG for each file.
        address: of a web server for all files of this machine.
        shards: pattern of two webdataset archives with an image, a class and a JSON file for each file.
    """

    files: list[str]
    masks: Path
    address: str
    shards: str


@contextlib.contextmanager
def program_inputs(files: list[str], root: Path) -> Iterator[ProgramInputs]:
    masks = root / "masks"
    masks.mkdir()
    for path in files:
        with Image.open(path) as image:
            mask = image.convert("L").point(lambda level: level // 100)
        mask.save(masks / f"{Path(path).parent.name}{Path(path).stem}.png")
    for shard in range(2):
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for number, path in enumerate(files[shard::2]):
                facts = json.dumps({"a": [1, 2], "b": number}).encode()
                for ending, encoded_bytes in (("jpg", read(path)), ("cls", b"%d" % (number % 3)), ("json", facts)):
                    member = tarfile.TarInfo(f"{shard}{number:04}.{ending}")
                    member.size = len(encoded_bytes)
                    tar.addfile(member, io.BytesIO(encoded_bytes))
    time.sleep(0.05)  # files written just now are not deferred
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory="/")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield ProgramInputs(files, masks, f"http://127.0.0.1:{server.server_port}", str(root / "{0..1}.tar"))
        server.shutdown()


class Program(NamedTuple):
    """A data set and the arguments of its loader.

    Attributes:
        make: function that returns the data set.
        batch_size: of the loader.
        options: other arguments of the loader.
        needs: package that the data set requires.
    """

    make: Callable[[ProgramInputs], Any]
    batch_size: int | None = 4
    options: dict[str, Any] = {}
    needs: str = "torch"


def _of_files(kind: Callable[[list[str]], Any], batch_size: int | None = 4, **options: Any) -> Program:
    return Program(lambda one: kind(one.files), batch_size, options)


_KINDS = [Stream, InAllWorkers, WithLength, FromBytes, Views, WithBoxes, Shuffled, ShuffledBytes, Epochs, SetEpoch]
_KINDS += [
    Endless,
    PartOfRank,
    Mixed,
    OneBuffer,
    OtherFiles,
    InThreads,
    ItsOwnIterator,
    SkipsBroken,
    BySize,
    ByTorchvision,
    Tar,
    Zip,
]

PROGRAMS: dict[str, Program] = {kind.__name__: _of_files(kind) for kind in _KINDS} | {
    "Frames": _of_files(Frames, 2),
    "WithMaskFiles": Program(lambda one: WithMaskFiles(one.files, one.masks)),
    "FromTheWeb": Program(lambda one: FromTheWeb(one.files[:6], one.address)),
    "InBatches": _of_files(InBatches, None),
    "samples that are not batched": _of_files(Stream, None),
    "images of unlike sizes": _of_files(DifferentSizes, 4, collate_fn=list),
    "Pillow's images, which collate_fn converts": _of_files(OfPillow, 4, collate_fn=tensors_of),
    "a worker_init_fn": _of_files(InAllWorkers, 4, worker_init_fn=keep_part_of_worker),
    "two data sets": _of_files(lambda files: data.ChainDataset([Stream(files[:5]), WithLength(files[5:])])),
}


# ---- webdataset


def _of_webdataset(make: Callable[[Any, str], Any], batch_size: int | None = 4, **options: Any) -> Program:
    def made(one: ProgramInputs) -> Any:
        import webdataset

        return make(webdataset, one.shards)

    return Program(made, batch_size, options, "webdataset")


def _webdataset(steps: Callable[[Any], Any], batch_size: int | None = 4, **options: Any) -> Program:
    options = {"shardshuffle": False, "empty_check": False, "seed": 1} | options
    return _of_webdataset(lambda wds, shards: steps(wds.WebDataset(shards, **options)), batch_size)


def add_number(samples):
    """Add the number of earlier samples, as a stage of a pipeline."""
    for number, sample in enumerate(samples):
        yield sample | {"number": number}


def _decoder(key, encoded_bytes):
    return open_rgb(io.BytesIO(encoded_bytes)) if key.endswith("jpg") else None


def _as_open_clip(wds, shards):
    return wds.DataPipeline(
        wds.ResampledShards(shards, deterministic=True, seed=2),
        wds.tarfile_to_samples(handler=wds.warn_and_continue),
        wds.detshuffle(8, 4),
        wds.select(lambda sample: "jpg" in sample and "json" in sample),
        wds.decode("pilrgb", handler=wds.warn_and_continue),
        wds.rename(image="jpg;png;jpeg;webp", text="json"),
        wds.map_dict(image=TRAINING, text=str),
        wds.to_tuple("image", "text"),
        wds.batched(4, partial=False),
    ).with_epoch(5)


def _pipeline(wds, shards):
    return wds.DataPipeline(
        wds.SimpleShardList(shards),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(8, seed=4),
        wds.decode("pil"),
        wds.to_tuple("jpg;png", "json"),
        wds.map(lambda sample: (1 - TRAINING(sample[0]), sample[1]["b"])),
    )


def _mix(wds, shards):
    first = wds.WebDataset(shards, shardshuffle=False, empty_check=False).decode("pil")
    streams = [first.map(lambda sample, way=way: (SMALL(sample["jpg"]), way)) for way in range(2)]
    return wds.RandomMix(streams, probs=[0.3, 0.7])


def _training_tuples(one):
    return one.decode("pil").to_tuple("jpg", "cls").map_tuple(TRAINING, identity)


PROGRAMS |= {
    f"webdataset: {name}": program
    for name, program in {
        "pil": _webdataset(_training_tuples),
        "pilrgb": _webdataset(
            lambda one: one.decode("pilrgb").rename(image="jpg").map_dict(image=SMALL).to_tuple("image", "cls")
        ),
        "a dictionary": _webdataset(lambda one: one.decode("pil").map_dict(jpg=TRAINING, json=str)),
        "a map": _webdataset(lambda one: one.decode("pil").map(lambda a: (SMALL(a["jpg"]), a["__key__"]))),
        "batched": _webdataset(lambda one: _training_tuples(one).batched(3), None),
        "listed": _webdataset(lambda one: _training_tuples(one).listed(3), None),
        "encoded": _webdataset(lambda one: one.to_tuple("jpg", "cls").map_tuple(decode, str)),
        "a decoder": _webdataset(lambda one: one.decode(_decoder).to_tuple("jpg").map_tuple(TRAINING)),
        "shuffled before": _webdataset(lambda one: _training_tuples(one.shuffle(8, seed=2)), shardshuffle=2),
        "shuffled after": _webdataset(lambda one: _training_tuples(one).shuffle(8, seed=2), shardshuffle=2),
        "detshuffle": _webdataset(_training_tuples, shardshuffle=2, detshuffle=True),
        "stages": _webdataset(
            lambda one: (
                one.decode("pil", only=["jpg"])
                .compose(add_number)
                .select(lambda sample: sample["number"] % 4)
                .map(lambda sample: (TRAINING(sample["jpg"]), sample["number"]))
            )
        ),
        "as open_clip's": _of_webdataset(_as_open_clip, None),
        "a pipeline": _of_webdataset(_pipeline),
        "a mix": _of_webdataset(_mix),
    }.items()
}


# ---- Hugging Face


def transformed(examples):
    return {"pixels": [TRAINING(image.convert("RGB")) for image in examples["image"]], "label": examples["label"]}


def row_of(example):
    return {"pixels": SMALL(example["image"].convert("RGB"))}


def row_of_bytes(example):
    return {"pixels": decode(read(example["image"]["path"]))}


def _hugging_face(steps: Callable[[Any, Any], Any], batch_size: int | None = 4) -> Program:
    def made(one: ProgramInputs) -> Any:
        import datasets
        import datasets.distributed

        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        rows = {"image": [{"path": path, "bytes": None} for path in one.files], "label": list(range(len(one.files)))}
        table = datasets.Dataset.from_dict(rows, features=features)
        return steps(datasets, table.to_iterable_dataset(num_shards=2))

    return Program(made, batch_size, {}, "datasets")


_BATCHED = {"batched": True, "batch_size": 4, "remove_columns": ["image"]}

PROGRAMS |= {
    f"Hugging Face: {name}": program
    for name, program in {
        "map": _hugging_face(lambda hf, one: one.map(row_of, remove_columns=["image"])),
        "a map of batches": _hugging_face(lambda hf, one: one.map(transformed, **_BATCHED)),
        "shuffle": _hugging_face(
            lambda hf, one: one.shuffle(seed=3, buffer_size=6).map(
                transformed, batched=True, batch_size=4, remove_columns=["image"]
            )
        ),
        "a node": _hugging_face(
            lambda hf, one: hf.distributed.split_dataset_by_node(one, 1, 2).map(row_of, remove_columns=["image"])
        ),
        "batch": _hugging_face(lambda hf, one: one.map(row_of, remove_columns=["image"]).batch(4), None),
        "a filter": _hugging_face(
            lambda hf, one: (
                one.filter(lambda row: row["label"] % 3).skip(1).take(5).map(row_of, remove_columns=["image"])
            )
        ),
        "not decoded": _hugging_face(
            lambda hf, one: one.cast_column("image", hf.Image(decode=False)).map(row_of_bytes, remove_columns=["image"])
        ),
        "interleaved": _hugging_face(
            lambda hf, one: hf.interleave_datasets([one.take(6), one], [0.4, 0.6], seed=5).map(transformed, **_BATCHED)
        ),
    }.items()
}
