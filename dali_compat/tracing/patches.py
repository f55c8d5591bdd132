"""The complete list of functions of Pillow, torchvision and torch that are replaced while data sets are traced.

A replacement defers its result if the thread traces and the result can be deferred. Otherwise it calls the original
function.

- PIL.Image.Image: ``im``, ``load``, and the methods that return an image; PIL.ImageFile.ImageFile.load.
- PIL.Image.blend, some functions of PIL.ImageOps, and the constructors of PIL.ImageEnhance.
- torchvision.transforms.functional: functions that convert images to tensors, functions that compute with pixels of PIL
  images without calling Pillow's methods, and, for deferred tensors, all functions in OUTCOMES.
- torchvision.transforms.v2.functional: the same functions, through its kernel registry.
- torchvision.io and, if it is imported, torchcodec.decoders: the functions that decode JPEG and PNG.
- torch.utils.data's default_collate_fn_map: entries for tensors. torch documents how to extend it.
- Places in torchvision that compare the exact class of a tensor.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import torch
from PIL import Image, ImageEnhance, ImageFile, ImageOps
from torchvision import tv_tensors
from torchvision.transforms import _functional_pil, autoaugment, functional, v2
from torchvision.transforms.v2 import _auto_augment, _geometry
from torchvision.transforms.v2.functional import _utils

from ..ops.policy import AUGMENTATIONS
from . import color, convert, geometry, images  # noqa: F401 - they register operations
from .calls import RecordedCall
from .decoders import DECODERS, deferred_tensor
from .images import deferred_image, node_of
from .nodes import SWITCHES, Node
from .operations import BY_ARGUMENTS, LOST, OUTCOMES, TRAITS, Outcome, outcome_of
from .plans import is_inside
from .tensors import (
    REAL_CLASS,
    TracedTensor,
    contiguous,
    deferred_call,
    dense_strides,
    extend_default_collate,
    tensor_of,
    view,
)

# the torchvision function that a policy operation calls
_POLICY_FUNCTIONS = {"Rotate": "rotate", "Equalize": "equalize"}
_POLICY_FUNCTIONS |= dict.fromkeys(("ShearX", "ShearY", "TranslateX", "TranslateY"), "affine")
_POLICY_LOSES_INFO = "Brightness", "Contrast"  # operations of policies that lose Image.info
_installed = False


def install() -> None:
    """Replace the functions, once per process. Decoders of torchcodec are replaced if it has been imported."""
    global _installed
    for function, replacement in _decoders():
        _replace_code(function, replacement)
    extend_default_collate()  # also in a forked worker, which inherits _installed but needs another entry
    if _installed:
        return
    _installed = True
    for function, replacement in _functions():
        _replace_code(function, replacement)
    _patch_pillow()
    _patch_v2()


def _functions() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Yield (function, replacement) of each replaced function, except decoders."""
    yield Image.blend, _blend
    for name in OUTCOMES:
        module, _, function = name.partition(".")
        if module == "ImageOps":
            yield getattr(ImageOps, function), partial(_imageops, name)
        elif name not in _TO_TENSOR and hasattr(functional, name):
            yield getattr(functional, name), partial(_v1, name)
    for name in _TO_TENSOR:
        yield getattr(functional, name), partial(_to_tensor, name)
    yield _functional_pil.pad, _pad
    yield autoaugment._apply_op, _augment_v1
    yield _utils._get_kernel, _get_kernel
    yield _auto_augment._AutoAugmentBase._apply_image_or_video_transform, _augment_v2


# ---- Pillow


def _patch_pillow() -> None:
    cls, original = Image.Image, images._original
    for name in images._METHODS:
        original[name] = getattr(cls, name)
        setattr(cls, name, images._method(name, images._METHODS[name]))
    original["load"], original["load_file"] = cls.load, ImageFile.ImageFile.load
    cls.load = images.in_place_of(original["load"], images._load)  # type: ignore[method-assign]  # replaced on purpose
    ImageFile.ImageFile.load = images.in_place_of(original["load_file"], images._load_file)  # type: ignore[method-assign]  # replaced on purpose
    im = vars(cls).get("im")
    original["im"] = _get_im_attribute if im is None else im.fget
    cls.im = property(images._get_im, images._set_im if im is None else im.fset)  # type: ignore[assignment]  # an attribute before Pillow 11
    for name in images._ENHANCERS:
        enhancer = getattr(ImageEnhance, name)
        enhancer.__init__ = images._enhancer(name, enhancer.__init__)


