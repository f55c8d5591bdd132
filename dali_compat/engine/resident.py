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
from .batch.geometry import _border as border

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
    """How many of the first steps gather() can do: crops, paddings with one color or with the image's own, and flips."""
    fills = set()
    for at, step in enumerate(steps):
        if step.op == "flip":
            continue
        if step.op not in ("crop", "pad") or step.when or step.gives.size is None:
            return at
        if step.op == "pad" and _mode(step) != "constant" and step.draw.name != "pad":
            return at  # another border for every image
        if _fill(step, channels):
            fills.add(_fill(step, channels))
        if len(fills) > 1:
            return at
    return len(steps)


def _mode(step: Step) -> str:
    """What lies outside; "inside": the window does not go there."""
    if step.op == "pad":
        return step.kwargs["mode"]
    return "constant" if step.op == "crop" and not step.kwargs["inside"] else "inside"


def _fill(step: Step, channels: int) -> tuple | None:
    """The color of what is outside of the image; None where the step shows none of that."""
    if _mode(step) != "constant":
        return None
    return tuple(step.kwargs["fill"]) if step.op == "pad" else (0,) * channels


def gather(images: torch.Tensor, steps, arrays) -> torch.Tensor:
    """Crops, paddings and flips in one go. What lies outside of an image is read from one more pixel behind its last,
    which has the color of the padding."""
    n, channels, height, width = images.shape
    count = height * width
    # where each line of the result begins in the image, (length,) of all images alike or (N, length); count: outside
    lines = [np.arange(height) * width, np.arange(width)]
    for step, values in zip(steps, arrays, strict=True):
        if step.op == "flip":
            axis = int(step.kwargs["axis"] == "horizontal")
            lines[axis] = _flipped(lines[axis], values.get("flag"), images.device)
        else:
            start, size = values["start"].astype(np.int64), step.gives.size
            for axis in (0, 1):
                lines[axis] = _window(lines[axis], start[:, axis], size[axis], _mode(step), count, images.device)
    y, x = (_of_each(line, images.device) for line in lines)
    index, shape = y[:, :, None] + x[:, None, :], (y.shape[1], x.shape[1])
    fill = next(filter(None, (_fill(step, channels) for step in steps)), None)
    pixels = images.reshape(n, channels, count)
    if fill is not None:
        index.clamp_(max=count)
        behind = transform.fill_like(images, fill).view(1, -1, 1).expand(n, channels, 1)
        pixels = torch.cat([pixels, behind], 2)
    index = index.reshape(len(index), 1, -1).expand(n, channels, -1)
    return pixels.gather(2, index).view(n, channels, *shape)


def _flipped(line, flag: np.ndarray | None, device: torch.device):
    if flag is None:
        return line[::-1] if isinstance(line, np.ndarray) else line.flip(1)
    line = _of_each(line, device)
    return torch.where(to_device(flag.astype(bool), device)[:, None], line.flip(1), line)


def _window(line, start: np.ndarray, length: int, mode: str, outside: int, device: torch.device):
    """``length`` lines from ``start`` on."""
    before = line.shape[-1]
    if mode not in ("inside", "constant") or (isinstance(line, np.ndarray) and (start == start[0]).all()):
        index = np.arange(length) + start[0]
        inside = (index >= 0) & (index < before)
        index = border(index, before, mode)
        if isinstance(line, torch.Tensor):
            return line.index_select(1, to_device(index, device))
        return line[index] if mode != "constant" else np.where(inside, line[index], outside)
    index = to_device(start, device)[:, None] + torch.arange(length, device=device)
    line = _of_each(line, device)
    if mode == "constant":
        line = torch.cat([line, line.new_full((len(line), 1), outside)], 1)
        index = torch.where((index >= 0) & (index < before), index, before)
    return line[0][index] if len(line) == 1 else line.gather(1, index)


def _of_each(line, device: torch.device) -> torch.Tensor:
    """(N, length), or (1, length) of all."""
    return to_device(np.ascontiguousarray(line), device)[None] if isinstance(line, np.ndarray) else line


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
