"""Random choices of AutoAugment, RandAugment, TrivialAugmentWide and AugMix.

``which`` counts in AUGMENTATIONS; ``magnitude`` is the number that torchvision hands to the operation of that name, its
sign included: to ``_apply_op`` (``like`` "v1") or ``_apply_image_or_video_transform`` ("v2"). The two differ: v2's
Solarize counts from 0 to 1, of PIL images too. The tables of policies and magnitudes are those of the installed
torchvision.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from .laws import gammas, shares, whole
from .registry import dictates, draws

AUGMENTATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
    "Invert",
)
_TRANSLATIONS = ((AUGMENTATIONS.index("TranslateX"), 1), (AUGMENTATIONS.index("TranslateY"), 0))  # and the size's axis


@draws(uniforms=5)
def auto_augment(sizes, u, *, policy, like, at):
    """AutoAugment.get_params and the first (``at`` 0) or second (1) operation of the sub-policy that it picks.

    Both steps take the same random stream. Rows that the operation is not for have "Identity" beside their flag of 0.
    """
    ops, chances, bins = _sub_policies(policy, like)
    row = whole(u[:, 0], 0, len(ops))
    which, applied = ops[row, at], u[:, 1 + at] <= chances[row, at]
    magnitude = _magnitudes(_space("AutoAugment", like, 10), which, bins[row, at], u[:, 3 + at], sizes)
    return {
        "flag": applied.astype(np.int32),
        "which": np.where(applied, which, 0).astype(np.int32),
        "magnitude": np.where(applied, magnitude, 0.0),
    }, sizes


@dictates(auto_augment)
def auto_augment_answers(row, step):
    return [_operation(row, step)] if row["flag"] else [("operation", None)]


@draws(uniforms=2)
def rand_augment(sizes, u, *, magnitude, num_magnitude_bins, like):
    """One of RandAugment's operations; each has a random stream of its own."""
    return _one(_space("RandAugment", like, num_magnitude_bins), u[:, 0], magnitude, u[:, 1], sizes), sizes


@dictates(rand_augment)
def rand_augment_answers(row, step):
    return [_operation(row, step)]


@draws(uniforms=3)
def trivial_augment_wide(sizes, u, *, num_magnitude_bins, like):
    """TrivialAugmentWide's operation."""
    bins = whole(u[:, 2], 0, num_magnitude_bins)
    return _one(_space("TrivialAugmentWide", like, num_magnitude_bins), u[:, 0], bins, u[:, 1], sizes), sizes


@dictates(trivial_augment_wide)
def trivial_augment_wide_answers(row, step):
    return [_operation(row, step)]


def _operation(row, step) -> tuple:
    return "operation", (step.kwargs["names"][row["which"]], float(row["magnitude"]))


def _aug_mix_uniforms(severity, mixture_width, chain_depth, alpha, all_ops, like) -> int:
    weights = 2 + mixture_width if alpha == 1 else 1
    return mixture_width * (1 + 3 * _deepest(chain_depth)) + weights


@draws(uniforms=_aug_mix_uniforms)
def aug_mix(sizes, u, *, severity, mixture_width, chain_depth, alpha, all_ops, like):
    """AugMix's chains and weights: ``which`` and ``magnitude`` are (N, mixture_width, depth), ``which`` -1 beyond the
    end of a chain; ``mix`` (N, 1 + mixture_width) has the weights of the image as it is and of each chain."""
    n, deepest = len(sizes), _deepest(chain_depth)
    coins, u = u[:, :mixture_width], u[:, mixture_width:]
    depth = whole(coins, 1, 4) if chain_depth <= 0 else np.full(coins.shape, chain_depth)
    count = mixture_width * deepest
    op, bins, sign = u[:, : 3 * count].reshape(n, 3, mixture_width, deepest).swapaxes(0, 1)
    # _PARAMETER_MAX is 10 bins
    drawn = _one(_space("AugMix", like, 10, all_ops), op, whole(bins, 0, severity), sign, sizes)
    ended = np.arange(deepest) >= depth[..., None]
    return {
        "which": np.where(ended, np.int32(-1), drawn["which"]),
        "magnitude": np.where(ended, 0.0, drawn["magnitude"]),
        "mix": _mix(u[:, 3 * count :], alpha, mixture_width),
    }, sizes


@dictates(aug_mix)
def aug_mix_answers(row, step):
    names, random_depth = step.kwargs["names"], dict(step.draw.args)["chain_depth"] <= 0
    # torchvision multiplies the chains' weights by the second of the first two, which ours contain already
    answers = [("dirichlet", [row["mix"][0], 1.0]), ("dirichlet", row["mix"][1:].tolist())]
    for which, magnitudes in zip(row["which"], row["magnitude"].tolist(), strict=True):
        chain = [
            ("operation", (names[op], magnitude)) for op, magnitude in zip(which, magnitudes, strict=True) if op >= 0
        ]
        answers += [*([("whole", len(chain))] if random_depth else []), *chain]
    return answers


