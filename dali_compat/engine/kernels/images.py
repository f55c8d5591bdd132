"""A helper: one image at a time, by torchvision's own functions. Those of the ops stand in the kinds' files."""

from __future__ import annotations

import torch
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

from .registry import image_kernel_of


def on_tensor(op: str, image: torch.Tensor, row: dict, *, like: str, **args) -> torch.Tensor:
    """A step on one image (C, H, W) of a batch; on a PIL image where torchvision would have that."""
    given = F1.to_pil_image(image.cpu()) if like == "pil" else image
    function = image_kernel_of(op)
    assert function is not None, f"nothing does {op!r} on one image: write it in engine/kernels/, with @image_kernel"
    made = function(given, row, like=like, **args)
    return F1.pil_to_tensor(made).to(image.device) if like == "pil" else made


def functions(like: str):
    """torchvision's functions: v2's, or v1's. PIL images go through v1's."""
    return F2 if like == "v2" else F1


def ints(row) -> list[int]:
    return [int(value) for value in row]


def fill_list(fill) -> list | None:
    return None if fill is None else list(fill)
