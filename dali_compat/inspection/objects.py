"""Inspection of objects, classes and functions."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import nn
from torch.nn.modules import module

_PLAIN = {int, float, complex, str, bytes, bool, type(None), torch.dtype}
_LIBRARIES = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "PIL", "cv2"} - {"__main__", "builtins"}


def attributes(value) -> dict[str, Any]:
    """Return an object's ``__dict__`` without calling the user's code."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def top_package(kind) -> str:
    return str(getattr(kind, "__module__", "")).partition(".")[0]


def is_of_library(one: types.FunctionType | type) -> bool:
    """Return True if a function or class belongs to the standard library, torch or another known package."""
    return top_package(one) in _LIBRARIES


def is_plain(value) -> bool:
    """Return True if a value is immutable and its methods are not the user's code."""
    return type(value) in _PLAIN or issubclass(type(value), (np.number, np.bool_))


def modules_are_hooked() -> bool:
    """Return True if global forward hooks are registered for modules, or if nn.Module.__call__() was replaced."""
    theirs = (getattr(one, "__globals__", None) is vars(module) for one in (nn.Module.__call__, nn.Module._call_impl))
    return bool(module._global_forward_hooks or module._global_forward_pre_hooks or not all(theirs))


_WRITTEN_BY = "torch", "torchvision", "timm", __name__.partition(".")[0]


def is_original(function) -> bool:
    """Return True if torch, torchvision, timm or this package defined a function, and neither Pillow nor open() was
    replaced in its module."""
    # by name, to detect replacements made before the import of this package
    globals_ = getattr(function, "__globals__", {})
    same = globals_.get("Image", Image) is Image and globals_.get("PIL", PIL) is PIL and "open" not in globals_
    return same and str(globals_.get("__name__")).partition(".")[0] in _WRITTEN_BY


def names(code: types.CodeType) -> set[str]:
    """Return all names that a function and its inner functions may look up."""
    return {name for one in (code, *inner_code(code)) for name in one.co_names}


@functools.lru_cache(1024)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the global names that a function and its inner functions may look up."""
    found = (instruction for one in (code, *inner_code(code)) for instruction in dis.get_instructions(one))
    return frozenset(one.argval for one in found if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def inner_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of the functions, lambdas and comprehensions within a function, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from inner_code(constant)
