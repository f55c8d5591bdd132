"""The complete list of functions of Pillow, torchvision and torch that are replaced while data sets are traced.

``install()`` replaces them once in a process. Each replacement defers if possible, and otherwise calls the original
with the same arguments. For real images, and in threads that do not trace, it always calls the original. Functions keep
their identity and get new code, so that modules that imported them by name call the new code too.

- PIL.Image.Image: ``im``, ``load``, and the methods that return an image; PIL.ImageFile.ImageFile.load.
- PIL.Image.blend, PIL.ImageOps and the constructors of PIL.ImageEnhance: results that depend on pixels are deferred.
- torchvision.transforms.functional: functions that convert images to tensors, functions that compute with pixels of PIL
  images without calling Pillow's methods, and, for deferred tensors, all functions in OPERATIONS.
- torchvision.transforms.v2.functional: the same, through its kernel registry and the function that looks kernels up.
- torchvision.io: decode_image, decode_jpeg, decode_png and read_image. torchcodec.decoders, if it is imported: the
  first three. They return deferred tensors.
- torch.utils.data's default_collate_fn_map, which is meant to be extended.
- Places in torchvision that compare the exact class of a tensor.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
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
from .decoders import DECODERS, decoded
from .images import deferred, node_of
from .nodes import HERE, Node
from .operations import OPERATIONS, Outcome, outcome_of
from .plans import is_inside
from .tensors import (
    REAL_CLASS,
    TracedTensor,
    contiguous,
    dense_strides,
    extend_default_collate,
    recorded,
    tensor_of,
    view,
)

_BY_VERSION = frozenset(("affine", "augment", "gaussian_blur"))  # results differ between v1 and v2
_VIEWS = frozenset(("center_crop", "crop"))  # return views of tensors if the window lies inside
_CONTIGUOUS = frozenset(("affine", "equalize", "gaussian_blur", "jpeg", "pad", "permute_channels", "perspective"))
_CONTIGUOUS |= {"resize", "rotate"}
# functions that operations of "augment" call
_FUNCTIONS = {"Rotate": "rotate", "Equalize": "equalize"}
_FUNCTIONS |= dict.fromkeys(("ShearX", "ShearY", "TranslateX", "TranslateY"), "affine")
_GRAYSCALE = frozenset(("rgb_to_grayscale", "to_grayscale"))
# these keep the ambiguous strides of one channel, others do not
_KEEPS_ANY = frozenset(("convert_image_dtype", "hflip", "horizontal_flip", "normalize", "resize", "to_dtype"))
_KEEPS_ANY |= {"to_image", "vertical_flip", "vflip"}
_INFO_LOST = frozenset(("adjust_hue", "gaussian_blur", "ImageOps.expand", "pad", "permute_channels"))  # image.info
_INFO_OTHER = frozenset(("jpeg", "rgb_to_grayscale", "to_grayscale"))  # kept or lost depending on the arguments
_OF_ARRAYS = frozenset(("gaussian_blur", "pad", "permute_channels"))  # return gray images that are readonly
_NEW = "Brightness", "Contrast"  # operations of "augment" that lose image.info
_installed = False


def install() -> None:
    """Replace the functions once in a process; those of torchcodec at the first call after its import."""
    global _installed
    _patch_decoders()
    extend_default_collate()  # also in a worker, whose parent has done the rest
    if _installed:
        return
    _installed = True
    _patch_pillow()
    _patch_functional()
    _patch_v2()


# ---- Pillow


def _patch_pillow() -> None:
    kind, original = Image.Image, images._original
    for name in images._METHODS:
        original[name] = getattr(kind, name)
        setattr(kind, name, images._method(name, images._METHODS[name]))
    original["load"], original["load_file"] = kind.load, ImageFile.ImageFile.load
    kind.load = images.in_place_of(original["load"], images._load)  # type: ignore[method-assign]  # replaced on purpose
    ImageFile.ImageFile.load = images.in_place_of(original["load_file"], images._load_file)  # type: ignore[method-assign]  # replaced on purpose
    own = vars(kind).get("im")
    original["im"] = _attribute if own is None else own.fget
    kind.im = property(images._get_im, images._set_im if own is None else own.fset)  # type: ignore[assignment]  # an attribute before Pillow 11
    for name in images._ENHANCERS:
        enhancer = getattr(ImageEnhance, name)
        enhancer.__init__ = images._enhancer(name, enhancer.__init__)
    _take_over(Image.blend, _blended)
    for name in OPERATIONS:
        module, _, function = name.partition(".")
        if module == "ImageOps":
            _take_over(getattr(ImageOps, function), partial(_of_pil, name))


def _attribute(image: Any) -> Any:
    """Return Image.im before Pillow 11, which has it as an attribute."""
    im = image.__dict__.get("im") if "_im" not in image.__dict__ else image.__dict__["_im"]
    if isinstance(im, Image.DeferredError):
        raise im.ex
    return im


def _blended(original: Any, im1: Any, im2: Any, alpha: Any) -> Any:
    """Defer the result of an enhancer of ImageEnhance."""
    first, second = (getattr(one, "__dict__", {}).get("_im") for one in (im1, im2))
    if type(first) is not Node or type(second) is not Node or first.parent is not second:
        return None
    if first.call is None or first.call.name not in images._ENHANCERS:
        return None
    name = f"adjust_{images._ENHANCERS[first.call.name]}"
    kind = getattr(ImageEnhance, first.call.name)
    call = RecordedCall(name, lambda image, factor: kind(image).enhance(factor), (alpha,))
    return deferred(im2, lambda s, factor: OPERATIONS[name](s, "pil", factor), call, im1.info.copy())


def _of_pil(name: str, original: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
    if not _may_defer(image):
        return None
    call = RecordedCall(name, original, args, kwargs)
    return deferred(image, lambda s, *a, **k: outcome_of(name, s, "v1", a, k), call, {} if name in _INFO_LOST else None)


def _may_defer(image: Any) -> bool:
    if type(image) in REAL_CLASS or not isinstance(image, Image.Image):
        return False
    im = image.__dict__.get("_im")
    return type(im) is Node or (im is None and HERE.traces)


# ---- torchvision.transforms.functional

_TENSORS_OF_IMAGES = "to_tensor", "pil_to_tensor"
# functions of PIL images that use NumPy or torch, or that are one step here
_BY_PIXELS = "adjust_gamma", "adjust_hue", "gaussian_blur", "resized_crop", "rgb_to_grayscale", "to_grayscale"


def _patch_functional() -> None:
    for name in _TENSORS_OF_IMAGES:
        _take_over(getattr(functional, name), partial(_tensor, "v1", name))
    for name in OPERATIONS:
        function = getattr(functional, name, None)
        if function is not None and name not in _TENSORS_OF_IMAGES:
            _take_over(function, partial(_v1, name))
    _take_over(_functional_pil.pad, _padded)
    _take_over(autoaugment._apply_op, partial(_augmented, "v1"))


def _tensor(version: str, name: str, original: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
    """Defer the conversion of a PIL image to a tensor."""
    if args or kwargs or not _may_defer(image):
        return None
    node = node_of(image)
    outcome = None if node is None else outcome_of(name, node.state, version, (), {})
    if node is None or outcome is None:
        return None
    channels, _, width = outcome.state.shape
    strides = None if name == "to_tensor" and channels > 1 else (1, width * channels, channels)
    return tensor_of(node.then(RecordedCall(name, original), outcome, strides))


def _v1(name: str, original: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
    if type(image) in REAL_CLASS:
        return None if type(image) is not TracedTensor else _of_tensor("v1", name, original, image, args, kwargs)
    if name not in _BY_PIXELS or not _may_defer(image):
        return None
    return _of_image("v1", name, original, image, args, kwargs)


def _of_image(version: str, name: str, original: Any, image: Any, args: Any, kwargs: Any, info: Any = None) -> Any:
    if name in _OF_ARRAYS and image.mode != "RGB":
        return None
    more = {"version": version} if name in _BY_VERSION else {}
    if name in _INFO_OTHER and HERE.traces and node_of(image) is not None:
        info = _info_of(original, image, args, kwargs)
    info = {} if name in _INFO_LOST else info
    call = RecordedCall(name, original, args, kwargs)
    return deferred(image, lambda s, *a, **k: outcome_of(name, s, version, a, {**k, **more}), call, info)


def _info_of(original: Any, image: Any, args: Any, kwargs: Any) -> Any:
    """Return the ``info`` of a function's result, by calling it on an image of one pixel."""
    pixel = Image.new(image.mode, (1, 1))
    pixel.info = image.info.copy()
    return original(pixel, *args, **kwargs).info


