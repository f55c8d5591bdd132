"""Which transform classes translate, by exact type: a user's subclass of Resize is not a Resize."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable

from ..plan import ImageSpec, Step

_TRANSLATORS: dict[type, tuple[Callable, frozenset[str]]] = {}

NOTHING = object()


class Untranslatable(Exception):
    """A transform has no faithful translation.

    Attributes:
        transform: the transform's repr, on one line.
        reason: why, naming the argument where one is at fault.
        remedy: what to write instead, or ''.
    """

    def __init__(self, transform: Any, reason: str, remedy: str = ""):
        self.transform = describe(transform)
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{self.transform}: {reason}" + (f"; {remedy}" if remedy else ""))


@dataclass(frozen=True)
class Translated:
    """A transform and the steps that it became (none where there is nothing to do)."""

    transform: str
    steps: tuple[Step, ...] = field(default=())


def describe(transform: Any) -> str:
    """repr on one line; functions by name, text as it is."""
    if isinstance(transform, str):
        return transform
    if transform is not None and not hasattr(type(transform), "forward") and hasattr(transform, "__qualname__"):
        return transform.__qualname__
    return " ".join(repr(transform).split())


def register(*types: type, consumes: str = ""):
    """Register a translator for exact transform types.

    The function is called as ``translator(transform, spec)``, where ``spec`` is the :class:`~dali_compat.plan.ImageSpec`
    that reaches the transform, and returns an iterable of steps (plan.step), or raises :class:`Untranslatable`.

    Args:
        types: the exact classes; a subclass is not translated.
        consumes: the constructor arguments that the translator honours, space-separated. A transform whose constructor
            has another one falls back where that differs from its default: an argument is honoured or refused.

    Raises:
        ValueError: where a type is registered already.
    """

    def decorate(function):
        for kind in types:
            if kind in _TRANSLATORS:
                raise ValueError(f"{kind.__module__}.{kind.__qualname__} has a translator already")
            _TRANSLATORS[kind] = function, frozenset(consumes.split())
        return function

    return decorate


def translate(transform: Any, spec: ImageSpec = ImageSpec()) -> tuple[Translated, ...]:
    """Translate a transform, containers included, into one entry a leaf transform.

    Raises:
        Untranslatable: naming the first transform (or argument) that does not translate.
    """
    if transform is None:
        raise Untranslatable(transform, "without a transform samples are PIL images", "end it with ToTensor()")
    entry = _TRANSLATORS.get(type(transform))
    if entry is None:
        raise Untranslatable(transform, _why_unknown(transform))
    function, consumed = entry
    _refuse_changed_instances(transform)
    _refuse_unconsumed(transform, consumed)
    result = function(transform, spec)
    if isinstance(result, _Nested):
        leaves: list[Translated] = []
        for inner in result.transforms:
            leaves += translate(inner, spec)
            spec = next((t.steps[-1].gives for t in reversed(leaves) if t.steps), spec)
        return tuple(leaves)
    return (Translated(describe(transform), tuple(result)),)


@dataclass(frozen=True)
class _Nested:
    transforms: tuple


def nested(transforms: Iterable) -> _Nested:
    """What a translator returns for a container: the transforms to run one after another."""
    return _Nested(tuple(transforms))


def _why_unknown(transform) -> str:
    kind = type(transform)
    known = next((base for base in kind.__mro__[1:] if base in _TRANSLATORS), None)
    if known is not None:
        return f"a subclass of {known.__name__} may do something else, so only the exact class is translated"
    return "no translation is registered for it"


def _refuse_changed_instances(transform) -> None:
    if "forward" in vars(transform) or "__call__" in vars(transform):
        raise Untranslatable(transform, "its forward method was replaced on the instance")
    if any(vars(transform).get(hooks) for hooks in ("_forward_hooks", "_forward_pre_hooks")):
        raise Untranslatable(transform, "it has forward hooks")


def _refuse_unconsumed(transform, consumed: frozenset[str]) -> None:
    for name, parameter in inspect.signature(type(transform)).parameters.items():
        if name in consumed or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if getattr(transform, name, NOTHING) != parameter.default:
            raise Untranslatable(transform, f"argument {name} is not known to this version of dali_compat")
