"""Warp batches in torch, as Pillow does for PIL images or as torchvision does for tensors.

The results for PIL images equal those of Image.transform (Geometry.c) bit for bit. Pillow's coordinates are float64.
They are added in the same order as in C, because a rounding tie may depend on the last bit. Terms that depend only on
the row or the column are computed on the host.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import grid_sample

from ...runtime.device import to_device
from .resample import chunks


def resize_nearest(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Resize as Image.resize(NEAREST) does (ImagingScaleAffine)."""
    lines = []
    for before, after in zip(images.shape[-2:], size, strict=True):
        line = nearest(np.array([before]), np.array([after]))[0]
        lines.append(to_device(line, images.device))
    return images.index_select(-2, lines[0]).index_select(-1, lines[1])


def nearest(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the index of the input line for each output line of a nearest resize, (N, ``after.max()``) int64.

    ``before`` and ``after`` (N,) are the numbers of lines of each image. In the row of an image with fewer output lines
    than ``after.max()``, the last entries are meaningless.
    """
    step = before / after
    return _accumulated(step * 0.5, step, int(after.max())).astype(np.int64)


def transform(images, coordinates, size, interpolation, fill):
    """Warp uint8 images (N, C, H, W) as ImagingGenericTransform does.

    ``coordinates(rows)`` returns x and y in the input, (2, n, h, w) float64, for the slice ``rows`` of the images.
    """
    background = fill_like(images, fill)
    sample, per_channel, more = _SAMPLES["nearest" if interpolation.startswith("nearest") else interpolation]
    parts = chunks(images, size[0] * size[1] * (per_channel * images.shape[1] + more))
    made = [_filled(images[part], coordinates(part), sample, background) for part in parts]
    return made[0] if len(made) == 1 else torch.cat(made)


def _filled(images, positions, sample, background):
    """Return the pixels that ``sample`` reads at the positions, and ``background`` outside of the image."""
    ends = to_device(np.array(images.shape[:-3:-1]).reshape(2, 1, 1, 1), images.device)  # for x and y
    x, y = (positions >= 0) & (positions < ends)
    return torch.where((x & y)[:, None], sample(images, positions, ends), background)


def coordinates_of(data: np.ndarray, size: tuple[int, int], device: torch.device):
    """Return the function ``coordinates`` for transform(). ``data`` is (N, 6) for affine transforms, and (N, 8) for
    perspective transforms."""

    a = data.T[:, :, None, None]
    column_terms = to_device(a[0::3] * (np.arange(size[1]) + 0.5), device)
    row_terms = to_device(a[1::3] * (np.arange(size[0])[:, None] + 0.5), device)
    offset = to_device(np.ascontiguousarray(a[2::3]), device)

    def coordinates(rows):
        sums = column_terms[:, rows] + row_terms[:, rows]
        positions = sums[:2].add_(offset[:, rows])
        return positions.div_(sums[2].add_(1)) if len(sums) > 2 else positions

    return coordinates


def pixels(images):
    """Return a function that maps positions y * W + x, (n, h, w) int64, to their pixels, (n, C, h, w)."""
    n, channels = images.shape[:2]
    flat = images.reshape(n, channels, -1)

    def at(place):
        index = place.reshape(n, 1, -1).expand(-1, channels, -1)
        return flat.gather(2, index).reshape(n, channels, *place.shape[1:])

    return at


# ---- functions that sample images at ``positions`` (x and y, changed in place); ``ends`` are width and height


def _clamp(places, ends):
    """Move integer coordinates into the image, even those converted from infinity and NaN. Pixels outside of the image
    are filled later."""
    return torch.minimum(places.clamp_(min=0), ends - 1)


def _nearest(images, positions, ends):
    x, y = _clamp(positions.to(torch.int64), ends)
    return pixels(images)(y.mul_(images.shape[-1]).add_(x))


def _cells(images, positions, ends, reach):
    """Return (pixels, dx, dy), the neighborhood of each position.

    ``pixels`` is int16 of shape (n, C, rows, columns, h, w). ``reach`` lists the rows to read, and also the columns:
    (0, 1) reads 2 x 2 pixels. Pixels outside of the image repeat the border. ``dx`` and ``dy``, (n, 1, h, w), are the
    distances (0 to 1) from the center of pixel (0, 0) right and down to the position.
    """
    low = positions.sub_(0.5).floor()
    dx, dy = positions.sub_(low)
    steps = torch.tensor(reach, device="cpu")[:, None, None]
    taps = low.to(torch.int64)[:, :, None] + to_device(steps, images.device)
    columns, rows = _clamp(taps, ends[..., None])
    places = rows.mul_(images.shape[-1])[:, :, None] + columns[:, None]
    return pixels(images)(places).to(torch.int16), dx[:, None], dy[:, None]


def _bilinear_2x2(images, positions, ends):
    cells, dx, dy = _cells(images, positions, ends, (0, 1))
    left, right = cells.unbind(3)
    top, bottom = right.sub_(left).mul(dx[:, None]).add_(left).unbind(2)
    return bottom.sub_(top).mul_(dy).add_(top).to(torch.uint8)


def _bicubic_4x4(images, positions, ends):
    cells, dx, dy = _cells(images, positions, ends, (-1, 0, 1, 2))
    lines = _cubic(cells.unbind(3), dx[:, None])
    return _cubic(lines.unbind(2), dy).clamp_(0, 255).to(torch.uint8)


# (function, number of float64 values in memory per output pixel and channel, number of further values per output pixel)
_SAMPLES = {"nearest": (_nearest, 1, 10), "bilinear": (_bilinear_2x2, 6, 16), "bicubic": (_bicubic_4x4, 18, 40)}


def _cubic(values, d):
    """Interpolate as Pillow's BICUBIC macro does, adding in the same order."""
    v1, v2, v3, v4 = values
    p4 = (v2 - v1).sub_(v3).add_(v4)
    p3 = (v1 - v2).mul_(2).add_(v3).sub_(v4)
    p2 = v3 - v1
    return p4.mul(d).add_(p3).mul_(d).add_(p2).mul_(d).add_(v2)


def transform_nearest(images, matrix, size, fill):
    """Warp as ImagingTransformAffine does without a filter. Coordinates are sums of 16.16 fixed-point numbers, as in
    Pillow's affine_fixed()."""
    background = fill_like(images, fill)
    lines, others = _fixed_lines(matrix, size, images.shape[-2:])
    column_terms, row_terms = (to_device(np.stack(lines[first::2]), images.device) for first in (0, 1))
    made = []
    for part in chunks(images, size[0] * size[1] * (images.shape[1] + 1) * 2):
        positions = (column_terms[:, part, None, :] + row_terms[:, part, :, None]).bitwise_right_shift_(16)
        for row in others:
            if part.start <= row < part.stop:
                x, y = _unfixed(matrix[row], size, images.device)
                positions[0, row - part.start], positions[1, row - part.start] = x, y
        made.append(_filled(images[part], positions, _nearest, background))
    return made[0] if len(made) == 1 else torch.cat(made)


def _fixed_lines(matrix, size, source):
    """Return four arrays in 16.16 fixed point: x's column terms, x's row terms, y's column terms and y's row terms. An
    input coordinate is the sum of its term for the column and its term for the row.

    Also return the indices of images for which _fits() and _scales() are both False.
    """
    h, w = size
    a = matrix.T[:, :, None]
    fits, scales = _fits(matrix, size), _scales(matrix)

    def fixed(value):
        return np.floor(np.where(fits[:, None], value, 0) * 65536 + 0.5).astype(np.int64)

    columns, rows = np.arange(w), np.arange(h)
    lines = [
        fixed(a[0]) * columns,
        fixed(a[2] + a[0] * 0.5 + a[1] * 0.5) + fixed(a[1]) * rows,
        fixed(a[3]) * columns,
        fixed(a[5] + a[3] * 0.5 + a[4] * 0.5) + fixed(a[4]) * rows,
    ]
    if scales.any():  # ImagingScaleAffine accumulates steps in double precision
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


def _fits(matrix, size) -> np.ndarray:
    """Return (N,) bool, True if the coordinates fit into fixed point."""
    a, (h, w) = matrix.T[:, :, None], size
    corners = np.array([(0, 0), (w, 0), (0, h), (w, h)])
    reach = [np.abs(corners[:, 0] * a[k] + corners[:, 1] * a[k + 1] + a[k + 2]) for k in (0, 3)]
    return (np.maximum(*reach) < 32768).all(1)


def _scales(matrix) -> np.ndarray:
    """Return (N,) bool, True if Pillow uses ImagingScaleAffine."""
    return (matrix[:, 1] == 0) & (matrix[:, 3] == 0)


def is_fixed(matrix: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return (N,) bool, True if transform_nearest() computes the coordinates as sums of fixed-point numbers.

    For other matrices, Pillow accumulates steps and rounds each sum.
    """
    whole = (matrix[:, [0, 4]] == 1).all(1) & (matrix[:, [2, 5]] % 1 == 0).all(1)
    return _fits(matrix, size) & (whole | ~_scales(matrix))


def _unfixed(a, size, device):
    """Yield the input x and y of all output pixels, accumulated in double precision as in the last case of
    ImagingTransformAffine."""
    for step, row_step, offset in (a[:3], a[3:]):
        rows = _accumulated(np.array([offset + row_step * 0.5 + step * 0.5]), row_step, size[0])
        grid = _accumulated(rows[0], step, size[1])
        yield to_device(np.where(abs(grid) < 2**31, np.floor(grid), -1).astype(np.int64), device)


def _accumulated(start: np.ndarray, step, count: int) -> np.ndarray:
    """Return an array of shape (n, count). Each row is start, start + step, start + step + step, and so on. Each sum is
    rounded as in C."""
    line = np.empty((len(start), count))
    line[:, 0] = start
    line[:, 1:] = np.reshape(step, (-1, 1))
    return np.add.accumulate(line, 1)


def fill_like(images: torch.Tensor, fill) -> torch.Tensor:
    """Return the fill color as a tensor (C, 1, 1) in the images' dtype; black if ``fill`` is None. For integer images,
    the color is truncated as in PIL."""
    return to_device(torch.from_numpy(fill_color(images, fill)).to(images.dtype), images.device)[:, None, None]


def fill_color(images: torch.Tensor, fill) -> np.ndarray:
    """Return the color for fill_like() in float64. Its shape is (C,), or (1,) if ``fill`` is None or a number."""
    fill = np.zeros(1) if fill is None else np.asarray(fill, np.float64).reshape(-1)
    return fill if images.is_floating_point() else np.clip(np.trunc(fill), 0, 255)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply matrices, or batches of matrices, in full float32 precision."""
    times = torch.bmm if a.ndim == 3 else torch.mm
    if a.dtype == torch.float32 and _may_be_rounded():
        return times(a.double(), b.double()).float()
    return times(a, b)


def _may_be_rounded() -> bool:
    try:
        if torch.get_float32_matmul_precision() != "highest":
            return True
    except RuntimeError:  # raised if the newer settings below are also in use
        return True
    backends = torch.backends.cuda, torch.backends.mkldnn
    matmuls = (getattr(backend, "matmul", None) for backend in backends)
    return any(getattr(matmul, "fp32_precision", "none") not in ("none", "ieee") for matmul in matmuls)


def dtype_of(images):
    return images.dtype if images.is_floating_point() else torch.float32


def _base_grid(images, size, first):
    """Return (x, y, 1) of each pixel of the result, (1, h * w, 3). x begins at ``first(w)``, and y at ``first(h)``."""
    dtype, (h, w) = dtype_of(images), size
    x, y = (first(n) + torch.arange(n, dtype=dtype, device=images.device) for n in (w, h))
    return torch.stack([x.expand(h, w), y[:, None].expand(h, w), torch.ones_like(x).expand(h, w)], -1).reshape(1, -1, 3)


def affine(images, matrix, size):
    """Return the grid (N, h, w, 2) of torchvision's _affine_grid. ``matrix`` (N, 6) is relative to the center."""
    grid = _base_grid(images, size, lambda n: (1 - n) * 0.5)
    return _times(grid, to_device(matrix.reshape(-1, 2, 3), images.device), images.shape[-2:]).reshape(-1, *size, 2)


def perspective(images, coefficients, size):
    """Return the grid (N, h, w, 2) of torchvision's _perspective_grid."""
    h, w = size
    base = _base_grid(images, size, lambda n: 0.5)
    theta = to_device(coefficients[:, :6].reshape(-1, 2, 3), images.device)
    last = np.concatenate([coefficients[:, 6:], np.ones((len(coefficients), 1))], 1)
    below = _times(base, to_device(np.repeat(last[:, None], 2, 1), images.device), (2, 2))
    return (_times(base, theta, size) / below - 1).reshape(-1, h, w, 2)


def _times(base, theta, size):
    """Return the product of base (1, P, 3) and theta (N, 2, 3), as (N, P, 2) in units of half of ``size``."""
    theta = theta.to(base.dtype).transpose(1, 2)
    theta = theta / to_device(torch.tensor([0.5 * size[1], 0.5 * size[0]], dtype=base.dtype), base.device)
    return product(base.expand(len(theta), -1, -1), theta)


def sample(images, grid, interpolation, fill, like):
    """Sample images at a grid, as torchvision's _apply_grid_transform does. A channel of ones determines where to
    fill."""
    x = images.to(grid.dtype)
    if fill is not None:
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    x = grid_sample(x, grid, interpolation, "zeros", align_corners=False)
    if fill is not None:
        x, mask = x[:, :-1], x[:, -1:]
        color = to_device(torch.tensor(fill, dtype=x.dtype), x.device)[:, None, None]
        if interpolation == "nearest":
            x = torch.where(mask < 0.5, color, x)
        elif like == "v1":
            x = x * mask + (1 - mask) * color
        else:
            x = (x - color) * mask + color
    return x if images.is_floating_point() else x.round().to(images.dtype)
