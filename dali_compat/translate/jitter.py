"""Colours changed in an order of each image's own."""

from __future__ import annotations

from torchvision import transforms as v1
from torchvision.transforms import v2

from ..plan import draw, step
from .fidelity import EXACT
from .geometry import like_of
from .registry import register


@register(v1.ColorJitter, v2.ColorJitter, consumes="brightness contrast saturation hue")
def color_jitter(t, spec):
    names = ("brightness", "contrast", "saturation", "hue")
    intervals = {name: getattr(t, name) and tuple(getattr(t, name)) for name in names}
    return (step("color_jitter", spec, draw("color_jitter", **intervals), like=like_of(t, spec), fidelity=EXACT),)


@register(v2.RandomPhotometricDistort, consumes="brightness contrast saturation hue p")
def random_photometric_distort(t, spec):
    intervals = {name: tuple(getattr(t, name)) for name in ("brightness", "contrast", "saturation", "hue")}
    params = draw("photometric_distort", **intervals, p=t.p, channels=spec.channels)
    return (step("photometric_distort", spec, params, like=like_of(t, spec), fidelity=EXACT),)
