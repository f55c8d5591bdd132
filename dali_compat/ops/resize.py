"""Resizing: output sizes in torchvision's own arithmetic, and the kernels."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

from ..inspection.untranslatable import Untranslatable
from ..plan import EXACT, Draw, ImageSpec, Options, Step, draw, step
from .arguments import functions, interpolation_of, ints, is_integer_resize, like_of, passes_of, resizes_in_integers
from .draws import Arrays, ImageTooSmall, draws, rand_between, randint, run
from .kernels import each_by_pillow, kernel
from .pixels import resample, transform
from .pixels.lists import by_size, each, spare_batch, stack_if_uniform
from .translators import register
from .windows import window_arrays

BY_TORCH = "pil, by torch"  # Pillow's order of passes with PyTorch's rounding of weights


@register(v1.Resize, v2.Resize, consumes="size interpolation max_size antialias")
def translate_resize(t, spec):
    size = t.size if t.size is None or not isinstance(t.size, int) else [t.size]
    return (_resize_step(t, spec, None if size is None else tuple(size), t.max_size),)


@register(v1.RandomResizedCrop, v2.RandomResizedCrop, consumes="size scale ratio interpolation antialias")
def translate_random_resized_crop(t, spec):
    window = draw("random_resized_crop", scale=tuple(t.scale), ratio=tuple(t.ratio))
    return (step("crop", spec.but(size=None), window, inside=True), _resize_step(t, spec, tuple(t.size)))


@register(v2.ScaleJitter, consumes="target_size scale_range interpolation antialias")
def translate_scale_jitter(t, spec):
    sizes = draw("scale_jitter", target_size=tuple(t.target_size), scale_range=tuple(t.scale_range))
    return (resize_to(t, spec, sizes),)


@register(v2.RandomShortestSize, consumes="min_size max_size interpolation antialias")
def translate_random_shortest_size(t, spec):
    return (resize_to(t, spec, draw("random_shortest_size", min_size=tuple(t.min_size), max_size=t.max_size)),)


@register(v2.RandomResize, consumes="min_size max_size interpolation antialias")
def translate_random_resize(t, spec):
    return (resize_to(t, spec, draw("random_resize", min_size=t.min_size, max_size=t.max_size)),)


def _resize_step(t, spec: ImageSpec, size, max_size=None) -> Step:
    if max_size is not None and size is not None and (len(size) == 2 or max_size <= size[0]):
        raise Untranslatable(t, f"max_size={max_size} cannot be combined with size={t.size}")
    if not all(isinstance(one, (int, np.integer)) for one in size or ()):
        raise Untranslatable(t, f"size={t.size} does not consist of integers")
    known = size if size is not None and len(size) == 2 else None
    return resize_to(t, spec, draw("resize", size=size, max_size=max_size), known)


def resize_to(t, spec: ImageSpec, sizes: Draw, known: tuple[int, int] | None = None) -> Step:
    like, antialias = like_of(t, spec), spec.kind == "pil" or t.antialias  # PIL always antialiases
    return step(
        "resize", spec.but(size=known), sizes, interpolation=interpolation_of(t), like=like, antialias=antialias
    )


def size_arrays(new) -> tuple[Arrays, np.ndarray]:
    """Return the arrays of a resize to the sizes ``new`` (N, 2), and ``new`` itself."""
    if (new < 1).any():
        row = int((new < 1).any(1).argmax())
        raise ImageTooSmall(row, f"height and width must be > 0, but Resize gives {tuple(new[row].tolist())}")
    return {"size": new.astype(np.float32)}, new


@draws()
def draw_resize(sizes, u, *, size, max_size=None):
    if size is not None and len(size) == 2:
        return size_arrays(np.broadcast_to(np.array(size, np.int64), sizes.shape))
    return size_arrays(_by_edges(sizes, size and size[0], max_size))


def _by_edges(sizes, size, max_size) -> np.ndarray:
    """Return the (height, width) of images whose short edge is resized to ``size``, a number or an array (N,).

    ``max_size`` limits the long edge unless it is None. If ``size`` is None, ``max_size`` is the long edge.
    """
    short, long = sizes.min(1), sizes.max(1)
    # the other edge is truncated, not rounded
    if size is None:
        new_short, new_long = (max_size * short / long).astype(np.int64), np.full_like(long, max_size)
    else:
        new_short = np.broadcast_to(np.asarray(size, np.int64), short.shape)
        new_long = (new_short * long / short).astype(np.int64)
        if max_size is not None:
            over = new_long > max_size
            new_short = np.where(over, (max_size * new_short / new_long).astype(np.int64), new_short)
            new_long = np.where(over, max_size, new_long)
    height_is_short = sizes[:, 0] < sizes[:, 1]
    return np.stack([np.where(height_is_short, new_short, new_long), np.where(height_is_short, new_long, new_short)], 1)


@draws(uniforms=22)
def draw_random_resized_crop(sizes, u, *, scale, ratio):
    """Draw a window in up to ten tries. If none fits, take the largest central window within ``ratio``."""
    height, width = sizes[:, :1].astype(float), sizes[:, 1:].astype(float)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, :10])
    low, high = np.log(ratio[0]), np.log(ratio[1])
    aspect = np.exp(low + (high - low) * u[:, 10:20])
    w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    rows, first = np.arange(len(sizes)), fits.argmax(1)
    shape = np.stack([h[rows, first], w[rows, first]], 1)
    start = np.floor(u[:, 20:22] * (sizes - shape + 1))

    none = ~fits.any(1)
    if none.any():
        height, width, in_ratio = height[:, 0], width[:, 0], (width / height)[:, 0]
        too_narrow, too_wide = in_ratio < min(ratio), in_ratio > max(ratio)
        fallback_h = np.where(too_narrow, np.rint(width / min(ratio)), height)
        fallback_w = np.where(too_wide, np.rint(height * max(ratio)), width)
        fallback = np.stack([fallback_h, fallback_w], 1)
        shape[none] = fallback[none]
        start[none] = ((sizes - fallback) // 2)[none]
    if (shape < 1).any():
        row = int((shape < 1).any(1).argmax())
        have, of = (tuple(pair[row].astype(int).tolist()) for pair in (shape, sizes))
        raise ImageTooSmall(
            row, f"an image of {of} is too small for RandomResizedCrop with ratio={ratio}: the window would be {have}"
        )
    return window_arrays(start, shape)


@draws(uniforms=1)
def draw_scale_jitter(sizes, u, *, target_size, scale_range):
    """Draw the output size. As in torchvision, the target's width is divided by the image's height, and its height by
    the image's width."""
    fit = np.minimum(target_size[1] / sizes[:, :1], target_size[0] / sizes[:, 1:]).astype(np.float32)
    return size_arrays((sizes.astype(np.float32) * (fit * rand_between(u, scale_range))).astype(np.int64))


