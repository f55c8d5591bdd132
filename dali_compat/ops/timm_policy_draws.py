"""Random choices of timm's RandAugment and AutoAugment.

``which`` counts in OPERATIONS, -1 is nothing; ``value`` is the number that timm hands to the function of that name, its
sign included; ``choice`` counts in the interpolations to choose from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .draws import draws, whole

OPERATIONS = (
    *("auto_contrast", "equalize", "invert", "posterize", "solarize", "solarize_add", "color", "contrast"),
    *("brightness", "sharpness", "desaturate", "gaussian_blur", "rotate", "shear_x", "shear_y"),
    *("translate_x_abs", "translate_y_abs", "translate_x_rel", "translate_y_rel"),
)
"""Functions of timm.data.auto_augment."""
WITHOUT_VALUE = {"auto_contrast", "equalize", "invert"}
NUMBERS = 6
"""How many uniform numbers an operation takes: whether it is applied, two for its magnitude, its sign, its
interpolation, a blur's radius."""


class Operation(NamedTuple):
    """The settings of timm's AugmentOp.

    Attributes:
        name: of LAWS.
        prob: how likely it is applied.
        magnitude, deviation: mean and standard deviation of its magnitude; infinite: from 0 up, all as likely.
        bound: the greatest magnitude.
        reach: how far magnitude 10 translates, in pixels or parts of the image; of others 0.
        choices: how many interpolations it chooses from.
    """

    name: str
    prob: float
    magnitude: float
    deviation: float
    bound: float
    reach: float
    choices: int


# ---- from magnitude to value


class Law(NamedTuple):
    """The law by which a magnitude becomes what timm's function is called with.

    Attributes:
        function: of timm; one of OPERATIONS, or gaussian_blur_rand.
        value: of (magnitude, negative, reach), arrays but for the reach; None where the function takes no value.
        signed: whether it takes a random sign.
    """

    function: str
    value: Callable[[np.ndarray, np.ndarray, float], np.ndarray] | None = None
    signed: bool = False


def _signed(value, negative):
    return np.where(negative, -value, value)


def _turned(most: float):
    return lambda level, negative, reach: _signed(level / 10.0 * most, negative)


def _translated(level, negative, reach):
    return _signed(level / 10.0 * reach, negative)


def _increasing(level, negative, reach):
    return np.maximum(0.1, 1.0 + _signed(level / 10.0 * 0.9, negative))


def _bits(level, *_):
    return np.trunc(level / 10.0 * 4)


def _threshold(level, *_):
    return np.minimum(256, np.trunc(level / 10.0 * 256))


def _between(low: float, high: float):
    return lambda level, *_: np.clip(low + (high - low) * (level / 10.0), low, high)


LAWS = {
    "AutoContrast": Law("auto_contrast"),
    "Equalize": Law("equalize"),
    "Invert": Law("invert"),
    "Rotate": Law("rotate", _turned(30.0), True),
    "Posterize": Law("posterize", _bits),
    "PosterizeIncreasing": Law("posterize", lambda *given: 4 - _bits(*given)),
    "PosterizeOriginal": Law("posterize", lambda *given: _bits(*given) + 4),
    "Solarize": Law("solarize", _threshold),
    "SolarizeIncreasing": Law("solarize", lambda *given: 256 - _threshold(*given)),
    "SolarizeAdd": Law("solarize_add", lambda level, *_: np.minimum(128, np.trunc(level / 10.0 * 110))),
    "Desaturate": Law("desaturate", _between(0.5, 1.0)),
    "GaussianBlur": Law("gaussian_blur", _between(0.1, 2.0)),
    "GaussianBlurRand": Law("gaussian_blur_rand", _between(0.0, 1.0)),
    "ShearX": Law("shear_x", _turned(0.3), True),
    "ShearY": Law("shear_y", _turned(0.3), True),
    "TranslateX": Law("translate_x_abs", _translated, True),
    "TranslateY": Law("translate_y_abs", _translated, True),
    "TranslateXRel": Law("translate_x_rel", _translated, True),
    "TranslateYRel": Law("translate_y_rel", _translated, True),
}
for _name in ("Color", "Contrast", "Brightness", "Sharpness"):
    LAWS[_name] = Law(_name.lower(), lambda level, *_: level / 10.0 * 1.8 + 0.1)
    LAWS[f"{_name}Increasing"] = Law(_name.lower(), _increasing, True)


