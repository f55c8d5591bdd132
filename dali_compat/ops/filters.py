"""Sharpness and Gaussian blur, as in torchvision and in Pillow."""

from __future__ import annotations

import functools

import numpy as np
import torch
from PIL import ImageFilter
from torch.nn import functional
from torchvision import transforms as v1
from torchvision.transforms import v2

from ..plan import Options, Step, draw, step
from ..runtime.device import to_device
from .arguments import functions, like_of, maybe
from .draws import draws, is_given, uniform
from .kernels import each_by_pillow, kernel
from .pixels.lists import in_groups
from .pixels.resample import chunks
from .pixels.values import blend, bounded, is_half, one_by_one, to
from .translators import register


@register(v1.RandomAdjustSharpness, v2.RandomAdjustSharpness, consumes="sharpness_factor p")
def translate_random_adjust_sharpness(t, spec):
    return (maybe(t, spec, "sharpness", factor=float(t.sharpness_factor)),)


@register(v1.GaussianBlur, v2.GaussianBlur, consumes="kernel_size sigma")
def translate_gaussian_blur(t, spec):
    sigma = draw("blur_sigma", sigma=tuple(map(float, t.sigma)))
    return (step("gaussian_blur", spec, sigma, kernel_size=tuple(t.kernel_size), like=like_of(t, spec)),)


@draws(uniforms=1)
def draw_blur_sigma(sizes, u, *, sigma):
    return {"sigma": np.repeat(uniform(u, *sigma), 2, axis=1)}, sizes


@kernel(torchvision="adjust_sharpness factor", parts=True, keeps_info=True)
def sharpness(images, arrays, *, like):
    """Blend each image with the result of ImageFilter.SMOOTH. The border is not smoothed."""
    channels, height, width = images.shape[1:]
    if height < 3 or width < 3:
        return images
    dtype = torch.promote_types(images.dtype, torch.float32)
    if images.is_floating_point():
        weights = torch.ones(len(images) * channels, 1, 3, 3, dtype=dtype, device=images.device)
        weights[:, :, 1, 1] = 5
        smooth = _filtered(images, weights / 13)
    else:  # sums of integers are exact in any order, and a thirteenth is never halfway between two integers
        x = images.to(torch.int16)
        lines = x[..., :-2, :] + x[..., 1:-1, :] + x[..., 2:, :]
        total = (lines[..., :-2] + lines[..., 1:-1]).add_(lines[..., 2:]).add_(x[..., 1:-1, 1:-1], alpha=4)
        smooth = total.to(dtype).mul_(1 / 13).round_()
    made = images.clamp(0, 1) if images.is_floating_point() else images.clone()
    if like == "v1":  # v1 computes ratio * x + (1 - ratio) * x at the border
        for rim in ((..., 0, slice(None)), (..., -1, slice(None)), (..., 0), (..., -1)):
            edge = images[rim].unsqueeze(-1)
            made[rim] = blend(edge, edge.to(dtype), arrays["factor"], like).squeeze(-1)
    inner = images[..., 1:-1, 1:-1]
    if like == "v2":  # x + (1 - ratio) * (smooth - x)
        inner, rest = inner.to(dtype), to(images, 1.0 - arrays["factor"])
        made[..., 1:-1, 1:-1] = bounded(torch.addcmul(inner, smooth.sub_(inner), rest), images)
    else:
        made[..., 1:-1, 1:-1] = blend(inner, smooth, arrays["factor"], like)
    return made


def _blurred(image, row, *, kernel_size, like, by_torchvision=False):
    return functions(like).gaussian_blur(image, list(kernel_size), [float(s) for s in row["sigma"]])


def _if_given(s: Step, options: Options, decoded: bool) -> Step:
    """Return the step, run by torchvision's function if exact=True and the data set's code has chosen the arguments."""
    return s.but(args=(*s.args, ("by_torchvision", True))) if options.exact and is_given(s) else s


@kernel(parts=True, image=_blurred, lowered=_if_given, fidelity=lambda *_: "mean error .0001 of 255 and maximum 1")
def gaussian_blur(images, arrays, *, kernel_size, like, by_torchvision=False):
    """Blur along one axis after the other. If ``by_torchvision`` is True, or for 16-bit floats, call torchvision's
    function."""
    if by_torchvision or is_half(images):
        blur = functions(like).gaussian_blur
        return one_by_one(lambda image, *sigma: blur(image, kernel_size, sigma), images, *arrays["sigma"].T)
    x = images.to(torch.promote_types(images.dtype, torch.float32))
    for axis, taps, sigma in zip((-1, -2), kernel_size, arrays["sigma"].T, strict=True):
        reach = taps // 2
        weights = np.exp(-0.5 * ((np.arange(taps) - reach) / sigma[:, None]) ** 2)
        weights = to_device(torch.from_numpy(weights / weights.sum(1, keepdims=True)).to(x.dtype), images.device)
        weights = weights.repeat_interleave(images.shape[1], 0)[:, None, None].movedim(-1, axis)
        x = functional.pad(x, (reach, reach, 0, 0) if axis == -1 else (0, 0, reach, reach), "reflect")
        x = _filtered(x, weights)
    return x if images.is_floating_point() else x.round_().to(images.dtype)


