"""One image through all steps, as torchvision would take it: what DALI decodes differently from PIL goes this way.

The random parameters are those that the batch has drawn, so this is also what the other engines are measured against.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

from ..data.sources import Source, opened
from ..plan import Step
from . import functional
from .kernels.registry import kernel_of
from .kernels.warp import displacement


def replay(source: Source, steps: tuple[Step, ...], draw: Callable[[tuple[int, int]], list[dict]]) -> torch.Tensor:
    """Decode one image as torchvision's pil_loader does and run the steps; gives a CHW tensor (of a PIL image, too).
    ``draw`` gives each step's arguments for an image of a size, (height, width)."""
    with opened(source) as file:
        image = Image.open(file).convert("RGB")
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
    function = _OWN.get(step.op) or functional.function_of(step.op)
    return function(image, row, **step.kwargs)


def _as_tensor(image) -> torch.Tensor:
    return F1.pil_to_tensor(image) if isinstance(image, Image.Image) else image


# ---- what needs random pixels, or takes batches as it takes images: kernels/ does it


def _elastic(image, row, *, alpha, sigma, interpolation, fill, like):
    _, height, width = F1.get_dimensions(image)
    field = displacement(np.array([row["key"]]), (height, width), alpha, sigma, torch.device("cpu"))
    fill = None if fill is None else list(fill)
    if like == "v1":
        return F1.elastic_transform(image, field, InterpolationMode(interpolation), fill)
    return F2.elastic(image, field, InterpolationMode(interpolation), fill)


def _on_batch(op: str) -> Callable:
    def function(image, row, **args):
        rows = {name: np.asarray(value)[None] for name, value in row.items() if name != "flag"}
        return kernel_of(op)(image[None], rows, **args)[0]  # type: ignore[misc]  # these have one

    return function


_OWN = {"elastic": _elastic} | {
    op: _on_batch(op) for op in ("erase", "gaussian_noise", "linear_transformation", "apply")
}
