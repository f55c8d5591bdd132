"""The global generators of random numbers, watched while a data set is asked.

A random transform that is not computed yet keeps the states of the generators that it would draw from, and draws from
these when it becomes real. Each generator continues in another stream, derived from its own. So an earlier state comes
again only where the data set's code sets a generator back, to give two images the same numbers, or seeds it. The state
itself shows that, whatever function has done it. A data set that was seen to do so draws at once from then on.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

_FEW, _MANY = 1 << 10, 1 << 18  # numbers that the data set's code may have drawn itself, looked for in two steps
_HEAD = 56  # bytes of torch's state: its seed, its place, and the first numbers of its stream
_RECENT = 8  # reserved states, of which one may lead to that to which a generator was set
_ALIKE = 8  # numbers in sequence that tell one place of a stream from all others
_SETTERS = frozenset(("graphsafe_set_state", "manual_seed", "seed", "set_state", "setstate"))
_HERE, _THEIRS = __name__.partition(".")[0], frozenset(("random", "torch"))


# Each has: name, for explain(); state(); set(), into one; mark(), what tells a state from all others; numbers(), the
# next of 31 or 32 bits from a state on; leave(), which goes on in a stream derived from a mark or the next numbers, and
# gives the state of its beginning.


class _Torch:
    name = "torch's generator"

    def state(self) -> Any:
        return torch.default_generator.get_state()

    def mark(self, state: Any) -> bytes:
        return ctypes.string_at(state.data_ptr(), _HEAD)

    def set(self, state: Any) -> None:
        torch.default_generator.set_state(state)

    def numbers(self, state: Any, count: int) -> np.ndarray:
        generator = torch.Generator().set_state(state)
        return torch.empty(count, dtype=torch.int32, device="cpu").random_(generator=generator).numpy()

    def leave(self, mark: Any) -> Any:
        generator, seed = torch.default_generator, torch.default_generator.initial_seed()
        # a number that was drawn would take five times as long: the first one after a seed makes 624
        other = int.from_bytes(hashlib.blake2b(mark, digest_size=7).digest(), "little")
        state = generator.manual_seed(other).get_state()
        ctypes.c_uint64.from_address(state.data_ptr()).value = seed  # so that torch.initial_seed() stays what it was
        generator.set_state(state)
        return state


class _Python:
    name = "Python's generator"
    state: Any = staticmethod(random.getstate)
    set: Any = staticmethod(random.setstate)

    def mark(self, state: Any) -> Any:
        return state

    def numbers(self, state: Any, count: int) -> np.ndarray:
        generator = random.Random()
        generator.setstate(state)
        return np.frombuffer(generator.getrandbits(32 * count).to_bytes(4 * count, "little"), np.uint32)

    def leave(self, mark: Any) -> Any:
        random.seed(random.getrandbits(64))
        return random.getstate()


class _NumPy:
    name = "NumPy's generator"
    state: Any = staticmethod(np.random.get_state)
    set: Any = staticmethod(np.random.set_state)

    def mark(self, state: Any) -> Any:
        return state[1].tobytes(), state[2]

    def numbers(self, state: Any, count: int) -> np.ndarray:
        generator = np.random.RandomState()
        generator.set_state(state)
        return np.frombuffer(generator.bytes(4 * count), np.uint32)

    def leave(self, mark: Any) -> Any:
        np.random.seed(int.from_bytes(np.random.bytes(4), "little"))
        return np.random.get_state()


Generator = _Torch | _Python | _NumPy

TORCH, PYTHON = _Torch(), _Python()
ALL: tuple[Generator, ...] = (TORCH, PYTHON, _NumPy())


class Reserved:
    """States of generators from which a transform draws when its image becomes real.

    Args:
        states: of each generator its state, and the mark of the stream in which it went on.
        ends: by generators and such marks, states behind what was drawn before they went on; of all of a Watch. Where a
            mark is there beforehand, the generator was set back to it.
    """

    def __init__(self, states: Sequence[tuple[Generator, Any, Any]], ends: dict[tuple[Generator, Any], Any]):
        self._states, self._ends = states, ends

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Within it generators draw from these states; where nobody has drawn since the transform before, from where
        that ended. So they draw one after another, as in torch's loader. After it they are where they were."""
        now = [generator.state() for generator, _, _ in self._states]
        try:
            for generator, state, _ in self._states:
                generator.set(self._ends.get((generator, generator.mark(state)), state))
            yield
            for generator, _, left in self._states:
                self._ends.setdefault((generator, left), generator.state())
        finally:
            for (generator, _, _), state in zip(self._states, now, strict=True):
                generator.set(state)


class Watch:
    """Watches some of the generators from now on, and others from when they are first reserved."""

    def __init__(self, generators: Iterable[Generator] = ALL):
        self._last: dict[Generator, tuple[Any, Any]] = {}  # states, and their marks
        self._ends: dict[tuple[Generator, Any], Any] = {}  # as Reserved's
        self._reserved: list[tuple[Generator, Any, Any]] = []  # generators, states and marks
        for generator in generators:
            self._see(generator, generator.state())

    def _see(self, generator: Generator, state: Any) -> None:
        self._last[generator] = state, generator.mark(state)

    def moved(self) -> str:
        """The name of one that somebody has set; "" where they have only been drawn from, as far as can be seen."""
        for generator, (before, mark) in self._last.items():
            now = generator.state()
            if generator.mark(now) == mark:
                continue
            self._see(generator, now)
            if not _leads_to(generator, before, now):
                self._was_set(generator, now)
                return generator.name
        return ""

    def _was_set(self, generator: Generator, now: Any) -> None:
        """Notes the state to which a generator was set back: what was to draw from that state still does."""
        mark = generator.mark(now)
        known = [one[1:] for one in self._reserved if one[0] is generator]
        back = [(state, before) for state, before in known if before == mark]
        back = back or [one for one in known[-_RECENT:] if _leads_to(generator, one[0], now)][-1:]
        self._ends.update({(generator, before): state for state, before in back})

    def reserved(self, generators: Sequence[Generator]) -> Reserved:
        """The states from which somebody will draw later. They are as moved() has just seen them."""
        for generator in generators:
            if generator not in self._last:
                self._see(generator, generator.state())
        states = []
        for generator in generators:
            state, mark = self._last[generator]
            self._reserved.append((generator, state, mark))
            self._see(generator, generator.leave(mark))
            states.append((generator, state, self._last[generator][1]))
        return Reserved(states, self._ends)


@contextmanager
def calls_heard() -> Iterator[set[str]]:
    """Gives the names of the generators that this thread sets within it, torch's and Python's. A Watch does not see
    one that goes back behind what the data set's code itself has drawn. It is slow."""
    names = {id(torch.default_generator): TORCH.name, id(random.seed.__self__): PYTHON.name}  # type: ignore[attr-defined]  # of a method
    heard: set[str] = set()

    def profile(frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in _SETTERS and id(getattr(called, "__self__", None)) in names:
            while frame.f_back and _package(frame) in _THEIRS:
                frame = frame.f_back
            if _package(frame) != _HERE:
                heard.add(names[id(called.__self__)])

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield heard
    finally:
        sys.setprofile(before)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _leads_to(generator: Generator, before: Any, now: Any) -> bool:
    """Whether drawing leads from one state to the other."""
    wanted = generator.numbers(now, _ALIKE)
    for count in (_FEW, _MANY):
        numbers = generator.numbers(before, count + _ALIKE)
        places = np.flatnonzero(numbers[:count] == wanted[0])
        if any(np.array_equal(numbers[place : place + _ALIKE], wanted) for place in places.tolist()):
            return True
    return False
