"""Functions in the place of PIL's and torchvision's, while a data set is asked for its samples.

``hooked(tracer)`` puts them there, for all threads, until the last thread has left it. In a thread within it they ask
that thread's tracer for a stand-in. In every other thread, and where the tracer gives None, they call the original.

- ``PIL.Image.open``, and what decodes for Hugging Face's datasets, give an image that is not read.
- ``torchvision.io`` and torchcodec, where they read and decode a file, give a tensor that is not read.
- ``PIL.ImageOps`` and ``ImageEnhance`` take stand-ins, where they look at pixels.
- ``torchvision.transforms.functional``, by which the transforms of v1 do all that they do, take stand-ins; and so do
  functions of v2 that have no kernels (kernels.py has those of the others).
- ``tv_tensors.Image``, ``Mask`` and ``wrap`` give stand-ins of stand-ins. What v2's transforms look up by the very
  class of an image they find by the real one's.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torchvision import tv_tensors
from torchvision.transforms import autoaugment, functional, v2
from torchvision.transforms.v2 import _auto_augment, _geometry
from torchvision.transforms.v2 import functional as functional_v2

from ..inspection.objects import root
from ..inspection.replaced import STANDS_FOR
from ..ops.translators import behaves_as, known_types
from ..runtime.forks import new_lock
from . import iou_crop
from .decoders import bytes_of, decoders
from .kernels import applied, augmixed, registered, state_of
from .pillow import HOOKS
from .record import decoders_of
from .samples import STAND_INS, TENSORS

_FEATURES = "datasets.features.image"  # where Hugging Face's datasets decode
_FUNCTIONS = (
    *("adjust_brightness", "adjust_contrast", "adjust_gamma", "adjust_hue", "adjust_saturation", "adjust_sharpness"),
    *("affine", "autocontrast", "center_crop", "convert_image_dtype", "crop", "elastic_transform", "equalize", "erase"),
    *("gaussian_blur", "hflip", "invert", "normalize", "pad", "perspective", "pil_to_tensor", "posterize", "resize"),
    *("rgb_to_grayscale", "rotate", "solarize", "to_grayscale", "to_pil_image", "to_tensor", "vflip"),
)
_HOOKED = "PIL", "torch", "torchvision", "torchcodec", "datasets"  # whose functions are as they were
_OPS = "autocontrast", "equalize", "expand", "invert", "posterize", "solarize"  # others call an image's own methods
_WITHOUT_KERNELS = "pil_to_tensor", "to_image", "to_pil_image"
_ANSWERS: dict[str, Callable[[Any], Any]] = {
    "get_dimensions": lambda s: [s.channels if len(s.shape) > 2 else 1, *s.size],
    "get_image_num_channels": lambda s: s.channels if len(s.shape) > 2 else 1,
    "get_image_size": lambda s: [*s.size[::-1]],
}

_here = threading.local()
_lock = new_lock()


@contextmanager
def hooked(tracer: Any) -> Iterator[None]:
    """Within it a Tracer answers this thread."""
    before = getattr(_here, "tracer", None)
    try:
        _put_in()
        _here.tracer = tracer
        yield
    finally:
        _here.tracer = before
        _take_out()


@contextmanager
def unasked() -> Iterator[None]:
    """Within it this thread calls the originals."""
    before = _tracer()
    _here.tracer = None
    try:
        yield
    finally:
        _here.tracer = before


def _tracer() -> Any:
    """Returns this thread's tracer, or None."""
    return getattr(_here, "tracer", None)


# ---- putting them in, and taking them out

_users = 0
_undo: list[Callable[[], None]] = []
_known: dict[Any, tuple[Any, Any]] = {}  # by class or module and name: (the original, the hook)


