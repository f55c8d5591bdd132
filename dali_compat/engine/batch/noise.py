"""Random pixels, and what spoils images.

Random pixels are functions of (key of the sample, index of the value within its image), the same on every device and in
every batch up to the rounding of logarithms and cosines: Widynski, "Squares: a fast counter-based RNG", 2020
(arXiv:2004.06278), in 64-bit whole numbers that wrap.
"""

from __future__ import annotations

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from .color import in_parts

# ---- the generator


def uniforms(keys: np.ndarray, count: int, device) -> torch.Tensor:
    """(N, count) float32 in [0, 1): 24 bits of squares64(index, key)."""
    index = torch.arange(count, device=device).expand(len(keys), count)
    return ((squares(index, _mixed(keys, device)) >> 40) & 0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def normals(keys: np.ndarray, count: int, device) -> torch.Tensor:
    """(N, count) float32 of mean 0 and deviation 1."""
    pairs = torch.arange((count + 1) // 2, device=device).expand(len(keys), -1)
    return torch.stack(_box_muller(squares(pairs, _mixed(keys, device))), -1).flatten(1)[:, :count]


def _normals_at(index: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """normals() of single indices; ``keys`` are _mixed()."""
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
    return x.view(torch.int32).unflatten(-1, (-1, 2)).flip(-1).flatten(-2).view(torch.int64)


def _mixed(keys: np.ndarray, device) -> torch.Tensor:
    """(N, 1) int64: keys whose bits look random, which Squares needs, by splitmix64 (Steele, Lea and Flood, 2014); odd."""
    z = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(z.view(np.int64)[:, None]).to(device, non_blocking=True)


# ---- kernels


def erase(images, arrays, *, value):
    """torchvision.transforms.functional.erase: a window takes one value a channel, or (``value`` None) normal numbers."""
    if value is None:
        return _erase_randomly(images, arrays)
    height, width = images.shape[-2:]
    (top, left), (h, w) = ((a[:, [i]] for i in (0, 1)) for a in (arrays["start"], arrays["shape"]))
    y, x = np.arange(height), np.arange(width)
    in_y, in_x = (
        torch.from_numpy(inside).to(images.device, non_blocking=True)
        for inside in ((y >= top) & (y < top + h), (x >= left) & (x < left + w))
    )
    inside = in_y[:, None, :, None] & in_x[:, None, None, :]
    return torch.where(inside, _as_pixels(torch.tensor(value), images)[:, None, None], images)


def _erase_randomly(images, arrays):
    n, channels, height, width = images.shape
    h, w = arrays["shape"].astype(np.int64).T
    counts = channels * h * w
    total = int(counts.sum())
    columns = np.stack([np.cumsum(counts) - counts, h * w, w, *arrays["start"].T, np.arange(n)]).astype(np.int64)
    columns, counts = (torch.from_numpy(a).to(images.device, non_blocking=True) for a in (columns, counts))
    row = torch.repeat_interleave(columns[-1], counts, output_size=total)
    first, area, w, top, left = columns[:-1].unbind(0)
    place = torch.arange(total, device=images.device) - first[row]
    channel, place = place // area[row], place % area[row]
    index = (channel * height + place // w[row] + top[row]) * width + place % w[row] + left[row]
    values = _normals_at(index, _mixed(arrays["key"], images.device)[:, 0][row])
    made = images.clone(memory_format=torch.contiguous_format)
    made.view(-1).index_copy_(0, row * images[0].numel() + index, _as_pixels(values, images))
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

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        coded = list(pool.map(code, images.cpu(), arrays["quality"].tolist()))
    return torch.stack(coded).to(images.device, non_blocking=True)


def linear_transformation(images, arrays, *, matrix, mean):
    """LinearTransformation: each image as a vector, minus the mean, times the matrix."""
    centred = images.flatten(1) - _on(mean, images.device)
    return torch.mm(centred, _on(matrix, images.device).to(centred.dtype)).view(images.shape)


@functools.lru_cache(8)
def _on(constant: torch.Tensor, device: torch.device) -> torch.Tensor:
    return constant.to(device)
