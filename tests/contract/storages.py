"""One folder of images, stored in every way that the loader reads."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import dali_compat
from dali_compat.archives.pack import pack

# name: (class, file that pack makes, whether its .idx is taken away)
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
    """A function that gives a data set of ``root``'s images, packed into ``place`` if need be; it takes a data set's
    arguments other than the path."""
    kind, file, without_idx = STORAGES[storage]
    if storage == "lmdb" and not find_spec("lmdb"):
        pytest.skip("lmdb is not installed")
    path = place / file if file else root
    if not path.exists():
        pack(root, path)
        if without_idx:
            path.with_suffix(".idx").unlink()
    return lambda *args, **kwargs: getattr(dali_compat, kind)(path, *args, **kwargs)