def _get_im_attribute(image: Any) -> Any:
    """Return the value of Image.im for Pillow before 11, where ``im`` is not a property."""
    im = image.__dict__.get("im") if "_im" not in image.__dict__ else image.__dict__["_im"]
    if isinstance(im, Image.DeferredError):
        raise im.ex
    return im


# Replacements take the original function and its arguments. They return None if the original has to run.


def _blend(original: Any, im1: Any, im2: Any = None, alpha: Any = None) -> Any:
    """Return the deferred result of Image.blend() in an enhancer of ImageEnhance; None for other calls."""
    # ``im2`` and ``alpha`` have defaults, because the original raises the error if an argument is missing
    first, second = (getattr(one, "__dict__", {}).get("_im") for one in (im1, im2))
    if type(first) is not Node or type(second) is not Node or first.parent is not second:
        return None
    if first.call is None or first.call.name not in images._ENHANCERS:
        return None
    name = f"adjust_{images._ENHANCERS[first.call.name]}"
    enhancer = getattr(ImageEnhance, first.call.name)
    call = RecordedCall(name, lambda image, factor: enhancer(image).enhance(factor), (alpha,))
    return deferred_image(im2, lambda s, factor: OUTCOMES[name](s, "pil", factor), call, im1.info.copy())


def _imageops(name: str, original: Any, image: Any, /, *args: Any, **kwargs: Any) -> Any:
    if not _may_defer(image):
        return None
    call = RecordedCall(name, original, args, kwargs)
    info: Any = {} if TRAITS[name].info == LOST else None
    return deferred_image(image, lambda s, *a, **k: outcome_of(name, s, "v1", a, k), call, info)


def _may_defer(image: Any) -> bool:
    """Return True if a PIL image is deferred, or was only opened and may be deferred."""
    if type(image) in REAL_CLASS or not isinstance(image, Image.Image):
        return False
    im = image.__dict__.get("_im")
    return type(im) is Node or (im is None and SWITCHES.tracing is not None)


# ---- torchvision.transforms.functional

_TO_TENSOR = "to_tensor", "pil_to_tensor"


