"""Recorded calls, applied later to the computed image or tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from PIL import ImageFilter

from .operations import CONSTANT


class RecordedCall(NamedTuple):
    """A recorded call of a function or method. The first argument, an image or tensor, is not stored.

    Attributes:
        name: name of the operation.
        function: the original function; None for a call of the method ``name``.
        args, kwargs: the arguments after the first.
    """

    name: str
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    def __str__(self) -> str:
        """Return the name, with the arguments if these are short, such as "convert('HSV')"."""
        values = (*self.args, *self.kwargs.values())
        if not values or not all(type(value) in (str, int, float, bool, tuple) for value in values):
            return self.name
        words = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.name}({', '.join(words)})" if len("".join(words)) < 60 else self.name

    def with_copies(self) -> RecordedCall:
        """Return the call with copies of mutable arguments, which the caller could change later."""
        if not self.kwargs and CONSTANT.issuperset(map(type, self.args)):
            return self
        return RecordedCall(self.name, self.function, copied_argument(self.args), copied_argument(self.kwargs))

    def apply(self, image: Any) -> Any:
        if self.function is None:
            return getattr(image, self.name)(*self.args, **self.kwargs)
        return self.function(image, *self.args, **self.kwargs)


def copied_argument(value: Any) -> Any:
    """Return a copy of an argument of a known mutable type. Return any other argument unchanged."""
    cls = type(value)
    if cls in CONSTANT:
        return value
    if cls in (list, tuple):
        if CONSTANT.issuperset(map(type, value)):
            return value if cls is tuple else value[:]
        return cls([one if type(one) in CONSTANT else copied_argument(one) for one in value])
    if cls is dict:
        return {name: copied_argument(one) for name, one in value.items()}
    if cls is ImageFilter.GaussianBlur:
        return copy.copy(value)
    return value.clone() if isinstance(value, torch.Tensor) else value
