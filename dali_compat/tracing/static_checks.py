"""Reads what a data set's code and attributes say about it. None of its code runs, except __getattr__()."""

from __future__ import annotations

import dis
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
import torch.utils.data as data

from ..data.hugging_face import is_hugging_faces
from ..data.readers import known_class_of, reader_of
from ..inspection.objects import attributes, is_of_library, names, root
from ..runtime.messages import is_installed

_OPENS = frozenset(("decode_image", "decode_jpeg", "decode_png", "default_loader", "pil_loader", "read_image"))
_OTHERS = frozenset(("imdecode", "imread"))  # by neither PIL nor torchvision
_LIBRARIES = frozenset(("cv2", "imageio", "skimage"))  # that have these
_DATA_SETS = "torchvision.datasets."  # whose code is followed as the user's is
_CLASS, _OF_TENSORS = frozenset(("type", "__class__")), frozenset(("Tensor", "tv_tensors"))
_ALWAYS = "__init__", "__call__"  # of an object that is made, and of one that is called
_DEPTH, _INNER = 4, 3  # of functions that call each other, and of data sets in data sets
_MOST = 500  # of these
_FEW, _SMALL = 32, 1000  # entries of a container that is looked into
_HOLD_CALLABLES = frozenset(("torch", "torchvision"))  # whose objects call what they hold, as Compose does


class _Called(NamedTuple):
    """A function that may be called. ``owner``: the object whose method it is, or its class; None where there is none.
    ``depth``: how many calls may lead on from it."""

    function: Any  # a FunctionType, which mypy takes for a method here
    owner: Any
    depth: int


def reads_images(dataset) -> bool:
    """Returns whether the user's code, or the data set's own, names what opens or decodes images, by whatever library.
    What another package can do as well says nothing of a data set that uses it."""
    return any((_opens(one, found) or found & _OTHERS) and _is_users(one, dataset) for one, found in _reached(dataset))


def other_opener(dataset) -> str:
    """Returns the function of another library with which the user's code opens images, "imread() of cv2"; "" where none
    is named."""
    for one, found in _reached(dataset):
        if found & _OTHERS and _is_users(one, dataset):
            return " of ".join([f"{min(found & _OTHERS)}()", *sorted(found & _LIBRARIES)[:1]])
    return ""


def _is_users(one: _Called, dataset) -> bool:
    return one.owner is dataset or not is_installed(one.function.__code__.co_filename)


def _opens(one: _Called, found: set[str]) -> bool:
    return one.function.__name__ in _OPENS or bool(found & _OPENS) or found >= {"Image", "open"}


def compares_classes(dataset, collate_fn) -> str:
    """Return the place of the user's code, "train.py:31", that compares the class of a tensor: a deferred one has a
    subclass. "" if there is none. A class's name in a message is no comparison."""
    reached = chain.from_iterable(map(_reached, with_inner(dataset)))
    for one, found in chain(reached, _followed(_called(collate_fn, (), None, _DEPTH))):
        code = one.function.__code__
        if found & _OF_TENSORS and found & _CLASS and not is_installed(code.co_filename) and _compares(code):
            return f"{code.co_filename}:{code.co_firstlineno}"
    return ""


def _compares(code: CodeType) -> bool:
    steps = list(dis.get_instructions(code))
    for number, step in enumerate(steps):
        after: Iterator[Any] = iter(steps[number + 1 :])
        if step.argval == "type":
            next((one for one in after if one.opname.startswith("CALL")), None)
        elif step.argval != "__class__":
            continue
        following = next(after, step)
        in_text = following.opname.startswith(("CONVERT", "FORMAT"))
        if not in_text and following.argval not in ("__name__", "__qualname__"):
            return True
    return any(isinstance(one, CodeType) and _compares(one) for one in code.co_consts)


def _reached(dataset) -> Iterator[tuple[_Called, set[str]]]:
    """Returns what its ``__getitem__`` or ``__iter__`` may call, and the names in that."""
    return _followed(_methods(dataset, ("__getitem__", "__getitems__", "__iter__"), _DEPTH))


def _followed(first: Iterable[_Called]) -> Iterator[tuple[_Called, set[str]]]:
    waiting = deque(first)
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        if id(one.function) in seen:
            continue
        seen.add(id(one.function))
        found = names(one.function.__code__)
        yield one, found
        if one.depth and not _is_closed(one.function):
            for value in _named(one, found):
                waiting += _called(value, found, one.owner, one.depth - 1)


def _is_closed(one) -> bool:
    """Returns whether it is of a library whose code is not followed."""
    return is_of_library(one) and not one.__module__.startswith(_DATA_SETS)


