"""Matrices of warps as torchvision hands them to PIL.Image.transform, from output to input pixels.

Those of tensors count from the images' centres, as torchvision's grids do.

Each takes the draw of the transform's own parameters (``of``) and gives ``matrix`` (N, 6), or ``coefficients`` (N, 8),
in float64, and ``size`` (N, 2) of the output; a ``flag`` is passed on.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torchvision.transforms import functional
from torchvision.transforms.v2.functional import _geometry

from .draws import draws, lookup, run

# their sums are in other orders: a tie may hang on the last bit
_INVERSE = {"v1": functional._get_inverse_affine_matrix, "v2": _geometry._get_inverse_affine_matrix}


def _uniforms(of, **_) -> int:
    return lookup(of)[0]


@draws(uniforms=_uniforms)
def draw_rotation_matrix(sizes, u, *, of, center, like):
    """PIL.Image.Image.rotate, or torchvision's rotate of tensors."""
    values, after = run(of, sizes, u)
    rows = zip(values["angle"].tolist(), sizes.tolist(), after.tolist(), strict=True)
    if like == "pil":
        matrix = np.array([rotation(angle, size, new, center) for angle, size, new in rows])
    else:
        matrix = np.array([rotation_of_tensors(angle, size, new, center, like) for angle, size, new in rows])
    return _matrices(values, matrix, after)


def _matrices(values, matrix, after):
    flag = {"flag": values["flag"]} if "flag" in values else {}
    return {"matrix": matrix.reshape(-1, 6), "size": after.astype(np.int32), **flag}, after


def rotation(angle: float, size, new_size, center=None) -> list[float]:
    """The AFFINE data of a rotation by ``angle`` degrees from (height, width) to a new (height, width)."""
    (height, width), (new_height, new_width) = size, new_size
    angle = angle % 360.0
    if center is None and _is_transposed(angle, size, new_size):
        return {  # a transposition in Pillow, which this does exactly
            0: [1.0, 0.0, 0.0, 0.0, 1.0, 0.0],
            90: [0.0, -1.0, float(width), 1.0, 0.0, 0.0],
            180: [-1.0, 0.0, float(width), 0.0, -1.0, float(height)],
            270: [0.0, 1.0, 0.0, -1.0, 0.0, float(height)],
        }[int(angle)]
    x, y = center if center is not None else (width / 2, height / 2)
    angle = -math.radians(angle)
    a, b = round(math.cos(angle), 15), round(math.sin(angle), 15)
    d, e = round(-math.sin(angle), 15), round(math.cos(angle), 15)
    c, f = a * -x + b * -y + 0.0 + x, d * -x + e * -y + 0.0 + y
    if (new_height, new_width) != (height, width):
        x, y = -(new_width - width) / 2.0, -(new_height - height) / 2.0
        c, f = a * x + b * y + c, d * x + e * y + f
    return [a, b, c, d, e, f]


def rotation_of_tensors(angle: float, size, new_size, center=None, like: str = "v1") -> list[float]:
    """The same of tensors; v2 transposes them, v1 does not."""
    angle = angle % 360 if like == "v2" else angle
    if like == "v2" and center is None and _is_transposed(angle, size, new_size):
        cos, sin = {0: (1.0, 0.0), 90: (0.0, 1.0), 180: (-1.0, 0.0), 270: (0.0, -1.0)}[int(angle)]
        return [cos, -sin, 0.0, sin, cos, 0.0]
    return _INVERSE[like](_from_centre(center, size), -angle, [0.0, 0.0], 1.0, [0.0, 0.0])


def _is_transposed(angle: float, size, new_size) -> bool:
    return angle in (0, 180) or (angle in (90, 270) and tuple(new_size) == tuple(size)[::-1])


def _from_centre(center, size) -> list[float]:
    return [0.0, 0.0] if center is None else [x - length * 0.5 for x, length in zip(center, size[::-1], strict=True)]


@draws(uniforms=_uniforms)
def draw_affine_matrix(sizes, u, *, of, center, like):
    """torchvision.transforms.functional.affine, or v2's, as the parameters (``of``) say."""
    values, after = run(of, sizes, u)
    version = dict(of.args).get("version", "v1")
    rows = zip(
        *(values[name].tolist() for name in ("angle", "translate", "scale", "shear")), sizes.tolist(), strict=True
    )
    matrix = np.array([affine(a, t, scale, shear, size, center, like, version) for a, t, scale, shear, size in rows])
    return _matrices(values, matrix, after)


def affine(angle, translate, scale, shear, size, center=None, like: str = "pil", version: str = "v1") -> list[float]:
    """The AFFINE data; angles in degrees, ``translate`` and ``shear`` as (x, y), ``size`` as (height, width)."""
    if like != "pil":
        center = _from_centre(center, size)
    elif center is None:
        center = [size[1] * 0.5, size[0] * 0.5]
    return _INVERSE[version](list(center), angle, [float(t) for t in translate], scale, list(shear))


@draws(uniforms=_uniforms)
def draw_perspective_coefficients(sizes, u, *, of):
    """torchvision.transforms.functional._get_perspective_coeffs, of all rows at once."""
    values, after = run(of, sizes, u)
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
        system[values["flag"] == 0] = np.eye(8)  # of those that stay as they are there may be no solution
    solved = torch.linalg.lstsq(torch.from_numpy(system), torch.from_numpy(start.reshape(-1, 8, 1)), driver="gels")
    flag = {"flag": values["flag"]} if "flag" in values else {}
    rounded = solved.solution[..., 0].float().double().numpy()  # to float32, as torchvision does
    return {"coefficients": rounded, "size": after.astype(np.int32), **flag}, after
