"""Erasing, noise and JPEG compression."""

from __future__ import annotations

import numpy as np
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

from ..inspection.untranslatable import Untranslatable
from ..plan import EXACT, Options, Step, draw, step
from ..runtime.device import to_device
from .arguments import TORCHVISION, like_of, per_channel, refuse_pil
from .draws import draws, integer_key, randint
from .kernels import each_by_pillow, kernel
from .pixels.lists import each
from .pixels.squares import mixed, normals, normals_at
from .translators import register
from .windows import window_arrays


@register(v1.RandomErasing, v2.RandomErasing, consumes="p scale ratio value inplace")
def translate_random_erasing(t, spec):
    if spec.kind == "pil" and isinstance(t, v2.RandomErasing):
        raise Untranslatable(t, "it does not erase PIL images", "put it after ToImage() or ToTensor()")
    refuse_pil(t, spec, "ToTensor()")
    value = None if t.value in (None, "random") else tuple(map(float, per_channel(t, "value", spec)))
    window = draw("erasing", p=t.p, scale=tuple(t.scale), ratio=tuple(t.ratio), random_value=value is None)
    return (step("erase", spec, window, value=value),)


@register(v2.GaussianNoise, consumes="mean sigma clip")
def translate_gaussian_noise(t, spec):
    refuse_pil(t, spec, "ToImage()")
    if not spec.dtype.is_floating_point and TORCHVISION < (0, 21):
        raise Untranslatable(
            t, "this version of torchvision requires floating point", "put ToDtype(torch.float32, scale=True) before it"
        )
    return (step("gaussian_noise", spec, draw("random_key"), mean=t.mean, sigma=t.sigma, clip=t.clip),)


@register(v2.JPEG, consumes="quality")
def translate_jpeg(t, spec):
    return (step("jpeg", spec, draw("jpeg_quality", quality=tuple(t.quality)), like=like_of(t, spec)),)


@draws(uniforms=24)
def draw_erasing(sizes, u, *, p, scale, ratio, random_value):
    """Draw the window to erase. If none of ten windows fits, the flag is 0.

    If ``random_value`` is True, the kernel generates random pixels from ``key``.
    """
    arrays, some = erased(sizes, u[:, 1:23], scale, (np.log(ratio[0]), np.log(ratio[1])))
    arrays["flag"] = ((u[:, 0] < p) & some).astype(np.int32)
    if random_value:
        arrays["key"] = integer_key(u[:, 23])
    return arrays, sizes


def erased(sizes, u, area, log_ratio, parts=1):
    """Draw a window in each image. Return the arrays of a step, and a bool array (N,), False for images in which
    none of ten windows fits.

    ``u`` (N, 22) contains random numbers from 0 to 1. The window's share of the image is drawn from ``area``,
    (low, high), and divided by ``parts``.
    """
    area = sizes.prod(1)[:, None] * (area[0] + (area[1] - area[0]) * u[:, :10]) / parts
    aspect = np.exp(log_ratio[0] + (log_ratio[1] - log_ratio[0]) * u[:, 10:20])
    h, w = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (h < sizes[:, :1]) & (w < sizes[:, 1:])
    rows, first, some = np.arange(len(sizes)), fits.argmax(1), fits.any(1)
    shape = np.stack([h[rows, first], w[rows, first]], 1) * some[:, None]
    return window_arrays(np.floor(u[:, 20:22] * (sizes - shape + 1)), shape)[0], some


@draws(uniforms=1)
def draw_jpeg_quality(sizes, u, *, quality):
    return {"quality": randint(u[:, 0], quality[0], quality[1] + 1).astype(np.int32)}, sizes


@kernel(in_batches=True)
def erase(images, arrays, *, value):
    """Fill a window with ``value``, one number per channel. None means normally distributed numbers."""
    if value is None:
        return _erase_randomly(images, arrays)
    value = to_device(_as_pixels(torch.tensor(value, dtype=torch.float32), images), images.device)
    return torch.where(within(images, arrays), value[:, None, None], images)


def within(images, arrays) -> torch.Tensor:
    """Return a mask (N, 1, H, W) of the pixels inside of each image's window."""
    height, width = images.shape[-2:]
    (top, left), (h, w) = ([a[:, [0]], a[:, [1]]] for a in (arrays["start"], arrays["shape"]))
    y, x = np.arange(height), np.arange(width)
    in_y, in_x = (
        to_device(inside, images.device) for inside in ((y >= top) & (y < top + h), (x >= left) & (x < left + w))
    )
    return in_y[:, None, :, None] & in_x[:, None, None, :]


def _erase_randomly(images, arrays):
    n, channels, height, width = images.shape
    h, w = arrays["shape"].astype(np.int64).T
    row = np.repeat(np.arange(n), channels * h)  # index of the image, for each line of each window
    line = np.arange(len(row)) - np.repeat(np.cumsum(channels * h) - channels * h, channels * h)
    channel, y = np.divmod(line, h[row])
    top, left = arrays["start"][row].astype(np.int64).T
    first = (channel * height + top + y) * width + left  # index of the line's first pixel in the image
    drawn = np.cumsum(w[row]) - w[row]  # number of erased pixels before the line
    found = np.stack([first - drawn, row * images[0].numel(), mixed(arrays["key"])[row]])
    lines, lengths = (to_device(a, images.device) for a in (found, w[row]))
    count = int(w[row].sum())
    at = torch.repeat_interleave(torch.arange(len(row), device=images.device), lengths, output_size=count)
    index, image, key = lines.index_select(1, at).unbind(0)
    index = torch.arange(count, device=images.device).add_(index)
    values = _as_pixels(normals_at(index, key), images)
    made = images.clone(memory_format=torch.contiguous_format)
    made.view(-1).index_copy_(0, index.add_(image), values)
    return made


def _as_pixels(values, images):
    """Convert floats to the images' dtype. For uint8, they are truncated, and wrap modulo 256 as on x86."""
    return values.to(images.dtype) if images.is_floating_point() else values.to(torch.int32).to(images.dtype)


@kernel(parts=True, in_batches=True)
def gaussian_noise(images, arrays, *, mean, sigma, clip):
    noise = normals(arrays["key"], images[0].numel(), images.device).view(images.shape)
    if images.is_floating_point():
        made = noise.mul_(sigma).add_(mean).to(images.dtype).add_(images)
        return made.clamp_(0, 1) if clip else made
    made = noise.mul_(sigma * 255).add_(mean * 255).to(torch.int16).add_(images)
    return (made.clamp_(0, 255) if clip else made).to(images.dtype)


def _in_dali(s: Step, dtype: torch.dtype, options: Options) -> bool:
    return s.gives.channels == 3 and not (options.exact and options.gpu)  # the GPU's encoder is not libjpeg


def _fidelity(s: Step, by_dali: bool, options: Options, two_pass: bool) -> str:
    return "mean error 1 of 255 (exact=True: 0)" if by_dali and options.gpu else EXACT


@kernel(
    image=lambda image, row, *, like: F2.jpeg(image, int(row["quality"])),
    in_dali=_in_dali,
    fidelity=_fidelity,
    in_batches=True,
)
def jpeg(images, arrays, *, like):
    """Compress each image on the CPU, with PIL's codec or, for tensors, torchvision's."""
    if like == "pil":
        coded = each_by_pillow("jpeg", images.cpu(), arrays, like=like)
    else:
        coded = each(F2.jpeg, images.cpu(), arrays["quality"].tolist())
    return to_device(torch.stack(coded), images.device)
