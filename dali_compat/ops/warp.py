"""Rotations, affine and perspective warps, and ElasticTransform."""

from __future__ import annotations

import functools

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2
from torchvision.transforms.v2.functional import _geometry

from ..inspection.untranslatable import Untranslatable
from ..plan import EXACT, Options, Step, draw, step
from ..runtime.device import to_device
from ..runtime.installation import dali_version
from .arguments import TORCHVISION, fill_list, fill_of, functions, interpolation_of, ints, like_of, version_of
from .draws import draws, randint, uniform
from .kernels import as_picture, as_tensor, image_kernel, kernel
from .matrices import rotation
from .pixels import resample, transform
from .pixels.lists import by_size, each, stack_if_uniform
from .pixels.squares import uniforms
from .translators import register
from .windows import border

# interpolations that torchvision supports for PIL images, for tensors, and in ElasticTransform
_PIL_MODES, TENSOR_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic"), ("nearest", "bilinear")
_GRID_MODES = ("nearest", "bilinear", "bicubic")


@register(v1.RandomRotation, v2.RandomRotation, consumes="degrees interpolation expand center fill")
def translate_random_rotation(t, spec):
    how = warp_arguments(t, spec)
    center = t.center and tuple(t.center)
    angle = draw("rotation", degrees=tuple(t.degrees), expand=t.expand, center=center, like=how["like"])
    after = spec.but(size=None) if t.expand else spec
    return (step("rotate", after, angle, expand=t.expand, center=center, **how),)


@register(v1.RandomAffine, v2.RandomAffine, consumes="degrees translate scale shear interpolation fill center")
def translate_random_affine(t, spec):
    values = {name: getattr(t, name) and tuple(getattr(t, name)) for name in ("degrees", "translate", "scale", "shear")}
    center = t.center and tuple(t.center)
    version = version_of(t)
    parameters = draw("affine_parameters", **values, version=version)
    return (step("affine", spec, parameters, center=center, version=version, **warp_arguments(t, spec)),)


@register(v1.RandomPerspective, v2.RandomPerspective, consumes="distortion_scale p interpolation fill")
def translate_random_perspective(t, spec):
    points = draw("perspective_points", distortion_scale=t.distortion_scale, p=t.p)
    return (step("perspective", spec, points, **warp_arguments(t, spec)),)


@register(v1.ElasticTransform, v2.ElasticTransform, consumes="alpha sigma interpolation fill")
def translate_elastic_transform(t, spec):
    alpha, sigma = tuple(map(float, t.alpha)), tuple(map(float, t.sigma))
    how = warp_arguments(t, spec, _GRID_MODES)
    return (step("elastic", spec, draw("random_key"), alpha=alpha, sigma=sigma, **how),)


def _fidelity(s: Step, by_dali: bool, options: Options, two_pass: bool) -> str:
    if not by_dali:
        return EXACT
    warped = ".003" if (dali_version() or "2").startswith("1.") else ".001"  # DALI before 2.0 uses another operator
    mean, most = (".002", "255 at edges") if s.op == "perspective" else (warped, "1")
    return f"mean error {mean} of 255" + ("" if options.gpu else f" and maximum {most}")


def _as_warp(s: Step, options: Options, decoded: bool) -> Step:
    """Return the warp that replaces a rotate, affine or perspective step."""
    how = s.kwargs
    args = tuple((name, how[name]) for name in ("interpolation", "fill", "like"))
    if s.op == "perspective":
        return s.but(op="warp_perspective", args=args, draw=draw("perspective_coefficients", inner=s.draw))
    same = {"inner": s.draw, "center": how["center"], "like": how["like"]}
    if s.op == "rotate":
        return s.but(op="warp_affine", args=args, draw=draw("rotation_matrix", expand=how["expand"], **same))
    return s.but(op="warp_affine", args=args, draw=draw("affine_matrix", **same))


def _in_dali(s: Step, dtype: torch.dtype, options: Options) -> bool:
    how = s.kwargs
    return not options.exact and how["like"] == "pil" and how["interpolation"] != "bicubic"  # DALI's bicubic differs


def _for_dali(s: Step) -> Step:
    how = {name: s.kwargs[name] for name in ("interpolation", "fill")}
    return s.but(args=tuple(how.items()), draw=draw("dali_matrix", inner=s.draw, interpolation=how["interpolation"]))


def warp_arguments(t, spec, allowed: tuple[str, ...] | None = None) -> dict:
    """Return the arguments that all warps take. Raise Untranslatable if the interpolation is not ``allowed``."""
    interpolation, like = interpolation_of(t), like_of(t, spec)
    if interpolation not in (allowed or (_PIL_MODES if like == "pil" else TENSOR_MODES)):
        raise Untranslatable(t, f"torchvision does not support interpolation={interpolation!r} here")
    return {"interpolation": interpolation, "fill": fill_of(t, spec), "like": like}


