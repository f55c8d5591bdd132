"""The transforms that an image has gone through, one after another, and what they give."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torchvision import transforms as v1

from ..data.headers import share_headers
from ..draws import is_random
from ..translate import translate
from ..translate.chain import Chain as Translation
from ..translate.registry import behaves_as
from ..translate.windows import has_any_size, is_given, window_of
from ..translate.wrappers.objects import OF_MODULES, attributes, root
from .generators import ALL, PYTHON, TORCH, Generator

_DEEP = 4  # transforms within transforms that are looked at
_FEW = 16  # numbers of an array that are looked at
_NUMBERS, _SEQUENCES = {int, float, bool, str, type(None)}, {list, tuple}
_ARRAYS = {np.ndarray, torch.Tensor}
_OF_ALL = (OF_MODULES | {"training"}) - {"_modules", "_forward_hooks", "_forward_pre_hooks"}
_LIBRARIES = {"torch", "torchvision", "timm", __name__.partition(".")[0]}
_OF_PYTHON = {v1.RandomChoice, v1.RandomOrder}  # torchvision's that draw from Python's generator
_SIZES_OF_WINDOWS = 3  # that have chains of their own
# A data set may make new transforms for each sample, and each chain has a pipeline with threads of its own: so many may
# follow one chain, and one that has none, in an epoch. Images become real beyond that
_MOST, _MOST_OF_ROOT = 16, 64
_MOST_OBJECTS = 64  # known by their id() after a chain at a time, and in vain, until nobody looks at new ones any more


class Chain:
    """Transforms that all have a translation. Those of the same steps are one object. To the loader a chain is a data
    set: of the images, among the samples of a user's, that go through it.

    Args:
        count: how many of its images have a number of their own: samples of the user's data set.
        given: what the images are read from, PATHS or BYTES.
        translation: of the transforms, as they were then.

    Attributes:
        transforms: the user's own objects, which may change at any time.
        copies: of these, as they were when an image went through them.
        gives: the image after them.
        is_random: whether they draw random numbers, besides what the data set's own code draws.
        generators: from which the last of them draws, as torchvision runs it; () where it does not.
        drawn_from: torch's, and those from which any chain of the same root draws.
        streams: how many random streams they have.
        packed: the copies are pickled; None before that is first asked for.
        by_pil: there are too many others: PIL makes its images, without a pipeline.
    """

    target_transform = None
    by_pil = False

    def __init__(self, count: int, given: str, translation: Translation | None = None):
        self.translation = translate(None) if translation is None else translation
        self._count, self.given, self.gives = count, given, self.translation.gives
        self.transforms: tuple[Any, ...] = ()
        self.copies: tuple[Any, ...] = ()
        self.generators: tuple[Generator, ...] = ()
        self.drawn_from: set[Generator] = {TORCH}
        self.is_random, self.streams = False, self.translation.streams
        self.packed: bytes | None = None
        # by id(): (the transform, kept alive, its settings, and its chain)
        self._after: dict[int, tuple[Any, _Settings, Chain | None]] = {}
        self._root, self._count_of_root, self._in_vain, self._is_used = self, 0, 0, True
        self._of_steps: dict[Any, Chain] = {}
        self._behind: list[Chain] = []
        self._of_sizes: dict[Any, Chain] = {}  # by those of windows

    def __len__(self) -> int:
        return self._count

    @property
    def transform(self) -> tuple[Any, ...] | None:
        """As data sets of files have it."""
        return self.transforms or None

    def after(self, transform: Any) -> Chain | None:
        """The chain that goes on with a transform; None where that has no translation, gives several images, was
        changed since look_again(), or where too many others have come before."""
        known = self._after.get(id(transform))
        if known is None:
            if self._in_vain >= _MOST_OBJECTS:
                return None
            settings, made = _Settings(transform), self._made(transform)
            self._in_vain += made is None
            while len(self._after) >= _MOST_OBJECTS:  # one of the user's may refer to the data set
                del self._after[next(iter(self._after))]
            known = self._after[id(transform)] = transform, settings, made
        chain = known[2] if known[1].are_same() else None
        if chain is not None:
            chain._is_used = True
        return chain

    def of_sizes(self, root: Chain, sizes: tuple[tuple[int, int], ...]) -> Chain:
        """The chain that does the same with windows of these sizes, (height, width), and gives images of one size; this
        one where there is none, or windows have had several sizes. ``root``: without transforms."""
        if not sizes or self.gives.size is not None:
            return self
        if sizes not in self._of_sizes and len(self._of_sizes) < _SIZES_OF_WINDOWS:
            left = iter(sizes)
            made = root.follow(tuple(window_of(next(left)) if has_any_size(one) else one for one in self.copies))
            self._of_sizes[sizes] = self if made is None or made.gives.size is None else made
        return self._of_sizes.get(sizes, self)

    @property
    def last_stream(self) -> int:
        """The random stream of its last step."""
        return self.translation.translated[-1].steps[-1].stream

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
            made = self._like(self.translation, self.transforms, self.copies)
            if self.by_pil:
                made.by_pil = True
                share_headers(made, self._root.of_image(len(self._behind) + 1))
            self._behind.append(made)
        return self._behind[number - 1] if number else self

    def beyond(self, transforms: tuple[Any, ...]) -> Chain:
        """The chain after several, where follow() has too many others."""
        made = self._like(translate(transforms, views=True), transforms, transforms)
        made.by_pil, made._root = True, self
        share_headers(made, self)
        return made

    def _like(self, translation: Translation, transforms: tuple[Any, ...], copies: tuple[Any, ...]) -> Chain:
        made = Chain(self._count, self.given, translation)
        made.transforms, made.copies, made.is_random = transforms, copies, self.is_random
        return made

    def look_again(self) -> None:
        """Transforms may have changed. Chains that nobody has asked for since are forgotten."""
        self._after, self._in_vain = {}, 0
        self._of_steps = {steps: chain for steps, chain in self._of_steps.items() if chain._is_used}
        self._count_of_root = 0
        for chain in self._of_steps.values():
            chain._is_used = False
            chain.look_again()
            self._count_of_root += 1 + chain._count_of_root

    def _made(self, transform: Any) -> Chain | None:
        if not _is_fixed(transform) or (self.gives.kind != "pil" and _is_in_place(transform)):
            return None
        if self.gives.kind == "Image" and any(map(_is_v1, _within(transform))):  # gives a plain tensor, or the same one
            return None
        made = translate((*self.copies, transform), views=True)
        several = made.views or any(step.gives.views for entry in made.translated for step in entry.steps)
        if several or made.functions or made.gives.kind not in ("pil", "tensor", "Image"):
            return None
        steps = tuple(step for entry in made.translated for step in entry.steps)
        chain = self._of_steps.get(steps)
        if chain is None:
            if len(self._of_steps) >= _MOST or self._root._count_of_root >= _MOST_OF_ROOT:
                return None
            chain = self._of_steps[steps] = Chain(self._count, self.given, made)
            chain._root = self._root
            self._root._count_of_root += 1
        chain.is_random = any(is_random(step) and not is_given(step) for step in steps)
        own = steps[sum(len(entry.steps) for entry in self.translation.translated) :]
        if any(is_random(step) and not is_given(step) for step in own):
            chain.generators = _generators_of(transform)
        self._root.drawn_from |= set(chain.generators)
        chain.transforms = (*self.transforms, transform)
        chain.copies, chain.packed = (*self.copies, _apart(transform)), None
        return chain


class _Settings:
    """The settings of a transform and of those within it: attributes of objects, elements of containers, and numbers
    of small arrays, as they are now."""

    def __init__(self, transform: Any):
        self._held: list[tuple[Any, Any]] = []  # each that may change, and a copy
        self._hold(transform, _DEEP)

    def are_same(self) -> bool:
        """Returns whether none has changed since."""
        return all(_is_same(now, then) for now, then in self._held)

    def _hold(self, one: Any, depth: int) -> None:
        kind = type(one)
        if kind in _ARRAYS:
            if len(one.reshape(-1)) <= _FEW:
                self._held.append((one, one.reshape(-1).tolist()))
        elif kind is functools.partial:
            self._hold((one.args, one.keywords), depth)
        elif kind in _SEQUENCES:
            if kind is list:
                self._held.append((one, [*one]))
            for value in one:
                self._hold(value, depth)
        elif isinstance(one, dict):
            self._held.append((one, {**one}))
            for value in one.values():
                self._hold(value, depth)
        elif depth and callable(one) and (own := attributes(one)):
            self._held.append((own, {**own}))
            for value in [value for name, value in own.items() if name not in _OF_ALL]:
                self._hold(value, depth - 1)


def _is_same(now: Any, then: Any) -> bool:
    """Compares by identity first, which is nearly always enough: this runs for each image."""
    if type(now) in _ARRAYS:
        return bool(now.reshape(-1).tolist() == then)
    if len(now) == len(then):
        both = (now.values(), then.values()) if isinstance(now, dict) else (now, then)
        if all(map(operator.is_, *both)):
            return True
    return _is_equal(now, then)


def _is_equal(a: Any, b: Any) -> bool:
    if type(a) in _NUMBERS:
        return type(b) in _NUMBERS and a == b
    if type(a) in _SEQUENCES:
        return type(a) is type(b) and len(a) == len(b) and all(map(_is_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        names = a.keys() - _OF_ALL
        return names == b.keys() - _OF_ALL and all(_is_equal(a[name], b[name]) for name in names)
    return a is b


def _apart(transform: Any, depth: int = _DEEP) -> Any:
    """A transform that stays as it is when somebody gives this one, or one within it, other settings."""
    if type(transform) in _SEQUENCES:
        return type(transform)(_apart(one, depth) for one in transform)
    made = transform
    if isinstance(transform, dict):
        made = copy.copy(transform)
        made.update((name, _apart(one, depth)) for name, one in transform.items())
    elif type(transform) in _ARRAYS:
        made = copy.deepcopy(transform)
    elif depth and callable(transform) and attributes(transform) and not isinstance(transform, (type, FunctionType)):
        made = copy.copy(transform)
        own = {name: one for name, one in attributes(transform).items() if name not in _OF_ALL}
        attributes(made).update((name, _apart(one, depth - 1)) for name, one in own.items())
    return made


def _within(transform: Any, depth: int = _DEEP) -> Iterator[Any]:
    """What is called within a transform, and itself; None where there may be more."""
    if type(transform) in _SEQUENCES:
        for one in transform:
            yield from _within(one, depth)
    elif isinstance(transform, dict):
        yield from _within(list(transform.values()), depth)
    elif type(transform) is functools.partial:
        yield from _within([transform.func, *transform.args, *transform.keywords.values()], depth)
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


def _is_v1(transform: Any) -> bool:
    module = type(transform).__module__
    return module.startswith("torchvision.transforms.") and not module.startswith("torchvision.transforms.v2")


def _generators_of(transform: Any) -> tuple[Generator, ...]:
    """Those that a random transform may draw from."""
    within = [type(one) for one in _within(transform)]
    if any(root(kind) not in ("torch", "torchvision") for kind in within):
        return ALL
    return (TORCH, PYTHON) if _OF_PYTHON & set(within) else (TORCH,)


def _is_in_place(transform: Any) -> bool:
    """Whether it may change the tensor that it is given."""
    return any(getattr(one, "inplace", False) for one in _within(transform))