def applied(ops: tuple[Operation, ...], chosen: np.ndarray, u: np.ndarray) -> dict[str, np.ndarray]:
    """AugmentOp.__call__ for ``chosen`` (N,) of the operations and ``u`` (N, NUMBERS): arrays (N,), ``which`` -1 where
    it is not applied."""
    prob, magnitude, deviation, bound, choices = (
        np.array([getattr(op, name) for op in ops])[chosen]
        for name in ("prob", "magnitude", "deviation", "bound", "choices")
    )
    noise = np.cos(u[..., 1] * (2 * math.pi)) * np.sqrt(-2.0 * np.log1p(-u[..., 2]))  # as random.gauss
    level = np.where(np.isinf(deviation), magnitude * u[..., 1], magnitude)
    spread = (deviation > 0) & np.isfinite(deviation)
    level = np.where(spread, magnitude + noise * np.where(spread, deviation, 0.0), level)
    level, negative = np.maximum(0.0, np.minimum(level, bound)), u[..., 3] > 0.5
    which, value = np.full(chosen.shape, -1, np.int32), np.zeros(chosen.shape)
    flag = (prob >= 1) | (u[..., 0] <= prob)
    for name, reach in dict.fromkeys((op.name, op.reach) for op in ops):
        law, alike = LAWS[name], np.array([(op.name, op.reach) == (name, reach) for op in ops])
        rows = np.nonzero(flag & alike[chosen])
        if not len(rows[0]):
            continue
        function = law.function
        if law.value is not None:
            value[rows] = law.value(level[rows], negative[rows], reach)
        if function == "gaussian_blur_rand":  # random.uniform(0.1, 2 * factor)
            function, value[rows] = "gaussian_blur", 0.1 + (2.0 * value[rows] - 0.1) * u[..., 5][rows]
        which[rows] = OPERATIONS.index(function)
    return {"which": which, "value": value, "choice": np.floor(u[..., 4] * choices).astype(np.int32)}


def _one(ops, chosen, u) -> dict[str, np.ndarray]:
    """Returns the arguments of a step that does one of them, with a flag."""
    arrays = applied(ops, chosen, u)
    return {"flag": (arrays["which"] >= 0).astype(np.int32), **arrays}


# ---- policies


@draws(uniforms=lambda ops, layers, weights, at: layers * (1 + NUMBERS))
def draw_timm_rand_augment(sizes, u, *, ops, layers, weights, at):
    """The operation number ``at`` of RandAugment's. With weights none comes twice."""
    numbers = u[:, layers + NUMBERS * at :][:, :NUMBERS]
    if weights is None:
        return _one(ops, whole(u[:, at], 0, len(ops)), numbers), sizes
    left = np.tile(np.array(weights), (len(sizes), 1))
    for layer in range(at + 1):
        until = np.cumsum(left, 1)
        chosen = (until / until[:, -1:] <= u[:, [layer]]).sum(1)
        left[np.arange(len(sizes)), chosen] = 0
    return _one(ops, chosen, numbers), sizes


@draws(uniforms=lambda policy, at: 1 + NUMBERS * max(map(len, policy)))
def draw_timm_auto_augment(sizes, u, *, policy, at):
    """The operation number ``at`` of the sub-policy that AutoAugment picks, if it has so many."""
    row = whole(u[:, 0], 0, len(policy))
    reaching = [number for number, ops in enumerate(policy) if len(ops) > at]
    place = np.full(len(policy), -1)
    place[reaching] = np.arange(len(reaching))
    arrays = _one(tuple(policy[number][at] for number in reaching), place[row], u[:, 1 + NUMBERS * at :][:, :NUMBERS])
    has = place[row] >= 0
    return arrays | {"flag": arrays["flag"] * has, "which": np.where(has, arrays["which"], -1)}, sizes
