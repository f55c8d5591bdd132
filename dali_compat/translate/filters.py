"""Filters of a pixel's neighbourhood."""

from __future__ import annotations

from torchvision import transforms as v1
from torchvision.transforms import v2

from ..plan import draw, step
from .color import maybe
from .fidelity import BLURRED
from .geometry import like_of
from .registry import register


@register(v1.RandomAdjustSharpness, v2.RandomAdjustSharpness, consumes="sharpness_factor p")
def random_adjust_sharpness(t, spec):
    return (maybe(t, spec, "sharpness", factor=float(t.sharpness_factor)),)


@register(v1.GaussianBlur, v2.GaussianBlur, consumes="kernel_size sigma")
def gaussian_blur(t, spec):
    sigma = draw("blur_sigma", sigma=tuple(map(float, t.sigma)))
    return (
        step("gaussian_blur", spec, sigma, kernel_size=tuple(t.kernel_size), like=like_of(t, spec), fidelity=BLURRED),
    )
