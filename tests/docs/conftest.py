"""A folder with the files that snippets and commands of the pages use."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from contract.arrays import cifar
from contract.joint_layouts import voc_segmentation
from helpers import make_folder
from remote.server import Running

from dali_compat.archives.pack import pack
from docs.pages import ROOT

SHARDS = 147  # train-{000000..000146}.tar


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return a folder with imagenet/train, photos and archives of them, with two images in each of two classes."""
    place = tmp_path_factory.mktemp("tiny")
    folder = make_folder(place / "imagenet" / "train", classes=2, per_class=2, special=False)
    shutil.copytree(folder, place / "photos")
    for name in ("train.rec", "one.tfrecord", "train_lmdb.lmdb", "train-000000.tar"):
        pack(folder, place / name)
    (place / "train_lmdb.lmdb").rename(place / "train_lmdb")
    (place / "one.tfrecord").rename(place / "train-00000-of-00001")
    for number in range(1, SHARDS):
        shutil.copyfile(place / "train-000000.tar", place / f"train-{number:06d}.tar")
    return place


@pytest.fixture
def here(tiny, tmp_path, monkeypatch):
    """Copy the folder, change to it, and move the user's cache folder into it."""
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="session")
def bucket(tiny):
    """Serve the folder as s3://bucket, and return the environment variables for it."""
    pytest.importorskip("obstore")
    with Running(tiny) as server:
        yield {
            "AWS_ENDPOINT": server.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_REGION": "us-east-1",
        }


@pytest.fixture
def names(here, bucket, monkeypatch):
    """Return the names that snippets use without defining them."""
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    import torch
    from torchvision import transforms as T

    from dali_compat import DALIImageFolder, DataLoader

    cifar(here / "data", monkeypatch)
    voc_segmentation(here / "voc")
    for name in ("train.csv", "val.csv"):
        (here / name).write_text("file,label\nclass_a/00.jpg,cat\nclass_b/01.jpg,dog\n")
    transform = T.Compose([T.RandomResizedCrop(32), T.ToTensor()])
    dataset = DALIImageFolder("imagenet/train", transform)
    images = np.random.default_rng(0).integers(0, 256, (6, 40, 40, 3), dtype=np.uint8)
    found = SimpleNamespace(T=T, torch=torch, DataLoader=DataLoader, ImageFolder=DALIImageFolder, transform=transform)
    found.dataset, found.loader, found.images, found.labels = dataset, DataLoader(dataset, 2), images, list(range(6))
    return vars(found)
