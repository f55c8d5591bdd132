"""Color operations: grayscale, channels, inversion, posterizing, solarizing, contrast and equalization.

If ``like`` is "pil", results equal torchvision's on PIL images bit for bit. "v1" and "v2" select the arithmetic of
torchvision's functions on tensors.
"""

from __future__ import annotations

import numpy as np
import torch
from torchvision import transforms as v1
from torchvision.transforms import functional as F1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

from ..inspection.method_calls import Convert
from ..inspection.untranslatable import Untranslatable
from ..plan import draw, step
from ..runtime.device import to_device
from .arguments import functions, ints, like_of, maybe, refuse_tensors
from .draws import draws, permutation
from .kernels import always, kernel
from .pixels.values import blend, bounded, by_value, look_up, one_by_one, to
from .translators import register


@register(v1.Grayscale, v2.Grayscale, consumes="num_output_channels")
def translate_grayscale(t, spec):
    channels = t.num_output_channels
    if spec.channels == channels == 1:
        return ()
    if spec.channels == 1 and channels == 3 and (spec.kind == "pil" or isinstance(t, v2.Grayscale)):
        return (step("repeat_channels", spec.but(channels=3)),)
    if spec.channels != 3 or channels not in (1, 3):  # v1 does not change tensors of one channel
        raise Untranslatable(t, f"num_output_channels={channels} does not fit an image with {spec.channels} channel(s)")
    args = {"like": like_of(t, spec), "dtype": spec.dtype, "channels": channels}
    return (step("grayscale", spec.but(channels=channels), **args),)


@register(v1.RandomGrayscale, v2.RandomGrayscale, consumes="p")
def translate_random_grayscale(t, spec):
    if spec.channels == 1:
        return ()
    args = {"like": like_of(t, spec), "dtype": spec.dtype, "channels": 3}
    return (step("grayscale", spec, draw("bernoulli", p=t.p), **args),)


@register(v2.RGB)
def translate_rgb(t, spec):
    if spec.channels == 3:
        return ()
    return (step("repeat_channels", spec.but(channels=3)),)


@register(Convert, consumes="mode")
def translate_convert(t, spec):
    refuse_tensors(t, spec)
    return translate_rgb(t, spec) if t.mode == "RGB" else translate_grayscale(v1.Grayscale(1), spec)


@register(v2.RandomChannelPermutation)
def translate_random_channel_permutation(t, spec):
    return (step("permute_channels", spec, draw("channel_permutation", channels=spec.channels)),)


@register(v1.RandomPosterize, v2.RandomPosterize, consumes="bits p")
def translate_random_posterize(t, spec):
    _refuse_floats_of_v1(t, spec)
    least = 1 if spec.kind == "pil" else 0
    if not least <= t.bits <= 8:
        raise Untranslatable(t, f"bits={t.bits} is not a number from {least} to 8")
    return (maybe(t, spec, "posterize", bits=int(t.bits)),)


@register(v1.RandomSolarize, v2.RandomSolarize, consumes="threshold p")
def translate_random_solarize(t, spec):
    if spec.kind != "pil" and not 0 <= t.threshold <= (255 if spec.dtype == torch.uint8 else 1):
        raise Untranslatable(t, f"threshold={t.threshold} is out of range for {spec.dtype}")
    return (maybe(t, spec, "solarize", threshold=float(t.threshold)),)


@register(v1.RandomInvert, v2.RandomInvert, v1.RandomAutocontrast, v2.RandomAutocontrast, consumes="p")
def translate_random_invert_or_autocontrast(t, spec):
    return (maybe(t, spec, type(t).__name__.removeprefix("Random").lower()),)


@register(v1.RandomEqualize, v2.RandomEqualize, consumes="p")
def translate_random_equalize(t, spec):
    _refuse_floats_of_v1(t, spec)
    return (maybe(t, spec, "equalize"),)


def _refuse_floats_of_v1(t, spec) -> None:
    if spec.dtype != torch.uint8 and not isinstance(t, v2.Transform):
        raise Untranslatable(t, f"torchvision requires uint8 tensors here, got {spec.dtype}")


@draws(uniforms=lambda channels: channels)
def draw_channel_permutation(sizes, u, *, channels):
    return {"order": permutation(u)}, sizes


# ---- enhancers, as in adjust_brightness and ImageEnhance


@kernel(torchvision="adjust_brightness factor", parts=True, takes_frames=True)
def brightness(images, arrays, *, like):
    """Blend with black, as ImageEnhance.Brightness does."""
    return by_value(images, lambda values: bounded(values * to(images, arrays["factor"]), images))


@kernel(torchvision="adjust_gamma gamma gain", in_batches=True)
def gamma(images, arrays, *, like):
    """Adjust the gamma. For PIL images, look up the result in a table of 256 values."""
    if like != "pil":
        return one_by_one(functions(like).adjust_gamma, images, arrays["gamma"], arrays["gain"])
    rows = zip(arrays["gamma"].tolist(), arrays["gain"].tolist(), strict=True)
    tables = [[int((255 + 1 - 1e-3) * gain * pow(level / 255, own)) for level in range(256)] for own, gain in rows]
    return look_up(to_device(np.clip(tables, 0, 255).astype(np.uint8), images.device)[:, None], images)


