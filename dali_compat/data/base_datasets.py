"""The innermost data sets (leaves) of nested Subsets and ConcatDatasets, and the source and target of a sample."""

from __future__ import annotations

import os
import statistics
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.utils.data as data
from torchvision.datasets import VisionDataset

from ..archives import Archive
from ..errors import ImageReadError, Unsupported
from ..inspection.objects import is_original
from ..remote.objects import Objects
from . import timm, torchvision_sets  # noqa: F401  # register their readers
from .arrays import holds_arrays
from .hugging_face import DALIHuggingFace, remedy_for
from .readers import check_items, known_class_of, reader_of, transforms_of
from .sources import Record, Source, Upright

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Images = VisionDataset
"""A data set of image files or encoded images, after image_leaves_of() has checked it."""


def leaves_of(dataset: Any) -> list[Any]:
    """Return the innermost data sets of nested Subsets and ConcatDatasets, in order."""
    if type(dataset) is data.Subset and is_original(dataset.__getitems__):
        return leaves_of(dataset.dataset)
    if type(dataset) is data.ConcatDataset and is_original(dataset.__getitem__):
        return [one for inner in dataset.datasets for one in leaves_of(inner)]
    return [dataset]


def image_leaves_of(dataset: data.Dataset) -> list[Images]:
    """Return the innermost data sets. Raise Unsupported if one holds neither image files nor encoded images."""
    return [_checked_leaf(one) for one in leaves_of(dataset)]


def _checked_leaf(dataset: Any) -> Images:
    name, reader = type(dataset).__name__, reader_of(dataset)
    if is_store(dataset):
        check_items(dataset, Archive.__getitem__, DALIHuggingFace.__getitem__)
    elif reader is not None:
        reader.check(dataset)
    elif (known := known_class_of(dataset)) is not None:
        what = f"{name} is a subclass of torchvision's {known.__name__} and may behave differently"
        raise Unsupported(f"{what}; use {known.__name__} itself and move the added code into transform")
    else:
        what = f"{name} is not an image folder or an archive of images, or a Subset or ConcatDataset of these"
        raise Unsupported(what + remedy_for(dataset))
    transforms_of(dataset)
    return dataset


def is_store(dataset: Any) -> TypeIs[Archive | DALIHuggingFace]:
    """Return True if the data set is a Store (sources.py). The read() of a Store returns encoded images."""
    return isinstance(dataset, Archive) or (isinstance(dataset, DALIHuggingFace) and dataset.paths is None)


def objects_of(dataset: Any) -> Objects | None:
    """Return the Objects instance that reads a data set's images from object storage, or None for other data sets."""
    return getattr(dataset, "_objects", None)


def locate(dataset: data.Dataset, index: Any) -> tuple[Any, int]:
    """Return the innermost data set that holds sample ``index``, and the sample's index in it.

    An invalid index raises the same error as ``dataset[index]``.
    """
    while True:
        if type(dataset) is data.Subset:
            index, dataset = dataset.indices[index], dataset.dataset
        elif type(dataset) is data.ConcatDataset:
            # computed before the conversion to int, so that an invalid index raises torch's error
            negative = bool(index < 0)
            index = _position(index)
            if negative:
                if -index > len(dataset):
                    raise ValueError("absolute value of index should not exceed dataset length")
                index += len(dataset)
            number = bisect_right(dataset.cumulative_sizes, index)
            index -= dataset.cumulative_sizes[number - 1] if number else 0
            dataset = dataset.datasets[number]
        else:
            return dataset, _position(index)


def sample(dataset: Images, index: int, upright: bool = False) -> tuple[Source, Any]:
    """Return (source, target before target_transform) of a sample.

    If ``upright`` is True, the decoder will apply the EXIF orientation of a local file. An invalid index raises
    the same error as ``dataset[index]``.
    """
    reader = reader_of(dataset)
    if reader is None:
        store: Any = dataset
        target, objects = store.target(index), objects_of(store)
        at = index % len(store)
        return Record(store, at) if objects is None else Record(objects, store.part(at)), target
    path, target = reader.sample(dataset, index)
    objects = objects_of(dataset)
    if objects is not None:
        return Record(objects, path), target
    return (Upright if upright else reader.source_type(dataset))(os.fsdecode(path)), target


