"""Inspect a data set's code and attributes. None of its code runs, except __getattr__()."""

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

from ..data.hugging_face import is_from_hugging_face
from ..data.readers import known_class_of, reader_of
from ..inspection.objects import attributes, is_of_library, names, top_package
from ..runtime.messages import is_installed

_OPENS = frozenset(("decode_image", "decode_jpeg", "decode_png", "default_loader", "pil_loader", "read_image"))
_OTHERS = frozenset(("imdecode", "imread"))  # of neither PIL nor torchvision
_LIBRARIES = frozenset(("cv2", "imageio", "skimage"))  # libraries with these
_DATA_SETS = "torchvision.datasets."  # their code is followed like the user's
_CLASS, _OF_TENSORS = frozenset(("type", "__class__")), frozenset(("Tensor", "tv_tensors"))
_ALWAYS = "__init__", "__call__"  # run when an object is constructed, and when it is called
_DEPTH, _INNER = 4, 3  # limits of nested calls, and of nested data sets
_MOST = 500  # functions
_FEW, _SMALL = 32, 1000  # largest containers whose entries are inspected
_HOLD_CALLABLES = frozenset(("torch", "torchvision"))  # their objects call what they hold, as Compose does


class _Called(NamedTuple):
    """A function that may be called.

    Attributes:
        function: a FunctionType.
        owner: the object or class whose method it is; None for a plain function.
        depth: number of further nested calls to follow.
    """

    function: Any  # mypy would take a FunctionType for a method
    owner: Any
    depth: int


def reads_images(dataset) -> bool:
    """Return True if the user's code or the data set's methods name a function that opens or decodes images.

    Code of other installed packages is ignored, since the data set may not use that part of them.
    """
    return any((_opens(one, found) or found & _OTHERS) and _is_users(one, dataset) for one, found in _reached(dataset))


def other_opener(dataset) -> str:
    """Return another library's function that the user's code opens images with, such as "imread() of cv2", or ""."""
    for one, found in _reached(dataset):
        if found & _OTHERS and _is_users(one, dataset):
            return " of ".join([f"{min(found & _OTHERS)}()", *sorted(found & _LIBRARIES)[:1]])
    return ""


def _is_users(one: _Called, dataset) -> bool:
    return one.owner is dataset or not is_installed(one.function.__code__.co_filename)


def _opens(one: _Called, found: set[str]) -> bool:
    return one.function.__name__ in _OPENS or bool(found & _OPENS) or found >= {"Image", "open"}


def compares_classes(dataset, collate_fn) -> str:
    """Return the line of the user's code that compares the class of a tensor, such as "train.py:31", or "".

    Deferred tensors have a subclass, so that the comparison could fail. Formatting a class's name does not count.
    """
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
    """Yield the functions that ``__getitem__`` or ``__iter__`` may call, each with the names in its code."""
    return _followed(_methods(dataset, ("__getitem__", "__getitems__", "__iter__"), _DEPTH))


def _followed(first: Iterable[_Called]) -> Iterator[tuple[_Called, set[str]]]:
    waiting = deque(first)
    seen: set[tuple[int, int]] = set()
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        # wrapper objects share __call__(), but hold different functions
        key = id(one.function), id(one.owner) if one.function.__name__ == "__call__" else 0
        if key in seen:
            continue
        seen.add(key)
        found = names(one.function.__code__)
        yield one, found
        if one.depth and not _is_closed(one.function):
            for value in _named(one, found):
                waiting += _called(value, found, one.owner, one.depth - 1)


def _is_closed(one) -> bool:
    """Return True if it belongs to a library whose code is not followed."""
    return is_of_library(one) and not one.__module__.startswith(_DATA_SETS)


def _named(one: _Called, wanted: Iterable[str]) -> Iterator[Any]:
    """Yield the values that names may have in a function, as globals, the owner's attributes or closure variables."""
    kind = one.owner if isinstance(one.owner, type) else type(one.owner)
    own = {} if isinstance(one.owner, type) else attributes(one.owner)
    for name in wanted:
        for there in (one.function.__globals__, own):
            if name in there:
                yield there[name]
        yield from (vars(base)[name] for base in kind.__mro__ if name in vars(base))
    for cell in one.function.__closure__ or ():
        with suppress(ValueError):  # still empty
            yield cell.cell_contents


def _called(value, wanted: Iterable[str], owner, depth: int, within: bool = True) -> Iterator[_Called]:
    """Yield the functions that may run if a value, or one of its methods in ``wanted``, is called.

    Args:
        value: any object.
        wanted: names of methods.
        owner: as in _Called.
        depth: as in _Called.
        within: whether entries of containers and modules are included.
    """
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
        elif within and kind is not value and top_package(kind) in _HOLD_CALLABLES:
            for held in attributes(value).values():
                yield from _called(held, wanted, owner, depth)


def _methods(owner, wanted: Iterable[str], depth: int) -> Iterator[_Called]:
    """Yield the methods with these names of an object or class, including overridden ones."""
    kind = owner if isinstance(owner, type) else type(owner)
    for base in kind.__mro__:
        for name in wanted:
            found: Any = vars(base).get(name)
            found = getattr(found, "__func__", found)
            if isinstance(found, FunctionType):
                yield _Called(found, owner, depth)


# ---- the data set and its inner data sets


def with_inner(dataset, depth: int = _INNER) -> Iterator[Any]:
    """Yield a data set and the data sets among its attributes."""
    yield dataset
    for value in attributes(dataset).values() if depth else ():
        for one in value if type(value) in (list, tuple) and len(value) <= _SMALL else (value,):
            if isinstance(one, data.Dataset) or is_from_hugging_face(type(one)):
                yield from with_inner(one, depth - 1)


def may_open(dataset) -> bool:
    """Return True if the code of a data set, or of one among its attributes, may open images that can be deferred."""
    return any(map(_may_open, with_inner(dataset)))


def _may_open(dataset) -> bool:
    kind = type(dataset)
    if is_from_hugging_face(kind):
        if kind.__name__ == "IterableDataset":
            return dataset.features is None or "Image(" in str(dataset.features)  # unknown after map()
        return kind.__name__ == "Dataset" and dataset.format["type"] == "custom"
    if top_package(kind) == "webdataset":  # selects decoders by names such as "pil"
        return True
    known = reader_of(dataset) is not None or known_class_of(dataset) is not None
    return known or any(_opens(one, found) for one, found in _reached(dataset))


def may_use_cuda(dataset) -> bool:
    """Return True if a data set's samples or attributes may be on a GPU."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    named = set() if code is None else {*names(code), *filter(lambda one: isinstance(one, str), code.co_consts)}
    held = (str(value) for value in attributes(dataset).values() if isinstance(value, (str, torch.device)))
    return any(text.startswith("cuda") for text in (*named, *held))


def signature_of(dataset) -> Iterator[Any]:
    """Yield values that change if a data set or its transforms are replaced."""
    for each in with_inner(dataset):
        yield id(each)
        for name, value in attributes(each).items():
            if callable(value):
                yield name, id(value)
            elif type(value) is dict and len(value) <= _SMALL:
                yield name, [(key, id(one)) for key, one in value.items() if callable(one)]
