"""Trainings on random streams that are killed at random moments and resume from their last saved state:

    python tests/faults/crash_streams.py --rounds 500 [--seconds 600] [--seed 1] [--first NUMBER]

A round draws a stream, the options of its loader, and the interval between saved states. Every run is a forked process,
killed by SIGKILL once or twice. In the end, the record of a training must equal that of an uninterrupted one: epoch,
number and a checksum of the pixels of every sample. For a stream in another order each time, only the number of samples
is compared. The exit status is 1 if any round is wrong.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import io
import itertools
import random
import sys
import tarfile
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

from helpers import make_folder

from dali_compat import DataLoader
from faults.crash import Moment, any_seed, run, save, take_record

EPOCHS, IMAGES = 2, 14
TRANSFORM = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor()])


def open_image(file: Any) -> torch.Tensor:
    return TRANSFORM(Image.open(file).convert("RGB"))


class Buffered(data.IterableDataset):
    """A stream shuffled by a buffer, with the generator that torch seeds for each worker."""

    def __init__(self, files: list[str]):
        self.files = files

    def mine(self) -> list[tuple[int, str]]:
        info = data.get_worker_info()
        return list(enumerate(self.files))[info.id if info else 0 :: info.num_workers if info else 1]

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for number, path in self.mine():
            held.append((open_image(path), number))
            if len(held) > 3:
                yield held.pop(int(torch.randint(len(held), ())))
        yield from held


class OfAnEpoch(Buffered):
    """A stream whose order depends on the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> list[tuple[int, str]]:
        return random.Random(self.epoch).sample(self.mine(), len(self.mine()))

    def __iter__(self) -> Iterator[Any]:
        for number, path in self.order():
            yield open_image(path), number


class WithState(OfAnEpoch):
    """A stream with its state, like data sets of torchdata."""

    next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]

    def __iter__(self) -> Iterator[Any]:
        order = self.order()
        while self.next < len(order):
            number, path = order[self.next]
            self.next += 1
            yield open_image(path), number
        self.next = 0


class InBatches(OfAnEpoch):
    """A stream of batches."""

    def __iter__(self) -> Iterator[Any]:
        samples = super().__iter__()
        while batch := list(itertools.islice(samples, 3)):
            yield data.default_collate(batch)


class ByTheClock(OfAnEpoch):
    """A stream in another order each time."""

    def order(self) -> list[tuple[int, str]]:
        return random.SystemRandom().sample(self.mine(), len(self.mine()))


def hugging_face(files: list[str]) -> Any:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": [{"path": path, "bytes": None} for path in files], "label": list(range(len(files)))}
    made = datasets.Dataset.from_dict(rows, features=features).to_iterable_dataset(num_shards=2)
    return made.shuffle(seed=3, buffer_size=5).map(_row, remove_columns=["image"])


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {"image_": TRANSFORM(row["image"].convert("RGB"))}


def webdataset(files: list[str]) -> Any:
    import webdataset as wds

    shards = str(Path(files[0]).parents[1] / "{0..1}.tar")
    made = wds.WebDataset(shards, shardshuffle=2, seed=3, empty_check=False).shuffle(5, seed=2).decode("pil")
    return made.to_tuple("jpg", "cls").map_tuple(TRANSFORM, int)


KINDS = {
    "own": Buffered,
    "of an epoch": OfAnEpoch,
    "with a state": WithState,
    "in batches": InBatches,
    "by the clock": ByTheClock,
} | {
    made.__name__: made
    for made, package in ((hugging_face, "datasets"), (webdataset, "webdataset"))
    if importlib.util.find_spec(package)
}


class Round(NamedTuple):
    """A stream, its loader, and the interval between saved states.

    Attributes:
        kind: a key of KINDS.
        every: number of batches between saved states. The end of an epoch is always saved.
    """

    kind: str
    workers: int
    batch_size: int | None
    drop_last: bool
    every: int

    def train(self, place: Path, device: str, rank: int, world: int) -> None:
        """Train from the checkpoint to the end."""
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        checkpoint = place / "checkpoint"
        before = torch.load(checkpoint) if checkpoint.exists() else None
        torch.manual_seed(0 if before is None else any_seed())
        dataset = KINDS[self.kind](sorted(map(str, (place / "images").glob("*/*.jpg"))))
        options: dict[str, Any] = {"num_workers": self.workers, "device": device, "exact": True, "fallback": "error"}
        loader = DataLoader(dataset, self.batch_size, drop_last=self.drop_last, **options)
        epoch, batches, seen = 0, 0, []
        if before is not None:
            loader.load_state_dict(before["loader"])
            epoch, batches, seen = before["epoch"], before["batches"], before["seen"]
        while epoch < EPOCHS:
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(epoch)
            for batch in loader:
                images, numbers = batch.values() if isinstance(batch, dict) else batch
                images, numbers = (numbers, images) if images.ndim == 1 else (images, numbers)
                sums = [zlib.crc32(image.numpy().tobytes()) for image in images]
                seen += zip([epoch] * len(sums), numbers.tolist(), sums, strict=True)
                batches += 1
                if batches % self.every == 0:
                    save({"loader": loader.state_dict(), "epoch": epoch, "batches": batches, "seen": seen}, checkpoint)
            epoch += 1
            save({"loader": loader.state_dict(), "epoch": epoch, "batches": batches, "seen": seen}, checkpoint)
        save({"seen": seen, "samples": IMAGES}, place / "over")


