"""Records what was done to an image, in order, and replays it with torchvision's own functions on the real one."""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision import tv_tensors
from torchvision.transforms import autoaugment
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import _auto_augment
from torchvision.transforms.v2 import functional as v2

from ..data.sources import ORIENTATION, Source, is_upright, opened
from ..inspection.replaced import STANDS_FOR
from .operations import CONSTANT, Outcome, Size, State, Step


class RecordedCall(NamedTuple):
    """An operation.

    Attributes:
        owner, name: "v1" or "v2", and the name of a function of torchvision's; "PIL" and that of a function on images;
            "type" and that of one of torchvision's classes; "" and that of the image's own method; "decoded", a library
            and what decodes a file's bytes there; "called", where the first argument is called with the image.
        args, kwargs: further arguments.
        pixels: of the image that it was called on; each call of an image has a RecordedCall of its own.
    """

    owner: str
    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    pixels: int = 0

    def on(self, image) -> Any:
        """Returns what it gives of a real image."""
        return _FUNCTIONS[self.owner](self.name)(image, *self.args, **self.kwargs)


class ImageHeader(NamedTuple):
    """The header of an image file: what is known of the image, PIL's class, and the format's name."""

    state: State
    kind: type
    format: str | None


class Recording(NamedTuple):
    """An image that is not made yet.

    Attributes:
        source, size: where its file is, and the (height, width) of the image there.
        state: what is known of it.
        calls: what was done to it.
        steps: that do the same on a batch; None where no kernels are known to, and ``why``. Of a file in another mode
            than RGB there may be both.
    """

    source: Source
    size: Size
    state: State
    calls: tuple[RecordedCall, ...] = ()
    steps: tuple[Step, ...] | None = ()
    why: str = ""

    def then(self, call: RecordedCall, outcome: Outcome) -> Recording:
        """The image after a call that gives this."""
        source, size, state, calls, steps, why = self
        if call.name == "convert" and outcome.state.mode == "RGB" and all(one.name == "copy" for one in calls):
            steps, why = (), ""  # as all decoders give it
        elif steps is not None and outcome.steps is not None:
            steps = (*steps, *outcome.steps)
        elif steps is not None:
            steps, why = None, f"uses the {'image' if state.kind == 'pil' else 'tensor'}'s {call.name.strip('_')}"
        done = call._replace(pixels=math.prod(state.size))
        return Recording(source, size, outcome.state, (*calls, done), steps, why)

    @property
    def batch_steps(self) -> tuple[Step, ...] | None:
        """The steps that a batch takes. Of a gray file only what is normalised: the rest may be masks."""
        return None if self.why and not self.state.normalized else self.steps

    def made(self) -> Any:
        """The image, as torchvision makes it of the file.

        Raises:
            ValueError: it is not as the record says: another image has come to the file's place; or a function of the
                user's is called, which may not be for this thread.
        """
        if any(call.owner == "called" for call in self.calls):
            raise ValueError("a function that is not torchvision's is called with it")
        with opened(self.source) as file:
            if self.calls and self.calls[0].owner == "decoded":
                image: Any = torch.from_numpy(np.frombuffer(file.read(), np.uint8).copy())
            else:
                image = really_open(file)
                image = _exif_transpose(image) if is_upright(self.source) else image
                image.load()
        for call in self.calls:
            image = call.on(image)
        shape = (len(image.getbands()), *image.size[::-1]) if isinstance(image, Image.Image) else tuple(image.shape)
        if shape != self.state.shape or getattr(image, "dtype", self.state.dtype) != self.state.dtype:
            raise ValueError(f"it became an image of {shape}, not {self.state.shape}")
        return image


def decoders_of(library: str) -> Any:
    """Returns what has the functions by which torchvision.io or torchcodec decodes; None where nobody uses it."""
    return torch.ops.image if library == "torchvision" else sys.modules.get("torchcodec.decoders._image_decoders")


def decoder_of(name: str) -> Callable[..., Any]:
    """Returns a function, by its library and name."""
    library, _, own = name.partition(" ")
    if library == "torchcodec":
        importlib.import_module("torchcodec.decoders")
    function = getattr(decoders_of(library), own)
    return getattr(function, STANDS_FOR, function)


def kept(value) -> Any:
    """An argument that stays as it is, whatever becomes of the caller's."""
    kind = type(value)
    if kind in CONSTANT:
        return value
    if kind in (list, tuple):
        return kind(value) if CONSTANT.issuperset(map(type, value)) else kind(map(kept, value))
    if kind is dict:
        return {name: kept(one) for name, one in value.items()}
    if kind is ImageFilter.GaussianBlur:  # whose radius may change before the next image
        return copy.copy(value)
    return value.clone() if kind is torch.Tensor else value


really_open = Image.open  # before anything takes its place
_ORIGINALS = {"v1": dict(vars(v1)), "v2": dict(vars(v2))}  # before anything takes their places
_ORIGINALS["v1"]["augment"] = autoaugment._apply_op
_ORIGINALS["v2"]["augment"] = _auto_augment._AutoAugmentBase()._apply_image_or_video_transform
_TYPES = {"to_mask": tv_tensors.Mask, "to_image": _ORIGINALS["v2"]["to_image"]}


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    image.getexif()[ORIENTATION] = orientation  # which the user's code may have changed
    return _exif_transpose(image)


_exif_transpose = ImageOps.exif_transpose
_OF_PIL = {f"ImageOps.{name}": function for name, function in vars(ImageOps).items()}
_OF_PIL["upright"] = _upright


_FUNCTIONS: dict[str, Callable[[str], Callable[..., Any]]] = {
    "": lambda name: lambda image, *args, **kwargs: getattr(image, name)(*args, **kwargs),
    "v1": _ORIGINALS["v1"].__getitem__,
    "v2": _ORIGINALS["v2"].__getitem__,
    "PIL": _OF_PIL.__getitem__,
    "type": _TYPES.__getitem__,
    "decoded": decoder_of,
    "called": lambda name: lambda image, transform: transform(image),
}
