"""Random parameters of transforms that change values and leave every pixel where it is."""

from __future__ import annotations

from .laws import permutation
from .registry import dictates, draws


@draws(uniforms=lambda channels: channels)
def channel_permutation(sizes, u, *, channels):
    """torchvision.transforms.v2.RandomChannelPermutation.make_params."""
    return {"order": permutation(u)}, sizes


@dictates(channel_permutation)
def channel_permutation_answers(row, step):
    return [("order", row["order"].tolist())]
