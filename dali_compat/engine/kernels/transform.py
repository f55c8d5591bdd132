"""A helper: Pillow's Image.transform (Geometry.c) as batched torch, bit for bit.

Coordinates are float64 as in C, and added in the same order, because a rounding tie may hang on the last bit; what
depends on the row or on the column alone is computed on the host.
"""

from __future__ import annotations

import numpy as np
import torch

from ..device import to_device
from .resample import chunks


def resize_nearest(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Image.resize(NEAREST): ImagingScaleAffine over the whole image."""
    lines = []
    for before, after in zip(images.shape[-2:], size, strict=True):
        line = nearest(np.array([before]), np.array([after]))[0]
        lines.append(to_device(line, images.device))
    return images.index_select(-2, lines[0]).index_select(-1, lines[1])


def nearest(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """(N, largest of ``after``) int64: which of ``before`` (N,) lines each of ``after`` (N,) is; behind those, beyond
    the image."""
    step = before / after
    return _accumulated(step * 0.5, step, int(after.max())).astype(np.int64)


def transform(images, coordinates, size, interpolation, fill):
    """ImagingGenericTransform on (N, C, H, W) uint8.

    ``coordinates(rows)`` gives x and y of the input, (n, h, w) float64, for a slice of the images.
    """
    background = fill_like(images, fill)
    sample, per_channel = _SAMPLES["nearest" if interpolation.startswith("nearest") else interpolation]
    height, width = images.shape[-2:]
    made = []
    for part in chunks(images, size[0] * size[1] * (per_channel * images.shape[1] + 10)):
        x, y = coordinates(part)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        made.append(torch.where(inside[:, None], sample(images[part], x, y), background))
    return made[0] if len(made) == 1 else torch.cat(made)


def coordinates_of(data: np.ndarray, size: tuple[int, int], device: torch.device):
    """affine_transform (6 numbers a row) or perspective_transform (8): what transform() takes as ``coordinates``."""

    firsts = range(0, data.shape[1], 3)
    of_column = [to_device(data[:, None, [i]] * (np.arange(size[1]) + 0.5), device) for i in firsts]
    of_row = [to_device(data[:, [i + 1], None] * (np.arange(size[0])[:, None] + 0.5), device) for i in firsts]
    offset = [to_device(data[:, [i], None], device) for i in (2, 5)]

    def coordinates(rows):
        x, y, *scale = (column[rows] + row[rows] for column, row in zip(of_column, of_row, strict=True))
        x, y = x.add_(offset[0][rows]), y.add_(offset[1][rows])
        for s in scale:
            s.add_(1)
            x, y = x.div_(s), y.div_(s)
        return x, y

    return coordinates


def pixels(images):
    """A function of places, y * W + x, (n, h, w) int64: the pixels there, (n, C, h, w)."""
    n, channels = images.shape[:2]
    flat = images.reshape(n, channels, -1)

    def at(place):
        index = place.reshape(n, 1, -1).expand(-1, channels, -1)
        return flat.gather(2, index).reshape(n, channels, *place.shape[1:])

    return at


def _within(coordinate, size):
    """As whole numbers; those that are outside, infinite or none at all are somewhere inside: fills will hide them."""
    return coordinate.to(torch.int64).clamp_(0, size - 1)


def _nearest(images, x, y):
    height, width = images.shape[-2:]
    return pixels(images)(_within(y, height).mul_(width).add_(_within(x, width)))


def _cells(images, x, y, reach):
    """The pixels around each coordinate: their columns, the places at which their rows begin, and the coordinate's
    distance (x, y) from the pixel that ``reach`` calls 0. Pixels beyond the rim are those of the rim."""
    height, width = images.shape[-2:]
    parts, taps = [], []
    for coordinate, size in ((x, width), (y, height)):
        low = coordinate.sub_(0.5).floor()
        parts.append(coordinate.sub_(low)[:, None])
        low = low.to(torch.int64)
        taps.append([(low + i).clamp_(0, size - 1) for i in reach])
    return taps[0], [row.mul_(width) for row in taps[1]], *parts


def _bilinear_2x2(images, x, y):
    at = pixels(images)
    columns, rows, dx, dy = _cells(images, x, y, (0, 1))

    def line(row):
        left, right = (at(row + column).to(torch.int16) for column in columns)
        return right.sub_(left).mul(dx).add_(left)

    top, bottom = map(line, rows)
    return bottom.sub_(top).mul_(dy).add_(top).to(torch.uint8)


def _bicubic_4x4(images, x, y):
    at = pixels(images)
    columns, rows, dx, dy = _cells(images, x, y, (-1, 0, 1, 2))
    lines = (_cubic((at(row + column).to(torch.int16) for column in columns), dx) for row in rows)
    return _cubic(lines, dy).clamp_(0, 255).to(torch.uint8)


# and how many float64, a channel, they take at once
_SAMPLES = {"nearest": (_nearest, 1), "bilinear": (_bilinear_2x2, 5), "bicubic": (_bicubic_4x4, 10)}


def _cubic(values, d):
    """The BICUBIC macro, each sum in its order: p1 + d * (p2 + d * (p3 + d * p4))."""
    v1, v2, v3, v4 = values
    p4 = (v2 - v1).sub_(v3).add_(v4)
    p3 = (v1 - v2).mul_(2).add_(v3).sub_(v4)
    p2 = v3 - v1
    return p4.mul(d).add_(p3).mul_(d).add_(p2).mul_(d).add_(v2)


def transform_nearest(images, matrix, size, fill):
    """ImagingTransformAffine without a filter: coordinates are sums of 16.16 fixed point numbers (affine_fixed)."""
    background = fill_like(images, fill)
    height, width = images.shape[-2:]
    lines, others = _fixed_lines(matrix, size, (height, width))
    x_of_column, x_of_row, y_of_column, y_of_row = (to_device(line, images.device) for line in lines)
    made = []
    for part in chunks(images, size[0] * size[1] * (images.shape[1] + 1) * 2):
        x = (x_of_column[part, None, :] + x_of_row[part, :, None]).bitwise_right_shift_(16)
        y = (y_of_column[part, None, :] + y_of_row[part, :, None]).bitwise_right_shift_(16)
        for row in others:
            if part.start <= row < part.stop:
                x[row - part.start], y[row - part.start] = _unfixed(matrix[row], size, images.device)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        made.append(torch.where(inside[:, None], _nearest(images[part], x, y), background))
    return made[0] if len(made) == 1 else torch.cat(made)


def _fixed_lines(matrix, size, source):
    """x and y of the input in 16.16 fixed point, each a sum of one number a column and one a row of the output; and the
    rows whose coordinates go beyond that."""
    h, w = size
    a = matrix.T[:, :, None]
    corners = np.array([(0, 0), (w, 0), (0, h), (w, h)])
    reach = [np.abs(corners[:, 0] * a[k] + corners[:, 1] * a[k + 1] + a[k + 2]) for k in (0, 3)]
    fits = (np.maximum(*reach) < 32768).all(1)
    scales = (matrix[:, 1] == 0) & (matrix[:, 3] == 0)

    def fixed(value):
        return np.floor(np.where(fits[:, None], value, 0) * 65536 + 0.5).astype(np.int64)

    columns, rows = np.arange(w), np.arange(h)
    lines = [
        fixed(a[0]) * columns,
        fixed(a[2] + a[0] * 0.5 + a[1] * 0.5) + fixed(a[1]) * rows,
        fixed(a[3]) * columns,
        fixed(a[5] + a[3] * 0.5 + a[4] * 0.5) + fixed(a[4]) * rows,
    ]
    if scales.any():  # ImagingScaleAffine adds steps up in double precision
        for line, constant, (step, offset), count, limit in (
            (lines[0], lines[1], (0, 2), w, source[1]),
            (lines[3], lines[2], (4, 5), h, source[0]),
        ):
            step, offset = matrix[scales, step], matrix[scales, offset]
            position = _accumulated(offset + step * 0.5, step, count)
            inside = (position >= 0) & (position < limit)
            line[scales] = np.where(inside, position, -1).astype(np.int64) << 16
            constant[scales] = 0
    return lines, np.flatnonzero(~fits & ~scales)


def _unfixed(a, size, device):
    """x and y as the last resort of ImagingTransformAffine has them: steps add up in double precision."""
    for step, row_step, offset in (a[:3], a[3:]):
        rows = _accumulated(np.array([offset + row_step * 0.5 + step * 0.5]), row_step, size[0])
        grid = _accumulated(rows[0], step, size[1])
        yield to_device(np.where(abs(grid) < 2**31, np.floor(grid), -1).astype(np.int64), device)


def _accumulated(start: np.ndarray, step, count: int) -> np.ndarray:
    """(n, count) of start, start + step, start + step + step ..., each rounded as C rounds."""
    line = np.empty((len(start), count))
    line[:, 0] = start
    line[:, 1:] = np.reshape(step, (-1, 1))
    return np.add.accumulate(line, 1)


def fill_like(images: torch.Tensor, fill) -> torch.Tensor:
    """(C, 1, 1) in the images' dtype; where they are whole numbers, truncated as PIL truncates. None is black."""
    fill = np.zeros(1) if fill is None else np.asarray(fill, np.float64).reshape(-1)
    if not images.is_floating_point():
        fill = np.clip(np.trunc(fill), 0, 255)
    return to_device(torch.from_numpy(fill).to(images.dtype), images.device)[:, None, None]
