"""ElasticTransform."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2
from torchvision.transforms.v2.functional import _geometry

from ..plan import draw, step
from ..runtime.device import to_device
from .arguments import TORCHVISION, fill_list
from .kernels import image_kernel, kernel
from .pixels import resample, transform
from .pixels.squares import uniforms
from .translators import register
from .warp import warp_arguments
from .windows import border

_OF_GRIDS = ("nearest", "bilinear", "bicubic")


@register(v1.ElasticTransform, v2.ElasticTransform, consumes="alpha sigma interpolation fill")
def translate_elastic_transform(t, spec):
    alpha, sigma = tuple(map(float, t.alpha)), tuple(map(float, t.sigma))
    return (step("elastic", spec, draw("random_key"), alpha=alpha, sigma=sigma, **warp_arguments(t, spec, _OF_GRIDS)),)


# before 0.26 torchvision.transforms.ElasticTransform counts x in heights and y in widths (pytorch/vision#9299)
_SWAPS = TORCHVISION < (0, 26)


@kernel
def elastic(images, arrays, *, alpha, sigma, interpolation, fill, like):
    """torchvision.transforms.functional.elastic_transform, which makes tensors of PIL images."""
    size, device, dtype = images.shape[-2:], images.device, transform.dtype_of(images)
    grid = displacement(arrays["key"], size, alpha, sigma, device).to(dtype)
    grid.add_(_geometry._create_identity_grid(size, device, dtype))
    return transform.sample(images, grid, interpolation, fill, like)


def displacement(keys: np.ndarray, size, alpha, sigma, device) -> torch.Tensor:
    """(N, height, width, 2) float32 as torchvision.transforms.ElasticTransform.get_params makes it of other noise;
    ``alpha`` and ``sigma`` are (x, y)."""
    height, width = size
    noise = uniforms(keys, 2 * height * width, device).view(-1, 2, height, width).to(torch.float64).mul_(2).sub_(1)
    fields = []
    for i, extent in enumerate((height, width) if _SWAPS else (width, height)):
        field = noise[:, i : i + 1]
        if sigma[i] > 0:
            taps = int(8 * sigma[i] + 1) | 1  # the next odd number
            for axis, of_axis in ((-1, sigma[0]), (-2, sigma[1])):
                matrix, blocks = _gaussian(field.shape[axis], taps, of_axis)
                field = resample.banded(field, to_device(matrix, device), blocks, axis)
        fields.append(field[:, 0] * (alpha[i] / extent))
    return torch.stack(fields, -1).to(torch.float32)


@functools.lru_cache(16)
def _gaussian(size, taps, sigma):
    """torchvision's Gaussian kernel with reflected borders as a matrix (in, out), and its blocks for banded()."""
    reach = taps // 2
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (x / sigma) ** 2)
    outputs = np.arange(size)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (border(outputs + x[:, None], size, "reflect"), outputs), weights[:, None] / weights.sum())
    return matrix, resample.band(np.maximum(outputs - reach, 0), outputs + reach + 1, size)


@image_kernel("elastic")
def elastic_image(image, row, *, alpha, sigma, interpolation, fill, like):
    _, height, width = F1.get_dimensions(image)
    field = displacement(np.array([row["key"]]), (height, width), alpha, sigma, torch.device("cpu"))
    apply = F1.elastic_transform if like == "v1" else F2.elastic
    return apply(image, field, InterpolationMode(interpolation), fill_list(fill))
