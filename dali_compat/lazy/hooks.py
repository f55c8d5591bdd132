"""Functions in the place of PIL's and torchvision's, while a data set is asked for its samples.

``hooked(tracer)`` puts them there, for all threads, until the last thread has left it. In a thread within it they ask
that thread's tracer for a stand-in. In every other thread, and where the tracer gives None, they call the original.

- ``PIL.Image.open``, and what decodes for Hugging Face's datasets, give an image that is not read.
- ``__call__`` of the transforms that have a translation gives an image or a tensor that is not computed. So do those
  functions of ``torchvision.transforms.functional`` that do what such a transform does.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional

from ..locks import new_lock
from ..translate.registry import behaves_as, known_types
from ..translate.replaced import STANDS_FOR
from ..translate.wrappers.objects import is_plain, root
from .images import later_of
from .samples import STAND_INS, TENSORS, exchanged, stand_ins

_FEATURES = "datasets.features.image"  # where Hugging Face's datasets decode

# what they do to an image is the same for each object of a subclass
_WITHOUT_SETTINGS: dict[type, Any] = {v1.ToTensor: v1.ToTensor(), v1.PILToTensor: v1.PILToTensor()}

# by a function's name: what takes its further arguments, and makes a transform that does the same
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "center_crop": lambda output_size: v1.CenterCrop(output_size),
    "convert_image_dtype": lambda dtype=torch.float32: v1.ConvertImageDtype(dtype),
    "hflip": lambda: v1.RandomHorizontalFlip(1),
    "normalize": v1.Normalize,
    "pad": v1.Pad,
    "pil_to_tensor": v1.PILToTensor,
    "resize": v1.Resize,
    "rgb_to_grayscale": v1.Grayscale,
    "to_tensor": v1.ToTensor,
    "vflip": lambda: v1.RandomVerticalFlip(1),
}
_KEPT = 256  # of these transforms

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
    """Who answers this thread; None where nobody does."""
    return getattr(_here, "tracer", None)


def original_call(transform: Any) -> Callable[[Any], Any]:
    """What a transform's class does where it is not hooked."""
    known = _known.get((type(transform), "__call__"))
    really = type(transform).__call__ if known is None else known[0]
    return lambda image: really(transform, image)


# ---- putting them in, and taking them out

_users = 0
_undo: list[Callable[[], None]] = []
_known: dict[Any, tuple[Any, Any]] = {}  # by class or module and name: (the original, the hook)


def _put_in() -> None:
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _replace(Image, "open", _open_hook)
            for kind in known_types():
                if root(kind) not in ("torch", __name__.partition(".")[0]):
                    _replace(kind, "__call__", functools.partial(_call_hook, kind))
            for name in _FUNCTIONS:
                _replace(functional, name, functools.partial(_function_hook, name))
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
    """Another function takes the place of an attribute. What somebody puts there meanwhile stays."""
    own, there = vars(owner).get(name), getattr(owner, name)
    original, hook = _known.get((owner, name), (None, None))
    if original is not there:
        hook = make(there)
        setattr(hook, STANDS_FOR, there)
        _known[owner, name] = there, hook
    setattr(owner, name, hook)

    def undo() -> None:
        if vars(owner).get(name) is not hook:
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
        plain = self if behaves_as(type(self)) is kind else _WITHOUT_SETTINGS.get(kind)
        if len(args) == 1 and not kwargs and plain is not None and type(args[0]) in STAND_INS:
            tracer = _tracer()
            made = None if tracer is None else tracer.applied(plain, args[0])
            if made is not None:
                return made
        if any(type(one) in TENSORS for one in stand_ins(args)):  # functions of v2 ask of what class a tensor is
            args = exchanged(args, TENSORS, lambda one: later_of(one).value(f"gives the tensor to {kind.__name__}"))
        return really(self, *args, **kwargs)

    return __call__


def _function_hook(name: str, really: Any) -> Any:
    @functools.wraps(really)
    def function(*args: Any, **kwargs: Any) -> Any:
        tracer = _tracer()
        if tracer is not None and args and type(args[0]) in STAND_INS:
            further = args[1:]  # "args" would keep the stand-in alive
            transform = _transform_of(name, further, kwargs)
            if transform is not None:
                made = tracer.applied(transform, args[0], lambda image: really(image, *further, **kwargs))
                if made is not None:
                    return made
        return really(*args, **kwargs)

    return function


_transforms: dict[str, Any] = {}


def _transform_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What does the same as a function with these arguments; None where there is none, or they may change."""
    if not all(map(_are_plain, (*args, *kwargs.values()))):
        return None
    key = f"{name} {args} {kwargs}"
    made = _transforms.get(key)
    if made is None:
        if len(_transforms) >= _KEPT:
            _transforms.clear()
        try:
            made = _transforms[key] = _FUNCTIONS[name](*args, **kwargs)
        except (TypeError, ValueError):  # the function says it
            return None
    return made


def _are_plain(value: Any) -> bool:
    """Whether a value, or each in a list or tuple, is."""
    return all(map(is_plain, value)) if type(value) in (list, tuple) else is_plain(value)
