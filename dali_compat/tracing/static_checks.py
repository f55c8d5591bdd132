"""Checks of a data set's code and attributes, without running any code except __getattr__()."""

from __future__ import annotations

import dis
import functools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
import torch.utils.data as data

from ..data.hugging_face import is_from_hugging_face
from ..data.readers import known_class_of, reader_of
from ..inspection.objects import attributes, global_names, is_of_library, names, top_package
from ..runtime.messages import is_installed

_OPENS = frozenset(("decode_image", "decode_jpeg", "decode_png", "default_loader", "pil_loader", "read_image"))
_OTHER_OPENERS = frozenset(("imdecode", "imread"))
_OTHER_LIBRARIES = frozenset(("cv2", "imageio", "skimage"))
_TORCHVISION_DATASETS = "torchvision.datasets."  # the only code of a library that is followed
_CLASS, _TENSOR_CLASSES = frozenset(("type", "__class__")), frozenset(("Tensor", "tv_tensors"))
_CALL_METHODS = "__init__", "__call__"  # run by a call of a class, or of an object
_MAX_CALL_DEPTH, _MAX_DATASET_DEPTH = 4, 3
_MAX_FUNCTIONS = 500
_MAX_CALLABLES, _MAX_ENTRIES = 32, 1000  # largest containers whose entries are inspected
_CONTAINERS = frozenset((list, tuple, dict, OrderedDict))
_CALL_THEIR_ATTRIBUTES = frozenset(("torch", "torchvision"))  # libraries with classes such as Compose


class _Function(NamedTuple):
    """A function that may run when a sample is read.

    Attributes:
        function: a FunctionType.
        owner: the object or class of a method; None for a plain function.
        depth: number of nested calls to follow.
    """

    function: Any  # mypy would take a FunctionType for a method
    owner: Any
    depth: int


def reads_images(dataset) -> bool:
    """Return True if a data set's methods or the user's code open or decode images.

    Code of other packages is ignored, because the data set might never run it.
    """
    return any(
        (_opens(called, words) or words & _OTHER_OPENERS) and _is_users(called, dataset)
        for called, words in _reachable(dataset)
    )


def other_opener(dataset) -> str:
    """Describe how the user's code opens images with another library, such as "imread() of cv2". Return "" if it does
    not."""
    for called, words in _reachable(dataset):
        if words & _OTHER_OPENERS and _is_users(called, dataset):
            return " of ".join([f"{min(words & _OTHER_OPENERS)}()", *sorted(words & _OTHER_LIBRARIES)[:1]])
    return ""


def _is_users(called: _Function, dataset) -> bool:
    return called.owner is dataset or not is_installed(called.function.__code__.co_filename)


def _opens(called: _Function, words: set[str]) -> bool:
    """Return True if a function may open images with Pillow or torchvision. ``words`` are the names in its code."""
    return called.function.__name__ in _OPENS or bool(words & _OPENS) or words >= {"Image", "open"}


def compares_classes(dataset, collate_fn) -> str:
    """Return the place, such as "train.py:31", of a user's function that compares the class of a tensor.

    Return "" if there is none. The class of a deferred tensor is a subclass, so the comparison could fail.
    """
    of_dataset = chain.from_iterable(map(_reachable, with_inner(dataset)))
    for called, words in chain(of_dataset, _follow(_functions_of(collate_fn, (), None, _MAX_CALL_DEPTH))):
        code = called.function.__code__
        if words & _TENSOR_CLASSES and words & _CLASS and not is_installed(code.co_filename) and _uses_class(code):
            return f"{code.co_filename}:{code.co_firstlineno}"
    return ""


def _uses_class(code: CodeType) -> bool:
    """Return True if code uses ``type(x)`` or ``x.__class__``, except for the class's name."""
    instructions = list(dis.get_instructions(code))
    for number, instruction in enumerate(instructions):
        after: Iterator[Any] = iter(instructions[number + 1 :])
        if instruction.argval == "type":
            next((one for one in after if one.opname.startswith("CALL")), None)
        elif instruction.argval != "__class__":
            continue
        user = next(after, instruction)
        in_text = user.opname.startswith(("CONVERT", "FORMAT"))
        if not in_text and user.argval not in ("__name__", "__qualname__"):
            return True
    return any(isinstance(one, CodeType) and _uses_class(one) for one in code.co_consts)


