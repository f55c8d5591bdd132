"""torchvision's data sets of arrays, made from tiny files in their layouts, and references for their transforms."""

import bz2
import copy
import pickle
from pathlib import Path

import numpy as np
import torch
import torchvision.datasets as tv
from parity.reference import reference as of_torchvision

from dali_compat.data.arrays import images_of, spec_of
from dali_compat.plan import Options
from dali_compat.translate import translate
from dali_compat.translate.lower import lower

COUNT = 40


def pictures(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def labels(count=COUNT, most=10, seed=1) -> list[int]:
    return np.random.default_rng(seed).integers(0, most, count).tolist()


def cifar(root, monkeypatch, kind=tv.CIFAR10):
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: Path(path).exists())
    folder = Path(root, kind.base_folder)
    folder.mkdir(parents=True)
    name = "labels" if kind is tv.CIFAR10 else "fine_labels"
    lists = kind.train_list + kind.test_list
    for number, (file, _) in enumerate(lists):
        entry = {"data": pictures(COUNT // len(kind.train_list), 3072, seed=number)}
        entry[name] = labels(len(entry["data"]), seed=number)
        (folder / file).write_bytes(pickle.dumps(entry))
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: [str(i) for i in range(10)]}))
    return kind(str(root))


def _idx(path: Path, array: np.ndarray) -> None:
    kinds = {"uint8": 8, "int32": 12}
    head = np.array([kinds[array.dtype.name] << 8 | array.ndim, *array.shape], ">i4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + array.astype(array.dtype.newbyteorder(">")).tobytes())


def mnist(root, monkeypatch, kind=tv.MNIST):
    raw = Path(root, kind.__name__, "raw")
    for part in ("train", "t10k"):
        _idx(raw / f"{part}-images-idx3-ubyte", pictures(COUNT, 28, 28))
        _idx(raw / f"{part}-labels-idx1-ubyte", np.array(labels(), np.uint8))
    return kind(str(root))


def emnist(root, monkeypatch):
    raw = Path(root, "EMNIST", "raw")
    _idx(raw / "emnist-balanced-train-images-idx3-ubyte", pictures(COUNT, 28, 28))
    _idx(raw / "emnist-balanced-train-labels-idx1-ubyte", np.array(labels(most=47), np.uint8))
    return tv.EMNIST(str(root), "balanced", train=True)


def qmnist(root, monkeypatch, **options):
    raw = Path(root, "QMNIST", "raw")
    _idx(raw / "qmnist-train-images-idx3-ubyte", pictures(COUNT, 28, 28))
    _idx(raw / "qmnist-train-labels-idx2-int", np.random.default_rng(0).integers(0, 10, (COUNT, 8)).astype(np.int32))
    return tv.QMNIST(str(root), **options)


def usps(root, monkeypatch):
    values = np.random.default_rng(0).uniform(-1, 1, (COUNT, 256))
    rows = zip(labels(), values, strict=True)
    lines = [" ".join([str(y + 1), *(f"{i + 1}:{v:.6f}" for i, v in enumerate(x))]) for y, x in rows]
    with bz2.open(Path(root, "usps.bz2"), "wt") as file:
        file.write("\n".join(lines) + "\n")
    return tv.USPS(str(root))


def svhn(root, monkeypatch):
    """Return a data set in the state that SVHN.__init__ gives, without scipy's reader of .mat files."""
    dataset = tv.SVHN.__new__(tv.SVHN)
    tv.VisionDataset.__init__(dataset, str(root))
    dataset.split = "train"
    dataset.data = np.transpose(np.asfortranarray(pictures(32, 32, 3, COUNT)), (3, 2, 0, 1))
    dataset.labels = np.array(labels(), np.int64)
    return dataset


def stl10(root, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.stl10.check_integrity", lambda path, md5=None: True)
    folder = Path(root, tv.STL10.base_folder)
    folder.mkdir(parents=True)
    (folder / "train_X.bin").write_bytes(pictures(COUNT, 3, 96, 96).tobytes())
    (folder / "train_y.bin").write_bytes((np.array(labels(), np.uint8) + 1).tobytes())
    return tv.STL10(str(root))


TORCHVISION = {
    "CIFAR10": cifar,
    "CIFAR100": lambda root, patch: cifar(root, patch, tv.CIFAR100),
    "MNIST": mnist,
    "FashionMNIST": lambda root, patch: mnist(root, patch, tv.FashionMNIST),
    "KMNIST": lambda root, patch: mnist(root, patch, tv.KMNIST),
    "EMNIST": emnist,
    "QMNIST": qmnist,
    "QMNIST, vectors": lambda root, patch: qmnist(root, patch, compat=False),
    "USPS": usps,
    "SVHN": svhn,
    "STL10": stl10,
}


def reference(dataset, indices, seed: int) -> list[torch.Tensor]:
    """Return torchvision's transforms of the samples, with the random numbers of an epoch with this seed."""
    plan = lower(translate(dataset.transform, spec_of(images_of(dataset))), Options(), decoded=True)
    untransformed = copy.copy(dataset)
    untransformed.transform = None
    return of_torchvision(dataset.transform, plan, [untransformed[index][0] for index in indices], seed)
