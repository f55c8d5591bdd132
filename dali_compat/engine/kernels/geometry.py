"""Windows, flips, sizes and warps."""

from __future__ import annotations

import functools

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from ...versions import TORCHVISION
from ..replay import play_on_tensor
from . import grids, resample, transform
from .grids import to_device
from .lists import each, uniform
from .noise import uniforms

# before 0.26 torchvision.transforms.ElasticTransform counts x in heights and y in widths (pytorch/vision#9299)
_SWAPS = TORCHVISION < (0, 26)


def flip(images, arrays, *, axis):
    return images.flip(-1 if axis == "horizontal" else -2)


# ---- windows


def crop(images, arrays, *, inside):
    """torchvision.transforms.functional.crop: zeros where the window leaves the image."""
    return _windows(images, arrays, "constant", None)


def pad(images, arrays, *, mode, fill):
    """torchvision.transforms.functional.pad, on PIL images of any size (numpy.pad where not constant)."""
    return _windows(images, arrays, mode, fill)


def _windows(images, arrays, mode, fill):
    start = arrays["start"].astype(np.int64)
    return _by_size(images, arrays["shape"], lambda part, rows, size: _window(part, start[rows], size, mode, fill))


def _window(images, start, size, mode, fill):
    """A window of each image; ``start`` (N, 2) is where it begins."""
    shape = images.shape[-2:]
    same = (start == start[0]).all()
    inside = (start >= 0).all() and (start + size <= shape).all()
    if same and inside:
        (top, left), (height, width) = start[0], size
        return images[..., top : top + height, left : left + width]
    lines = [(start[:1] if same else start)[:, [i]] + np.arange(size[i]) for i in (0, 1)]
    y, x = (to_device(border(line, n, mode), images) for line, n in zip(lines, shape))
    made = (
        images.index_select(-2, y[0]).index_select(-1, x[0])
        if same
        else transform.pixels(images)(y[:, :, None] * shape[1] + x[:, None, :])
    )
    if inside or mode != "constant":
        return made
    in_y, in_x = (to_device((line >= 0) & (line < n), images) for line, n in zip(lines, shape))
    return torch.where((in_y[:, :, None] & in_x[:, None, :])[:, None], made, transform.fill_like(images, fill))


def border(index: np.ndarray, size: int, mode: str) -> np.ndarray:
    """The pixel that stands for each index, which may be outside 0 .. size - 1, in numpy.pad's modes."""
    if mode == "reflect":
        period = max(2 * size - 2, 1)
        return size - 1 - abs(size - 1 - index % period)
    if mode == "symmetric":
        index = index % (2 * size)
        return np.minimum(index, 2 * size - 1 - index)
    return np.clip(index, 0, size - 1)  # constant, too: what is outside is filled afterwards


# ---- sizes


def resize(images, arrays, *, interpolation, like, antialias=True):
    """torchvision.transforms.functional.resize; PIL always antialiases."""
    how = {"interpolation": interpolation, "like": like, "antialias": antialias}
    if like == "pil" and not images.is_cuda and not _tiny(images, arrays["size"]):
        return uniform(resize_each(list(images), arrays, **how))
    return _by_size(images, arrays["size"], lambda images, rows, size: _resize(images, size, **how))


def resize_each(images, arrays, *, interpolation, like, antialias=True):
    """The same of a list of images (C, H, W), whose sizes may differ; gives a list."""
    sizes, how = arrays["size"].astype(np.int64), {"interpolation": interpolation, "like": like, "antialias": antialias}
    if images[0].is_cuda and _as_pillow(images[0], sizes[0], interpolation, like):
        return resample.resize_each(images, sizes, interpolation, like, antialias)

    def to(image, size):
        if like == "pil" and not image.is_cuda:
            return play_on_tensor("resize", image, {"size": size}, **how)
        return _resize(image[None], tuple(size.tolist()), **how)[0]

    if images[0].is_cuda:
        return [to(*row) for row in zip(images, sizes, strict=True)]
    return each(to, images, sizes)


def _resize(images, size, *, interpolation, like, antialias):
    if _as_pillow(images, size, interpolation, like):
        return resample.resize(images, size, interpolation, like, antialias)
    if like == "pil":
        return transform.resize_nearest(images, size)
    return (v1 if like == "v1" else v2).resize(
        images, list(size), InterpolationMode(interpolation), antialias=antialias
    )


def _as_pillow(images, size, interpolation, like) -> bool:
    """In two passes, each rounded. So does PyTorch with uint8 for v2, but on a GPU it rounds once, and to a single pixel
    it fails an assertion of its own, unless the channels are last."""
    if like == "pil":
        return not interpolation.startswith("nearest")
    ours = like == "v2" and (images.is_cuda or tuple(size) == (1, 1))
    return ours and images.dtype == torch.uint8 and interpolation in ("bilinear", "bicubic")