def _put_in() -> None:
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        _replace(Image, "open", _open_hook)
        for library, owner, name in decoders():
            _replace(owner, name, functools.partial(_decoder_hook, library, name))
        if hasattr(torch.ops.image, "read_file"):
            _replace(torch.ops.image, "read_file", _reader_hook)
        if (torchcodec := decoders_of("torchcodec")) is not None:
            _replace(torchcodec, "_source_to_tensor", _reader_hook)
        for name in _OPS:
            _replace(ImageOps, name, functools.partial(_function_hook, "PIL", f"ImageOps.{name}"))
        for place in HOOKS:
            _replace(*place)
        for name in _FUNCTIONS:
            _replace(functional, name, functools.partial(_function_hook, "v1", name))
        for name in _WITHOUT_KERNELS:
            if hasattr(functional_v2, name):
                _replace(functional_v2, name, functools.partial(_function_hook, "v2", name))
        for name in _ANSWERS:
            _replace(functional, name, functools.partial(_answer_hook, name))
        for tv_tensor, name in ((tv_tensors.Image, "to_image"), (tv_tensors.Mask, "to_mask")):
            _replace(tv_tensor, "__new__", functools.partial(_new_hook, tv_tensor, name))
        _replace(tv_tensors, "wrap", _wrap_hook)
        _replace(autoaugment, "_apply_op", functools.partial(_function_hook, "v1", "augment"))
        _replace(_auto_augment._AutoAugmentBase, "_apply_image_or_video_transform", _augment_hook)
        for mixes in (autoaugment.AugMix, v2.AugMix):
            _replace(mixes, "forward", _augmix_hook)
        for module in (_geometry, _auto_augment):
            _replace(module, "_get_fill", _fill_hook)
        _replace(v2.RandomIoUCrop, iou_crop.MAKER, _iou_crop_hook)
        _replace(v2.ToDtype, "transform" if hasattr(v2.Transform, "transform") else "_transform", _to_dtype_hook)
        for kind in known_types():
            if root(kind) not in ("torch", "torchvision", __name__.partition(".")[0]):
                _replace(kind, "__call__", functools.partial(_call_hook, kind))
        feature = getattr(sys.modules.get(_FEATURES), "Image", None)
        if hasattr(feature, "decode_example"):
            _replace(feature, "decode_example", _decode_hook)


