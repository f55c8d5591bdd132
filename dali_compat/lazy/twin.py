"""A copy of a data set for the one sample that shows whether it can be asked: nothing of the sample is left behind."""

from __future__ import annotations

import collections
import copy
import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import torch.utils.data as data

from ..data.hugging_face import is_hugging_faces
from ..translate.wrappers.objects import attributes, is_of_library
from .reach import names_of
from .reading import with_inner

_DEPTH = 3  # of containers, and of data sets in data sets
_CONTAINERS = collections.deque, collections.defaultdict, collections.OrderedDict, collections.Counter
_BYTES = 1 << 20  # of an array that is copied
_DEEP = 4  # objects within objects that are called
_SMALL = 1000  # entries of a container that is looked into
_OBJECTS = 10_000  # among which generators are looked for
_SEED = 8_263_197_105_543_318_267  # none that a data set would give a generator, to find out whether it does
_GENERATORS = torch.Generator, random.Random, np.random.Generator, np.random.RandomState


def twin_of(dataset: Any, depth: int = _DEPTH) -> Any:
    """A copy that may change without the data set: with attributes of its own, small containers included."""
    kind = type(dataset)
    if is_hugging_faces(kind) or not hasattr(dataset, "__dict__") or hasattr(kind, "__del__"):
        return dataset  # which a copy's end might close
    made = object.__new__(kind)
    for name, value in vars(dataset).items():
        own = isinstance(value, MethodType) and value.__self__ is dataset
        made.__dict__[name] = MethodType(value.__func__, made) if own else _held(value, depth)
    return made


def _held(value: Any, depth: int) -> Any:
    """What a data set has as an attribute; of the user's readers, indices and the like a copy, too: a file that one of
    them opens at the first sample is not to be open in all worker processes."""
    kind = type(value)
    theirs = not is_of_library(kind) and kind.__new__ is object.__new__ and not callable(value)
    return twin_of(value, depth - 1) if depth and theirs and attributes(value) else _copied(value, depth)


def _copied(value: Any, depth: int) -> Any:
    if depth and isinstance(value, data.Dataset):
        return twin_of(value, depth - 1)
    if type(value) in _CONTAINERS or (type(value) is np.ndarray and value.nbytes <= _BYTES):
        return copy.copy(value)
    if type(value) in (list, dict, set) and len(value) > _SMALL:
        return value.copy()
    if type(value) in (list, dict, set):
        if type(value) is dict:
            return {name: _copied(one, depth - 1) if depth else one for name, one in value.items()}
        return type(value)(_copied(one, depth - 1) if depth else one for one in value)
    return value


@contextmanager
def settings_kept(dataset: Any) -> Iterator[None]:
    """Afterwards transforms, and other objects that may be called, have the attributes that they had: the copy has the
    same ones."""
    kept = [(one, one.copy()) for inner in with_inner(dataset) for one in _restorable(attributes(inner))]
    try:
        yield
    finally:
        for one, before in kept:
            if list(map(id, _all(one))) != list(map(id, _all(before))):
                one.clear()
                (one.update if isinstance(one, dict) else one.extend)(before)


@contextmanager
def generators_kept(dataset: Any) -> Iterator[None]:
    """Afterwards generators are as they were: the global ones, and those that the data set's code may use."""
    kept = [_restoring(one) for one in _generators(dataset)]
    kept += [partial(torch.set_rng_state, torch.get_rng_state()), partial(random.setstate, random.getstate())]
    kept += [partial(np.random.set_state, np.random.get_state())]
    try:
        torch.manual_seed(_SEED)
        yield
    finally:
        for restore in kept:
            restore()


def _restorable(value: Any, depth: int = _DEEP) -> Iterator[Any]:
    """Attributes, lists and dicts that an object to be called has, and those within."""
    if type(value) in (list, tuple, dict) and len(value) <= _SMALL:
        if type(value) is not tuple:
            yield value
        for one in _all(value):
            yield from _restorable(one, depth)
    elif depth and callable(value) and not isinstance(value, (type, FunctionType)):
        yield from _restorable(attributes(value), depth - 1)


def _all(held: Any) -> Any:
    """What a container has."""
    return [*held, *held.values()] if isinstance(held, dict) else held


def _restoring(generator: Any) -> Callable[[], Any]:
    """What sets a generator back."""
    if isinstance(generator, torch.Generator):
        return partial(generator.set_state, generator.get_state())
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return partial(generator.set_state, generator.get_state())
    return partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)


def _generators(start: Any) -> Iterator[Any]:
    """Those that an object leads to: by attributes, containers, its class, and the names in functions."""
    seen: dict[int, Any] = {}
    waiting = collections.deque([start])
    while waiting and len(seen) < _OBJECTS:
        one = waiting.popleft()
        kind = type(one)
        if id(one) in seen or issubclass(kind, (ModuleType, random.SystemRandom)):
            continue
        seen[id(one)] = one
        if issubclass(kind, _GENERATORS):
            if not isinstance(one, torch.Generator) or one.device.type == "cpu":  # CUDA is not to start for it
                yield one
        elif not (issubclass(kind, (type, FunctionType)) and is_of_library(one)):
            waiting += _leads_to(one, kind)


def _leads_to(one: Any, kind: type) -> list[Any]:
    if issubclass(kind, type):
        return [*vars(one).values(), *one.__bases__]
    if kind is FunctionType:  # gc would give all of its module
        world = [one.__globals__[name] for name in names_of(one.__code__) if name in one.__globals__]
        return [*world, one.__defaults__, one.__kwdefaults__, *(one.__closure__ or ())]
    if kind in (list, tuple, dict, set, collections.deque) and len(one) > _SMALL:
        return []
    return gc.get_referents(one)
