"""The plan: frozen data between torchvision's transforms and the engines.

A :class:`Step` is one operation on one image. It holds the name of its :class:`Operation` (``op``), its constant
arguments, and the source of its per-sample arguments (``draw``, a function of ops/). A :class:`Plan` holds the steps in
torchvision's order, and the same steps lowered onto DALI and onto batched torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

Arguments = tuple[tuple[str, Any], ...]

# where a step runs, as printed by explain()
DALI, HOST, TORCH, EACH = "DALI", "the host", "torch, on the batch", "torch, image by image"


@dataclass(frozen=True)
class ImageSpec:
    """Properties of the image that torchvision would hold between two transforms."""

    kind: str = "pil"  # or "tensor" (plain), "Image" (tv_tensors.Image) or "array" (NumPy), all of them CHW
    dtype: torch.dtype = torch.uint8  # 0..255; floating point is 0..1 (0..255 after ToDtype(scale=False))
    normalized: bool = False  # True after Normalize
    channels: int = 3  # or 1
    size: tuple[int, int] | None = None  # (height, width) of every image of a batch; None if the sizes differ
    upright: bool = False  # for the input of a plan: the image is rotated according to its EXIF orientation

    def but(self, **changes) -> ImageSpec:
        return replace(self, **changes)


@dataclass(frozen=True)
class Draw:
    """Source of a step's per-sample arguments: a function of ops/ and its constant arguments."""

    name: str
    args: Arguments = ()


def draw(name: str, **args) -> Draw:
    return Draw(name, tuple(args.items()))


class Gate(NamedTuple):
    """A condition of a step. The step applies only to samples whose container (RandomChoice, RandomOrder ...) has drawn
    ``value`` in its "choose" step. RandomOrder draws a permutation of its branches, and contains each branch once per
    position."""

    stream: int  # random stream of that "choose" step
    value: int  # number of the step's branch
    rank: int = 0  # which of the values drawn for a sample to compare


UPRIGHT = "upright"  # op of a step that the decoder has done: rotating images according to their EXIF orientation
EXACT = "exact"  # the fidelity of an operation that gives torchvision's pixels


@dataclass(frozen=True, eq=False)
class Operation:
    """The traits of all steps of one name. ops/<kind>.py defines them, next to the kernel. The defaults are those of an
    exact kernel in torch."""

    name: str
    kernel: Callable[..., Any] | None = None  # (images, arrays, **args), see ops/kernels.py
    image: Callable[..., Any] | None = None  # torchvision's own, (image, row, **args); None if it is the kernel
    # the step that kernels run in its place; True as the last argument if the images are decoded already
    lowered: Callable[[Step, Options, bool], Step] = lambda step, options, decoded: step
    # whether DALI can run a step whose input has this dtype; engine/dali/graph.py then has a function of that name
    in_dali: Callable[[Step, torch.dtype, Options], bool] = lambda step, dtype, options: False
    for_dali: Callable[[Step], Step] = lambda step: step  # the step as DALI runs it
    # distance from torchvision, verified by the parity tests. Arguments: does DALI run it, and resize in two passes
    fidelity: Callable[[Step, bool, Options, bool], str] = lambda step, by_dali, options, two_pass: EXACT
    unchanged: bool = False  # no engine changes the pixels
    moves: bool = False  # a crop, pad or flip
    commutes: bool = False  # such a step may run before this one, which computes each pixel from the same input pixel
    converts: bool = False  # the same for each value: engines fuse such steps at the end of a chain
    takes_lists: bool = False  # the kernel also takes a list of images (C, H, W) of different sizes
    # the kernel ignores a black frame; with ``area``, the number of pixels without it, if it computes a mean
    takes_frames: bool = False
    in_batches: bool = False  # on a CPU, large images do not pass through it one by one, in threads
    calls_user: bool = False  # the kernel is the user's code; the size of its result is that of Step.gives
    keeps_info: bool = False  # Pillow's result has the ``info`` of the input


OPERATIONS: dict[str, Operation] = {}
"""By name. Filled by importing dali_compat.ops."""


@dataclass(frozen=True)
class Step:
    """One operation."""

    op: str  # name of the operation. "choose" only draws a value, which other steps' gates read
    gives: ImageSpec  # the image after the step
    args: Arguments = ()  # constant keyword arguments of the kernel
    draw: Draw | None = None  # source of the kernel's per-sample arguments
    shares: bool = False  # True if it draws from the random stream of the previous step
    stream: int = 0  # its random stream within the transform, set by translate() and unchanged by lowering
    when: tuple[Gate, ...] = ()  # gates that must all be open, set by translate()

    @cached_property
    def kwargs(self) -> dict[str, Any]:
        return dict(self.args)

    @property
    def operation(self) -> Operation:
        """The traits of the operation. Raises LookupError if it is not registered."""
        return OPERATIONS[self.op]

    def but(self, **changes) -> Step:
        return replace(self, **changes)


def step(op: str, gives: ImageSpec, draw: Draw | None = None, shares: bool = False, **args) -> Step:
    """Return a Step; ``args`` are the arguments of its kernel."""
    return Step(op, gives, tuple(args.items()), draw, shares)


@dataclass(frozen=True)
class Line:
    """A line of explain(): the translation of one transform."""

    transform: str
    becomes: str
    where: str
    fidelity: str


@dataclass(frozen=True, eq=False)
class Plan:
    """A translated transform. Equal plans are the same object within a loader, so they compare by identity. If samples
    have several images, ``views`` holds a plan for each of them, and the plan itself has no steps."""

    steps: tuple[Step, ...]  # in torchvision's order, image by image (engine/pil.py runs these)
    dali: tuple[Step, ...]  # the first part, lowered, which runs in the DALI graph
    batch: tuple[Step, ...]  # the second part, which runs as torch operations on the whole batch
    exact: bool  # lowered for torchvision's pixels (exact=True) rather than for the fastest kernels
    channels_last: bool  # batches are in torch.channels_last
    takes: ImageSpec = ImageSpec()  # the input of the first step
    lines: tuple[Line, ...] = ()  # for explain(), one line per transform
    views: tuple[Plan, ...] = ()  # one plan per view, all of the same decoded image
    structure: Any = None  # of a sample with views: nested lists, tuples and dicts of view numbers
    # the leading steps, if kernels can run them on the output of a GPU's JPEG engine
    planes: tuple[Step, ...] | None = None
    after: tuple[Step, ...] = ()  # the steps after ``planes``, run by torch

    @property  # not cached: a cached self-reference would create a cycle
    def chains(self) -> tuple[Plan, ...]:
        """The plans of single images: the views, or the plan itself."""
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
        """A key that equal plans share."""
        own = self.takes, self.steps, self.exact, self.channels_last
        return *own, repr(self.structure), tuple(view.key for view in self.views)


@dataclass(frozen=True)
class Options:
    """Options for lowering a chain. On a GPU, two-pass resizing slows a training step by 1.5% and evaluation not at
    all, so by default only chains without random steps use it there."""

    exact: bool = False  # torchvision's own resizing and conversions, instead of the fastest kernels
    channels_last: bool = False  # batches in torch.channels_last
    gpu: bool = False  # the chain will run on a GPU
    # whether the installed DALI supports a step (see engine/dali/graph.py)
    can: Callable[[Step], bool] = lambda step: True