def _take_out() -> None:
    global _users
    with _lock:
        _users = max(0, _users - 1)
        while not _users and _undo:
            _undo.pop()()


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Another function takes the place of an attribute. What somebody puts there meanwhile stays, and what the user has
    put there in the place of torchvision's is the user's affair."""
    own, there = vars(owner).get(name), getattr(owner, name)
    if name != "__call__" and owner is not Image and root(there) not in _HOOKED:
        return
    original, hook = _known.get((owner, name), (None, None))
    if original is not there:
        hook = make(there)
        setattr(hook, STANDS_FOR, there)
        _known[owner, name] = there, hook
    setattr(owner, name, staticmethod(hook) if isinstance(own, staticmethod) else hook)
    mine = vars(owner)[name]

    def undo() -> None:
        if vars(owner).get(name) is not mine:
            return
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    _undo.append(undo)


# ---- the functions; each is made of the original


def _open_hook(really: Any) -> Any:
    @functools.wraps(really)
    def open(fp: Any, mode: Any = "r", formats: Any = None) -> Any:
        tracer = _tracer()
        made = None if tracer is None or mode != "r" or formats is not None else tracer.opened(fp, really)
        return really(fp, mode, formats) if made is None else made

    return open


def _reader_hook(really: Any) -> Any:
    def read(path: Any) -> Any:
        tracer = _tracer()
        made = None if tracer is None or not isinstance(path, (str, Path)) else tracer.read(path, really)
        return really(path) if made is None else made

    return read


def _decoder_hook(library: str, name: str, really: Any) -> Any:
    def decode(data: Any, *args: Any) -> Any:
        tracer = _tracer()
        made = None if tracer is None else tracer.decoded_by(library, name, data, args, really)
        return really(bytes_of(data), *args) if made is None else made

    return decode


def _decode_hook(really: Any) -> Any:
    @functools.wraps(really)
    def decode_example(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = _tracer()
        made = None if tracer is None else tracer.decoded(self, value, really)
        return really(self, value, *args, **kwargs) if made is None else made

    return decode_example


def _call_hook(kind: type, really: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        # a subclass calls super().__call__()
        if behaves_as(type(self)) is kind and len(args) == 1 and not kwargs and type(args[0]) in STAND_INS:
            made = registered(self, args[0])
            if made is not None:
                return made
        return really(self, *args, **kwargs)

    return __call__


def _function_hook(owner: str, name: str, really: Any) -> Any:
    @functools.wraps(really)
    def function(*args: Any, **kwargs: Any) -> Any:
        if name == "augment" and (noted := getattr(_here, "noted", None)) is not None:
            return noted(*args)
        if args and type(args[0]) in STAND_INS:
            made = applied(owner, name, args[0], args[1:], kwargs)
            if made is not None:
                return made
        return really(*args, **kwargs)

    return function


def _augment_hook(really: Any) -> Any:
    @functools.wraps(really)
    def _apply_image_or_video_transform(self: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
        if (noted := getattr(_here, "noted", None)) is not None:
            return noted(image, *args)
        if type(image) in STAND_INS:
            made = applied("v2", "augment", image, args, kwargs)
            if made is not None:
                return made
        return really(self, image, *args, **kwargs)

    return _apply_image_or_video_transform


def _augmix_hook(really: Any) -> Any:
    @functools.wraps(really)
    def forward(self: Any, *inputs: Any) -> Any:
        if len(inputs) == 1 and type(inputs[0]) in STAND_INS and root(type(self)) == "torchvision":
            made = augmixed(self, inputs[0], really, _noting)
            if made is not None:
                return made
        return really(self, *inputs)

    return forward


@contextmanager
def _noting(noted: Any) -> Iterator[None]:
    """Within it this thread calls that in the place of a policy's operations."""
    _here.noted = noted
    try:
        yield
    finally:
        _here.noted = None


def _answer_hook(name: str, really: Any) -> Any:
    @functools.wraps(really)
    def function(img: Any) -> Any:
        state = state_of(img) if type(img) in STAND_INS else None
        return really(img) if state is None else _ANSWERS[name](state)

    return function


def _new_hook(kind: type, name: str, really: Any) -> Any:
    @functools.wraps(really)
    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is kind and len(args) == 1 and type(args[0]) in STAND_INS and not any(kwargs.values()):
            made = applied("type", name, args[0], (), {})
            if made is not None:
                return made
        return really(cls, *args, **kwargs)

    return __new__


def _wrap_hook(really: Any) -> Any:
    @functools.wraps(really)
    def wrap(wrappee: Any, *, like: Any, **kwargs: Any) -> Any:
        return (
            wrappee.as_subclass(type(like)._real_class)
            if type(like) in TENSORS
            else really(wrappee, like=like, **kwargs)
        )

    return wrap


def _iou_crop_hook(really: Any) -> Any:
    @functools.wraps(really)
    def make_params(self: Any, flat_inputs: Any) -> Any:
        is_ours = any(type(one) in STAND_INS for one in flat_inputs)
        return iou_crop.params(self, flat_inputs, really) if is_ours else really(self, flat_inputs)

    return make_params


def _fill_hook(really: Any) -> Any:
    @functools.wraps(really)
    def _get_fill(fill_dict: Any, inpt_type: Any) -> Any:
        return really(fill_dict, getattr(inpt_type, "_real_class", inpt_type))

    return _get_fill


def _to_dtype_hook(really: Any) -> Any:
    @functools.wraps(really)
    def transform(self: Any, inpt: Any, params: Any) -> Any:
        kind = type(inpt)
        if kind in TENSORS and isinstance(self.dtype, dict) and kind._real_class in self.dtype:
            self = copy.copy(self)
            self.dtype = {**self.dtype, kind: self.dtype[kind._real_class]}
        return really(self, inpt, params)

    return transform
