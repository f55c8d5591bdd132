"""Containers: which of their transforms run, or in which order; and torchvision's own presets."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import _presets, v2

from ..inspection.untranslatable import Untranslatable
from ..plan import draw
from .draws import draws
from .laws import order_answer, permutation
from .translators import Branch, Gated, Nested, register


@register(v1.Compose, v2.Compose, consumes="transforms")
def translate_compose(t, spec):
    return Nested(tuple(t.transforms))


@register(v1.RandomApply, v2.RandomApply, consumes="transforms p")
def translate_random_apply(t, spec):
    return Gated(f"RandomApply(p={t.p})", draw("bernoulli", p=t.p), (Branch(1, tuple(t.transforms)),))


@register(v1.RandomChoice, v2.RandomChoice, consumes="transforms p")
def translate_random_choice(t, spec):
    weights = tuple(t.p) if t.p is not None else (1,) * len(t.transforms)
    branches = tuple(Branch(i, (inner,)) for i, inner in enumerate(t.transforms))
    return Gated(f"RandomChoice(p={t.p})", draw("choice", p=weights), branches, complete=True)


@register(v1.RandomOrder, v2.RandomOrder, consumes="transforms")
def translate_random_order(t, spec):
    count = len(t.transforms)
    if count > 8:
        raise Untranslatable(t, f"an order of {count} transforms")
    branches = tuple(Branch(i, (inner,), rank) for rank in range(count) for i, inner in enumerate(t.transforms))
    return Gated("RandomOrder", draw("order", n=count), branches, complete=True, in_order=True)


@register(nn.Sequential)
def translate_sequential(t, spec):
    return Nested(tuple(t))


@register(nn.Identity, v2.Identity)
def translate_identity(t, spec):
    return ()


@register(_presets.ImageClassification, consumes="crop_size resize_size mean std interpolation antialias")
def translate_image_classification(t, spec):
    """``weights.transforms()``: its forward is these transforms, one after another."""
    return Nested(
        (
            v1.Resize(t.resize_size, t.interpolation, antialias=t.antialias),
            v1.CenterCrop(t.crop_size),
            *((v1.PILToTensor(),) if spec.kind == "pil" else ()),
            v1.ConvertImageDtype(torch.float),
            v1.Normalize(t.mean, t.std),
        )
    )


@draws(uniforms=1, answers=lambda row, step: [("choice", int(row["choice"]))])
def draw_choice(sizes, u, *, p):
    """random.choices of v1.RandomChoice, torch.multinomial of v2's; the weights ``p`` need not add up to 1."""
    until = np.cumsum(np.asarray(p, float))
    chosen = np.searchsorted(until, u[:, 0] * until[-1], side="right")
    return {"choice": np.minimum(chosen, len(p) - 1).astype(np.int32)}, sizes


@draws(uniforms=lambda n: n, answers=order_answer)
def draw_order(sizes, u, *, n):
    """random.shuffle of v1.RandomOrder, torch.randperm of v2's: the number of the transform at each place."""
    return {"order": permutation(u)}, sizes
