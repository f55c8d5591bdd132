"""The parts that a data set consists of, and how each answers "where is sample i, and what is its target"."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from typing import Any

import numpy as np
import torch
import torch.utils.data as data
from torchvision import get_image_backend
from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import default_loader, pil_loader

from ..archives.archive import Archive
from ..errors import Unsupported
from .folder import DALIImageFolder
from .sources import Record, Source
from .timm import is_timms, leaf, part_of

_UNDERSTOOD = DatasetFolder.__getitem__, DALIImageFolder.__getitem__, Archive.__getitem__


Images = DatasetFolder | Archive
"""A data set that folders() accepts: it has ``transform`` and ``target_transform``, and sample() answers for it."""


def folders(dataset: data.Dataset) -> list[Images]:
    """The image folders and archives that a data set consists of, in order.

    Raises:
        Unsupported: naming what is in the way.
    """
    return [_folder(part) for part in parts(dataset)]


def parts(dataset: data.Dataset) -> list[Any]:
    """What a data set consists of, in order: itself, unless it is a Subset or a ConcatDataset, or timm's."""
    if type(dataset) is data.Subset:
        return parts(dataset.dataset)
    if type(dataset) is data.ConcatDataset:
        return [part for inner in dataset.datasets for part in parts(inner)]
    return [leaf(dataset)]


def _folder(dataset: data.Dataset) -> Images:
    name = type(dataset).__name__
    if is_timms(dataset):
        part_of(dataset)  # which says why it is none
    if not isinstance(dataset, Images):
        what = "an image folder or an archive of images"
        raise Unsupported(f"{name} is not {what}, nor a Subset or ConcatDataset of such")
    if type(dataset).__getitem__ not in _UNDERSTOOD:
        raise Unsupported(f"{name} overrides __getitem__; move what it does into transform or target_transform")
    if hasattr(dataset, "__getitems__"):
        raise Unsupported(f"{name} has __getitems__")
    if isinstance(dataset, Archive):
        return dataset
    if dataset.loader not in (default_loader, pil_loader):
        raise Unsupported(f"{name} has a loader of its own; leave loader= out where files are ordinary images")
    if dataset.loader is default_loader and get_image_backend() != "PIL":
        raise Unsupported(f"torchvision's image backend is {get_image_backend()!r}; DALI matches PIL")
    return dataset


def locate(dataset: data.Dataset, index: Any) -> tuple[Any, int]:
    """The part that holds a sample and its index there, as ``dataset[index]`` would find it.

    Raises:
        IndexError, TypeError: as ``dataset[index]`` does.
    """
    while True:
        if type(dataset) is data.Subset:
            index, dataset = dataset.indices[index], dataset.dataset
        elif type(dataset) is data.ConcatDataset:
            negative = bool(index < 0)  # before it is an int: what has no answer raises what torch does
            index = _position(index)
            if negative:
                if -index > len(dataset):
                    raise ValueError("absolute value of index should not exceed dataset length")
                index += len(dataset)
            part = bisect_right(dataset.cumulative_sizes, index)
            index -= dataset.cumulative_sizes[part - 1] if part else 0
            dataset = dataset.datasets[part]
        else:
            return leaf(dataset), _position(index)


def sample(dataset: Images, index: int) -> tuple[Source, Any]:
    """Where the image is, and its target before target_transform.

    Raises:
        IndexError, TypeError: as ``dataset[index]`` does.
    """
    if isinstance(dataset, Archive):
        target = dataset.target(index)
        return Record(dataset, index % len(dataset)), target
    path, target = dataset.samples[index]
    return os.fsdecode(path), target


def _position(index: Any) -> Any:
    """An int of whatever the sampler gave; never the sampler's own tensor, which must not change."""
    return index.__index__() if hasattr(index, "__index__") else index


def places(
    dataset: data.Dataset, index: np.ndarray, rows: np.ndarray | None = None
) -> list[tuple[Any, np.ndarray | None, np.ndarray]]:
    """As locate(), of many indices at once: each part that holds some, which rows (None: all), and their indices there,
    as they are (they may be negative, or out of its range).

    Raises:
        IndexError, TypeError: where one of the indices is wrong; locate() tells which and how.
    """
    if type(dataset) is data.Subset:
        return places(dataset.dataset, _taken(dataset.indices, index), rows)
    if type(dataset) is data.ConcatDataset:
        ends = np.array(dataset.cumulative_sizes)
        index = from_the_front(index, len(dataset))
        part_of, found = np.searchsorted(ends, index, side="right"), []
        for part in np.unique(part_of).tolist():
            chosen = np.flatnonzero(part_of == part)
            inner = index[chosen] - (ends[part - 1] if part else 0)
            found += places(dataset.datasets[part], inner, chosen if rows is None else rows[chosen])
        return found
    return [(leaf(dataset), rows, index)]


def _taken(indices, index: np.ndarray) -> np.ndarray:
    """``indices[i]`` of each i; ``indices`` is whatever a Subset was given."""
    if isinstance(indices, (np.ndarray, torch.Tensor)):
        taken = np.asarray(indices)[index]
        if taken.dtype.kind not in "iu":
            raise TypeError(f"indices of {taken.dtype}")
        return taken.astype(np.int64)
    return np.array(array("q", [indices[i] for i in index.tolist()]), np.int64)


def from_the_front(index: np.ndarray, length: int) -> np.ndarray:
    """Indices of something that long, none negative.

    Raises:
        IndexError: one is out of range.
    """
    if not len(index):
        return index
    low = index.min()
    if low < -length or index.max() >= length:
        raise IndexError("index out of range")
    return index if low >= 0 else np.where(index < 0, index + length, index)