def _filtered(x, weights):
    """Convolve each channel of each image with its own kernel. The kernels are ``weights`` (N * C, 1, h, w)."""
    n, channels = x.shape[:2]
    groups = len(weights)
    x = x.reshape(1, groups, *x.shape[2:])
    if x.is_cuda:  # cuDNN spends 100 ms on each new N, and N is random if only some samples are filtered
        size = weights.shape[-2:]
        x = torch.ops.aten._conv_depthwise2d(x, weights, size, None, (1, 1), (0, 0), (1, 1))
    else:
        x = functional.conv2d(x, weights, groups=groups)
    return x.reshape(n, channels, *x.shape[2:])


@kernel(image=lambda image, row: image.filter(ImageFilter.GaussianBlur(float(row["radius"]))))
def pillow_blur(images, arrays):
    """Blur as ``ImageFilter.GaussianBlur(radius)`` does. On a CPU, call Pillow, which is faster."""
    if images.is_cuda:
        return box_blur(images, arrays["radius"])
    return torch.stack(each_by_pillow("pillow_blur", images, arrays))


# ---- Pillow's GaussianBlur (BoxBlur.c), bit for bit: three box filters of fractional width along each axis, in 24-bit
# fixed point. The method is from P. Gwosdek et al., "Theoretical foundations of Gaussian convolution by extended box
# filtering", SSVM 2011.

_PASSES, _ONE = 3, 1 << 24


def box_blur(images: torch.Tensor, sigmas: np.ndarray) -> torch.Tensor:
    """Blur uint8 images (N, C, H, W) as ``ImageFilter.GaussianBlur(sigma)`` does, with one sigma per image."""
    radii = _radii(sigmas)
    reach, groups = radii.astype(np.int64), []
    weights = (np.float32(_ONE) / (radii * np.float32(2) + np.float32(1))).astype(np.int64)
    at_ends = (_ONE - (2 * reach + 1) * weights) // 2
    for taps in np.unique(reach).tolist():
        rows = np.flatnonzero(reach == taps)
        how = {"taps": taps, "weights": weights[rows], "at_ends": at_ends[rows]}
        groups.append((rows, functools.partial(_boxes, **how)))
    return in_groups(images, groups)


def _boxes(images, taps: int, weights: np.ndarray, at_ends: np.ndarray):
    made = []
    for part in chunks(images, 6 * images[0].numel()):
        inner, outer = (to_device(numbers[part], images.device).view(-1, 1, 1, 1) for numbers in (weights, at_ends))
        x = images[part].to(torch.int64)
        for axis in (-1, -2):
            for _ in range(_PASSES):
                x = _box(x, taps, inner, outer, axis)
        made.append(x.to(torch.uint8))
    return torch.cat(made)


def _box(x, taps: int, inner, outer, axis: int):
    """Return the weighted mean around each pixel along ``axis``, with weights in 24-bit fixed point. ``inner`` is the
    weight of the pixel and of ``taps`` pixels on each side. ``outer`` is the weight of the next pixel on each side."""
    length = x.shape[axis]
    before = x.narrow(axis, 0, 1).repeat_interleave(taps + 1, axis)
    after = x.narrow(axis, length - 1, 1).repeat_interleave(taps + 1, axis)
    padded = torch.cat([before, x, after], axis)
    middle = sum(padded.narrow(axis, 1 + i, length) for i in range(2 * taps + 1))
    ends = padded.narrow(axis, 0, length) + padded.narrow(axis, 2 * taps + 2, length)
    return (middle * inner).add_(ends.mul_(outer)).add_(_ONE // 2).bitwise_right_shift_(24)


def _radii(sigmas: np.ndarray) -> np.ndarray:
    """Return the radius of the box filter for each sigma, rounded as in Pillow's _gaussian_blur_radius."""
    one, two, three, six = map(np.float32, (1, 2, 3, 6))
    sigma = sigmas.astype(np.float32)
    variance = sigma * sigma / np.float32(_PASSES)
    box = np.sqrt(12.0 * variance.astype(np.float64) + 1.0).astype(np.float32)
    whole = np.floor((box.astype(np.float64) - 1.0) / 2.0).astype(np.float32)
    part = (two * whole + one) * (whole * (whole + one) - three * variance)
    part /= six * (variance - (whole + one) * (whole + one))
    return whole + part
