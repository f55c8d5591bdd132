"""Functions in the place of PIL's and torchvision's, while a data set is traced.

``hooked(tracer)`` puts them there, for all threads, until the last thread has left it. In a thread within it they ask
that thread's tracer for a stand-in. In every other thread, and where there is none, they call the original.

- ``PIL.Image.open``, and what decodes for Hugging Face's datasets, give an image that is not read.
- ``torchvision.io`` and torchcodec, where they read and decode a file, give a tensor that is not read.
- ``PIL.ImageOps`` and ``ImageEnhance`` take stand-ins, where they look at pixels.
- ``torchvision.transforms.functional``, by which the transforms of v1 do all that they do, take stand-ins; and so do
  functions of v2 that have no kernels (kernels.py has those of the others).
- ``type`` in the modules of the user's functions that name it gives the class of what a stand-in stands for.
- ``tv_tensors.Image``, ``Mask`` and ``wrap`` give stand-ins of stand-ins. What v2's transforms look up by the very
  class of an image they find by the real one's.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from PIL import Image, ImageEnhance, ImageOps
from torchvision import tv_tensors
from torchvision.transforms import autoaugment, functional, v2
from torchvision.transforms.v2 import _auto_augment, _geometry
from torchvision.transforms.v2 import functional as functional_v2

from ..data.sources import ORIENTATION
from ..inspection.objects import root
from ..inspection.replaced import STANDS_FOR
from ..ops.translators import behaves_as, known_types
from ..runtime.forks import new_lock
from . import iou_crop
from .decoders import bytes_of, decoders
from .images import later_of, turned
from .kernels import ANSWERS, applied, registered, stand_in_for
from .operations import OPERATIONS
from .record import RecordedCall, decoders_of
from .samples import IMAGES, STAND_INS, TENSORS

_HOOKED = "PIL", "torch", "torchvision", "torchcodec", "datasets"  # whose functions are as they were
_WITHOUT_KERNELS = "pil_to_tensor", "to_image", "to_pil_image"
_ENHANCERS = {"Brightness": "brightness", "Color": "saturation", "Contrast": "contrast", "Sharpness": "sharpness"}
_NONE = object()
_lock = new_lock()


class _Here(threading.local):
    tracer: Any = None  # this thread's


_here = _Here()


@contextmanager
def hooked(tracer) -> Iterator[None]:
    """Within it a Tracer answers this thread; with None it calls the originals."""
    before = _here.tracer
    try:
        _put_in()
        _here.tracer = tracer
        yield
    finally:
        _here.tracer = before
        _take_out()


# ---- putting them in, and taking them out

_users = 0
_undo: list[Callable[[], None]] = []
_known: dict[Any, tuple[Any, Any]] = {}  # by class or module and name: (the original, the hook)


def _put_in() -> None:
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for owner, name, attempt in _hooks():
                _replace(owner, name, attempt)
            for names in _modules.values():
                _hide_type(names)


def _take_out() -> None:
    global _users
    with _lock:
        _users = max(0, _users - 1)
        while not _users and _undo:
            _undo.pop()()


def _hooks() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(owner, name, attempt): the attempt takes the original, and its arguments. It gives None where the original is to
    be called, and _NONE where None is the result."""
    yield Image, "open", _open
    for library, owner, name in decoders():
        yield owner, name, partial(_decode, library, name)
    for owner, name in (torch.ops.image, "read_file"), (decoders_of("torchcodec"), "_source_to_tensor"):
        if hasattr(owner, name):
            yield owner, name, _read
    feature = getattr(sys.modules.get("datasets.features.image"), "Image", None)  # where Hugging Face's datasets decode
    if hasattr(feature, "decode_example"):
        yield feature, "decode_example", _decode_example
    # other functions of ImageOps call an image's own methods
    of_pil = (name.partition(".") for name in OPERATIONS if name.startswith("ImageOps."))
    yield from ((ImageOps, name, partial(_function, "PIL", f"ImageOps.{name}")) for _, _, name in of_pil)
    yield ImageOps, "exif_transpose", _upright
    yield from ((getattr(ImageEnhance, name), "__init__", _enhancer) for name in _ENHANCERS)
    yield ImageEnhance._Enhance, "enhance", _enhanced
    of_v1 = (name for name in OPERATIONS if hasattr(functional, name))
    yield from ((functional, name, partial(_function, "v1", name)) for name in of_v1)
    yield from ((functional, name, partial(_answer, name)) for name in ANSWERS if hasattr(functional, name))
    for name in _WITHOUT_KERNELS:
        if hasattr(functional_v2, name):
            yield functional_v2, name, partial(_function, "v2", name)
    yield tv_tensors.Image, "__new__", partial(_new, tv_tensors.Image, "to_image")
    yield tv_tensors.Mask, "__new__", partial(_new, tv_tensors.Mask, "to_mask")
    yield tv_tensors, "wrap", _wrap
    yield autoaugment, "_apply_op", partial(_function, "v1", "augment")
    yield _auto_augment._AutoAugmentBase, "_apply_image_or_video_transform", _augment
    yield from ((module, "_get_fill", _fill) for module in (_geometry, _auto_augment))
    yield v2.RandomIoUCrop, iou_crop.MAKER, _iou_crop
    yield v2.ToDtype, "transform" if hasattr(v2.Transform, "transform") else "_transform", _to_dtype
    for kind in known_types():
        if root(kind) not in ("torch", "torchvision", __name__.partition(".")[0]):
            yield kind, "__call__", partial(_call, kind)


