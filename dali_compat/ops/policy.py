"""Containers of transforms, torchvision's presets, AutoAugment, RandAugment and TrivialAugmentWide.

In the arrays of a step, ``which`` is an index into AUGMENTATIONS, and ``magnitude`` is the signed number that
torchvision passes to the operation. In v2, the threshold of Solarize is from 0 to 1, even for PIL images. The tables of
policies and magnitudes come from the installed torchvision.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, _presets, autoaugment, v2

from ..inspection.untranslatable import Untranslatable
from ..plan import Draw, Step, draw, step
from . import operations
from .arguments import fill_list, version_of
from .draws import draws, permutation, randint
from .kernels import define, image_kernel, kernel
from .matrices import affine, rotation
from .translators import Branch, Gated, Nested, register
from .warp import warp_arguments


@register(v1.AutoAugment, v2.AutoAugment, consumes="policy interpolation fill")
def translate_auto_augment(t, spec):
    args = {"policy": t.policy.value, "like": version_of(t)}
    first, second = (_augment(t, spec, draw("auto_augment", **args, at=at)) for at in (0, 1))
    return first, second.but(shares=True)


@register(v1.RandAugment, v2.RandAugment, consumes="num_ops magnitude num_magnitude_bins interpolation fill")
def translate_rand_augment(t, spec):
    args = {"magnitude": t.magnitude, "num_magnitude_bins": t.num_magnitude_bins, "like": version_of(t)}
    return [_augment(t, spec, draw("rand_augment", **args)) for _ in range(t.num_ops)]


@register(v1.TrivialAugmentWide, v2.TrivialAugmentWide, consumes="num_magnitude_bins interpolation fill")
def translate_trivial_augment_wide(t, spec):
    args = {"num_magnitude_bins": t.num_magnitude_bins, "like": version_of(t)}
    return (_augment(t, spec, draw("trivial_augment_wide", **args)),)


def _augment(t, spec, drawn: Draw) -> Step:
    return step("augment", spec, drawn, **warp_arguments(t, spec), version=version_of(t))


AUGMENTATIONS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"),
    *("Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"),
)
# (operation, axis of the image size that its magnitude depends on)
_TRANSLATIONS = ((AUGMENTATIONS.index("TranslateX"), 1), (AUGMENTATIONS.index("TranslateY"), 0))


@draws(uniforms=5)
def draw_auto_augment(sizes, u, *, policy, like, at):
    """Draw the first (``at`` 0) or second (``at`` 1) operation of the sub-policy that AutoAugment chooses.

    The steps of both operations read the same random numbers, so they choose the same sub-policy. If the operation is
    not applied to a sample, ``which`` is 0 (Identity) and ``flag`` is 0.
    """
    ops, chances, bins = _sub_policies(policy, like)
    row = randint(u[:, 0], 0, len(ops))
    which, applied = ops[row, at], u[:, 1 + at] <= chances[row, at]
    magnitude = _magnitudes(space_of("AutoAugment", like, 10), which, bins[row, at], u[:, 3 + at], sizes)
    return {
        "flag": applied.astype(np.int32),
        "which": np.where(applied, which, 0).astype(np.int32),
        "magnitude": np.where(applied, magnitude, 0.0),
    }, sizes


@draws(uniforms=2)
def draw_rand_augment(sizes, u, *, magnitude, num_magnitude_bins, like):
    """Draw one of the operations that RandAugment applies in sequence."""
    return one_operation(space_of("RandAugment", like, num_magnitude_bins), u[:, 0], magnitude, u[:, 1], sizes), sizes


@draws(uniforms=3)
def draw_trivial_augment_wide(sizes, u, *, num_magnitude_bins, like):
    bins = randint(u[:, 2], 0, num_magnitude_bins)
    return one_operation(space_of("TrivialAugmentWide", like, num_magnitude_bins), u[:, 0], bins, u[:, 1], sizes), sizes


# ---- torchvision's tables


class _Space(NamedTuple):
    key: tuple  # the arguments of space_of()
    ops: np.ndarray  # indices into AUGMENTATIONS of the operations to choose from
    signed: np.ndarray  # (15,) bool: whether the magnitude gets a random sign
    magnitudes: np.ndarray  # (15, bins); zeros for operations without a magnitude
    by_size: bool  # whether the magnitudes of TranslateX and TranslateY depend on the image size


def one_operation(space: _Space, u_op, bins, u_sign, sizes) -> dict[str, np.ndarray]:
    which = space.ops[randint(u_op, 0, len(space.ops))]
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
def space_of(*key) -> _Space:
    table = _installed_space(*key, extent=1)
    signed, rows = np.zeros(len(AUGMENTATIONS), bool), np.zeros((len(AUGMENTATIONS), key[2]))
    ops = np.array([AUGMENTATIONS.index(name) for name in table], np.int32)
    for op, (magnitudes, is_signed) in zip(ops, table.values(), strict=True):
        signed[op] = is_signed
        if magnitudes is not None:
            rows[op] = magnitudes.tolist()
    return _Space(key, ops, signed, rows, by_size=key[0] != "TrivialAugmentWide")


@functools.cache
def _translation(key: tuple, extent: int) -> list[float]:
    """Return the magnitudes of TranslateX for a width of ``extent`` pixels, or of TranslateY for such a height."""
    return _installed_space(*key, extent=extent)["TranslateX"][0].tolist()


def _installed_space(transform: str, like: str, bins: int, all_ops: bool = True, *, extent: int) -> dict:
    """Return torchvision's {operation: (magnitudes or None, signed)} for images of ``extent`` x ``extent``."""
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
    """Return the operations, probabilities and bins of a policy of AutoAugment. Each array has the shape (number of
    sub-policies, 2)."""
    made = {"v1": v1, "v2": v2}[like].AutoAugment()
    pairs = made._get_policies(v1.AutoAugmentPolicy(policy))
    ops = np.array([[AUGMENTATIONS.index(name) for name, _, _ in pair] for pair in pairs], np.int32)
    chances = np.array([[p for _, p, _ in pair] for pair in pairs], float)
    bins = np.array([[b or 0 for _, _, b in pair] for pair in pairs], np.int64)
    return ops, chances, bins