@draws(uniforms=1)
def draw_rotation(sizes, u, *, degrees, expand, center, like):
    angle = uniform(u[:, 0], *degrees)
    if expand:
        rows = zip(angle.tolist(), sizes.tolist(), strict=True)
        sizes = np.array([rotation(*row, expand, center, like)[0] for row in rows], np.int64).reshape(-1, 2)
    return {"angle": angle}, sizes


@draws(uniforms=6)
def draw_affine_parameters(sizes, u, *, degrees, translate, scale, shear, version="v1"):
    """Draw the parameters of RandomAffine. ``shear`` is (low, high) for x, or (low, high, low, high) for x and y.

    ``version`` affects only the matrix (matrices.py).
    """
    n = len(sizes)
    shift = np.zeros((n, 2), np.int32)
    if translate is not None:
        most = np.array(translate) * sizes[:, ::-1]
        shift = np.rint(uniform(u[:, 1:3], -most, most)).astype(np.int32)
    shears = np.zeros((n, 2))
    if shear is not None:
        for axis in range(len(shear) // 2):
            shears[:, axis] = uniform(u[:, 4 + axis], *shear[2 * axis : 2 * axis + 2])
    return {
        "angle": uniform(u[:, 0], *degrees),
        "translate": shift,
        "scale": np.ones(n) if scale is None else uniform(u[:, 3], *scale),
        "shear": shears,
    }, sizes


@draws(uniforms=9)
def draw_perspective_points(sizes, u, *, distortion_scale, p):
    """Draw the new corners as (x, y), in the order top left, top right, bottom right, bottom left."""
    reach = (distortion_scale * (sizes[:, ::-1] // 2)).astype(np.int64) + 1  # number of positions in x and in y
    start = np.zeros((len(sizes), 4, 2), np.int64)
    start[:, [1, 2], 0] = (sizes[:, 1] - reach[:, 0])[:, None]
    start[:, [2, 3], 1] = (sizes[:, 0] - reach[:, 1])[:, None]
    ends = start + randint(u[:, 1:].reshape(-1, 4, 2), 0, reach[:, None])
    return {"flag": (u[:, 0] < p).astype(np.int32), "endpoints": ends.astype(np.int32)}, sizes


@kernel(in_dali=_in_dali, for_dali=_for_dali)
def warp_affine(images, arrays, *, interpolation, fill, like="pil"):
    """Warp as Image.transform(AFFINE) does for PIL images, or as torchvision's affine and rotate do for tensors."""
    return _warp(images, arrays["matrix"], arrays["size"], interpolation, fill, like)


@kernel(in_dali=_in_dali, for_dali=_for_dali)
def warp_perspective(images, arrays, *, interpolation, fill, like="pil"):
    """Warp as Image.transform(PERSPECTIVE) does for PIL images, or as torchvision's perspective does for tensors."""
    return _warp(images, arrays["coefficients"], arrays["size"], interpolation, fill, like)


def _warp(images, data, sizes, interpolation, fill, like):
    """Warp images by ``data``, (N, 6) for an affine transform or (N, 8) for a perspective one."""
    if like == "pil" and not images.is_cuda and _is_pillow_faster(images, sizes, interpolation):
        made = _by_pillow(list(images), data, sizes, interpolation, fill)
        return made[0][None] if len(made) == 1 else stack_if_uniform(made)
    affine = data.shape[1] == 6

    def warp_to(images, rows, size):
        if like != "pil":
            grid = (transform.affine if affine else transform.perspective)(images, data[rows], size)
            return transform.sample(images, grid, interpolation, fill, like)
        if affine and interpolation.startswith("nearest"):
            return transform.transform_nearest(images, data[rows], size, fill)
        coordinates = transform.coordinates_of(data[rows], size, images.device)
        return transform.transform(images, coordinates, size, interpolation, fill)

    return by_size(images, sizes, warp_to)


# On a CPU, Pillow is faster than torch from this number of pixels on. Its filters take at most half of torch's time,
# but each call takes another .1 ms.
_PILLOW_FROM = {"nearest": 160**2, "bilinear": 64**2, "bicubic": 32**2}


def _is_pillow_faster(images, sizes, interpolation) -> bool:
    pixels = max(images.shape[-2] * images.shape[-1], np.prod(sizes, 1).max())
    return pixels >= _PILLOW_FROM[interpolation.removesuffix("-exact")]


def _by_pillow(images, data, sizes, interpolation, fill) -> list[torch.Tensor]:
    mode, color = InterpolationMode(interpolation), transform.fill_like(images[0], fill).flatten().tolist()
    kind = Image.Transform.AFFINE if data.shape[1] == 6 else Image.Transform.PERSPECTIVE

    def warp_one(image, row, size):
        how = InterpolationMode.NEAREST if _is_between_centres(row) else mode
        picture = as_picture(image)
        bands = len(picture.getbands())
        filled = tuple(color if len(color) == bands else color * bands)
        made = picture.transform(tuple(size[::-1]), kind, row, F1.pil_modes_mapping[how], fillcolor=filled)
        return as_tensor(made)

    return each(warp_one, images, data.tolist(), sizes.astype(np.int64).tolist())


def _is_between_centres(row: list[float]) -> bool:
    """Return True if an affine transform maps pixel centers to pixel centers. Filters then have no effect."""
    if len(row) != 6 or not all(map(float.is_integer, row)):
        return False
    a, b, _, d, e, _ = row
    return (a + b) % 2 == 1 == (d + e) % 2


# ---- elastic warps

# before 0.26, torchvision.transforms.ElasticTransform measures x in heights and y in widths (pytorch/vision#9299)
_SWAPS = TORCHVISION < (0, 26)


@kernel(in_batches=True)
def elastic(images, arrays, *, alpha, sigma, interpolation, fill, like):
    """Warp with a random displacement. PIL images are processed as tensors, as in torchvision."""
    size, device, dtype = images.shape[-2:], images.device, transform.dtype_of(images)
    grid = displacement(arrays["key"], size, alpha, sigma, device).to(dtype)
    grid.add_(_geometry._create_identity_grid(size, device, dtype))
    return transform.sample(images, grid, interpolation, fill, like)


def displacement(keys: np.ndarray, size, alpha, sigma, device) -> torch.Tensor:
    """Return the displacement (N, height, width, 2) float32 that ElasticTransform computes from random noise.

    ``alpha`` and ``sigma`` are (x, y).
    """
    height, width = size
    noise = uniforms(keys, 2 * height * width, device).view(-1, 2, height, width).to(torch.float64).mul_(2).sub_(1)
    fields = []
    for i, extent in enumerate((height, width) if _SWAPS else (width, height)):
        field = noise[:, i : i + 1]
        if sigma[i] > 0:
            taps = int(8 * sigma[i] + 1) | 1  # the next odd number
            for axis, axis_sigma in ((-1, sigma[0]), (-2, sigma[1])):
                matrix, blocks = _gaussian(field.shape[axis], taps, axis_sigma)
                field = resample.banded(field, to_device(matrix, device), blocks, axis)
        fields.append(field[:, 0] * (alpha[i] / extent))
    return torch.stack(fields, -1).to(torch.float32)


@functools.lru_cache(16)
def _gaussian(size, taps, sigma):
    """Return torchvision's Gaussian blur with reflected borders as a matrix (in, out), and the matrix's blocks for
    banded()."""
    reach = taps // 2
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (x / sigma) ** 2)
    outputs = np.arange(size)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (border(outputs + x[:, None], size, "reflect"), outputs), weights[:, None] / weights.sum())
    return matrix, resample.band(np.maximum(outputs - reach, 0), outputs + reach + 1, size)


# ---- one image


@image_kernel("rotate", lowered=_as_warp, fidelity=_fidelity, keeps_info=True)
def rotate_image(image, row, *, interpolation, expand, center, fill, like):
    options = {"expand": expand, "center": center, "fill": fill_list(fill)}
    return functions(like).rotate(image, float(row["angle"]), InterpolationMode(interpolation), **options)


@image_kernel("affine", lowered=_as_warp, fidelity=_fidelity, keeps_info=True)
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


@image_kernel("perspective", lowered=_as_warp, fidelity=_fidelity, keeps_info=True)
def perspective_image(image, row, *, interpolation, fill, like):
    _, height, width = F1.get_dimensions(image)
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    endpoints = [ints(point) for point in row["endpoints"]]
    return functions(like).perspective(image, corners, endpoints, InterpolationMode(interpolation), fill_list(fill))


@image_kernel("elastic")
def elastic_image(image, row, *, alpha, sigma, interpolation, fill, like):
    _, height, width = F1.get_dimensions(image)
    field = displacement(np.array([row["key"]]), (height, width), alpha, sigma, torch.device("cpu"))
    apply = F1.elastic_transform if like == "v1" else F2.elastic
    return apply(image, field, InterpolationMode(interpolation), fill_list(fill))
