"""Errors at random places, after which an epoch is resumed from the loader's state:

    python tests/faults/errors_and_states.py --seconds 600 [--seed 1] [--first NUMBER]

An error, an interrupt or a break ends the loop within the first or second epoch. Another loader, without the fault,
loads the state. The samples before and after must be the epoch, each once and in the sampler's order, and the next
epoch must be correct. Some loops continue after an error, as torch's iterator allows. Then only the samples of lost
batches may be missing. The exit status is 1 if any round is wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))

from dali_compat import DALIArrayDataset, DALIImageList, DataLoader

COUNT, STEP, SIDE = 24, 10, 16  # number of images, difference of levels between two of them, pixels per side
PLACES = {  # places that raise an error, by route
    "folder": ["sampler", "batch sampler", "target_transform", "collate_fn", "transform", "decoder"],
    "arrays": ["sampler", "batch sampler", "target_transform", "collate_fn", "transform"],
    "own": ["sampler", "batch sampler", "data set", "transform", "collate_fn", "decoder"],
    "torch": ["sampler", "batch sampler", "data set", "collate_fn"],
    "stream": ["data set", "collate_fn"],
    "stream with a state": ["data set", "collate_fn"],
}


class Mistake(Exception):
    """Raised by a fault."""


class Fault(NamedTuple):
    """Raise ``error`` at a sample, unless ``at`` is None.

    Attributes:
        place: an entry of PLACES.
        at: number of the sample; for a sampler, the number of indices before the error.
        error: the exception class.
    """

    place: str = ""
    at: int | None = None
    error: type[BaseException] = Mistake

    def check(self, place: str, number: int) -> None:
        if place == self.place and number == self.at:
            raise self.error("at this sample")


class Round(NamedTuple):
    """A loader and the fault that ends its loop.

    Attributes:
        route: a key of PLACES.
        fault: the fault.
        stops: number of batches after which the loop ends, if no error ends it before.
        epochs: number of epochs before the one with the fault.
        goes_on: True if the loop continues after an error.
    """

    route: str
    fault: Fault
    workers: int
    persistent: bool
    batch_size: int
    shuffle: bool
    drop_last: bool
    policy: str
    stops: int
    epochs: int
    goes_on: bool


def round_of(number: int) -> Round:
    """Return the round of a number."""
    rng = random.Random(number)
    route = rng.choice(list(PLACES))
    place = rng.choice(["", *PLACES[route]])
    error = rng.choice([Mistake, OSError, KeyError, ValueError])
    workers = rng.choice([0, 0, 1, 2])
    if place == "collate_fn" and (workers == 0 or route in ("folder", "arrays")) and rng.random() < 0.3:
        error = KeyboardInterrupt  # in the process of the loop
    fault = Fault(place, rng.randrange(COUNT), error) if place else Fault()
    return Round(
        route,
        fault,
        workers,
        workers > 0 and rng.random() < 0.3,
        rng.choice([1, 3, 4, 5]),
        rng.random() < 0.5,
        rng.random() < 0.3,
        rng.choice(["raise", "raise", "skip"]) if place not in ("decoder", "data set") else "raise",
        rng.randint(0, 9),
        rng.choice([0, 0, 1]),
        rng.random() < 0.3 and error is not KeyboardInterrupt and "stream" not in route,
    )


def number_of(image: Image.Image) -> int:
    """Return the number of an image, encoded in its level."""
    return round(image.getpixel((SIDE // 2, SIDE // 2))[0] / STEP)


class Sampler(data.Sampler):
    def __init__(self, one: Round, fault: Fault, generator: torch.Generator):
        self.shuffle, self.fault, self.generator = one.shuffle, fault, generator

    def __len__(self) -> int:
        return COUNT

    def __iter__(self):
        order = torch.randperm(COUNT, generator=self.generator).tolist() if self.shuffle else range(COUNT)
        for place, index in enumerate(order):
            self.fault.check("sampler", place)
            yield index


class Batches(data.BatchSampler):
    fault = Fault()

    def __iter__(self):
        for place, batch in enumerate(super().__iter__()):
            self.fault.check("batch sampler", place)
            yield batch


class Transform:
    def __init__(self, fault: Fault):
        self.fault = fault

    def __call__(self, image: Image.Image) -> Image.Image:
        self.fault.check("transform", number_of(image))
        return image


class Target:
    def __init__(self, fault: Fault):
        self.fault = fault

    def __call__(self, number: int) -> int:
        self.fault.check("target_transform", number)
        return number


class Collate:
    def __init__(self, fault: Fault):
        self.fault = fault

    def __call__(self, samples: list) -> Any:
        for _, number in samples:
            self.fault.check("collate_fn", number)
        return data.default_collate(samples)


class Numbers(data.Dataset):
    """A data set without images, which torch's loader serves."""

    def __init__(self, fault: Fault):
        self.fault = fault

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.fault.check("data set", index)
        return torch.full((2,), index), index