def _reachable(dataset, only_users: bool = False) -> Iterator[tuple[_Function, set[str]]]:
    """Yield the functions that may run when a sample is read, each with the names in its code. If ``only_users`` is
    True, skip installed packages."""
    return _follow(_methods(dataset, ("__getitem__", "__getitems__", "__iter__"), _MAX_CALL_DEPTH), only_users)


def _follow(first: Iterable[_Function], only_users: bool = False) -> Iterator[tuple[_Function, set[str]]]:
    """Yield the functions in ``first`` and all functions that these may call, each with the names in its code.
    ``only_users`` is as in _reachable()."""
    queue = deque(first)
    seen: set[tuple[int, int]] = set()
    while queue and len(seen) < _MAX_FUNCTIONS:
        called = queue.popleft()
        if only_users and is_installed(called.function.__code__.co_filename):
            continue
        # wrapper objects have the same __call__(), but call different functions
        key = id(called.function), id(called.owner) if called.function.__name__ == "__call__" else 0
        if key in seen:
            continue
        seen.add(key)
        words = names(called.function.__code__)
        yield called, words
        if called.depth and not _is_opaque(called.function):
            for value in _values_of_names(called, words):
                queue += _functions_of(value, words, called.owner, called.depth - 1)


def _is_opaque(function_or_class) -> bool:
    """Return True if a function or class belongs to a library. torchvision's data sets do not count."""
    return is_of_library(function_or_class) and not function_or_class.__module__.startswith(_TORCHVISION_DATASETS)


def _values_of_names(called: _Function, words: Iterable[str]) -> Iterator[Any]:
    """Yield the values that the names ``words`` in a function's code may refer to."""
    of_globals = global_names(called.function.__code__)
    cls = called.owner if isinstance(called.owner, type) else type(called.owner)
    owner_attributes = {} if isinstance(called.owner, type) else attributes(called.owner)
    for name in words:
        if name in of_globals and name in called.function.__globals__:
            yield called.function.__globals__[name]
        if name in owner_attributes:
            yield owner_attributes[name]
        yield from (vars(base)[name] for base in cls.__mro__ if name in vars(base))
    for cell in called.function.__closure__ or ():
        with suppress(ValueError):  # the variable has no value yet
            yield cell.cell_contents


def _functions_of(value, words: Iterable[str], owner, depth: int, look_inside: bool = True) -> Iterator[_Function]:
    """Yield the functions that may run if code uses ``value``. ``words`` are the names in this code.

    If ``look_inside`` is True, include the entries of a container or module.
    """
    value = getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod)) else value
    value = value.fget if isinstance(value, property) else value
    if isinstance(value, (functools.partial, functools.partialmethod, functools.cached_property)):
        value = value.func
    value = getattr(value, "__wrapped__", value) if callable(value) and not isinstance(value, type) else value
    if isinstance(value, MethodType):
        value, owner = value.__func__, value.__self__
    if isinstance(value, FunctionType):
        yield _Function(value, owner, depth)
    elif isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return  # C++ functions, whose attributes refer to each other
    elif type(value) in (list, tuple, dict):
        entries = list(value.values() if type(value) is dict else value)
        if look_inside and len(entries) <= _MAX_CALLABLES:
            for entry in entries:
                yield from _functions_of(entry, words, owner, depth, look_inside=False)
    elif isinstance(value, ModuleType):
        for name in words if look_inside else ():
            yield from _functions_of(vars(value).get(name), words, None, depth, look_inside=False)
    else:
        cls = value if isinstance(value, type) else type(value)
        if cls.__module__ != "builtins" and not _is_opaque(cls):
            yield from _methods(value, (*_CALL_METHODS, *words), depth)
        elif look_inside and cls is not value and top_package(cls) in _CALL_THEIR_ATTRIBUTES:
            for attribute in attributes(value).values():
                yield from _functions_of(attribute, words, owner, depth)


def _methods(owner, method_names: Iterable[str], depth: int) -> Iterator[_Function]:
    """Yield the methods named ``method_names`` of an object or class, including overridden ones."""
    cls = owner if isinstance(owner, type) else type(owner)
    for base in cls.__mro__:
        for name in method_names:
            method: Any = vars(base).get(name)
            method = getattr(method, "__func__", method)
            if isinstance(method, FunctionType):
                yield _Function(method, owner, depth)


