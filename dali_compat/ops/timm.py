"""timm's conversions, resizes and crops, and its RandomErasing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch

from ..inspection.untranslatable import Untranslatable
from ..plan import Draw, ImageSpec, Step, draw, step
from . import timm_policies  # noqa: F401  # registers its translators
from .arguments import interpolation_named, refuse_pil, refuse_tensors
from .convert import translate_pil_to_tensor, translate_to_tensor
from .draws import draws, integer_key, randint, run, uniforms_of
from .kernels import kernel
from .noise import erased, within
from .pixels.lists import assign, stack_if_uniform
from .pixels.squares import normals
from .resize import as_integer_resize, resize_each, resize_fidelity, resize_image, resize_to, size_arrays
from .translators import register

timm: Any = import_module("timm.data.transforms")
random_erasing: Any = import_module("timm.data.random_erasing")


# getattr() is used for classes that some versions of timm lack


@register(getattr(timm, "MaybeToTensor", None))
def maybe_to_tensor(t, spec):
    return translate_to_tensor(t, spec) if spec.kind == "pil" else ()


@register(getattr(timm, "MaybePILToTensor", None))
def maybe_pil_to_tensor(t, spec):
    return translate_pil_to_tensor(t, spec) if spec.kind == "pil" else ()


@register(getattr(timm, "ToTensor", None), consumes="dtype")
def plain_to_tensor(t, spec):
    steps = translate_pil_to_tensor(t, spec)
    if t.dtype == torch.uint8:
        return steps
    if not t.dtype.is_floating_point:
        raise Untranslatable(t, f"dtype={t.dtype} is not supported", "use uint8 or a floating point type")
    gives = steps[-1].gives.but(dtype=t.dtype)
    return (*steps, step("to_dtype", gives, dtype=t.dtype, like="cast"))


@register(getattr(timm, "ToNumpy", None))
def to_numpy(t, spec):
    """Translate ToNumpy as a conversion to a tensor."""
    refuse_tensors(t, spec)
    # default_collate and timm's fast_collate return the same batch for arrays and for tensors
    return (step("pil_to_tensor", spec.but(kind="array")),)


@register(getattr(timm, "RandomResizedCropAndInterpolation", None), consumes="size scale ratio interpolation")
def random_resized_crop_and_interpolation(t, spec):
    refuse_tensors(t, spec)
    window = draw("random_resized_crop", scale=tuple(t.scale), ratio=tuple(t.ratio))
    size = tuple(t.size)
    whole = draw("resize", size=size, max_size=None)
    return (step("crop", spec.but(size=None), window, inside=True), _resize(t, spec, whole, size))


@register(
    getattr(timm, "ResizeKeepRatio", None),
    consumes="size longest interpolation random_scale_prob random_scale_range random_scale_area random_aspect_prob "
    "random_aspect_range",
)
def resize_keep_ratio(t, spec):
    refuse_tensors(t, spec)
    sizes = draw(
        "resize_keep_ratio",
        size=tuple(t.size),
        longest=t.longest,
        scale=(t.random_scale_prob, *t.random_scale_range, t.random_scale_area),
        aspect=(t.random_aspect_prob, *t.random_aspect_range),
    )
    return (_resize(t, spec, sizes, None),)


@register(
    random_erasing.RandomErasing,
    consumes="probability min_area max_area min_aspect max_aspect mode min_count max_count num_splits device",
)
def translate_erase(t, spec):
    """Translate RandomErasing for single images. num_splits is ignored, because timm uses it only for batches."""
    names = {"probability", "min_area", "max_area", "log_aspect_ratio", "min_count", "max_count", "num_splits"}
    names |= {"rand_color", "per_pixel", "device"}
    if vars(t).keys() - {"mode"} != names:
        raise Untranslatable(t, "this version of timm's RandomErasing is not supported")
    refuse_pil(t, spec, "the conversion")
    if torch.device(t.device).type != "cpu" and not torch.cuda.is_available():
        raise Untranslatable(t, f"device={t.device} is not available", "pass device='cpu'")
    random = t.rand_color or t.per_pixel
    if random and not spec.dtype.is_floating_point:
        raise Untranslatable(
            t, f"random colors are not supported for {spec.dtype}", "convert to floating point before RandomErasing"
        )
    if not 0 <= t.min_count <= t.max_count:
        raise Untranslatable(t, f"min_count={t.min_count} must be from 0 to max_count={t.max_count}")
    options = {"p": float(t.probability), "area": (t.min_area, t.max_area), "log_ratio": tuple(t.log_aspect_ratio)}
    if t.rand_color and not t.per_pixel:
        op, how = "erase_with_color", {}
    else:
        op, how = "erase", {"value": None if t.per_pixel else (0.0,) * spec.channels}
    counts = t.min_count, t.max_count
    windows = [draw("timm_erasing", **options, counts=counts, at=at) for at in range(t.max_count)]
    return [step(op, spec, window, at > 0, **how) for at, window in enumerate(windows)]


def _resize(t, spec: ImageSpec, sizes: Draw, known: tuple[int, int] | None) -> Step:
    if not isinstance(t.interpolation, (tuple, list)):
        return resize_to(t, spec, sizes, known)
    names = tuple(map(interpolation_named, t.interpolation))
    chosen = draw("with_choice", inner=sizes, count=len(names))
    gives = spec.but(size=known)
    return step("resize_by_choice", gives, chosen, interpolations=names, like="pil")


@draws(uniforms=lambda inner, count: uniforms_of(inner) + 1)
def draw_with_choice(sizes, u, *, inner, count):
    """Run the draw ``inner``, and add the array ``choice``, a random index from 0 to ``count`` - 1 for each sample."""
    values, after = run(inner, sizes, u[:, :-1])
    return values | {"choice": np.floor(u[:, -1] * count).astype(np.int32)}, after


@draws(uniforms=lambda scale, aspect, **_: 4 if scale[0] > 0 or aspect[0] > 0 else 0)
def draw_resize_keep_ratio(sizes, u, *, size, longest, scale, aspect):
    """Draw the output size of ResizeKeepRatio.

    ``scale`` is (probability, low, high, True if these are areas), and ``aspect`` is (probability, low, high).
    """
    ratios = sizes / np.array(size)
    ratio = ratios.max(1, keepdims=True) * longest + ratios.min(1, keepdims=True) * (1.0 - longest)
    factor = np.ones(sizes.shape)
    if scale[0] > 0:
        drawn = scale[1] + (scale[2] - scale[1]) * u[:, 1:2]
        factor = np.where(u[:, :1] < scale[0], 1.0 / np.sqrt(drawn) if scale[3] else drawn, factor)
    if aspect[0] > 0:
        low, high = np.log(aspect[1]), np.log(aspect[2])
        drawn = np.sqrt(np.exp(low + (high - low) * u[:, 3:4]))
        drawn = np.where(u[:, 2:3] < aspect[0], drawn, 1.0)
        factor = factor * np.concatenate([1.0 / drawn, drawn], 1)
    return size_arrays(np.rint(sizes * factor / ratio).astype(np.int64))


_A_WINDOW = 23  # uniform numbers per window: 22 for erased() and one for the key


@draws(uniforms=lambda p, area, log_ratio, counts, at: 2 + _A_WINDOW * counts[1])
def draw_timm_erasing(sizes, u, *, p, area, log_ratio, counts, at):
    """Draw window number ``at`` of RandomErasing. An image gets ``counts[0]`` to ``counts[1]`` windows, among which
    ``area`` is divided."""
    count, own = randint(u[:, 1], counts[0], counts[1] + 1), u[:, 2 + _A_WINDOW * at :]
    arrays, some = erased(sizes, own[:, :22], area, log_ratio, np.maximum(count, 1)[:, None])
    flag = (u[:, 0] <= p) & (at < count) & some
    return arrays | {"flag": flag.astype(np.int32), "key": integer_key(own[:, 22])}, sizes


def _resized(image, row, *, interpolations, like):
    return resize_image(image, row, interpolation=interpolations[int(row["choice"])], like=like, antialias=True)


@kernel(
    image=_resized,
    lowered=as_integer_resize,
    in_dali=lambda s, dtype, options: options.gpu and not options.exact,
    fidelity=resize_fidelity,
    takes_lists=True,
    in_batches=True,
)
def resize_by_choice(images, arrays, *, interpolations, like):
    made = list(images)
    for number, interpolation in enumerate(interpolations):
        rows = np.flatnonzero(arrays["choice"] == number)
        if len(rows):
            some = {"size": arrays["size"][rows]}
            resized = resize_each([images[row] for row in rows], some, interpolation=interpolation, like=like)
            assign(made, rows, resized)
    return stack_if_uniform(made)


@kernel(in_batches=True)
def erase_with_color(images, arrays):
    """Fill a window with one normally distributed random number per channel, as timm does in mode "rand"."""
    colors = normals(arrays["key"], images.shape[1], images.device).to(images.dtype)
    return images.where(~within(images, arrays), colors[:, :, None, None])
