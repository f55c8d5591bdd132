"""Memory layout of decoded planes, and the parameters of the kernels for each image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...ops.pixels.resample import vertical_first

COLUMNS = (
    # offsets of the planes, bytes per line, size of a chroma plane, and pixels per chroma sample (0: gray)
    *("luma", "cb", "cr", "pitch", "chroma_pitch", "chroma_height", "chroma_width", "chroma_x", "chroma_y"),
    *("left", "top", "width", "height"),  # region of the image that the result depends on
    # offset of the region's RGB, 1 if it is filtered vertically first, offset of the RGB after filtering along one axis
    *("region", "vertical_first", "half"),
    # for each axis: size of the window, its size after resizing, first output pixel, first input pixel needed, and
    # maximum number of filter taps
    *("size_x", "full_x", "begin_x", "low_x", "taps_x"),
    *("size_y", "full_y", "begin_y", "low_y", "taps_y"),
    *("flip_x", "flip_y"),
)
_AT = {name: i for i, name in enumerate(COLUMNS)}
_LINE = 16  # bytes per line, and lines of a plane, are rounded up to multiples of this
_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}


class Windows(NamedTuple):
    """Arguments of a crop, a resize, a second crop and flips, for N images. Each array is (N, 2) int64."""

    start: np.ndarray  # (y, x) of the first crop
    size: np.ndarray  # (height, width) of the first crop
    full: np.ndarray  # (height, width) after resizing
    begin: np.ndarray  # (y, x) of the second crop
    flips: np.ndarray  # vertical and horizontal flip of the result: 1 or 0 each


class Layout(NamedTuple):
    """The resize filter and the buffer sizes of kernels.render()."""

    interpolation: str  # of a resize step
    like: str  # "pil" or "v2"
    taps: int  # maximum number of filter taps per output pixel
    region_bytes: int  # size of the RGB of all regions
    half_bytes: int  # size of the RGB of all images after filtering along one axis
    most_region: int  # pixels of the largest region
    most_half: int  # pixels of the largest image filtered along one axis


class PlaneLocations(NamedTuple):
    """Locations of the planes of N images."""

    offsets: np.ndarray  # (N, 3) int64, in bytes; unused for missing planes
    pitches: np.ndarray  # (N, 3) int64, bytes per line
    chroma: np.ndarray  # (N, 4) int64: height and width of a plane, pixels per chroma sample in x and y; 0 if gray
    bytes: np.ndarray  # (N,) bytes per image
    sizes: np.ndarray  # (N, 2) (height, width) of the images

    def only(self, index: np.ndarray) -> PlaneLocations:
        """Return the locations of the planes of the images at ``index`` in a new buffer without gaps."""
        return planes_of(self.sizes[index], *self.chroma[index, 2:].T)


def planes_of(sizes: np.ndarray, chroma_x: np.ndarray, chroma_y: np.ndarray) -> PlaneLocations:
    """Return the locations of the planes of N images in one buffer. ``sizes`` (N, 2) are (height, width). ``chroma_x``
    and ``chroma_y`` (N,) are pixels per chroma sample; 0 if gray."""
    colour = (chroma_x > 0)[:, None]
    steps = np.stack([chroma_y, chroma_x], 1)
    chroma = np.where(colour, -(-sizes // np.maximum(steps, 1)), 0)
    pitch, chroma_pitch = _rounded_up(sizes[:, 1]), _rounded_up(chroma[:, 1])
    luma, each = pitch * _rounded_up(sizes[:, 0]), chroma_pitch * _rounded_up(chroma[:, 0])
    of_all = luma + 2 * each
    begin = np.cumsum(of_all) - of_all
    offsets = np.stack([begin, begin + luma, begin + luma + each], 1)
    pitches = np.stack([pitch, chroma_pitch, chroma_pitch], 1)
    both = np.concatenate([chroma, chroma_x[:, None], chroma_y[:, None]], 1)
    return PlaneLocations(offsets, pitches, both, of_all, sizes)


def pixels_of(chroma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels per chroma sample in x and y, (N,) int64 each; 0 if gray. ``chroma`` (N,) is as in Header."""
    wide = chroma.astype(np.int64)
    return wide >> 4, np.where(wide >> 4 == 0, 0, wide & 15)


def _rounded_up(sizes: np.ndarray) -> np.ndarray:
    return -(-sizes // _LINE) * _LINE


def whole_rows_of(locations: PlaneLocations) -> tuple[np.ndarray, Layout]:
    """Return the parameters of kernels.render(), (N, len(COLUMNS)) int64, and the Layout, for whole images without a
    resize."""
    sizes, nothing = locations.sizes, np.zeros_like(locations.sizes)
    return rows_of(locations, Windows(nothing, sizes, sizes, nothing, nothing), sizes.max(0).tolist())


def picked_rows_of(locations: PlaneLocations, sizes: np.ndarray) -> np.ndarray:
    """Return the parameters of kernels.pick(), (N, len(COLUMNS)) int64, for results of ``sizes`` (N, 2)."""
    rows, pixels = _rows(locations), sizes.prod(1)
    rows[:, [_AT["height"], _AT["width"]]] = sizes
    rows[:, _AT["region"]] = 3 * (np.cumsum(pixels) - pixels)
    return rows


def _rows(locations: PlaneLocations) -> np.ndarray:
    """Return parameters (N, len(COLUMNS)) int64, with only the locations of the planes set."""
    rows = np.zeros((len(locations.bytes), len(COLUMNS)), np.int64)
    rows[:, _AT["luma"] : _AT["cr"] + 1] = locations.offsets
    rows[:, _AT["pitch"] : _AT["chroma_pitch"] + 1] = locations.pitches[:, :2]
    rows[:, _AT["chroma_height"] : _AT["chroma_y"] + 1] = locations.chroma
    return rows


def rows_of(
    locations: PlaneLocations, windows: Windows, size: Sequence[int], interpolation: str = "bilinear", like: str = "pil"
) -> tuple[np.ndarray, Layout]:
    """Return the parameters of kernels.render(), (N, len(COLUMNS)) int64, and the Layout. ``size`` is the (height,
    width) of all results."""
    out, count = np.array(size), len(windows.start)
    scale = windows.size / windows.full
    support = _SUPPORT[interpolation] * np.maximum(scale, 1.0)
    last = np.minimum(windows.begin + out, windows.full) - 1
    # one pixel more than needed on either side, because the kernel may round differently
    low = np.floor((np.maximum(windows.begin, 0) + 0.5) * scale - support + 0.5).astype(np.int64) - 1
    high = np.ceil((last + 0.5) * scale + support + 0.5).astype(np.int64) + 1
    low, high = np.clip(low, 0, windows.size - 1), np.clip(high, 1, windows.size)
    needed = np.maximum(high - low, 1)
    vertical = vertical_first(windows.size, windows.full) & (like == "pil")
    half = np.where(vertical[:, None], np.stack([np.full(count, out[0]), needed[:, 1]], 1), 0)
    half = np.where(vertical[:, None], half, np.stack([needed[:, 0], np.full(count, out[1])], 1))
    taps = np.minimum(np.ceil(support * 2).astype(np.int64) + 1, windows.size)
    region_pixels, half_pixels = needed.prod(1), half.prod(1)
    rows = _rows(locations)
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
