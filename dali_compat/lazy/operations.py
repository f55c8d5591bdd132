"""What is known of an image that is not made yet, and of each operation on it: what that gives, and its step.

An operation is a function of torchvision's, or a method of an image's. Here each is called as torchvision's is, with
the State of an image in its place, and gives an Outcome: torchvision's own arithmetic on sizes, without pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from ..plan import Draw, ImageSpec

Numbers = tuple[float, ...]
Size = tuple[int, int]
Function = TypeVar("Function", bound=Callable[..., Any])

FLAG, SIZED, NEVER = "flag", "sized", "never"  # how an image that a step is not for passes it


class State(NamedTuple):
    """What is known of an image.

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

    def sized(self, size: Any) -> State:
        """The same of another size."""
        return self._replace(shape=(*self.shape[:-2], *map(int, size)))


class Given(NamedTuple):
    """A step whose numbers are each image's own.

    Attributes:
        op: as Step's; args: of its kernel.
        gives: (kind, dtype, normalized, channels) after it.
        layout, sized: as draws/given.py has them.
        off: FLAG, SIZED or NEVER.
        draw: what draws its arguments of its numbers, in the place of a layout.
    """

    op: str
    args: tuple[tuple[str, Any], ...]
    gives: tuple[str, torch.dtype, bool, int]
    layout: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    off: str = NEVER
    draw: Draw | None = None

    @property
    def sized(self) -> bool:
        """Returns whether its numbers begin with the sizes before and after it."""
        return self.off == SIZED or self.op in ("rotate", "affine", "perspective") or self.draw is not None

    def spec(self, size: Size | None) -> ImageSpec:
        """The image after it."""
        kind, dtype, normalized, channels = self.gives
        return ImageSpec(kind, dtype, normalized, channels, size)


Step = tuple[Given, Numbers]


class Outcome(NamedTuple):
    """What an operation gives.

    Attributes:
        state: of the image after it.
        steps: that do it on a batch; None where no kernel is known to do the same.
        same: the operation gives back the very image.
    """

    state: State
    steps: tuple[Step, ...] | None = None
    same: bool = False


class Unknown(Exception):
    """Nothing is known of what an operation gives: the image has to be real."""


OPERATIONS: dict[str, Callable[..., Outcome]] = {}


def operation(*names: str) -> Callable[[Function], Function]:
    """Registers what a function of torchvision's gives, under its names in v1 and v2. It is called as that is, but for
    the image: with a State, and "pil", "v1" or "v2", whose arithmetic torchvision uses."""

    def registered(function: Function) -> Function:
        for name in names:
            OPERATIONS[name] = function
        return function

    return registered


def outcome_of(name: str, state: State, like: str, args: Any, kwargs: Any) -> Outcome | None:
    """Returns what a function of this name gives of an image, called with these further arguments; None where only the
    real image says so. ``like``: "v1" or "v2"."""
    known = OPERATIONS.get(name)
    if known is None:
        return None
    try:
        made: Outcome = known(state, "pil" if state.kind == "pil" else like, *args, **kwargs)
    except Exception:  # torchvision's own function says what is wrong
        return None
    size = made.state.size if len(made.state.shape) > 1 else (1, 1)
    return made if min(size) > 0 else None


def step(op: str, state: State, numbers: Any = (), layout: Any = (), off: str = NEVER, **args: Any) -> Step:
    """A step that gives an image of this state."""
    gives = state.kind, state.dtype, state.normalized, state.channels if len(state.shape) > 2 else 1
    return Given(op, tuple(args.items()), gives, tuple(layout), off), tuple(map(float, numbers))


def flagged(op: str, state: State, numbers: Any = (), layout: Any = (), **args: Any) -> tuple[Step, ...]:
    """A step that other images may do without."""
    return (step(op, state, (1, *numbers), (("flag", (), "int32"), *layout), FLAG, **args),)


def is_plain(state: State) -> bool:
    """Returns whether kernels take such an image: of three dimensions, and one channel or three."""
    return len(state.shape) == 3 and state.channels in (1, 3) and state.kind != "Mask"
