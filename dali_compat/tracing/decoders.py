"""Decoders of torchvision.io and torchcodec. A result that equals Pillow's image is deferred.

Only RGB images from JPEG or PNG files, and gray images from gray files, are deferred. A JPEG is deferred only if the
decoder's build of libjpeg-turbo interpolates chroma as Pillow's does. The original function decodes other modes, such
as GRAY from a color JPEG.
"""

from __future__ import annotations

import functools
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.io import image as torchvision_image

from ..data.sources import ORIENTATION
from .calls import RecordedCall
from .images import FILE_STEPS, node_of
from .nodes import SWITCHES, Node, pillow_open, record_reason, tracing
from .operations import OUTCOMES, Outcome, State
from .tensors import tensor_of

_TYPES = torch.Tensor, str, Path, bytes, bytearray
DECODERS: dict[str, dict[str, tuple[type, ...]]] = {  # types of the first argument, by module and function
    "torchvision.io.image": {"decode_image": _TYPES[:3], "decode_jpeg": _TYPES[:1], "decode_png": _TYPES[:1]}
    | {"read_image": _TYPES[1:3]},
    "torchcodec.decoders._image_decoders": dict.fromkeys(("decode_image", "decode_jpeg", "decode_png"), _TYPES),
}
_ENCODINGS = "jpeg", "mpo", "png"
_SUPPORTED = ("cpu", "auto"), ("cpu", torch.uint8)  # device and output_dtype


def deferred_tensor(types: tuple[type, ...], original: Any, data: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return a decoder's result as a deferred tensor; None if the decoder has to run."""
    kwargs |= zip(original.__code__.co_varnames[1:], args, strict=False)
    try:
        node = _node(original, data, **kwargs) if SWITCHES.tracing is not None and isinstance(data, types) else None
    except Exception:  # the decoder itself raises the error
        return None
    return node and tensor_of(node)


def _node(original: Any, data: Any, mode: Any = "UNCHANGED", **kwargs: Any) -> Node | None:
    if isinstance(data, torch.Tensor):
        if data.dtype != torch.uint8 or data.ndim != 1 or not data.is_contiguous():
            return None
        data = data.numpy().tobytes()
    elif isinstance(data, (str, Path)):
        str(data).encode()  # raises an error if the decoders cannot open a file with this name
    with pillow_open(data if isinstance(data, (str, Path)) else io.BytesIO(data)) as image:
        file, name, encoding = node_of(image), original.__name__, str(image.format).lower()
    function = original if name != "read_image" else torchvision_image.decode_image
    if file is None or encoding not in _ENCODINGS or not name.endswith(("image", encoding)):
        return None
    if encoding != "png" and not _equals_pillow(function):
        return None
    pil_mode = {"RGB": "RGB", "GRAY": "L", "UNCHANGED": image.mode}.get(getattr(mode, "name", mode).upper(), "")
    device_and_dtype = str(kwargs.get("device", "cpu")), kwargs.get("output_dtype", "auto")
    if pil_mode not in ("RGB", image.mode) or pil_mode not in FILE_STEPS or device_and_dtype not in _SUPPORTED:
        record_reason("decodes files in modes other than RGB")
        return None
    upright, orientation = Outcome(State("pil", pil_mode, (3 if pil_mode == "RGB" else 1, *file.state.size)), ()), 1
    if "exif" in image.info and kwargs.get("apply_exif_orientation", "torchcodec" in original.__module__):
        orientation = image.getexif().get(ORIENTATION, 1)
    if orientation != 1:
        if not any(struct.pack(f"{order}HHIH", ORIENTATION, 3, 1, orientation) in image.info["exif"] for order in "<>"):
            return None  # decoders may read an unusual entry differently
        upright = OUTCOMES["upright"](upright.state, "pil", orientation)
    after, to_tensor_steps, _ = OUTCOMES["pil_to_tensor"](upright.state, "pil")
    steps = (*FILE_STEPS[pil_mode], *upright.steps, *to_tensor_steps)  # type: ignore[misc]  # these have steps
    channels, height, width = after.shape
    strides = (1, channels, channels * height) if orientation > 4 else (1, channels * width, channels)
    call = RecordedCall(name, functools.partial(_decode, function), (), {"mode": mode, **kwargs})
    return Node(None, file.source, call, after, steps, strides)


def _decode(function: Any, data: bytes, **kwargs: Any) -> Any:
    return function(torch.frombuffer(bytearray(data), dtype=torch.uint8), **kwargs)


@functools.cache
def _equals_pillow(function: Any) -> bool:
    """Return True if a decoder interpolates the chroma of JPEGs as Pillow does."""
    file, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 255, (9, 11, 3), np.uint8)
    Image.fromarray(pixels.repeat(4, 0).repeat(4, 1)).save(file, "JPEG", subsampling=2)
    with tracing(None):
        tensor = _decode(function, file.getvalue(), mode=function.__globals__["ImageReadMode"].RGB)
        return np.array_equal(np.asarray(pillow_open(file)), tensor.permute(1, 2, 0).numpy())
