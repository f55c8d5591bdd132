"""Matrices that map output to input pixels of a warp, as in PIL.Image.transform.

Matrices for tensors are relative to the images' centers, like torchvision's grids. Each draw function runs the Draw
``inner`` to get the transform's parameters, such as an angle. All but draw_dali_matrix() return ``matrix`` (N, 6) or
``coefficients`` (N, 8) in float64, the output ``size`` (N, 2), and the ``flag`` of ``inner``, if any.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import _functional_tensor, functional
from torchvision.transforms.v2.functional import _geometry

from .draws import draws, run

# v1 and v2 add in different orders, so that rounding ties may differ
_INVERSE = {"v1": functional._get_inverse_affine_matrix, "v2": _geometry._get_inverse_affine_matrix}


@draws()
def draw_rotation_matrix(sizes, u, *, inner, expand, center, like):
    values, after = run(inner, sizes, u)
    rows = zip(values["angle"].tolist(), sizes.tolist(), strict=True)
    matrix = np.array([rotation(*row, expand, center, like)[1] for row in rows])
    return _with_size(values, after, matrix=matrix.reshape(-1, 6))


def _with_size(values, after, **matrix):
    flag = {"flag": values["flag"]} if "flag" in values else {}
    return matrix | {"size": after.astype(np.int32)} | flag, after


_rotate: Any = Image.Image.rotate


class _Sized:
    """A stand-in for an image in Image.rotate(). The call returns the (height, width) and the AFFINE data of the
    rotation instead of pixels."""

    def __init__(self, size):
        self.height, self.width = size
        self.size = self.width, self.height

    def copy(self):
        return (self.height, self.width), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]

    def transpose(self, method):
        height, width = self.height, self.width
        return {
            Image.Transpose.ROTATE_90: ((width, height), [0.0, -1.0, float(width), 1.0, 0.0, 0.0]),
            Image.Transpose.ROTATE_180: ((height, width), [-1.0, 0.0, float(width), 0.0, -1.0, float(height)]),
            Image.Transpose.ROTATE_270: ((width, height), [0.0, 1.0, 0.0, -1.0, 0.0, float(height)]),
        }[method]

    def transform(self, size, method, matrix, *args, **kwargs):
        return size[::-1], matrix


def rotation(angle: float, size, expand: bool = False, center=None, like: str = "pil") -> tuple[Any, list[float]]:
    """Return the output (height, width) and the AFFINE data of a rotation by ``angle`` degrees."""
    height, width = size
    if like == "pil" and (expand or angle % 90 == 0):
        return _rotate(_Sized(size), angle, expand=expand, center=center)
    if like == "pil":  # the arithmetic of rotate() in a quarter of the time
        x, y = (width / 2, height / 2) if center is None else center
        angle = -math.radians(angle % 360.0)
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        return size, [cos, sin, cos * -x + sin * -y + 0.0 + x, -sin, cos, -sin * -x + cos * -y + 0.0 + y]
    angle = angle % 360 if like == "v2" else angle
    if like == "v2" and center is None and angle in ((0, 90, 180, 270) if expand or height == width else (0, 180)):
        cos, sin = {0: (1.0, 0.0), 90: (0.0, 1.0), 180: (-1.0, 0.0), 270: (0.0, -1.0)}[int(angle)]
        return (size if sin == 0 else (width, height)), [cos, -sin, 0.0, sin, cos, 0.0]
    matrix = _INVERSE[like](_from_centre(center, size), -angle, [0.0, 0.0], 1.0, [0.0, 0.0])
    extent = (_geometry if like == "v2" else _functional_tensor)._compute_affine_output_size
    return (extent(matrix, width, height)[::-1] if expand else size), matrix


def _from_centre(center, size) -> list[float]:
    return [0.0, 0.0] if center is None else [x - length * 0.5 for x, length in zip(center, size[::-1], strict=True)]


@draws()
def draw_affine_matrix(sizes, u, *, inner, center, like):
    values, after = run(inner, sizes, u)
    version = dict(inner.args).get("version", "v1")
    columns = (values[name].tolist() for name in ("angle", "translate", "scale", "shear"))
    rows = zip(*columns, sizes.tolist(), strict=True)
    matrix = np.array([affine(a, t, scale, shear, size, center, like, version) for a, t, scale, shear, size in rows])
    return _with_size(values, after, matrix=matrix.reshape(-1, 6))


def affine(angle, translate, scale, shear, size, center=None, like: str = "pil", version: str = "v1") -> list[float]:
    """Return the AFFINE data of torchvision's affine().

    Angles are in degrees, ``translate`` and ``shear`` are (x, y), and ``size`` is (height, width).
    """
    if like != "pil":
        center = _from_centre(center, size)
    elif center is None:
        center = [size[1] * 0.5, size[0] * 0.5]
    return _INVERSE[version](list(center), angle, [float(t) for t in translate], scale, list(shear))


@draws()
def draw_perspective_coefficients(sizes, u, *, inner):
    """Return the results of torchvision's _get_perspective_coeffs() for all samples."""
    values, after = run(inner, sizes, u)
    height, width = (sizes - 1).T.astype(float)
    zero = np.zeros_like(width)
    start = np.stack([np.stack(p, 1) for p in ((zero, zero), (width, zero), (width, height), (zero, height))], 1)
    end, one = values["endpoints"].astype(float), np.ones((len(sizes), 4))
    (sx, sy), (ex, ey) = np.moveaxis(start, 2, 0), np.moveaxis(end, 2, 0)
    nil = np.zeros_like(one)
    rows_x = np.stack([ex, ey, one, nil, nil, nil, -sx * ex, -sx * ey], 2)
    rows_y = np.stack([nil, nil, nil, ex, ey, one, -sy * ex, -sy * ey], 2)
    system = np.stack([rows_x, rows_y], 2).reshape(-1, 8, 8)
    if "flag" in values:
        system[values["flag"] == 0] = np.eye(8)  # rows with flag 0 may have no solution
    solved = torch.linalg.lstsq(torch.from_numpy(system), torch.from_numpy(start.reshape(-1, 8, 1)), driver="gels")
    # rounded to float32, as in torchvision
    return _with_size(values, after, coefficients=solved.solution[..., 0].float().double().numpy())


