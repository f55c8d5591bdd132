"""Run the torch steps of a plan on images that are already on the device.

Two groups of steps are fused. Leading crops, padding and flips run as one torch.gather. On a GPU, conversions of uint8
pixels become lookups in a table that torchvision's functions have filled on the CPU. The table is exact. A conversion
on the GPU is not, because torch multiplies by a reciprocal there instead of dividing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from ..ops import kernels
from ..ops.convert import conversion_table
from ..ops.pixels import transform
from ..ops.windows import border
from ..plan import ImageSpec, Step


class Program:
    """Steps prepared to run on batches (N, C, H, W) of images that match the spec ``takes``."""

    def __init__(self, steps: tuple[Step, ...], takes: ImageSpec, device: torch.device):
        self._steps = steps
        self._windows = _leading_windows(steps, takes.channels)
        in_table = device.type == "cuda" and takes.dtype == torch.uint8
        self._first, self._last = _conversions(steps) if in_table else (0, 0)
        self._table = table_on(steps[self._first : self._last], device) if self._last > self._first else None

    def __call__(self, images: torch.Tensor, arrays: list[dict[str, np.ndarray]]):
        """Return the batch after all steps. ``arrays`` contains the random arguments of each step."""
        at = self._windows
        if at:
            images = gather(images, self._steps[:at], arrays[:at])
        while at < len(self._steps):
            step = self._steps[at]
            if at == self._first and self._table is not None and _fits(images, self._table):
                images, at = look_up(images, self._table), self._last
                continue
            images = kernels.run(step, images, arrays[at])
            at += 1
        return images


# ---- windows and flips


def _leading_windows(steps, channels: int) -> int:
    """Return the number of leading crops, flips and pads that gather() can run together. They must share one fill
    color."""
    fills = set()
    for at, step in enumerate(steps):
        if step.op == "flip":
            continue
        if not step.operation.moves or step.when or step.gives.size is None:
            return at
        if step.op == "pad" and _mode(step) != "constant" and step.draw.name != "pad":
            return at  # the amount of padding differs between images
        if _fill(step, channels):
            fills.add(_fill(step, channels))
        if len(fills) > 1:
            return at
    return len(steps)


def _mode(step: Step) -> str:
    """Return the padding mode of a crop or pad, or "inside" if its window never exceeds the image."""
    if step.op == "pad":
        return step.kwargs["mode"]
    return "constant" if step.op == "crop" and not step.kwargs["inside"] else "inside"


def _fill(step: Step, channels: int) -> tuple | None:
    """Return the fill color, or None if the step fills no pixels."""
    if _mode(step) != "constant":
        return None
    return tuple(step.kwargs["fill"]) if step.op == "pad" else (0,) * channels


def gather(images: torch.Tensor, steps, arrays) -> torch.Tensor:
    """Run crops, padding and flips as one torch.gather."""
    n, channels, height, width = images.shape
    count, device = height * width, images.device
    # Pixel offsets in the image for each line, and for each column, of the result: (length,) if shared by all images,
    # otherwise (N, length). The offset ``count`` selects the fill color.
    lines = [np.arange(height) * width, np.arange(width)]
    columns = [column for values in arrays for column in (*values.get("start", np.empty((0, 0))).T, values.get("flag"))]
    numbers = iter(_in_one_copy([column for column in columns if column is not None], device))
    for step, values in zip(steps, arrays, strict=True):
        if step.op == "flip":
            axis = int(step.kwargs["axis"] == "horizontal")
            lines[axis] = _flipped(lines[axis], next(numbers) if "flag" in values else 1, device)
        else:
            for axis in (0, 1):
                lines[axis] = _window(lines[axis], next(numbers), step.gives.size[axis], _mode(step), count, device)
    y, x = (_as_tensor(line, device) for line in lines)
    index, shape = y[:, :, None] + x[:, None, :], (y.shape[1], x.shape[1])
    fill = next(filter(None, (_fill(step, channels) for step in steps)), None)
    pixels = images.reshape(n, channels, count)
    if fill is not None:
        index.clamp_(max=count)
        pixels = torch.cat([pixels, _color(fill, device).expand(n, channels, 1)], 2)
    index = index.reshape(len(index), 1, -1).expand(n, channels, -1)
    return pixels.gather(2, index).view(n, channels, *shape)


def _in_one_copy(columns: list[np.ndarray], device: torch.device) -> list[int | torch.Tensor]:
    """Move columns (N,) to the device in one copy, as tensors (N, 1). A column of equal entries becomes an int."""
    alike = [bool((column == column[0]).all()) for column in columns]
    varied = [column for column, same in zip(columns, alike, strict=True) if not same]
    moved = iter(_stacked(varied, device)[:, :, None] if varied else ())
    return [int(column[0]) if same else next(moved) for column, same in zip(columns, alike, strict=True)]


def _stacked(columns: list[np.ndarray], device: torch.device) -> torch.Tensor:
    """Return the columns as one (columns, N) int64 tensor on the device."""
    numbers = torch.empty(
        (len(columns), len(columns[0])), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda"
    )
    np.stack(columns, out=numbers.numpy(), casting="unsafe")
    return numbers.to(device, non_blocking=True)


def _flipped(line, flag: int | torch.Tensor, device: torch.device):
    if not isinstance(flag, torch.Tensor):
        return line if not flag else line[::-1] if isinstance(line, np.ndarray) else line.flip(1)
    line = _as_tensor(line, device)
    return torch.where(flag != 0, line.flip(1), line)


def _window(line, start: int | torch.Tensor, length: int, mode: str, outside: int, device: torch.device):
    """Return ``length`` entries of ``line`` from position ``start`` on. ``line`` has the pixel offsets along one axis.
    The padding ``mode`` determines entries beyond the line's ends. ``outside`` is the offset of the fill color."""
    alike, before = not isinstance(start, torch.Tensor), line.shape[-1]
    if alike and mode == "inside":
        return line[..., start : start + length]
    if not isinstance(start, torch.Tensor) and (mode != "constant" or isinstance(line, np.ndarray)):
        index = np.arange(start, start + length)
        inside = (index >= 0) & (index < before)
        index = border(index, before, mode)
        if isinstance(line, torch.Tensor):
            return line.index_select(1, _constant(tuple(index.tolist()), device)[0])
        return line[index] if mode != "constant" else np.where(inside, line[index], outside)
    at, line = start + _constant(range(length), device), _as_tensor(line, device)
    if mode == "constant":
        line = torch.cat([line, line.new_full((len(line), 1), outside)], 1)
        at = torch.where((at >= 0) & (at < before), at, before)
    return line.take(at) if len(line) == 1 else line.gather(1, at.expand(len(line), -1))


