"""Arguments of kernels that do a step, or two in one, in another way than torchvision writes it."""

from __future__ import annotations

import functools

import numpy as np

from .registry import draws, lookup, run


@draws(uniforms=lambda resize, crop, passes: lookup(crop)[0] if crop else 0)
def resize_lowered(sizes, u, *, resize, crop, passes):
    """A resize, of which perhaps only the window of a crop is wanted, as one or two calls of DALI's resize.

    A call takes an output ``size`` and the region of its input that this size covers, in (fractional) pixels.
    ``passes`` is "one", or for one axis after the other "as Pillow" or "width first".
    """
    _, full = run(resize, sizes, None)
    start, shape = np.zeros_like(full), full
    if crop is not None:
        window, shape = run(crop, full, u)
        start = window["start"]
    per_pixel = sizes / full
    roi_start, roi_end = start * per_pixel, (start + shape) * per_pixel
    if passes == "one":
        calls = {"size": shape} if crop is None else {"size": shape, "roi_start": roi_start, "roi_end": roi_end}
    else:
        vertical = (_vertical_first(sizes, full) & (passes == "as Pillow"))[:, None]
        first = np.concatenate([vertical, ~vertical], 1)  # true on the axis of the first pass
        calls = {
            "size": np.where(first, shape, sizes),
            "roi_start": np.where(first, roi_start, 0),
            "roi_end": np.where(first, roi_end, sizes),
            "second_size": shape,
            "second_roi_start": np.where(first, 0, roi_start),
            "second_roi_end": np.where(first, shape, roi_end),
        }
    return {name: array.astype(np.float32) for name, array in calls.items()}, shape


def _vertical_first(sizes, new) -> np.ndarray:
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
