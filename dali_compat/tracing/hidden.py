"""Deferred tensors in objects that the loading process does not search, such as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..inspection.objects import attributes
from .tensors import REAL_CLASS, TracedTensor

_LEAVES = torch.Tensor, Image.Image, np.ndarray, np.generic, str, bytes, int, float, type, ModuleType, FunctionType
_MOST_ENTRIES = 4096  # of a container that is searched


def hidden_tensors(value: Any, depth: int = 5) -> list[tuple[Any, str]]:
    """Return (object, name) of each attribute that holds deferred tensors. The search skips long containers, and
    stops after ``depth`` levels."""
    if not depth or isinstance(value, _LEAVES):
        return []
    if isinstance(value, (list, tuple, Mapping)):
        return [found for one in _entries(value) for found in hidden_tensors(one, depth - 1)]
    found: list[tuple[Any, str]] = []
    slots = chain.from_iterable(getattr(cls, "__slots__", ()) for cls in type(value).__mro__)
    for name, attribute in (attributes(value) | {name: getattr(value, name, None) for name in slots}).items():
        found += [(value, name)] if _is_deferred(attribute) else hidden_tensors(attribute, depth - 1)
    return found


def _entries(value: Any) -> Sequence[Any]:
    values = list(value.values()) if isinstance(value, Mapping) else value
    return values if len(values) <= _MOST_ENTRIES else ()


def computed(x: torch.Tensor) -> torch.Tensor:
    return x._materialize() if isinstance(x, TracedTensor) else x


def _is_deferred(value: Any, depth: int = 3) -> bool:
    """Return True for a deferred tensor, or a container that has one."""
    if depth and isinstance(value, (list, tuple, Mapping)):
        return any(_is_deferred(one, depth - 1) for one in _entries(value))
    return type(value) in REAL_CLASS
