"""torchvision.io's and torchcodec's decoders: what they give of a file, before anybody needs it.

Of RGB they give Pillow's values, bit for bit: of plain JPEGs, which all three decode by libjpeg-turbo, and of PNGs. A
gray JPEG is three equal channels there. Of all else, such as the luma that mode GRAY gives of a JPEG in colour, only
the decoder itself makes the pixels.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..data.header import jpeg_of_one_picture
from ..data.sources import RandomAccess, Source, is_upright, opened
from .deferred import Deferred
from .images import has_exif, header_of
from .operations import OPERATIONS, State
from .record import RecordedCall, Recording, decoder_of, decoders_of, really_open
from .tensors import LazyTensor

_NAMES = {"torchvision": ("decode_image", "decode_jpeg", "decode_png"), "torchcodec": ("_decode_jpeg", "_decode_png")}
_UNCHANGED, _GRAY, _GRAY_ALPHA, _RGB, _RGB_ALPHA = range(5)  # modes, of both
_OF_JPEG, _OF_PNG = {_GRAY: 1, _RGB: 3}, {_GRAY: 1, _GRAY_ALPHA: 2, _RGB: 3, _RGB_ALPHA: 4}  # channels
_COLOURS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # channels of a PNG, by its colour type
_PALETTE = 3
_HEAD = 64  # bytes that say of which format a file is


class LazyBytes(LazyTensor):
    """The bytes of a file, as a tensor."""

    def __getattribute__(self, name: str) -> Any:
        return torch.device("cpu") if name == "device" else super().__getattribute__(name)

    def __getitem__(self, place) -> Any:
        later = self._later
        if type(place) is slice and place == slice(_HEAD) and not later.is_real:
            with opened(later.source) as file:
                return torch.from_numpy(np.frombuffer(file.read(_HEAD), np.uint8).copy())
        return later.value("uses a file's bytes")[place]


def lazy_bytes(later: Deferred, length: int) -> LazyBytes:
    """The stand-in for the bytes of ``later.source``."""
    made = torch.Tensor._make_wrapper_subclass(LazyBytes, (length,), dtype=torch.uint8)
    torch._C._set_throw_on_mutable_data_ptr(made)
    made._later = later
    return later.notes.made(made)


def decoders() -> Iterator[tuple[str, Any, str]]:
    """(library, owner, name) of each function that decodes; torch.ops has those that all of torchvision's call."""
    for library, names in _NAMES.items():
        owner = decoders_of(library)
        yield from ((library, owner, name) for name in names if hasattr(owner, name))


def bytes_of(data) -> torch.Tensor:
    """The real bytes, of a stand-in or a tensor."""
    return data._later.value("") if type(data) is LazyBytes else data


def recording_of(library: str, name: str, source: Source, args: tuple[Any, ...]) -> Recording | None:
    """Returns what a library's function decodes of a source; None where only its result says that. ``args``: further
    arguments of it, mode first."""
    mode, *_ = args
    with RandomAccess(source) as file:
        head = file.read(_HEAD, 0)
    if head[:2] == b"\xff\xd8" and "png" not in name:
        found = jpeg_of_one_picture(source)
        own, wanted = (found[0], _OF_JPEG) if found else (0, {})
    elif head[:8] == b"\x89PNG\r\n\x1a\n" and "jpeg" not in name and head[24] == 8:
        own, wanted = _COLOURS.get(head[25], 0), _OF_PNG
        if (head[25] == _PALETTE and mode == _UNCHANGED and library != "torchvision") or (
            is_upright(source) and has_exif(source)
        ):
            return None
    else:
        return None
    channels = own if mode == _UNCHANGED else wanted.get(mode)
    header = header_of(source) if channels and own else None
    if header is None or not channels or (library == "torchcodec" and len(args) > 1 and args[1]):  # another dtype
        return None
    size = header.state.size
    state = State("tensor", "RGB" if channels == 3 else "L", (channels, *size))
    rgb = State("pil", "RGB", (3, *size))
    steps: Any = None
    if channels == 3 and _decodes_as_pillow(library):
        steps = ()
    elif channels == own == 1 and head[:2] == b"\xff\xd8" and _decodes_as_pillow(library):
        steps, rgb, _ = OPERATIONS["to_grayscale"](rgb, "pil", 1)[1], State("pil", "L", (1, *size)), None
    if steps is not None:
        steps = (*steps, *(OPERATIONS["pil_to_tensor"](rgb, "pil").steps or ()))
    call = RecordedCall("decoded", f"{library} {name}", args)
    return Recording(source, size, state, (call,), steps, "" if steps else "decodes files in other modes than RGB")


@functools.cache
def _decodes_as_pillow(library: str) -> bool:
    """Returns whether a JPEG with interpolated chroma has the same values: builds of libjpeg differ."""
    pixels = np.random.default_rng(0).integers(0, 255, (9, 11, 3), np.uint8).repeat(4, 0).repeat(4, 1)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", subsampling=2)
    name, args = ("decode_jpeg", (_RGB, False)) if library == "torchvision" else ("_decode_jpeg", (_RGB,))
    made = decoder_of(f"{library} {name}")(torch.from_numpy(np.frombuffer(file.getvalue(), np.uint8).copy()), *args)
    return bool(np.array_equal(np.asarray(really_open(file)), made.permute(1, 2, 0).numpy()))
