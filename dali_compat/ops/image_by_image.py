"""Apply all steps to one image before the next, in threads on a CPU.

Intermediate results stay in a core's cache, and the last steps write directly into the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..plan import ImageSpec, Step
from ..runtime.decorators import named
from ..runtime.device import on_the_cpu
from . import kernels, lists_on_gpu
from .convert import conversion_table
from .kernels import kernel_of
from .pixels.lists import each, spare_batch, stack_if_uniform

Values = dict[str, np.ndarray]

_SCALES = (np.divide, 255), (np.multiply, 1 / 255), (np.multiply, 1)  # tried in this order to get float32
_LEAST = 2**15  # values per image; smaller images are processed in batches


@named("transforms in torch")
def run_all(steps: Sequence[Step], images, arrays: Sequence[Values]):
    """Apply steps in sequence and return the new batch. The result is the same as if kernels.run() ran each step."""
    steps, arrays = list(steps), list(arrays)
    while steps:
        count = count_leading(steps, images)
        with on_the_cpu():
            if count:
                images = _run(steps[:count], images, arrays[:count])
            elif isinstance(images, list) and images[0].is_cuda:
                count, images = lists_on_gpu.run_leading(steps, images, arrays)
        if not count:
            images = kernels.run(steps[0], images, arrays[0])
        steps, arrays = steps[count or 1 :], arrays[count or 1 :]
    return images


def count_leading(steps: Sequence[Step], images: Any) -> int:
    """Return the number of leading steps to run image by image. Return 0 if running them on the whole batch is as
    fast."""
    first = images[0]
    if first.is_cuda or first.dtype != torch.uint8:
        return 0
    in_batches = (
        step.operation.in_batches or step.gives.dtype == torch.bfloat16 for step in steps
    )  # NumPy has no bfloat16
    count = next((number for number, one in enumerate(in_batches) if one), len(steps))
    if not isinstance(images, list):
        small = first.numel() < _LEAST and all(_is_small(step.gives) for step in steps[:count])
        return 0 if small or count < 2 else count
    return next((number for number, step in enumerate(steps[:count], 1) if _is_small(step.gives)), count)


def _is_small(spec: ImageSpec) -> bool:
    return spec.size is not None and spec.channels * spec.size[0] * spec.size[1] < _LEAST


def _run(steps: Sequence[Step], images: Any, arrays: Sequence[Values]) -> Any:
    """Apply the steps to each uint8 image (C, H, W). Return a batch, or a list of images if their sizes differ."""
    count = _conversion_start(steps, arrays)
    work = list(zip(steps[:count], arrays[:count], strict=True))
    last = _conversion(tuple(steps[count:])) if count < len(steps) else None
    made = None if last is None or last.size is None else spare_batch((len(images), last.channels, *last.size))

    def make(row: int) -> torch.Tensor:
        image = images[row].numpy()
        for step, values in work:
            if "flag" not in values or values["flag"][row]:
                image = _applied(step, image, {name: array[row : row + 1] for name, array in values.items()})
        if last is None:
            return torch.from_numpy(np.ascontiguousarray(image))
        out = np.empty(image.shape, np.float32)  # allocating costs nothing if the memory is not used
        if made is not None and made.shape[1:] == image.shape:
            out = made[row].numpy()
        last(image, out)
        return torch.from_numpy(out)

    several = each(make, range(len(images)))
    if made is not None and all(one.shape == made.shape[1:] for one in several):
        return made
    return stack_if_uniform(several)


def _applied(step: Step, image: np.ndarray, row: Values) -> np.ndarray:
    if step.op == "flip":
        return image[..., ::-1] if step.kwargs["axis"] == "horizontal" else image[:, ::-1]
    if step.operation.moves:
        (top, left), (height, width) = row["start"][0].tolist(), row["shape"][0].tolist()
        if min(top, left) >= 0 and top + height <= image.shape[1] and left + width <= image.shape[2]:
            return image[:, int(top) : int(top + height), int(left) : int(left + width)]
    if min(image.strides) < 0:  # torch does not support negative strides
        image = image.transpose(1, 2, 0).copy().transpose(2, 0, 1)
    values = {name: array for name, array in row.items() if name != "flag"}
    made: np.ndarray = kernel_of(step.op)(torch.from_numpy(image)[None], values, **step.kwargs)[0].numpy()
    return made


# ---- last steps whose result depends only on a pixel's value and channel


def _conversion_start(steps: Sequence[Step], arrays: Sequence[Values]) -> int:
    """Return the index of the first step that _Conversion replaces, or the number of steps if it replaces none."""
    ops = [step.op for step in steps]
    for last in (["to_dtype", "normalize"], ["to_dtype"]):
        at = len(ops) - len(last)
        alone = ops[at:] == last and not {"to_dtype", "normalize"} & {*ops[:at]} and not any(arrays[at:])
        if alone and steps[-1].gives.dtype == torch.float32:
            return at
    return len(ops)


class _Conversion:
    """A replacement for ``steps`` with bit-identical results. The steps are a to_dtype from uint8 to float32, and
    optionally a normalize."""

    def __init__(self, steps: tuple[Step, ...]):
        self.size, self.channels = steps[-1].gives.size, steps[-1].gives.channels
        self._table = conversion_table(steps).numpy()
        levels = np.broadcast_to(np.arange(256, dtype=np.uint8), (self.channels, 1, 256))
        rest = [] if len(steps) == 1 else [(np.subtract, steps[1].kwargs["mean"]), (np.divide, steps[1].kwargs["std"])]
        for scale in _SCALES:
            self._operations = [(function, np.ravel(np.float32(values))) for function, values in (scale, *rest)]
            tried = np.empty((self.channels, 1, 256), np.float32)
            self._compute(levels, tried)
            if np.array_equal(tried[:, 0], self._table):
                return
        self._operations = []

    def __call__(self, image: np.ndarray, out: np.ndarray) -> None:
        if self._operations:
            self._compute(image, out)
            return
        for table, plane, there in zip(self._table, image, out, strict=True):
            np.take(table, plane, out=there, mode="clip")

    def _compute(self, image: np.ndarray, out: np.ndarray) -> None:
        for channel, (plane, there) in enumerate(zip(image, out, strict=True)):
            for function, values in self._operations:
                function(plane, values[channel % len(values)], out=there, dtype=np.float32)
                plane = there


_conversion = functools.lru_cache(64)(_Conversion)
