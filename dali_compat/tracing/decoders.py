"""Decoders of torchvision.io and torchcodec. A result is deferred if it equals Pillow's image.

This holds for RGB from a JPEG or PNG, and for gray from a gray file, if the decoder's build of libjpeg-turbo behaves as
Pillow's. Other modes, such as GRAY from a color JPEG, are decoded by the original function.
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
from .images import _STEPS_OF_FILE, node_of
from .nodes import HERE, Node, _really_open, became_real, tracing
from .operations import OPERATIONS, Outcome, State
from .tensors import tensor_of

_TYPES = torch.Tensor, str, Path, bytes, bytearray
DECODERS: dict[str, dict[str, tuple[type, ...]]] = {  # by module: functions, and the types that they decode
    "torchvision.io.image": {"decode_image": _TYPES[:3], "decode_jpeg": _TYPES[:1], "decode_png": _TYPES[:1]}
    | {"read_image": _TYPES[1:3]},
    "torchcodec.decoders._image_decoders": dict.fromkeys(("decode_image", "decode_jpeg", "decode_png"), _TYPES),
}
_USUAL = ("cpu", "auto"), ("cpu", torch.uint8)  # devices and dtypes


def decoded(types: tuple[type, ...], original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the deferred result of a decoder; None if the decoder has to run."""
    given = {**dict(zip(original.__code__.co_varnames[1:], args, strict=False)), **kwargs}
    try:
        node = _node(original, data, **given) if HERE.traces and isinstance(data, types) else None
    except Exception:  # the decoder itself raises the error
        return None
    return node and tensor_of(node)


def _node(original: Any, data: Any, mode: Any = "UNCHANGED", **given: Any) -> Node | None:
    if isinstance(data, torch.Tensor):
        if data.dtype != torch.uint8 or data.ndim != 1 or not data.is_contiguous():
            return None
        data = data.numpy().tobytes()
    with _really_open(data if isinstance(data, (str, Path)) else io.BytesIO(data)) as image:
        file, name, encoding = node_of(image), original.__name__, str(image.format).lower()
    function = original if name != "read_image" else torchvision_image.decode_image
    if file is None or not name.endswith(("image", encoding)) or not (encoding == "png" or _is_as_pillows(function)):
        return None
    kind = {"RGB": "RGB", "GRAY": "L", "UNCHANGED": image.mode}.get(getattr(mode, "name", mode).upper(), "")
    others = str(given.get("device", "cpu")), given.get("output_dtype", "auto")
    if kind not in ("RGB", image.mode) or kind not in _STEPS_OF_FILE or others not in _USUAL:
        became_real("decodes files in other modes than RGB")
        return None
    upright, turn = Outcome(State("pil", kind, (3 if kind == "RGB" else 1, *file.state.size)), ()), 1
    if "exif" in image.info and given.get("apply_exif_orientation", "torchcodec" in original.__module__):
        turn = image.getexif().get(ORIENTATION, 1)
    if turn != 1:
        if not any(struct.pack(f"{order}HHIH", ORIENTATION, 3, 1, turn) in image.info["exif"] for order in "<>"):
            return None  # decoders may read an unusual entry differently
        upright = OPERATIONS["upright"](upright.state, "pil", turn)
    after, last, _ = OPERATIONS["pil_to_tensor"](upright.state, "pil")
    steps = (*_STEPS_OF_FILE[kind], *upright.steps, *last)  # type: ignore[misc]  # these have steps
    channels, height, width = after.shape
    strides = (1, channels, channels * height) if turn > 4 else (1, channels * width, channels)
    call = RecordedCall(name, functools.partial(_decode, function), (), {"mode": mode, **given})
    return Node(None, file.source, call, after, steps, strides)


def _decode(function: Any, data: bytes, **given: Any) -> Any:
    return function(torch.frombuffer(bytearray(data), dtype=torch.uint8), **given)


@functools.cache
def _is_as_pillows(function: Any) -> bool:
    """Return True if a decoder's build of libjpeg interpolates chroma as Pillow's does."""
    file, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 255, (9, 11, 3), np.uint8)
    Image.fromarray(pixels.repeat(4, 0).repeat(4, 1)).save(file, "JPEG", subsampling=2)
    with tracing(False):
        made = _decode(function, file.getvalue(), mode=function.__globals__["ImageReadMode"].RGB)
        return np.array_equal(np.asarray(_really_open(file)), made.permute(1, 2, 0).numpy())
