"""torchvision's functions on stand-ins: what they give is made later. Those of v2 look their kernels up by the class of
an image, so stand-ins have kernels of their own there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as v2
from torchvision.transforms.v2.functional import _utils

from ..inspection.objects import root
from ..ops.draws import compute, uniforms_of
from ..ops.translators import LATER
from ..plan import ImageSpec
from ..translate import translate
from . import color, convert, geometry  # noqa: F401 - they register what is known of operations
from .deferred import Deferred
from .images import LazyImage, later_of
from .operations import NEVER, OPERATIONS, Outcome, State, given, is_plain, outcome_of
from .record import RecordedCall, kept
from .tensors import KINDS, lazy_tensor

_BY_VERSION = frozenset(("affine", "augment", "gaussian_blur"))  # whose arithmetic is not that of the image's class


def applied(owner: str, name: str, stand_in, args, kwargs) -> Any:
    """Returns what a function of torchvision's or PIL's gives of a stand-in, not made yet; None where it has to be.
    ``owner``, ``name``: as Call's."""
    later = later_of(stand_in)
    state = later.state
    if state is None or (owner == "v1" and state.kind in ("Image", "Mask")):  # of which it gives one or another class
        return None
    more = {**kwargs, "version": owner} if name in _BY_VERSION else kwargs
    outcome = outcome_of(name, state, owner, args, more)
    if outcome is not None and outcome.same:
        return stand_in
    return stand_in_for(later.then(RecordedCall(owner, name, kept(args), kept(kwargs)), outcome))


def stand_in_for(later: Deferred | None) -> Any:
    """A new stand-in."""
    if later is None:
        return None
    state = later.state
    made = LazyImage(later) if state is not None and state.kind == "pil" else lazy_tensor(later)
    return later.notes.made(made)


def registered(transform, stand_in) -> Any:
    """Returns what a transform gives that neither torch nor torchvision has, and that has a translation; None where it
    has to be called. Its random numbers are drawn here, from torch's generator."""
    later = later_of(stand_in)
    state = later.state
    if state is None or not is_plain(state) or (state.kind == "pil" and state.mode not in ("RGB", "L")):
        return None
    spec = ImageSpec(state.kind, state.dtype, state.normalized, state.channels)
    chain = translate((transform,), spec)
    steps = [step for entry in chain.translated for step in entry.steps]
    some = any(one.when or one.op == "choose" for one in steps)  # they are for some images alone
    others = root(transform) in LATER and any(one.draw for one in steps)  # which draw other numbers than timm does
    if chain.functions or chain.views or some or others:
        return None
    uniforms, counts = [uniforms_of(one.draw) if one.draw else 0 for one in steps], dict[int, int]()
    for one, count in zip(steps, uniforms, strict=True):
        counts[one.stream] = max(counts.get(one.stream, 0), count)
    numbers = {stream: torch.rand(count, dtype=torch.float64).numpy() for stream, count in counts.items()}
    made, size = [], state.size
    for one, count in zip(steps, uniforms, strict=True):
        computed = compute((one,), np.array([size]), lambda stream, k: numbers[stream][None, :k], [0])
        after = int(computed.sizes[0, 0]), int(computed.sizes[0, 1])
        gives = one.gives.kind, one.gives.dtype, one.gives.normalized, one.gives.channels
        drawn = numbers[one.stream][:count].tolist()
        args = tuple(pair for pair in one.args if pair[0] != "inside")
        try:
            kind = given(one.op, args, gives, (), NEVER, one.draw)
        except TypeError:  # an argument that cannot be hashed
            return None
        made.append((kind, () if one.draw is None else (*map(float, (*size, *after)), *drawn)))
        size = after
    if chain.gives.kind not in ("pil", *KINDS):
        return None
    shape = (chain.gives.channels, *size)
    mode = {1: "L", 3: "RGB"}[chain.gives.channels]
    given_state = State(chain.gives.kind, mode, shape, chain.gives.dtype, chain.gives.normalized)
    return stand_in_for(later.then(RecordedCall("called", "", (transform,)), Outcome(given_state, tuple(made))))


# ---- kernels of v2


def _kernel(function, name: str) -> Callable[..., Any]:
    def kernel(inpt, *args, **kwargs) -> Any:
        made = applied("v2", name, inpt, args, kwargs) if name in OPERATIONS else None
        return function(later_of(inpt).value(f"gives the image to {name}"), *args, **kwargs) if made is None else made

    return kernel


def _resized_crop(inpt, top, left, height, width, size, *args, **kwargs) -> Any:
    return v2.resize(v2.crop(inpt, top, left, height, width), size, *args, **kwargs)


def _answer(function, answer: Callable[[State], Any]) -> Callable[..., Any]:
    def kernel(inpt) -> Any:
        state = later_of(inpt).state
        return function(later_of(inpt).value("")) if state is None else answer(state)

    return kernel


def _channels(s: State) -> int:
    return s.channels if len(s.shape) > 2 else 1


ANSWERS: dict[str, Callable[[State], Any]] = {
    "get_dimensions": lambda s: [_channels(s), *s.size],
    "get_num_channels": _channels,
    "get_image_num_channels": _channels,
    "get_size": lambda s: [*s.size],
    "get_image_size": lambda s: [*s.size[::-1]],
}


def _register() -> None:
    for function, registry in _utils._KERNEL_REGISTRY.items():
        name = function.__name__
        if name in ANSWERS:
            made = _answer(function, ANSWERS[name])
        else:
            made = _resized_crop if name == "resized_crop" else _kernel(function, name)
        registry[LazyImage] = made
        for kind in KINDS.values():
            registry[kind] = made
        if tv_tensors.Mask not in registry:
            registry[KINDS["Mask"]] = lambda inpt, *args, **kwargs: inpt  # v2's transforms leave it as it is


_register()
