"""Windows, flips, sizes and warps."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch.nn.functional import grid_sample
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from ...versions import TORCHVISION
from ..replay import play_on_tensor
from . import resample, transform
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
    y, x = (_to(border(line, n, mode), images) for line, n in zip(lines, shape))
    made = (
        images.index_select(-2, y[0]).index_select(-1, x[0])
        if same
        else transform.pixels(images)(y[:, :, None] * shape[1] + x[:, None, :])
    )
    if inside or mode != "constant":
        return made
    in_y, in_x = (_to((line >= 0) & (line < n), images) for line, n in zip(lines, shape))
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
    if not images[0].is_cuda:
        return each(lambda image, size: play_on_tensor("resize", image, {"size": size}, **how), images, sizes)
    if _as_pillow(images[0], interpolation, like):
        return resample.resize_each(images, sizes, interpolation, like, antialias)
    return [_resize(image[None], tuple(size), **how)[0] for image, size in zip(images, sizes.tolist(), strict=True)]


def _resize(images, size, *, interpolation, like, antialias):
    if _as_pillow(images, interpolation, like):
        return resample.resize(images, size, interpolation, like, antialias)
    if like == "pil":
        return transform.resize_nearest(images, size)
    return (v1 if like == "v1" else v2).resize(
        images, list(size), InterpolationMode(interpolation), antialias=antialias
    )


def _as_pillow(images, interpolation, like) -> bool:
    """In two passes, each rounded. So does PyTorch with uint8 for v2, but on a GPU it rounds once."""
    if like == "pil":
        return not interpolation.startswith("nearest")
    return like == "v2" and images.is_cuda and images.dtype == torch.uint8 and interpolation in ("bilinear", "bicubic")


def _tiny(images, sizes) -> bool:
    """Pillow takes .10 ms to make 40 x 40 pixels of 32 x 32, and a matrix .065; of 224 x 224 from 96 x 96 .6 and 3.6."""
    return max(images.shape[-2] * images.shape[-1], sizes.prod(1).max()) <= 48**2


# ---- warps


def warp_affine(images, arrays, *, interpolation, fill, like="pil"):
    """Image.transform(AFFINE), as torchvision's affine and rotate do on PIL images, or what they do on tensors."""
    return _warp(images, arrays["matrix"], arrays["size"], _affine_grid, interpolation, fill, like)


def warp_perspective(images, arrays, *, interpolation, fill, like="pil"):
    """Image.transform(PERSPECTIVE), as torchvision's perspective does on PIL images, or what it does on tensors."""
    return _warp(images, arrays["coefficients"], arrays["size"], _perspective_grid, interpolation, fill, like)


def _warp(images, data, sizes, grid, interpolation, fill, like):
    """``data``: (N, 6) of an affine transform, (N, 8) of a perspective one; ``grid`` makes torchvision's grid of it."""

    def to(images, rows, size):
        if like != "pil":
            return _grid_sample(images, grid(images, data[rows], size), interpolation, fill, like)
        if grid is _affine_grid and interpolation.startswith("nearest"):
            return transform.transform_nearest(images, data[rows], size, fill)
        coordinates = transform.coordinates_of(data[rows], size, images.device)
        return transform.transform(images, coordinates, size, interpolation, fill)

    return _by_size(images, sizes, to)


def elastic(images, arrays, *, alpha, sigma, interpolation, fill, like):
    """torchvision.transforms.functional.elastic_transform, which makes tensors of PIL images."""
    grid = displacement(arrays["key"], images.shape[-2:], alpha, sigma, images.device).to(_grid_dtype(images))
    return _grid_sample(images, grid.add_(_identity_grid(images)), interpolation, fill, like)


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


# ---- grids on tensors: torchvision's functionals take one grid, these one an image


def _grid_dtype(images):
    return images.dtype if images.is_floating_point() else torch.float32


def _base_grid(images, size, first):
    """(1, h * w, 3): x, y and 1 of each pixel; x and y count from ``first(length)``."""
    dtype, (h, w) = _grid_dtype(images), size
    x, y = (first(n) + torch.arange(n, dtype=dtype, device=images.device) for n in (w, h))
    return torch.stack([x.expand(h, w), y[:, None].expand(h, w), torch.ones_like(x).expand(h, w)], -1).reshape(1, -1, 3)


def _affine_grid(images, matrix, size):
    """torchvision's _affine_grid (_gen_affine_grid): coordinates count from the centres, which PIL's matrices do not."""
    (height, width), (h, w) = images.shape[-2:], size
    theta = matrix.reshape(-1, 2, 3).copy()
    theta[:, :, 2] += theta[:, :, 0] * (w / 2) + theta[:, :, 1] * (h / 2) - np.array([width / 2, height / 2])
    grid = _base_grid(images, size, lambda n: (1 - n) * 0.5)
    return _times(grid, _to(theta, images), (height, width)).reshape(-1, h, w, 2)


def _perspective_grid(images, coefficients, size):
    """torchvision's _perspective_grid."""
    h, w = size
    base = _base_grid(images, size, lambda n: 0.5)
    theta = _to(coefficients[:, :6].reshape(-1, 2, 3), images)
    last = np.concatenate([coefficients[:, 6:], np.ones((len(coefficients), 1))], 1)
    below = _times(base, _to(np.repeat(last[:, None], 2, 1), images), (2, 2))
    return (_times(base, theta, size) / below - 1).reshape(-1, h, w, 2)


def _times(base, theta, size):
    """base (1, P, 3) times theta (N, 2, 3), in halves of ``size``."""
    theta = theta.to(base.dtype).transpose(1, 2)
    theta = theta / torch.tensor([0.5 * size[1], 0.5 * size[0]], dtype=base.dtype, device=base.device)
    return base.expand(len(theta), -1, -1).bmm(theta)


def _identity_grid(images):
    """torchvision's _create_identity_grid."""
    lines = [
        torch.linspace((1 - n) / n, (n - 1) / n, n, dtype=_grid_dtype(images), device=images.device)
        for n in images.shape[-2:]
    ]
    y, x = torch.meshgrid(*lines, indexing="ij")
    return torch.stack([x, y], -1)[None]


def _grid_sample(images, grid, interpolation, fill, like):
    """torchvision's _apply_grid_transform; a channel of ones says where to fill."""
    x = images.to(grid.dtype)
    if fill is not None:
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    x = grid_sample(x, grid, interpolation, "zeros", align_corners=False)
    if fill is not None:
        x, mask = x[:, :-1], x[:, -1:]
        color = torch.tensor(fill, dtype=x.dtype, device=x.device)[:, None, None]
        if interpolation == "nearest":
            x = torch.where(mask < 0.5, color, x)
        elif like == "v1":
            x = x * mask + (1 - mask) * color
        else:
            x = (x - color) * mask + color
    return x if images.is_floating_point() else x.round().to(images.dtype)


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
        for row, image in zip(rows, function(images[_to(rows, images)], rows, tuple(size)), strict=True):
            made[row] = image
    return made


def _to(array, images):
    return torch.from_numpy(array).to(images.device, non_blocking=True)
