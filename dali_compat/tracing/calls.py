"""Recorded calls, applied later to the real image or tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from PIL import ImageFilter

from .operations import CONSTANT


class RecordedCall(NamedTuple):
    """A call whose first argument is an image or tensor.

    Attributes:
        name: name of the operation.
        function: the original function; None for a method of the image or tensor, called ``name``.
        args, kwargs: the other arguments.
    """

    name: str
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    def kept(self) -> RecordedCall:
        """Return the call with copies of the arguments that the caller could change later."""
        return RecordedCall(self.name, self.function, kept(self.args), kept(self.kwargs))

    def on(self, image: Any) -> Any:
        """Apply the call to a real image or tensor."""
        if self.function is None:
            return getattr(image, self.name)(*self.args, **self.kwargs)
        return self.function(image, *self.args, **self.kwargs)


def kept(value: Any) -> Any:
    """Return a copy of an argument if the caller could change it later, else the argument."""
    kind = type(value)
    if kind in CONSTANT:
        return value
    if kind in (list, tuple):
        if CONSTANT.issuperset(map(type, value)):
            return value if kind is tuple else value[:]
        return kind([one if type(one) in CONSTANT else kept(one) for one in value])
    if kind is dict:
        return {name: kept(one) for name, one in value.items()}
    if kind is ImageFilter.GaussianBlur:
        return copy.copy(value)
    return value.clone() if isinstance(value, torch.Tensor) else value
