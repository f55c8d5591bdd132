"""One folder of images, stored in every format that the loader reads."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import dali_compat
from dali_compat.archives.pack import pack

# name: (class, file written by pack, whether its .idx is deleted)
STORAGES = {
    "folder": ("DALIImageFolder", None, False),
    "rec": ("DALIRecordIO", "all.rec", False),
    "rec without idx": ("DALIRecordIO", "plain.rec", True),
    "tfrecord": ("DALITFRecord", "all.tfrecord", False),
    "lmdb": ("DALILMDB", "all.lmdb", False),
    "tar": ("DALIWebDataset", "all.tar", False),
}
ARCHIVES = [name for name in STORAGES if name != "folder"]


def stored(root: Path, storage: str, place: Path) -> Callable:
    """Return a function that makes a data set of the images of ``root``, packed into ``place`` if necessary.

    The function takes the arguments of the data set except the path.
    """
    kind, file, without_idx = STORAGES[storage]
    if storage == "lmdb" and not find_spec("lmdb"):
        pytest.skip("lmdb is not installed")
    path = place / file if file else root
    if not path.exists():
        pack(root, path)
        if without_idx:
            path.with_suffix(".idx").unlink()
    return lambda *args, **kwargs: getattr(dali_compat, kind)(path, *args, **kwargs)
