"""The global generators of random numbers, watched while a data set is asked.

A random transform that is not computed yet keeps the states of the generators that it would draw from, and draws from
these when it becomes real. Each generator continues in another stream, derived from its own. So an earlier state comes
again only where the data set's code sets a generator back, to give two images the same numbers, or seeds it. The state
itself shows that, whatever function has done it.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

_FEW, _MANY = 1 << 10, 1 << 18  # numbers that the data set's code may have drawn itself, looked for in two steps
_HEAD = 56  # bytes of torch's state: its seed, its place, and the first numbers of its stream
_ALIKE = 8  # numbers in sequence that tell one place of a stream from all others


class Generator(Protocol):
    """One generator. ``name``: for explain()."""

    name: str

    def state(self) -> Any:
        """Its state."""
        ...

    def same(self, one: Any, other: Any) -> bool:
        """Whether two states are alike."""
        ...

    def set(self, state: Any) -> None:
        """Puts it into a state."""
        ...

    def numbers(self, state: Any, count: int) -> np.ndarray:
        """The next numbers of 31 or 32 bits from a state on."""
        ...

    def leave(self) -> Any:
        """Goes on in another stream; gives the state of its beginning."""
        ...


class _Torch:
    name = "torch's generator"

    def state(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return one.numpy()[:_HEAD].tobytes() == other.numpy()[:_HEAD].tobytes()

    def set(self, state: torch.Tensor) -> None:
        torch.default_generator.set_state(state)

    def numbers(self, state: torch.Tensor, count: int) -> np.ndarray:
        generator = torch.Generator().set_state(state)
        return torch.empty(count, dtype=torch.int32, device="cpu").random_(generator=generator).numpy()

    def leave(self) -> torch.Tensor:
        seed = torch.initial_seed()
        state = (
            torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64, device="cpu").random_())).get_state()
        )
        state.numpy()[:8].view(np.uint64)[0] = seed  # what torch.initial_seed() gives stays as it is
        self.set(state)
        return state


class _Python:
    name = "Python's generator"
    state = staticmethod(random.getstate)
    same = staticmethod(operator.eq)
    set = staticmethod(random.setstate)

    def numbers(self, state: Any, count: int) -> np.ndarray:
        generator = random.Random()
        generator.setstate(state)
        return np.frombuffer(generator.getrandbits(32 * count).to_bytes(4 * count, "little"), np.uint32)

    def leave(self) -> Any:
        random.seed(random.getrandbits(64))
        return random.getstate()


class _NumPy:
    name = "NumPy's generator"
    state = staticmethod(np.random.get_state)
    set = staticmethod(np.random.set_state)

    def same(self, one: Any, other: Any) -> bool:
        return one[2] == other[2] and np.array_equal(one[1], other[1])

    def numbers(self, state: Any, count: int) -> np.ndarray:
        generator = np.random.RandomState()
        generator.set_state(state)
        return np.frombuffer(generator.bytes(4 * count), np.uint32)

    def leave(self) -> Any:
        np.random.seed(int.from_bytes(np.random.bytes(4), "little"))
        return np.random.get_state()


TORCH: Generator = _Torch()
PYTHON: Generator = _Python()
ALL: tuple[Generator, ...] = (TORCH, PYTHON, _NumPy())

States = tuple[tuple[Generator, Any], ...]


class Watch:
    """Watches some of the generators from now on, and others from when they are first reserved."""

    def __init__(self, generators: Iterable[Generator] = ALL):
        self._last = {generator: generator.state() for generator in generators}

    def moved(self) -> str:
        """The name of one that somebody has set; "" where they have only been drawn from, as far as can be seen."""
        for generator, before in self._last.items():
            self._last[generator] = now = generator.state()
            if not (generator.same(before, now) or _leads_to(generator, before, now)):
                return generator.name
        return ""

    def reserved(self, generators: Sequence[Generator]) -> States:
        """The states from which somebody will draw later. They are as moved() has just seen them."""
        states = tuple((one, self._last[one] if one in self._last else one.state()) for one in generators)
        self._last.update((generator, generator.leave()) for generator in generators)
        return states


@contextmanager
def drawing_from(states: States) -> Iterator[None]:
    """Within it generators draw from these states; after it they are where they were."""
    now = [(generator, generator.state()) for generator, _ in states]
    try:
        for generator, state in states:
            generator.set(state)
        yield
    finally:
        for generator, state in now:
            generator.set(state)


def _leads_to(generator: Generator, before: Any, now: Any) -> bool:
    """Whether drawing leads from one state to the other."""
    wanted = generator.numbers(now, _ALIKE)
    for count in (_FEW, _MANY):
        numbers = generator.numbers(before, count + _ALIKE)
        places = np.flatnonzero(numbers[:count] == wanted[0])
        if any(np.array_equal(numbers[place : place + _ALIKE], wanted) for place in places.tolist()):
            return True
    return False
