"""Translators of timm's RandAugment and AutoAugment."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from PIL import Image

from ..inspection.replaced import function_of
from ..inspection.untranslatable import Untranslatable
from ..plan import ImageSpec, draw, step
from ..randoms import own_generators
from .arguments import refuse_tensors
from .timm_operations import CONVERSIONS, OPERATIONS, UNIFORMS, WITHOUT_VALUE, Operation, applied
from .translators import register

timm: Any = import_module("timm.data.auto_augment")

_TRIES = 4
_LARGEST: Any = getattr(timm, "_LEVEL_DENOM", getattr(timm, "_MAX_LEVEL", 10.0))
_ATTRIBUTES = {"name", "aug_fn", "level_fn", "prob", "magnitude", "magnitude_std", "magnitude_max", "hparams", "kwargs"}
_INTERPOLATIONS = {getattr(Image, name.upper()): name for name in ("nearest", "bilinear", "bicubic")}


# Names used by the methods that are reimplemented here. A method that uses other names may behave differently.
_AUGMENT_OP = (
    "prob random magnitude magnitude_std float uniform gauss magnitude_max max min "
    "_LEVEL_DENOM _MAX_LEVEL level_fn hparams tuple aug_fn kwargs"
)
_RAND_AUGMENT = "np random choice ops num_layers choice_weights"
_AUTO_AUGMENT = "random choice policy"


@register(timm.RandAugment, consumes="ops num_layers choice_weights")
def translate_rand_augment(t, spec):
    _refuse_other_code(t, _RAND_AUGMENT)
    ops, how = _operations(t, spec, t.ops)
    layers, weights = t.num_layers, t.choice_weights
    if type(layers) is not int:
        raise Untranslatable(t, f"num_layers={layers} is not an integer")
    if weights is not None:
        weights = tuple(float(weight) for weight in weights)
        enough = len(weights) == len(ops) and sum(weight > 0 for weight in weights) >= layers
        if not enough or min(weights) < 0 or not abs(sum(weights) - 1) < 1e-8:
            raise Untranslatable(t, f"choice_weights do not fit num_layers={layers} and {len(ops)} operations")
    args = {"ops": ops, "layers": layers, "weights": weights}
    return _steps(spec, how, [draw("timm_rand_augment", **args, at=at) for at in range(layers)])


@register(timm.AutoAugment, consumes="policy")
def translate_auto_augment(t, spec):
    _refuse_other_code(t, _AUTO_AUGMENT)
    descriptions, how = _operations(t, spec, [op for ops in t.policy for op in ops])
    following = iter(descriptions)
    policy = tuple(tuple(next(following) for _ in ops) for ops in t.policy)
    return _steps(spec, how, [draw("timm_auto_augment", policy=policy, at=at) for at in range(max(map(len, policy)))])


def _steps(spec, how, drawn) -> list:
    """Return one step per draw. All steps share the random numbers of the first."""
    return [step("timm_augment", spec, one, at > 0, **how) for at, one in enumerate(drawn)]


def _operations(t, spec: ImageSpec, ops: Sequence[Any]) -> tuple[tuple[Operation, ...], dict[str, Any]]:
    """Return the settings of each operation, and the arguments that all operations share."""
    refuse_tensors(t, spec)
    if not len(ops):
        raise Untranslatable(t, "it has no operations")
    for op in ops:
        if type(op) is not timm.AugmentOp or not vars(op).keys() <= _ATTRIBUTES:
            raise Untranslatable(t, f"its operation {type(op).__name__} is not a supported AugmentOp of timm")
    _refuse_other_code(ops[0], _AUGMENT_OP)
    shared = {(_interpolations(t, op), _fill(t, op, spec)) for op in ops}
    if len(shared) > 1:
        raise Untranslatable(t, "its operations differ in interpolation or fill color")
    interpolations, fill = shared.pop()
    try:
        descriptions = tuple(_description(t, op, len(interpolations)) for op in ops)
        with own_generators(0, 0):
            _refuse_other_conversions(t, ops, descriptions)
    # timm raises the same error when the transform is called
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Untranslatable(t, f"an operation raises {type(error).__name__} when it is called") from None
    return descriptions, {"interpolations": interpolations, "fill": fill}


def _interpolations(t, op) -> tuple[str, ...]:
    given = op.kwargs["resample"]
    modes = given if isinstance(given, (list, tuple)) else (given,)
    if not modes or any(mode not in _INTERPOLATIONS for mode in modes):
        raise Untranslatable(t, f"Pillow cannot warp with resample={given}")
    return tuple(_INTERPOLATIONS[mode] for mode in modes)


def _fill(t, op, spec: ImageSpec) -> tuple[int, ...]:
    fill = op.kwargs["fillcolor"]
    whole = isinstance(fill, (tuple, list)) and all(type(value) is int and 0 <= value <= 255 for value in fill)
    if not whole or len(fill) != spec.channels:
        raise Untranslatable(t, f"img_mean={fill} does not fit an image with {spec.channels} channel(s)")
    return tuple(fill)


def _description(t, op, choices: int) -> Operation:
    name = _name(op)
    if name is None or not all(map(_is_timms, (op.aug_fn, op.level_fn))):
        called = getattr(op.aug_fn, "__name__", "an operation")
        raise Untranslatable(t, f"{getattr(op, 'name', called)} is not supported by this version of dali_compat")
    conversion, bound = CONVERSIONS[name], getattr(op, "magnitude_max", None) or _LARGEST
    reach = 0.0
    if conversion.function.startswith("translate"):
        relative = conversion.function.endswith("rel")
        reach = float(op.hparams.get("translate_pct", 0.45) if relative else op.hparams["translate_const"])
    spread = float(op.magnitude_std)
    return Operation(name, float(op.prob), float(op.magnitude), spread, float(bound), reach, choices)


def _name(op) -> str | None:
    """Return the key of an operation in CONVERSIONS, or None."""
    for name, conversion in CONVERSIONS.items():  # compared by function: older versions of timm store no name
        same = timm.NAME_TO_OP.get(name) is op.aug_fn and timm.LEVEL_TO_ARG.get(name) is op.level_fn
        if same and getattr(timm, conversion.function) is op.aug_fn:
            return name
    return None


def _is_timms(function) -> bool:
    """Return True if calling a function runs only timm's code."""
    return function is None or getattr(function, "func", function).__module__ == timm.__name__


