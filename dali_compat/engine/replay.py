"""One image through all steps, as torchvision would take it: what DALI decodes differently from PIL goes this way.

The random parameters are those that the batch has drawn, so this is also what the other engines are measured against.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import functional as F1

from ..data.sources import Source, opened
from ..plan import Step
from .kernels.registry import image_kernel_of, kernel_of

Draw = Callable[[tuple[int, int]], list[dict]]
"""Gives the arguments of each step for an image of a size, (height, width)."""


def replay(source: Source, steps: tuple[Step, ...], draw: Draw) -> torch.Tensor:
    """Decode one image as torchvision's pil_loader does and run the steps; gives a CHW tensor (of a PIL image, too)."""
    return _played(_decoded(source), steps, draw)


def replay_views(source: Source, chains: Sequence[tuple[tuple[Step, ...], Draw]]) -> tuple[torch.Tensor, ...]:
    """The same image through several chains."""
    image = _decoded(source)
    return tuple(_played(image, steps, draw) for steps, draw in chains)


def _decoded(source: Source) -> Image.Image:
    with opened(source) as file:
        return Image.open(file).convert("RGB")


def _played(image, steps: tuple[Step, ...], draw: Draw) -> torch.Tensor:
    for step, row in zip(steps, draw(image.size[::-1]), strict=True):
        image = play(image, step, row)
    if isinstance(image, tuple):
        return torch.stack(list(map(_as_tensor, image)))
    return _as_tensor(image)


def play(image, step: Step, row: dict):
    """One step on one image, or on each of a tuple of views."""
    if step.op in ("identity", "choose") or not row.get("flag", 1):
        return image
    if isinstance(image, tuple):
        return tuple(play(view, step, row) for view in image)
    function = image_kernel_of(step.op) or functools.partial(_by_kernel, step.op)
    return function(image, row, **step.kwargs)


def _as_tensor(image) -> torch.Tensor:
    return F1.pil_to_tensor(image) if isinstance(image, Image.Image) else image


def _by_kernel(op: str, image, row: dict, **args):
    """What takes batches as it takes images."""
    rows = {name: np.asarray(value)[None] for name, value in row.items() if name != "flag"}
    function = kernel_of(op)
    assert function is not None, f"nothing does {op!r}: write it in engine/kernels/, with @kernel"
    made = function(_as_tensor(image)[None], rows, **args)[0]
    return F1.to_pil_image(made) if isinstance(image, Image.Image) else made
