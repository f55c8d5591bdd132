"""One image through all steps, as torchvision would take it: what DALI decodes differently from PIL goes this way.

The random parameters are those that the batch has drawn, so this is also what the other engines are measured against.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import functional as F1

from ..data.sources import Source, decoded
from ..ops.kernels import image_kernel_of, kernel_of
from ..plan import UPRIGHT, Step

ArgumentsFor = Callable[[tuple[int, int]], list[dict]]
"""Gives the arguments of each step for an image of a size, (height, width)."""


def load(source: Source, chains: Sequence[tuple[tuple[Step, ...], ArgumentsFor]]) -> tuple[torch.Tensor, ...]:
    """Decodes one image as torchvision's pil_loader, and runs the steps of each chain; gives a CHW tensor for each (of
    a PIL image, too)."""
    image = decoded(source)
    return tuple(_transformed(image, steps, arguments_for) for steps, arguments_for in chains)


def _transformed(image: Any, steps: tuple[Step, ...], arguments_for: ArgumentsFor) -> torch.Tensor:
    for step, row in zip(steps, arguments_for(image.size[::-1]), strict=True):
        image = apply(image, step, row)
    return _as_tensor(image)


def apply(image, step: Step, row: dict):
    """One step on one image."""
    if step.op in ("identity", "choose", UPRIGHT) or not row.get("flag", 1):
        return image
    function = image_kernel_of(step.op) or functools.partial(_by_kernel, step.op)
    return function(image, row, **step.kwargs)


def _as_tensor(image) -> torch.Tensor:
    return F1.pil_to_tensor(image) if isinstance(image, Image.Image) else image


def _by_kernel(op: str, image, row: dict, **args):
    """Runs the kernel on one image."""
    rows = {name: np.asarray(value)[None] for name, value in row.items() if name != "flag"}
    function = kernel_of(op)
    assert function is not None, f"nothing does {op!r}: write it in ops/<kind>.py, with @kernel"
    made = function(_as_tensor(image)[None].clone(), rows, **args)[0]  # crops of one tensor share its memory
    return F1.to_pil_image(made) if isinstance(image, Image.Image) else made
