"""Run all steps on one image with torchvision's functions, for files that DALI decodes differently from Pillow.

All engines get the same random arguments, so their pixels can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..data.sources import Source, decoded
from ..ops.kernels import as_tensor, on_image
from ..plan import Step

ArgumentsFor = Callable[[tuple[int, int]], list[dict]]
"""A function that returns the arguments of each step for an image of the given (height, width)."""


def load(source: Source, chains: Sequence[tuple[tuple[Step, ...], ArgumentsFor]]) -> tuple[torch.Tensor, ...]:
    """Decode one image, and run each chain of steps on it.

    Returns:
        One CHW tensor per chain, even if its last step returns a PIL image.
    """
    image = decoded(source)
    return tuple(_transformed(image, steps, arguments_for) for steps, arguments_for in chains)


def _transformed(image: Any, steps: tuple[Step, ...], arguments_for: ArgumentsFor) -> torch.Tensor:
    for step, row in zip(steps, arguments_for(image.size[::-1]), strict=True):
        image = apply(image, step, row)
    return as_tensor(image)


def apply(image, step: Step, row: dict):
    """Return the image after one step. ``row`` has the step's arguments for this image. If its ``flag`` is 0, return
    the image unchanged."""
    return on_image(step.op, image, row, **step.kwargs) if row.get("flag", 1) else image