def _to_tensor(name: str, original: Any, image: Any, /, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs or not _may_defer(image):
        return None
    node = node_of(image)
    outcome = None if node is None else outcome_of(name, node.state, "v1", (), {})
    if node is None or outcome is None:
        return None
    channels, _, width = outcome.state.shape
    strides = None if name == "to_tensor" and channels > 1 else (1, width * channels, channels)
    return tensor_of(node.then(RecordedCall(name, original), outcome, strides))


def _v1(name: str, original: Any, image: Any, /, *args: Any, **kwargs: Any) -> Any:
    if type(image) in REAL_CLASS:
        return _on_tensor("v1", name, original, image, args, kwargs) if type(image) is TracedTensor else None
    if not TRAITS[name].on_pil_images or not _may_defer(image):
        return None
    return _on_image("v1", name, original, image, args, kwargs)


def _on_image(version: str, name: str, original: Any, image: Any, args: Any, kwargs: Any, info: Any = None) -> Any:
    """Return the deferred result of a function that is called with a PIL image; None if the function has to run.
    ``info`` is the result's ``Image.info``, or None to use the function's Traits."""
    traits = TRAITS[name]
    if traits.readonly_if_gray and image.mode != "RGB":
        return None
    more = {"version": version} if traits.takes_version else {}
    if traits.info == BY_ARGUMENTS and SWITCHES.tracing is not None and node_of(image) is not None:
        info = _info_of(original, image, args, kwargs)
    info = {} if traits.info == LOST else info
    call = RecordedCall(name, original, args, kwargs)
    return deferred_image(image, lambda s, *a, **k: outcome_of(name, s, version, a, {**k, **more}), call, info)


def _info_of(original: Any, image: Any, args: Any, kwargs: Any) -> Any:
    """Return ``Image.info`` of a function's result, by calling the function on an image of one pixel."""
    pixel = Image.new(image.mode, (1, 1))
    pixel.info = image.info.copy()
    return original(pixel, *args, **kwargs).info


def _on_tensor(version: str, name: str, original: Any, tensor: TracedTensor, args: Any, kwargs: Any) -> Any:
    """Return the deferred result of a function that is called with a TracedTensor; None if the function has to run."""
    state = tensor._state
    if state is None:
        return None
    more = {"version": version} if TRAITS[name].takes_version else {}
    outcome = outcome_of(name, state, version, args, {**kwargs, **more})
    if outcome is None:
        return None
    if outcome.state.kind == "pil":
        node = tensor._cell.node
        if node is None or node.steps is None or outcome.steps is None:
            return None
        return images.image_of(node.then(RecordedCall(name, original, args, kwargs), outcome), {})
    cls = REAL_CLASS[type(tensor)]
    call = RecordedCall(name, original if cls is torch.Tensor else partial(_call_with, cls, original), args, kwargs)
    if TRAITS[name].is_view and not outcome.is_same_object:
        if outcome.steps is None or any(kind.op == "pad" or not is_inside(numbers) for kind, numbers in outcome.steps):
            return None
        return view(tensor, call, outcome, tensor.stride())
    if outcome.is_same_object or (strides := _strides(version, name, tensor, outcome)) is not None:
        return deferred_call(tensor, call, outcome, None if outcome.is_same_object else strides)
    return None


def _strides(version: str, name: str, tensor: TracedTensor, outcome: Outcome) -> tuple[int, ...] | None:
    shape, width = outcome.state.shape, outcome.state.shape[-1]
    channels_last = 1, width * shape[0], shape[0]
    if shape[0] == 1 and tensor.stride() != contiguous(tensor.shape) and not TRAITS[name].keeps_strides:
        return None
    if name in ("rgb_to_grayscale", "to_grayscale") and shape[0] == 3:
        return 0, width, 1
    if name == "adjust_hue" and shape[0] == 3:
        return channels_last if version == "v1" else contiguous(shape)
    if name == "resize" and version == "v2" and _is_channels_last(tensor):
        return channels_last
    if name == "pad" and shape == tuple(tensor.shape):
        return None
    if name == "augment" and outcome.steps:
        ((_, (_, which, _)),) = outcome.steps
        name = _POLICY_FUNCTIONS.get(AUGMENTATIONS[int(which)], name)
    is_elementwise = not TRAITS[name].is_contiguous or all(kind.op == "flip" for kind, _ in outcome.steps or ())
    is_elementwise = is_elementwise and shape == tuple(tensor.shape)
    return dense_strides(tensor) if is_elementwise else contiguous(shape)


def _call_with(cls: Any, original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    result: torch.Tensor = original(tensor.as_subclass(cls), *args, **kwargs).as_subclass(torch.Tensor)
    return result


def _is_channels_last(tensor: TracedTensor) -> bool:
    channels, _, width = tensor.shape
    return channels > 1 and tensor.stride() == (1, width * channels, channels)


def _pad(original: Any, image: Any, padding: Any, fill: Any = 0, padding_mode: Any = "constant") -> Any:
    """Return the deferred result of torchvision's pad() for PIL images; None if it has to run."""
    # constant padding calls ImageOps.expand(), whose result is deferred
    if padding_mode == "constant" or not _may_defer(image):
        return None
    return _on_image("v1", "pad", original, image, (padding, fill, padding_mode), {})


def _augment_v1(original: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
    if type(image) in REAL_CLASS and type(image) is not TracedTensor:
        return None
    return _augment("v1", original, image, args, kwargs)


def _augment(version: str, original: Any, image: Any, args: Any, kwargs: Any) -> Any:
    """Return the deferred result of one operation of AutoAugment or another policy; None if it has to run."""
    if type(image) in REAL_CLASS:
        return _on_tensor(version, "augment", original, image, args, kwargs)
    name = args[0] if args else kwargs.get("op_name")
    if name == "Identity" or not _may_defer(image):
        return None
    return _on_image(version, "augment", original, image, args, kwargs, {} if name in _POLICY_LOSES_INFO else None)


# ---- torchvision.transforms.v2


def _patch_v2() -> None:
    for function, registry in _utils._KERNEL_REGISTRY.items():
        name = function.__name__
        if name not in OUTCOMES:
            continue
        if Image.Image in registry and TRAITS[name].on_pil_images:
            registry[Image.Image] = _kernel_of_pil_images(name, registry[Image.Image])
    method = "transform" if hasattr(v2.Transform, "transform") else "_transform"
    get_fills: list[tuple[Any, str, Any]] = [(module, "_get_fill", _get_fill) for module in (_geometry, _auto_augment)]
    for owner, name, replacement in (*get_fills, (v2.ToDtype, method, _to_dtype_transform)):
        original = vars(owner)[name]
        setattr(owner, name, images.in_place_of(original, replacement(original)))
    if not hasattr(tv_tensors.TVTensor, "wrap"):  # torchvision 0.20
        tv_tensors.wrap = _wrap(tv_tensors.wrap)


def _kernel_of_pil_images(name: str, original: Any) -> Any:
    def kernel(image: Any, *args: Any, **kwargs: Any) -> Any:
        result = _on_image("v2", name, original, image, args, kwargs) if _may_defer(image) else None
        return original(image, *args, **kwargs) if result is None else result

    return kernel


def _get_kernel(original: Any, functional: Any, input_type: Any, *, allow_passthrough: bool = False) -> Any:
    """Return the v2 kernel for a class of deferred tensors; None for other classes."""
    real = REAL_CLASS.get(input_type)
    if real is None:
        return None
    try:
        kernel = original(functional, real)
    except TypeError:
        if not allow_passthrough:
            raise
        return original(functional, real, allow_passthrough=True)
    name = functional.__name__
    if name == "resized_crop":
        return _resized_crop
    return _kernel_of_tensors(name, kernel) if name in OUTCOMES else kernel


def _resized_crop(tensor: Any, top: Any, left: Any, height: Any, width: Any, size: Any, **kwargs: Any) -> Any:
    return v2.functional.resize(v2.functional.crop(tensor, top, left, height, width), size, **kwargs)


def _kernel_of_tensors(name: str, original: Any) -> Any:
    def kernel(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        result = _on_tensor("v2", name, original, tensor, args, kwargs)
        if result is None:
            return original(tensor._materialize(f"uses the tensor's {name}"), *args, **kwargs)
        return result

    return kernel


def _augment_v2(original: Any, policy: Any, image: Any, transform_id: Any, *args: Any, **kwargs: Any) -> Any:
    return _augment("v2", partial(_call_method, original, policy), image, (transform_id, *args), kwargs)


def _call_method(method: Any, policy: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
    return method(policy, image, *args, **kwargs)


def _get_fill(original: Any) -> Any:
    """Return a replacement for torchvision's _get_fill() that accepts the class of a deferred image."""

    # the original looks up the exact class of an image
    def get_fill(fill_dict: Any, inpt_type: Any) -> Any:
        return original(fill_dict, REAL_CLASS.get(inpt_type, inpt_type))

    return get_fill


def _to_dtype_transform(original: Any) -> Any:
    """Return a replacement for ToDtype.transform() that accepts deferred tensors."""

    # the original looks up the exact class of a tensor
    def transform(self: Any, inpt: Any, params: Any) -> Any:
        real = REAL_CLASS.get(type(inpt))
        if real is None or not isinstance(self.dtype, dict) or real not in self.dtype:
            return original(self, inpt, params)
        extended = copy.copy(self)
        extended.dtype = {**self.dtype, type(inpt): self.dtype[real]}
        return original(extended, inpt, params)

    return transform


def _wrap(original: Any) -> Any:
    def wrap(wrappee: Any, *, like: Any, **kwargs: Any) -> Any:
        if type(like) in REAL_CLASS:
            return wrappee.as_subclass(REAL_CLASS[type(like)])
        return original(wrappee, like=like, **kwargs)

    return wrap


# ---- decoders


def _decoders() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Yield (decoder, replacement) of each imported decoder that is not replaced yet."""
    for module, functions in DECODERS.items():
        names = vars(sys.modules.get(module, object))
        for name, types in functions.items():
            if name in names and f"_dali_compat_{name}" not in names:
                yield names[name], partial(deferred_tensor, types)


# ---- functions


def _replace_code(function: Any, replacement: Callable[..., Any]) -> None:
    """Replace a function's code with a call of ``replacement(original, *arguments)``. If the result is None, the new
    code calls the original.

    The function stays the same object, so earlier imports use it. torch.jit.script compiles the original.
    """
    original = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__, original.__annotations__ = function.__kwdefaults__, function.__annotations__
    original.__module__, original.__qualname__, original.__doc__ = (
        function.__module__,
        function.__qualname__,
        function.__doc__,
    )
    code, name = _calling.__code__, f"_dali_compat_{function.__name__}"
    function.__globals__[name] = original, replacement, function.__code__.co_varnames[0]
    function.__code__ = code.replace(
        co_names=tuple(name if one == "_replaced" else one for one in code.co_names),
        co_name=function.__name__,
        co_filename=f"{__file__}:{function.__name__}",  # a file name that user_line() skips
    )
    vars(function).update(__wrapped__=original, __original_fn=original, __script_if_tracing_wrapper=True)


_replaced: Any = None  # stands for (original, replacement, name of the first parameter) of a function


def _calling(*args: Any, **kwargs: Any) -> Any:
    """The code of replaced functions. Replacements take the first argument, the image, by position."""
    original, replacement, first = _replaced
    if not args and first in kwargs:
        args = (kwargs.pop(first),)
    result = replacement(original, *args, **kwargs) if args else None
    return original(*args, **kwargs) if result is None else result
