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
    """The kind of image that torchvision would hold between two transforms.

    Attributes:
        kind: ``"pil"``, ``"tensor"`` (a plain CHW tensor), ``"Image"`` (``tv_tensors.Image``, CHW) or ``"array"`` (a
            NumPy array, CHW).
        dtype: of the pixels. uint8 is 0..255, floating point 0..1 (0..255 after ToDtype(scale=False)).
        normalized: whether Normalize has run.
        channels: 1 or 3.
        size: (height, width) in pixels where every image of a batch has it, else None (ragged).
        upright: of the image before a plan, it is turned as its EXIF says.
    """

    kind: str = "pil"
    dtype: torch.dtype = torch.uint8
    normalized: bool = False
    channels: int = 3
    size: tuple[int, int] | None = None
    upright: bool = False

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
    (RandomChoice, RandomOrder ...) has drawn ``value``.

    Attributes:
        stream: number of the random stream of that "choose" step.
        value: of the branch that this step is in.
        rank: which of the values that are drawn for a sample; 0 where one is drawn. RandomOrder draws an order of all
            branches, and has each branch once for each place in it.
    """

    stream: int
    value: int
    rank: int = 0


UPRIGHT = "upright"  # the op of a step that whoever decodes has done: images are turned as their EXIF says
CONVERSIONS = ("to_dtype", "normalize")  # steps at the end of a chain; each value becomes another one by itself


@dataclass(frozen=True)
class Step:
    """One operation.

    Attributes:
        op: kernel name, the same in every engine. "choose" has no kernel: other steps' gates ask what it has drawn.
        gives: the image after the step.
        args: constant keyword arguments of the kernel.
        draw: where the kernel's per-sample arguments come from, or None.
        shares: whether the step draws from the random stream of the step before it.
        stream: number of its random stream within the transform; translate() gives it, and it survives lowering.
        when: gates, all of which have to be open; translate() gives them.
    """

    op: str
    gives: ImageSpec
    args: Arguments = ()
    draw: Draw | None = None
    shares: bool = False
    stream: int = 0
    when: tuple[Gate, ...] = ()

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
    """Transforms that run in Python, sample by sample, because they have no translation.

    Attributes:
        functions: transforms, called one after another with a PIL image or a CHW tensor, as torchvision would.
        reasons: why they are not translated.
        rest: the transforms after them; they are translated when it is known what the functions have given.
        stream: its random stream; those of the rest come after it.
        view: of which of several views it is a part, from 1 on; 0 where there is one image.
        names: of the classes and functions at fault.
    """

    functions: tuple[Any, ...]
    reasons: tuple[str, ...]
    rest: tuple[Any, ...] = ()
    stream: int = 0
    view: int = 0
    names: tuple[str, ...] = ()
    plans: dict[ImageSpec, Plan] = field(default_factory=dict, repr=False)

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
    """A translated transform. Equal plans are one object within a loader, and compare by identity.

    Attributes:
        steps: as torchvision would run them, image by image (what engine/pil.py follows).
        dali: the part that runs in the DALI graph, lowered; it comes first.
        batch: the part that runs as torch operations on the whole batch, after it.
        planes: the first steps, which ``exact`` kernels do on what a GPU's JPEG engine gives; None where that is not
            for it.
        after: the steps after these, for torch.
        exact: whether it was lowered for torchvision's pixels (``exact=True``), or for the fastest kernels.
        channels_last: whether batches come in ``torch.channels_last``.
        takes: the image before the first step.
        call: what comes after the steps and is not translated, or None.
        lines: what explain() says of it, one line a transform.
        views: where a sample has several images, the plan of each of them, which begins with the same decoded image.
            This plan then has no steps and no call of its own.
        structure: of such a sample: lists, tuples and dicts of numbers of views.
    """

    steps: tuple[Step, ...]
    dali: tuple[Step, ...]
    batch: tuple[Step, ...]
    exact: bool
    channels_last: bool
    takes: ImageSpec = ImageSpec()
    call: Call | None = None
    lines: tuple[Line, ...] = ()
    views: tuple[Plan, ...] = ()
    structure: Any = None
    planes: tuple[Step, ...] | None = None
    after: tuple[Step, ...] = ()

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
    """Options of lowering a chain.

    Attributes:
        exact: torchvision's own resizing and conversions, instead of the fastest kernels.
        channels_last: batches in ``torch.channels_last``.
        gpu: whether it will run there. On a GPU two-pass resizing costs a training step 1.5% and evaluation nothing, so
            a chain without random steps has it by default.
        can: whether this DALI can do a step (engine/dali/graph.py tells).
    """

    exact: bool = False
    channels_last: bool = False
    gpu: bool = False
    can: Callable[[Step], bool] = lambda step: True
