"""Define the DALI operators of each step. A function here has the name of its operation, and is called as ``op(images,
arrays, **args)``.

``images`` is a DataNode in HWC layout, and ``arrays`` contains the nodes of the step's per-sample arguments. DALI 1.50
and later have all of these operators, for CPU and GPU.
"""

from __future__ import annotations

import inspect

import numpy as np
import nvidia.dali as dali
import torch
from nvidia.dali import fn, types
from nvidia.dali import math as dmath

from ...plan import Step

NEW_DECODERS = int(dali.__version__.split(".")[0]) >= 2  # before 2.0 the accurate decoders are experimental
_decoders = fn.decoders if NEW_DECODERS else fn.experimental.decoders
_FINE_WARPS = NEW_DECODERS  # before 2.0 warp_perspective rounds positions to 1/32 of a pixel on the CPU

_FILTERS = {
    "nearest": types.INTERP_NN,
    "nearest-exact": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}
_POLICIES = {"constant": "pad", "edge": "clamp", "reflect": "reflect_101", "symmetric": "reflect_1001"}


def supports(step: Step) -> bool:
    """Return True if the installed DALI can run a step. Old versions lack precise warps and some padding modes."""
    if step.op == "pad":
        return step.kwargs["mode"] == "constant" or "reflect_101" in (inspect.getdoc(fn.slice) or "")
    return _FINE_WARPS or step.op != "warp_perspective" or step.kwargs["interpolation"] != "bilinear"


def decode(encoded, device: str, exact: bool, fancy: bool = False, window=None, load: float = 1.0):
    """Decode images to RGB uint8 HWC.

    Args:
        device: "cpu" or "mixed".
        exact: decode on the CPU, exactly as libjpeg does.
        fancy: interpolate chroma on the GPU as libjpeg does. Pixels then differ from Pillow's by .01 levels on average
            instead of .2. Except for small images, decoding takes twice as long.
        window: "start" and "shape" of the window to decode, as in ``arrays`` of crop(); None for the whole image.
        load: share of JPEGs, from 0 to 1, that the JPEG engine decodes.
    """
    # torchvision's loader ignores the EXIF orientation; rotate() applies it as Pillow does
    options = {"device": "cpu" if exact else device, "output_type": types.RGB, "adjust_orientation": False}
    if options["device"] == "mixed":
        options.update(jpeg_fancy_upsampling=fancy, hw_decoder_load=load)
    if window is None:
        images = _decoders.image(encoded, **options)
    else:
        images = _decoders.image_slice(encoded, start=window["start"], shape=window["shape"], axes=[0, 1], **options)
    return images.gpu() if exact and device == "mixed" else images


def rotate(images, arrays):
    """Rotate or flip images. ``arrays["matrix"]`` maps output pixels to input pixels."""
    return _warp(images, arrays, types.INTERP_NN, fill_value=[0.0])


def part_of(encoded, start, length: int):
    """Return ``length`` bytes of each file from offset ``start`` on, padded with zeros."""
    return fn.slice(encoded, start=start, shape=[length], axes=[0], out_of_bounds_policy="pad")


def window(images, start, shape):
    """Crop images on the CPU."""
    channels = images.shape(dtype=types.INT32)[2:]
    per = fn.cat(types.Constant(np.array([1], np.int32)), channels)
    lines = fn.reshape(images, rel_shape=[1.0, -1.0])  # (height, width * channels) halves the time of fn.slice
    lines = _slice(lines, {"start": start * per, "shape": shape * per}, "constant", 0)
    return fn.reshape(lines, shape=fn.cat(shape, channels), layout="HWC")


def crop(images, arrays, *, inside):
    return _slice(images, arrays, "constant", 0)


def pad(images, arrays, *, mode, fill):
    return _slice(images, arrays, mode, list(fill) if mode == "constant" and any(fill) else 0)


def _slice(images, arrays, mode, fill):
    return fn.slice(
        images,
        start=arrays["start"],
        shape=arrays["shape"],
        axes=[0, 1],
        out_of_bounds_policy=_POLICIES[mode],
        fill_values=fill,
    )


def resize(images, arrays, *, interpolation, like, antialias=True):
    how = {"interp_type": _FILTERS[interpolation], "antialias": antialias}
    images = _pass(images, arrays, "", **how)
    return _pass(images, arrays, "second_", **how) if "second_size" in arrays else images


def _pass(images, arrays, prefix, **how):
    roi = {name: arrays[prefix + name] for name in ("roi_start", "roi_end") if prefix + name in arrays}
    return fn.resize(images, size=arrays[prefix + "size"], **roi, **how)


