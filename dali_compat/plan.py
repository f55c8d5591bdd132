"""The plan: plain frozen data between torchvision's transforms and the engines.

A :class:`Step` is one operation on one image: which kernel (``op``, a name that engine/dali/graph.py and
ops/ share), its constant arguments, and how its per-sample arguments come about (``draw``, a function of
ops/). A :class:`Plan` has the steps as torchvision would run them, and the same steps lowered onto DALI and onto
batched torch. Where a transform has no translation, the plan ends, and its :class:`Call` has that transform and all
that come after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

Arguments = tuple[tuple[str, Any], ...]

# where a step runs, as explain() says it
DALI, HOST, TORCH, EACH = "DALI", "the host", "torch, on the batch", "torch, image by image"


@dataclass(frozen=True)
class ImageSpec:
    """The kind of image that torchvision would hold between two transforms."""

    kind: str = "pil"  # or "tensor" (a plain one), "Image" (tv_tensors.Image), or "array" (NumPy's), all of these CHW
    dtype: torch.dtype = torch.uint8  # 0..255; floating point is 0..1 (0..255 after ToDtype(scale=False))
    normalized: bool = False  # Normalize has run
    channels: int = 3  # or 1
    size: tuple[int, int] | None = None  # (height, width) that every image of a batch has; None where they differ
    upright: bool = False  # of the image before a plan, it is turned as its EXIF says

    def but(self, **changes) -> ImageSpec:
        return replace(self, **changes)


@dataclass(frozen=True)
class Draw:
    """Per-sample arguments of a step: the function of ops/ and its constant arguments."""

    name: str
    args: Arguments = ()


def draw(name: str, **args) -> Draw:
    return Draw(name, tuple(args.items()))


class Gate(NamedTuple):
    """A condition of a step. The step is only for those samples for which the "choose" step of a container
    (RandomChoice, RandomOrder ...) has drawn ``value``. RandomOrder draws an order of all branches, and has each branch
    once for each place in it."""

    stream: int  # number of the random stream of that "choose" step
    value: int  # of the branch that this step is in
    rank: int = 0  # which of the values that are drawn for a sample


UPRIGHT = "upright"  # the op of a step that whoever decodes has done: images are turned as their EXIF says
CONVERSIONS = ("to_dtype", "normalize")  # steps at the end of a chain; each value becomes another one by itself


@dataclass(frozen=True)
class Step:
    """One operation."""

    op: str  # kernel name, the same in every engine. "choose" has no kernel: other steps' gates ask what it has drawn
    gives: ImageSpec  # the image after the step
    args: Arguments = ()  # constant keyword arguments of the kernel
    draw: Draw | None = None  # where the kernel's per-sample arguments come from
    shares: bool = False  # it draws from the random stream of the step before it
    stream: int = 0  # number of its random stream within the transform; translate() gives it, and it survives lowering
    when: tuple[Gate, ...] = ()  # gates, all of which have to be open; translate() gives them

    @cached_property
    def kwargs(self) -> dict[str, Any]:
        return dict(self.args)

    def but(self, **changes) -> Step:
        return replace(self, **changes)


def step(op: str, gives: ImageSpec, draw: Draw | None = None, shares: bool = False, **args) -> Step:
    """A Step; ``args`` are those of its kernel."""
    return Step(op, gives, tuple(args.items()), draw, shares)


@dataclass(frozen=True, eq=False)
class Call:
    """Transforms that run in Python, sample by sample, because they have no translation."""

    functions: tuple[Any, ...]  # called one after another with a PIL image or a CHW tensor, as torchvision would
    reasons: tuple[str, ...]  # why they are not translated
    rest: tuple[Any, ...] = ()  # the transforms after them
    stream: int = 0  # its random stream; those of the rest come after it
    view: int = 0  # of which of several views it is a part, from 1 on; 0 where there is one image
    names: tuple[str, ...] = ()  # of the classes and functions at fault
    plans: dict[ImageSpec, Plan] = field(default_factory=dict, repr=False)  # of the rest, by what the functions give

    @cached_property
    def remainder(self) -> Call:
        """The rest, called as it is: for what is no image."""
        return Call(self.rest, self.reasons, stream=self.stream + 1, view=self.view, names=self.names)

    def seed(self, epoch: int) -> tuple[int, ...]:
        """Returns the seed of its functions' generators in an epoch, to go before a sample's position: two calls draw
        different numbers for one sample."""
        return epoch, self.stream, self.view


@dataclass(frozen=True)
class Line:
    """A line of explain(): what became of one transform."""

    transform: str
    becomes: str
    where: str
    fidelity: str


@dataclass(frozen=True, eq=False)
class Plan:
    """A translated transform. Equal plans are one object within a loader, and compare by identity. Where a sample has
    several images, it has a plan for each of these ``views``, and no steps and no call of its own."""

    steps: tuple[Step, ...]  # as torchvision would run them, image by image (what engine/pil.py follows)
    dali: tuple[Step, ...]  # the part that runs in the DALI graph, lowered; it comes first
    batch: tuple[Step, ...]  # the part that runs as torch operations on the whole batch, after it
    exact: bool  # it was lowered for torchvision's pixels (exact=True), not for the fastest kernels
    channels_last: bool  # batches come in torch.channels_last
    takes: ImageSpec = ImageSpec()  # the image before the first step
    call: Call | None = None  # what comes after the steps and is not translated
    lines: tuple[Line, ...] = ()  # what explain() says of it, one line a transform
    views: tuple[Plan, ...] = ()  # they begin with the same decoded image
    structure: Any = None  # of a sample with views: lists, tuples and dicts of numbers of these
    planes: tuple[Step, ...] | None = None  # the first steps, if kernels do them on what a GPU's JPEG engine gives
    after: tuple[Step, ...] = ()  # the steps after these, for torch

    @property  # kept, it would be a circle
    def chains(self) -> tuple[Plan, ...]:
        """The plans of one image each: the views, or itself."""
        return self.views or (self,)

    @cached_property
    def from_planes(self) -> bool:
        """True if kernels can do it on what a GPU's JPEG engine gives."""
        return all(plan.planes is not None for plan in self.chains)

    @cached_property
    def calls(self) -> bool:
        """True if part of it is not translated."""
        return any(plan.call is not None for plan in self.chains)

    @cached_property
    def gives(self) -> ImageSpec:
        """The image after the steps (before the call)."""
        return self.steps[-1].gives if self.steps else self.takes

    @property
    def key(self) -> tuple:
        """A key that equal plans share."""
        functions = (*self.call.functions, None, *self.call.rest) if self.call else ()
        own = self.takes, self.steps, self.exact, self.channels_last, tuple(map(id, functions))
        return *own, repr(self.structure), tuple(view.key for view in self.views)


@dataclass(frozen=True)
class Options:
    """Options of lowering a chain. On a GPU two-pass resizing costs a training step 1.5% and evaluation nothing, so a
    chain without random steps has it there by default."""

    exact: bool = False  # torchvision's own resizing and conversions, instead of the fastest kernels
    channels_last: bool = False  # batches in torch.channels_last
    gpu: bool = False  # it will run there
    can: Callable[[Step], bool] = lambda step: True  # this DALI can do a step (engine/dali/graph.py tells)
