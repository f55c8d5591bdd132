"""Functions that compute the Outcome of operations that move pixels: crops, resizes, flips, pads and warps."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as v1
from torchvision.transforms.v2.functional import _geometry as v2

from ..ops.arguments import interpolation_named
from ..ops.matrices import rotation
from .operations import LOST, Outcome, State, Step, UnknownOutcome, flagged, is_supported, operation, step

WINDOW = ("start", (2,), "int32"), ("shape", (2,), "int32")
_BILINEAR, _NEAREST = InterpolationMode.BILINEAR, InterpolationMode.NEAREST
# interpolations that the kernels support
_RESIZE_TENSORS = "bilinear", "bicubic"  # nearest, too
_WARP_PIL, _WARP_TENSORS = ("nearest", "nearest-exact", "bilinear", "bicubic"), ("nearest", "bilinear")


@operation("crop", is_view=True)
def crop(s: State, backend: str, top, left, height, width) -> Outcome:
    top, left, height, width = integers(top, left, height, width)
    after = s.with_size((height, width))
    h, w = s.size
    overlaps = top < h and left < w and top + height > 0 and left + width > 0
    if s.kind != "pil" and not overlaps:  # torchvision then returns tensors of other sizes
        raise UnknownOutcome
    is_inside = top >= 0 and left >= 0 and top + height <= h and left + width <= w
    has_step = is_supported(s) and (is_inside or (overlaps and not s.normalized))
    if width == 1 and s.kind == "pil":  # libjpeg does not interpolate chroma in a window of one column
        has_step = False
    return Outcome(after, (_window("crop", s, after, top, left),) if has_step else None)


def _window(op: str, before: State, after: State, top: int, left: int, **args) -> Step:
    """Return a crop or pad step. Its window begins at (top, left) and may extend beyond the image."""
    return step(op, after, (*before.size, *after.size, top, left, *after.size), WINDOW, **args)


@operation("center_crop", is_view=True)
def center_crop(s: State, backend: str, output_size) -> Outcome:
    size = (output_size,) * 2 if isinstance(output_size, Integral) else tuple(output_size)
    height, width = integers(*(size * 2 if len(size) == 1 else size))
    # torchvision rounds half to even, and pads an image that is too small
    margins = s.size[0] - height, s.size[1] - width
    top, left = (round(margin / 2) if margin >= 0 else -(-margin // 2) for margin in margins)
    return crop(s, backend, top, left, height, width)


@operation("resize", is_contiguous=True, keeps_strides=True)
def resize(s: State, backend: str, size, interpolation=_BILINEAR, max_size=None, antialias=True) -> Outcome:
    size = list(size) if isinstance(size, (list, tuple)) else size
    if backend == "v2" or size is None:
        new = v2._compute_resized_output_size(s.size, size=size, max_size=max_size)
    else:
        if isinstance(size, list) and (len(size) not in (1, 2) or (max_size is not None and len(size) != 1)):
            raise UnknownOutcome
        size = [size] if isinstance(size, int) else size
        new = v1._compute_resized_output_size(s.size, size, max_size)
    if tuple(new) == s.size:
        return Outcome(s, (), is_same_object=True)
    return resize_to(s, backend, tuple(integers(*new)), interpolation_named(interpolation), antialias)


def resize_to(s: State, backend: str, size: tuple[int, ...], interpolation: str, antialias=True) -> Outcome:
    """Return the outcome of resizing to ``size``, a (height, width)."""
    after = s.with_size(size)
    nearest = interpolation.startswith("nearest")
    has_kernel = backend == "pil" or nearest or interpolation in _RESIZE_TENSORS
    # the image may be a mask, which PIL and torchvision resize quickly
    if not is_supported(s) or (nearest and s.channels == 1) or not has_kernel:
        return Outcome(after)
    args = {"interpolation": interpolation, "like": backend, "antialias": backend == "pil" or bool(antialias)}
    numbers = (*s.size, *after.size, *after.size)
    return Outcome(after, (step("resize", after, numbers, (("size", (2,), "float32"),), **args),))


@operation("resized_crop", on_pil_images=True)
def resized_crop(
    s: State, backend: str, top, left, height, width, size, interpolation=_BILINEAR, antialias=True
) -> Outcome:
    """Return the outcome of resized_crop() for a window within a PIL image."""
    size = integers(*size)
    is_inside = top >= 0 and left >= 0 and top + height <= s.size[0] and left + width <= s.size[1]
    # torchvision warns about other values of antialias, and raises an error for empty windows
    is_valid = is_inside and min(height, width) > 0 and len(size) == 2
    if s.kind != "pil" or s.mode not in ("RGB", "L") or antialias is not True or not is_valid:
        raise UnknownOutcome
    cropped = crop(s, backend, top, left, height, width)
    resized = resize_to(cropped.state, backend, size, interpolation_named(interpolation), antialias)
    if cropped.steps is None or resized.steps is None:
        return Outcome(resized.state)
    # with a resize step even to the same size: all images then share a DALI pipeline
    return Outcome(resized.state, cropped.steps + resized.steps)


for _axis in ("horizontal", "vertical"):
    operation(f"{_axis[0]}flip", f"{_axis}_flip", is_cached=True, keeps_strides=True)(
        lambda s, backend, *, axis=_axis: Outcome(s, flagged("flip", s, axis=axis) if is_supported(s) else None)
    )


@operation("pad", info=LOST, is_contiguous=True, readonly_if_gray=True)
def pad(s: State, backend: str, padding, fill=0, padding_mode="constant") -> Outcome:
    widths = (padding,) if isinstance(padding, Integral) else tuple(padding)
    if len(widths) not in (1, 2, 4):
        raise UnknownOutcome
    left, top, right, bottom = integers(*widths * (4 // len(widths)))
    after = s.with_size((s.size[0] + top + bottom, s.size[1] + left + right))
    mode = getattr(padding_mode, "value", padding_mode)
    if mode not in ("constant", "edge", "reflect", "symmetric") or min(left, top, right, bottom) < 0:
        raise UnknownOutcome
    if backend == "v1" and not isinstance(fill, (int, float)):
        raise UnknownOutcome
    fills = _channel_fills(s, fill)
    has_step = is_supported(s) and (mode in ("constant", "edge") or s.kind == "pil") and fills is not None
    if has_step and mode == "constant" and s.dtype.is_floating_point:
        has_step = not any(fills or ()) and not s.normalized
    if not has_step:
        return Outcome(after)
    return Outcome(after, (_window("pad", s, after, -top, -left, mode=mode, fill=fills or (0,) * s.channels),))


@operation("rotate", is_contiguous=True)
def rotate(s: State, backend: str, angle, interpolation=_NEAREST, expand=False, center=None, fill=None) -> Outcome:
    angle, common = float(angle), warp_args(s, backend, interpolation, fill)
    center = None if center is None else tuple(map(float, center))
    after = s.with_size(rotation(angle, s.size, True, center, backend)[0]) if expand else s
    if backend == "v2" and center is None and angle % 180 == 0:
        return transpose(s, backend, Image.Transpose.ROTATE_180) if angle % 360 else Outcome(s, ())
    if common is None or (backend == "v2" and center is None and angle % 90 == 0):  # v2 transposes instead
        return Outcome(after)
    args = {"expand": bool(expand), "center": center, **common}
    return Outcome(after, _warp("rotate", s, after, (angle,), (("angle", (), "float64"),), **args))


@operation("affine", is_contiguous=True, takes_version=True)
def affine(
    s: State, backend: str, angle, translate, scale, shear, interpolation=_NEAREST, fill=None, center=None, version="v1"
) -> Outcome:
    common = warp_args(s, backend, interpolation, fill)
    shears = [shear, 0.0] if isinstance(shear, (int, float)) else [float(one) for one in shear]
    shears = shears * 2 if len(shears) == 1 else shears
    offsets = [float(one) for one in translate]
    if common is None or not all(map(float.is_integer, offsets)) or len(shears) != 2 or scale <= 0:
        return Outcome(s)
    center = None if center is None else tuple(map(float, center))
    layout = (
        ("angle", (), "float64"),
        ("translate", (2,), "int32"),
        ("scale", (), "float64"),
        ("shear", (2,), "float64"),
    )
    numbers = float(angle), *offsets, float(scale), *shears
    return Outcome(s, _warp("affine", s, s, numbers, layout, center=center, version=version, **common))


@operation("perspective", is_contiguous=True)
def perspective(
    s: State, backend: str, startpoints, endpoints, interpolation=_BILINEAR, fill=None, coefficients=None
) -> Outcome:
    common, (height, width) = warp_args(s, backend, interpolation, fill), s.size
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    if common is None or coefficients is not None or [list(point) for point in startpoints] != corners:
        return Outcome(s)
    numbers = integers(*(one for point in endpoints for one in point))
    return Outcome(s, _warp("perspective", s, s, numbers, (("endpoints", (4, 2), "int32"),), **common))


@operation("transpose")
def transpose(s: State, backend: str, method) -> Outcome:
    """Return the outcome of PIL.Image.Image.transpose(): a rotation by 90 or 270 degrees, flips, or both."""
    angle, *flips = _TRANSPOSED[Image.Transpose(method)]
    after, steps = s, tuple[Step, ...]()
    if angle:  # PIL's rotate() gives the same pixels
        after, rotation_steps, _ = rotate(s, "pil", angle, _NEAREST, expand=True)
        if rotation_steps is None:
            return Outcome(after)
        steps = rotation_steps
    if not is_supported(s):
        return Outcome(after)
    return Outcome(after, sum((flagged("flip", after, axis=axis) for axis in flips), steps))


_TRANSPOSED: dict[Image.Transpose, Any] = {  # an angle, and the axes of flips after the rotation
    Image.Transpose.FLIP_LEFT_RIGHT: (0, "horizontal"),
    Image.Transpose.FLIP_TOP_BOTTOM: (0, "vertical"),
    Image.Transpose.ROTATE_180: (0, "horizontal", "vertical"),
    Image.Transpose.ROTATE_90: (90,),
    Image.Transpose.ROTATE_270: (270,),
    Image.Transpose.TRANSPOSE: (90, "vertical"),
    Image.Transpose.TRANSVERSE: (90, "horizontal"),
}


# ImageOps.exif_transpose()'s method by EXIF orientation
_UPRIGHT = dict(zip(range(2, 9), map(Image.Transpose, (0, 3, 1, 5, 4, 6, 2)), strict=True))
operation("upright")(lambda s, backend, orientation: transpose(s, backend, _UPRIGHT[orientation]))


@operation("ImageOps.expand", info=LOST)
def expand(s: State, backend: str, border=0, fill=0) -> Outcome:
    if s.channels == 3 and isinstance(fill, int):  # PIL packs three channels into an int
        fill = tuple(fill >> bits & 255 for bits in (0, 8, 16))
    return pad(s, backend, border, fill)


def _warp(op: str, before: State, after: State, numbers, layout, **args) -> tuple[Step, ...]:
    """Return a warp step, in a tuple. The step's numbers are the image sizes before and after it, a flag, and
    ``numbers``."""
    ((kind, flag_and_numbers),) = flagged(op, after, numbers, layout, **args)
    return ((kind, (*map(float, (*before.size, *after.size)), *flag_and_numbers)),)


def warp_args(s: State, backend: str, interpolation, fill) -> dict[str, Any] | None:
    """Return the constant arguments that all warp steps have; None if no kernel supports the image or arguments."""
    name, fills = interpolation_named(interpolation), _channel_fills(s, fill)
    has_kernel = is_supported(s) and name in (_WARP_PIL if backend == "pil" else _WARP_TENSORS) and fills is not None
    has_kernel = has_kernel and (s.channels == 3 or not name.startswith("nearest"))  # one channel may be a mask
    return {"interpolation": name, "fill": fills or None, "like": backend} if has_kernel else None


def _channel_fills(s: State, fill) -> tuple[float, ...] | None:
    """Return one fill value per channel; () if ``fill`` is None; None if ``fill`` does not fit the image."""
    if fill is None:
        return ()
    fills = tuple(fill) if isinstance(fill, (list, tuple)) else (fill,)
    fills *= s.channels if len(fills) == 1 else 1
    is_valid = len(fills) == s.channels and all(isinstance(one, (int, float)) for one in fills)
    if is_valid and not s.dtype.is_floating_point:
        is_valid = all(0 <= one <= 255 and float(one).is_integer() for one in fills)
    return tuple(int(one) if float(one).is_integer() else float(one) for one in fills) if is_valid else None


def integers(*numbers) -> tuple[int, ...]:
    """Return integers of any type as ints. Raise UnknownOutcome for other numbers."""
    if {int}.issuperset(map(type, numbers)):
        return numbers
    if not all(isinstance(one, Integral) for one in numbers):
        raise UnknownOutcome
    return tuple(map(int, numbers))


_TRANSFORMS = {
    Image.Transform.AFFINE: ("warp_affine", "matrix", 6),
    Image.Transform.PERSPECTIVE: ("warp_perspective", "coefficients", 8),
}
_RESAMPLES = {0: "nearest", 2: "bilinear", 3: "bicubic"}


def transform(s: State, size, method, data=None, resample=0, fill=1, fillcolor=None) -> Outcome:
    """Return the outcome of PIL.Image.Image.transform()."""
    numbers, (width, height) = tuple(map(float, data)), integers(*size)
    op, name, count = _TRANSFORMS[method]
    if s.mode not in ("RGB", "L") or fill != 1 or len(numbers) != count or min(width, height) < 1:
        raise UnknownOutcome
    after = s.with_size((height, width))
    interpolation = _RESAMPLES[resample]
    if s.channels != 3 and interpolation == "nearest":  # possibly a mask, which Pillow warps quickly
        return Outcome(after)
    color = () if fillcolor is None else Image.new(s.mode, (1, 1), fillcolor).getpixel((0, 0))
    fills = color if isinstance(color, tuple) else (color,)
    layout = ((name, (count,), "float64"), ("size", (2,), "float64"))
    values = (*s.size, *after.size, *numbers, *after.size)
    args = {"interpolation": interpolation, "fill": fills or None, "like": "pil"}
    return Outcome(after, (step(op, after, values, layout, **args),))
