"""timm's ImageDataset as an image folder or an archive, whichever its reader has. Never imports timm."""

from __future__ import annotations

import os
import sys
import tarfile
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import pil_loader

from ..archives import Archive
from ..archives.files import MappedFiles
from ..archives.index import Rows, Table
from ..errors import Unsupported
from ..inspection.objects import is_original
from .headers import IdentityWeakDict
from .readers import Reader, add_reader, check_items, columns_of_pairs

_known: IdentityWeakDict[tuple[tuple[Any, ...], Any]] = IdentityWeakDict()


def is_timms(dataset: Any) -> bool:
    """Returns whether it is timm's ImageDataset."""
    return type(dataset) is _class("dataset", "ImageDataset")


def as_leaf(dataset: Any) -> Any:
    """A data set itself, or what stands for it where it is one of timm's that can be served: a leaf
    (base_datasets.py)."""
    try:
        return of_timms(dataset) if is_timms(dataset) else dataset
    except Unsupported:
        return dataset


def of_timms(dataset: Any) -> Any:
    """Returns what stands for a data set of timm's: one object as long as its samples stay the same.

    Raises:
        Unsupported: it gives something else than images and targets of a folder or of tar files.
    """
    plain = {"load_bytes": False, "input_img_mode": "RGB", "additional_features": None}
    if any(getattr(dataset, name, value) != value for name, value in plain.items()):
        raise Unsupported(f"timm's ImageDataset with other {', '.join(plain)} than by default")
    reader = getattr(dataset, "reader", None)
    held = reader, getattr(reader, "samples", None), getattr(reader, "targets", None)
    known, made = _known.get(dataset, lambda: ((), None))
    if not known or any(before is not now for before, now in zip(known, held, strict=True)):
        made = _made(dataset)
        _known.put(dataset, (held, made))
    return made


def look_again(dataset: Any) -> None:
    """Before an epoch: samples of tar files that were changed in place are another leaf. Raises as of_timms()."""
    leaf = of_timms(dataset)
    if not all(is_original(type(one).__getitem__) for one in (dataset, dataset.reader)):
        raise Unsupported("timm's ImageDataset or its reader, of which __getitem__ was replaced")
    if isinstance(leaf, _Tars) and leaf.held != _held(dataset.reader):
        _known.put(dataset, ((), None))
        of_timms(dataset)


def _held(reader: Any) -> tuple[list[Any], list[Any]]:
    """Samples and targets of a reader of tar files, as they are now."""
    return [tuple(sample) for sample in reader.samples], list(getattr(reader, "targets", ()))


def _made(dataset: Any) -> Any:
    kind = type(getattr(dataset, "reader", None))
    if kind is _class("readers.reader_image_folder", "ReaderImageFolder"):
        return _Folder(dataset)
    if kind is _class("readers.reader_image_in_tar", "ReaderImageInTar"):
        samples = dataset.reader.samples
        return _Tars(dataset, [(info, name, inside) for info, name, inside in samples], dataset.reader.targets)
    if kind is _class("readers.reader_image_tar", "ReaderImageTar"):
        samples = dataset.reader.samples
        return _Tars(dataset, [(info, None, None) for info, _ in samples], [target for _, target in samples])
    raise Unsupported(f"timm's {kind.__name__} is not a reader of a folder or of tar files")


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules.get(f"timm.data.{module}"), name, None)


class OfTimms:
    """Stands for a data set of timm's, whose transforms are as they are now."""

    _dataset: Callable[[], Any]

    def __getattribute__(self, name: str) -> Any:
        if name in ("transform", "target_transform"):
            return getattr(self._dataset(), name)
        return super().__getattribute__(name)


class _Folder(OfTimms, DatasetFolder):
    """A target of None is -1, which timm gives to no target_transform."""

    def __init__(self, dataset: Any):
        self._dataset, self.loader = weakref.ref(dataset), pil_loader
        self.samples = dataset.reader.samples

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return partial(_but_of_none, found) if name == "target_transform" and found is not None else found

    def sample(self, index: Any) -> tuple[Any, Any]:
        """Its path, and its target before target_transform."""
        path, target = self.samples[index]
        return path, -1 if target is None and self.target_transform is None else target

    def columns(self) -> tuple[Any, Any]:
        """Returns the columns of all samples."""
        paths, targets = columns_of_pairs(self.samples)
        if self.target_transform is None:
            targets = [-1 if target is None else target for target in targets]
        return paths, targets


def _but_of_none(function: Callable[[Any], Any], target: Any) -> Any:
    """A target_transform that no target of None comes to."""
    return -1 if target is None else function(target)


add_reader(
    _Folder,
    Reader(
        check=lambda dataset: check_items(dataset, DatasetFolder.__getitem__),
        sample=_Folder.sample,
        lists=lambda dataset: (dataset.samples,),
        columns=_Folder.columns,
        fixed=lambda dataset: (str(dataset.target_transform is None),),  # on which targets of None depend
    ),
)


class _Tars(OfTimms, Archive):
    """
    Args:
        members: of each image its tarfile.TarInfo, the tar file within the root or None where the root is the file, and
            the TarInfo of a tar file within that, or None.
        targets: of each image.

    Attributes:
        held: what they were made of.
    """

    def __init__(self, dataset: Any, members: list[tuple[Any, str | None, Any]], targets: Any):
        self.held = _held(dataset.reader)
        root = dataset.reader.root
        paths = [os.path.join(root, name) if name else root for _, name, _ in members]
        numbers = {path: number for number, path in enumerate(dict.fromkeys(paths))}
        for path in numbers:
            _refuse_compressed(path)
        self._dataset, self.return_index, self.files = weakref.ref(dataset), False, list(numbers)
        self._table, self._target_list = Table([_rows(members, targets)]), None
        self._table.files = np.array([numbers[path] for path in paths], np.int32)
        stats = [os.stat(path) for path in numbers]
        self._files = MappedFiles(self.files, [(stat.st_size, stat.st_mtime_ns) for stat in stats])


def _rows(members: list[tuple[Any, str | None, Any]], targets: Any) -> Rows:
    """Returns where the images lie, each in its file.

    Raises:
        Unsupported: one is sparse, or a target is no whole number.
    """
    whole = targets.dtype == np.int64 if isinstance(targets, np.ndarray) else all(type(one) is int for one in targets)
    if not whole:
        raise Unsupported("timm's reader of tar files has targets that are no whole numbers")
    if any(info.sparse is not None for info, _, _ in members):
        raise Unsupported("a tar file has sparse files")
    begins = [info.offset_data + (0 if inside is None else inside.offset_data) for info, _, inside in members]
    columns = begins, [info.size for info, _, _ in members], targets
    offsets, lengths, targets = (np.array(column, np.int64) for column in columns)
    return Rows(offsets, lengths, targets, np.zeros((0, 2), np.int64), np.zeros(0, np.uint8))


def _refuse_compressed(path: str) -> None:
    try:
        tarfile.open(path, "r:").close()
    except tarfile.ReadError:
        raise Unsupported(f"{path} is compressed") from None
