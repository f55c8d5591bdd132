"""Several operations in an order of each sample's own: the samples whose turn it is for an operation go together."""

from __future__ import annotations

import math

import numpy as np
import torch

from ...draws.matrices import affine, rotation, rotation_of_tensors
from . import color, filters, geometry
from .hue import hue

_ADJUST = {"brightness": color.brightness, "contrast": color.contrast, "saturation": color.saturation, "hue": hue}


@color.in_parts
def color_jitter(images, arrays, *, like):
    """torchvision.transforms.ColorJitter.forward."""
    for place in arrays["order"].T:
        made = []
        for number, name in enumerate(_ADJUST):
            rows = np.flatnonzero(place == number)
            if name in arrays and len(rows):
                made.append((rows, _adjusted(name, images, arrays, name, rows, like)))
        images = _with(images, made)
    return images


@color.in_parts
def photometric_distort(images, arrays, *, like):
    """torchvision.transforms.v2.RandomPhotometricDistort.transform."""
    for name in ("brightness", "contrast_before", "saturation", "hue", "contrast_after"):
        rows = np.flatnonzero(~np.isnan(arrays[name]))
        if len(rows):
            images = _with(images, [(rows, _adjusted(name, images, arrays, name.split("_")[0], rows, like))])
    rows = np.flatnonzero(arrays["order"][:, 0] >= 0)
    if not len(rows):
        return images
    return _with(images, [(rows, color.permute_channels(_rows(images, rows), {"order": arrays["order"][rows]}))])


def _adjusted(factors, images, arrays, name, rows, like):
    given = {"factor": arrays[factors][rows]} | ({"area": arrays["area"][rows]} if "area" in arrays else {})
    return _ADJUST[name](_rows(images, rows), given, like=like)


def _rows(images, rows):
    if len(rows) == len(images):
        return images
    return images.index_select(0, torch.from_numpy(rows).to(images.device, non_blocking=True))


def _with(images, made):
    """``images`` with other rows in places; ``made`` is a list of (rows, images)."""
    if len(made) == 1 and len(made[0][0]) == len(images):
        return made[0][1]
    if made:
        images = images.clone()
    for rows, part in made:
        images.index_copy_(0, torch.from_numpy(rows).to(images.device, non_blocking=True), part)
    return images


# ---- AutoAugment and its kin

_WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def augment(images, arrays, *, names, interpolation, fill, like, version):
    """``_apply_op`` of torchvision.transforms.autoaugment, or v2's ``_apply_image_or_video_transform``.

    ``which`` counts in ``names``, and -1 is nothing. ``version`` says whose magnitudes they are: v2's
    Solarize counts from 0 to 1.
    """
    which, magnitude = arrays["which"], arrays["magnitude"]
    made = []
    for number, name in enumerate(names):
        rows = np.flatnonzero(which == number)
        if len(rows) and name not in ("Identity", *_WARPS):
            made.append((rows, _valued(name, _rows(images, rows), magnitude[rows], like, version)))
    rows = np.flatnonzero(np.isin(which, [number for number, name in enumerate(names) if name in _WARPS]))
    if len(rows):
        size = images.shape[-2:]
        matrices = [_matrix(names[which[row]], float(magnitude[row]), size, like, version) for row in rows]
        warp = {"matrix": np.array(matrices), "size": np.tile(np.array(size, np.int32), (len(rows), 1))}
        warped = geometry.warp_affine(_rows(images, rows), warp, interpolation=interpolation, fill=fill, like=like)
        made.append((rows, warped))
    return _with(images, made)


def _valued(name, images, magnitude, like, version):
    """An operation on values."""
    if name in _ENHANCERS:
        return _ENHANCERS[name](images, {"factor": 1.0 + magnitude}, like=like)
    if name == "Posterize":
        return color.posterize(images, {"bits": magnitude.astype(np.int32)}, like=like)
    if name == "Solarize":
        bound = 1 if version != "v2" or images.is_floating_point() else 255
        return color.solarize(images, {"threshold": magnitude * bound}, like=like)
    return _CONSTANT[name](images, {}, like=like)


_ENHANCERS = {
    "Brightness": color.brightness,
    "Color": color.saturation,
    "Contrast": color.contrast,
    "Sharpness": filters.sharpness,
}
_CONSTANT = {"AutoContrast": color.autocontrast, "Equalize": color.equalize, "Invert": color.invert}


def _matrix(name, magnitude, size, like, version) -> list[float]:
    """From output to input, as torchvision's affine and rotate have it."""
    if name == "Rotate" and like == "pil":
        return rotation(magnitude, size, size)
    if name == "Rotate":
        return rotation_of_tensors(magnitude, size, size, like=like)
    degrees, shift = math.degrees(math.atan(magnitude)), int(magnitude)
    translate, shear, center = {
        "ShearX": ([0, 0], [degrees, 0.0], [0, 0]),
        "ShearY": ([0, 0], [0.0, degrees], [0, 0]),
        "TranslateX": ([shift, 0], [0.0, 0.0], None),
        "TranslateY": ([0, shift], [0.0, 0.0], None),
    }[name]
    return affine(0.0, translate, 1.0, shear, size, center, like, version)


def augmix(images, arrays, *, names, interpolation, fill, like):
    """AugMix.forward: chains of operations, mixed with the image in float32. torchvision turns PIL images into tensors
    for it, so ``like`` is "v1" or "v2"."""
    which, magnitude = arrays["which"], arrays["magnitude"]
    n, width, depth = which.shape
    chains = images.repeat(width, 1, 1, 1)  # all first chains, all second ones, ...
    for place in range(depth):
        rows = {"which": which[:, :, place].T.reshape(-1), "magnitude": magnitude[:, :, place].T.reshape(-1)}
        chains = augment(chains, rows, names=names, interpolation=interpolation, fill=fill, like=like, version=like)
    weights = torch.from_numpy(arrays["mix"].T.copy()).to(images.device, non_blocking=True).view(1 + width, n, 1, 1, 1)
    mixed = images * weights[0]
    for weight, chain in zip(weights[1:], chains.split(n)):
        mixed.add_(chain * weight)
    return mixed.to(images.dtype)
