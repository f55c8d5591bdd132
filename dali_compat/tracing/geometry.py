"""Operations that move pixels: torchvision's size computations, and the batch steps that give the same result."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as v1
from torchvision.transforms.v2.functional import _geometry as v2

from ..ops.arguments import interpolation_named
from ..ops.matrices import rotation
from .operations import SIZED, Outcome, State, Step, UnknownOperation, flagged, is_plain, operation, step

WINDOW = ("start", (2,), "int32"), ("shape", (2,), "int32")
_BILINEAR, _NEAREST = InterpolationMode.BILINEAR, InterpolationMode.NEAREST
_FILTERS = "bilinear", "bicubic"  # of tensors
_OF_PIL, _OF_TENSORS = ("nearest", "nearest-exact", "bilinear", "bicubic"), ("nearest", "bilinear")  # warps


@operation("crop")
def crop(s: State, like: str, top, left, height, width) -> Outcome:
    top, left, height, width = whole(top, left, height, width)
    after = s.sized((height, width))
    h, w = s.size
    meets = top < h and left < w and top + height > 0 and left + width > 0  # other windows give tensors odd shapes
    if s.kind != "pil" and not meets:
        raise UnknownOperation
    inside = top >= 0 and left >= 0 and top + height <= h and left + width <= w
    fits = is_plain(s) and (inside or (meets and not s.normalized))
    if width == 1 and s.kind == "pil":  # libjpeg interpolates no chroma for a window of one column
        fits = False
    return Outcome(after, (window("crop", s, after, top, left),) if fits else None)


def window(op: str, before: State, after: State, top: int, left: int, **args) -> Step:
    """Return a step that cuts a window, which may extend beyond the image."""
    numbers = (*before.size, *after.size, top, left, *after.size)
    return step(op, after, numbers, WINDOW, SIZED, **args)


@operation("center_crop")
def center_crop(s: State, like: str, output_size) -> Outcome:
    size = (output_size,) * 2 if isinstance(output_size, Integral) else tuple(output_size)
    height, width = whole(*(size * 2 if len(size) == 1 else size))
    # rounded half to even within the image; an image that is too small is padded with zeros
    room = s.size[0] - height, s.size[1] - width
    top, left = (round(one / 2) if one >= 0 else -(-one // 2) for one in room)
    return crop(s, like, top, left, height, width)


@operation("resize")
def resize(s: State, like: str, size, interpolation=_BILINEAR, max_size=None, antialias=True) -> Outcome:
    size = list(size) if isinstance(size, (list, tuple)) else size
    if like == "v2" or size is None:
        new = v2._compute_resized_output_size(s.size, size=size, max_size=max_size)
    else:
        if isinstance(size, list) and (len(size) not in (1, 2) or (max_size is not None and len(size) != 1)):
            raise UnknownOperation
        size = [size] if isinstance(size, int) else size
        new = v1._compute_resized_output_size(s.size, size, max_size)
    if tuple(new) == s.size:
        return Outcome(s, (), same=True)
    return resized(s, like, tuple(whole(*new)), interpolation_named(interpolation), antialias)


def resized(s: State, like: str, size: tuple[int, ...], interpolation: str, antialias=True) -> Outcome:
    """Return the outcome of resizing to ``size``.

    One channel with nearest interpolation may be a mask. It has no step, since PIL and torchvision resize it quickly.
    """
    after = s.sized(size)
    nearest = interpolation.startswith("nearest")
    if not is_plain(s) or (nearest and s.channels == 1) or not (like == "pil" or nearest or interpolation in _FILTERS):
        return Outcome(after)
    args = {"interpolation": interpolation, "like": like, "antialias": like == "pil" or bool(antialias)}
    numbers = (*s.size, *after.size, *after.size)
    return Outcome(after, (step("resize", after, numbers, (("size", (2,), "float32"),), SIZED, **args),))


@operation("resized_crop")
def resized_crop(
    s: State, like: str, top, left, height, width, size, interpolation=_BILINEAR, antialias=True
) -> Outcome:
    """Return the outcome of resized_crop() for a window within a PIL image.

    A window that has the size already is resized as well. This is rare, and so it shares the pipeline of the others.
    """
    size = whole(*size)
    within = top >= 0 and left >= 0 and top + height <= s.size[0] and left + width <= s.size[1]
    # torchvision warns about other values of antialias, and raises an error for empty windows
    fits = within and min(height, width) > 0 and len(size) == 2
    if s.kind != "pil" or s.mode not in ("RGB", "L") or antialias is not True or not fits:
        raise UnknownOperation
    cropped = crop(s, like, top, left, height, width)
    made = resized(cropped.state, like, size, interpolation_named(interpolation), antialias)
    if cropped.steps is None or made.steps is None:
        return Outcome(made.state)
    return Outcome(made.state, cropped.steps + made.steps)


for _axis in ("horizontal", "vertical"):
    operation(f"{_axis[0]}flip", f"{_axis}_flip")(
        lambda s, like, *, axis=_axis: Outcome(s, flagged("flip", s, axis=axis) if is_plain(s) else None)
    )


@operation("pad")
def pad(s: State, like: str, padding, fill=0, padding_mode="constant") -> Outcome:
    several = (padding,) if isinstance(padding, Integral) else tuple(padding)
    if len(several) not in (1, 2, 4):
        raise UnknownOperation
    left, top, right, bottom = whole(*several * (4 // len(several)))
    after = s.sized((s.size[0] + top + bottom, s.size[1] + left + right))
    mode = getattr(padding_mode, "value", padding_mode)
    if mode not in ("constant", "edge", "reflect", "symmetric") or min(left, top, right, bottom) < 0:
        raise UnknownOperation
    if like == "v1" and not isinstance(fill, (int, float)):
        raise UnknownOperation
    filled = _fill(s, fill)
    fits = is_plain(s) and (mode in ("constant", "edge") or s.kind == "pil") and filled is not None
    if fits and mode == "constant" and s.dtype.is_floating_point:
        fits = not any(filled or ()) and not s.normalized
    if not fits:
        return Outcome(after)
    return Outcome(after, (window("pad", s, after, -top, -left, mode=mode, fill=filled or (0,) * s.channels),))


@operation("rotate")
def rotate(s: State, like: str, angle, interpolation=_NEAREST, expand=False, center=None, fill=None) -> Outcome:
    angle, how = float(angle), warp(s, like, interpolation, fill)
    center = None if center is None else tuple(map(float, center))
    after = s.sized(rotation(angle, s.size, True, center, like)[0]) if expand else s
    if like == "v2" and center is None and angle % 180 == 0:
        return transpose(s, like, Image.Transpose.ROTATE_180) if angle % 360 else Outcome(s, ())
    if how is None or (like == "v2" and center is None and angle % 90 == 0):  # v2 transposes instead
        return Outcome(after)
    args = {"expand": bool(expand), "center": center, **how}
    return Outcome(after, _warped("rotate", s, after, (angle,), (("angle", (), "float64"),), **args))


@operation("affine")
def affine(
    s: State, like: str, angle, translate, scale, shear, interpolation=_NEAREST, fill=None, center=None, version="v1"
) -> Outcome:
    how = warp(s, like, interpolation, fill)
    shears = [shear, 0.0] if isinstance(shear, (int, float)) else [float(one) for one in shear]
    shears = shears * 2 if len(shears) == 1 else shears
    moved = [float(one) for one in translate]
    if how is None or not all(map(float.is_integer, moved)) or len(shears) != 2 or scale <= 0:
        return Outcome(s)
    center = None if center is None else tuple(map(float, center))
    layout = (
        ("angle", (), "float64"),
        ("translate", (2,), "int32"),
        ("scale", (), "float64"),
        ("shear", (2,), "float64"),
    )
    numbers = float(angle), *moved, float(scale), *shears
    return Outcome(s, _warped("affine", s, s, numbers, layout, center=center, version=version, **how))


@operation("perspective")
def perspective(
    s: State, like: str, startpoints, endpoints, interpolation=_BILINEAR, fill=None, coefficients=None
) -> Outcome:
    how, (height, width) = warp(s, like, interpolation, fill), s.size
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    if how is None or coefficients is not None or [list(point) for point in startpoints] != corners:
        return Outcome(s)
    numbers = whole(*(one for point in endpoints for one in point))
    return Outcome(s, _warped("perspective", s, s, numbers, (("endpoints", (4, 2), "int32"),), **how))


@operation("transpose")
def transpose(s: State, like: str, method) -> Outcome:
    """Return the outcome of PIL.Image.Image.transpose() as a quarter turn, flips, or both."""
    quarter, *flips = _TRANSPOSED[Image.Transpose(method)]
    after, steps = s, tuple[Step, ...]()
    if quarter:  # PIL's rotate() gives the same pixels
        after, own, _ = rotate(s, "pil", quarter, _NEAREST, expand=True)
        if own is None:
            return Outcome(after)
        steps = own
    if not is_plain(s):
        return Outcome(after)
    return Outcome(after, sum((flagged("flip", after, axis=axis) for axis in flips), steps))


_TRANSPOSED: dict[Image.Transpose, Any] = {
    Image.Transpose.FLIP_LEFT_RIGHT: (0, "horizontal"),
    Image.Transpose.FLIP_TOP_BOTTOM: (0, "vertical"),
    Image.Transpose.ROTATE_180: (0, "horizontal", "vertical"),
    Image.Transpose.ROTATE_90: (90,),
    Image.Transpose.ROTATE_270: (270,),
    Image.Transpose.TRANSPOSE: (90, "vertical"),
    Image.Transpose.TRANSVERSE: (90, "horizontal"),
}


# transpositions of ImageOps.exif_transpose() by orientation
_UPRIGHT = dict(zip(range(2, 9), map(Image.Transpose, (0, 3, 1, 5, 4, 6, 2)), strict=True))
operation("upright")(lambda s, like, orientation: transpose(s, like, _UPRIGHT[orientation]))


@operation("ImageOps.expand")
def expand(s: State, like: str, border=0, fill=0) -> Outcome:
    if s.channels == 3 and isinstance(fill, int):  # PIL packs three channels into an int
        fill = tuple(fill >> bits & 255 for bits in (0, 8, 16))
    return pad(s, like, border, fill)


def _warped(op: str, before: State, after: State, numbers, layout, **args) -> tuple[Step, ...]:
    """Return a warp step that can be switched off for other images."""
    ((made, own),) = flagged(op, after, numbers, layout, **args)
    return ((made, (*map(float, (*before.size, *after.size)), *own)),)


def warp(s: State, like: str, interpolation, fill) -> dict[str, Any] | None:
    """Return the arguments common to all warps; None if no kernel supports them."""
    name, filled = interpolation_named(interpolation), _fill(s, fill)
    fits = is_plain(s) and name in (_OF_PIL if like == "pil" else _OF_TENSORS) and filled is not None
    fits = fits and (s.channels == 3 or not name.startswith("nearest"))  # one channel may be a mask
    return {"interpolation": name, "fill": filled or None, "like": like} if fits else None


def _fill(s: State, fill) -> tuple[float, ...] | None:
    """Return one value per channel; () for no fill; None if the fill does not suit the image."""
    if fill is None:
        return ()
    several = tuple(fill) if isinstance(fill, (list, tuple)) else (fill,)
    several *= s.channels if len(several) == 1 else 1
    fits = len(several) == s.channels and all(isinstance(one, (int, float)) for one in several)
    if fits and not s.dtype.is_floating_point:
        fits = all(0 <= one <= 255 and float(one).is_integer() for one in several)
    return tuple(int(one) if float(one).is_integer() else float(one) for one in several) if fits else None


def whole(*numbers) -> tuple[int, ...]:
    """Return whole numbers as ints. Raise UnknownOperation if one is not a whole number."""
    if {int}.issuperset(map(type, numbers)):
        return numbers
    if not all(isinstance(one, Integral) for one in numbers):
        raise UnknownOperation
    return tuple(map(int, numbers))


_TRANSFORMS = {
    Image.Transform.AFFINE: ("warp_affine", "matrix", 6),
    Image.Transform.PERSPECTIVE: ("warp_perspective", "coefficients", 8),
}
_RESAMPLES = {0: "nearest", 2: "bilinear", 3: "bicubic"}


def transformed(s: State, size, method, data=None, resample=0, fill=1, fillcolor=None) -> Outcome:
    """Return the outcome of PIL.Image.Image.transform(), which rotate(), affine() and perspective() call."""
    numbers, (width, height) = tuple(map(float, data)), whole(*size)
    kind = {
        Image.Transform.AFFINE: ("warp_affine", "matrix", 6),
        Image.Transform.PERSPECTIVE: ("warp_perspective", "coefficients", 8),
    }
    op, name, count = kind[method]
    if s.mode not in ("RGB", "L") or fill != 1 or len(numbers) != count or min(width, height) < 1:
        raise UnknownOperation
    after = s.sized((height, width))
    interpolation = _RESAMPLES[resample]
    if s.channels != 3 and interpolation == "nearest":  # possibly a mask, which Pillow warps quickly
        return Outcome(after)
    colour = () if fillcolor is None else Image.new(s.mode, (1, 1), fillcolor).getpixel((0, 0))
    filled = colour if isinstance(colour, tuple) else (colour,)
    layout = ((name, (count,), "float64"), ("size", (2,), "float64"))
    values = (*s.size, *after.size, *numbers, *after.size)
    made = step(op, after, values, layout, SIZED, interpolation=interpolation, fill=filled or None, like="pil")
    return Outcome(after, (made,))
