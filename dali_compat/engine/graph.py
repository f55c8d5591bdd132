"""Steps -> DALI nodes: one function a step, called ``op(images, arrays, **args)``.

``images`` is a DataNode in HWC, ``arrays`` the nodes of the step's per-sample arguments. Operators exist in DALI 1.50
and later, for CPU and GPU alike; what an older DALI lacks is named by unsupported().
"""

from __future__ import annotations

import inspect

import nvidia.dali as dali
import torch
from nvidia.dali import fn, types
from nvidia.dali import math as dmath

from ..plan import Step

NEW_DECODERS = int(dali.__version__.split(".")[0]) >= 2  # before 2.0 the faithful decoders are experimental
_decoders = fn.decoders if NEW_DECODERS else fn.experimental.decoders

_FILTERS = {
    "nearest": types.INTERP_NN,
    "nearest-exact": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}
HARDWARE_DECODER_LOAD = 0.75  # share of JPEGs for the hardware decoder; CUDA takes the rest (benchmarks/results)
_POLICIES = {"constant": "pad", "edge": "clamp", "reflect": "reflect_101", "symmetric": "reflect_1001"}


def unsupported(step: Step) -> str | None:
    """Why this DALI cannot run a step, or None."""
    if step.op == "pad" and step.kwargs["mode"] != "constant" and not _slice_has_border_modes():
        return f"DALI {dali.__version__} cannot pad with padding_mode={step.kwargs['mode']!r} (2.0 can)"
    return None


def _slice_has_border_modes() -> bool:
    return "reflect_101" in (inspect.getdoc(fn.slice) or "")


def decode(encoded, device: str, exact: bool, window=None, **options):
    """RGB uint8 HWC; where ``window`` (the arrays of a crop) is given, that part alone.

    adjust_orientation is off because torchvision's loader does not rotate either. On the GPU, exact asks for libjpeg's
    chroma upsampling (PIL's), which costs 40% of the peak rate, and decodes the whole image: nvJPEG before 13.2 gets
    the rim of a window wrong with it, and says so on stderr for every image.
    """
    if device == "mixed":
        options.update(jpeg_fancy_upsampling=exact, hw_decoder_load=HARDWARE_DECODER_LOAD)
    options.update(device=device, output_type=types.RGB, adjust_orientation=False)
    if window is None:
        return _decoders.image(encoded, **options)
    if exact and device == "mixed":
        return crop(_decoders.image(encoded, **options), window, inside=True)
    return _decoders.image_slice(encoded, start=window["start"], shape=window["shape"], axes=[0, 1], **options)


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
    images = _resize(images, arrays, "", interpolation)
    return _resize(images, arrays, "second_", interpolation) if "second_size" in arrays else images


def _resize(images, arrays, prefix, interpolation):
    roi = {name: arrays[prefix + name] for name in ("roi_start", "roi_end") if prefix + name in arrays}
    return fn.resize(images, size=arrays[prefix + "size"], interp_type=_FILTERS[interpolation], **roi)


def flip(images, arrays, *, axis):
    flag = arrays["flag"]
    return fn.flip(images, horizontal=flag if axis == "horizontal" else 0, vertical=flag if axis == "vertical" else 0)


def grayscale(images, arrays, *, formula, channels):
    r, g, b = (fn.slice(images, start=[c], shape=[1], axes=[2]) for c in range(3))
    if formula == "pil":  # Pillow's L24: 16-bit fixed point, rounded
        r, g, b = (fn.cast(channel, dtype=types.INT32) for channel in (r, g, b))
        gray = fn.cast((r * 19595 + g * 38470 + b * 7471 + 0x8000) // 65536, dtype=types.UINT8)
    elif formula == "tensor":  # torchvision casts the weighted sum to uint8, which truncates
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


def to_dtype(images, arrays, *, dtype, like):
    """uint8 to float32, before a resize; every other conversion is torch's."""
    images = fn.cast(images, dtype=types.FLOAT)
    return images if like == "cast" else images * (1.0 / 255.0)


def crop_mirror_normalize(images, arrays, *, mean, std, layout):
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        mean=[255 * m for m in mean],  # of 0..1; images are 0..255
        std=[255 * s for s in std],
        mirror=arrays.get("flag", 0),
        output_layout=layout,
    )
