"""Steps that choose pixels, of each image its own: crops, padding with black, flips, and Pillow's nearest pixels. Which
ones is said line by line and column by column, by the host."""

from __future__ import annotations

import numpy as np

from ...ops.draws import Arrays
from ...ops.pixels.transform import nearest
from ...plan import Step


def picked(steps: tuple[Step, ...], arrays: list[Arrays], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the picked pixels of images of ``sizes`` (N, 2), given the steps' ``arrays``.

    Returns:
        The sizes of the results, (N, 2) int64, and (N, 2, longest) int32: which column, and which line, of its image
        each of a result's is; -1 beyond its border.
    """
    (heights, ys), (widths, xs) = (_along(axis, steps, arrays, sizes[:, axis]) for axis in (0, 1))
    lines = np.full((len(sizes), 2, max(xs.shape[1], ys.shape[1])), -1, np.int32)
    lines[:, 0, : xs.shape[1]], lines[:, 1, : ys.shape[1]] = xs, ys
    return np.stack([heights, widths], 1), lines


def _along(axis: int, steps: tuple[Step, ...], arrays: list[Arrays], length: np.ndarray):
    """The lengths along an axis (1: x), (N,), and (N, longest) lines; those behind an image's length mean nothing."""
    lines = np.broadcast_to(np.arange(length.max()), (len(length), length.max()))
    for step, values in zip(steps, arrays, strict=True):
        if step.op in ("crop", "pad"):
            after = values["shape"][:, axis].astype(np.int64)
            at = values["start"][:, axis, None].astype(np.int64) + np.arange(after.max())
        elif step.op == "resize":
            after = values["size"][:, axis].astype(np.int64)
            at = nearest(length, after)
        elif (axis == 1) == (step.kwargs["axis"] == "horizontal"):
            after, at = length, np.broadcast_to(np.arange(lines.shape[1]), lines.shape)
            flips = values["flag"] != 0 if "flag" in values else np.ones(len(length), bool)
            at = np.where(flips[:, None], length[:, None] - 1 - at, at)
        else:
            continue
        inside = (at >= 0) & (at < length[:, None])
        lines = np.where(inside, np.take_along_axis(lines, np.where(inside, at, 0), 1), -1)
        length = after
    return length, lines
