"""Arguments of kernels that do a step, or two in one, in another way than torchvision writes it."""

from __future__ import annotations

import functools

import numpy as np

from .registry import Arrays, draws, lookup, run


@draws(uniforms=lambda resize, crop, **_: lookup(crop or resize)[0])
def resize_lowered(sizes, u, *, resize, crop, passes, interpolation=None):
    """A resize, of which perhaps only the window of a crop is wanted, as one or two calls of DALI's resize.

    A call takes an output ``size`` and the region of its input that this size covers, in (fractional) pixels.
    ``passes`` is "one", or for one axis after the other "as Pillow" or "width first". "exact one", "exact" (as Pillow)
    and "exact width first" also do as Pillow at the border of the image, for which they need the ``interpolation``.
    """
    _, full = run(resize, sizes, u if crop is None else None)  # a random resize has no crop
    start, shape = np.zeros_like(full), full
    if crop is not None:
        window, shape = run(crop, full, u)
        start = window["start"]
    vertical = (vertical_first(sizes, full) & (passes in ("as Pillow", "exact")))[:, None]
    first = np.concatenate([vertical, ~vertical], 1)  # true on the axis of the first pass
    if passes.startswith("exact"):
        return _exact_calls(sizes, full, start, shape, first, passes, interpolation), shape
    per_pixel = sizes / full
    roi_start, roi_end = start * per_pixel, (start + shape) * per_pixel
    if passes == "one":
        calls = {"size": shape} if crop is None else {"size": shape, "roi_start": roi_start, "roi_end": roi_end}
    else:
        calls = {
            "size": np.where(first, shape, sizes),
            "roi_start": np.where(first, roi_start, 0),
            "roi_end": np.where(first, roi_end, sizes),
            "second_size": shape,
            "second_roi_start": np.where(first, 0, roi_start),
            "second_roi_end": np.where(first, shape, roi_end),
        }
    return {name: array.astype(np.float32) for name, array in calls.items()}, shape


# ---- resizing with Pillow's borders: it leaves out the taps beyond the border and makes the others add up to 1, where
# DALI repeats the border. So DALI gets zeros there, and its result is multiplied by what makes up for the missing taps.


def _keys(x):
    """Keys' cubic, a = -1/2, of x >= 0."""
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, ((2.5 - 0.5 * x) * x - 4) * x + 2, 0))


# how far DALI's filters reach, and the tables between whose entries it interpolates (resampling_filters.cu), from 0 on
_FILTERS = {
    "bilinear": (1, np.array([1.0, 0.0])),
    "bicubic": (2, _keys(np.linspace(0, 2, 65))),
    "lanczos": (3, np.sinc(np.linspace(0, 3, 97)) * np.sinc(np.linspace(0, 1, 97))),
}


def _exact_calls(sizes, full, start, shape, first, passes, interpolation) -> Arrays:
    """Two calls, one an axis, or one for both. Beside ``size`` and the region that it covers, a call has

    - ``start`` and ``extent``: the part of its input that has all taps, perhaps beyond the border. The region counts
      from there.
    - ``factors``: (N, L), of each row or each column of its output, as many as ``along`` (N, 3) says: it is their shape
      as an image. A call for both axes has ``column_factors`` and ``along_columns``, too.
    """
    scale = sizes / full
    reach = _FILTERS[interpolation][0] * np.maximum(scale, 1)
    low = np.floor((start + 0.5) * scale - reach).astype(np.int64) - 1
    high = np.ceil((start + shape - 0.5) * scale + reach).astype(np.int64) + 1
    region = np.stack([start * scale, (start + shape) * scale])
    factors = _widened(_factors(*(a[:, i] for a in (sizes, full, start, shape)), interpolation) for i in (0, 1))
    of_row, of_column = np.ones((2, len(sizes), 3), np.int32)
    of_row[:, 0], of_column[:, 1] = shape.T

    def call(prefix, axes, low, high, region):
        """``axes``: (N, 2), true where it resizes; elsewhere it keeps what is from ``low`` to ``high``."""
        whole = {"start": low, "extent": high - low, "along": np.where(axes[:, :1], of_row, of_column)}
        real = {
            "size": np.where(axes, shape, high - low),
            "roi_start": np.where(axes, region[0] - low, 0),
            "roi_end": np.where(axes, region[1] - low, high - low),
            "factors": np.where(axes[:, :1], *factors),
        }
        arrays = {name: array.astype(np.int32) for name, array in whole.items()}
        arrays |= {name: array.astype(np.float32) for name, array in real.items()}
        return {prefix + name: array for name, array in arrays.items()}

    if passes == "exact one":
        both = {"column_factors": factors[1], "along_columns": of_column}
        return call("", np.ones_like(first), low, high, region) | both
    factors = [array * _upwards(sizes[:, [i]], full[:, [i]], interpolation) for i, array in enumerate(factors)]
    # the other axis waits, and keeps what the second pass will take
    kept, until = np.maximum(low, 0), np.minimum(high, sizes)
    begin, end = np.where(first, 0, low - kept), np.where(first, shape, high - kept)
    calls = call("", first, np.where(first, low, kept), np.where(first, high, until), region)
    return calls | call("second_", ~first, begin, end, region - kept)


