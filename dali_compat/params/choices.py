"""Whether, which, and in which order."""

from __future__ import annotations

import numpy as np

from .registry import draws


@draws(uniforms=1)
def bernoulli(sizes, u, *, p):
    """``torch.rand(1) < p`` of every transform that is applied or not."""
    return {"flag": (u[:, 0] < p).astype(np.int32)}, sizes
