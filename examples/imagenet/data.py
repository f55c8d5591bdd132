"""Data sets in any storage, transforms and loaders; and a tiny folder of images for --synthetic.

``python data.py DATA`` opens the data sets once to create their indices, before many hosts start together.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from options import Options
from PIL import Image
from ranks import Ranks
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import dali_compat
from dali_compat import DALILMDB, DALIImageFolder, DALIRecordIO, DALITFRecord, DALIWebDataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# ---- data sets


def datasets(options: Options) -> tuple[Any, Any]:
    """Return (training set, validation set).

    Raises:
        ValueError: The sets have different classes.
    """
    train, val = places(options.data, options.val_data)
    found = [open_dataset(place, options.loader) for place in (train, val)]
    names = [getattr(dataset, "classes", None) for dataset in found]
    if all(names) and names[0] != names[1]:
        raise ValueError(f"{train} and {val} have different classes: {len(names[0])} and {len(names[1])}")
    return found[0], found[1]


def places(data: str, val_data: str = "") -> tuple[str, str]:
    """Return the paths of both sets.

    A folder contains train and val: class folders, train.rec, train-*.tar and so on. If the training set is given by a
    path or pattern, "train" in its name is replaced by "val" for the validation set.

    Raises:
        FileNotFoundError: A set is missing; the message lists the names that were tried.
    """
    folder = Path(data)
    train, val = _inside(folder, "train"), _inside(folder, "val")
    if train is None and "train" in folder.name:
        train, val = data, str(folder.with_name(folder.name.replace("train", "val")))
    for split, found in (("train", train), ("val", val_data or val)):
        if found is None:
            looked = ", ".join(pattern.format(split) for pattern in STORAGES)
            raise FileNotFoundError(f"{data} has no {split} set: none of {looked}; --val-data names another location")
    return str(train), val_data or str(val)


STORAGES = ("{}", "{}.rec", "{}.lmdb", "{}_lmdb", "{}*.tar", "{}*.tfrecord", "{}-*-of-*")


def _inside(folder: Path, split: str) -> str | None:
    """Return the first path or pattern that exists."""
    patterns = [pattern.format(split) for pattern in STORAGES]
    return next((str(folder / pattern) for pattern in patterns if any(folder.glob(pattern))), None)


def open_dataset(place: str, loader: str = "dali") -> Any:
    """Return a data set of (PIL image, class number).

    Archives have random access, so that any sampler and torch's loader work with them as well. With index_cache only
    one of the ranks of a machine lists a folder, and the others read its list.
    """
    name = Path(place).name
    if name.endswith(".rec"):
        return DALIRecordIO(place)
    if name.endswith(".tar"):
        return DALIWebDataset(place)
    if name.endswith(".tfrecord") or "-of-" in name:
        return DALITFRecord(place)
    if name.endswith(("lmdb", ".mdb")):
        return DALILMDB(place)
    return ImageFolder(place) if loader == "torchvision" else DALIImageFolder(place, index_cache=True)


# ---- transforms: torchvision's, for either loader


def train_transform(options: Options, size: int) -> v2.Compose:
    """Return the transform for crops of ``size``. Progressive sizes set a new one on the data set between epochs."""
    policies = {
        "none": [],
        "randaugment": [v2.RandAugment(magnitude=options.magnitude)],
        "trivialaugment": [v2.TrivialAugmentWide()],
        "autoaugment": [v2.AutoAugment()],
    }
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(options.crop_scale, 1.0)),
            v2.RandomHorizontalFlip(),
            *policies[options.augment],
            *_to_tensor(),
            *([v2.RandomErasing(options.erasing)] if options.erasing else []),
        ]
    )


def val_transform(options: Options) -> v2.Compose:
    return v2.Compose([v2.Resize(options.val_resize), v2.CenterCrop(options.val_size), *_to_tensor()])


def _to_tensor() -> list[v2.Transform]:
    return [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def size_of(options: Options, epoch: int) -> int:
    """Return the side of the crops in an epoch, which grows from --start-size to --size in steps of 32."""
    if not options.start_size:
        return options.size
    done = min(1.0, epoch / max(1.0, options.ramp * options.epochs))
    if done == 1.0:
        return options.size
    return 32 * round((options.start_size + done * (options.size - options.start_size)) / 32)


def mixing(options: Options, classes: int) -> v2.Transform | None:
    """Return the transform that mixes the images of a batch on the device and converts its labels to shares, or
    None."""
    mixes = [v2.MixUp(alpha=options.mixup, num_classes=classes)] if options.mixup else []
    mixes += [v2.CutMix(alpha=options.cutmix, num_classes=classes)] if options.cutmix else []
    return v2.RandomChoice(mixes) if mixes else None


# ---- loaders


def loaders(options: Options, ranks: Ranks, train: Any, val: Any) -> tuple[Any, Any]:
    """Return (training loader, validation loader) of this rank.

    Raises:
        ValueError: A rank's share of the training set is smaller than a batch.
    """
    train.transform, val.transform = train_transform(options, size_of(options, 0)), val_transform(options)
    shuffled = DistributedSampler(train, ranks.world, ranks.rank, seed=options.seed)
    in_order = DistributedSampler(val, ranks.world, ranks.rank, shuffle=False)
    if len(shuffled) < options.batch_size:
        ranks_ = "1 rank" if ranks.world == 1 else f"{ranks.world} ranks"
        raise ValueError(
            f"{len(train)} images on {ranks_} give no batch of {options.batch_size}: pass a smaller --batch-size"
        )
    # A separate generator: random draws in training steps do not affect the loader, and all ranks have the same seed,
    # so that an image's augmentation does not depend on the number of ranks.
    generator = torch.Generator().manual_seed(options.seed)
    common = dict(batch_size=options.batch_size, num_workers=options.workers)
    if options.loader == "torchvision":
        warnings.filterwarnings("ignore", category=dali_compat.FallbackWarning)  # the user chose torch's loader
        common |= dict(num_workers=options.workers or cores_a_rank(), pin_memory=ranks.device.type == "cuda")
        return (
            TorchLoader(train, sampler=shuffled, generator=generator, drop_last=True, **common),
            TorchLoader(val, sampler=in_order, **common),
        )
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    common |= dict(device=ranks.device, memory_format=layout)
    more = dict(generator=generator, drop_last=True, on_error=options.on_error)
    return (
        dali_compat.DataLoader(train, sampler=shuffled, **more, **common),
        dali_compat.DataLoader(val, sampler=in_order, exact=True, **common),  # torchvision's pixels
    )


def cores_a_rank() -> int:
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


class Waited(NamedTuple):
    """Seconds of an epoch so far, and the part in next(): two values of dali_compat's stats()."""

    seconds: float
    waited: float


