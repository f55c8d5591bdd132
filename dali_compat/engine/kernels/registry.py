"""A helper: which function does a step on a batch, and which on one image. Each is registered for an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)

_kernels: dict[str, Callable] = {}
_ragged: dict[str, Callable] = {}
_image: dict[str, Callable] = {}


def kernel(function: Function) -> Function:
    """Registers ``op(images, arrays, **args)``: ``images`` (N, C, H, W), ``arrays`` the step's per-sample arguments as
    numpy arrays of N rows; gives (N, C, H, W), or a list of N images (C, H, W) where their sizes differ.

    Raises:
        ValueError: another function has that name.
    """
    _add(_kernels, function.__name__, function)
    return function


def ragged_kernel(*ops: str) -> Callable[[Function], Function]:
    """Registers a function that does these ops on a list of images (C, H, W) of several sizes, and gives a list.

    Raises:
        ValueError: one of them has such a function.
    """

    def registered(function: Function) -> Function:
        for op in ops:
            _add(_ragged, op, function)
        return function

    return registered


def image_kernel(op: str) -> Callable[[Function], Function]:
    """Registers torchvision's own way for an op: ``function(image, row, **args)`` of a PIL image or a CHW tensor.

    ``row`` is one row of the step's per-sample arguments. Files that DALI decodes differently from PIL go this way;
    where an op has none, by the kernel.

    Raises:
        ValueError: another function has that op.
    """

    def registered(function: Function) -> Function:
        _add(_image, op, function)
        return function

    return registered


def kernel_of(op: str) -> Callable | None:
    """The function that does an op on batches; None where it has none: another op does it there (``@lowers``)."""
    return _kernels.get(op)


def ragged_kernel_of(op: str) -> Callable | None:
    """The function that does an op on images of several sizes; None where those of one size go together."""
    return _ragged.get(op)


def image_kernel_of(op: str) -> Callable | None:
    """torchvision's own way for an op on one image; None where the kernel does that, too."""
    return _image.get(op)


def _add(registry: dict[str, Callable], op: str, function: Callable) -> None:
    if op in registry:
        before, now = (f"{one.__module__}.{one.__qualname__}" for one in (registry[op], function))
        raise ValueError(f"{op!r} has two kernels: {before} and {now}; give one of them another name")
    registry[op] = function