def _of_tensor(version: str, name: str, original: Any, tensor: TracedTensor, args: Any, kwargs: Any) -> Any:
    """Defer the result of a function of a deferred tensor."""
    state = tensor._state
    if state is None:
        return None
    more = {"version": version} if name in _BY_VERSION else {}
    outcome = outcome_of(name, state, version, args, {**kwargs, **more})
    if outcome is None:
        return None
    if outcome.state.kind == "pil":
        node = tensor._cell.node
        if node is None or node.steps is None or outcome.steps is None:
            return None
        return images.imaged(node.then(RecordedCall(name, original, args, kwargs), outcome), {})
    kind = REAL_CLASS[type(tensor)]
    call = RecordedCall(name, original if kind is torch.Tensor else partial(_on_kind, kind, original), args, kwargs)
    if name in _VIEWS and not outcome.same:
        if outcome.steps is None or any(one.op == "pad" or not is_inside(numbers) for one, numbers in outcome.steps):
            return None
        return view(tensor, call, outcome, tensor.stride())
    if outcome.same or (strides := _strides(version, name, tensor, outcome)) is not None:
        return recorded(tensor, call, outcome, None if outcome.same else strides)
    return None


def _strides(version: str, name: str, tensor: TracedTensor, outcome: Outcome) -> tuple[int, ...] | None:
    """Return the strides of the result of torchvision's function; None if unknown."""
    shape, width = outcome.state.shape, outcome.state.shape[-1]
    last = 1, width * shape[0], shape[0]
    if shape[0] == 1 and tensor.stride() != contiguous(tensor.shape) and name not in _KEEPS_ANY:
        return None
    if name in _GRAYSCALE and shape[0] == 3:
        return 0, width, 1
    if name == "adjust_hue" and shape[0] == 3:
        return last if version == "v1" else contiguous(shape)
    if name == "resize" and version == "v2" and _is_channels_last(tensor):
        return last
    if name == "pad" and shape == tuple(tensor.shape):
        return None
    if name == "augment" and outcome.steps:
        ((_, (_, which, _)),) = outcome.steps
        name = _FUNCTIONS.get(AUGMENTATIONS[int(which)], name)
    flips = all(one.op == "flip" for one, _ in outcome.steps or ())
    keeps = (flips or name not in _CONTIGUOUS) and shape == tuple(tensor.shape)
    return dense_strides(tensor) if keeps else contiguous(shape)