@draws(uniforms=1)
def draw_random_shortest_size(sizes, u, *, min_size, max_size=None):
    """Draw the output size, with a short edge from the tuple ``min_size``."""
    scale = np.array(min_size)[randint(u, 0, len(min_size))] / sizes.min(1, keepdims=True)
    if max_size is not None:
        scale = np.minimum(scale, max_size / sizes.max(1, keepdims=True))
    return size_arrays((sizes * scale).astype(np.int64))


@draws(uniforms=1)
def draw_random_resize(sizes, u, *, min_size, max_size):
    """Draw the output size, with a short edge from ``min_size`` to ``max_size`` (exclusive)."""
    return size_arrays(_by_edges(sizes, randint(u[:, 0], min_size, max_size), None))


# ---- lowered steps: a resize, or a resize and a crop, in the form that an engine takes


@draws()
def draw_resize_lowered(sizes, u, *, resize, crop, passes):
    """Compute a resize, and optionally the crop after it, as one or two calls to DALI's resize.

    Each call has an output ``size`` and a region of its input in fractional pixels. ``passes`` comes from passes_of().
    """
    _, full = run(resize, sizes, u)  # resize and crop share u: only one is random, unless all arguments are given
    start, shape = np.zeros_like(full), full
    if crop is not None:
        values, shape = run(crop, full, u)
        start = values["start"]
    vertical = (resample.vertical_first(sizes, full) & (passes == "as Pillow"))[:, None]
    first = np.concatenate([vertical, ~vertical], 1)  # True for the axis of the first pass
    per_pixel = sizes / full
    roi_start, roi_end = start * per_pixel, (start + shape) * per_pixel
    if passes == "one":
        calls = {"size": shape} if crop is None else {"size": shape, "roi_start": roi_start, "roi_end": roi_end}
    else:
        calls = {
            "size": np.where(first, shape, sizes),
            "roi_start": np.where(first, roi_start, 0),
            "roi_end": np.where(first, roi_end, sizes),
            "second_size": shape,
            "second_roi_start": np.where(first, 0, roi_start),
            "second_roi_end": np.where(first, shape, roi_end),
        }
    return {name: array.astype(np.float32) for name, array in calls.items()}, shape