def resize_by_choice(images, arrays, *, interpolations, like):
    """Resize each image with one of two interpolations, selected by ``arrays["choice"]`` (0 or 1)."""
    first, second = (int(_FILTERS[name]) for name in interpolations)
    chosen = fn.cast(first + (second - first) * arrays["choice"], dtype=types.INTERP_TYPE)
    return fn.resize(images, size=arrays["size"], interp_type=chosen, antialias=True)


def flip(images, arrays, *, axis):
    flag = arrays["flag"]
    return fn.flip(images, horizontal=flag if axis == "horizontal" else 0, vertical=flag if axis == "vertical" else 0)


def warp_affine(images, arrays, *, interpolation, fill):
    """Warp images as Pillow's Image.transform(AFFINE) does."""
    if _FINE_WARPS or interpolation.startswith("nearest"):
        return warp_perspective(images, arrays, interpolation=interpolation, fill=fill)
    matrix, size = arrays["matrix"][:2], arrays["size"]
    made = fn.warp_affine(images, matrix=matrix, size=size, dtype=types.FLOAT)
    return _truncated_inside(images, made, arrays, fill)


def warp_perspective(images, arrays, *, interpolation, fill):
    """Warp images as Pillow's Image.transform(PERSPECTIVE) does."""
    if interpolation.startswith("nearest"):
        return _warp(images, arrays, types.INTERP_NN, fill_value=[float(int(value)) for value in fill or (0,)])
    made = _warp(fn.cast(images, dtype=types.FLOAT), arrays, types.INTERP_LINEAR, border_mode="replicate")
    return _truncated_inside(images, made, arrays, fill)


def _warp(images, arrays, interp_type, **how):
    return fn.experimental.warp_perspective(
        images, matrix=arrays["matrix"], size=arrays["size"], interp_type=interp_type, **how
    )


def _truncated_inside(images, warped, arrays, fill):
    """Truncate warped floats to uint8. Set positions outside of the source image to ``fill``, as Pillow does."""
    warped = fn.cast(warped - (0.5 - 1e-4), dtype=types.UINT8)  # fn.cast rounds
    all_bits = types.Constant(255, dtype=types.UINT8)
    ones = fn.slice(images, start=[0], shape=[1], axes=[2]) | all_bits
    arrays = arrays | {"matrix": arrays.get("inside", arrays["matrix"])}
    # the outer half of a border pixel counts as inside; there, ``warped`` repeats the border
    inside = _warp(ones, arrays, types.INTERP_NN, fill_value=[0.0])
    warped = warped & inside
    if not any(fill or ()):
        return warped
    return warped | ((inside ^ all_bits) & types.Constant(np.array([[fill]]).astype(np.uint8)))


def grayscale(images, arrays, *, like, dtype, channels):
    r, g, b = (fn.slice(images, start=[c], shape=[1], axes=[2]) for c in range(3))
    if like == "pil":  # Pillow's L24: 16-bit fixed point, rounded
        r, g, b = (fn.cast(channel, dtype=types.INT32) for channel in (r, g, b))
        gray = fn.cast((r * 19595 + g * 38470 + b * 7471 + 0x8000) // 65536, dtype=types.UINT8)
    elif dtype == torch.uint8:  # torchvision casts the weighted sum to uint8, which truncates
        gray = fn.cast(dmath.floor(r * 0.2989 + g * 0.587 + b * 0.114), dtype=types.UINT8)
    else:
        gray = r * 0.2989 + g * 0.587 + b * 0.114
    if channels == 1:
        return gray
    gray = fn.cat(gray, gray, gray, axis=2)
    if "flag" not in arrays:
        return gray
    flag = arrays["flag"]
    return fn.cast_like(gray * flag + images * (1 - flag), images)


def jpeg(images, arrays, *, like):
    """Distort images as JPEG compression does. On a GPU, DALI omits the entropy coding."""
    return fn.jpeg_compression_distortion(images, quality=arrays["quality"])


def to_dtype(images, arrays, *, dtype, like):
    """Convert uint8 to float32. torch does all other conversions."""
    images = fn.cast(images, dtype=types.FLOAT)
    return images if like == "cast" else images * (1.0 / 255.0)


def crop_mirror_normalize(images, arrays, *, mean, std, layout):
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        mean=[255 * m for m in mean],  # given for [0, 1], while images are in [0, 255]
        std=[255 * s for s in std],
        mirror=arrays.get("flag", 0),
        output_layout=layout,
    )
