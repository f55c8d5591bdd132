"""What of the user's objects may be used as it is, stood in for, or run."""

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
import torch
from torch import nn

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: Python code has made the class
_EXACT = {int, float, complex, str, bytes, bool, type(None), type(...), range, slice, torch.dtype, torch.memory_format}
_OTHERS = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "PIL", "cv2"} - {"__main__", "builtins"}
OF_MODULES = set(vars(nn.Module())) - {"training"}  # what each has of its own
WITHOUT_CODE = {object, abc.ABC, typing.Generic, typing.Protocol}
_OF_NAMEDTUPLES = {"__new__", "__repr__", "_replace", "__replace__", "_asdict", "__getnewargs__"}
_OF_NAMEDTUPLES |= {"_make", "_fields", "_field_defaults", "_fields_defaults"}
_Field = type(vars(namedtuple("_Field", "one"))["one"])
_HANDLERS = {"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH", "PUSH_EXC_INFO", "BEFORE_WITH", "LOAD_SPECIAL"}
_OF_C = {types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType}
_OF_C |= {types.GetSetDescriptorType}
_BASIC = 0xFF << 24  # Py_TPFLAGS_LONG_SUBCLASS and those beside it: subclasses of int, list, tuple, str, dict ...
# from an object to what is real
_WAYS_OUT = {
    "__subclasses__",
    "__base__",
    "__bases__",
    "__mro__",
    "__class__",
    "__self__",
    "__globals__",
    "__builtins__",
}
_WAYS_OUT |= {"__code__", "__closure__", "__reduce__", "__reduce_ex__", "gi_frame", "tb_frame", "f_locals", "f_globals"}


def attributes(value: Any) -> dict[str, Any]:
    """An object's own; no code of the user's runs."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def is_plain(value: Any) -> bool:
    """Whether it never changes, and nothing of the user's runs where it is used."""
    return type(value) in _EXACT or issubclass(type(value), (np.number, np.bool_)) or is_plain_enum(type(value))


def is_plain_enum(kind: type) -> bool:
    """Whether its members are but names of numbers and texts."""
    if not issubclass(kind, enum.Enum):
        return False
    bases = [base for base in kind.__mro__ if base.__module__ not in ("enum", "builtins")]
    own = [value for base in bases for value in vars(base).values()]
    members = [
        value for member in kind.__members__.values() for name, value in vars(member).items() if name != "__objclass__"
    ]
    coded = any(_is_code(value) and getattr(value, "__module__", "enum") != "enum" for value in own)
    return not coded and all(type(value) in _EXACT for value in members)


def is_namedtuple(kind: type) -> bool:
    """Whether there is nothing in it but its fields."""
    own = vars(kind)
    if not (issubclass(kind, tuple) and kind.__bases__ == (tuple,) and "_fields" in own):
        return False
    added = (value for name, value in own.items() if name not in _OF_NAMEDTUPLES and not _is_dunder(name, value))
    defaults = own.get("_field_defaults", {}).values()
    return all(type(value) in _EXACT or type(value) is _Field for value in (*added, *defaults))


def _is_dunder(name: str, value: Any) -> bool:
    return name.startswith("__") and not _is_code(value)


def _is_code(value: Any) -> bool:
    return type(value) in (types.FunctionType, property, staticmethod, classmethod)


def is_slot(value: Any) -> bool:
    return type(value) is types.MemberDescriptorType


def root(kind: Any) -> str:
    return str(getattr(kind, "__module__", "")).partition(".")[0]


def has_code(kind: type) -> bool:
    """Whether instances of a class can be stood in for: Python's code is all that makes them what they are."""
    if kind is nn.Module:
        return True
    if type(kind) not in (type, abc.ABCMeta, type(typing.Protocol)) or not kind.__flags__ & _HEAP_TYPE:
        return False
    if root(kind) in _OTHERS - {"torchvision"} or kind.__flags__ & _BASIC:
        return False
    if any(type(value) in _OF_C and name not in ("__dict__", "__weakref__") for name, value in vars(kind).items()):
        return False  # Cython's classes may be made as Python's are
    if any(inspect.isdatadescriptor(value) and not _is_understood(value) for value in vars(kind).values()):
        return False
    return "__getattribute__" not in vars(kind) and all(b in WITHOUT_CODE or has_code(b) for b in kind.__bases__)


def _is_understood(descriptor: Any) -> bool:
    return type(descriptor) in (property, types.MemberDescriptorType, types.GetSetDescriptorType)


def is_others(function: types.FunctionType) -> bool:
    return root(function) in _OTHERS


def names(code: types.CodeType) -> set[str]:
    """All that a function may look up, and those within it."""
    return set(code.co_names).union(*map(names, _within(code)))


def _within(code: types.CodeType) -> list[types.CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


@functools.lru_cache(1024)
def reason_not_to_run(code: types.CodeType) -> str | None:
    instructions = list(dis.get_instructions(code))
    for_loops = {one.offset for one in instructions if one.opname == "FOR_ITER"}
    for before, one in pairwise([instructions[0], *instructions]):
        if one.opname in _HANDLERS:
            return "it handles exceptions, or has a with statement"
        if one.opname in ("STORE_ATTR", "DELETE_ATTR"):
            return f"it changes the attribute {one.argval}"
        if one.opname in ("GET_AWAITABLE", "GET_YIELD_FROM_ITER"):
            return "it waits for another function"
        if one.opname == "IS_OP" and not ("CONST" in before.opname and before.argval in (None, True, False)):
            return "it compares with 'is'"
        back = "JUMP" in one.opname and one.argval <= one.offset
        if back and one.argval not in for_loops:
            return "it has a while loop"
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    if (names(code) | texts) & _WAYS_OUT:
        return "it looks into classes"
    return next(filter(None, map(reason_not_to_run, _within(code))), None)
