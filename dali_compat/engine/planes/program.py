"""Run the steps of a plan on decoded planes, with the kernels."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch

from ...ops.draws import Arrays
from ...ops.pixels.transform import nearest
from ...plan import Plan, Step
from ...runtime.device import to_device
from ..fused import table_on
from .geometry import PlaneLocations, Windows, picked_rows_of, rows_of


class PlanesProgram:
    """Runs the steps ``plan.planes`` on the planes of N images of ``sizes`` (N, 2). ``arrays`` has the steps'
    arguments."""

    def __init__(self, plan: Plan, arrays: list[Arrays], sizes: np.ndarray):
        steps = plan.planes or ()
        self._conversions = tuple(step for step in steps if step.operation.converts)
        self._channels_last = plan.channels_last
        how = next((step.kwargs for step in steps if step.op == "resize"), {"interpolation": "nearest"})
        self._windows: Windows | None = None
        if how["interpolation"].startswith("nearest"):
            geometry = len(steps) - len(self._conversions)  # conversions come last
            self._sizes, self._lines = picked(steps[:geometry], arrays[:geometry], sizes)
            return
        self._how = how["interpolation"], how["like"]
        self._windows = _windows(steps, arrays, sizes)
        sizes_of = [step.gives.size for step in steps if step.op in ("crop", "resize")]
        assert sizes_of[-1] is not None  # ensured by lower()
        self._size = sizes_of[-1]

    def __call__(self, planes: torch.Tensor, locations: PlaneLocations) -> torch.Tensor | list[torch.Tensor]:
        """Return the images on the planes' device: (N, 3, H, W), or a list of N if sizes differ."""
        with torch.cuda.device(planes.device) if planes.is_cuda else nullcontext():  # Triton uses the current device
            table = table_on(self._conversions, planes.device) if self._conversions else None
            if self._windows is None:
                return self._picked(planes, locations, table)
            return self._resized(planes, locations, table, self._windows)

    def _resized(self, planes: torch.Tensor, locations: PlaneLocations, table: torch.Tensor | None, windows: Windows):
        from . import kernels  # imports Triton

        rows, layout = rows_of(locations, windows, self._size, *self._how)
        dtype = torch.uint8 if table is None else table.dtype
        order = torch.channels_last if self._channels_last else torch.contiguous_format
        shape = len(rows), 3, *self._size
        out = torch.empty(shape, dtype=dtype, device=planes.device, memory_format=order)
        kernels.render(planes, to_device(rows, planes.device), layout, table, out)
        return out

    def _picked(self, planes: torch.Tensor, locations: PlaneLocations, table: torch.Tensor | None):
        """Return the images selected by kernels.pick(). uint8 images of different sizes have interleaved channels, as
        DALI returns them."""
        from . import kernels  # imports Triton

        device, sizes, pixels = planes.device, self._sizes.tolist(), self._sizes.prod(1)
        alike = bool((self._sizes == self._sizes[0]).all())
        interleaved = self._channels_last if alike else table is None
        dtype = torch.uint8 if table is None else table.dtype
        out = torch.empty(3 * int(pixels.sum()), dtype=dtype, device=device)
        rows, lines = (to_device(a, device) for a in (picked_rows_of(locations, self._sizes), self._lines))
        kernels.pick(planes, rows, lines, int(pixels.max()), table, out, interleaved)
        parts = [out] if alike else out.split((3 * pixels).tolist())
        count = len(sizes) if alike else 1
        shapes = [(count, *size, 3) if interleaved else (count, 3, *size) for size in sizes[: len(parts)]]
        made = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        made = [image.movedim(-1, 1) for image in made] if interleaved else made
        return made[0] if alike else [image[0] for image in made]


def _windows(steps: tuple[Step, ...], arrays: list[Arrays], sizes: np.ndarray) -> Windows:
    start, size, begin, flips = np.zeros_like(sizes), sizes, np.zeros_like(sizes), np.zeros_like(sizes)
    full = sizes
    resized = False
    for step, values in zip(steps, arrays, strict=True):
        if step.op == "crop" and resized:
            begin = values["start"].astype(np.int64)
        elif step.op == "crop":
            start, size = values["start"].astype(np.int64), values["shape"].astype(np.int64)
        elif step.op == "resize":
            full, resized = values["size"].astype(np.int64), True
        elif step.op == "flip":
            axis = int(step.kwargs["axis"] == "horizontal")
            flips[:, axis] ^= values["flag"].astype(np.int64) != 0 if "flag" in values else 1
    return Windows(start, size, full, begin, flips)


# Steps that only select pixels are crops, padding with black, flips, and Pillow's nearest resizing. The host computes
# the selected lines and columns of each image.


def picked(steps: tuple[Step, ...], arrays: list[Arrays], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lines and columns that steps select from images of ``sizes`` (N, 2).

    Returns:
        Sizes of the results, (N, 2) int64, and ``indices`` (N, 2, longest) int32. Column x of result i is the image's
        column ``indices[i, 0, x]``. Line y is the image's line ``indices[i, 1, y]``. -1 is outside of the image.
    """
    (heights, ys), (widths, xs) = (_along(axis, steps, arrays, sizes[:, axis]) for axis in (0, 1))
    lines = np.full((len(sizes), 2, max(xs.shape[1], ys.shape[1])), -1, np.int32)
    lines[:, 0, : xs.shape[1]], lines[:, 1, : ys.shape[1]] = xs, ys
    return np.stack([heights, widths], 1), lines


def _along(axis: int, steps: tuple[Step, ...], arrays: list[Arrays], length: np.ndarray):
    """Return sizes (N,) and indices (N, longest) for one axis (0: y, 1: x), as in picked(). Indices after the end
    of a shorter result are undefined."""
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
