"""Computes where planes lie, and the numbers of each image that the kernels need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...ops.pixels.resample import vertical_first

COLUMNS = (
    # offsets of the planes, bytes a line, and chroma's size; a sample of chroma is for so many pixels (0: gray)
    *("luma", "cb", "cr", "pitch", "chroma_pitch", "chroma_height", "chroma_width", "chroma_x", "chroma_y"),
    *("left", "top", "width", "height"),  # what is needed of the image
    *("region", "vertical_first", "half"),  # its offset in colours, the order of axes, and the offset after the first
    # of each axis: size, size after resizing, first output, first input that is needed, most taps of an output
    *("size_x", "full_x", "begin_x", "low_x", "taps_x"),
    *("size_y", "full_y", "begin_y", "low_y", "taps_y"),
    *("flip_x", "flip_y"),
)
_AT = {name: i for i, name in enumerate(COLUMNS)}
_LINE = 16  # bytes, of which a plane's lines and their number are multiples
_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}


class Windows(NamedTuple):
    """Windows of N images: one is cut out and resized, and from the result another; each array is (N, 2) int64."""

    start: np.ndarray  # (y, x) of the window
    size: np.ndarray  # its (height, width)
    full: np.ndarray  # the same after resizing
    begin: np.ndarray  # where the result begins there
    flips: np.ndarray  # 1 where the result is turned upside down, mirrored


class Layout(NamedTuple):
    """The layout of a batch's planes."""

    interpolation: str  # as a resize step's
    like: str
    taps: int  # most of an output
    region_bytes: int  # of all images' colours
    half_bytes: int  # of these after the first axis
    most_region: int  # pixels, of the largest image
    most_half: int


class Planes(NamedTuple):
    """Places of N images' planes."""

    offsets: np.ndarray  # (N, 3) int64; 0 of what is not there
    pitches: np.ndarray  # (N, 3) int64, bytes a line
    chroma: np.ndarray  # (N, 4) int64: height and width of a plane, and pixels a sample, across and down; 0 without it
    bytes: np.ndarray  # (N,) of each image
    sizes: np.ndarray  # (N, 2) of the images

    def only(self, index: np.ndarray) -> Planes:
        """Returns the planes of some images, with nothing between them."""
        return planes_of(self.sizes[index], *self.chroma[index, 2:].T)


def planes_of(sizes: np.ndarray, chroma_x: np.ndarray, chroma_y: np.ndarray) -> Planes:
    """Returns the planes of images of ``sizes`` (N, 2); a sample of chroma is for ``chroma_x`` (N,) pixels across, 0
    without chroma."""
    colour = (chroma_x > 0)[:, None]
    steps = np.stack([chroma_y, chroma_x], 1)
    chroma = np.where(colour, -(-sizes // np.maximum(steps, 1)), 0)
    pitch, chroma_pitch = _whole(sizes[:, 1]), _whole(chroma[:, 1])
    luma, each = pitch * _whole(sizes[:, 0]), chroma_pitch * _whole(chroma[:, 0])
    of_all = luma + 2 * each
    begin = np.cumsum(of_all) - of_all
    offsets = np.stack([begin, begin + luma, begin + luma + each], 1)
    pitches = np.stack([pitch, chroma_pitch, chroma_pitch], 1)
    both = np.concatenate([chroma, chroma_x[:, None], chroma_y[:, None]], 1)
    return Planes(offsets, pitches, both, of_all, sizes)


def pixels_of(chroma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) int64 each: for how many pixels across and down a sample of chroma is; 0 without chroma."""
    wide = chroma.astype(np.int64)
    return wide >> 4, np.where(wide >> 4 == 0, 0, wide & 15)


def _whole(sizes: np.ndarray) -> np.ndarray:
    return -(-sizes // _LINE) * _LINE


def whole_rows_of(planes: Planes) -> tuple[np.ndarray, Layout]:
    """Returns rows_of() for all pixels of each image."""
    nothing = np.zeros_like(planes.sizes)
    return rows_of(planes, Windows(nothing, planes.sizes, planes.sizes, nothing, nothing), planes.sizes.max(0).tolist())


def picked_rows_of(planes: Planes, sizes: np.ndarray) -> np.ndarray:
    """(N, len(COLUMNS)) int64 for kernels.pick(): ``sizes`` (N, 2) are those of the results."""
    rows, pixels = _rows(planes), sizes.prod(1)
    rows[:, [_AT["height"], _AT["width"]]] = sizes
    rows[:, _AT["region"]] = 3 * (np.cumsum(pixels) - pixels)
    return rows


def _rows(planes: Planes) -> np.ndarray:
    """Returns rows with the planes' places, and zeros."""
    rows = np.zeros((len(planes.bytes), len(COLUMNS)), np.int64)
    rows[:, _AT["luma"] : _AT["cr"] + 1] = planes.offsets
    rows[:, _AT["pitch"] : _AT["chroma_pitch"] + 1] = planes.pitches[:, :2]
    rows[:, _AT["chroma_height"] : _AT["chroma_y"] + 1] = planes.chroma
    return rows


def rows_of(
    planes: Planes, windows: Windows, size: Sequence[int], interpolation: str = "bilinear", like: str = "pil"
) -> tuple[np.ndarray, Layout]:
    """(N, len(COLUMNS)) int64, and the Layout; ``size`` is that of the results."""
    out, count = np.array(size), len(windows.start)
    scale = windows.size / windows.full
    support = _SUPPORT[interpolation] * np.maximum(scale, 1.0)
    last = np.minimum(windows.begin + out, windows.full) - 1
    # one more on either side than the first and the last output take: rounding is the kernel's affair
    low = np.floor((np.maximum(windows.begin, 0) + 0.5) * scale - support + 0.5).astype(np.int64) - 1
    high = np.ceil((last + 0.5) * scale + support + 0.5).astype(np.int64) + 1
    low, high = np.clip(low, 0, windows.size - 1), np.clip(high, 1, windows.size)
    needed = np.maximum(high - low, 1)
    vertical = vertical_first(windows.size, windows.full) & (like == "pil")
    half = np.where(vertical[:, None], np.stack([np.full(count, out[0]), needed[:, 1]], 1), 0)
    half = np.where(vertical[:, None], half, np.stack([needed[:, 0], np.full(count, out[1])], 1))
    taps = np.minimum(np.ceil(support * 2).astype(np.int64) + 1, windows.size)
    region_pixels, half_pixels = needed.prod(1), half.prod(1)
    rows = _rows(planes)
    rows[:, [_AT["top"], _AT["left"]]] = windows.start + low
    rows[:, [_AT["height"], _AT["width"]]] = needed
    rows[:, _AT["region"]] = 3 * (np.cumsum(region_pixels) - region_pixels)
    rows[:, _AT["half"]] = 3 * (np.cumsum(half_pixels) - half_pixels)
    rows[:, _AT["vertical_first"]] = vertical
    for axis, name in enumerate("yx"):
        columns = np.stack([part[:, axis] for part in (windows.size, windows.full, windows.begin, low, taps)], 1)
        rows[:, _AT["size_" + name] : _AT["taps_" + name] + 1] = columns
    rows[:, [_AT["flip_y"], _AT["flip_x"]]] = windows.flips
    most = int(taps.max()), 3 * int(region_pixels.sum()), 3 * int(half_pixels.sum())
    return rows, Layout(interpolation, like, *most, int(region_pixels.max()), int(half_pixels.max()))