def _deepest(chain_depth: int) -> int:
    return chain_depth if chain_depth > 0 else 3


def _mix(u, alpha, width) -> np.ndarray:
    """torch._sample_dirichlet of (image, mixture), and of the chains within the mixture."""
    gamma = gammas(u, alpha, 2 + width)
    image_or_not, chains = _shares(gamma[:, :2]), _shares(gamma[:, 2:])
    return np.concatenate([image_or_not[:, :1], chains * image_or_not[:, 1:]], 1)


def _shares(gamma) -> np.ndarray:
    """float32, and neither 0 nor 1, as torch has them."""
    least, most = np.finfo(np.float32).tiny, np.nextafter(np.float32(1), np.float32(0))
    return np.clip(shares(gamma).astype(np.float32), least, most)


# ---- torchvision's tables


class _Space(NamedTuple):
    """An augmentation space.

    Attributes:
        key: the arguments of _space() it was made with.
        ops: the operations to choose from.
        signed: of each of AUGMENTATIONS, whether its magnitude takes a random sign.
        magnitudes: of each of AUGMENTATIONS, in every bin; (15, bins). Zeros where it takes none.
        by_size: whether those of TranslateX and TranslateY depend on the image.
    """

    key: tuple
    ops: np.ndarray
    signed: np.ndarray
    magnitudes: np.ndarray
    by_size: bool


def _one(space: _Space, u_op, bins, u_sign, sizes) -> dict[str, np.ndarray]:
    which = space.ops[whole(u_op, 0, len(space.ops))]
    return {"which": which, "magnitude": _magnitudes(space, which, bins, u_sign, sizes)}


def _magnitudes(space: _Space, which, bins, u_sign, sizes) -> np.ndarray:
    bins = np.broadcast_to(bins, which.shape)
    magnitude = space.magnitudes[which, bins]
    for op, axis in _TRANSLATIONS if space.by_size else ():
        at = np.nonzero(which == op)
        extents = sizes[at[0], axis].tolist()
        magnitude[at] = [_translation(space.key, e)[b] for e, b in zip(extents, bins[at].tolist(), strict=True)]
    return np.where(space.signed[which] & (u_sign < 0.5), -magnitude, magnitude)


@functools.cache
def _space(*key) -> _Space:
    table = _asked(*key, extent=1)
    signed, rows = np.zeros(len(AUGMENTATIONS), bool), np.zeros((len(AUGMENTATIONS), key[2]))
    ops = np.array([AUGMENTATIONS.index(name) for name in table], np.int32)
    for op, (magnitudes, is_signed) in zip(ops, table.values(), strict=True):
        signed[op] = is_signed
        if magnitudes is not None:
            rows[op] = magnitudes.tolist()
    return _Space(key, ops, signed, rows, by_size=key[0] != "TrivialAugmentWide")


@functools.cache
def _translation(key: tuple, extent: int) -> list[float]:
    """The magnitudes of TranslateX in images so wide, and of TranslateY in images so high."""
    return _asked(*key, extent=extent)["TranslateX"][0].tolist()


def _asked(transform: str, like: str, bins: int, all_ops: bool = True, *, extent: int) -> dict:
    """{operation: (magnitudes or None, signed)} of the installed transform, for an image of ``extent`` x ``extent``."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if like == "v2":
        kind = getattr(v2, transform)
        space = kind._AUGMENTATION_SPACE if all_ops else kind._PARTIAL_AUGMENTATION_SPACE
        return {name: (of(bins, extent, extent), signed) for name, (of, signed) in space.items()}
    made = v1.AugMix(all_ops=all_ops) if transform == "AugMix" else getattr(v1, transform)()
    size = () if transform == "TrivialAugmentWide" else ((extent, extent),)
    space = made._augmentation_space(bins, *size)
    return {name: (m if m.ndim else None, signed) for name, (m, signed) in space.items()}


@functools.cache
def _sub_policies(policy: str, like: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operations, their chances and their bins, each (sub-policies, 2)."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    made = {"v1": v1, "v2": v2}[like].AutoAugment()
    pairs = made._get_policies(v1.AutoAugmentPolicy(policy))
    ops = np.array([[AUGMENTATIONS.index(name) for name, _, _ in pair] for pair in pairs], np.int32)
    chances = np.array([[p for _, p, _ in pair] for pair in pairs], float)
    bins = np.array([[b or 0 for _, _, b in pair] for pair in pairs], np.int64)
    return ops, chances, bins
