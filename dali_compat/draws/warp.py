"""Random parameters of rotations, affine and perspective warps."""

from __future__ import annotations

import functools
import math

import numpy as np

from .laws import coin, real, whole
from .registry import dictates, draws


@draws(uniforms=1)
def rotation(sizes, u, *, degrees, expand, center, like):
    """torchvision.transforms.RandomRotation.get_params. With ``expand``, sizes after it are those of PIL.Image.rotate
    (``like`` "pil"), or of torchvision's rotation of tensors ("v1", "v2")."""
    angle = real(u[:, 0], *degrees)
    if expand:
        sizes = _rotated_as_pillow(sizes, angle, center) if like == "pil" else _rotated(sizes, angle, center, like)
    return {"angle": angle}, sizes


def size_of_rotation(size: tuple[int, int], angle: float, center, like: str) -> tuple[int, int]:
    """(height, width) of one image, as rotation() has it with ``expand``."""
    sizes, angles = np.array([size]), np.array([angle])
    rotated = _rotated_as_pillow(sizes, angles, center) if like == "pil" else _rotated(sizes, angles, center, like)
    return tuple(rotated[0].tolist())


@dictates(rotation)
def rotation_answers(row, step):
    return [("uniform", row["angle"])]


def _rotated_as_pillow(sizes, angle, center) -> np.ndarray:
    """PIL.Image.Image.rotate(expand=True): the corners' extent, rounded outwards.

    Corners may fall on whole pixels (at 30 degrees, say), so the last bit counts: math's cosine and Python's round.
    """
    turned = (angle % 360.0).tolist()
    cos = np.array([round(math.cos(-math.radians(a)), 15) for a in turned])
    sin = np.array([round(math.sin(-math.radians(a)), 15) for a in turned])
    height, width = sizes[:, 0], sizes[:, 1]
    cx, cy = (width / 2, height / 2) if center is None else center

    def moved(x, y, dx=0.0, dy=0.0):
        return cos * x + sin * y + dx, -sin * x + cos * y + dy

    dx, dy = moved(-cx, -cy)
    corners = np.array([moved(x, y, dx + cx, dy + cy) for x, y in ((0, 0), (width, 0), (width, height), (0, height))])
    new_width, new_height = np.ceil(corners.max(0)) - np.floor(corners.min(0))
    return _turned(sizes, np.stack([new_height, new_width], 1).astype(np.int64), np.array(turned), center)


def _turned(sizes, new, turned, center) -> np.ndarray:
    """Right angles about the centre are transposed."""
    if center is None:
        new = np.where((turned % 180 == 0)[:, None], sizes, new)
        new = np.where((turned % 180 == 90)[:, None], sizes[:, ::-1], new)
    return new


def _rotated(sizes, angle, center, like) -> np.ndarray:
    """torchvision's _compute_affine_output_size: the corners' extent in float32, rounded outwards but for 1e-4.

    float32 products differ from one processor to another, so the few rows that this could change ask torchvision.
    """
    turned = angle % 360 if like == "v2" else angle
    radians = np.radians(turned)
    cos, sin = np.cos(radians), np.sin(radians)
    half = sizes[:, ::-1] / 2  # x, y
    corners = np.array([(-1, -1), (-1, 1), (1, 1), (1, -1)])[:, None] * half
    moved = np.stack([cos * corners[..., 0] - sin * corners[..., 1], sin * corners[..., 0] + cos * corners[..., 1]], -1)
    if center is not None:
        off = np.array(center) - half
        moved += off - np.stack([cos * off[:, 0] - sin * off[:, 1], sin * off[:, 0] + cos * off[:, 1]], -1)
    low, high = moved.min(0) + half, moved.max(0) + half
    new = (np.ceil(high) - np.floor(low)).astype(np.int64)[:, ::-1]
    edges = np.concatenate([low, high], 1)
    sure = (np.abs(edges - np.rint(edges)) > 3e-4 + 1e-6 * np.abs(edges)).all(1)
    for row in np.flatnonzero(~sure):
        new[row] = _asked(*sizes[row].tolist(), float(turned[row]), center and tuple(center), like)
    return _turned(sizes, new, turned, center) if like == "v2" else new


@functools.lru_cache(4096)  # an angle may be a constant
def _asked(height: int, width: int, angle: float, center, like) -> tuple[int, int]:
    """(height, width) by the code of torchvision's rotate."""
    from torchvision.transforms import _functional_tensor, functional
    from torchvision.transforms.v2.functional import _geometry

    off = [0.0, 0.0] if center is None else [c - s * 0.5 for c, s in zip(center, (width, height), strict=True)]
    matrix = functional._get_inverse_affine_matrix(off, -angle, [0.0, 0.0], 1.0, [0.0, 0.0])
    module = _geometry if like == "v2" else _functional_tensor
    return module._compute_affine_output_size(matrix, width, height)[::-1]


@draws(uniforms=6)
def affine_parameters(sizes, u, *, degrees, translate, scale, shear, version="v1"):
    """torchvision.transforms.RandomAffine.get_params; ``shear`` is (low, high) of x, or those of x and of y.
    ``version`` changes none of them: it says whose matrix they become (matrices.py)."""
    n = len(sizes)
    shift = np.zeros((n, 2), np.int32)
    if translate is not None:
        most = np.array(translate) * sizes[:, ::-1]
        shift = np.rint(real(u[:, 1:3], -most, most)).astype(np.int32)
    shears = np.zeros((n, 2))
    if shear is not None:
        for axis in range(len(shear) // 2):
            shears[:, axis] = real(u[:, 4 + axis], *shear[2 * axis : 2 * axis + 2])
    return {
        "angle": real(u[:, 0], *degrees),
        "translate": shift,
        "scale": np.ones(n) if scale is None else real(u[:, 3], *scale),
        "shear": shears,
    }, sizes


@dictates(affine_parameters)
def affine_parameters_answers(row, step):
    args = dict(step.draw.args)
    shears = len(args["shear"] or ()) // 2
    given = {"translate": 2 * (args["translate"] is not None), "scale": args["scale"] is not None, "shear": shears}
    values = [value for name, count in given.items() for value in np.atleast_1d(row[name])[:count]]
    return [("uniform", value) for value in (row["angle"], *values)]


@draws(uniforms=9)
def perspective_points(sizes, u, *, distortion_scale, p):
    """torchvision.transforms.RandomPerspective.get_params: where the corners go, as (x, y) of the top left, top right,
    bottom right and bottom left."""
    reach = (distortion_scale * (sizes[:, ::-1] // 2)).astype(np.int64) + 1  # as many places on x, on y
    start = np.zeros((len(sizes), 4, 2), np.int64)
    start[:, [1, 2], 0] = (sizes[:, 1] - reach[:, 0])[:, None]
    start[:, [2, 3], 1] = (sizes[:, 0] - reach[:, 1])[:, None]
    ends = start + whole(u[:, 1:].reshape(-1, 4, 2), 0, reach[:, None])
    return {"flag": (u[:, 0] < p).astype(np.int32), "endpoints": ends.astype(np.int32)}, sizes


@dictates(perspective_points)
def perspective_points_answers(row, step):
    return [coin(row["flag"]), *(("whole", int(v)) for v in row["endpoints"].flat if row["flag"])]
