"""Surveys the files of data sets, by a look at up to a hundred of them."""

from __future__ import annotations

import os
import statistics
from typing import Any

from ..archives.archive import Archive
from ..errors import ImageReadError
from ..remote.objects import Objects
from .base_datasets import Images, is_store, objects_of, sample


def mostly_jpeg(leaves: list[Images]) -> bool:
    """Returns whether most of the leaves' images are JPEG."""
    return 2 * sum(len(leaf) for leaf in leaves if _is_mostly_jpeg(leaf)) > sum(map(len, leaves))


def typical_size(leaves: list[Images]) -> float:
    """Bytes of an encoded image: the median of the leaves' medians, of which each counts as often as it has images."""
    medians = sorted((_median_size(leaf), len(leaf)) for leaf in leaves if len(leaf))
    seen, images = 0, sum(count for _, count in medians)
    for size, count in medians:
        seen += count
        if 2 * seen > images:
            return size
    return 0


def _is_mostly_jpeg(leaf: Images) -> bool:
    """Returns whether most files are JPEGs, by their names."""
    if isinstance(leaf, Archive):
        return leaf.mostly_jpeg
    if is_store(leaf):
        images = leaf.read(_some(leaf))
        return 2 * sum(image[:2].tobytes() == b"\xff\xd8" for image in images) > len(images)
    names = [str(sample(leaf, index)[0]) for index in _some(leaf)]
    return 2 * sum(name.lower().endswith((".jpg", ".jpeg")) for name in names) > len(names)


def _median_size(leaf: Images) -> float:
    if isinstance(leaf, Archive):
        sizes = leaf.locations(_some(leaf))[2].tolist()
    elif is_store(leaf):
        sizes = list(map(len, leaf.read(_some(leaf))))
    elif (objects := objects_of(leaf)) is not None:
        sizes = _object_sizes(leaf, objects)
    else:
        sizes = [file_size(sample(leaf, index)[0]) for index in _some(leaf)]
    return statistics.median(sizes)


def _object_sizes(leaf: Images, objects: Objects) -> list[int]:
    """Returns the known sizes of some objects, or those of the first."""
    some: list[Any] = [sample(leaf, index)[0] for index in _some(leaf)]
    known = [size for record in some if (size := objects.size(record.index))]
    try:
        return known or [len(some[0].bytes())]
    except ImageReadError:  # whoever needs it says so
        return [0]


def file_size(path: Any) -> int:
    """In bytes; 0 where there is no such file: whoever reads it says so."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _some(leaf: Images) -> range:
    return range(0, len(leaf), len(leaf) // 100 + 1)