def _hook(attempt: Callable[..., Any], really) -> Any:
    @functools.wraps(really)
    def hook(*args, **kwargs) -> Any:
        made = attempt(really, *args, **kwargs)
        if made is None:
            return really(*args, **kwargs)
        return None if made is _NONE else made

    setattr(hook, STANDS_FOR, really)
    return hook


def _replace(owner, name: str, attempt: Callable[..., Any]) -> None:
    """A hook takes the place of an attribute. What somebody puts there meanwhile stays, and what the user has put there
    in the place of torchvision's is the user's affair."""
    own, there = vars(owner).get(name), getattr(owner, name)
    if name != "__call__" and owner is not Image and root(there) not in _HOOKED:
        return
    original, hook = _known.get((owner, name), (None, None))
    if original is not there:
        hook = _hook(attempt, there)
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


# ---- the classes of stand-ins


class _OfTypes(type):
    """Answers as the builtin ``type`` does, but for stand-ins."""

    def __call__(cls, *args, **kwargs) -> Any:
        if len(args) == 1 and not kwargs:
            return args[0].__class__ if type(args[0]) in STAND_INS else type(args[0])
        return type(*args, **kwargs)

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, type)

    def __subclasscheck__(cls, one: type) -> bool:
        return issubclass(one, type)


class _Type(type, metaclass=_OfTypes):
    pass


_modules: dict[int, dict[str, Any]] = {}


def answer_types(functions: Iterable[FunctionType]) -> None:
    """From now on ``type(stand_in)`` in the modules of these functions, while hooks are in, gives the real class."""
    with _lock:
        for one in functions:
            names = _modules.setdefault(id(one.__globals__), one.__globals__)
            if _users:
                _hide_type(names)


def _hide_type(names: dict[str, Any]) -> None:
    if "type" not in names:
        names["type"] = _Type
        _undo.append(lambda: names.pop("type") if names.get("type") is _Type else None)


# ---- attempts: what opens and decodes


def _open(really, fp, mode="r", formats=None) -> Any:
    tracer = _here.tracer
    return None if tracer is None or mode != "r" or formats is not None else tracer.opened(fp, really)


def _read(really, path) -> Any:
    tracer = _here.tracer
    return None if tracer is None or not isinstance(path, (str, Path)) else tracer.read(path, really)


def _decode(library: str, name: str, really, data, *args) -> Any:
    tracer = _here.tracer
    made = None if tracer is None else tracer.decoded_by(library, name, data, args, really)
    return really(bytes_of(data), *args) if made is None else made


def _decode_example(really, feature, value, *args, **kwargs) -> Any:
    tracer = _here.tracer
    return None if tracer is None else tracer.decoded(feature, value, really)


# ---- attempts: what transforms


def _function(owner: str, name: str, really, /, *args, **kwargs) -> Any:
    return applied(owner, name, args[0], args[1:], kwargs) if args and type(args[0]) in STAND_INS else None


def _answer(name: str, really, img) -> Any:
    state = later_of(img).state if type(img) in STAND_INS else None
    return None if state is None else ANSWERS[name](state)


def _call(kind: type, really, transform, /, *args, **kwargs) -> Any:
    # a subclass calls super().__call__()
    is_known = behaves_as(type(transform)) is kind and len(args) == 1 and not kwargs and type(args[0]) in STAND_INS
    return registered(transform, args[0]) if is_known else None


def _augment(really, policy, image, /, *args, **kwargs) -> Any:
    return applied("v2", "augment", image, args, kwargs) if type(image) in STAND_INS else None


def _new(kind: type, name: str, really, cls, /, *args, **kwargs) -> Any:
    is_known = cls is kind and len(args) == 1 and type(args[0]) in STAND_INS and not any(kwargs.values())
    return applied("type", name, args[0], (), {}) if is_known else None


def _wrap(really, wrappee, *, like, **kwargs) -> Any:
    return wrappee.as_subclass(type(like)._real_class) if type(like) in TENSORS else None


def _iou_crop(really, transform, flat_inputs) -> Any:
    is_traced = any(type(one) in STAND_INS for one in flat_inputs)
    return iou_crop.params(transform, flat_inputs, really) if is_traced else None


def _fill(really, fill_dict, inpt_type) -> Any:
    made = really(fill_dict, getattr(inpt_type, "_real_class", inpt_type))
    return _NONE if made is None else made


def _to_dtype(really, transform, inpt, params) -> Any:
    kind = type(inpt)
    if kind not in TENSORS or not isinstance(transform.dtype, dict) or kind._real_class not in transform.dtype:
        return None
    known = copy.copy(transform)
    known.dtype = {**transform.dtype, kind: transform.dtype[kind._real_class]}
    return really(known, inpt, params)


# ---- attempts: PIL.ImageOps and ImageEnhance


def _upright(really, image, *, in_place: bool = False) -> Any:
    if type(image) not in IMAGES or in_place:
        return None
    known = later_of(image).exif is not None  # and may have been changed
    call = RecordedCall("PIL", "upright", (image.getexif().get(ORIENTATION, 1),))
    made = None if known else stand_in_for(turned(later_of(image), call))
    return made or applied(call.owner, call.name, image, call.args, {})


def _enhancer(really, enhancer, image) -> Any:
    if type(image) not in IMAGES:
        return None
    enhancer.image = image  # what it blends that with is made where it has to be
    return _NONE


def _enhanced(really, enhancer, factor) -> Any:
    image = enhancer.image
    if type(image) not in IMAGES:
        return None
    made = applied("v1", f"adjust_{_ENHANCERS.get(type(enhancer).__name__)}", image, (factor,), {})
    if made is None:
        enhancer.__init__(later_of(image).value("enhances the image"))
    return made