def round_of(number: int) -> Round:
    """Return the round of a number."""
    rng = random.Random(number)
    kind = rng.choice(list(KINDS))
    batch_size = None if kind == "in batches" else rng.choice([1, 2, 3, 5])
    return Round(kind, rng.choice([0, 2]), batch_size, batch_size is not None and rng.random() < 0.3, rng.randint(1, 3))


class Whole(NamedTuple):
    """The result of an uninterrupted training: its record, the seconds to the first checkpoint, and the total
    seconds."""

    seen: list[tuple[int, int, int]]
    first: float
    took: float


_wholes: dict[Round, Whole] = {}


def check_round(number: int, place: Path) -> tuple[str, list[bool], Round]:
    """Run the round of a number.

    Returns:
        A description of the error or "", whether each killed run had saved a state, and the round.
    """
    one, rng, kills = round_of(number), random.Random(-number), list[bool]()
    if one not in _wholes:
        uninterrupted = run(place, one, "cpu", 1, None)
        _wholes[one] = Whole(take_record(place)[0], uninterrupted.first or 0.0, uninterrupted.took)
    whole, most = _wholes[one], rng.choice([1, 2])
    while True:
        late = rng.random() < 0.8
        moment = Moment(late, rng.uniform(0, whole.took - whole.first if late else whole.first))
        went = run(place, one, "cpu", 1, moment if len(kills) < most else None)
        if went.ended:
            break
        kills.append(went.first is not None)
    seen, _ = take_record(place)
    if one.kind == "by the clock":
        same = collections.Counter(row[0] for row in seen) == collections.Counter(row[0] for row in whole.seen)
    else:
        same = seen == whole.seen
    return "" if same else f"{number}: {one}\nsaw {seen}\nnot {whole.seen}", kills, one


def prepare(place: Path) -> None:
    """Write images and two archives of them, and import the modules that every run needs."""
    for package in filter(importlib.util.find_spec, ("nvidia.dali", "datasets", "webdataset")):
        importlib.import_module(package)
    make_folder(place / "images", classes=2, per_class=IMAGES // 2, low=40, high=64, special=False)
    files = sorted((place / "images").glob("*/*.jpg"))
    for shard in range(2):
        with tarfile.open(place / "images" / f"{shard}.tar", "w") as tar:
            for number in range(shard, IMAGES, 2):
                for ending, held in (("jpg", files[number].read_bytes()), ("cls", b"%d" % number)):
                    member = tarfile.TarInfo(f"{number:02}.{ending}")
                    member.size = len(held)
                    tar.addfile(member, io.BytesIO(held))
    time.sleep(0.05)  # recently written files are not deferred


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1 << 30)
    parser.add_argument("--seconds", type=float, default=60, help="no further round begins then")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, help="the number of the first round, instead of a seed's")
    options = parser.parse_args()
    first = options.seed * 1_000_000 if options.first is None else options.first
    rounds, kills, late = (collections.Counter[str]() for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        wrong, number, end = 0, first, time.monotonic() + options.seconds
        while time.monotonic() < end and number < first + options.rounds:
            text, killed, one = check_round(number, Path(folder))
            kind = f"{one.kind}, {one.workers} workers"
            rounds[kind] += 1
            kills[kind] += len(killed)
            late[kind] += sum(killed)
            number += 1
            if text:
                wrong += 1
                print(f"# {text}", flush=True)
    for kind in sorted(rounds):
        print(f"{kind}: {rounds[kind]} rounds, {kills[kind]} kills, {late[kind]} after a state was saved")
    print(f"{number - first} rounds, {kills.total()} kills, {late.total()} after a state was saved: {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
