"""Random parameters of colour jitter: how much of each, and in which order."""

from __future__ import annotations

import numpy as np

from .laws import permutation, real
from .registry import draws


@draws(uniforms=8)
def color_jitter(sizes, u, *, brightness, contrast, saturation, hue):
    """torchvision.transforms.ColorJitter.get_params; a range is (low, high), or None where that is left alone."""
    ranges = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    factors = {name: real(u[:, 4 + i], *r) for i, (name, r) in enumerate(ranges.items()) if r is not None}
    return {"order": permutation(u[:, :4]), **factors}, sizes


@draws(uniforms=lambda brightness, contrast, saturation, hue, p, channels=3: 10 + channels)
def photometric_distort(sizes, u, *, brightness, contrast, saturation, hue, p, channels=3):
    """torchvision.transforms.v2.RandomPhotometricDistort.make_params: a coin for each factor and for the permutation,
    and one for whether contrast comes before saturation and hue or after them. Not applied: NaN, or -1 in ``order``."""
    ranges = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    applied = u[:, :4] < p
    factors = {
        name: np.where(applied[:, i], real(u[:, 4 + i], *r), np.nan) for i, (name, r) in enumerate(ranges.items())
    }
    before, any_contrast = u[:, 8] < 0.5, factors.pop("contrast")
    factors["contrast_before"] = np.where(before, any_contrast, np.nan)
    factors["contrast_after"] = np.where(before, np.nan, any_contrast)
    order = np.where(u[:, 9:10] < p, permutation(u[:, 10:]), np.int32(-1))
    return {**factors, "order": order}, sizes