@kernel(torchvision="adjust_contrast factor", parts=True, takes_frames=True)
def contrast(images, arrays, *, like):
    """Blend with the mean of the gray image, as ImageEnhance.Contrast does."""
    # ``area`` is the number of pixels without the padding that in_frames() has added
    mean = _mean(_gray(images, like), like, arrays.get("area"))
    return by_value(images, lambda values: blend(values, mean, arrays["factor"], like))


def _mean(gray, like, area=None):
    if gray.is_floating_point():
        return gray.mean((-3, -2, -1), keepdim=True)
    total, count = gray.sum((-3, -2, -1), keepdim=True), gray[0].numel()
    if area is not None:
        count = to(gray, area, np.int64)
    if like == "pil":  # int(mean + 0.5)
        return ((2 * total + count) // (2 * count)).to(torch.float32)
    return total.to(torch.float32) / torch.full_like(total, count, dtype=torch.float32)


@kernel(torchvision="adjust_saturation factor", parts=True, takes_frames=True)
def saturation(images, arrays, *, like):
    """Blend with the gray image, as ImageEnhance.Color does."""
    if images.shape[1] == 1:
        return images
    images = images.contiguous()
    gray = _gray(images, like)
    return blend(images, gray.to(torch.promote_types(images.dtype, torch.float32)), arrays["factor"], like)


def _gray(images, like):
    """Return the gray images (N, 1, H, W), in integers for uint8 images."""
    if images.shape[1] == 1:
        return images
    if like == "pil":
        return _l24(images)
    if like == "v1":
        return F1.rgb_to_grayscale(images)
    r, g, b = images.split(1, 1)
    gray = r.mul(0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114)
    return gray if images.is_floating_point() else gray.to(images.dtype)


def _l24(images):
    """Return gray images as Pillow computes them (L24 in Convert.c), in rounded 16-bit fixed point."""
    r, g, b = images.split(1, 1)
    half = torch.full((1, 1, 1, 1), 0x8000, dtype=torch.int32, device=images.device)
    total = half.add(r, alpha=19595).add_(g, alpha=38470).add_(b, alpha=7471)
    return total.bitwise_right_shift_(16)


@kernel(
    commutes=True,
    in_dali=always,
    image=lambda image, row, *, like, dtype, channels: functions(like).rgb_to_grayscale(image, channels),
)
def grayscale(images, arrays, *, like, dtype, channels):
    if like != "pil":
        return functions(like).rgb_to_grayscale(images, channels)
    gray = images if images.shape[1] == 1 else _l24(images).to(images.dtype)
    return gray.expand(-1, channels, -1, -1)


# ---- operations on single pixels


@kernel(torchvision="posterize bits", parts=True, keeps_info=True)
def posterize(images, arrays, *, like):
    bits = arrays["bits"]
    if images.dtype == torch.uint8:
        return images & to(images, 256 - 2 ** (8 - bits), np.uint8)
    levels = to(images, 2.0**bits)
    made = images.mul(levels).floor_().clamp_(min=0)
    return torch.minimum(made, levels - 1, out=made).mul_(to(images, 0.5**bits))


@kernel(torchvision="solarize threshold", parts=True, keeps_info=True)
def solarize(images, arrays, *, like):
    threshold = arrays["threshold"]
    if like != "pil":
        threshold = threshold.astype(np.float32)
    if images.dtype != torch.uint8:
        return torch.where(images >= to(images, threshold), 1 - images, images)
    least = np.clip(np.ceil(threshold), 0, 256)
    change = to(images, np.where(least < 256, 255, 0), np.uint8)
    return (images >= to(images, np.minimum(least, 255), np.uint8)).mul(change).bitwise_xor_(images)


@kernel(in_batches=True)
def solarize_add(images, arrays, *, like):
    """Add a number of at most 128 to values below 128, as timm's solarize_add does."""
    return (images < 128).mul(to(images, arrays["factor"], np.uint8)).add_(images)


@kernel(torchvision="invert", keeps_info=True)
def invert(images, arrays, *, like):
    return 1 - images if images.is_floating_point() else ~images


@kernel(takes_frames=True, image=lambda image, row: F2.permute_channels(image, ints(row["order"])))
def permute_channels(images, arrays):
    rows = np.arange(len(images))[:, None]
    index = [to_device(a, images.device) for a in (rows, arrays["order"].astype(np.int64))]
    return images[index[0], index[1]]


# ---- tables of 256 values


@kernel(torchvision="autocontrast", parts=True, keeps_info=True)
def autocontrast(images, arrays, *, like):
    """Stretch each channel from its minimum to its maximum, as ImageOps.autocontrast does."""
    if like != "pil":
        return functions(like).autocontrast(images)
    low, high = (extreme((-2, -1)).to(torch.float64)[..., None] for extreme in (images.amin, images.amax))
    levels = torch.arange(256, dtype=torch.float64, device=images.device)
    scale = torch.full_like(low, 255) / (high - low)
    tables = (levels * scale).add_(-low * scale).clamp_(0, 255)
    return look_up(torch.where(high > low, tables, levels), images)


@kernel(torchvision="equalize", parts=True, keeps_info=True)
def equalize(images, arrays, *, like):
    """Equalize the histogram of each channel."""
    # for uint8, v2's function takes batches and returns Pillow's pixels
    return functions("v2" if images.dtype == torch.uint8 else like).equalize(images)


@kernel(image=lambda image, row: F2.grayscale_to_rgb(image))
def repeat_channels(images, arrays):
    return images.expand(-1, 3, -1, -1)
