"""The known state of a deferred image, and the result and step of each operation on it.

An operation is a torchvision function or a method of an image. Its counterpart here takes the same arguments, with the
State of an image in place of the image. It returns an Outcome, computed from sizes as in torchvision, without pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torchvision.transforms import InterpolationMode

from ..ops.draws import width_of
from ..plan import ImageSpec

Numbers = tuple[float, ...]
Size = tuple[int, int]
Function = TypeVar("Function", bound=Callable[..., Any])

CONSTANT = frozenset((int, float, bool, str, type(None), torch.dtype, InterpolationMode))  # immutable argument types
_WARPS = "rotate", "affine", "perspective", "warp_affine", "warp_perspective"
FLAG, SIZED, NEVER = "flag", "sized", "never"  # how a step is disabled for an image that does not use it


class State(NamedTuple):
    """The known state of an image.

    Attributes:
        kind: "pil", "tensor", "Image" or "Mask".
        mode: PIL's mode; for a tensor, the mode of the image that it was made from.
        shape: shape of a tensor; (channels, height, width) of a PIL image.
        dtype, normalized: as in ImageSpec.
    """

    kind: str
    mode: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.uint8
    normalized: bool = False

    @property
    def size(self) -> Size:
        """(height, width)."""
        return self.shape[-2], self.shape[-1]

    @property
    def channels(self) -> int:
        return self.shape[-3]

    def sized(self, size) -> State:
        """Return the state with another size."""
        return State(self.kind, self.mode, (*self.shape[:-2], *map(int, size)), self.dtype, self.normalized)


class Given:
    """A step without its numbers, which differ between images. Equal ones are mostly the same object.

    Attributes:
        op: as in plan.Step.
        args: arguments of the kernel.
        gives: (kind, dtype, normalized, channels) after the step.
        layout: as in ops/draws.py.
        off: FLAG, SIZED or NEVER.
        sized: whether the numbers begin with the sizes before and after the step.
        width: how many numbers there are.
    """

    __slots__ = "_hash", "_key", "args", "gives", "layout", "off", "op", "sized", "width"

    def __init__(self, *key):
        self._key, self._hash = key, hash(key)
        self.op, self.args, self.gives, self.layout, self.off = key
        self.sized = self.off == SIZED or self.op in _WARPS
        self.width = width_of(self.layout, self.sized) if self.layout else 0

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Given) and self._key == other._key)

    def __reduce__(self) -> Any:
        return given, self._key

    def spec(self, size: Size | None) -> ImageSpec:
        """Return the spec of the image after the step."""
        kind, dtype, normalized, channels = self.gives
        return ImageSpec(kind, dtype, normalized, channels, size)


_MOST_KNOWN = 1024
_givens: dict[tuple[Any, ...], Given] = {}


def given(*key) -> Given:
    """Return the Given of these arguments, mostly a cached one."""
    made = _givens.get(key)
    if made is None:
        if len(_givens) >= _MOST_KNOWN:
            _givens.clear()
        made = _givens[key] = Given(*key)
    return made


Step = tuple[Given, Numbers]


class Outcome(NamedTuple):
    """The result of an operation.

    Attributes:
        state: state of the image after the operation.
        steps: batch steps that give the same pixels; None if there are none.
        same: whether the operation returns its argument.
    """

    state: State
    steps: tuple[Step, ...] | None = None
    same: bool = False


class UnknownOperation(Exception):
    """The result of an operation is not known, so the image has to be real."""


OPERATIONS: dict[str, Callable[..., Outcome]] = {}
_OFTEN_ALIKE = frozenset(("convert_image_dtype", "hflip", "horizontal_flip", "normalize", "pil_to_tensor", "to_dtype"))
_OFTEN_ALIKE |= {"to_image", "to_mask", "to_tensor", "vertical_flip", "vflip"}  # often called with equal arguments


def operation(*names: str) -> Callable[[Function], Function]:
    """Register a function that returns the outcome of a torchvision function, under the names of v1 and v2.

    In place of the image it takes a State, and "pil", "v1" or "v2", the implementation that torchvision uses.
    """

    def registered(function: Function) -> Function:
        for name in names:
            OPERATIONS[name] = function
        return function

    return registered


def outcome_of(name: str, state: State, like: str, args, kwargs) -> Outcome | None:
    """Return the outcome of a function; None if it is known only for the real image.

    Args:
        name: name of the function.
        state: state of the image.
        like: "v1" or "v2".
        args, kwargs: the other arguments.
    """
    if name not in _OFTEN_ALIKE:
        return _outcome_of(name, state, like, args, kwargs)
    try:
        fixed = tuple([_fixed(one) for one in args]), tuple([(key, _fixed(one)) for key, one in kwargs.items()])
    except TypeError:
        return _outcome_of(name, state, like, args, kwargs)
    return _remembered(name, state, like, torch.get_default_dtype(), *fixed)


def _fixed(value) -> Any:
    """Return a hashable argument. Raise TypeError if the argument may be changed later."""
    if type(value) in CONSTANT:
        return value
    if type(value) not in (list, tuple) or not CONSTANT.issuperset(map(type, value)):
        raise TypeError
    return tuple(value)


@lru_cache(_MOST_KNOWN)
def _remembered(name: str, state: State, like: str, default: torch.dtype, args, kwargs) -> Outcome | None:
    return _outcome_of(name, state, like, args, dict(kwargs))


def _outcome_of(name: str, state: State, like: str, args, kwargs) -> Outcome | None:
    known = OPERATIONS.get(name)
    if known is None:
        return None
    try:
        made = known(state, "pil" if state.kind == "pil" else like, *args, **kwargs)
    except Exception:  # torchvision itself raises the error
        return None
    return made if len(made.state.shape) < 2 or min(made.state.size) > 0 else None


def step(op: str, state: State, numbers=(), layout=(), off: str = NEVER, **args) -> Step:
    """Return a step whose result has this state."""
    gives = state.kind, state.dtype, state.normalized, state.channels if len(state.shape) > 2 else 1
    return given(op, tuple(args.items()), gives, tuple(layout), off), tuple(map(float, numbers))


def flagged(op: str, state: State, numbers=(), layout=(), **args) -> tuple[Step, ...]:
    """Return a step that can be switched off for other images."""
    return (step(op, state, (1, *numbers), (("flag", (), "int32"), *layout), FLAG, **args),)


def is_plain(state: State) -> bool:
    """Return True if kernels support the image. It needs three dimensions, and one or three channels."""
    return len(state.shape) == 3 and state.channels in (1, 3) and state.kind != "Mask"
