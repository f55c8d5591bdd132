"""What the files of data sets are, by a look at up to a hundred of them."""

from __future__ import annotations

import os
import statistics
from typing import Any

from ..archives.archive import Archive
from .leaves import Images, is_store, sample

# Bytes: up to about 128 pixels a side. Of such images an H100's decoder is not what limits the speed: it takes as long
# with libjpeg's interpolation of chroma (1.7 times the speed at 32 pixels, .9 to 1.04 at 64 to 160, .5 for photos).
_SMALL = 8 << 10


def mostly_jpeg(leaves: list[Images]) -> bool:
    """Whether most of the leaves' images are JPEG."""
    return 2 * sum(len(leaf) for leaf in leaves if _is_mostly_jpeg(leaf)) > sum(map(len, leaves))


def mostly_small(leaves: list[Images]) -> bool:
    """Whether most of the leaves' images are small."""
    return 2 * sum(len(leaf) for leaf in leaves if _is_mostly_small(leaf)) > sum(map(len, leaves))


def is_small(size: float) -> bool:
    """Whether an encoded image of so many bytes is."""
    return size <= _SMALL


def _is_mostly_jpeg(leaf: Images) -> bool:
    """Of files by their names."""
    if isinstance(leaf, Archive):
        return leaf.mostly_jpeg
    if is_store(leaf):
        images = leaf.read(_some(leaf))
        return 2 * sum(image[:2].tobytes() == b"\xff\xd8" for image in images) > len(images)
    names = [str(sample(leaf, index)[0]) for index in _some(leaf)]
    return 2 * sum(name.lower().endswith((".jpg", ".jpeg")) for name in names) > len(names)


def _is_mostly_small(leaf: Images) -> bool:
    if not len(leaf):
        return False
    if isinstance(leaf, Archive):
        sizes = leaf.locations(_some(leaf))[2].tolist()
    elif is_store(leaf):
        sizes = list(map(len, leaf.read(_some(leaf))))
    else:
        sizes = [file_size(sample(leaf, index)[0]) for index in _some(leaf)]
    return is_small(statistics.median(sizes))


def file_size(path: Any) -> int:
    """In bytes; 0 where there is no such file: whoever reads it says so."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _some(leaf: Images) -> range:
    return range(0, len(leaf), len(leaf) // 100 + 1)