class Own(data.Dataset):
    """A custom data set of image files."""

    def __init__(self, paths: list[str], transform: Any, fault: Fault):
        self.paths, self.transform, self.fault = paths, transform, fault

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.fault.check("data set", index)
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


class Stream(data.IterableDataset):
    def __init__(self, fault: Fault):
        self.fault = fault

    def __iter__(self):
        info = data.get_worker_info()
        for number in range(info.id if info else 0, COUNT, info.num_workers if info else 1):
            self.fault.check("data set", number)
            yield torch.full((2,), number), number


class StatefulStream(Stream):
    """A stream with its state, like data sets of torchdata."""

    next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]

    def __iter__(self):
        info = data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        while self.next * step + first < COUNT:
            number = self.next * step + first
            self.fault.check("data set", number)
            self.next += 1
            yield torch.full((2,), number), number
        self.next = 0


def write_images(root: Path) -> None:
    """Write an image of one level for each number."""
    for number in range(COUNT):
        _write_image(root, number)


def _write_image(root: Path, number: int) -> None:
    Image.new("RGB", (SIDE, SIDE), (number * STEP,) * 3).save(root / f"{number:02d}.png")


def _dataset(one: Round, fault: Fault, root: Path) -> data.Dataset:
    if one.route == "torch":
        return Numbers(fault)
    if "stream" in one.route:
        return (StatefulStream if "state" in one.route else Stream)(fault)
    steps = [T.CenterCrop(SIDE), T.PILToTensor()]
    transform = T.Compose([Transform(fault), *steps] if one.fault.place == "transform" else steps)
    target = Target(fault) if one.fault.place == "target_transform" else None
    numbers = list(range(COUNT))
    if one.route == "arrays":
        images = torch.stack([torch.full((SIDE, SIDE, 3), number * STEP, dtype=torch.uint8) for number in numbers])
        return DALIArrayDataset(images, numbers, transform=transform, target_transform=target)
    paths = [str(root / f"{number:02d}.png") for number in numbers]
    if fault.place == "decoder":
        (root / f"{fault.at:02d}.png").write_bytes(b"no image")
    if one.route == "own":
        return Own(paths, transform, fault)
    return DALIImageList(paths, numbers, transform=transform, target_transform=target)


def _loader(one: Round, fault: Fault, root: Path, seed: int) -> DataLoader:
    dataset, generator = _dataset(one, fault, root), torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"num_workers": one.workers, "persistent_workers": one.persistent, "generator": generator}
    options |= {"device": "cpu", "fallback": "silent", "exact": True, "on_error": one.policy}
    if one.fault.place == "collate_fn":
        options["collate_fn"] = Collate(fault)
    if "stream" in one.route:
        return DataLoader(dataset, one.batch_size, drop_last=one.drop_last, **options)
    if one.fault.place == "batch sampler":
        batches = Batches(Sampler(one, fault, generator), one.batch_size, one.drop_last)
        batches.fault = fault
        return DataLoader(dataset, batch_sampler=batches, **options)
    sampler = Sampler(one, fault, generator)
    if one.fault.place != "sampler":
        return DataLoader(dataset, one.batch_size, shuffle=one.shuffle, drop_last=one.drop_last, **options)
    return DataLoader(dataset, one.batch_size, sampler=sampler, drop_last=one.drop_last, **options)


