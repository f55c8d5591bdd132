"""Containers, and torchvision's own presets."""

from __future__ import annotations

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import _presets, v2

from .registry import nested, register


@register(v1.Compose, v2.Compose, consumes="transforms")
def compose(t, spec):
    return nested(t.transforms)


@register(nn.Sequential)
def sequential(t, spec):
    return nested(t)


@register(nn.Identity, v2.Identity)
def identity(t, spec):
    return ()


@register(_presets.ImageClassification, consumes="crop_size resize_size mean std interpolation antialias")
def image_classification(t, spec):
    """``weights.transforms()``: its forward is these transforms, one after another."""
    return nested(
        (
            v1.Resize(t.resize_size, t.interpolation, antialias=t.antialias),
            v1.CenterCrop(t.crop_size),
            *((v1.PILToTensor(),) if spec.kind == "pil" else ()),
            v1.ConvertImageDtype(torch.float),
            v1.Normalize(t.mean, t.std),
        )
    )
