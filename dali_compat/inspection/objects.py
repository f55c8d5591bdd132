"""Inspect objects, classes and functions without running the user's code."""

from __future__ import annotations

import abc
import dis
import enum
import functools
import inspect
import sys
import types
import typing
from collections import namedtuple
from itertools import pairwise
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import nn
from torch.nn.modules import module

_PLAIN = {int, float, complex, str, bytes, bool, type(None), type(...), range, slice, torch.dtype, torch.memory_format}
_LIBRARIES = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "PIL", "cv2"} - {"__main__", "builtins"}
MODULE_ATTRIBUTES = set(vars(nn.Module())) - {"training"}
"""Attributes that every nn.Module has."""
WITHOUT_CODE = {object, abc.ABC, typing.Generic, typing.Protocol}
"""Bases that add no behavior to a class."""

_NAMEDTUPLE_MEMBERS = {"__new__", "__repr__", "_replace", "__replace__", "_asdict", "__getnewargs__"}
_NAMEDTUPLE_MEMBERS |= {"_make", "_fields", "_field_defaults", "_fields_defaults"}
_Field = type(vars(namedtuple("_Field", "one"))["one"])

# flags and members that distinguish a class written in Python from one written in C
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made at runtime
_BASIC = 0xFF << 24  # Py_TPFLAGS_LONG_SUBCLASS and its neighbors: subclasses of int, list, tuple, str, dict ...
_C_DESCRIPTORS = {types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType}
_C_DESCRIPTORS |= {types.GetSetDescriptorType}
_DESCRIPTORS = property, types.MemberDescriptorType, types.GetSetDescriptorType  # descriptors with known behavior


def attributes(value) -> dict[str, Any]:
    """Return an object's ``__dict__`` without calling the user's code."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def top_package(kind) -> str:
    """Return the top-level package of a class or function."""
    return str(getattr(kind, "__module__", "")).partition(".")[0]


def is_of_library(one: types.FunctionType | type) -> bool:
    """Return True if a function or class belongs to the standard library, torch or another known package."""
    return top_package(one) in _LIBRARIES


# ---- objects that need no stand-in


def is_plain(value) -> bool:
    """Return True if a value is immutable and using it runs no code of the user."""
    return type(value) in _PLAIN or issubclass(type(value), (np.number, np.bool_)) or is_plain_enum(type(value))


def is_plain_enum(kind: type) -> bool:
    """Return True for an enum without code of the user, whose members are plain values."""
    if not issubclass(kind, enum.Enum):
        return False
    bases = [base for base in kind.__mro__ if base.__module__ not in ("enum", "builtins")]
    own = [value for base in bases for value in vars(base).values()]
    if any(_is_code(value) and getattr(value, "__module__", "enum") != "enum" for value in own):
        return False
    of_members = [pair for member in kind.__members__.values() for pair in vars(member).items()]
    return all(type(value) in _PLAIN for name, value in of_members if name != "__objclass__")


def is_namedtuple(kind: type) -> bool:
    """Return True for a namedtuple that adds nothing but its fields."""
    own = vars(kind)
    if not (issubclass(kind, tuple) and kind.__bases__ == (tuple,) and "_fields" in own):
        return False
    added = (
        one for name, one in own.items() if name not in _NAMEDTUPLE_MEMBERS and (name[:2] != "__" or _is_code(one))
    )
    defaults = own.get("_field_defaults", {}).values()
    return all(type(value) in _PLAIN or type(value) is _Field for value in (*added, *defaults))


def _is_code(value) -> bool:
    return type(value) in (types.FunctionType, property, staticmethod, classmethod)


# ---- the user's classes


def is_copyable(kind: type) -> bool:
    """Return True if a copy of a class behaves like the class.

    It must be written in Python only, and customize neither its construction nor the lookup of attributes.
    """
    if kind is nn.Module:
        return not modules_are_hooked()
    if type(kind) not in (type, abc.ABCMeta, type(typing.Protocol)) or not kind.__flags__ & _HEAP_TYPE:
        return False
    if top_package(kind) in _LIBRARIES - {"torchvision"} or kind.__flags__ & _BASIC:
        return False
    if any(
        type(value) in _C_DESCRIPTORS and name not in ("__dict__", "__weakref__") for name, value in vars(kind).items()
    ):
        return False  # classes of Cython may look like those of Python
    if any(inspect.isdatadescriptor(value) and type(value) not in _DESCRIPTORS for value in vars(kind).values()):
        return False
    return "__getattribute__" not in vars(kind) and all(b in WITHOUT_CODE or is_copyable(b) for b in kind.__bases__)


def modules_are_hooked() -> bool:
    """Return True if calling any nn.Module may also call code of the user."""
    theirs = (getattr(one, "__globals__", None) is vars(module) for one in (nn.Module.__call__, nn.Module._call_impl))
    return bool(module._global_forward_hooks or module._global_forward_pre_hooks or not all(theirs))


_WRITTEN_BY = "torch", "torchvision", "timm", __name__.partition(".")[0]


def is_original(function) -> bool:
    """Return False if a library function was replaced, or uses a replaced Pillow or open() to open files.

    The replacement is detected even if it took place before this package was imported.
    """
    globals_ = getattr(function, "__globals__", {})
    same = globals_.get("Image", Image) is Image and globals_.get("PIL", PIL) is PIL and "open" not in globals_
    return same and str(globals_.get("__name__")).partition(".")[0] in _WRITTEN_BY


# ---- the code of functions

# instructions of try and with in Python 3.10 to 3.14
_HANDLERS = {"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH", "PUSH_EXC_INFO", "BEFORE_WITH", "LOAD_SPECIAL"}
# attributes that lead from a stand-in to real objects
_WAYS_OUT = {"__subclasses__", "__base__", "__bases__", "__mro__", "__class__", "__self__", "__globals__"}
_WAYS_OUT |= {"__builtins__", "__code__", "__closure__", "__reduce__", "__reduce_ex__"}
_WAYS_OUT |= {"gi_frame", "tb_frame", "f_locals", "f_globals"}


def names(code: types.CodeType) -> set[str]:
    """Return all names that a function and its inner functions may look up."""
    return set(code.co_names).union(*map(names, _within(code)))


@functools.lru_cache(1024)
def reason_not_to_run(code: types.CodeType) -> str | None:
    """Return why a function must not run even on stand-ins; None if it may run.

    It must not run if it may never return (a while loop), could catch Refused (try, with), or could distinguish a
    stand-in from the real object without using it (``is``).
    """
    instructions = list(dis.get_instructions(code))
    for_loops = {one.offset for one in instructions if one.opname == "FOR_ITER"}
    for before, one in pairwise([instructions[0], *instructions]):
        if one.opname in _HANDLERS:
            return "it handles exceptions, or has a with statement"
        if one.opname in ("STORE_ATTR", "DELETE_ATTR"):
            return f"it changes the attribute {one.argval}"
        if one.opname in ("GET_AWAITABLE", "GET_YIELD_FROM_ITER"):
            return "it uses await or yield from"
        if one.opname == "IS_OP" and not ("CONST" in before.opname and before.argval in (None, True, False)):
            return "it compares with 'is'"
        jumps_back = "JUMP" in one.opname and one.argval <= one.offset
        if jumps_back and one.argval not in for_loops:
            return "it has a while loop"
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    if (names(code) | texts) & _WAYS_OUT:
        return "it inspects classes or frames"
    return next(filter(None, map(reason_not_to_run, _within(code))), None)


def _within(code: types.CodeType) -> list[types.CodeType]:
    """Return the code of functions, lambdas and comprehensions defined within a function."""
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
