"""Warps: affine, perspective and elastic."""

from __future__ import annotations

import functools

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from ...versions import TORCHVISION
from ..device import to_device
from . import grids, resample, transform
from .geometry import border, by_size
from .images import fill_list, functions, ints
from .lists import each, uniform
from .registry import image_kernel, kernel, ragged_kernel
from .squares import uniforms

# before 0.26 torchvision.transforms.ElasticTransform counts x in heights and y in widths (pytorch/vision#9299)
_SWAPS = TORCHVISION < (0, 26)


@kernel
def warp_affine(images, arrays, *, interpolation, fill, like="pil"):
    """Image.transform(AFFINE), as torchvision's affine and rotate do on PIL images, or what they do on tensors."""
    return _warp(images, arrays["matrix"], arrays["size"], interpolation, fill, like)


@kernel
def warp_perspective(images, arrays, *, interpolation, fill, like="pil"):
    """Image.transform(PERSPECTIVE), as torchvision's perspective does on PIL images, or what it does on tensors."""
    return _warp(images, arrays["coefficients"], arrays["size"], interpolation, fill, like)


@ragged_kernel("warp_affine", "warp_perspective")
def warp_each(images, arrays, *, interpolation, fill, like="pil"):
    """Either of a list of images (C, H, W), whose sizes may differ; gives a list. On a CPU Pillow does it."""
    data, sizes = arrays["matrix" if "matrix" in arrays else "coefficients"], arrays["size"]
    if like == "pil" and not images[0].is_cuda:
        return _by_pillow(images, data, sizes, interpolation, fill)
    rows = zip(images, data[:, None], sizes[:, None], strict=True)
    return [_warp(image[None], matrix, size, interpolation, fill, like)[0] for image, matrix, size in rows]


def _warp(images, data, sizes, interpolation, fill, like):
    """``data``: (N, 6) of an affine transform, (N, 8) of a perspective one."""
    if like == "pil" and not images.is_cuda and _is_pillow_faster(images, sizes, interpolation):
        return uniform(_by_pillow(list(images), data, sizes, interpolation, fill))
    affine = data.shape[1] == 6

    def warp_to(images, rows, size):
        if like != "pil":
            grid = (grids.affine if affine else grids.perspective)(images, data[rows], size)
            return grids.sample(images, grid, interpolation, fill, like)
        if affine and interpolation.startswith("nearest"):
            return transform.transform_nearest(images, data[rows], size, fill)
        coordinates = transform.coordinates_of(data[rows], size, images.device)
        return transform.transform(images, coordinates, size, interpolation, fill)

    return by_size(images, sizes, warp_to)


# a CPU's Pillow is faster from so many pixels on: a call takes .1 ms, and its filters half of the batch's time, or less
_PILLOW_FROM = {"nearest": 160**2, "bilinear": 64**2, "bicubic": 32**2}


def _is_pillow_faster(images, sizes, interpolation) -> bool:
    pixels = max(images.shape[-2] * images.shape[-1], np.prod(sizes, 1).max())
    return pixels >= _PILLOW_FROM[interpolation.removesuffix("-exact")]


def _by_pillow(images, data, sizes, interpolation, fill) -> list[torch.Tensor]:
    mode, color = InterpolationMode(interpolation), transform.fill_like(images[0], fill).flatten().tolist()
    kind = Image.Transform.AFFINE if data.shape[1] == 6 else Image.Transform.PERSPECTIVE

    def warp_one(image, row, size):
        how = InterpolationMode.NEAREST if _is_between_centres(row) else mode
        picture = v1.to_pil_image(image)
        bands = len(picture.getbands())
        filled = tuple(color if len(color) == bands else color * bands)
        made = picture.transform(tuple(size[::-1]), kind, row, v1.pil_modes_mapping[how], fillcolor=filled)
        return v1.pil_to_tensor(made)

    return each(warp_one, images, data.tolist(), sizes.astype(np.int64).tolist())


def _is_between_centres(row: list[float]) -> bool:
    """An affine transform from centres of pixels to centres, as right angles may be: filters change nothing."""
    if len(row) != 6 or not all(map(float.is_integer, row)):
        return False
    a, b, _, d, e, _ = row
    return (a + b) % 2 == 1 == (d + e) % 2


@kernel
def elastic(images, arrays, *, alpha, sigma, interpolation, fill, like):
    """torchvision.transforms.functional.elastic_transform, which makes tensors of PIL images."""
    grid = displacement(arrays["key"], images.shape[-2:], alpha, sigma, images.device).to(grids.dtype_of(images))
    return grids.sample(images, grid.add_(grids.identity(images)), interpolation, fill, like)


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


# ---- one image


@image_kernel("rotate")
def rotate_image(image, row, *, interpolation, expand, center, fill, like):
    options = {"expand": expand, "center": center, "fill": fill_list(fill)}
    return functions(like).rotate(image, float(row["angle"]), InterpolationMode(interpolation), **options)


@image_kernel("affine")
def affine_image(image, row, *, interpolation, center, fill, like, version):
    return functions(version).affine(
        image,
        float(row["angle"]),
        ints(row["translate"]),
        float(row["scale"]),
        [float(s) for s in row["shear"]],
        InterpolationMode(interpolation),
        fill=fill_list(fill),
        center=center,
    )


@image_kernel("perspective")
def perspective_image(image, row, *, interpolation, fill, like):
    _, height, width = v1.get_dimensions(image)
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    endpoints = [ints(point) for point in row["endpoints"]]
    return functions(like).perspective(image, corners, endpoints, InterpolationMode(interpolation), fill_list(fill))


@image_kernel("elastic")
def elastic_image(image, row, *, alpha, sigma, interpolation, fill, like):
    _, height, width = v1.get_dimensions(image)
    field = displacement(np.array([row["key"]]), (height, width), alpha, sigma, torch.device("cpu"))
    apply = v1.elastic_transform if like == "v1" else v2.elastic
    return apply(image, field, InterpolationMode(interpolation), fill_list(fill))