def _named(one: _Called, wanted: Iterable[str]) -> Iterator[Any]:
    """Returns what these names may stand for in a function: a global, something of the owner's, or of a function
    around."""
    kind = one.owner if isinstance(one.owner, type) else type(one.owner)
    own = {} if isinstance(one.owner, type) else attributes(one.owner)
    for name in wanted:
        for there in (one.function.__globals__, own):
            if name in there:
                yield there[name]
        yield from (vars(base)[name] for base in kind.__mro__ if name in vars(base))
    for cell in one.function.__closure__ or ():
        with suppress(ValueError):  # not yet filled
            yield cell.cell_contents


def _called(value, wanted: Iterable[str], owner, depth: int, within: bool = True) -> Iterator[_Called]:
    """The functions that a call of a value may run, or of a method of it that is among the names. ``within``: those in
    a container, or in a module, too."""
    value = getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod)) else value
    value = value.fget if isinstance(value, property) else value
    if isinstance(value, (functools.partial, functools.partialmethod, functools.cached_property)):
        value = value.func
    value = getattr(value, "__wrapped__", value) if callable(value) and not isinstance(value, type) else value
    if isinstance(value, MethodType):
        value, owner = value.__func__, value.__self__
    if isinstance(value, FunctionType):
        yield _Called(value, owner, depth)
    elif isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return  # C++, which refers to itself
    elif type(value) in (list, tuple, dict):
        held = list(value.values() if type(value) is dict else value)
        if within and len(held) <= _FEW:
            for one in held:
                yield from _called(one, wanted, owner, depth, within=False)
    elif isinstance(value, ModuleType):
        for name in wanted if within else ():
            yield from _called(vars(value).get(name), wanted, None, depth, within=False)
    else:
        kind = value if isinstance(value, type) else type(value)
        if kind.__module__ != "builtins" and not _is_closed(kind):
            yield from _methods(value, (*_ALWAYS, *wanted), depth)
        elif within and kind is not value and root(kind) in _HOLD_CALLABLES:
            for held in attributes(value).values():
                yield from _called(held, wanted, owner, depth)


def _methods(owner, wanted: Iterable[str], depth: int) -> Iterator[_Called]:
    """Returns those of an object, or of a class, that have these names; ones that others take the place of, too."""
    kind = owner if isinstance(owner, type) else type(owner)
    for base in kind.__mro__:
        for name in wanted:
            found: Any = vars(base).get(name)
            found = getattr(found, "__func__", found)
            if isinstance(found, FunctionType):
                yield _Called(found, owner, depth)


# ---- the data set itself, and those that it holds


def with_inner(dataset, depth: int = _INNER) -> Iterator[Any]:
    """A data set, and those among its attributes."""
    yield dataset
    for value in attributes(dataset).values() if depth else ():
        for one in value if type(value) in (list, tuple) and len(value) <= _SMALL else (value,):
            if isinstance(one, data.Dataset) or is_hugging_faces(type(one)):
                yield from with_inner(one, depth - 1)


def may_open(dataset) -> bool:
    """Returns whether a data set, or one among its attributes, opens images by PIL, as far as its code says."""
    return any(map(_may_open, with_inner(dataset)))


def _may_open(dataset) -> bool:
    kind = type(dataset)
    if is_hugging_faces(kind):
        if kind.__name__ == "IterableDataset":
            return dataset.features is None or "Image(" in str(dataset.features)  # unknown after map()
        return kind.__name__ == "Dataset" and dataset.format["type"] == "custom"
    if root(kind) == "webdataset":  # whose decoders have names, such as "pil"
        return True
    known = reader_of(dataset) is not None or known_class_of(dataset) is not None
    return known or any(_opens(one, found) for one, found in _reached(dataset))


def may_use_cuda(dataset) -> bool:
    """Returns whether a data set's samples, or what it holds, may be on a GPU."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    named = set() if code is None else {*names(code), *filter(lambda one: isinstance(one, str), code.co_consts)}
    held = (str(value) for value in attributes(dataset).values() if isinstance(value, (str, torch.device)))
    return any(text.startswith("cuda") for text in (*named, *held))


def signature_of(dataset) -> Iterator[Any]:
    """Returns what changes where a data set gets other transforms, or becomes another."""
    for each in with_inner(dataset):
        yield id(each)
        for name, value in attributes(each).items():
            if callable(value):
                yield name, id(value)
            elif type(value) is dict and len(value) <= _SMALL:
                yield name, [(key, id(one)) for key, one in value.items() if callable(one)]
