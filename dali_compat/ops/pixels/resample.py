"""Resize batches in torch, with exactly the pixels of Pillow (Resample.c) or of PyTorch's uint8 resize on a CPU.

Weights are computed on the host in double precision, with additions in the order of the C code. They are multiples of
2**-22, so sums of weighted pixels are exact in float64 on every device and in any order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from ...runtime.device import to_device
from .lists import put

_BITS = 22  # fractional bits of a weight
_NUMBERS = 2**27  # float64 values that a GPU processes at a time
_BLOCK = 64  # outputs per matrix product, because the taps of neighbours overlap


def _box(x):
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _bilinear(x):
    return np.maximum(1 - np.abs(x), 0)


def _hamming(x):
    x = np.abs(x)
    angle = np.where(x == 0, 1, x) * np.pi
    # these constants are floats in C
    value = np.sin(angle) / angle * (float(np.float32(0.54)) + float(np.float32(0.46)) * np.cos(angle))
    return np.where(x == 0, 1.0, np.where(x < 1, value, 0.0))


def _bicubic(x, a=-0.5):
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return np.where(x < 1, near, np.where(x < 2, (((x - 5) * x + 8) * x - 4) * a, 0.0))


def _lanczos(x):
    def sinc(x):
        angle = np.where(x == 0, 1, x) * np.pi
        return np.where(x == 0, 1.0, np.sin(angle) / angle)

    return np.where((x >= -3) & (x < 3), sinc(x) * sinc(x / 3), 0.0)


_FILTERS = {
    "box": (_box, 0.5),
    "bilinear": (_bilinear, 1.0),
    "hamming": (_hamming, 1.0),
    "bicubic": (_bicubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
_NEIGHBOURS: dict[str, tuple[np.ndarray, Callable]] = {
    "bilinear": (np.arange(2), _bilinear),
    "bicubic": (np.arange(-1, 3), functools.partial(_bicubic, a=-0.75)),
}


def vertical_first(sizes, new) -> np.ndarray:
    """Return (N,) bool, True for images whose height Pillow resizes first. Pillow's rule is found by resizing test
    images.

    Since version 13, Pillow starts with the cheaper axis. Earlier versions start with the width, except for images more
    than 100 times as tall as wide.
    """
    shrink = sizes - new
    cheaper = (shrink[:, 0] > 2 * shrink[:, 1]) & _pillow_starts_vertically((300, 40), (50, 37))
    tall = (sizes[:, 0] > 100 * sizes[:, 1]) & _pillow_starts_vertically((404, 4), (402, 2))
    return (shrink[:, 0] > 0) & (cheaper | tall)


@functools.cache
def _pillow_starts_vertically(size, new) -> bool:
    """Return True if the installed Pillow resizes the height first for these sizes."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8))
    both = image.resize(new[::-1], Image.Resampling.BILINEAR)
    half = image.resize((size[1], new[0]), Image.Resampling.BILINEAR)
    vertical_first = half.resize(new[::-1], Image.Resampling.BILINEAR)
    return both.tobytes() == vertical_first.tobytes()


