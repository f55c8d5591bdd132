"""Random parameters of colour jitter: how much of each, and in which order."""

from __future__ import annotations

import numpy as np

from .laws import coin, permutation, real
from .registry import Answers, dictates, draws


@draws(uniforms=8)
def color_jitter(sizes, u, *, brightness, contrast, saturation, hue):
    """torchvision.transforms.ColorJitter.get_params; a range is (low, high), or None where that is left alone."""
    ranges = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    factors = {name: real(u[:, 4 + i], *r) for i, (name, r) in enumerate(ranges.items()) if r is not None}
    return {"order": permutation(u[:, :4]), **factors}, sizes


@dictates(color_jitter)
def color_jitter_answers(row, step):
    factors = (row[name] for name in ("brightness", "contrast", "saturation", "hue") if name in row)
    return [("order", row["order"].tolist()), *(("uniform", factor) for factor in factors)]


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


@dictates(photometric_distort)
def photometric_distort_answers(row, step):
    before, after = (float(row[f"contrast_{when}"]) for when in ("before", "after"))
    contrast = after if np.isnan(before) else before
    answers: Answers = []
    for factor in (row["brightness"], contrast, row["saturation"], row["hue"]):
        answers += [coin(False)] if np.isnan(factor) else [coin(True), ("uniform", factor)]
    answers.append(coin(not np.isnan(before)))
    order = row["order"].tolist()
    return answers + ([coin(False)] if order[0] < 0 else [coin(True), ("order", order)])