def _as_tensor(line, device: torch.device) -> torch.Tensor:
    """Return offsets as a tensor (N, length), or (1, length) if all images share them."""
    return _constant(tuple(line.tolist()), device) if isinstance(line, np.ndarray) else line


@functools.lru_cache(256)
def _constant(numbers: Sequence[int], device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Return the numbers as a tensor (1, length). It is cached, so do not modify it."""
    return torch.tensor([list(numbers)], dtype=dtype, device=device)


@functools.lru_cache(256)
def _color(fill: tuple, device: torch.device) -> torch.Tensor:
    """Return a fill color as a uint8 tensor (1, channels, 1). It is cached, so do not modify it."""
    return transform.fill_like(torch.empty(0, dtype=torch.uint8, device="cpu"), fill).view(1, -1, 1).to(device)


# ---- conversions


def _conversions(steps) -> tuple[int, int]:
    """Return the range (start, end) of the steps that a table can replace. These are the first to_dtype and the
    conversions directly after it. The range may be empty."""
    last = first = next((at for at, step in enumerate(steps) if step.op == "to_dtype"), len(steps))
    while last < len(steps) and steps[last].operation.converts and not steps[last].when and steps[last].draw is None:
        last += 1
    return first, last


@functools.lru_cache(64)
def table_on(steps: tuple[Step, ...], device: torch.device) -> torch.Tensor:
    """Return conversion_table(steps) on the device. It is cached, so do not modify it."""
    return conversion_table(steps).to(device)


def _fits(images, table: torch.Tensor) -> bool:
    return isinstance(images, torch.Tensor) and images.dtype == torch.uint8 and images.shape[-3] == len(table)


def look_up(images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return ``table[channel, value]`` for each value of uint8 images (..., C, H, W)."""
    begin = _constant(range(0, table.numel(), 256), images.device, torch.int32)
    index = images + begin.view(-1, 1, 1)
    return table.view(-1).index_select(0, index.reshape(-1)).view(images.shape)
