"""torchvision as the reference: its own transform objects, given the numbers that a plan of ours has drawn.

The transform runs as it is, on PIL images, one after another. While it runs, what torchvision draws from answers with
what compute() has drawn for that image: torch.rand and its kin, random.shuffle and random.choices, the get_params and
make_params of windows, and the operations of AutoAugment and its kin, whose name and magnitude are then ours. No engine
of this package takes part. Draws that torchvision does not ask for, in their order, are an error.
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
    """What torchvision's transform gives for images ``position``, ``position + 1`` ... of an epoch.

    Args:
        transform: takes such an image.
        plan: made of the transform (or of one that draws the same); its steps say what is drawn.
        images: paths, which are opened as PIL images, PIL images or tensors.
        seed: the epoch's base seed.

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


# ---- what is drawn for one image


class _Numbers:
    """Answers to what torchvision asks for, in its order: pairs of a kind and a value."""

    def __init__(self):
        self._left: deque[tuple[str, Any]] = deque()
        self._thread = threading.get_ident()
        self._silent = False

    def draw(self, plan: Plan, image, seed: int, position: int) -> None:
        size = image.size[::-1] if isinstance(image, Image.Image) else image.shape[-2:]
        sizes, randoms = np.array([tuple(size)], np.int64), Randoms(seed, position, 1)
        waiting: dict[int, list[tuple[str, Any]]] = {}  # by streams, which are in torchvision's order
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
        """Loaders may draw at the same time, in threads of their own."""
        return not self._silent and threading.get_ident() == self._thread


def _answers(steps: tuple[Step, ...], sizes: np.ndarray, randoms: Randoms) -> Iterator[tuple[Step, list]]:
    """What torchvision gets for each random step that is taken."""
    chosen: dict[int, np.ndarray] = {}
    for step, arrays in zip(steps, compute(steps, sizes, randoms, slice(None)), strict=True):
        if not is_random(step) or not all(_is_open(gate, chosen) for gate in step.when):
            continue
        assert step.draw is not None  # it is random
        if step.op == "choose":
            arrays, _ = draws.run(step.draw, sizes, randoms(step.stream, draws.uniforms_of(step.draw)))
            chosen[step.stream] = next(iter(arrays.values()))[0]
        yield step, answers(step, {name: array[0] for name, array in arrays.items()})


def _is_open(gate, chosen) -> bool:
    choice = chosen.get(gate.stream)
    return choice is not None and (choice if choice.ndim == 0 else choice[gate.rank]) == gate.value
