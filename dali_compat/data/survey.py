"""What the files of data sets are, by a look at up to a hundred of them."""

from __future__ import annotations

import os
import statistics
from typing import Any

from ..archives.archive import Archive
from .parts import Images, is_store, sample

# Bytes: up to about 128 pixels a side. Of such images an H100's decoder is not what limits the speed: it takes as long
# with libjpeg's interpolation of chroma (1.7 times the speed at 32 pixels, .9 to 1.04 at 64 to 160, .5 for photos).
_SMALL = 8 << 10


def mostly_jpeg(parts: list[Images]) -> bool:
    """Whether most of the parts' images are JPEG."""
    return 2 * sum(len(part) for part in parts if _is_mostly_jpeg(part)) > sum(map(len, parts))


def mostly_small(parts: list[Images]) -> bool:
    """Whether most of the parts' images are small."""
    return 2 * sum(len(part) for part in parts if _is_mostly_small(part)) > sum(map(len, parts))


def is_small(size: float) -> bool:
    """Whether an encoded image of so many bytes is."""
    return size <= _SMALL


def _is_mostly_jpeg(part: Images) -> bool:
    """Of files by their names."""
    if isinstance(part, Archive):
        return part.mostly_jpeg
    if is_store(part):
        images = part.read(_some(part))
        return 2 * sum(image[:2].tobytes() == b"\xff\xd8" for image in images) > len(images)
    names = [str(sample(part, index)[0]) for index in _some(part)]
    return 2 * sum(name.lower().endswith((".jpg", ".jpeg")) for name in names) > len(names)


def _is_mostly_small(part: Images) -> bool:
    if not len(part):
        return False
    if isinstance(part, Archive):
        sizes = part.locations(_some(part))[2].tolist()
    elif is_store(part):
        sizes = list(map(len, part.read(_some(part))))
    else:
        sizes = [file_size(sample(part, index)[0]) for index in _some(part)]
    return is_small(statistics.median(sizes))


def file_size(path: Any) -> int:
    """In bytes; 0 where there is no such file: whoever reads it says so."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _some(part: Images) -> range:
    return range(0, len(part), len(part) // 100 + 1)