@draws()
def draw_resized_window(sizes, u, *, resize, pad, crop, mirror):
    """Compute the arrays of a resize combined with an optional pad, crop and flip. The draws share ``u``, so at most
    one may be random, unless ``u`` has arguments that tracing has recorded."""
    _, full = run(resize, sizes, u)
    start, shape = np.zeros_like(full), full
    for part in filter(None, (pad, crop)):
        values, shape = run(part, shape, u)
        start = start + values["start"]
    flags = np.zeros(len(sizes), np.int32) if mirror is None else run(mirror, shape, u)[0].get("flag", np.int32(1))
    mirrors = np.broadcast_to(flags, len(sizes))
    return {"size": full, "start": start, "shape": shape, "mirror": mirrors}, shape


# ---- kernels


def resize_fidelity(s: Step, by_dali: bool, options: Options, two_pass: bool) -> str:
    like, chosen = s.kwargs["like"], s.op == "resize_by_choice"
    interpolation = s.kwargs["interpolations"][0] if chosen else s.kwargs["interpolation"]
    if not by_dali:
        if is_integer_resize(s) and like == "pil" and not (options.exact or options.gpu):
            return "mean error .02 of 255 and maximum 2 on photos (exact=True: 0)"
        in_floats = not chosen and passes_of(s) == "one" and not interpolation.startswith("nearest")
        return "exact except for the order of additions" if options.gpu and in_floats else EXACT
    if interpolation.startswith("nearest"):
        return "nearest pixel; a rounding tie may differ (exact=True: 0)"
    if like != "pil":
        return f"mean error {'.05' if two_pass or like == 'v1' else '.2'} of 255 (exact=True: 0)"
    passes = "two passes as Pillow: mean error .01" if two_pass and not chosen else "one pass: mean error .2"
    return f"{passes} of 255 (exact=True: 0)"


def _in_dali(s: Step, dtype: torch.dtype, options: Options) -> bool:
    """Return True if DALI may run a resize. The pixels are then close to torchvision's."""
    # floats differ by up to 40 levels at the border
    if s.gives.dtype != torch.uint8 or options.exact or not options.gpu:
        return False
    # other results differ too much, by measurement
    interpolation = s.kwargs["interpolation"]
    if s.kwargs["like"] == "pil":
        return interpolation in ("nearest", "nearest-exact", "bilinear", "bicubic", "lanczos")
    return interpolation in ("bilinear", "bicubic") and s.kwargs["antialias"] is True


def as_integer_resize(s: Step, options: Options, decoded: bool) -> Step:
    """Return a resize that uses PyTorch's integer arithmetic on the CPU instead of Pillow's, if possible. For decoded
    images, or if exact=True, return the step unchanged."""
    by_torch = is_integer_resize(s) and s.kwargs["like"] == "pil" and not (options.exact or options.gpu or decoded)
    return s.but(args=tuple((s.kwargs | {"like": BY_TORCH}).items())) if by_torch else s


def resize_image(image, row, *, interpolation, like, antialias):
    return functions(like).resize(image, ints(row["size"]), InterpolationMode(interpolation), antialias=antialias)


@kernel(
    image=resize_image,
    lowered=as_integer_resize,
    in_dali=_in_dali,
    fidelity=resize_fidelity,
    takes_lists=True,
    keeps_info=True,
)
def resize(images, arrays, *, interpolation, like, antialias=True):
    how = {"interpolation": interpolation, "like": like, "antialias": antialias}
    if isinstance(images, list):
        return stack_if_uniform(resize_each(images, arrays, **how))
    # To enlarge 32 x 32 pixels to 40 x 40, Pillow takes .10 ms and a matrix product .065 ms. To enlarge 96 x 96 to
    # 224 x 224, they take .6 and 3.6 ms.
    tiny = max(images.shape[-2] * images.shape[-1], arrays["size"].prod(1).max()) <= 48**2
    if like == "pil" and not images.is_cuda and not tiny:
        made = resize_each(list(images), arrays, **how)
        return made[0][None] if len(made) == 1 else stack_if_uniform(made)
    return by_size(images, arrays["size"], lambda images, rows, size: _resize(images, size, **how))