def _upwards(size, full, interpolation) -> np.ndarray:
    """A factor that rounds halves up, as Pillow does, although DALI's float32 may fall short of them.

    At simple ratios many pixels are halves. There linear weights are whole parts of about ``parts``, odd or even, and
    nothing that is not a half is nearer to it than half a part: a quarter of one is safe, of pixels up to 255.
    """
    parts = 2 * np.maximum(size, full) / np.gcd(size, full) * np.maximum(size / full, 1)
    more = np.maximum(1 / (4 * 255 * parts), 2e-6) if interpolation == "bilinear" else 2e-6
    return np.float32(1 + more)


def _widened(arrays) -> list[np.ndarray]:
    """With ones on the right, so that all are as wide."""
    arrays = list(arrays)
    widest = max(array.shape[1] for array in arrays)
    return [np.pad(array, ((0, 0), (0, widest - array.shape[1])), constant_values=1) for array in arrays]


def _factors(size, full, start, shape, interpolation) -> np.ndarray:
    """(N, outputs of the widest window) of one axis: the sum of all weights over that of the weights within the image."""
    support, table = _FILTERS[interpolation]
    scale = size / full
    filter_scale = np.maximum(scale, 1)
    reach = support * filter_scale
    factors = np.ones((len(size), shape.max()), np.float32)
    # only near the ends of the axis do outputs lack taps
    near = np.arange(int(np.ceil((reach / scale).max())))
    output = np.concatenate([np.broadcast_to(near, (len(size), len(near))), full[:, None] - 1 - near], 1)
    place = output - start[:, None]
    row, i = np.nonzero((place >= 0) & (place < shape[:, None]) & (output >= 0) & (output < full[:, None]))
    center = ((output[row, i] + 0.5) * scale[row])[:, None]
    taps = np.floor(center - reach[row, None]) + np.arange(2 * int(np.ceil(reach[row].max(initial=0))) + 2)
    distance = abs(taps + 0.5 - center) / filter_scale[row, None]
    weights = np.interp(distance, np.linspace(0, support, len(table)), table)
    within = (taps >= 0) & (taps < size[row, None])
    factors[row, place[row, i]] = weights.sum(1) / (weights * within).sum(1)
    return factors


def vertical_first(sizes, new) -> np.ndarray:
    """Pillow resizes in two passes; which one goes first depends on its version and the sizes (PARITY: measured)."""
    shrink = sizes - new
    return (shrink[:, 0] > 0) & (shrink[:, 0] > 2 * shrink[:, 1]) & _pillow_may_start_vertically()


@functools.cache
def _pillow_may_start_vertically() -> bool:
    """Pillow >= 13 runs the vertical pass first where that is cheaper; asked of the code rather than of its version."""
    from PIL import Image

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 40), dtype=np.uint8))
    both = image.resize((37, 50), Image.BILINEAR)
    vertical_first = image.resize((40, 50), Image.BILINEAR).resize((37, 50), Image.BILINEAR)
    return both.tobytes() == vertical_first.tobytes()


# ---- warps


@draws(uniforms=lambda of, interpolation: lookup(of)[0])
def dali_matrix(sizes, u, *, of, interpolation):
    """``matrix`` (N, 3, 3) and ``size`` of DALI's warp, for a draw (``of``) of Pillow's ``matrix`` or ``coefficients``.
    Where there is a flag, the others stay as they are."""
    values, after = run(of, sizes, u)
    if "matrix" in values:
        matrix = _affine(values["matrix"], interpolation)
    else:
        matrix = values["coefficients"]
        matrix = np.concatenate([matrix, np.ones((len(matrix), 1))], 1).reshape(-1, 3, 3)
    if "flag" in values:
        matrix = np.where(values["flag"][:, None, None] != 0, matrix, np.eye(3))
    return {"matrix": matrix.astype(np.float32), "size": after.astype(np.float32)}, after


def _affine(matrix, interpolation) -> np.ndarray:
    """(N, 3, 3). Without a filter Pillow uses fixed point (affine_fixed, in Geometry.c): 16 bits after the point, of the
    steps and of where the first pixel's centre lies. What it truncates is raised by half of the last bit."""
    rows = matrix.reshape(-1, 2, 3)
    if interpolation.startswith("nearest"):
        half = np.array([0.5, 0.5, 1])
        steps = np.floor(rows[:, :, :2] * 65536 + 0.5)
        centre = np.floor((rows * half).sum(2, keepdims=True) * 65536 + 0.5) + 0.5
        fixed = np.concatenate([steps, centre - steps.sum(2, keepdims=True) * 0.5], 2) / 65536
        scales = (matrix[:, 1] == 0) & (matrix[:, 3] == 0)  # ImagingScaleAffine counts in double precision
        rows = np.where(scales[:, None, None], rows, fixed)
    last = np.broadcast_to([0.0, 0.0, 1.0], (len(matrix), 1, 3))
    return np.concatenate([rows, last], 1)