# ---- the data set and its inner data sets


def with_inner(dataset, depth: int = _MAX_DATASET_DEPTH) -> Iterator[Any]:
    """Yield a data set and the data sets among its attributes, recursively."""
    yield dataset
    for value in attributes(dataset).values() if depth else ():
        is_small = type(value) in (list, tuple, dict) and len(value) <= _MAX_ENTRIES
        entries = value.values() if type(value) is dict else value
        for entry in entries if is_small else (value,):
            if isinstance(entry, data.Dataset) or is_from_hugging_face(type(entry)):
                yield from with_inner(entry, depth - 1)


def may_open(dataset) -> bool:
    """Return True if a data set or an inner one may open images that can be deferred."""
    return any(map(_may_open, with_inner(dataset)))


def _may_open(dataset) -> bool:
    cls = type(dataset)
    if is_from_hugging_face(cls):
        if cls.__name__ == "IterableDataset":
            return dataset.features is None or "Image(" in str(dataset.features)  # None after map()
        return cls.__name__ == "Dataset" and dataset.format["type"] == "custom"
    if top_package(cls) == "webdataset":  # selects decoders by strings such as "pil"
        return True
    known = reader_of(dataset) is not None or known_class_of(dataset) is not None
    return known or any(_opens(called, words) for called, words in _reachable(dataset))


def may_use_cuda(dataset) -> bool:
    """Return True if ``__getitem__`` or an attribute of a data set mentions a CUDA device or function."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    words = set() if code is None else {*names(code), *filter(lambda one: isinstance(one, str), code.co_consts)}
    values = (str(value) for value in attributes(dataset).values() if isinstance(value, (str, torch.device)))
    return any(text.startswith("cuda") for text in (*words, *values))


class Signature:
    """References to the objects that determine a data set's samples."""

    def __init__(self, dataset, collate_fn):
        # weak ones do not keep the data set alive, and detect a new object at the address of a deleted one
        self._references = list(map(_reference, _deciding_objects(dataset, collate_fn)))

    def holds(self, dataset, collate_fn) -> bool:
        """Return True if the objects are still the same."""
        objects = _deciding_objects(dataset, collate_fn)
        are_same = (get() is one for get, one in zip(self._references, objects, strict=False))
        return len(objects) == len(self._references) and all(are_same)


def _reference(one) -> Callable[[], Any]:
    """Return a weak reference, or a strong one if the class allows no weak references."""
    try:
        return weakref.ref(one)
    except TypeError:
        return lambda: one


def _deciding_objects(dataset, collate_fn) -> list[Any]:
    """Return the objects that determine a data set's samples, such as inner data sets, functions and transforms."""
    found: dict[int, Any] = {}
    _add_callables(found, collate_fn)
    for each in with_inner(dataset):
        found[id(each)] = each
        for value in attributes(each).values():
            _add_callables(found, value)
        # without functions of libraries, because tracing replaces some of them
        for called, words in _reachable(each, only_users=True):
            found[id(called.function)] = called.function
            for value in _values_of_names(called, words):
                _add_callables(found, value)
    return list(found.values())


def _add_callables(found: dict[int, Any], value, depth: int = _MAX_CALL_DEPTH, most: int = _MAX_ENTRIES) -> None:
    """Add the callable objects in ``value`` to ``found``, keyed by id. Containers with more than ``most`` entries are
    not searched."""
    if type(value) in _CONTAINERS:
        entries = list(value.values() if isinstance(value, dict) else value) if len(value) <= most else []
        most_inside = _MAX_CALLABLES if len(entries) <= _MAX_CALLABLES < most else 0
        for entry in entries:
            _add_callables(found, entry, depth, most_inside)
    elif isinstance(value, MethodType):  # a new object at each access
        found |= {id(one): one for one in (value.__func__, value.__self__)}
    elif isinstance(value, FunctionType):
        if not is_installed(value.__code__.co_filename):
            found[id(value)] = value
    elif callable(value) and id(value) not in found and len(found) < _MAX_ENTRIES:
        found[id(value)] = value
        if depth and not isinstance(value, type):
            given = (value.func, value.args, value.keywords) if isinstance(value, functools.partial) else ()
            for one in (*given, *attributes(value).values()):
                _add_callables(found, one, depth - 1)