def _tiny(images, sizes) -> bool:
    """Pillow takes .10 ms to make 40 x 40 pixels of 32 x 32, and a matrix .065; of 224 x 224 from 96 x 96 .6 and 3.6."""
    return max(images.shape[-2] * images.shape[-1], sizes.prod(1).max()) <= 48**2


# ---- warps


def warp_affine(images, arrays, *, interpolation, fill, like="pil"):
    """Image.transform(AFFINE), as torchvision's affine and rotate do on PIL images, or what they do on tensors."""
    return _warp(images, arrays["matrix"], arrays["size"], interpolation, fill, like)


def warp_perspective(images, arrays, *, interpolation, fill, like="pil"):
    """Image.transform(PERSPECTIVE), as torchvision's perspective does on PIL images, or what it does on tensors."""
    return _warp(images, arrays["coefficients"], arrays["size"], interpolation, fill, like)


def warp_each(images, arrays, *, interpolation, fill, like="pil"):
    """Either of a list of images (C, H, W), whose sizes may differ; gives a list. On a CPU Pillow does it."""
    data, sizes = arrays["matrix" if "matrix" in arrays else "coefficients"], arrays["size"]
    if like == "pil" and not images[0].is_cuda:
        return _by_pillow(images, data, sizes, interpolation, fill)
    rows = zip(images, data[:, None], sizes[:, None], strict=True)
    return [_warp(image[None], *row, interpolation, fill, like)[0] for image, *row in rows]


def _warp(images, data, sizes, interpolation, fill, like):
    """``data``: (N, 6) of an affine transform, (N, 8) of a perspective one."""
    if like == "pil" and not images.is_cuda and _is_pillow_faster(images, sizes, interpolation):
        return uniform(_by_pillow(list(images), data, sizes, interpolation, fill))
    affine = data.shape[1] == 6

    def to(images, rows, size):
        if like != "pil":
            grid = (grids.affine if affine else grids.perspective)(images, data[rows], size)
            return grids.sample(images, grid, interpolation, fill, like)
        if affine and interpolation.startswith("nearest"):
            return transform.transform_nearest(images, data[rows], size, fill)
        coordinates = transform.coordinates_of(data[rows], size, images.device)
        return transform.transform(images, coordinates, size, interpolation, fill)

    return _by_size(images, sizes, to)


# a CPU's Pillow is faster from so many pixels on: a call takes .1 ms, and its filters half of the batch's time, or less
_PILLOW_FROM = {"nearest": 160**2, "bilinear": 64**2, "bicubic": 32**2}


def _is_pillow_faster(images, sizes, interpolation) -> bool:
    pixels = max(images.shape[-2] * images.shape[-1], np.prod(sizes, 1).max())
    return pixels >= _PILLOW_FROM[interpolation.removesuffix("-exact")]


def _by_pillow(images, data, sizes, interpolation, fill) -> list[torch.Tensor]:
    mode, color = InterpolationMode(interpolation), transform.fill_like(images[0], fill).flatten().tolist()
    kind = Image.Transform.AFFINE if data.shape[1] == 6 else Image.Transform.PERSPECTIVE

    def to(image, row, size):
        how = InterpolationMode.NEAREST if _is_between_centres(row) else mode
        picture = v1.to_pil_image(image)
        bands = len(picture.getbands())
        filled = tuple(color if len(color) == bands else color * bands)
        made = picture.transform(tuple(size[::-1]), kind, row, v1.pil_modes_mapping[how], fillcolor=filled)
        return v1.pil_to_tensor(made)

    return each(to, images, data.tolist(), sizes.astype(np.int64).tolist())


def _is_between_centres(row: list[float]) -> bool:
    """An affine transform from centres of pixels to centres, as right angles may be: filters change nothing."""
    if len(row) != 6 or not all(map(float.is_integer, row)):
        return False
    a, b, _, d, e, _ = row
    return (a + b) % 2 == 1 == (d + e) % 2


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
                field = resample.banded(field, torch.from_numpy(matrix).to(device, non_blocking=True), blocks, axis)
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


# ---- shared


def _by_size(images, sizes, function):
    """``function(images, rows, size)`` on all rows of one target size: a tensor, or a list where there are several."""
    sizes = np.asarray(sizes).astype(np.int64)
    if (sizes == sizes[0]).all():
        return function(images, slice(None), tuple(sizes[0].tolist()))
    made = [None] * len(images)
    unique, which = np.unique(sizes, axis=0, return_inverse=True)
    for i, size in enumerate(unique.tolist()):
        rows = np.flatnonzero(which.reshape(-1) == i)
        for row, image in zip(rows, function(images[to_device(rows, images)], rows, tuple(size)), strict=True):
            made[row] = image
    return made


# what takes a list of images of several sizes
EACH = {"resize": resize_each, "warp_affine": warp_each, "warp_perspective": warp_each}
