"""The known state of a deferred image, and the outcome of each operation on it.

An operation is a function of torchvision or PIL.ImageOps, or a method of an image. OUTCOMES maps its name to a function
that takes a State instead of an image, and returns the Outcome without computing pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torchvision.transforms import InterpolationMode

from ..ops.draws import width_of

Numbers = tuple[float, ...]
Size = tuple[int, int]
Function = TypeVar("Function", bound=Callable[..., Any])

CONSTANT = frozenset((int, float, bool, str, type(None), torch.dtype, InterpolationMode))  # immutable argument types
WITH_SIZES = frozenset(("crop", "pad", "resize", "warp_affine", "warp_perspective", "rotate", "affine", "perspective"))
"""Steps whose numbers begin with the image's size before and after the step."""
FLAG = "flag", (), "int32"  # name, shape and dtype

PixelFormat = tuple[str, torch.dtype, bool, int]
"""Fields ``kind``, ``dtype``, ``normalized`` and ``channels`` of an ImageSpec."""


class State(NamedTuple):
    """The known properties of a deferred image or tensor.

    Attributes:
        kind: "pil", "tensor", "Image" or "Mask".
        mode: PIL's mode; for a tensor, that of the image that it was converted from.
        shape: (channels, height, width), or the shape of a tensor.
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

    def with_size(self, size) -> State:
        return State(self.kind, self.mode, (*self.shape[:-2], *map(int, size)), self.dtype, self.normalized)


class StepKind:
    """A step without the numbers that differ between images, such as the position of a crop window.

    Attributes:
        op: as in plan.Step.
        args: constant arguments of the kernel.
        pixel_format: format of the image after the step.
        layout: (name, shape, dtype) of each array of numbers.
        has_flag: whether the step has a flag, which is 0 for images that skip it.
        has_sizes: whether the numbers begin with the image sizes before and after the step.
        number_count: how many numbers the step has for each image.
    """

    __slots__ = "_hash", "_key", "args", "has_flag", "has_sizes", "layout", "number_count", "op", "pixel_format"
    pixel_format: PixelFormat

    def __init__(self, *key):
        self._key, self._hash = key, hash(key)
        self.op, self.args, self.pixel_format, self.layout = key
        self.has_flag, self.has_sizes = self.layout[:1] == (FLAG,), self.op in WITH_SIZES
        self.number_count = width_of(self.layout, self.has_sizes) if self.layout else 0

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, StepKind) and self._key == other._key)

    def __reduce__(self) -> Any:
        return step_kind, self._key


_CACHE_SIZE = 1024


@lru_cache(_CACHE_SIZE)
def step_kind(*key) -> StepKind:
    """Return the cached StepKind of (op, args, pixel_format, layout)."""
    return StepKind(*key)


Step = tuple[StepKind, Numbers]


class Outcome(NamedTuple):
    """The result of an operation on a deferred image.

    Attributes:
        state: state of the image after the operation.
        steps: steps that compute the operation in a batch; None if no kernels can.
        is_same_object: whether the operation returns its argument.
    """

    state: State
    steps: tuple[Step, ...] | None = None
    is_same_object: bool = False


class UnknownOutcome(Exception):
    """Raised if the state after an operation is unknown. The pixels then have to be computed."""


COPIED, LOST, BY_ARGUMENTS = "copied", "lost", "by arguments"


class Traits(NamedTuple):
    """Properties of an operation that its function in OUTCOMES does not return.

    Attributes:
        info: origin of ``Image.info`` in the result: COPIED from the image, LOST, or determined BY_ARGUMENTS.
        is_contiguous: whether the resulting tensor is contiguous. Otherwise it has the strides of an elementwise
            operation's result.
        is_view: whether the result for a window within the tensor is a view of the tensor.
        is_cached: whether outcomes are cached, because calls often have equal arguments.
        keeps_strides: whether the result for a one-channel tensor has the tensor's strides. Otherwise, the
            strides are known only for a contiguous tensor.
        on_pil_images: whether the function is also replaced for PIL images. Otherwise, Pillow's replaced methods record
            its work.
        readonly_if_gray: whether ``Image.readonly`` is True in the result for a gray PIL image.
        takes_version: whether the outcome differs between v1 and v2.
    """

    info: str = COPIED
    is_contiguous: bool = False
    is_view: bool = False
    is_cached: bool = False
    keeps_strides: bool = False
    on_pil_images: bool = False
    readonly_if_gray: bool = False
    takes_version: bool = False


OUTCOMES: dict[str, Callable[..., Outcome]] = {}
TRAITS: dict[str, Traits] = {}


def operation(*names: str, **traits: Any) -> Callable[[Function], Function]:
    """Register the function that computes the outcome of an operation, under all names of the operation.

    The function takes the State, torchvision's backend ("pil", or "v1" or "v2" for tensors), and the operation's other
    arguments. ``traits`` are fields of Traits.
    """

    def register(function: Function) -> Function:
        OUTCOMES.update(dict.fromkeys(names, function))
        TRAITS.update(dict.fromkeys(names, Traits(**traits)))
        return function

    return register


def outcome_of(name: str, state: State, version: str, args, kwargs) -> Outcome | None:
    """Return the outcome of an operation; None if it is unknown. ``args`` and ``kwargs`` are the arguments after the
    image."""
    if not TRAITS[name].is_cached:
        return _outcome_of(name, state, version, args, kwargs)
    try:
        fixed = tuple([_hashable(one) for one in args]), tuple([(key, _hashable(one)) for key, one in kwargs.items()])
    except TypeError:
        return _outcome_of(name, state, version, args, kwargs)
    return _cached_outcome(name, state, version, torch.get_default_dtype(), *fixed)


def _hashable(value) -> Any:
    """Return an argument, with a list converted to a tuple. Raise TypeError if the argument may contain other mutable
    objects."""
    if type(value) in CONSTANT:
        return value
    if type(value) not in (list, tuple) or not CONSTANT.issuperset(map(type, value)):
        raise TypeError
    return tuple(value)


@lru_cache(_CACHE_SIZE)
def _cached_outcome(name: str, state: State, version: str, default_dtype: torch.dtype, args, kwargs) -> Outcome | None:
    return _outcome_of(name, state, version, args, dict(kwargs))


def _outcome_of(name: str, state: State, version: str, args, kwargs) -> Outcome | None:
    function = OUTCOMES.get(name)
    if function is None:
        return None
    try:
        result = function(state, "pil" if state.kind == "pil" else version, *args, **kwargs)
    except Exception:  # torchvision itself raises the error
        return None
    return result if len(result.state.shape) < 2 or min(result.state.size) > 0 else None


def step(op: str, state: State, numbers=(), layout=(), **args) -> Step:
    """Return a StepKind and its numbers. ``state`` is the state of the image after the step."""
    pixel_format = state.kind, state.dtype, state.normalized, state.channels if len(state.shape) > 2 else 1
    return step_kind(op, tuple(args.items()), pixel_format, tuple(layout)), tuple(map(float, numbers))


def flagged(op: str, state: State, numbers=(), layout=(), **args) -> tuple[Step, ...]:
    """Return a step with a flag, in a tuple. The flag is 1 for this image, and 0 for images of the batch that skip the
    step."""
    return (step(op, state, (1, *numbers), (FLAG, *layout), **args),)


def is_supported(state: State) -> bool:
    """Return True if the image is not a mask, and has three dimensions and one or three channels."""
    return len(state.shape) == 3 and state.channels in (1, 3) and state.kind != "Mask"
