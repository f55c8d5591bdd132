"""Random numbers keyed by (seed, stream, position).

The numbers do not depend on device, batch size, thread count or prefetch depth. The numbers of a position can be
computed without drawing those of earlier positions. The generator is numpy's Philox4x64-10.
"""

from __future__ import annotations

import hashlib
import random
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_FAR = 256  # above this stride, skipping numbers is faster than drawing all of them


class Randoms:
    """Uniform random numbers in [0, 1) for ``count`` samples of an epoch. The samples' positions in the epoch are
    ``position``, ``position + stride`` and so on. ``stride`` is the number of ranks that share the epoch."""

    def __init__(self, seed: int, position: int, count: int, stride: int = 1):
        self.seed, self.position, self.count, self.stride = seed, position, count, stride

    def __call__(self, stream: int, k: int) -> np.ndarray:
        """Return ``k`` numbers per sample from a random stream, float64 of shape (count, k). Row i depends only on
        seed, stream, k and position + i * stride."""
        # column-major, because numpy is 10 times as fast on two long columns as on thousands of short rows
        width = k if k <= 2 else -(-k // 4) * 4  # numbers drawn per sample; Philox draws four at a time
        if self.stride > _FAR and self.count:
            positions = range(self.position, self.position + self.count * self.stride, self.stride)
            raw = np.concatenate([self._rows(stream, width, position, 1) for position in positions])
        else:
            raw = self._rows(stream, width, self.position, max(0, (self.count - 1) * self.stride + 1))[:: self.stride]
        return (raw[:, :k].copy(order="F") >> np.uint64(11)) * 2.0**-53  # as Generator.random computes them

    def _rows(self, stream: int, width: int, position: int, count: int) -> np.ndarray:
        """Return 64-bit numbers of consecutive positions, of shape (count, width)."""
        steps, skipped = divmod(position * width, 4)
        raw = np.random.Philox(key=[self.seed, stream], counter=steps).random_raw(skipped + width * count)
        return raw[skipped:].reshape(count, width)


def replacement(seed: int, position: int, attempt: int, count: int) -> int:
    """Return the index, below ``count``, of a random sample that replaces another. ``position`` is the replaced
    sample's position in the epoch, or its index. ``attempt`` counts the attempts to replace the sample."""
    key = np.random.SeedSequence((seed, position, attempt))
    return int(np.random.Generator(np.random.Philox(key)).integers(count))


@contextmanager
def own_generators(*key: int):
    """Context manager that seeds the global generators of torch (CPU), Python and NumPy, and restores their states
    after the block."""
    before = generator_states()
    try:
        seed_generators(*key)
        yield
    finally:
        set_generators(before)


def generator_states() -> tuple[Any, ...]:
    """Return the states of the global generators of torch (CPU), Python and NumPy."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_generators(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


def seed_generators(*key: int) -> None:
    hashed = hashlib.blake2b(repr(key).encode(), digest_size=4).digest()  # takes a fifth of SeedSequence's time
    own = int.from_bytes(hashed, "little")
    torch.default_generator.manual_seed(own)
    random.seed(own)
    np.random.seed(own)
