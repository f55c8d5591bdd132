"""The plan: frozen data between torchvision's transforms and the engines.

A :class:`Step` is one operation on one image, with its constant arguments and the function in ops/ that draws its
per-sample arguments. Its :class:`Operation` defines how engines can run it. A :class:`Plan` holds the steps in
torchvision's order, and the steps that DALI and torch run instead on a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

Arguments = tuple[tuple[str, Any], ...]

# values of Line.where
DALI, HOST, TORCH, EACH = "DALI", "the host", "torch, on the batch", "torch, image by image"


@dataclass(frozen=True)
class ImageSpec:
    """Properties of the image between two transforms, as torchvision would return it."""

    kind: str = "pil"  # or "tensor" (plain), "Image" (tv_tensors.Image) or "array" (NumPy), all of them CHW
    dtype: torch.dtype = torch.uint8  # 0..255; floating point is 0..1 (0..255 after ToDtype(scale=False))
    normalized: bool = False  # True after Normalize
    channels: int = 3  # or 1
    size: tuple[int, int] | None = None  # (height, width) of every image of a batch; None if the sizes differ
    upright: bool = False  # whether the decoder rotates images by their EXIF orientation (only in Plan.takes)

    def but(self, **changes) -> ImageSpec:
        return replace(self, **changes)


@dataclass(frozen=True)
class Draw:
    """The function in ops/ that draws a step's per-sample arguments."""

    name: str
    args: Arguments = ()  # constant arguments of the draw function


def draw(name: str, **args) -> Draw:
    return Draw(name, tuple(args.items()))


class Gate(NamedTuple):
    """A condition of a step in a container such as RandomChoice. The container's "choose" step draws numbers of its
    branches for each sample. The step applies if number ``rank`` of them is ``value``."""

    stream: int  # random stream of the "choose" step
    value: int  # number of the branch that contains the step
    rank: int = 0  # position in the drawn permutation; 0 if one number is drawn


UPRIGHT = "upright"  # Step.op for rotation by the EXIF orientation, which the decoder performs
EXACT = "exact"  # fidelity of an operation that returns torchvision's pixels


@dataclass(frozen=True, eq=False)
class Operation:
    """Properties of all steps with the same ``op``, defined in ops/<kind>.py. The defaults are those of an exact kernel
    in torch."""

    name: str
    kernel: Callable[..., Any] | None = None  # (images, arrays, **args), see ops/kernels.py
    # torchvision's function for one image, (image, row, **args); None to use the kernel
    image: Callable[..., Any] | None = None
    # returns the step that kernels run instead; the last argument is True if the images are decoded already
    lowered: Callable[[Step, Options, bool], Step] = lambda step, options, decoded: step
    # returns whether DALI can run a step whose input has this dtype; engine/dali/graph.py has the function of that name
    in_dali: Callable[[Step, torch.dtype, Options], bool] = lambda step, dtype, options: False
    for_dali: Callable[[Step], Step] = lambda step: step  # returns the step that DALI runs instead
    # returns the distance from torchvision as text; the bool arguments: DALI runs the step, resizing takes two passes
    fidelity: Callable[[Step, bool, Options, bool], str] = lambda step, by_dali, options, two_pass: EXACT
    unchanged: bool = False  # the result has the pixels of the input
    moves: bool = False  # a crop, pad or flip
    commutes: bool = False  # computes each pixel from the same input pixel, so a ``moves`` step may run before it
    converts: bool = False  # computes each value from the same input value, so engines fuse it at the end of a chain
    takes_lists: bool = False  # the kernel also takes a list of images (C, H, W) of different sizes
    # images may have a black frame; a kernel that computes a mean gets the number of pixels inside as ``area``
    takes_frames: bool = False
    in_batches: bool = False  # on a CPU, the kernel gets whole batches even of large images, not single ones in threads
    calls_user: bool = False  # the kernel is the user's code; its images must have the size in Step.gives
    keeps_info: bool = False  # Pillow's result has the ``info`` of the input


