"""Arguments of kernels that do a step, or two in one, in another way than torchvision writes it."""

from __future__ import annotations

import functools

import numpy as np

from .registry import draws, lookup, run


@draws(uniforms=lambda resize, crop, passes: lookup(crop or resize)[0])
def resize_lowered(sizes, u, *, resize, crop, passes):
    """A resize, of which perhaps only the window of a crop is wanted, as one or two calls of DALI's resize.

    A call takes an output ``size`` and the region of its input that this size covers, in (fractional) pixels.
    ``passes`` is "one", or for one axis after the other "as Pillow" or "width first".
    """
    _, full = run(resize, sizes, u if crop is None else None)  # a random resize has no crop
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
