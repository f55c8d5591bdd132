"""Register translators of transforms, and find the translator of a class.

A translator is registered for an exact class. A user's subclass of Resize is translated as a Resize only if it changes
nothing but the constructor.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..inspection.objects import top_package
from ..inspection.replaced import refuse_replaced
from ..inspection.untranslatable import Untranslatable
from ..plan import Draw, ImageSpec, Step, draw

Translator = Callable[[Any, ImageSpec], Any]
T = TypeVar("T", bound=Translator)

_TRANSLATORS: dict[type, tuple[Translator, frozenset[str]]] = {}
LAZY_MODULES = {"timm", "timm_policies", "timm_operations"}
"""Modules of this package that are imported when a transform of timm is translated."""

_NOTHING = object()

# names that a subclass may define without changing the behavior of its base
_NEUTRAL_NAMES = {"__init__", "__repr__", "__str__", "extra_repr", "__doc__", "__module__", "__qualname__", "__dict__"}
_NEUTRAL_NAMES |= {"__weakref__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
_NEUTRAL_NAMES |= {"__static_attributes__", "__firstlineno__", "__parameters__", "__orig_bases__"}

# ---- registering


def register(*types: type | None, consumes: str = "") -> Callable[[T], T]:
    """Register a translator for exact transform types.

    The decorated function is called as ``translator(transform, spec)``, where ``spec`` is the
    :class:`~dali_compat.plan.ImageSpec` of the input. It returns the steps, usually from :func:`on_batch`. It may raise
    :class:`dali_compat.translate.Untranslatable`; the transform is then called sample by sample.

    Args:
        *types: the exact classes, and None (ignored) for a class that an older version lacks. A subclass of a
            torchvision class is translated, too, if it changes only the constructor.
        consumes: names of the constructor arguments that the translator handles, separated by spaces. If another
            argument differs from its default, the transform is called sample by sample.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        ValueError: a type is registered already.
        TypeError: one of the types is not a class.

    Examples:
        >>> class AddBias:
        ...     def __init__(self, bias):
        ...         self.bias = bias
        ...     def __call__(self, image):
        ...         return image + self.bias
        >>> def add_bias(images, bias):  # of a whole batch
        ...     return images + bias
        >>> @register(AddBias, consumes="bias")
        ... def translate_add_bias(transform, spec):
        ...     return on_batch(add_bias, spec, bias=transform.bias)
        >>> chain = transforms.Compose([transform, AddBias(0.5)])
        >>> loader = DataLoader(DALIImageFolder("train", chain), fallback="error", device="cpu")
    """

    for one in types:
        if one is not None and not isinstance(one, type):
            raise TypeError(f"register() takes the classes of transforms, got {one!r}")

    def decorate(function: T) -> T:
        for kind in filter(None, types):
            if kind in _TRANSLATORS:
                raise ValueError(f"a translator is already registered for {kind.__module__}.{kind.__qualname__}")
            _TRANSLATORS[kind] = function, frozenset(consumes.split())
        return function

    return decorate


def on_batch(function: Callable[..., Any], spec: ImageSpec, uniforms: int = 0, **args: Any) -> tuple[Step, ...]:
    """Return steps that call a function on whole batches, for a custom translator.

    Args:
        function: called as ``function(images, **args)``; returns the new images. ``images`` is (N, C, H, W) on the
            loader's device, uint8 0..255 or floating point as in torchvision at this point. Images of different sizes
            are passed in separate calls. Use a module-level function rather than a lambda created by the translator,
            because plans are compared by their functions.
        spec: describes the function's output. If the output differs from the input, pass ``spec.but(...)``. If the
            inputs differ in size, either each output has its input's size, or all outputs have one common size. An
            output of another shape or dtype raises ValueError when a batch is computed.
        uniforms: number of random numbers per sample. The function gets a float32 tensor ``uniforms=`` (N, uniforms) in
            [0, 1) on the device. The numbers depend on the seed, but not on the device or the batch size.
        **args: further arguments of the function, hashable or compared by identity.

    Returns:
        A tuple of one step, which the translator returns.

    Examples:
        >>> class Brighter:
        ...     def __call__(self, image):
        ...         return image * (1 + torch.rand(1))
        >>> def brighter(images, uniforms):
        ...     return images * (1 + uniforms[:, :, None, None])
        >>> @register(Brighter)
        ... def translate_brighter(transform, spec):
        ...     return on_batch(brighter, spec, uniforms=1)
    """
    drawn = draw("uniforms", count=uniforms) if uniforms else None
    return (Step("apply", spec, (("function", function), ("spec", spec), *args.items()), drawn),)


# ---- return values of translators, besides steps


@dataclass(frozen=True)
class Nested:
    """Transforms to apply in sequence, for example the transforms of a Compose."""

    transforms: tuple[Any, ...]


class Branch(NamedTuple):
    """Transforms that a container applies to the samples for which it draws ``value``. In RandomOrder, entry
    ``rank`` of the drawn permutation has to be ``value``."""

    value: int
    transforms: tuple[Any, ...]
    rank: int = 0


@dataclass(frozen=True)
class Gated:
    """A container that chooses among its transforms at random."""

    name: str  # name of the container, for messages
    draw: Draw  # draws the value
    branches: tuple[Branch, ...]  # the transforms to choose from
    complete: bool = False  # every sample goes through one of the branches
    in_order: bool = False  # every sample goes through all of the branches, in a random order


# ---- look-up


def _import_lazily(package: str) -> None:
    if package in LAZY_MODULES:
        with contextlib.suppress(ImportError):  # another package has that name
            importlib.import_module(f"{__package__}.{package}")


def translated_class(kind: type) -> type | None:
    """Return the class whose translator handles objects of ``kind``, or None.

    This is ``kind`` or, if ``kind`` changes only construction and repr, the base class in torchvision.
    """
    _import_lazily(top_package(kind))
    if kind in _TRANSLATORS:
        return kind
    for place, base in enumerate(kind.__mro__):
        if base in _TRANSLATORS:
            same = kind.__mro__[place:] == base.__mro__ and type(kind) is type(base)
            return base if same and top_package(base) == "torchvision" else None
        if not vars(base).keys() <= _NEUTRAL_NAMES:
            return None
    return None


def as_known(transform: Any) -> Any:
    """Return a transform as an object of its translated_class(), with the same attributes."""
    kind = translated_class(type(transform))
    if kind is None:
        raise LookupError(f"{type(transform).__name__} has no translator")
    if kind is type(transform):
        return transform
    made: Any = object.__new__(kind)
    object.__setattr__(made, "__dict__", vars(transform))
    return made


def translated_base(kind: type) -> type | None:
    return next((base for base in kind.__mro__[1:] if base in _TRANSLATORS), None)


def translation(transform: Any, spec: ImageSpec) -> Any:
    """Return the result of a transform's translator: steps, Nested or Gated.

    Raise LookupError if its class has no translator, and Untranslatable if this object cannot be translated faithfully.
    """
    transform = as_known(transform)
    function, consumed = _TRANSLATORS[type(transform)]
    refuse_replaced(transform)
    name = _unconsumed(transform, consumed)
    if name and top_package(function) == top_package(register):
        raise Untranslatable(transform, f"argument {name} is not supported by this version of dali_compat")
    if name:
        remedy = f'pass consumes="{name}" to register() if the translation handles it'
        raise Untranslatable(transform, f"argument {name} is not handled by its registered translation", remedy)
    return function(transform, spec)


def _unconsumed(transform: Any, consumed: frozenset[str]) -> str:
    """Return the first argument that is not ``consumed`` and differs from its default, or "" if there is none."""
    kind: Any = type(transform)
    for name, parameter in _parameters(kind).items():
        if name in consumed or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if getattr(transform, name, _NOTHING) != parameter.default:
            return name
    return ""


@functools.lru_cache(256)
def _parameters(kind: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind).parameters  # cached, because this takes 50 us
