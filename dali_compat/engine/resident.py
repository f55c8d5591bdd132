"""Torch's part of a plan, on rows of a data set that is on the device already.

The steps are those of engine/batch, and two groups of them are done at once: windows and flips as one gather, and
conversions of uint8 pixels, on a GPU, as a look-up in a table of what torchvision's own functions give on the CPU. That
table is exact, which a GPU's division by a number is not (torch multiplies by the reciprocal there).
"""

from __future__ import annotations

import numpy as np
import torch

from ..plan import ImageSpec, Step
from . import batch as kernels
from .batch import transform

_CONVERSIONS = ("to_dtype", "normalize")


class Program:
    """Steps on (N, C, H, W) uint8 images of one size; ``takes`` is what they are."""

    def __init__(self, steps: tuple[Step, ...], takes: ImageSpec, device: torch.device):
        self._steps = steps
        self._windows = _leading_windows(steps, takes.channels)
        self._first, self._last = _conversions(steps) if device.type == "cuda" else (0, 0)
        self._table = None
        if self._last > self._first:
            self._table = conversion_table(steps[self._first : self._last]).to(device)

    def __call__(self, images: torch.Tensor, arrays: list[dict[str, np.ndarray]]):
        """``arrays`` of each step, as compute() gives them."""
        at = self._windows
        if at:
            images = gather(images, self._steps[:at], arrays[:at])
        while at < len(self._steps):
            step = self._steps[at]
            if at == self._first and self._table is not None and _fits(images, self._table):
                images, at = look_up(images, self._table), self._last
                continue
            if step.op != "choose":
                images = kernels.run(step, images, arrays[at])
            at += 1
        return images


# ---- windows and flips


def _leading_windows(steps, channels: int) -> int:
    """How many of the first steps gather() can do: crops, paddings with one color, and flips, for every sample."""
    fills = set()
    for at, step in enumerate(steps):
        if step.op == "flip":
            continue
        if step.op not in ("crop", "pad") or step.when or step.gives.size is None:
            return at
        if _pads(step):
            fills.add(_fill(step, channels))
        if len(fills) > 1 or step.kwargs.get("mode", "constant") != "constant":
            return at
    return len(steps)


def _pads(step: Step) -> bool:
    return step.op == "pad" or (step.op == "crop" and not step.kwargs["inside"])


def _fill(step: Step, channels: int) -> tuple:
    return tuple(step.kwargs["fill"]) if step.op == "pad" else (0,) * channels


def gather(images: torch.Tensor, steps, arrays) -> torch.Tensor:
    """Crops, paddings and flips in one go. What lies outside of an image is read from one more pixel behind its last,
    which has the color of the padding."""
    n, channels, height, width = images.shape
    lines, shape = _lines(steps, arrays, n, (height, width))
    lines = to_device(lines, images.device)
    fill = next((_fill(step, channels) for step in steps if _pads(step)), None)
    outside = height * width
    y, x = (
        _positions(of_axis, length, stride, None if fill is None else outside)
        for of_axis, length, stride in zip(lines, shape, (width, 1))
    )
    index = y[:, :, None] + x[:, None, :]
    pixels = images.reshape(n, channels, outside)
    if fill is not None:
        index.clamp_(max=outside)
        behind = transform.fill_like(images, fill).view(1, -1, 1).expand(n, channels, 1)
        pixels = torch.cat([pixels, behind], 2)
    index = index.view(n, 1, -1).expand(n, channels, -1)
    return pixels.gather(2, index).view(n, channels, *shape)


def _lines(steps, arrays, count: int, size: tuple[int, int]) -> tuple[np.ndarray, tuple[int, int]]:
    """Where the lines of the result come from, (2 axes, 4, count) int64, and the size of the result.

    Line i is line ``start + sign * i`` of the image, if that is at least ``low`` and below ``high``, else padding.
    """
    lines = np.zeros((2, 4, count), np.int64)
    lines[:, 1] = 1
    lines[:, 3] = np.array(size)[:, None]
    shape = list(size)
    for step, values in zip(steps, arrays, strict=True):
        if step.op == "flip":
            axis = int(step.kwargs["axis"] == "horizontal")
            start, sign, _, _ = lines[axis]
            flag = values.get("flag", 1)
            start += sign * ((shape[axis] - 1) * flag)
            sign *= 1 - 2 * flag
            continue
        for axis, (start, sign, low, high) in enumerate(lines):
            if _pads(step):
                last = start + sign * (shape[axis] - 1)
                np.maximum(low, np.minimum(start, last), out=low)
                np.minimum(high, np.maximum(start, last) + 1, out=high)
            start += sign * values["start"][:, axis]
        shape = list(step.gives.size)
    return lines, tuple(shape)


def _positions(lines: torch.Tensor, length: int, stride: int, outside: int | None) -> torch.Tensor:
    """(N, length): where each line begins, in pixels; ``outside`` for those that are padding."""
    start, sign, low, high = lines[:, :, None]
    line = start + sign * torch.arange(length, device=lines.device)
    if outside is None:
        return line.mul_(stride)
    inside = (line >= low) & (line < high)
    return torch.where(inside, line.mul_(stride), outside)


# ---- conversions


def _conversions(steps) -> tuple[int, int]:
    """The first conversion to floating point and what follows it in a row, where all of it depends on the pixel's value
    alone: places in ``steps``, or (0, 0)."""
    for first, step in enumerate(steps):
        if step.op == "to_dtype":
            break
    else:
        return 0, 0
    last = first
    while last < len(steps) and steps[last].op in _CONVERSIONS and not steps[last].when and steps[last].draw is None:
        last += 1
    return first, last


def conversion_table(steps) -> torch.Tensor:
    """(channels, 256): what the steps give for each value of a channel, on the CPU."""
    channels = steps[0].gives.channels
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, channels, 16, 16)
    for step in steps:
        values = kernels.run(step, values, {})
    return values.reshape(channels, 256)


def _fits(images, table: torch.Tensor) -> bool:
    return isinstance(images, torch.Tensor) and images.dtype == torch.uint8 and images.shape[-3] == len(table)


def look_up(images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``table[channel, value]`` of uint8 images (..., C, H, W)."""
    begin = torch.arange(0, table.numel(), 256, dtype=torch.int32, device=images.device)
    index = images + begin[:, None, None]
    return table.view(-1).index_select(0, index.view(-1)).view(images.shape)


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy that waits for nothing: from pinned memory, for a GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
