"""Random parameters of filters."""

from __future__ import annotations

import numpy as np

from .laws import real
from .registry import dictates, draws


@draws(uniforms=1)
def blur_sigma(sizes, u, *, sigma):
    """torchvision.transforms.GaussianBlur.get_params: one sigma for both axes."""
    return {"sigma": np.repeat(real(u, *sigma), 2, axis=1)}, sizes


@dictates(blur_sigma)
def blur_sigma_answers(row, step):
    return [("uniform", row["sigma"][0])]
