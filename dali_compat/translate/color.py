"""Colour."""

from __future__ import annotations

from torchvision import transforms as v1
from torchvision.transforms import v2

from ..plan import draw, step
from .registry import Untranslatable, register


@register(v1.Grayscale, v2.Grayscale, consumes="num_output_channels")
def grayscale(t, spec):
    channels = t.num_output_channels
    if spec.channels == channels == 1:
        return ()
    if spec.channels != 3 or channels not in (1, 3):
        raise Untranslatable(t, f"num_output_channels={channels} of an image of {spec.channels} channels")
    return (step("grayscale", spec.but(channels=channels), formula=_formula(spec), channels=channels),)


@register(v1.RandomGrayscale, v2.RandomGrayscale, consumes="p")
def random_grayscale(t, spec):
    if spec.channels == 1:
        return ()
    return (step("grayscale", spec, draw("bernoulli", p=t.p), formula=_formula(spec), channels=3),)


def _formula(spec) -> str:
    """PIL converts in 16-bit fixed point, torchvision on tensors in floating point with coarser weights."""
    if spec.kind == "pil":
        return "pil"
    return "float" if spec.dtype.is_floating_point else "tensor"
