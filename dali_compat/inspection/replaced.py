"""Detect replaced (monkeypatched) functions of torchvision, timm and Pillow. DALI and the kernels would not call the
replacements."""

from __future__ import annotations

import builtins
import functools
import io
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from PIL import Image, ImageEnhance, ImageFile, ImageOps
from torch import nn
from torchvision.transforms import _functional_pil, _functional_tensor, functional, v2
from torchvision.transforms.v2 import functional as functional_v2

from ..errors import Unsupported
from .objects import modules_are_hooked, names, top_package
from .untranslatable import Untranslatable

STANDS_FOR = "_dali_compat_stands_for"  # attribute of this package's replacements: the original
_LIBRARIES = frozenset(("torchvision", "timm"))
_OLD = "_transform" in vars(v2.Transform)  # before torchvision 0.21
_V2_METHODS = ("_get_params", "_transform") if _OLD else ("make_params", "transform")
_METHODS = ("__call__", "forward", "get_params", *_V2_METHODS)


def refuse_replaced(transform) -> None:
    """Raise Untranslatable if a transform has hooks, or if one of its methods or functions was replaced."""
    if "forward" in vars(transform) or "__call__" in vars(transform):
        raise Untranslatable(transform, "its forward method was replaced on the instance")
    if any(vars(transform).get(hooks) for hooks in ("_forward_hooks", "_forward_pre_hooks")):
        raise Untranslatable(transform, "it has forward hooks")
    if isinstance(transform, nn.Module) and modules_are_hooked():
        raise Untranslatable(transform, "global forward hooks are registered, or torch.nn.Module.__call__ was replaced")
    kind: Any = type(transform)
    if top_package(kind) not in _LIBRARIES:
        return
    for name in vars(transform):
        if isinstance(getattr(kind, name, None), FunctionType):
            raise Untranslatable(transform, f"its {name} was replaced on the instance")
    for name, method in _methods(kind):
        if not _is_library_function(method):
            raise Untranslatable(transform, f"{kind.__name__}.{name} was replaced")
    for module, name in _functions(kind):
        if not _is_library_function(function_of(vars(module).get(name))):
            raise Untranslatable(transform, f"{module.__name__}.{name} was replaced")


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield (name, function) of each method in _METHODS that ``kind`` or a base defines. Skip classes outside of
    torchvision and timm."""
    for base in kind.__mro__:
        if top_package(base) in _LIBRARIES:
            own = vars(base)
            yield from ((name, function_of(own[name])) for name in _METHODS if name in own)


def function_of(method) -> Any:
    """Return the function of a method, or the original if this package has replaced the function."""
    function = method.__func__ if isinstance(method, (staticmethod, classmethod)) else method
    return getattr(function, STANDS_FOR, function)


def _is_library_function(function) -> bool:
    """Return True if torchvision, timm or torch defined a function, even if a decorator has changed its name."""
    globals_ = function.__globals__ if isinstance(function, FunctionType) else {}
    return str(globals_.get("__name__")).partition(".")[0] in (*_LIBRARIES, "torch")


@functools.lru_cache(256)
def _functions(kind) -> tuple[tuple[Any, str], ...]:
    """Return (module, name) of each torchvision function that the methods of a class use."""
    used = set().union(*(names(method.__code__) for _, method in _methods(kind) if isinstance(method, FunctionType)))
    module = functional_v2 if ".v2." in kind.__module__ else functional
    found = ((name, vars(module).get(name)) for name in sorted(used))
    return tuple((module, name) for name, one in found if callable(one) and not isinstance(one, type))


# ---- Pillow, and the functions that kernels of this package call

_MODULES = functional, functional_v2
_NAMES = {
    name for module in _MODULES for name, one in vars(module).items() if name[0] != "_" and _is_library_function(one)
}
_FUNCTIONALS = [
    (module, name, one if _is_library_function(one := vars(module)[name]) else None)
    for module in _MODULES
    for name in sorted(_NAMES & vars(module).keys())
]
_ENHANCE = [one for one in vars(ImageEnhance).values() if isinstance(one, type)]
_OWNERS: list[Any] = [Image, Image.Image, ImageOps, *_ENHANCE, _functional_pil, _functional_tensor]
_BY_TORCHVISION = """__array_interface__ __init__ blend convert copy crop enhance expand filter fromarray frombuffer
frombytes getbands histogram load merge new paste point save split tobytes transform transpose"""
_TO_OPEN = "_open decode_example draft exif_transpose getexif load_end load_prepare load_read open"
_CALLED = {*_BY_TORCHVISION.split(), *(name for name, one in vars(functional).items() if isinstance(one, FunctionType))}
_CALLED_TO_OPEN = {*_CALLED, *_TO_OPEN.split()}
_FORMATS = "Bmp", "Jpeg", "Png", "Ppm", "Tiff", "WebP"  # formats that DALI reads, and first bytes of their files
_HEADS: tuple[bytes, ...] = b"BM", b"P5 9 9 255\n", b"P6 9 9 255\n", b"II*\0\x08", b"MM\0*\0\0\0\x08"
_HEADS += b"\xff\xd8\xff\xdb\0C", b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1", b"\xff\xd8\xff\xe1\0\x22Exif\0\0MM\0*"
_HEADS += b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"RIFF\0\1\0\0WEBPVP8 "


def refuse_replaced_functions(opens: bool) -> None:
    """Raise Unsupported if a function of torchvision or Pillow was replaced. If ``opens`` is True, also check the
    functions that open images."""
    what = next((f"{_name(owner)}.{name}" for owner, name in checked_functions(opens) if not _is_own(owner, name)), "")
    for module, name, original in _FUNCTIONALS:
        function = vars(module).get(name)
        if function is not original and not _is_library_function(function_of(function)):
            what = f"{module.__name__}.{name}"
    if opens and builtins.open is not io.open:
        what = "open()"
    if what:
        raise Unsupported(f"{what} was replaced; DALI does not call the replacement")
    for name, (factory, accepts) in Image.OPEN.items() if opens else ():
        if top_package(factory) != "PIL" and any(_accepts(accepts, head) for head in _HEADS):
            raise Unsupported(
                f"the plugin registered for {name} by PIL.Image.register_open() may read files differently from DALI"
            )


def checked_functions(opens: bool) -> Iterator[tuple[Any, str]]:
    owners = list(_OWNERS)
    if opens:
        readers = (getattr(sys.modules.get(f"PIL.{name}ImagePlugin"), f"{name}ImageFile", None) for name in _FORMATS)
        feature = getattr(sys.modules.get("datasets.features.image"), "Image", None)
        owners += filter(None, (ImageFile.ImageFile, *readers, feature))
    for owner in owners:
        yield from ((owner, name) for name in vars(owner).keys() & (_CALLED_TO_OPEN if opens else _CALLED))


def _name(owner) -> str:
    return f"{owner.__module__}.{owner.__name__}" if isinstance(owner, type) else owner.__name__


def _is_own(owner, name: str) -> bool:
    there = vars(owner)[name]
    globals_ = getattr(function_of(getattr(there, "fget", there)), "__globals__", {})
    return str(globals_.get("__name__")).partition(".")[0] in ("PIL", "torchvision", "torch", "datasets")


def _accepts(accepts, head: bytes) -> bool:
    try:
        took = accepts is None or accepts(head.ljust(16, b"\0"))
    except Exception:  # Pillow handles the error
        return True
    return bool(took) and not isinstance(took, str)
