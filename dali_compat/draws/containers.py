"""Which transform of a container, or which order of them."""

from __future__ import annotations

import numpy as np

from .laws import permutation
from .registry import dictates, draws


@draws(uniforms=1)
def choice(sizes, u, *, p):
    """random.choices of v1.RandomChoice, torch.multinomial of v2's; the weights ``p`` need not add up to 1."""
    until = np.cumsum(np.asarray(p, float))
    chosen = np.searchsorted(until, u[:, 0] * until[-1], side="right")
    return {"choice": np.minimum(chosen, len(p) - 1).astype(np.int32)}, sizes


@dictates(choice)
def choice_answers(row, step):
    return [("choice", int(row["choice"]))]


@draws(uniforms=lambda n: n)
def order(sizes, u, *, n):
    """random.shuffle of v1.RandomOrder, torch.randperm of v2's: the number of the transform at each place."""
    return {"order": permutation(u)}, sizes


@dictates(order)
def order_answers(row, step):
    return [("order", row["order"].tolist())]