@kernel(in_batches=True)
def augment(images, arrays, *, interpolation, fill, like, version):
    """Apply an operation to each image as torchvision's policies do. ``which`` -1 means no operation.

    ``version`` is "v1" or "v2". In v2, the thresholds of Solarize are from 0 to 1.
    """
    which, magnitude = arrays["which"], arrays["magnitude"]
    chosen, numbers = _CODES[which], np.zeros((len(images), 6))
    numbers[:, 0] = magnitude + _OFFSETS[which]
    if version == "v2" and not images.is_floating_point():
        numbers[which == AUGMENTATIONS.index("Solarize"), 0] *= 255.0
    size = tuple(images.shape[-2:])
    for row in np.flatnonzero(chosen == operations.WARP).tolist():
        numbers[row] = _matrix(AUGMENTATIONS[which[row]], float(magnitude[row]), size, like, version)
    code = operations.interpolation_code(interpolation)
    return operations.run(images, chosen, numbers, like=like, interpolations=code, fill=fill)


# codes of operations and offsets of magnitudes, for each of AUGMENTATIONS; the last entry is for -1, no operation
_OTHER_NAMES = {"Color": "saturation"} | dict.fromkeys(
    ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"), "warp"
)
_CODES = np.array([operations.CODES[_OTHER_NAMES.get(name, name.lower())] for name in AUGMENTATIONS] + [0])
_OFFSETS = np.array([name in ("Brightness", "Color", "Contrast", "Sharpness") for name in AUGMENTATIONS] + [0], float)


