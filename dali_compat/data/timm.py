"""Treat timm's ImageDataset over a folder as an image folder. Never imports timm."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import pil_loader

from ..errors import Unsupported
from ..inspection.objects import is_original
from .headers import IdentityWeakDict
from .readers import Reader, add_reader, check_items

_known: IdentityWeakDict[tuple[tuple[Any, ...], Any]] = IdentityWeakDict()


def is_timm_dataset(dataset: Any) -> bool:
    return type(dataset) is _class("dataset", "ImageDataset")


def as_leaf(dataset: Any) -> Any:
    """Return a TimmFolder for a supported data set of timm, and any other data set unchanged."""
    try:
        return timm_folder_of(dataset) if is_timm_dataset(dataset) else dataset
    except Unsupported:
        return dataset


def timm_folder_of(dataset: Any) -> Any:
    """Return the TimmFolder of timm's ImageDataset. It is cached until the samples change.

    Raise Unsupported unless the data set returns the RGB images and the targets of an image folder.
    """
    plain = {"load_bytes": False, "input_img_mode": "RGB", "additional_features": None}
    if any(getattr(dataset, name, value) != value for name, value in plain.items()):
        raise Unsupported(f"timm's ImageDataset is supported only with the defaults of {', '.join(plain)}")
    reader = getattr(dataset, "reader", None)
    if type(reader) is not _class("readers.reader_image_folder", "ReaderImageFolder"):
        raise Unsupported(
            f"timm's ImageDataset with a {type(reader).__name__} is not supported, only with a ReaderImageFolder"
        )
    attributes = reader, getattr(reader, "samples", None)
    known, made = _known.get(dataset, lambda: ((), None))
    if not known or any(before is not now for before, now in zip(known, attributes, strict=True)):
        made = TimmFolder(dataset)
        _known.put(dataset, (attributes, made))
    return made


def checked_timm_folder(dataset: Any) -> Any:
    """Return timm_folder_of(dataset). Raise Unsupported also if timm's ``__getitem__`` was replaced."""
    made = timm_folder_of(dataset)
    if not all(is_original(type(one).__getitem__) for one in (dataset, dataset.reader)):
        raise Unsupported("the __getitem__ of timm's ImageDataset or its reader was replaced")
    return made


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules.get(f"timm.data.{module}"), name, None)


class TimmFolder(DatasetFolder):
    """An image folder with the samples and the current transforms of timm's ImageDataset.

    As in timm, a target of None becomes -1, without a call of target_transform.
    """

    def __init__(self, dataset: Any):
        self._dataset, self.loader = weakref.ref(dataset), pil_loader
        self.samples = dataset.reader.samples

    def __getattribute__(self, name: str) -> Any:
        if name not in ("transform", "target_transform"):
            return super().__getattribute__(name)
        found = getattr(self._dataset(), name)
        return partial(_except_none, found) if name == "target_transform" and found is not None else found


def _except_none(function: Callable[[Any], Any], target: Any) -> Any:
    return -1 if target is None else function(target)


class _Reader(Reader):
    """Reader of TimmFolder. Without a target_transform, it replaces targets of None with -1."""

    def sample(self, dataset: Any, index: Any) -> tuple[Any, Any]:
        path, target = dataset.samples[index]
        return path, -1 if target is None and dataset.target_transform is None else target

    def at(self, dataset: Any, indices: Iterable[int]) -> tuple[list[Any], Any]:
        paths, targets = super().at(dataset, indices)
        if dataset.target_transform is None:
            targets = [-1 if target is None else target for target in targets]
        return paths, targets


add_reader(
    TimmFolder,
    _Reader(
        check=lambda dataset: check_items(dataset, DatasetFolder.__getitem__),
        attributes=lambda dataset: (dataset.samples,),
    ),
)