def _numbers(batch: Any) -> list[int]:
    images, numbers = batch
    level = images.flatten(1)[:, 0].tolist()
    assert level in (numbers.tolist(), [number * STEP for number in numbers.tolist()]), (level, numbers)
    return numbers.tolist()


def _loop(loader: DataLoader, one: Round) -> tuple[list[list[int]], bool]:
    """Return the received batches, and True if the epoch ended."""
    had: list[list[int]] = []
    iterator, tries = None, 0
    while len(had) < one.stops:
        try:
            iterator = iter(loader) if iterator is None else iterator
            had.append(_numbers(next(iterator)))
        except StopIteration:
            return had, True
        except (Exception, KeyboardInterrupt):
            tries += 1
            if not one.goes_on or iterator is None or tries > 3:
                break
    return had, False


def check_round(number: int, root: Path) -> tuple[str, str]:
    """Return a description of the error or "", and the kind of the round."""
    one = round_of(number)
    text = f"{number}: {one}"
    reference = _loader(one, Fault(), root, number)
    torch.manual_seed(number)
    whole = [[_numbers(batch) for batch in reference] for _ in range(one.epochs + 2)]
    del reference
    faulty = _loader(one, Fault(), root, number)
    torch.manual_seed(number)
    for epoch in range(one.epochs):
        assert [_numbers(batch) for batch in faulty] == whole[epoch], text
    if one.epochs:  # the fault occurs after the earlier epochs
        state = faulty.state_dict()
        faulty = _loader(one, one.fault, root, number + 1)
        faulty.load_state_dict(state)
    else:
        faulty = _loader(one, one.fault, root, number)
        torch.manual_seed(number)
    had, over = _loop(faulty, one)
    state = json.loads(json.dumps(faulty.state_dict()))
    del faulty
    if one.fault.place == "decoder":
        _write_image(root, one.fault.at)
    resumed = _loader(one, Fault(), root, number + 2)
    torch.manual_seed(number + 2)
    resumed.load_state_dict(state)
    rest = [] if over else [_numbers(batch) for batch in resumed]
    following = [_numbers(batch) for batch in resumed]
    expected = whole[one.epochs]
    kind = f"{one.route}, {one.fault.place or 'break'}, {one.workers} workers"
    if one.goes_on:  # failed batches may be missing, and all batches after the end of a sampler
        lost = len(expected) - len(had + rest)
        right = had + rest == [batch for batch in expected if batch in had + rest]
        right &= lost <= 3 or (over and "sampler" in one.fault.place)
    else:
        right = had + rest == expected
    if not right:
        return f"had {had}, then {rest}, of {expected}\n{text}", kind
    if following != whole[one.epochs + 1] and not (one.persistent and one.route == "torch"):
        return f"the epoch after is {following}, not {whole[one.epochs + 1]}\n{text}", kind
    return "", kind


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, help="the number of the first round, instead of a seed's")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    first = options.seed * 1_000_000 if options.first is None else options.first
    kinds: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder))
        wrong, number, end = 0, first, time.monotonic() + options.seconds
        while time.monotonic() < end:
            text, kind = check_round(number, Path(folder))
            kinds[kind.rpartition(",")[0]] += 1
            number += 1
            if text:
                wrong += 1
                print(f"# {kind}: {text}", flush=True)
    print(f"{number - first} rounds: {wrong} wrong; {dict(kinds)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
