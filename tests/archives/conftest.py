"""A folder of images, archives of it, and a temporary cache folder."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import make_folder
from torchvision.datasets import ImageFolder

import dali_compat
from dali_compat.archives.pack import pack

KINDS = {"rec": "DALIRecordIO", "tfrecord": "DALITFRecord", "lmdb": "DALILMDB", "tar": "DALIWebDataset"}


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch) -> Path:
    """Use a temporary folder as the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dali_compat"


@pytest.fixture(scope="session")
def packed(tmp_path_factory) -> Path:
    """Return a folder that contains a folder of images, ``images``, and archives of it, ``all.rec`` and so on."""
    root = tmp_path_factory.mktemp("packed")
    make_folder(root / "images", per_class=4)
    for ending in KINDS if find_spec("lmdb") else KINDS.keys() - {"lmdb"}:
        pack(root / "images", root / f"all.{ending}")
    return root


@pytest.fixture
def stock(packed) -> ImageFolder:
    return ImageFolder(packed / "images")


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    """Return each kind of archive, as its extension."""
    if request.param == "lmdb":
        pytest.importorskip("lmdb")
    return request.param


@pytest.fixture
def make(packed, kind):
    """Return a function that opens the archive of this kind as a data set."""
    return lambda *args, **kwargs: getattr(dali_compat, KINDS[kind])(packed / f"all.{kind}", *args, **kwargs)


@pytest.fixture
def archive_copy(packed, kind, tmp_path) -> Path:
    """Return a copy of the archive that a test may damage; ``inside(archive_copy)`` is the file with the images."""
    return copied(packed / f"all.{kind}", tmp_path / f"own.{kind}")


def copied(source: Path, target: Path) -> Path:
    """Copy an archive without its index."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.npz"))
    else:
        shutil.copy(source, target)
    return target


def inside(path: Path) -> Path:
    """Return the file of an archive that contains the images."""
    return path / "data.mdb" if path.is_dir() else path


def opened(path: Path, **kwargs):
    """Open a path with the data set for its extension."""
    return getattr(dali_compat, KINDS[path.suffix[1:]])(path, **kwargs)
