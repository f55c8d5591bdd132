"""Reads a data set's code to see whether it opens images; none of it runs."""

from __future__ import annotations

import dis
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from ..inspection.objects import attributes, is_of_library, root
from ..runtime.warn_location import is_installed

_OPENS = frozenset(("decode_image", "decode_jpeg", "decode_png", "default_loader", "pil_loader", "read_image"))
_OTHERS = frozenset(("imdecode", "imread"))  # by neither PIL nor torchvision
_DATA_SETS = "torchvision.datasets."  # whose code is followed as the user's is
_ALWAYS = "__init__", "__call__"  # of an object that is made, and of one that is called
_DEPTH = 4  # of functions that call each other
_MOST = 500  # of these
_FEW = 32  # entries of a container that is looked into
_HOLD_CALLABLES = frozenset(("torch", "torchvision"))  # whose objects call what they hold, as Compose does


class _Called(NamedTuple):
    """A function that may be called. ``owner``: the object whose method it is, or its class; None where there is none.
    ``depth``: how many calls may lead on from it."""

    function: Any  # a FunctionType, which mypy takes for a method here
    owner: Any
    depth: int


def opens_images(dataset: Any) -> bool:
    """Returns whether its ``__getitem__`` names what opens images, by PIL or torchvision, or something that it may call
    does: a method, a function, a class, or an object that the data set holds."""
    return any(_opens(one, names) for one, names in _reached(dataset))


def reads_images(dataset: Any) -> bool:
    """Returns whether the user's code, or the data set's own, names what opens or decodes images, by whatever library.
    What another package can do as well says nothing of a data set that uses it."""
    return any(
        (_opens(one, names) or names & _OTHERS)
        and (one.owner is dataset or not is_installed(one.function.__code__.co_filename))
        for one, names in _reached(dataset)
    )


def catches_errors(dataset: Any) -> bool:
    """Returns whether the user's code that makes a sample has a ``try``, as far as it can be followed."""
    return any(_has_handler(one.function.__code__) for one, _ in _reached(dataset) if not is_of_library(one.function))


def _has_handler(code: CodeType) -> bool:
    ops = [one.opname for one in dis.get_instructions(code)]
    within = any(_has_handler(one) for one in code.co_consts if isinstance(one, CodeType))
    handlers = (
        ops.count("PUSH_EXC_INFO") - ops.count("WITH_EXCEPT_START") + ops.count("SETUP_FINALLY")
    )  # the last: 3.10
    return within or handlers > 0 or "suppress" in code.co_names


def _opens(one: _Called, names: set[str]) -> bool:
    return one.function.__name__ in _OPENS or bool(names & _OPENS) or names >= {"Image", "open"}


def _reached(dataset: Any) -> Iterator[tuple[_Called, set[str]]]:
    """Returns what its ``__getitem__`` or ``__iter__`` may call, and the names in that."""
    waiting = deque(_methods(dataset, ("__getitem__", "__iter__"), _DEPTH))
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        if id(one.function) in seen:
            continue
        seen.add(id(one.function))
        names = set(names_of(one.function.__code__))
        yield one, names
        if one.depth and not _is_closed(one.function):
            for value in _named(one, names):
                waiting += _called(value, names, one.owner, one.depth - 1)


def _is_closed(one: Any) -> bool:
    """Returns whether it is of a library whose code is not followed."""
    return is_of_library(one) and not one.__module__.startswith(_DATA_SETS)


def names_of(code: CodeType) -> Iterator[str]:
    """The names in a function's code, and in functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)


def _named(one: _Called, names: Iterable[str]) -> Iterator[Any]:
    """Returns what these names may stand for in a function: a global, something of the owner's, or of a function
    around."""
    kind = one.owner if isinstance(one.owner, type) else type(one.owner)
    own = {} if isinstance(one.owner, type) else attributes(one.owner)
    for name in names:
        for there in (one.function.__globals__, own):
            if name in there:
                yield there[name]
        yield from (vars(base)[name] for base in kind.__mro__ if name in vars(base))
    for cell in one.function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet filled
            continue


def _called(value: Any, names: Iterable[str], owner: Any, depth: int, within: bool = True) -> Iterator[_Called]:
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
                yield from _called(one, names, owner, depth, within=False)
    elif isinstance(value, ModuleType):
        for name in names if within else ():
            yield from _called(vars(value).get(name), names, None, depth, within=False)
    else:
        kind = value if isinstance(value, type) else type(value)
        if kind.__module__ != "builtins" and not _is_closed(kind):
            yield from _methods(value, (*_ALWAYS, *names), depth)
        elif within and kind is not value and root(kind) in _HOLD_CALLABLES:
            for held in attributes(value).values():
                yield from _called(held, names, owner, depth)


def _methods(owner: Any, names: Iterable[str], depth: int) -> Iterator[_Called]:
    """Returns those of an object, or of a class, that have these names; ones that others take the place of, too."""
    kind = owner if isinstance(owner, type) else type(owner)
    for base in kind.__mro__:
        for name in names:
            found: Any = vars(base).get(name)
            found = getattr(found, "__func__", found)
            if isinstance(found, FunctionType):
                yield _Called(found, owner, depth)