@functools.lru_cache(4096)  # a policy has few magnitudes
def _matrix(name, magnitude, size, like, version) -> list[float]:
    """Return the matrix from output to input pixels, as in torchvision's affine and rotate."""
    if name == "Rotate":
        return rotation(magnitude, size, like=like)[1]
    degrees, shift = math.degrees(math.atan(magnitude)), int(magnitude)
    translate, shear, center = {
        "ShearX": ([0, 0], [degrees, 0.0], [0, 0]),
        "ShearY": ([0, 0], [0.0, degrees], [0, 0]),
        "TranslateX": ([shift, 0], [0.0, 0.0], None),
        "TranslateY": ([0, shift], [0.0, 0.0], None),
    }[name]
    return affine(0.0, translate, 1.0, shear, size, center, like, version)


# ---- one image

_V2 = v2.RandAugment()


@image_kernel("augment")
def augment_image(image, row, *, interpolation, fill, like, version):
    return augmented(image, AUGMENTATIONS[row["which"]], float(row["magnitude"]), interpolation, fill, version)


def augmented(image, name: str, magnitude: float, interpolation: str, fill, version: str):
    mode, fill = InterpolationMode(interpolation), fill_list(fill)
    if version == "v2":
        kinds: dict = {type(image): fill}
        return _V2._apply_image_or_video_transform(image, name, magnitude, interpolation=mode, fill=kinds)
    return autoaugment._apply_op(image, name, magnitude, interpolation=mode, fill=fill)


@register(v1.Compose, v2.Compose, consumes="transforms")
def translate_compose(t, spec):
    return Nested(tuple(t.transforms))


define("identity", unchanged=True, commutes=True, keeps_info=True)


@kernel(takes_lists=True, in_batches=True, keeps_info=True, image=lambda image, row: image)
def choose(images, arrays):
    """Return the images unchanged. This operation only serves to draw the branch of each sample."""
    return images


@register(v1.RandomApply, v2.RandomApply, consumes="transforms p")
def translate_random_apply(t, spec):
    return Gated(f"RandomApply(p={t.p})", draw("bernoulli", p=t.p), (Branch(1, tuple(t.transforms)),))


@register(v1.RandomChoice, v2.RandomChoice, consumes="transforms p")
def translate_random_choice(t, spec):
    weights = tuple(t.p) if t.p is not None else (1,) * len(t.transforms)
    branches = tuple(Branch(i, (inner,)) for i, inner in enumerate(t.transforms))
    return Gated(f"RandomChoice(p={t.p})", draw("choice", p=weights), branches, complete=True)


@register(v1.RandomOrder, v2.RandomOrder, consumes="transforms")
def translate_random_order(t, spec):
    count = len(t.transforms)
    if count > 8:
        raise Untranslatable(t, f"it shuffles {count} transforms, but at most 8 are supported")
    branches = tuple(Branch(i, (inner,), rank) for rank in range(count) for i, inner in enumerate(t.transforms))
    return Gated("RandomOrder", draw("order", n=count), branches, complete=True, in_order=True)


@register(nn.Sequential)
def translate_sequential(t, spec):
    return Nested(tuple(t))


@register(nn.Identity, v2.Identity)
def translate_identity(t, spec):
    return ()


@register(_presets.ImageClassification, consumes="crop_size resize_size mean std interpolation antialias")
def translate_image_classification(t, spec):
    """Translate the result of ``weights.transforms()`` to the transforms that it applies in forward()."""
    return Nested(
        (
            v1.Resize(t.resize_size, t.interpolation, antialias=t.antialias),
            v1.CenterCrop(t.crop_size),
            *((v1.PILToTensor(),) if spec.kind == "pil" else ()),
            v1.ConvertImageDtype(torch.float),
            v1.Normalize(t.mean, t.std),
        )
    )


@draws(uniforms=1)
def draw_choice(sizes, u, *, p):
    """Draw an index with probabilities proportional to ``p``."""
    until = np.cumsum(np.asarray(p, float))
    chosen = np.searchsorted(until, u[:, 0] * until[-1], side="right")
    return {"choice": np.minimum(chosen, len(p) - 1).astype(np.int32)}, sizes


@draws(uniforms=lambda n: n)
def draw_order(sizes, u, *, n):
    """Draw a random order of ``n`` transforms: for each position, the index of the transform."""
    return {"order": permutation(u)}, sizes