class TorchLoader(data.DataLoader):
    """torch's loader, with a record of the time spent waiting for it."""

    _begin = _waited = 0.0

    def __iter__(self) -> Iterator[Any]:
        self._begin, self._waited = time.perf_counter(), 0.0
        batches = super().__iter__()
        while True:
            since = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - since
            if batch is None:
                return
            yield batch

    def stats(self) -> Waited:
        return Waited(time.perf_counter() - self._begin, self._waited)


# ---- images for --synthetic


def make_images(folder: Path, classes: int = 4, train: int = 16, val: int = 8) -> None:
    """Write class folders of JPEGs with about 100 pixels per side. The files are the same every time.

    Each class has a colour and a direction of stripes, so that a model starts to learn them within an epoch or two.
    """
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for label in range(classes):
            (folder / split / f"class_{label}").mkdir(parents=True, exist_ok=True)
            for number in range(count):
                height, width = rng.integers(80, 128, 2)
                y, x = np.mgrid[:height, :width]
                stripes = np.sin((x if label % 2 else y) / 3 + rng.uniform(0, 6))[..., None]
                colour = 60 + 120 * (np.arange(3) == label % 3) + rng.uniform(-20, 20, 3)
                pixels = colour + 40 * stripes + rng.normal(0, 8, (height, width, 3))
                image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
                image.save(folder / split / f"class_{label}" / f"{number:03d}.jpg")


if __name__ == "__main__":
    for place in places(*sys.argv[1:]):
        dataset = open_dataset(place)
        print(f"{place}: {len(dataset)} images in {len(set(dataset.targets))} classes", flush=True)