def _position(index: Any) -> Any:
    # a copy, because the sampler may later change an index that is a tensor
    return index.__index__() if hasattr(index, "__index__") else index


def locate_all(
    dataset: data.Dataset, index: np.ndarray, rows: np.ndarray | None = None
) -> list[tuple[Any, np.ndarray | None, np.ndarray]]:
    """Return a list of (innermost data set, rows, indices in that data set) for the samples of a batch.

    Rows are positions in the batch, or None for all positions. The returned indices may be negative or out of range.
    An invalid index may raise IndexError or TypeError. Call locate() to raise the error of ``dataset[index]``.
    """
    if type(dataset) is data.Subset:
        return locate_all(dataset.dataset, _select(dataset.indices, index), rows)
    if type(dataset) is data.ConcatDataset:
        ends = np.array(dataset.cumulative_sizes)
        index = nonnegative(index, len(dataset))
        numbers, found = np.searchsorted(ends, index, side="right"), []
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            inner = index[chosen] - (ends[number - 1] if number else 0)
            found += locate_all(dataset.datasets[number], inner, chosen if rows is None else rows[chosen])
        return found
    return [(dataset, rows, index)]


def _select(indices, index: np.ndarray) -> np.ndarray:
    if isinstance(indices, (np.ndarray, torch.Tensor)):
        selected = np.asarray(indices)[index]
        if selected.dtype.kind not in "iu":
            raise TypeError(f"the indices of a Subset must be integers, got {selected.dtype}")
        return selected.astype(np.int64)
    return np.array(array("q", [indices[i] for i in index.tolist()]), np.int64)


def nonnegative(index: np.ndarray, length: int) -> np.ndarray:
    """Return the indices, with ``length`` added to negative ones. Raise IndexError if one is out of range."""
    if not len(index):
        return index
    low = index.min()
    if low < -length or index.max() >= length:
        raise IndexError(f"index out of range for {length} samples")
    return index if low >= 0 else np.where(index < 0, index + length, index)


def has_images(dataset: Any) -> bool:
    """Return True if any innermost data set holds files, encoded images or arrays."""
    return any(look(leaf) for leaf in leaves_of(dataset) for look in (reader_of, is_store, holds_arrays))


def survey(leaves: list[Images]) -> tuple[bool, float]:
    """Return (whether most images are JPEGs, typical size of an encoded image in bytes)."""
    found = sorted((*_survey(leaf), len(leaf)) for leaf in leaves if len(leaf))
    if not found:
        return False, 0
    twice = 2 * np.cumsum([count for *_, count in found])
    # median of the medians, weighted by the number of images
    typical = found[int(np.searchsorted(twice, twice[-1] // 2, side="right"))][0]
    return bool(4 * sum(count for _, is_jpeg, count in found if is_jpeg) > twice[-1]), typical


def _survey(leaf: Images) -> tuple[float, bool]:
    """Return the median size in bytes of up to 100 images, and whether most of them are JPEGs."""
    some = range(0, len(leaf), len(leaf) // 100 + 1)
    if isinstance(leaf, Archive):
        return statistics.median(leaf.locations(some)[2].tolist()), leaf.mostly_jpeg
    if is_store(leaf):
        images = leaf.read(some)
        jpegs, sizes = [image[:2].tobytes() == b"\xff\xd8" for image in images], list(map(len, images))
    else:
        sources, objects = [sample(leaf, index)[0] for index in some], objects_of(leaf)
        jpegs = [str(source).lower().endswith((".jpg", ".jpeg")) for source in sources]
        sizes = list(map(file_size, sources)) if objects is None else _object_sizes(sources, objects)
    return statistics.median(sizes), 2 * sum(jpegs) > len(jpegs)


def _object_sizes(some: list[Any], objects: Objects) -> list[int]:
    """Return the known sizes of objects in bytes. If none is known, read the first object and return its size, or 0 if
    that fails."""
    known = [size for record in some if (size := objects.size(record.index))]
    try:
        return known or [len(some[0].bytes())]
    except ImageReadError:  # reported when the object is read for a batch
        return [0]


def file_size(path: Any) -> int:
    """Return the size of a file in bytes, or 0 if the file cannot be accessed."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
