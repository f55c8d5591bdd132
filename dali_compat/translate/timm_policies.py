"""timm's RandAugment, AutoAugment and AugMixAugment."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from PIL import Image

from ..draws import own_generators
from ..draws.timm_policies import LAWS, NUMBERS, OPERATIONS, WITHOUT_VALUE, Operation, applied
from ..plan import ImageSpec, draw, step
from .fidelity import EXACT
from .registry import Untranslatable, register

timm: Any = import_module("timm.data.auto_augment")

_ATTRIBUTES = {"name", "aug_fn", "level_fn", "prob", "magnitude", "hparams", "kwargs"}
_ATTRIBUTES |= {"magnitude_std", "magnitude_max"}
_INTERPOLATIONS = {getattr(Image, name.upper()): name for name in ("nearest", "bilinear", "bicubic")}
# what the methods that are done without being called refer to; others may do something else
_RAND_AUGMENT = {"np", "random", "choice", "ops", "num_layers", "choice_weights"}
_AUTO_AUGMENT = {"random", "choice", "policy"}
_AUGMIX = {
    "np",
    "float32",
    "random",
    "dirichlet",
    "alpha",
    "width",
    "beta",
    "blended",
    "_apply_blended",
    "_apply_basic",
}
_BASIC = {"np", "zeros_like", "float32", "depth", "random", "randint", "choice", "ops", "asarray", "clip", "Image"}
_BASIC |= {"fromarray", "astype", "uint8", "blend"}
_BLENDED = {"copy", "_calc_blended_weights", "depth", "np", "random", "randint", "choice", "ops", "Image", "blend"}
_WEIGHTS = {"np", "array", "append", "float32"}


@register(timm.RandAugment, consumes="ops num_layers choice_weights")
def rand_augment(t, spec):
    _refuse_other_code(t, __call__=_RAND_AUGMENT)
    ops, how = _operations(t, spec, t.ops)
    layers, weights = t.num_layers, t.choice_weights
    if weights is not None:
        weights = tuple(float(weight) for weight in weights)
        if len(weights) != len(ops) or min(weights) < 0 or sum(weight > 0 for weight in weights) < layers:
            raise Untranslatable(t, f"choice_weights do not go with {layers} of {len(ops)} operations")
    args = {"ops": ops, "layers": layers, "weights": weights}
    return _steps(spec, how, [draw("timm_rand_augment", **args, at=at) for at in range(layers)])


@register(timm.AutoAugment, consumes="policy")
def auto_augment(t, spec):
    _refuse_other_code(t, __call__=_AUTO_AUGMENT)
    flat, how = _operations(t, spec, [op for ops in t.policy for op in ops])
    described = iter(flat)
    policy = tuple(tuple(next(described) for _ in ops) for ops in t.policy)
    return _steps(spec, how, [draw("timm_auto_augment", policy=policy, at=at) for at in range(max(map(len, policy)))])


@register(timm.AugMixAugment, consumes="ops alpha width depth blended")
def augmix(t, spec):
    _refuse_other_code(
        t, __call__=_AUGMIX, _apply_basic=_BASIC, _apply_blended=_BLENDED, _calc_blended_weights=_WEIGHTS
    )
    ops, how = _operations(t, spec, t.ops)
    if t.width < 1 or not t.alpha > 0:
        raise Untranslatable(t, f"width={t.width}, alpha={t.alpha}")
    blended = bool(t.blended)
    chains = draw("timm_augmix", ops=ops, alpha=float(t.alpha), width=t.width, depth=t.depth, blended=blended)
    return (step("timm_augmix", spec, chains, **how, blended=blended, fidelity=EXACT),)


def _steps(spec, how, drawn) -> list:
    """One operation after another, of one random stream."""
    return [step("timm_augment", spec, one, at > 0, **how, fidelity=EXACT) for at, one in enumerate(drawn)]


def _operations(t, spec: ImageSpec, ops: Sequence[Any]) -> tuple[tuple[Operation, ...], dict[str, Any]]:
    """What they are made of, and the interpolations and the fill that they share.

    Raises:
        Untranslatable: one is not as this package knows timm's, or they do not share these.
    """
    if spec.kind != "pil":
        raise Untranslatable(t, "it takes PIL images, and gets a tensor here", "put it before the conversion")
    if not len(ops):
        raise Untranslatable(t, "it has no operations")
    for op in ops:
        if type(op) is not timm.AugmentOp or not vars(op).keys() <= _ATTRIBUTES:
            raise Untranslatable(t, f"{type(op).__name__} is not the AugmentOp that is known")
    shared = {(_interpolations(t, op), _fill(t, op, spec)) for op in ops}
    if len(shared) > 1:
        raise Untranslatable(t, "its operations have several interpolations or fill colors")
    interpolations, fill = shared.pop()
    with own_generators(0, 0):
        described = tuple(_described(t, op, len(interpolations)) for op in ops)
    return described, {"interpolations": interpolations, "fill": fill}


def _interpolations(t, op) -> tuple[str, ...]:
    given = op.kwargs["resample"]
    modes = given if isinstance(given, (list, tuple)) else (given,)
    if not modes or any(mode not in _INTERPOLATIONS for mode in modes):
        raise Untranslatable(t, f"Pillow does not warp by resample={given}")
    return tuple(_INTERPOLATIONS[mode] for mode in modes)


def _fill(t, op, spec: ImageSpec) -> tuple[int, ...]:
    fill = op.kwargs["fillcolor"]
    whole = isinstance(fill, (tuple, list)) and all(type(value) is int and 0 <= value <= 255 for value in fill)
    if not whole or len(fill) != spec.channels:
        raise Untranslatable(t, f"img_mean={fill} for an image of {spec.channels} channels")
    return tuple(fill)


def _described(t, op, choices: int) -> Operation:
    """
    Raises:
        Untranslatable: it does something else than what is known.
    """
    law = LAWS.get(op.name)
    if law is None or op.aug_fn is not getattr(timm, law.function, None):
        raise Untranslatable(t, f"{op.name} is not known to this version of dali_compat")
    bound: Any = getattr(op, "magnitude_max", None) or getattr(timm, "_LEVEL_DENOM", 10.0)
    reach = 0.0
    if law.function.startswith("translate"):
        relative = law.function.endswith("rel")
        reach = float(op.hparams.get("translate_pct", 0.45) if relative else op.hparams["translate_const"])
    spread = float(op.magnitude_std)
    described = Operation(op.name, float(op.prob), float(op.magnitude), spread, float(bound), reach, choices)
    surely = described._replace(prob=1.0)
    if not all(_does_the_same(op, one, seed) for one in (described, surely) for seed in range(4)):
        raise Untranslatable(t, f"{op.name} of this timm is not the one that dali_compat knows")
    return described


def _does_the_same(op, described: Operation, seed: int) -> bool:
    """Whether timm's own code, on numbers of Python's random, calls its function as our draw says."""
    random.seed(seed)
    ahead = random.Random(seed)
    probe, called = copy.copy(op), []
    probe.prob = described.prob
    probe.aug_fn = lambda image, *args, **kwargs: called.append((args, kwargs))
    probe(None)
    law, u = LAWS[op.name], np.zeros(NUMBERS)
    if described.prob < 1:
        u[0] = ahead.random()
    if not called:
        return described.prob < 1 and u[0] > described.prob
    magnitude = [1] if np.isinf(described.deviation) else [1, 2] if described.deviation > 0 else []
    for at in (*magnitude, *([3] if law.signed else [])):
        u[at] = ahead.random()
    (args, kwargs), function = called[0], law.function
    if kwargs != op.kwargs or len(args) != (function not in WITHOUT_VALUE):
        return False
    if function == "gaussian_blur_rand":
        u[5], function = ahead.random(), "gaussian_blur"
        args = (op.aug_fn(_Blurred(), *args),)
    drawn = applied((described,), np.zeros(1, int), u[None])
    return drawn["which"][0] == OPERATIONS.index(function) and np.allclose(args, drawn["value"][: len(args)], 1e-9, 0)


class _Blurred:
    """In place of an image: says by which radius it is blurred."""

    def filter(self, blur):
        return blur.radius


def _refuse_other_code(t, **known: set[str]) -> None:
    """
    Raises:
        Untranslatable: a method refers to more than is known.
    """
    for name, names in known.items():
        method = getattr(type(t), name, None)
        code = getattr(inspect.unwrap(method), "__code__", None) if method else None
        if code is None or not names.issuperset(code.co_names):
            raise Untranslatable(t, f"{name} of this timm's {type(t).__name__} is not the one that dali_compat knows")
