"""Folders, archives of them and a cache folder for the tests of archives."""

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
    """The user's cache folder is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dali_compat"


@pytest.fixture(scope="session")
def packed(tmp_path_factory) -> Path:
    """A folder of images, ``images``, and archives of it, ``all.rec`` and so on."""
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
    """Each kind of archive, by its ending."""
    if request.param == "lmdb":
        pytest.importorskip("lmdb")
    return request.param


@pytest.fixture
def make(packed, kind):
    """The data set over the archive of this kind."""
    return lambda *args, **kwargs: getattr(dali_compat, KINDS[kind])(packed / f"all.{kind}", *args, **kwargs)


@pytest.fixture
def own(packed, kind, tmp_path) -> Path:
    """A copy of the archive that a test may damage; the file with the images in it is ``inside(own)``."""
    return copied(packed / f"all.{kind}", tmp_path / f"own.{kind}")


def copied(source: Path, target: Path) -> Path:
    """An archive without its index."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.npz"))
    else:
        shutil.copy(source, target)
    return target


def inside(path: Path) -> Path:
    """The file of an archive that has the images."""
    return path / "data.mdb" if path.is_dir() else path


def opened(path: Path, **kwargs):
    """The data set for a path's ending."""
    return getattr(dali_compat, KINDS[path.suffix[1:]])(path, **kwargs)
