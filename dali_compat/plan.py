"""Frozen dataclasses that describe a translated transform to the engines.

A :class:`Step` is one operation on one image, with its constant arguments and the function in ops/ that draws its
per-sample arguments. The step's :class:`Operation` defines how engines can run the step. A :class:`Plan` holds the
steps in torchvision's order, and the steps that DALI and torch run on batches instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

Arguments = tuple[tuple[str, Any], ...]

# values of Line.where
ON_DALI, ON_HOST, ON_BATCH, ON_EACH_IMAGE = "DALI", "the host", "torch, on the batch", "torch, image by image"
NOWHERE = "-"


@dataclass(frozen=True)
class ImageSpec:
    """Properties of an image between two of torchvision's transforms."""

    kind: str = "pil"  # or one of the CHW kinds "tensor" (plain), "Image" (tv_tensors.Image) and "array" (NumPy)
    dtype: torch.dtype = torch.uint8  # 0..255; floating point is 0..1 (0..255 after ToDtype(scale=False))
    normalized: bool = False  # True after Normalize
    channels: int = 3  # or 1
    size: tuple[int, int] | None = None  # (height, width) of every image of a batch; None if the sizes differ
    upright: bool = False  # for Plan.takes: whether the decoder rotates images by their EXIF orientation

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
    """A condition for a step in a container such as RandomChoice. The step is applied to the samples for
    which the container draws ``value``. In RandomOrder, entry ``rank`` of the drawn permutation has to be ``value``."""

    stream: int  # random stream of the "choose" step
    value: int  # number of the branch that contains the step
    rank: int = 0  # position in RandomOrder's permutation


UPRIGHT = "upright"  # Step.op of the decoder's rotation by EXIF orientation
EXACT = "exact"  # fidelity of torchvision's pixels


@dataclass(frozen=True, eq=False)
class Operation:
    """Properties of all steps with the same ``op``, defined in ops/<kind>.py. The defaults are those of an exact kernel
    in torch."""

    name: str
    kernel: Callable[..., Any] | None = None  # (images, arrays, **args), see ops/kernels.py
    # torchvision's function for one image, (image, row, **args); None to use the kernel
    image: Callable[..., Any] | None = None
    # returns the step that kernels run instead; the bool argument is True for decoded images
    lowered: Callable[[Step, Options, bool], Step] = lambda step, options, decoded: step
    # returns whether DALI can run a step whose input has this dtype, by a function in engine/dali/graph.py
    in_dali: Callable[[Step, torch.dtype, Options], bool] = lambda step, dtype, options: False
    for_dali: Callable[[Step], Step] = lambda step: step  # returns the step that DALI runs instead
    # returns the distance from torchvision as text; the bool arguments are "DALI runs it" and "resizes in two passes"
    fidelity: Callable[[Step, bool, Options, bool], str] = lambda step, by_dali, options, two_pass: EXACT
    unchanged: bool = False  # the result has the pixels of the input
    moves: bool = False  # a crop, pad or flip
    commutes: bool = False  # a pixel depends only on the same input pixel, so a ``moves`` step may run first
    converts: bool = False  # a value depends only on the same input value, so engines fuse it at the end
    takes_lists: bool = False  # the kernel also takes a list of images (C, H, W) of different sizes
    takes_frames: bool = False  # images may have a black frame; ``area`` is the number of pixels inside
    in_batches: bool = False  # on a CPU, the kernel gets batches even of large images, not single images in threads
    calls_user: bool = False  # the kernel is user code; the result must have the size in Step.gives
    keeps_info: bool = False  # Pillow's result has the ``info`` of the input


OPERATIONS: dict[str, Operation] = {}
"""Operations by name. Filled by importing dali_compat.ops."""


@dataclass(frozen=True)
class Step:
    """One operation of a translated transform."""

    op: str  # name of the operation; "choose" only draws numbers for the gates of other steps
    gives: ImageSpec  # the image after the step
    args: Arguments = ()  # constant keyword arguments of the kernel
    draw: Draw | None = None  # draws the kernel's per-sample arguments
    shares: bool = False  # whether the step draws from the random stream of the previous one
    stream: int = 0  # number of its random stream, set by translate()
    when: tuple[Gate, ...] = ()  # conditions that must all hold, set by translate()

    @cached_property
    def kwargs(self) -> dict[str, Any]:
        return dict(self.args)

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.op]

    def but(self, **changes) -> Step:
        return replace(self, **changes)


def step(op: str, gives: ImageSpec, draw: Draw | None = None, shares: bool = False, **args) -> Step:
    """Return a Step. ``args`` are its kernel's constant arguments."""
    return Step(op, gives, tuple(args.items()), draw, shares)


@dataclass(frozen=True)
class Line:
    """A line of explain(), for one transform."""

    transform: str
    becomes: str
    where: str
    fidelity: str


@dataclass(frozen=True, eq=False)  # a loader keeps only one of several equal plans
class Plan:
    """A translated transform. If the transform returns several views, ``views`` holds a plan for each, and the plan
    itself has no steps. Plans compare by identity."""

    steps: tuple[Step, ...]  # all steps in torchvision's order, for engine/pil.py
    dali: tuple[Step, ...]  # lowered steps that DALI runs
    batch: tuple[Step, ...]  # lowered steps after ``dali``, which torch runs on the batch
    exact: bool  # the loader's ``exact``
    channels_last: bool  # whether batches are in torch.channels_last
    takes: ImageSpec = ImageSpec()  # the input of the first step
    lines: tuple[Line, ...] = ()  # for explain(), one line per transform
    views: tuple[Plan, ...] = ()  # one plan per view, all of the same decoded image
    structure: Any = None  # of a sample with views: nested lists, tuples and dicts of indices of views
    # lowered steps for the planes from a GPU's JPEG engine; None if kernels cannot run them
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
        return self.steps[-1].gives if self.steps else self.takes

    @property
    def key(self) -> tuple:
        """A hashable key. Plans of equal content have equal keys."""
        own = self.takes, self.steps, self.exact, self.channels_last
        return *own, repr(self.structure), tuple(view.key for view in self.views)


@dataclass(frozen=True)
class Options:
    """Settings for running a plan's steps."""

    exact: bool = False  # the loader's ``exact``
    channels_last: bool = False  # whether batches are in torch.channels_last
    gpu: bool = False  # whether the steps will run on a GPU
    # returns whether the installed DALI supports a step (see engine/dali/graph.py)
    can: Callable[[Step], bool] = lambda step: True
