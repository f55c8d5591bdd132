"""LazyTensor: what transforms give of an image, before anybody needs it."""

from __future__ import annotations

from typing import Any

import torch
from torchvision import tv_tensors

from .later import Later

_OWN = frozenset(("_later", "__torch_function__", "__torch_dispatch__", "float"))


class LazyTensor(torch.Tensor):
    """A tensor that is computed when somebody looks at it, or at anything of it: through Python, or, past
    __torch_function__, in C++."""

    _later: Later
    _real_class: type[torch.Tensor] = torch.Tensor

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN:
            return object.__getattribute__(self, name)
        if name == "__class__":  # which isinstance() asks for
            return type(self)._real_class
        return getattr(self._later.value(f"uses the tensor's {name.strip('_')}"), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        why = f"uses the tensor's {_name(func)}"
        return func(*_real(args, why), **{name: _real(value, why) for name, value in (kwargs or {}).items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's annotation has no class method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls.__torch_function__(func, types, args, kwargs)

    def float(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As torch's: of a float32 tensor itself."""
        later = self._later
        if not later.is_real and not args and not kwargs and later.chain.gives.dtype == torch.float32:
            return self
        return later.value("uses the tensor's float").float(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_later":
            object.__setattr__(self, name, value)
        else:
            setattr(self._later.value(f"sets the tensor's {name}"), name, value)


class LazyTVImage(LazyTensor):
    """The same, of transforms that give torchvision's tv_tensors.Image."""

    _real_class = tv_tensors.Image


def lazy_tensor(kind: type[LazyTensor], later: Later) -> LazyTensor:
    """A tensor of one of these classes."""
    made = torch.Tensor._make_wrapper_subclass(
        kind,
        (0,),
        dtype=later.chain.gives.dtype,  # which compiled code takes from here
        dispatch_sizes_strides_policy="sizes",
        dispatch_device=True,
        dispatch_layout=True,
    )
    torch._C._set_throw_on_mutable_data_ptr(made)  # there are no data yet
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
    own = getattr(function, "__name__", type(function).__name__)
    name = getattr(owner, "__name__", "") if own in ("__get__", "__set__") else own
    return str(name).strip("_")