def resize_each(images, arrays, *, interpolation, like, antialias=True):
    """Resize images (C, H, W) that may differ in size. Return a list."""
    sizes, how = arrays["size"].astype(np.int64), {"interpolation": interpolation, "like": like, "antialias": antialias}
    if images[0].is_cuda and resizes_as_pillow(images[0], sizes[0], interpolation, like):
        return resample.resize_each(images, sizes, interpolation, like, antialias)
    if like == "pil" and not images[0].is_cuda:
        return each_by_pillow("resize", images, {"size": sizes}, **how)

    def resize_one(image, size):
        return _resize(image[None], tuple(size.tolist()), **how)[0]

    if images[0].is_cuda:
        return [resize_one(*row) for row in zip(images, sizes, strict=True)]
    return each(resize_one, images, sizes)


@kernel(takes_lists=True, in_batches=True)
def resize_mirror_normalize(images, arrays, *, interpolation, like, mean, std, fill=()):
    """Resize uint8 images (C, H, W) on a CPU, take a window, optionally mirror it, and convert it to normalized
    float32.

    Pixels outside of the image are ``fill``. The result is within 7e-7 of PyTorch's resize followed by torchvision's
    functions.
    """
    sizes, starts, mirrors = (arrays[name].astype(np.int64).tolist() for name in ("size", "start", "mirror"))
    height, width = arrays["shape"][0].astype(np.int64).tolist()
    made = spare_batch((len(images), len(images[0]), height, width))
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (mean, std))
    scale, shift = 1 / (255 * std), -mean / std
    border = np.array(fill or (0,), np.float32)[:, None, None]
    resized = getattr(torch.ops.aten, f"_upsample_{interpolation}2d_aa")

    def convert(first: int, end: int) -> None:
        for image, size, (top, left), mirror, out in rows[first:end]:
            if size == [1, 1]:
                image = resample.resize(image[None], (1, 1), interpolation, "v2")
            else:
                if height_first(image, size, like):
                    image = resized(image[None], [size[0], image.shape[2]], False)[0]
                image = resized(image[None], size, False)
            whole, there = image[0].numpy(), out[:, :, ::-1] if mirror else out
            window = whole[:, max(0, top) : max(0, top + height), max(0, left) : max(0, left + width)]
            if window.shape != there.shape:
                there[...] = border
                there = there[:, max(0, -top) :, max(0, -left) :][:, : window.shape[1], : window.shape[2]]
            there[...] = window
            np.multiply(out, scale, out=out)
            np.add(out, shift, out=out)

    rows = list(zip(images, sizes, starts, mirrors, made.numpy(), strict=True))
    bounds = np.linspace(0, len(rows), min(len(rows), 2 * len(os.sched_getaffinity(0))) + 1).astype(int).tolist()
    each(convert, bounds[:-1], bounds[1:])
    return made


def _resize(images, size, *, interpolation, like, antialias):
    if resizes_as_pillow(images, size, interpolation, like):
        return resample.resize(images, size, interpolation, like, antialias)
    if like == "pil":
        return transform.resize_nearest(images, size)
    resized = partial((F1 if like == "v1" else F2).resize, interpolation=InterpolationMode(interpolation))
    if height_first(images, size, like):
        images = resized(images, [size[0], images.shape[-1]], antialias=antialias)
    return resized(images, list(size), antialias=antialias)


def height_first(images, size, like) -> bool:
    """Return True if PyTorch has to resize the height before the width, as Pillow does. In a single call, PyTorch
    starts with the width."""
    shrinks = like == BY_TORCH and images.shape[-2] > size[0]
    return shrinks and bool(resample.vertical_first(np.array([images.shape[-2:]]), np.array([size]))[0])


def resizes_as_pillow(images, size, interpolation, like) -> bool:
    """Return True if resample.resize(), which rounds after each axis, replaces torchvision's resize."""
    if like == "pil":
        return not interpolation.startswith("nearest")
    # on a GPU, PyTorch rounds uint8 only once; one output pixel fails an assertion unless it is channels_last
    ours = like in ("v2", BY_TORCH) and (images.is_cuda or tuple(size) == (1, 1))
    ours = ours and images.dtype == torch.uint8 and interpolation in ("bilinear", "bicubic")
    return ours and resizes_in_integers(interpolation)
