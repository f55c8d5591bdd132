"""The steps of a plan that kernels do on planes: from their per-sample arguments to a batch."""

from __future__ import annotations

import functools
from contextlib import nullcontext

import numpy as np
import torch

from ...draws import Arrays
from ...plan import Plan, Step
from ..device import to_device
from ..fused import conversion_table
from .geometry import Planes, Windows, rows_of


class Program:
    """``plan.planes`` for N images, whose arguments ``arrays`` are, and ``sizes`` (N, 2)."""

    def __init__(self, plan: Plan, arrays: list[Arrays], sizes: np.ndarray):
        steps = plan.planes
        self._how = next(
            (step.kwargs for step in steps if step.op == "resize"), {"interpolation": "bilinear", "like": "pil"}
        )
        self._windows = _windows(steps, arrays, sizes)
        sizes_of = [step.gives.size for step in steps if step.op in ("crop", "resize")]
        assert sizes_of[-1] is not None  # or lower() would not have let it come to this
        self._size = sizes_of[-1]
        self._conversions = tuple(step for step in steps if step.op in ("to_dtype", "normalize"))
        self._format = torch.channels_last if plan.channels_last else torch.contiguous_format

    def __call__(self, planes: torch.Tensor, places: Planes) -> torch.Tensor:
        """(N, 3, H, W) on the GPU that has the planes, where ``places`` says."""
        with torch.cuda.device(planes.device) if planes.is_cuda else nullcontext():  # Triton asks which is current
            return self._on_device(planes, places)

    def _on_device(self, planes: torch.Tensor, places: Planes) -> torch.Tensor:
        from . import kernels  # Triton starts with them

        device = planes.device
        rows, layout = rows_of(places, self._windows, self._size, self._how["interpolation"], self._how["like"])
        table = _table(self._conversions, device) if self._conversions else None
        dtype = torch.uint8 if table is None else table.dtype
        out = torch.empty((len(rows), 3, *self._size), dtype=dtype, device=device, memory_format=self._format)
        kernels.render(planes, to_device(rows, device), layout, table, out)
        return out


@functools.lru_cache(64)
def _table(conversions: tuple[Step, ...], device: torch.device) -> torch.Tensor:
    """(3, 256), on the device."""
    return conversion_table(conversions).to(device)


def _windows(steps: tuple[Step, ...], arrays: list[Arrays], sizes: np.ndarray) -> Windows:
    """A crop before another change of size is a window of the image; one after it, of what was resized."""
    start, size, begin, flips = np.zeros_like(sizes), sizes, np.zeros_like(sizes), np.zeros_like(sizes)
    full: np.ndarray | None = None
    changes = [step for step in steps if step.op in ("crop", "resize")]
    for step, values in zip(steps, arrays, strict=True):
        if step.op == "crop" and step is changes[0] and len(changes) > 1:
            start, size = values["start"].astype(np.int64), values["shape"].astype(np.int64)
        elif step.op == "crop":
            begin = values["start"].astype(np.int64)
        elif step.op == "resize":
            full = values["size"].astype(np.int64)
        elif step.op == "flip":
            axis = int(step.kwargs["axis"] == "horizontal")
            flips[:, axis] ^= values["flag"].astype(np.int64) != 0 if "flag" in values else 1
    return Windows(start, size, size if full is None else full, begin, flips)
