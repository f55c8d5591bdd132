"""What spoils images: erased windows, noise, JPEG; and whitening."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from ..device import to_device
from .color import in_parts
from .lists import each
from .product import product
from .registry import image_kernel, kernel
from .squares import mixed, normals, normals_at


@kernel
def erase(images, arrays, *, value):
    """torchvision.transforms.functional.erase: a window takes one value a channel, or (``value`` None) normal
    numbers."""
    if value is None:
        return _erase_randomly(images, arrays)
    value = to_device(_as_pixels(torch.tensor(value, dtype=torch.float32), images), images.device)
    return torch.where(within(images, arrays), value[:, None, None], images)


def within(images, arrays) -> torch.Tensor:
    """(N, 1, H, W): what lies in each image's window."""
    height, width = images.shape[-2:]
    (top, left), (h, w) = ([a[:, [0]], a[:, [1]]] for a in (arrays["start"], arrays["shape"]))
    y, x = np.arange(height), np.arange(width)
    in_y, in_x = (
        to_device(inside, images.device) for inside in ((y >= top) & (y < top + h), (x >= left) & (x < left + w))
    )
    return in_y[:, None, :, None] & in_x[:, None, None, :]


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
    """What assigning floating point numbers to images gives: whole numbers are truncated, and wrap as on x86."""
    return values.to(images.dtype) if images.is_floating_point() else values.to(torch.int32).to(images.dtype)


@kernel
@in_parts
def gaussian_noise(images, arrays, *, mean, sigma, clip):
    """torchvision.transforms.v2.functional.gaussian_noise_image."""
    noise = normals(arrays["key"], images[0].numel(), images.device).view(images.shape)
    if images.is_floating_point():
        made = noise.mul_(sigma).add_(mean).to(images.dtype).add_(images)
        return made.clamp_(0, 1) if clip else made
    made = noise.mul_(sigma * 255).add_(mean * 255).to(torch.int16).add_(images)
    return (made.clamp_(0, 255) if clip else made).to(images.dtype)


@kernel
def jpeg(images, arrays, *, like):
    """torchvision.transforms.v2.functional.jpeg, image by image on the CPU: PIL's coder, or torchvision's for
    tensors."""

    def code(image, quality):
        if like == "pil":
            return v1.pil_to_tensor(v2.jpeg(v1.to_pil_image(image), quality))
        return v2.jpeg(image, quality)

    coded = each(code, images.cpu(), arrays["quality"].tolist())
    return to_device(torch.stack(coded), images.device)


@kernel
def linear_transformation(images, arrays, *, matrix, mean):
    """LinearTransformation: each image as a vector, minus the mean, times the matrix."""
    centred = images.flatten(1) - _on(mean, images.device)
    return product(centred, _on(matrix, images.device).to(centred.dtype)).view(images.shape)


@functools.lru_cache(8)
def _on(constant: torch.Tensor, device: torch.device) -> torch.Tensor:
    return constant.to(device)


# ---- one image


@image_kernel("jpeg")
def jpeg_image(image, row, *, like):
    return v2.jpeg(image, int(row["quality"]))
