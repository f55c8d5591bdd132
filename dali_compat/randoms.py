"""Random numbers keyed by (seed, stream, position).

The same on every device, whatever the batch size, the thread count and the prefetch depth, and reachable at any
position of an epoch without drawing what comes before it. The generator is numpy's Philox4x64-10 (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import ctypes
import random
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_OF_MT19937 = 4 * 625  # bytes: 624 words, and which is next
_FAR = 256  # positions apart from which it is faster to step over numbers than to draw them all


class Randoms:
    """Uniform numbers in [0, 1) for samples ``position``, ``position + stride`` and so on of an epoch.

    Args:
        seed: the epoch's base seed, as torch's iterator draws it.
        position: how many samples of the epoch came before.
        count: batch size.
        stride: how many ranks take turns.
    """

    def __init__(self, seed: int, position: int, count: int, stride: int = 1):
        self.seed, self.position, self.count, self.stride = seed, position, count, stride

    def __call__(self, stream: int, k: int) -> np.ndarray:
        """(count, k) float64 of a step's stream; row i depends on seed, stream and position + i * stride alone.

        Each column is contiguous: numpy works on two long columns 10 times as fast as on thousands of short rows.
        """
        width = k if k <= 2 else -(-k // 4) * 4  # numbers a sample: one step of the counter gives four
        if self.stride > _FAR and self.count:
            positions = range(self.position, self.position + self.count * self.stride, self.stride)
            raw = np.concatenate([self._rows(stream, width, position, 1) for position in positions])
        else:
            raw = self._rows(stream, width, self.position, max(0, (self.count - 1) * self.stride + 1))[:: self.stride]
        return (raw[:, :k].copy(order="F") >> np.uint64(11)) * 2.0**-53  # as Generator.random, of the k alone

    def _rows(self, stream: int, width: int, position: int, count: int) -> np.ndarray:
        """(count, width) numbers of 64 bits, of positions that follow each other."""
        steps, skipped = divmod(position * width, 4)
        raw = np.random.Philox(key=[self.seed, stream], counter=steps).random_raw(skipped + width * count)
        return raw[skipped:].reshape(count, width)


def replacement(seed: int, position: int, attempt: int, count: int) -> int:
    """Which of ``count`` samples stands in for the one at a position of an epoch, if ``attempt`` others could not."""
    key = np.random.SeedSequence((seed, position, attempt))
    return int(np.random.Generator(np.random.Philox(key)).integers(count))


@contextmanager
def own_generators(*key: int):
    """Within it torch (CPU), random and numpy draw from generators seeded by whole numbers; after it they are where
    they were. So a user's function leaves the sampler's next order alone, as it does in torch's workers."""
    before = generator_states()
    try:
        seed_generators(*key)
        yield
    finally:
        set_generators(before)


def generator_states() -> tuple[Any, ...]:
    """Returns the states of torch's (CPU), Python's and NumPy's global generators."""
    return torch.get_rng_state(), random.getstate(), _of_numpy()


_numpys: dict[bytes, Any] = {}  # NumPy's generator, as it was last seen: its state, by its memory


def _of_numpy() -> Any:
    """NumPy's state, which takes it a while to say: that of before where nobody has drawn from it since."""
    bits = np.random.get_bit_generator() if hasattr(np.random, "get_bit_generator") else None  # as NumPy 1.24 has it
    if type(bits) is not np.random.MT19937:
        return np.random.get_state()
    memory = ctypes.string_at(bits.ctypes.state_address, _OF_MT19937)
    state: Any = _numpys.get(memory)
    if state is None:
        state = np.random.get_state()
        _numpys.clear()
        if not state[3]:  # of two normal numbers the second one lies elsewhere
            _numpys[memory] = state
    return state


def set_generators(states: tuple[Any, ...]) -> None:
    """Puts them where generator_states() has found them."""
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    _numpys.clear()


def seed_generators(*key: int) -> None:
    """Seeds torch (CPU), random and numpy by whole numbers."""
    own = int(np.random.SeedSequence(key).generate_state(1)[0])
    torch.default_generator.manual_seed(own)
    random.seed(own)
    np.random.seed(own)
