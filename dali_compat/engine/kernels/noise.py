"""Random pixels, and what spoils images.

Random pixels are functions of (key of the sample, index of the value within its image), the same on every device and in
every batch up to the rounding of logarithms and cosines: Widynski, "Squares: a fast counter-based RNG", 2020
(arXiv:2004.06278), in 64-bit whole numbers that wrap.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from .color import in_parts
from .lists import each

# ---- the generator


def uniforms(keys: np.ndarray, count: int, device) -> torch.Tensor:
    """(N, count) float32 in [0, 1), multiples of 2**-24."""
    return (_bits(keys, count, device) >> 40).bitwise_and_(0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def normals(keys: np.ndarray, count: int, device) -> torch.Tensor:
    """(N, count) float32 of mean 0 and deviation 1."""
    return torch.stack(_box_muller(_bits(keys, (count + 1) // 2, device)), -1).flatten(1)[:, :count]


def _bits(keys, count, device):
    key = torch.from_numpy(_mixed(keys)[:, None]).to(device, non_blocking=True)
    return squares(torch.arange(count, device=device), key)


def _normals_at(index: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """normals() at single indices; ``keys`` are _mixed()."""
    even, odd = _box_muller(squares(index >> 1, keys))
    return torch.where((index & 1).bool(), odd, even)


def _box_muller(bits):
    """Two normal numbers of 64 bits: Box and Muller, "A note on the generation of random normal deviates", 1958."""
    radius = (bits & 0xFFFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    angle = ((bits >> 40) & 0xFFFFFF).to(torch.float32).mul_(2 * math.pi * 2.0**-24)
    return angle.cos().mul_(radius), angle.sin_().mul_(radius)


def squares(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """squares64 of int64 that stand for uint64."""
    x = counter * key
    y, z = x, x + key
    for added in (y, z, y):
        x = _halves_swapped(torch.addcmul(added, x, x))
    last = torch.addcmul(z, x, x)
    x = _halves_swapped(last)
    return torch.addcmul(y, x, x).bitwise_right_shift_(32).bitwise_and_(0xFFFFFFFF).bitwise_xor_(last)


def _halves_swapped(x):
    return x.view(torch.int32).unflatten(-1, (-1, 2)).roll(1, -1).view(torch.int64).squeeze(-1)


def _mixed(keys: np.ndarray) -> np.ndarray:
    """int64 keys whose bits look random, which Squares needs: splitmix64 (Steele, Lea and Flood, 2014), made odd."""
    z = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64)


# ---- kernels


def erase(images, arrays, *, value):
    """torchvision.transforms.functional.erase: a window takes one value a channel, or (``value`` None) normal numbers."""
    if value is None:
        return _erase_randomly(images, arrays)
    height, width = images.shape[-2:]
    (top, left), (h, w) = ([a[:, [0]], a[:, [1]]] for a in (arrays["start"], arrays["shape"]))
    y, x = np.arange(height), np.arange(width)
    in_y, in_x = (
        torch.from_numpy(inside).to(images.device, non_blocking=True)
        for inside in ((y >= top) & (y < top + h), (x >= left) & (x < left + w))
    )
    inside = in_y[:, None, :, None] & in_x[:, None, None, :]
    value = _as_pixels(torch.tensor(value, dtype=torch.float32), images).to(images.device, non_blocking=True)
    return torch.where(inside, value[:, None, None], images)


def _erase_randomly(images, arrays):
    """Only what is erased is drawn; it is numbered line by line."""
    n, channels, height, width = images.shape
    h, w = arrays["shape"].astype(np.int64).T
    row = np.repeat(np.arange(n), channels * h)  # of each line of each window
    line = np.arange(len(row)) - np.repeat(np.cumsum(channels * h) - channels * h, channels * h)
    channel, y = np.divmod(line, h[row])
    top, left = arrays["start"][row].astype(np.int64).T
    first = (channel * height + top + y) * width + left  # pixel of the image
    drawn = np.cumsum(w[row]) - w[row]  # pixels before it
    lines = np.stack([first - drawn, row * images[0].numel(), _mixed(arrays["key"])[row]])
    lines, lengths = (torch.from_numpy(a).to(images.device, non_blocking=True) for a in (lines, w[row]))
    count = int(w[row].sum())
    line = torch.repeat_interleave(torch.arange(len(row), device=images.device), lengths, output_size=count)
    index, image, key = lines.index_select(1, line).unbind(0)
    index = torch.arange(count, device=images.device).add_(index)
    values = _as_pixels(_normals_at(index, key), images)
    made = images.clone(memory_format=torch.contiguous_format)
    made.view(-1).index_copy_(0, index.add_(image), values)
    return made


def _as_pixels(values, images):
    """What assigning floating point numbers to images gives: whole numbers are truncated, and wrap as on x86."""
    return values.to(images.dtype) if images.is_floating_point() else values.to(torch.int32).to(images.dtype)


@in_parts
def gaussian_noise(images, arrays, *, mean, sigma, clip):
    """torchvision.transforms.v2.functional.gaussian_noise_image."""
    noise = normals(arrays["key"], images[0].numel(), images.device).view(images.shape)
    if images.is_floating_point():
        made = noise.mul_(sigma).add_(mean).to(images.dtype).add_(images)
        return made.clamp_(0, 1) if clip else made
    made = noise.mul_(sigma * 255).add_(mean * 255).to(torch.int16).add_(images)
    return (made.clamp_(0, 255) if clip else made).to(images.dtype)


def jpeg(images, arrays, *, like):
    """torchvision.transforms.v2.functional.jpeg, image by image on the CPU: PIL's coder, or torchvision's for tensors."""

    def code(image, quality):
        if like == "pil":
            return v1.pil_to_tensor(v2.jpeg(v1.to_pil_image(image), quality))
        return v2.jpeg(image, quality)

    coded = each(code, images.cpu(), arrays["quality"].tolist())
    return torch.stack(coded).to(images.device, non_blocking=True)


def linear_transformation(images, arrays, *, matrix, mean):
    """LinearTransformation: each image as a vector, minus the mean, times the matrix."""
    centred = images.flatten(1) - _on(mean, images.device)
    return torch.mm(centred, _on(matrix, images.device).to(centred.dtype)).view(images.shape)


@functools.lru_cache(8)
def _on(constant: torch.Tensor, device: torch.device) -> torch.Tensor:
    return constant.to(device)