def _refuse_other_conversions(t, ops, descriptions: tuple[Operation, ...]) -> None:
    """Raise Untranslatable if timm's own code and applied() compute different values from the same random numbers."""
    certain = tuple(one._replace(prob=1.0) for one in descriptions)
    kinds = descriptions + certain
    tries = [(at, *_recorded_call(op, kinds[at], seed)) for at, op in enumerate((*ops, *ops)) for seed in range(_TRIES)]
    chosen, u, functions, args = zip(*tries, strict=True)
    drawn = applied(kinds, np.array(chosen), np.array(u))
    for at, function, given, which, value in zip(chosen, functions, args, drawn["which"], drawn["value"], strict=True):
        same = which == (OPERATIONS.index(function) if function else -1)
        if not same or not all(abs(one - value) <= 1e-9 * abs(value) for one in given):
            raise Untranslatable(t, f"{kinds[at].name} of this version of timm is not supported")


def _recorded_call(op, described: Operation, seed: int) -> tuple[np.ndarray, str | None, tuple[float, ...]]:
    """Call an operation with a seed. Return (random numbers drawn, name of the called function, its arguments).

    The numbers are ordered as in a row of ``u`` in applied(). The name is None if the operation is not applied.
    """
    random.seed(seed)
    ahead = random.Random(seed)
    probe, called = copy.copy(op), []
    probe.prob = described.prob
    probe.aug_fn = lambda image, *args, **kwargs: called.append((args, kwargs))
    probe(None)
    conversion, u = CONVERSIONS[described.name], np.zeros(UNIFORMS)
    if described.prob < 1:
        u[0] = ahead.random()
    if not called:
        return u, None, ()
    magnitude = [1] if np.isinf(described.deviation) else [1, 2] if described.deviation > 0 else []
    for at in (*magnitude, *([3] if conversion.signed else [])):
        u[at] = ahead.random()
    (args, kwargs), function = called[0], conversion.function
    if kwargs != op.kwargs or len(args) != (function not in WITHOUT_VALUE):
        raise ValueError("called with other arguments")
    if function == "gaussian_blur_rand":
        u[5], function = ahead.random(), "gaussian_blur"
        args = (op.aug_fn(_Blurred(), *args),)
    return u, function, args


class _Blurred:
    """A stand-in for an image. Its filter() returns the radius of a blur."""

    def filter(self, blur):
        return blur.radius


def _refuse_other_code(t, names: str) -> None:
    """Raise Untranslatable if the object's __call__ is not timm's, or uses a name not in ``names``."""
    method = function_of(type(t).__call__)
    code = getattr(method, "__code__", None)
    if code is None or not _is_timms(method) or not set(code.co_names) <= set(names.split()):
        raise Untranslatable(t, f"{type(t).__name__}.__call__ of this version of timm is not supported")
