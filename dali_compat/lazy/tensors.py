"""LazyTensor: what transforms give of an image, before anybody needs it."""

from __future__ import annotations

from typing import Any

import torch
from torchvision import tv_tensors

from .later import Later

_EMPTY = torch.empty(0, device="meta")  # it has no memory: what goes past __torch_function__ raises an error


class LazyTensor(torch.Tensor):
    """A tensor that is computed when somebody looks at it, or at anything of it."""

    _later: Later

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        why = f"uses the tensor's {_name(func)}"
        return func(*_real(args, why), **{name: _real(value, why) for name, value in (kwargs or {}).items()})

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_later":
            object.__setattr__(self, name, value)
        else:
            setattr(self._later.value(f"sets the tensor's {name}"), name, value)


class LazyTVImage(LazyTensor, tv_tensors.Image):
    """The same, of transforms that give torchvision's tv_tensors.Image."""


def lazy_tensor(kind: type[LazyTensor], later: Later) -> LazyTensor:
    """A tensor of one of these classes."""
    made = torch.Tensor._make_subclass(kind, _EMPTY)
    made._later = later
    return made


def _real(value: Any, why: str) -> Any:
    """Arguments, in which lazy tensors are real."""
    kind = type(value)
    if issubclass(kind, LazyTensor):
        return value._later.value(why)
    if kind in (list, tuple):
        return kind([_real(one, why) for one in value])
    if kind is dict:
        return {name: _real(one, why) for name, one in value.items()}
    return value


def _name(function: Any) -> str:
    """ "shape", not "__get__", of an attribute."""
    owner = getattr(function, "__self__", None)
    name = getattr(owner, "__name__", "") if function.__name__ in ("__get__", "__set__") else function.__name__
    return str(name).strip("_")