# ---- matrices for DALI

# DALI computes in float32, so a coordinate on the edge of a pixel may fall to either side. Therefore, matrices are
# shifted by more than float32's rounding error, but by less than the distance to the next edge.
_LAST_BIT = 2.0**-17  # half of the last bit of fixed point
_GRAIN = 2.0**-8  # all numbers of a matrix that maps lines of pixels onto pixel edges are multiples of this
_BETWEEN = 2.0**-10  # shift of such a matrix


@draws()
def draw_dali_matrix(sizes, u, *, inner, interpolation):
    """Return Pillow's ``matrix`` or ``coefficients`` as ``matrix`` (N, 3, 3) for DALI. Samples with ``flag`` 0 get the
    identity.

    An affine warp that interpolates also has ``inside`` (N, 3, 3), which determines the output pixels to fill.
    """
    values, after = run(inner, sizes, u)
    given = {}
    if "matrix" not in values:
        matrix = values["coefficients"]
        given["matrix"] = np.concatenate([matrix, np.ones((len(matrix), 1))], 1).reshape(-1, 3, 3)
    elif interpolation.startswith("nearest"):
        given["matrix"] = _as_3x3(_off_edges(_in_fixed_point(values["matrix"]), _LAST_BIT))
    else:
        rows = values["matrix"].reshape(-1, 2, 3)
        given.update(matrix=_as_3x3(rows), inside=_as_3x3(_off_edges(rows, 0.0)))
    if "flag" in values:
        given = {name: np.where(values["flag"][:, None, None] != 0, made, np.eye(3)) for name, made in given.items()}
    return {name: made.astype(np.float32) for name, made in (given | {"size": after}).items()}, after


def _in_fixed_point(matrix) -> np.ndarray:
    """Round matrices (N, 2, 3) to fixed-point numbers, as Pillow's nearest warp does (affine_fixed in Geometry.c)."""
    rows = matrix.reshape(-1, 2, 3)
    # the steps from pixel to pixel, and the position of the first pixel's center, have 16 fractional bits
    steps = np.floor(rows[:, :, :2] * 65536 + 0.5)
    centre = np.floor((rows * np.array([0.5, 0.5, 1])).sum(2, keepdims=True) * 65536 + 0.5)
    fixed = np.concatenate([steps, centre - steps.sum(2, keepdims=True) * 0.5], 2) / 65536
    scales = (matrix[:, 1] == 0) & (matrix[:, 3] == 0)  # ImagingScaleAffine uses double precision
    return np.where(scales[:, None, None], rows, fixed)


def _off_edges(rows, otherwise: float) -> np.ndarray:
    """Shift matrices (N, 2, 3) slightly, to make rounding select the same pixels as in Pillow.

    Matrices that map pixels exactly onto pixel edges are shifted by _BETWEEN, others by ``otherwise``.
    """
    # as rotations by right angles and scales by powers of two may do; Pillow then takes the pixel with the higher index
    on_edges = (rows / _GRAIN % 1 == 0).all((1, 2))
    raised = rows.copy()
    raised[:, :, 2] += np.where(on_edges, _BETWEEN, otherwise)[:, None]
    return raised


def _as_3x3(rows) -> np.ndarray:
    last = np.broadcast_to([0.0, 0.0, 1.0], (len(rows), 1, 3))
    return np.concatenate([rows, last], 1)