@functools.lru_cache(4096)  # 50 MB; RandomZoomOut of photos makes 2,000 sizes
def taps(
    size_in: int, size_out: int, interpolation: str, like: str = "pil", antialias: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (size_out, taps) and the first input pixel of each output pixel (size_out,).

    Weights are computed as in precompute_coeffs and normalize_coeffs_8bpc of Pillow. If ``like`` is not "pil", they are
    rounded to 16 bits as in PyTorch's UpSampleKernel.cpp.
    """
    weights, first = (_filtered if antialias else _interpolated)(size_in, size_out, interpolation)
    if like == "pil":
        bits = _BITS
    else:
        bits = next((bits for bits in range(_BITS) if int(0.5 + weights.max() * 2 ** (bits + 1)) >= 2**15), _BITS)
    weights *= 2**bits
    weights += np.copysign(0.5, weights)
    np.trunc(weights, out=weights)
    weights /= 2**bits
    return weights.astype(np.float32), first  # exact: a weight has at most 24 significant bits


def _filtered(size_in, size_out, interpolation):
    function, support = _FILTERS[interpolation]
    scale = size_in / size_out
    filter_scale = max(scale, 1.0)
    support = support * filter_scale
    center = (np.arange(size_out) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    count = np.minimum((center + support + 0.5).astype(np.int64), size_in) - first
    x = np.arange(count.max())
    weights = function((x + first[:, None] - center[:, None] + 0.5) * (1.0 / filter_scale))
    weights[x >= count[:, None]] = 0
    total = np.cumsum(weights, 1)[:, -1:]  # in sequence, as C adds
    np.divide(weights, total, out=weights, where=total != 0)
    return weights, first


def _interpolated(size_in, size_out, interpolation):
    """Return the weights and first pixels for taps(), without antialiasing, as in PyTorch. Neighbors outside of
    the image are replaced by the border."""
    around, function = _NEIGHBOURS[interpolation]
    center = (np.arange(size_out) + 0.5) * (size_in / size_out) - 0.5
    if interpolation == "bilinear":
        center = np.maximum(center, 0)
    floor = np.floor(center).astype(np.int64)
    count = min(len(around), size_in)
    first = np.clip(floor + around[0], 0, size_in - count)
    index = np.clip(floor[:, None] + around, 0, size_in - 1) - first[:, None]
    weights = np.zeros((size_out, count))
    np.add.at(weights, (np.arange(size_out)[:, None], index), function(around - (center - floor)[:, None]))
    return weights, first


def resize(images: torch.Tensor, size: tuple[int, int], interpolation: str, like: str = "pil", antialias: bool = True):
    """Resize uint8 images (N, C, H, W) along one axis, round to 8 bits, and resize along the other axis.

    The result is Pillow's or, if ``like`` is not "pil", that of torch.nn.functional.interpolate on a CPU.
    """
    before = np.array(images.shape[-2:])
    vertical = like == "pil" and vertical_first(before[None], np.array([size]))[0]
    order = (-2, -1) if vertical else (-1, -2)
    how = interpolation, like, antialias
    passes = [(axis, _matrix(images, axis, size[axis], how)) for axis in order if size[axis] != before[axis]]
    if not passes:
        return images
    made = []
    for part in chunks(images, max(before[0] * before[1], size[0] * size[1]) * images.shape[1] * 3):
        x = images[part].to(torch.float64)
        for axis, (weights, blocks) in passes:
            x = banded(x, weights, blocks, axis).add_(0.5).floor_().clamp_(0, 255)
        made.append(x.to(torch.uint8))
    return made[0] if len(made) == 1 else torch.cat(made)


class InputWindows(NamedTuple):
    """Windows of N images. Parts of a window may lie outside of its image.

    Attributes:
        start: (N, 2), the upper left corner.
        shape: (N, 2), the size.
        flips: (N, 2) bool, whether the window is flipped (vertically, horizontally).
        fill: (C,) float64, the color outside of the image; None for black.
    """

    start: np.ndarray
    shape: np.ndarray
    flips: np.ndarray
    fill: np.ndarray | None = None


def resize_each(
    images: list[torch.Tensor],
    sizes: np.ndarray,
    interpolation: str,
    like: str = "pil",
    antialias: bool = True,
    windows: InputWindows | None = None,
) -> list[torch.Tensor]:
    """Resize images (C, H, W) of several sizes, or windows of them, to ``sizes`` (N, 2), as resize() does.

    On a GPU the number of matrix products determines the time, so each product takes as many images as memory allows,
    padded to the largest one.
    """
    before = np.array([image.shape[-2:] for image in images])
    start, shape, flips, fill = windows or InputWindows(np.zeros_like(before), before, np.zeros(before.shape, bool))
    vertical = vertical_first(shape, sizes) & (like == "pil")
    made: list = [None] * len(images)
    for rows in _groups(before, sizes, vertical, len(images[0])):
        x = _padded([images[row] for row in rows], *before[rows].max(0).tolist())
        for axis in (0, 1) if vertical[rows[0]] else (1, 0):
            window = start[rows, axis], shape[rows, axis], flips[rows, axis]
            how = interpolation, like, antialias
            matrices, outside = _matrices(before[rows, axis], sizes[rows, axis], how, x.device, *window)
            if axis == 0:
                x = (matrices @ x.flatten(2)).unflatten(2, x.shape[2:])
            else:
                x = (x.flatten(1, 2) @ matrices.mT).unflatten(1, x.shape[1:3])
            if fill is not None:  # fill * outside, with an axis for each of (N, H, C, W)
                outside = outside[:, :, None, None] if axis == 0 else outside[:, None, None]
                x.addcmul_(outside, to_device(fill, x.device)[:, None])
            x.add_(0.5).floor_().clamp_(0, 255)
        x = x.movedim(2, 1).to(torch.uint8, memory_format=torch.contiguous_format)
        for row, image in zip(rows, x, strict=True):
            made[row] = image[:, : sizes[row, 0], : sizes[row, 1]]
    return made


def _groups(before, sizes, vertical, channels: int) -> list[list[int]]:
    """Return groups of image indices. All images of a group are resized along the same axis first. A group takes at
    most _NUMBERS values, or is a single image."""
    groups: list[list[int]] = [[]]
    height, width = 0, 0
    largest = np.maximum(before, sizes).tolist()
    for row in np.lexsort([before[:, 1], before[:, 0], vertical]).tolist():
        group, (h, w) = groups[-1], largest[row]
        height, width = max(height, h), max(width, w)
        full = (len(group) + 1) * channels * height * width * 3 > _NUMBERS
        if group and (full or vertical[row] != vertical[group[0]]):
            groups.append(group := [])
            height, width = h, w
        group.append(row)
    return groups


def _padded(images: list[torch.Tensor], height: int, width: int) -> torch.Tensor:
    """Return images as (N, height, C, width) float64, a layout for matrix products along both axes without a copy."""
    x = torch.zeros(len(images), height, len(images[0]), width, dtype=torch.float64, device=images[0].device)
    put(x.movedim(2, 1), images)
    return x


def _matrices(sizes_in, sizes_out, how, device, start=0, shape=None, flips=False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the resize weights of each image along one axis, as matrices (N, largest out, largest in). Also return the
    sums of the weights of pixels outside of the image, (N, largest out).

    ``start``, ``shape`` and ``flips`` describe the resized window, by default the whole image.
    """
    shape = sizes_in if shape is None else shape
    found = [taps(*pair, *how) for pair in zip(shape.tolist(), sizes_out.tolist(), strict=True)]
    most = max(weights.shape[1] for weights, _ in found)
    size = len(found), int(sizes_out.max())
    weights, first = np.zeros((*size, most), np.float32), np.zeros(size, np.int64)
    for i, (image_weights, begin) in enumerate(found):
        weights[i, : len(begin), : image_weights.shape[1]] = image_weights
        first[i, : len(begin)] = begin
    # column of the image: base + direction * column of the window
    direction = np.where(flips, -1, 1) * np.ones_like(sizes_in)
    base = (start + (shape - 1) * (direction < 0))[:, None] + direction[:, None] * first
    values, base, direction, end = (to_device(a, device) for a in (weights, base, direction, sizes_in))
    values = values.double()
    columns = base[:, :, None] + direction[:, None, None] * torch.arange(most, device=device)
    inside = values * ((columns >= 0) & (columns < end[:, None, None]))
    size_in = int(sizes_in.max())
    matrices = torch.zeros(*size, size_in, dtype=torch.float64, device=device)
    return matrices.scatter_add_(2, columns.clamp_(0, size_in - 1), inside), (values - inside).sum(2)


def _matrix(images, axis, size_out, how):
    """Return the resize weights along one axis as a matrix (in, out), and its blocks for banded()."""
    size_in = images.shape[axis]
    weights, first = taps(size_in, size_out, *how)
    matrices, _ = _matrices(np.array([size_in]), np.array([size_out]), how, images.device)
    matrix = matrices[0]
    return matrix.T, band(first, first + weights.shape[1], size_in)


def band(first: np.ndarray, last: np.ndarray, size_in: int) -> list[tuple[slice, slice]]:
    """Return the blocks of a band matrix as (slice of outputs, slice of inputs).

    Output i depends on the inputs from ``first[i]`` to ``last[i]`` (exclusive).
    """
    starts = range(0, len(first), _BLOCK)
    return [(slice(i, i + _BLOCK), slice(int(first[i]), min(int(last[i : i + _BLOCK].max()), size_in))) for i in starts]


def banded(x: torch.Tensor, matrix: torch.Tensor, blocks, axis: int) -> torch.Tensor:
    """Multiply x (N, C, H, W) along an axis by a band matrix (in, out), block by block."""
    if axis == -1:
        parts = [x[..., inputs] @ matrix[inputs, outputs] for outputs, inputs in blocks]
    else:
        parts = [matrix[inputs, outputs].T @ x[..., inputs, :] for outputs, inputs in blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def chunks(images: torch.Tensor, numbers: int):
    """Return slice objects that divide the images into chunks. If an image takes ``numbers`` float64 values, a chunk
    takes at most 1 GiB on a GPU and 4 MiB on a CPU, or is a single image."""
    budget = _NUMBERS if images.is_cuda else 2**19
    step = max(1, budget // max(numbers, 1))
    return [slice(i, min(i + step, len(images))) for i in range(0, len(images), step)]
