"""The transforms that an image has gone through, one after another, and what they give."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch

from ..draws import is_random
from ..plan import ImageSpec
from ..translate import translate
from ..translate.registry import behaves_as
from ..translate.wrappers.objects import OF_MODULES, attributes, root

_DEEP = 4  # transforms within transforms that are looked at
_FEW = 16  # numbers of an array that are looked at
_NUMBERS, _SEQUENCES = {int, float, bool, str, type(None)}, {list, tuple}
_ARRAYS = {np.ndarray, torch.Tensor}
_OF_ALL = (OF_MODULES | {"training"}) - {"_modules", "_forward_hooks", "_forward_pre_hooks"}
_LIBRARIES = {"torch", "torchvision", "timm", __name__.partition(".")[0]}
_MOST = 64  # transforms after an image that are known at a time: a data set may make new ones for each sample


class Chain:
    """Transforms that all have a translation. Those of the same steps are one object. To the loader a chain is a data
    set: of the images, among the samples of a user's, that go through it.

    Args:
        count: how many of its images have a number of their own: samples of the user's data set.
        given: what the images are read from, PATHS or BYTES.

    Attributes:
        transforms: the user's own objects.
        gives: the image after them.
        is_random: whether they draw random numbers.
        streams: how many random streams they have.
        packed: they are pickled, as they were when that was first asked for; None before.
    """

    target_transform = None

    def __init__(self, count: int, given: str, transforms: tuple[Any, ...] = (), gives: ImageSpec = ImageSpec()):
        self._count, self.given, self.transforms, self.gives = count, given, transforms, gives
        self.is_random, self.streams = False, 0
        self.packed: bytes | None = None
        # by id(): (the transform, kept alive, its settings, and its chain)
        self._after: dict[int, tuple[Any, Any, Chain]] = {}
        self._of_steps: dict[Any, Chain] = {}
        self._behind: list[Chain] = []

    def __len__(self) -> int:
        return self._count

    @property
    def transform(self) -> tuple[Any, ...] | None:
        """As data sets of files have it."""
        return self.transforms or None

    def after(self, transform: Any, most: int = _MOST) -> Chain | None:
        """The chain that goes on with a transform; None where that has no translation, gives several images, was
        changed since look_again(), or is a new one after so many."""
        known, settings = self._after.get(id(transform)), _settings(transform)
        if known is not None:
            return known[2] if known[1] == settings else None
        if most < _MOST and len(self._of_steps) >= most:
            return None
        made = self._made(transform)
        if made is not None:  # one of the user's may refer to the data set, which is not to be kept alive
            while len(self._after) >= _MOST:
                del self._after[next(iter(self._after))]
            self._after[id(transform)] = transform, settings, made
        return made

    def follow(self, transforms: tuple[Any, ...]) -> Chain | None:
        """The chain after several."""
        chain: Chain | None = self
        for transform in transforms:
            chain = None if chain is None else chain.after(transform)
        return chain

    def of_image(self, number: int) -> Chain:
        """For a sample's image of this number: behind the first, 0, a chain of its own, which does the same, so that
        each image has a header of its own."""
        while len(self._behind) < number:
            self._behind.append(Chain(self._count, self.given, self.transforms, self.gives))
        return self._behind[number - 1] if number else self

    def look_again(self) -> None:
        """Transforms may have changed."""
        self._after = {}
        for chain in self._of_steps.values():
            chain.look_again()

    def _made(self, transform: Any) -> Chain | None:
        if not _is_fixed(transform) or (self.gives.kind != "pil" and _is_in_place(transform)):
            return None
        transforms = (*self.transforms, transform)
        made = translate(transforms, views=True)
        several = made.views or any(step.gives.views for entry in made.translated for step in entry.steps)
        if several or made.functions or made.gives.kind not in ("pil", "tensor", "Image"):
            return None
        steps = tuple(step for entry in made.translated for step in entry.steps)
        chain = self._of_steps.setdefault(steps, Chain(self._count, self.given, transforms, made.gives))
        chain.is_random, chain.streams = any(map(is_random, steps)), made.streams
        chain.transforms, chain.packed = transforms, None  # an equal one from before may have been changed since
        return chain


def _settings(transform: Any, depth: int = _DEEP) -> Any:
    """What changes where somebody gives a transform, or one within it, other settings."""
    kind = type(transform)
    if kind in _NUMBERS:
        return transform
    if kind in _SEQUENCES:
        return [_settings(one, depth) for one in transform]
    if isinstance(transform, dict):
        return [(id(key), _settings(one, depth)) for key, one in transform.items()]
    if kind in _ARRAYS and len(numbers := transform.reshape(-1)) <= _FEW:
        return numbers.tolist()
    if not depth or not callable(transform):
        return id(transform)
    own = attributes(transform)
    return [id(transform), [_settings(value, depth - 1) for name, value in own.items() if name not in _OF_ALL]]


def _within(transform: Any, depth: int = _DEEP) -> Iterator[Any]:
    """What is called within a transform, and itself; None where there may be more."""
    if type(transform) in _SEQUENCES:
        for one in transform:
            yield from _within(one, depth)
    elif isinstance(transform, dict):
        yield from _within(list(transform.values()), depth)
    elif callable(transform) and not isinstance(transform, type):
        yield transform
        if not depth:
            yield None
        elif root(type(transform)) in _LIBRARIES or behaves_as(type(transform)) is not None:
            for name, value in attributes(transform).items():
                yield from _within(() if name in _OF_ALL else value, depth - 1)


def _is_fixed(transform: Any) -> bool:
    """Whether its settings say what it does. Code of the user's may do something else each time: it runs."""
    for one in _within(transform):
        kind = one if isinstance(one, FunctionType) else type(one)
        if one is None or (root(kind) not in _LIBRARIES and behaves_as(type(one)) is None):
            return False
    return True


def _is_in_place(transform: Any) -> bool:
    """Whether it may change the tensor that it is given."""
    return any(getattr(one, "inplace", False) for one in _within(transform))
