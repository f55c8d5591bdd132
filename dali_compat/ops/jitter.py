"""ColorJitter and its kin: changes of colour in an order of each image's own."""

from __future__ import annotations

import functools

import numpy as np
from torchvision import transforms as v1
from torchvision.transforms import v2

from ..plan import draw, step
from . import operations
from .arguments import like_of
from .color import permute_channels, permute_channels_image
from .draws import draws, permutation, real
from .kernels import image_kernel, kernel, kernel_of, on_image
from .pixels.lists import in_groups
from .pixels.values import in_parts
from .translators import register

_ADJUSTED = ("brightness", "contrast", "saturation", "hue")


@register(v1.ColorJitter, v2.ColorJitter, consumes="brightness contrast saturation hue")
def translate_color_jitter(t, spec):
    intervals = {name: getattr(t, name) and tuple(getattr(t, name)) for name in _ADJUSTED}
    return (step("color_jitter", spec, draw("color_jitter", **intervals), like=like_of(t, spec)),)


@register(v2.RandomPhotometricDistort, consumes="brightness contrast saturation hue p")
def translate_random_photometric_distort(t, spec):
    intervals = {name: tuple(getattr(t, name)) for name in _ADJUSTED}
    params = draw("photometric_distort", **intervals, p=t.p, channels=spec.channels)
    return (step("photometric_distort", spec, params, like=like_of(t, spec)),)


@draws(uniforms=8)
def draw_color_jitter(sizes, u, *, brightness, contrast, saturation, hue):
    """torchvision.transforms.ColorJitter.get_params; a range is (low, high), or None where that is left alone."""
    ranges = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    factors = {name: real(u[:, 4 + i], *r) for i, (name, r) in enumerate(ranges.items()) if r is not None}
    return {"order": permutation(u[:, :4]), **factors}, sizes


@draws(uniforms=lambda channels=3, **ranges: 10 + channels)
def draw_photometric_distort(sizes, u, *, brightness, contrast, saturation, hue, p, channels=3):
    """torchvision.transforms.v2.RandomPhotometricDistort.make_params: a coin for each factor and for the permutation,
    and one for whether contrast comes before saturation and hue or after them. Not applied: NaN, or -1 in ``order``."""
    ranges = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    applied = u[:, :4] < p
    factors = {
        name: np.where(applied[:, i], real(u[:, 4 + i], *r), np.nan) for i, (name, r) in enumerate(ranges.items())
    }
    before, any_contrast = u[:, 8] < 0.5, factors.pop("contrast")
    factors["contrast_before"] = np.where(before, any_contrast, np.nan)
    factors["contrast_after"] = np.where(before, np.nan, any_contrast)
    order = np.where(u[:, 9:10] < p, permutation(u[:, 10:]), np.int32(-1))
    return {**factors, "order": order}, sizes


_DISTORT = ("brightness", "contrast_before", "saturation", "hue", "contrast_after")


@kernel
@in_parts
def color_jitter(images, arrays, *, like):
    """torchvision.transforms.ColorJitter.forward. In the order -1 is a place without an adjustment."""
    if len(images) == 1 and not images.is_cuda:  # nothing goes together
        for number in arrays["order"][0][arrays["order"][0] >= 0].tolist():
            if (name := _ADJUSTED[number]) in arrays:
                images = kernel_of(name)(images, {"factor": arrays[name]}, like=like)
        return images
    codes = np.array([operations.CODES[name] if name in arrays else 0 for name in _ADJUSTED])
    factors = np.stack([arrays.get(name, np.ones(len(images))) for name in _ADJUSTED])
    for place in arrays["order"].T:
        chosen = np.where(place < 0, 0, codes[place])
        own = factors[place, np.arange(len(images))]
        images = operations.run(images, chosen, own, like=like, area=arrays.get("area"))
    return images


@kernel
@in_parts
def photometric_distort(images, arrays, *, like):
    """torchvision.transforms.v2.RandomPhotometricDistort.transform."""
    for name in _DISTORT:
        chosen = np.where(np.isnan(arrays[name]), 0, operations.CODES[name.split("_")[0]])
        images = operations.run(images, chosen, arrays[name], like=like, area=arrays.get("area"))
    rows = np.flatnonzero(arrays["order"][:, 0] >= 0)
    if not len(rows):
        return images
    return in_groups(images, [(rows, functools.partial(permute_channels, arrays={"order": arrays["order"][rows]}))])


# ---- one image


@image_kernel("color_jitter")
def color_jitter_image(image, row, *, like):
    for i in row["order"][row["order"] >= 0]:
        name = _ADJUSTED[i]
        if name in row:
            image = on_image(name, image, {"factor": row[name]}, like=like)
    return image


@image_kernel("photometric_distort")
def photometric_distort_image(image, row, *, like):
    for name in _DISTORT:
        if not np.isnan(row[name]):
            image = on_image(name.split("_")[0], image, {"factor": row[name]}, like=like)
    return image if row["order"][0] < 0 else permute_channels_image(image, row)