OPERATIONS: dict[str, Operation] = {}
"""Operations by name. Filled by importing dali_compat.ops."""


@dataclass(frozen=True)
class Step:
    """One operation."""

    op: str  # name of the operation. "choose" only draws numbers, which the gates of other steps read
    gives: ImageSpec  # the image after the step
    args: Arguments = ()  # constant keyword arguments of the kernel
    draw: Draw | None = None  # source of the kernel's per-sample arguments
    shares: bool = False  # whether the step draws from the random stream of the previous one
    stream: int = 0  # number of its random stream, set by translate() and unchanged by lowering
    when: tuple[Gate, ...] = ()  # gates that must all be open, set by translate()

    @cached_property
    def kwargs(self) -> dict[str, Any]:
        return dict(self.args)

    @property
    def operation(self) -> Operation:
        """The operation. Raises LookupError if it is not registered."""
        return OPERATIONS[self.op]

    def but(self, **changes) -> Step:
        return replace(self, **changes)


def step(op: str, gives: ImageSpec, draw: Draw | None = None, shares: bool = False, **args) -> Step:
    """Return a Step. ``args`` are its kernel's constant arguments."""
    return Step(op, gives, tuple(args.items()), draw, shares)


@dataclass(frozen=True)
class Line:
    """A line of explain(), which describes the translation of one transform."""

    transform: str
    becomes: str
    where: str
    fidelity: str


@dataclass(frozen=True, eq=False)
class Plan:
    """A translated transform. Plans compare by identity; a loader holds no equal ones. If the transform returns several
    views, ``views`` holds a plan for each, and the plan itself has no steps."""

    steps: tuple[Step, ...]  # all steps, in torchvision's order; engine/pil.py runs them on one image
    dali: tuple[Step, ...]  # lowered steps that DALI runs
    batch: tuple[Step, ...]  # lowered steps after ``dali``, which torch runs on the whole batch
    exact: bool  # the loader's ``exact``
    channels_last: bool  # whether batches are in torch.channels_last
    takes: ImageSpec = ImageSpec()  # the input of the first step
    lines: tuple[Line, ...] = ()  # for explain(), one line per transform
    views: tuple[Plan, ...] = ()  # one plan per view, all of the same decoded image
    structure: Any = None  # structure of a sample with views: nested lists, tuples and dicts of view numbers
    # lowered steps that kernels run on the planes from a GPU's JPEG engine; None if no kernel can
    planes: tuple[Step, ...] | None = None
    after: tuple[Step, ...] = ()  # lowered steps after ``planes``, run by torch

    @property  # not cached: a cached self-reference would create a cycle
    def chains(self) -> tuple[Plan, ...]:
        """The plans of the views, or this plan if there are none."""
        return self.views or (self,)

    @cached_property
    def from_planes(self) -> bool:
        """True if kernels can run every chain on the output of a GPU's JPEG engine."""
        return all(plan.planes is not None for plan in self.chains)

    @cached_property
    def gives(self) -> ImageSpec:
        """The image after the steps."""
        return self.steps[-1].gives if self.steps else self.takes

    @property
    def key(self) -> tuple:
        """A key for finding an equal plan."""
        own = self.takes, self.steps, self.exact, self.channels_last
        return *own, repr(self.structure), tuple(view.key for view in self.views)


@dataclass(frozen=True)
class Options:
    """Options for lowering the steps of one image. A GPU resizes in two passes only without random steps, because that
    slows training steps by 1.5%, but not evaluation."""

    exact: bool = False  # the loader's ``exact``
    channels_last: bool = False  # whether batches are in torch.channels_last
    gpu: bool = False  # whether the steps will run on a GPU
    # returns whether the installed DALI supports a step (see engine/dali/graph.py)
    can: Callable[[Step], bool] = lambda step: True
