"""Reads what a data set's code and attributes say about it. None of its code runs, except __getattr__()."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
import torch.utils.data as data

from ..data.hugging_face import is_hugging_faces
from ..data.readers import known_class_of, reader_of
from ..inspection.objects import attributes, root
from .static_call_graph import names_of, opens_images

_DEPTH = 3  # of data sets in data sets
_SMALL = 1000  # entries of a container that is looked into


def with_inner(dataset: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """A data set, and those among its attributes."""
    yield dataset
    if depth:
        for inner in _inner(dataset):
            yield from with_inner(inner, depth - 1)


def may_open(dataset: Any, depth: int = _DEPTH) -> bool:
    """Returns whether a data set, or one among its attributes, opens images by PIL, as far as its code says."""
    kind = type(dataset)
    if is_hugging_faces(kind):  # with a transform of the user's
        return kind.__name__ == "Dataset" and dataset.format["type"] == "custom"
    if reader_of(dataset) is not None or known_class_of(dataset) is not None:
        return True
    if opens_images(dataset):
        return True
    return depth > 0 and any(may_open(inner, depth - 1) for inner in _inner(dataset))


def may_use_cuda(dataset: Any) -> bool:
    """Returns whether a data set's samples, or what it holds, may be on a GPU."""
    code = getattr(_function(type(dataset), "__getitem__"), "__code__", None)
    named = set() if code is None else {*names_of(code), *filter(lambda one: isinstance(one, str), code.co_consts)}
    held = (str(value) for value in attributes(dataset).values() if isinstance(value, (str, torch.device)))
    return any(text.startswith("cuda") for text in (*named, *held))


def gives_many(dataset: Any) -> bool:
    """Returns whether the user has written its __getitems__(), or its __getattr__() gives another object's."""
    many = _function(type(dataset), "__getitems__")
    if many is None:
        return hasattr(dataset, "__getitems__")
    return root(many) != "torch" and not is_hugging_faces(many)


def signature_of(dataset: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Returns what changes where a data set gets other transforms, or becomes another."""
    yield id(dataset)
    for name, value in attributes(dataset).items():
        if callable(value):
            yield name, id(value)
        elif type(value) is dict and len(value) <= _SMALL:
            yield name, [(key, id(one)) for key, one in value.items() if callable(one)]
    if depth:
        for inner in _inner(dataset):
            yield from signature_of(inner, depth - 1)


def _inner(dataset: Any) -> Iterator[Any]:
    """Data sets among the attributes of one."""
    for value in attributes(dataset).values():
        several = value if type(value) in (list, tuple) and len(value) <= _SMALL else (value,)
        yield from (one for one in several if isinstance(one, data.Dataset) or is_hugging_faces(type(one)))


def _function(kind: type, name: str) -> Any:
    found = getattr(kind, name, None)
    return found.__func__ if isinstance(found, MethodType) else found