def _on_kind(kind: Any, original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Call a function with a tensor of the class that it was recorded for."""
    made: torch.Tensor = original(tensor.as_subclass(kind), *args, **kwargs).as_subclass(torch.Tensor)
    return made


def _is_channels_last(tensor: TracedTensor) -> bool:
    channels, _, width = tensor.shape
    return channels > 1 and tensor.stride() == (1, width * channels, channels)


def _padded(original: Any, image: Any, padding: Any, fill: Any = 0, padding_mode: Any = "constant") -> Any:
    """Defer padding by NumPy. Constant padding calls ImageOps.expand(), which is replaced."""
    if padding_mode == "constant" or not _may_defer(image):
        return None
    return _of_image("v1", "pad", original, image, (padding, fill, padding_mode), {})


def _augmented(version: str, original: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
    """Defer one of the operations of AutoAugment and the other policies."""
    if type(image) is TracedTensor:
        return _of_tensor(version, "augment", original, image, args, kwargs)
    if not _may_defer(image):
        return None
    name = args[0] if args else kwargs.get("op_name", kwargs.get("transform_id"))
    if name == "Identity":
        return None
    return _of_image(version, "augment", original, image, args, kwargs, {} if name in _NEW else None)


# ---- torchvision.transforms.v2


def _patch_v2() -> None:
    for function, registry in _utils._KERNEL_REGISTRY.items():
        name = function.__name__
        if name not in OPERATIONS:
            continue
        if Image.Image in registry and name in (*_BY_PIXELS, "jpeg", "permute_channels"):
            registry[Image.Image] = _kernel_of_images(name, registry[Image.Image])
    _take_over(_utils._get_kernel, _kernel_of)
    original = _auto_augment._AutoAugmentBase._apply_image_or_video_transform
    _take_over(original, _augmented_v2)
    method = "transform" if hasattr(v2.Transform, "transform") else "_transform"
    places: list[tuple[Any, str, Any]] = [(module, "_get_fill", _filled) for module in (_geometry, _auto_augment)]
    for owner, name, replacement in (*places, (v2.ToDtype, method, _to_dtype)):
        original = vars(owner)[name]
        setattr(owner, name, images.in_place_of(original, replacement(original)))
    if not hasattr(tv_tensors.TVTensor, "wrap"):  # torchvision 0.20
        tv_tensors.wrap = _wrapped(tv_tensors.wrap)


def _kernel_of_images(name: str, original: Any) -> Any:
    def kernel(image: Any, *args: Any, **kwargs: Any) -> Any:
        made = _of_image("v2", name, original, image, args, kwargs) if _may_defer(image) else None
        return original(image, *args, **kwargs) if made is None else made

    return kernel


def _kernel_of(original: Any, functional: Any, kind: Any, allow_passthrough: bool = False) -> Any:
    """Return the kernel for a class of deferred tensors, which is that of the real class, deferred if possible."""
    real = REAL_CLASS.get(kind)
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
    return _kernel(name, kernel) if name in OPERATIONS else kernel


def _resized_crop(tensor: Any, top: Any, left: Any, height: Any, width: Any, size: Any, **how: Any) -> Any:
    return v2.functional.resize(v2.functional.crop(tensor, top, left, height, width), size, **how)


def _kernel(name: str, original: Any) -> Any:
    def kernel(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        made = _of_tensor("v2", name, original, tensor, args, kwargs)
        if made is None:
            return original(tensor._real(f"uses the tensor's {name}"), *args, **kwargs)
        return made

    return kernel


def _augmented_v2(original: Any, policy: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
    if type(image) not in REAL_CLASS and not _may_defer(image):
        return None
    bound = partial(_augment_by, original, policy)
    if type(image) in REAL_CLASS:
        return _of_tensor("v2", "augment", bound, image, args, kwargs)
    name = args[0] if args else kwargs.get("transform_id")
    if name == "Identity":
        return None
    return _of_image("v2", "augment", bound, image, args, kwargs, {} if name in _NEW else None)


def _augment_by(original: Any, policy: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
    return original(policy, image, *args, **kwargs)


def _filled(original: Any) -> Any:
    def get_fill(fill_dict: Any, inpt_type: Any) -> Any:
        return original(fill_dict, REAL_CLASS.get(inpt_type, inpt_type))

    return get_fill


def _to_dtype(original: Any) -> Any:
    def transform(self: Any, inpt: Any, params: Any) -> Any:
        real = REAL_CLASS.get(type(inpt))
        if real is None or not isinstance(self.dtype, dict) or real not in self.dtype:
            return original(self, inpt, params)
        known = copy.copy(self)
        known.dtype = {**self.dtype, type(inpt): self.dtype[real]}
        return original(known, inpt, params)

    return transform


def _wrapped(original: Any) -> Any:
    def wrap(wrappee: Any, *, like: Any, **kwargs: Any) -> Any:
        if type(like) in REAL_CLASS:
            return wrappee.as_subclass(REAL_CLASS[type(like)])
        return original(wrappee, like=like, **kwargs)

    return wrap


# ---- decoders


def _patch_decoders() -> None:
    for module, functions in DECODERS.items():
        found = vars(sys.modules.get(module, object))
        for name, types in functions.items():
            if name in found and f"_dali_compat_{name}" not in found:
                _take_over(found[name], partial(decoded, types))


# ---- functions


def _take_over(function: Any, attempt: Callable[..., Any]) -> None:
    """Replace a function's code by ``attempt(original, *arguments)``, and by the original if that returns None.

    The function stays the same object, so that names imported earlier call the new code. torch.jit.script compiles the
    original.
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
    parameters, arguments = [], []
    star = False
    for p in inspect.signature(original).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            parameters.append(f"*{p.name}")
            arguments.append(f"*{p.name}")
            star = True
            continue
        if p.kind is p.VAR_KEYWORD:
            parameters.append(f"**{p.name}")
            arguments.append(f"**{p.name}")
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            parameters.append("*")
            star = True
        parameters.append(p.name)
        arguments.append(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name)
    attempt = partial(_without_defaults, attempt, function.__defaults__ or ())
    name, given = function.__name__, ", ".join(arguments)
    names: dict[str, Any] = {}
    source = (
        f"def {name}({', '.join(parameters)}):\n"
        f"    made = _dali_compat_{name}[1](_dali_compat_{name}[0], {given})\n"
        f"    return _dali_compat_{name}[0]({given}) if made is None else made"
    )
    exec(compile(source, f"{__file__}:{name}", "exec"), names)  # file name of this package, not of the user's code
    function.__globals__[f"_dali_compat_{name}"] = original, attempt
    function.__code__ = names[name].__code__
    vars(function).update(__wrapped__=original, __original_fn=original, __script_if_tracing_wrapper=True)


def _without_defaults(
    attempt: Callable[..., Any], defaults: tuple[Any, ...], original: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call an attempt without trailing positional arguments that are the defaults."""
    count = len(args)
    for default in reversed(defaults):
        if not count or args[count - 1] is not default:
            break
        count -= 1
    return attempt(original, *args[:count], **kwargs)
