"""Reference images: torchvision's transform objects, run with the random numbers that one of our plans has drawn.

The transform runs unchanged, on one PIL image after another. Meanwhile the random functions that torchvision uses
return compute()'s numbers for that image: torch.rand and similar functions, random.shuffle and random.choices,
get_params and make_params of windows, and the operation names and magnitudes of AutoAugment and other policies. No
engine of this package is involved. Draws that torchvision does not request in their order are an error.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.datasets.folder import pil_loader

from dali_compat.ops import draws
from dali_compat.ops.draws import compute, is_random
from dali_compat.plan import Plan, Step
from dali_compat.randoms import Randoms

from .catalogue import answers
from .dictation import Disagreement, dictated


def reference(transform: Callable, plan: Plan, images: Iterable, seed: int = 0, position: int = 0) -> list:
    """Return torchvision's results for images ``position``, ``position + 1`` ... of an epoch.

    Args:
        transform: A torchvision transform of these images.
        plan: A plan of the transform, or of one with the same draws.
        images: Paths, which are opened as PIL images, PIL images or tensors.
        seed: The epoch's base seed.

    Raises:
        Disagreement: torchvision draws something else than the plan, or in another order.
    """
    numbers = _Numbers()
    results = []
    with dictated(numbers):
        for place, image in enumerate(images, position):
            image = image if isinstance(image, (Image.Image, torch.Tensor)) else pil_loader(image)
            results.append(_one(transform, plan, image, numbers, seed, place))
    return results


def _one(transform, plan: Plan, image, numbers: _Numbers, seed: int, position: int):
    numbers.draw(plan, image, seed, position)
    made = transform(image)
    numbers.finish()
    return made


# ---- draws of one image


class _Numbers:
    """The (kind, value) pairs that answer torchvision's requests, in order."""

    def __init__(self):
        self._left: deque[tuple[str, Any]] = deque()
        self._thread = threading.get_ident()
        self._silent = False

    def draw(self, plan: Plan, image, seed: int, position: int) -> None:
        size = image.size[::-1] if isinstance(image, Image.Image) else image.shape[-2:]
        sizes, randoms = np.array([tuple(size)], np.int64), Randoms(seed, position, 1)
        waiting: dict[int, list[tuple[str, Any]]] = {}  # by stream, in torchvision's order
        for chain in plan.chains:
            of_chain: dict[int, list[tuple[str, Any]]] = {}
            for step, found in _answers(chain.steps, sizes, randoms):
                of_chain.setdefault(step.stream, []).extend(found)
            waiting |= of_chain
        for stream in sorted(waiting):
            self._left += waiting[stream]

    @property
    def kind(self) -> str:
        return self._left[0][0] if self._left else "nothing"

    def take(self, *kinds: str):
        if self.kind not in kinds:
            raise Disagreement(f"torchvision asks for {' or '.join(kinds)} where the plan has {self.kind}")
        return self._left.popleft()[1]

    def finish(self) -> None:
        if self._left:
            left = [kind for kind, _ in self._left]
            self._left.clear()
            raise Disagreement(f"torchvision has not asked for {', '.join(left)}")

    @contextlib.contextmanager
    def silent(self):
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    @property
    def speaks(self) -> bool:
        """False in other threads, since loaders may draw at the same time."""
        return not self._silent and threading.get_ident() == self._thread


def _answers(steps: tuple[Step, ...], sizes: np.ndarray, randoms: Randoms) -> Iterator[tuple[Step, list]]:
    """Yield each random step that runs, with its answers."""
    chosen: dict[int, np.ndarray] = {}
    for step, arrays in zip(steps, compute(steps, sizes, randoms, slice(None)), strict=True):
        if not is_random(step) or not all(_is_open(gate, chosen) for gate in step.when):
            continue
        assert step.draw is not None  # the step is random
        if step.op == "choose":
            arrays, _ = draws.run(step.draw, sizes, randoms(step.stream, draws.uniforms_of(step.draw)))
            chosen[step.stream] = next(iter(arrays.values()))[0]
        yield step, answers(step, {name: array[0] for name, array in arrays.items()})


def _is_open(gate, chosen) -> bool:
    choice = chosen.get(gate.stream)
    return choice is not None and (choice if choice.ndim == 0 else choice[gate.rank]) == gate.value
