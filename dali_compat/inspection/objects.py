"""Finds what an object, a class or a function is, without running the user's code."""

from __future__ import annotations

import abc
import enum
import inspect
import sys
import types
import typing
from collections import namedtuple
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import nn
from torch.nn.modules import module

_PLAIN = {int, float, complex, str, bytes, bool, type(None), type(...), range, slice, torch.dtype, torch.memory_format}
_LIBRARIES = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "PIL", "cv2"} - {"__main__", "builtins"}
OF_MODULES = set(vars(nn.Module())) - {"training"}
"""Attributes that every nn.Module has."""
WITHOUT_CODE = {object, abc.ABC, typing.Generic, typing.Protocol}
"""Bases that add nothing to what a class does."""

_OF_NAMEDTUPLES = {"__new__", "__repr__", "_replace", "__replace__", "_asdict", "__getnewargs__"}
_OF_NAMEDTUPLES |= {"_make", "_fields", "_field_defaults", "_fields_defaults"}
_Field = type(vars(namedtuple("_Field", "one"))["one"])

# flags and members that tell a class written in Python from one written in C
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: Python code has made the class
_BASIC = 0xFF << 24  # Py_TPFLAGS_LONG_SUBCLASS and those beside it: subclasses of int, list, tuple, str, dict ...
_OF_C = {types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType}
_OF_C |= {types.GetSetDescriptorType}
_DESCRIPTORS = property, types.MemberDescriptorType, types.GetSetDescriptorType  # what each does is known


def attributes(value) -> dict[str, Any]:
    """An object's own attributes."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def root(kind) -> str:
    """The package that a class or function is of."""
    return str(getattr(kind, "__module__", "")).partition(".")[0]


def is_of_library(one: types.FunctionType | type) -> bool:
    """Returns whether a function or class is of Python's, torch's or another package that is known, not the user's."""
    return root(one) in _LIBRARIES


# ---- what needs no stand-in


def is_plain(value) -> bool:
    """Returns whether it never changes, and nothing of the user's runs where it is used."""
    return type(value) in _PLAIN or issubclass(type(value), (np.number, np.bool_)) or is_plain_enum(type(value))


def is_plain_enum(kind: type) -> bool:
    """Returns whether it is an enum whose members are but names of plain values."""
    if not issubclass(kind, enum.Enum):
        return False
    bases = [base for base in kind.__mro__ if base.__module__ not in ("enum", "builtins")]
    own = [value for base in bases for value in vars(base).values()]
    if any(_is_code(value) and getattr(value, "__module__", "enum") != "enum" for value in own):
        return False
    of_members = [pair for member in kind.__members__.values() for pair in vars(member).items()]
    return all(type(value) in _PLAIN for name, value in of_members if name != "__objclass__")


def is_namedtuple(kind: type) -> bool:
    """Returns whether it is a namedtuple with nothing in it but its fields."""
    own = vars(kind)
    if not (issubclass(kind, tuple) and kind.__bases__ == (tuple,) and "_fields" in own):
        return False
    added = (one for name, one in own.items() if name not in _OF_NAMEDTUPLES and (name[:2] != "__" or _is_code(one)))
    defaults = own.get("_field_defaults", {}).values()
    return all(type(value) in _PLAIN or type(value) is _Field for value in (*added, *defaults))


def _is_code(value) -> bool:
    return type(value) in (types.FunctionType, property, staticmethod, classmethod)


# ---- classes of the user's


def is_copyable(kind: type) -> bool:
    """Returns whether a copy of a class does what the class does: its code is Python's alone, and nothing hides in how
    it is made or how its attributes are found."""
    if kind is nn.Module:
        return not modules_are_hooked()
    if type(kind) not in (type, abc.ABCMeta, type(typing.Protocol)) or not kind.__flags__ & _HEAP_TYPE:
        return False
    if root(kind) in _LIBRARIES - {"torchvision"} or kind.__flags__ & _BASIC:
        return False
    if any(type(value) in _OF_C and name not in ("__dict__", "__weakref__") for name, value in vars(kind).items()):
        return False  # Cython's classes may be made as Python's are
    if any(inspect.isdatadescriptor(value) and type(value) not in _DESCRIPTORS for value in vars(kind).values()):
        return False
    return "__getattribute__" not in vars(kind) and all(b in WITHOUT_CODE or is_copyable(b) for b in kind.__bases__)


def modules_are_hooked() -> bool:
    """Returns whether to call any nn.Module is to call something of the user's besides."""
    theirs = (getattr(one, "__globals__", None) is vars(module) for one in (nn.Module.__call__, nn.Module._call_impl))
    return bool(module._global_forward_hooks or module._global_forward_pre_hooks or not all(theirs))


_WRITTEN_BY = "torch", "torchvision", "timm", __name__.partition(".")[0]


def is_original(function) -> bool:
    """False where somebody has put another one in its place, before this package was imported or after, or in the place
    of Pillow or open(), by which it opens files."""
    world = getattr(function, "__globals__", {})
    same = world.get("Image", Image) is Image and world.get("PIL", PIL) is PIL and "open" not in world
    return same and str(world.get("__name__")).partition(".")[0] in _WRITTEN_BY
