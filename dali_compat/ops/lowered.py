"""Arguments of kernels that do a step, or two in one, in another way than torchvision writes it."""

from __future__ import annotations

import functools

import numpy as np

from .draws import draws, lookup, run


@draws(uniforms=lambda resize, crop, passes: max(lookup(one)[0] for one in (resize, crop) if one))
def draw_resize_lowered(sizes, u, *, resize, crop, passes):
    """A resize, of which perhaps only the window of a crop is wanted, as one or two calls of DALI's resize.

    A call takes an output ``size`` and the region of its input that this size covers, in (fractional) pixels.
    ``passes`` is "one", or for one axis after the other "as Pillow" or "width first".
    """
    _, full = run(resize, sizes, u)  # only one of them is random, unless all numbers are given
    start, shape = np.zeros_like(full), full
    if crop is not None:
        window, shape = run(crop, full, u)
        start = window["start"]
    vertical = (vertical_first(sizes, full) & (passes == "as Pillow"))[:, None]
    first = np.concatenate([vertical, ~vertical], 1)  # true on the axis of the first pass
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


@draws(uniforms=lambda **parts: max(lookup(one)[0] for one in parts.values() if one))
def draw_resized_window(sizes, u, *, resize, pad, crop, mirror):
    """A resize, of its image, perhaps padded, perhaps the window of a crop, and perhaps mirrored; one of them may be
    random. ``size``, ``start`` and ``shape`` are (N, 2), ``mirror`` is (N,)."""
    _, full = run(resize, sizes, u)
    start, shape = np.zeros_like(full), full
    for window in filter(None, (pad, crop)):
        values, shape = run(window, shape, u)
        start = start + values["start"]
    flags = np.zeros(len(sizes), np.int32) if mirror is None else run(mirror, shape, u)[0].get("flag", np.int32(1))
    mirrors = np.broadcast_to(flags, len(sizes))
    return {"size": full, "start": start, "shape": shape, "mirror": mirrors}, shape


def vertical_first(sizes, new) -> np.ndarray:
    """Pillow resizes in two passes; which one goes first depends on its version and the sizes (measured). From
    13 on the C code takes the cheaper order; before, Image.resize began with the height of what is 100 times as tall as
    wide."""
    shrink = sizes - new
    cheaper = (shrink[:, 0] > 2 * shrink[:, 1]) & _pillow_starts_vertically((300, 40), (50, 37))
    tall = (sizes[:, 0] > 100 * sizes[:, 1]) & _pillow_starts_vertically((404, 4), (402, 2))
    return (shrink[:, 0] > 0) & (cheaper | tall)


@functools.cache
def _pillow_starts_vertically(size, new) -> bool:
    """Asked of the code rather than of its version."""
    from PIL import Image

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8))
    both = image.resize(new[::-1], Image.Resampling.BILINEAR)
    half = image.resize((size[1], new[0]), Image.Resampling.BILINEAR)
    vertical_first = half.resize(new[::-1], Image.Resampling.BILINEAR)
    return both.tobytes() == vertical_first.tobytes()


# ---- warps


# DALI counts in float32, in which a coordinate on the edge of a pixel may fall to either side. So a matrix is raised by
# more than float32 loses, and not as far as the next edge.
_LAST_BIT = 2.0**-17  # half of fixed point's last bit
_GRAIN = 2.0**-8  # where all numbers of a matrix are multiples of this,
_BETWEEN = 2.0**-10  # it is raised by this


@draws(uniforms=lambda of, interpolation: lookup(of)[0])
def draw_dali_matrix(sizes, u, *, of, interpolation):
    """``matrix`` (N, 3, 3) and ``size`` of DALI's warp, for a draw (``of``) of Pillow's ``matrix`` or ``coefficients``.
    Where there is a flag, the others stay as they are. An affine warp with a filter has a matrix of what is ``inside``,
    too."""
    values, after = run(of, sizes, u)
    given = {}
    if "matrix" not in values:
        matrix = values["coefficients"]
        given["matrix"] = np.concatenate([matrix, np.ones((len(matrix), 1))], 1).reshape(-1, 3, 3)
    elif interpolation.startswith("nearest"):
        given["matrix"] = _square(_raised(_fixed(values["matrix"]), _LAST_BIT))
    else:
        rows = values["matrix"].reshape(-1, 2, 3)
        given.update(matrix=_square(rows), inside=_square(_raised(rows, 0.0)))
    if "flag" in values:
        given = {name: np.where(values["flag"][:, None, None] != 0, made, np.eye(3)) for name, made in given.items()}
    return {name: made.astype(np.float32) for name, made in (given | {"size": after}).items()}, after


def _fixed(matrix) -> np.ndarray:
    """(N, 2, 3). Without a filter Pillow uses fixed point (affine_fixed, in Geometry.c): 16 bits after the point, of
    the steps and of where the first pixel's centre lies."""
    rows = matrix.reshape(-1, 2, 3)
    steps = np.floor(rows[:, :, :2] * 65536 + 0.5)
    centre = np.floor((rows * np.array([0.5, 0.5, 1])).sum(2, keepdims=True) * 65536 + 0.5)
    fixed = np.concatenate([steps, centre - steps.sum(2, keepdims=True) * 0.5], 2) / 65536
    scales = (matrix[:, 1] == 0) & (matrix[:, 3] == 0)  # ImagingScaleAffine counts in double precision
    return np.where(scales[:, None, None], rows, fixed)


def _raised(rows, otherwise: float) -> np.ndarray:
    """Right angles, and scales of powers of two, put whole lines of pixels on edges: Pillow takes the pixel above."""
    on_edges = (rows / _GRAIN % 1 == 0).all((1, 2))
    raised = rows.copy()
    raised[:, :, 2] += np.where(on_edges, _BETWEEN, otherwise)[:, None]
    return raised


def _square(rows) -> np.ndarray:
    last = np.broadcast_to([0.0, 0.0, 1.0], (len(rows), 1, 3))
    return np.concatenate([rows, last], 1)
