"""Registers translators of transforms, and finds the one of a class.

A translator is registered for an exact class: a user's subclass of Resize is not a Resize, unless its constructor is
all that it changes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..inspection.objects import root
from ..inspection.replaced import refuse_replaced
from ..inspection.untranslatable import Untranslatable
from ..plan import Draw, ImageSpec, Step, draw

Translator = Callable[[Any, ImageSpec], Any]
T = TypeVar("T", bound=Translator)

_TRANSLATORS: dict[type, tuple[Translator, frozenset[str]]] = {}
LATER = {"timm", "timm_policies", "timm_operations"}
"""Modules of this room that are imported when a transform of a package comes: of that name, and what this imports."""

_NOTHING = object()

# what a class may define without doing anything else than its base
_OF_MAKING = {"__init__", "__repr__", "__str__", "extra_repr", "__doc__", "__module__", "__qualname__", "__dict__"}
_OF_MAKING |= {"__weakref__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
_OF_MAKING |= {"__static_attributes__", "__firstlineno__", "__parameters__", "__orig_bases__"}

# ---- registering


def register(*types: type | None, consumes: str = "") -> Callable[[T], T]:
    """Register a translator for exact transform types.

    The decorated function is called as ``translator(transform, spec)``, where ``spec`` is the
    :class:`~dali_compat.plan.ImageSpec` that reaches the transform, and returns the steps: what :func:`on_batch` gives.
    It may raise :class:`dali_compat.translate.Untranslatable`; the transform is then called sample by sample.

    Args:
        *types: the exact classes; a subclass is not translated, unless a class of torchvision's says all that it does.
            None, in the place of one that an older version lacks, is left out.
        consumes: the constructor arguments that the translator honours, space-separated. A transform whose constructor
            has another one falls back where that differs from its default: an argument is honoured or refused.

    Returns:
        A decorator that gives the function back as it is.

    Raises:
        ValueError: where a type is registered already.
        TypeError: where one of them is no class.

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
                raise ValueError(f"{kind.__module__}.{kind.__qualname__} has a translator already")
            _TRANSLATORS[kind] = function, frozenset(consumes.split())
        return function

    return decorate


def on_batch(function: Callable[..., Any], spec: ImageSpec, uniforms: int = 0, **args: Any) -> tuple[Step, ...]:
    """Steps for a translator of one's own: a function that works on whole batches.

    Args:
        function: called as ``function(images, **args)`` with images (N, C, H, W) on the loader's device, uint8 0..255
            or floating point as torchvision would have them at this place (where sizes differ: with those of one size),
            and returns the new images. A function of a module, not a lambda made by the translator: plans are compared
            by it.
        spec: the image that the function gives; where it differs from that which the translator gets,
            ``spec.but(...)``. Of images of several sizes the function may change the size to one size alone. A batch in
            which it gives another shape or dtype raises ValueError.
        uniforms: how many random numbers a sample takes. They come as ``uniforms=``, (N, uniforms) float32 in [0, 1) on
            the device: the same for one seed, whatever the device and the batch size.
        **args: passed on; hashable, or compared by identity.

    Returns:
        What a translator returns: one step.

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


# ---- what a translator returns, besides steps


@dataclass(frozen=True)
class Nested:
    """Transforms to run one after another: what a translator returns for a container."""

    transforms: tuple[Any, ...]


class Branch(NamedTuple):
    """Transforms for the samples for which ``value`` is chosen (at place ``rank`` of an order)."""

    value: int
    transforms: tuple[Any, ...]
    rank: int = 0


@dataclass(frozen=True)
class Gated:
    """A choice among transforms: what a translator returns for a container that chooses."""

    name: str  # of the container, for people
    draw: Draw  # what chooses
    branches: tuple[Branch, ...]  # what is chosen from
    complete: bool = False  # every sample goes through one of them
    in_order: bool = False  # every sample goes through all of them, in an order of its own


# ---- asking


def _import_later(package: str) -> None:
    if package in LATER:
        with contextlib.suppress(ImportError):  # it is something else of that name
            importlib.import_module(f"{__package__}.{package}")


def known_types() -> list[type]:
    """Classes that have a translator, as far as their packages are there."""
    for package in LATER & sys.modules.keys():
        _import_later(package)
    return list(_TRANSLATORS)


def behaves_as(kind: type) -> type | None:
    """The class with a translator that says what objects of ``kind`` do: itself, or, for a subclass of torchvision's
    that changes nothing but how it is made and shown, its base. None where there is none."""
    _import_later(root(kind))
    if kind in _TRANSLATORS:
        return kind
    for place, base in enumerate(kind.__mro__):
        if base in _TRANSLATORS:
            same = kind.__mro__[place:] == base.__mro__ and type(kind) is type(base) and root(base) == "torchvision"
            return base if same else None
        if not vars(base).keys() <= _OF_MAKING:
            return None
    return None


def as_known(transform: Any) -> Any:
    """A transform, as an object of the class that behaves_as() names, with the same attributes. Raises LookupError if
    there is none."""
    kind = behaves_as(type(transform))
    if kind is None:
        raise LookupError(f"{type(transform).__name__} has no translator")
    if kind is type(transform):
        return transform
    made: Any = object.__new__(kind)
    object.__setattr__(made, "__dict__", vars(transform))
    return made


def translated_base(kind: type) -> type | None:
    """The nearest base of a class that has a translator."""
    return next((base for base in kind.__mro__[1:] if base in _TRANSLATORS), None)


def translation(transform: Any, spec: ImageSpec) -> Any:
    """Returns what the transform's translator gives: steps, Nested, or Gated. Raises LookupError if its class has none,
    and Untranslatable if there is no faithful translation of this one."""
    transform = as_known(transform)
    function, consumed = _TRANSLATORS[type(transform)]
    refuse_replaced(transform)
    name = _unconsumed(transform, consumed)
    if name and root(function) == root(register):
        raise Untranslatable(transform, f"argument {name} is not known to this version of dali_compat")
    if name:
        remedy = f'register(..., consumes="{name}") where the translation honours it'
        raise Untranslatable(transform, f"argument {name} is not known to its registered translation", remedy)
    return function(transform, spec)


def _unconsumed(transform: Any, consumed: frozenset[str]) -> str:
    """The first argument that is not ``consumed`` and differs from its default; "" where there is none."""
    kind: Any = type(transform)
    for name, parameter in _parameters(kind).items():
        if name in consumed or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if getattr(transform, name, _NOTHING) != parameter.default:
            return name
    return ""


@functools.lru_cache(256)
def _parameters(kind: type) -> Mapping[str, inspect.Parameter]:
    """The parameters of a class's constructor. inspect takes 50 us to find them, and every epoch asks."""
    return inspect.signature(kind).parameters
