"""Rotations and other warps."""

from __future__ import annotations

from torchvision import transforms as v1
from torchvision.transforms import v2

from ..plan import Step, draw, step
from .fidelity import EXACT, warped
from .geometry import fill_of, interpolation_of, like_of, version_of
from .registry import lowers, register
from .untranslatable import Untranslatable

# what torchvision takes of PIL images, of tensors, and where it makes tensors of both
_OF_PIL, OF_TENSORS = ("nearest", "nearest-exact", "bilinear", "bicubic"), ("nearest", "bilinear")
_OF_GRIDS = ("nearest", "bilinear", "bicubic")


@register(v1.RandomRotation, v2.RandomRotation, consumes="degrees interpolation expand center fill")
def random_rotation(t, spec):
    how = _how(t, spec)
    center = t.center and tuple(t.center)
    angle = draw("rotation", degrees=tuple(t.degrees), expand=t.expand, center=center, like=how["like"])
    after = spec.but(size=None) if t.expand else spec
    return (step("rotate", after, angle, expand=t.expand, center=center, fidelity=warped, **how),)


@lowers("rotate")
def rotate_as_warp(s):
    return _warp_affine(s, "rotation_matrix")


@register(v1.RandomAffine, v2.RandomAffine, consumes="degrees translate scale shear interpolation fill center")
def random_affine(t, spec):
    values = {name: getattr(t, name) and tuple(getattr(t, name)) for name in ("degrees", "translate", "scale", "shear")}
    center = t.center and tuple(t.center)
    version = version_of(t)
    parameters = draw("affine_parameters", **values, version=version)
    return (step("affine", spec, parameters, center=center, version=version, fidelity=warped, **_how(t, spec)),)


@lowers("affine")
def affine_as_warp(s):
    return _warp_affine(s, "affine_matrix")


@register(v1.RandomPerspective, v2.RandomPerspective, consumes="distortion_scale p interpolation fill")
def random_perspective(t, spec):
    points = draw("perspective_points", distortion_scale=t.distortion_scale, p=t.p)
    return (step("perspective", spec, points, fidelity=warped, **_how(t, spec)),)


@lowers("perspective")
def perspective_as_warp(s):
    return s.but(op="warp_perspective", args=_args_of_warp(s), draw=draw("perspective_coefficients", of=s.draw))


@register(v1.ElasticTransform, v2.ElasticTransform, consumes="alpha sigma interpolation fill")
def elastic_transform(t, spec):
    alpha, sigma = tuple(map(float, t.alpha)), tuple(map(float, t.sigma))
    return (
        step("elastic", spec, draw("random_key"), alpha=alpha, sigma=sigma, fidelity=EXACT, **_how(t, spec, _OF_GRIDS)),
    )


def _warp_affine(s: Step, matrix: str) -> Step:
    """One warp by a matrix, as Pillow does it (and torchvision on tensors)."""
    drawn = draw(matrix, of=s.draw, center=s.kwargs["center"], like=s.kwargs["like"])
    return s.but(op="warp_affine", args=_args_of_warp(s), draw=drawn)


def _args_of_warp(s: Step) -> tuple:
    return tuple((name, s.kwargs[name]) for name in ("interpolation", "fill", "like"))


def warp_interpolation(t, spec, allowed: tuple[str, ...] | None = None) -> str:
    """The transform's, if torchvision warps such images by it.

    Raises:
        Untranslatable: it does not.
    """
    interpolation = interpolation_of(t)
    if interpolation not in (allowed or (_OF_PIL if like_of(t, spec) == "pil" else OF_TENSORS)):
        raise Untranslatable(t, f"torchvision refuses interpolation={interpolation!r} there")
    return interpolation


def _how(t, spec, allowed: tuple[str, ...] | None = None) -> dict:
    interpolation = warp_interpolation(t, spec, allowed)
    return {"interpolation": interpolation, "fill": fill_of(t, spec), "like": like_of(t, spec)}
