"""The known state of a deferred image, and the result and step of each operation on it.

An operation is a function of torchvision's, or a method of an image's. Here each is called as torchvision's is, with
the State of an image in its place, and gives an Outcome: torchvision's own arithmetic on sizes, without pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torchvision.transforms import InterpolationMode

from ..plan import ImageSpec

Numbers = tuple[float, ...]
Size = tuple[int, int]
Function = TypeVar("Function", bound=Callable[..., Any])

CONSTANT = frozenset((int, float, bool, str, type(None), torch.dtype, InterpolationMode))  # classes of arguments
_WARPS = "rotate", "affine", "perspective"
FLAG, SIZED, NEVER = "flag", "sized", "never"  # how an image that a step is not for passes it


class State(NamedTuple):
    """The known state of an image.

    Attributes:
        kind: "pil", "tensor", "Image" or "Mask".
        mode: as PIL's; of a tensor that of the image that it was made of.
        shape: of a tensor; of PIL's image (channels, height, width).
        dtype, normalized: as ImageSpec's.
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
        """The same of another size."""
        return State(self.kind, self.mode, (*self.shape[:-2], *map(int, size)), self.dtype, self.normalized)


class Given:
    """A step whose numbers are each image's own. Equal ones are mostly one object.

    Attributes:
        op: as Step's; args: of its kernel.
        gives: (kind, dtype, normalized, channels) after it.
        layout, sized: as ops/draws.py has them.
        off: FLAG, SIZED or NEVER.
        draw: what draws its arguments of its numbers, in the place of a layout.
    """

    __slots__ = "_hash", "_key", "args", "draw", "gives", "layout", "off", "op", "sized"

    def __init__(self, *key):
        self._key, self._hash = key, hash(key)
        self.op, self.args, self.gives, self.layout, self.off, self.draw = key
        # whether its numbers begin with the sizes before and after it
        self.sized = self.off == SIZED or self.op in _WARPS or self.draw is not None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Given) and self._key == other._key)

    def __reduce__(self) -> Any:
        return given, self._key

    def spec(self, size: Size | None) -> ImageSpec:
        """The image after it."""
        kind, dtype, normalized, channels = self.gives
        return ImageSpec(kind, dtype, normalized, channels, size)


_MOST_KNOWN = 1024
_givens: dict[tuple[Any, ...], Given] = {}


def given(*key) -> Given:
    """The Given of these arguments: that of before, as a rule."""
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
        state: of the image after it.
        steps: that do it on a batch; None where no kernel is known to do the same.
        same: the operation gives back the very image.
    """

    state: State
    steps: tuple[Step, ...] | None = None
    same: bool = False


class UnknownOperation(Exception):
    """Nothing is known of what an operation gives: the image has to be real."""


OPERATIONS: dict[str, Callable[..., Outcome]] = {}
_OFTEN_ALIKE = frozenset(("convert_image_dtype", "hflip", "horizontal_flip", "normalize", "pil_to_tensor", "to_dtype"))
_OFTEN_ALIKE |= {"to_image", "to_mask", "to_tensor", "vertical_flip", "vflip"}  # their arguments, in all samples


def operation(*names: str) -> Callable[[Function], Function]:
    """Registers what a function of torchvision's gives, under its names in v1 and v2. It is called as that is, but for
    the image: with a State, and "pil", "v1" or "v2", whose arithmetic torchvision uses."""

    def registered(function: Function) -> Function:
        for name in names:
            OPERATIONS[name] = function
        return function

    return registered


def outcome_of(name: str, state: State, like: str, args, kwargs) -> Outcome | None:
    """Returns what a function of this name gives of an image, called with these further arguments; None where only the
    real image says so. ``like``: "v1" or "v2"."""
    if name not in _OFTEN_ALIKE:
        return _outcome_of(name, state, like, args, kwargs)
    try:
        fixed = tuple([_fixed(one) for one in args]), tuple([(key, _fixed(one)) for key, one in kwargs.items()])
    except TypeError:
        return _outcome_of(name, state, like, args, kwargs)
    return _remembered(name, state, like, torch.get_default_dtype(), *fixed)


def _fixed(value) -> Any:
    """An argument by its value. Raises TypeError where that may change."""
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
    except Exception:  # torchvision's own function says what is wrong
        return None
    return made if len(made.state.shape) < 2 or min(made.state.size) > 0 else None


def step(op: str, state: State, numbers=(), layout=(), off: str = NEVER, **args) -> Step:
    """A step that gives an image of this state."""
    gives = state.kind, state.dtype, state.normalized, state.channels if len(state.shape) > 2 else 1
    return given(op, tuple(args.items()), gives, tuple(layout), off, None), tuple(map(float, numbers))


def flagged(op: str, state: State, numbers=(), layout=(), **args) -> tuple[Step, ...]:
    """A step that other images may do without."""
    return (step(op, state, (1, *numbers), (("flag", (), "int32"), *layout), FLAG, **args),)


def is_plain(state: State) -> bool:
    """Returns whether kernels take such an image: of three dimensions, and one channel or three."""
    return len(state.shape) == 3 and state.channels in (1, 3) and state.kind != "Mask"
