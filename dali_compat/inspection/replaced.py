"""Transforms whose code is not their package's: somebody has replaced it, on the object or in the class."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch import nn
from torchvision.transforms import functional, v2
from torchvision.transforms.v2 import functional as functional_v2

from .bytecode import names
from .objects import modules_are_hooked, root
from .untranslatable import Untranslatable

STANDS_FOR = "_dali_compat_stands_for"  # of a function that has another's place for a while: the other
_THEIRS = frozenset(("torchvision", "timm"))
_OLD = "_transform" in vars(v2.Transform)  # before torchvision 0.21
_OF_V2 = ("_get_params", "_transform") if _OLD else ("make_params", "transform")
_METHODS = ("__call__", "forward", "get_params", *_OF_V2)


def refuse_replaced(transform) -> None:
    """
    Raises:
        Untranslatable: it does not do what its class is known for.
    """
    if "forward" in vars(transform) or "__call__" in vars(transform):
        raise Untranslatable(transform, "its forward method was replaced on the instance")
    if any(vars(transform).get(hooks) for hooks in ("_forward_hooks", "_forward_pre_hooks")):
        raise Untranslatable(transform, "it has forward hooks")
    if isinstance(transform, nn.Module) and modules_are_hooked():
        raise Untranslatable(transform, "all modules have forward hooks, or torch.nn.Module.__call__ was replaced")
    kind: Any = type(transform)
    if root(kind) not in _THEIRS:
        return
    for name in vars(transform):
        if isinstance(getattr(kind, name, None), FunctionType):
            raise Untranslatable(transform, f"its {name} was replaced on the instance")
    for name, method in _methods(kind):
        if not _is_theirs(method):
            raise Untranslatable(transform, f"{kind.__name__}.{name} was replaced")
    for module, name in _functions(kind):
        if not _is_theirs(function_of(vars(module).get(name))):
            raise Untranslatable(transform, f"{module.__name__}.{name} was replaced")


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Returns its methods, and those of its bases in the same package, as they are now."""
    for base in kind.__mro__:
        if root(base) in _THEIRS:
            own = vars(base)
            yield from ((name, function_of(own[name])) for name in _METHODS if name in own)


def function_of(method) -> Any:
    """A method's function; of one that stands for another, the other."""
    function = method.__func__ if isinstance(method, (staticmethod, classmethod)) else method
    return getattr(function, STANDS_FOR, function)


def _is_theirs(function) -> bool:
    """Returns whether its code is; a decorator may have given it another name and module."""
    world = function.__globals__ if isinstance(function, FunctionType) else {}
    return str(world.get("__name__")).partition(".")[0] in (*_THEIRS, "torch")


@functools.lru_cache(256)
def _functions(kind) -> tuple[tuple[Any, str], ...]:
    """Functions of torchvision that its methods use by name."""
    used = set().union(*(names(method.__code__) for _, method in _methods(kind) if isinstance(method, FunctionType)))
    module = functional_v2 if ".v2." in kind.__module__ else functional
    found = ((name, vars(module).get(name)) for name in sorted(used))
    return tuple((module, name) for name, one in found if callable(one) and not isinstance(one, type))
