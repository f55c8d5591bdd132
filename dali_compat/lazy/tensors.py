"""LazyTensor: what operations give of an image, before anybody needs it."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torchvision import tv_tensors

from .convert import computed
from .deferred import Deferred
from .operations import OPERATIONS, Outcome, State, outcome_of, step
from .record import RecordedCall, kept

_JOINS = {torch.stack: "stack", torch.cat: "cat", torch.concat: "cat", torch.concatenate: "cat"}
_CPU = torch.device("cpu")
_DISPATCH: Any = {"dispatch_sizes_strides_policy": "sizes", "dispatch_device": True, "dispatch_layout": True}


class LazyTensor(torch.Tensor):
    """A tensor that is computed when somebody looks at it, or at anything of it: through Python, or, past
    __torch_function__, in C++. It knows its shape and dtype."""

    _later: Deferred
    _real_class: type[torch.Tensor] = torch.Tensor

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # which isinstance() asks for
            return type(self)._real_class
        if name in _OWN:
            return object.__getattribute__(self, name)
        later = self._later
        if (state := later.state) is not None and name in _OF_STATE:
            return _OF_STATE[name](state)
        return getattr(later.value(f"uses the tensor's {name.strip('_')}"), name)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> Any:
        name = _name(func)
        if name in _METHODS and func is getattr(torch, name, None) and args and type(args[0]) in _LAZY:
            return _called(args[0], name, args[1:], kwargs or {})
        if func in _JOINS and (made := _joined(_JOINS[func], *args, **kwargs or {})) is not None:
            return made
        why = f"uses the tensor's {name}"
        return func(*_real(args, why), **{name: _real(value, why) for name, value in (kwargs or {}).items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's annotation has no class method
        cls, func, types, args=(), kwargs=None
    ) -> Any:
        return cls.__torch_function__(func, types, args, kwargs)

    def __setattr__(self, name: str, value) -> None:
        if name == "_later":
            object.__setattr__(self, name, value)
        else:
            setattr(self._later.value(f"sets the tensor's {name}"), name, value)

    def __len__(self) -> int:
        state = self._later.state
        return len(self._later.value("")) if state is None else state.shape[0]


class LazyStack(LazyTensor):
    """Alike ones, stacked or concatenated: real when anybody looks at it, or at one of them."""

    _parts: tuple[LazyTensor, ...]
    _how: str


def _joined(name: str, tensors, dim: int = 0, **kwargs) -> LazyStack | None:
    """Returns what torch.stack or torch.cat gives of alike ones, not made yet; None of others."""
    if kwargs or type(tensors) not in (list, tuple) or not all(type(one) in _LAZY for one in tensors):
        return None
    try:
        parts, laters = tuple(tensors), [one._later for one in tensors]
        ((shape, dtype),) = {(one.state.shape, one.state.dtype) for one in laters}
        shape = getattr(torch, name)([torch.empty(shape, device="meta")] * len(parts), dim).shape
    except Exception:  # torch says what is wrong
        return None
    later = Deferred(laters[0].source, laters[0].notes, lambda _: getattr(torch, name)(_real(parts, ""), dim))
    for one in laters:
        one.after.append(weakref.ref(later))
    made = torch.Tensor._make_wrapper_subclass(LazyStack, shape, dtype=dtype)
    torch._C._set_throw_on_mutable_data_ptr(made)
    made._later = later
    object.__setattr__(made, "_parts", parts)
    object.__setattr__(made, "_how", f"{name} {dim}")
    return None if any(one.is_real for one in laters) else later.notes.made(made)


LazyTensor.__name__ = "Tensor"  # as torchvision's warnings name it, and the classes of its tensors
KINDS: dict[str, type[LazyTensor]] = {"tensor": LazyTensor}
for _kind in (tv_tensors.Image, tv_tensors.Mask):
    KINDS[_kind.__name__] = type(_kind.__name__, (LazyTensor,), {"_real_class": _kind})
_LAZY = frozenset(KINDS.values())


def lazy_tensor(later: Deferred) -> LazyTensor:
    """The stand-in for a tensor that is made later."""
    state = later.state
    assert state is not None  # nobody has seen it
    # compiled code takes the dtype from here
    made = torch.Tensor._make_wrapper_subclass(KINDS[state.kind], state.shape, dtype=state.dtype, **_DISPATCH)
    torch._C._set_throw_on_mutable_data_ptr(made)  # there are no data yet
    object.__setattr__(made, "_later", later)
    return made


# ---- what is known without the pixels

_OF_STATE: dict[str, Any] = {
    "shape": lambda s: torch.Size(s.shape),
    "ndim": lambda s: len(s.shape),
    "dtype": lambda s: s.dtype,
    "device": lambda s: _CPU,
    **dict.fromkeys(("is_cuda", "is_quantized", "is_sparse", "requires_grad"), lambda s: False),
}


_ANSWERS: dict[str, Any] = {
    **dict.fromkeys(("dim", "ndimension"), lambda s: len(s.shape)),
    "size": lambda s, dim=None: torch.Size(s.shape) if dim is None else s.shape[dim],
    **dict.fromkeys(("nelement", "numel"), lambda s: torch.Size(s.shape).numel()),
    "element_size": lambda s: s.dtype.itemsize,
    "is_floating_point": lambda s: s.dtype.is_floating_point,
}


def _to(s: State, target) -> Outcome:
    if isinstance(target, torch.dtype):
        made = outcome_of("to_dtype", s._replace(kind="tensor"), "v1", (target,), {})
        assert made is not None  # else the tensor says so
        known = made.steps is not None and s.kind == "tensor"
        return Outcome(s._replace(dtype=target), made.steps if known else None, made.same)
    if torch.device(target) != _CPU:
        raise ValueError
    return Outcome(s, (), same=True)


def _cast(s: State, dtype: torch.dtype) -> Outcome:
    """Methods of tv_tensors give a plain tensor, but for a few."""
    made = _to(s, dtype)
    return made if s.kind == "tensor" else Outcome(made.state._replace(kind="tensor"))


def _squeezed(s: State, dim=None) -> Outcome:
    """Returns the lines of one plane."""
    if len(s.shape) != 3 or s.shape[0] != 1 or 1 in s.shape[1:] or dim not in (None, 0, -3):
        raise ValueError
    return Outcome(s._replace(shape=s.shape[1:], kind="tensor"))


def _unsqueezed(s: State, dim: int) -> Outcome:
    if dim != 0:
        raise ValueError
    return Outcome(s._replace(shape=(1, *s.shape), kind="tensor"))


def _item(s: State, place) -> Outcome:
    """Simplifies an index: of a tuple the first place is taken, if all others are ``...`` and full slices."""
    places = place if type(place) is tuple else (place,)
    at = next((number for number, one in enumerate(places) if one is ...), None)
    if at is not None:
        left = len(s.shape) - sum(one is not None for one in places) + 1
        places = *places[:at], *[slice(None)] * left, *places[at + 1 :]
    while places and type(places[-1]) is slice and places[-1] == slice(None):
        places = places[:-1]
    first = places[0] if len(places) == 1 else slice(None)
    if first is None:
        return _unsqueezed(s, 0)
    if type(first) is torch.Tensor and first.dtype == torch.bool and first.shape == s.shape[:1] and int(first.sum()):
        return Outcome(s._replace(shape=(int(first.sum()), *s.shape[1:]), kind="tensor"))
    if type(first) is list or (type(first) is torch.Tensor and first.dtype == torch.int64):
        made = OPERATIONS["permute_channels"](s, "v1", first)
        return made._replace(state=s._replace(kind="tensor"))
    if type(first) is slice:
        return _window(s, places)
    if type(first) is not int or len(s.shape) != 3 or not -s.shape[0] <= first < s.shape[0]:
        raise IndexError
    return Outcome(s._replace(shape=s.shape[1:], kind="tensor"))


def _window(s: State, places: tuple[Any, ...]) -> Outcome:
    """Returns the crop that a tensor's slices take of all channels."""
    places = *places, *[slice(None)] * (len(s.shape) - len(places))
    ranges = [range(side)[place] for side, place in zip(s.shape, places, strict=True)]
    if any(one.step != 1 for one in ranges):
        raise IndexError
    after = s._replace(shape=tuple(map(len, ranges)), kind="tensor")
    if len(ranges) != 3 or len(ranges[0]) != s.channels:
        return Outcome(after)
    (top, left), size = (one.start for one in ranges[1:]), after.size
    return Outcome(after, () if size == s.size else OPERATIONS["crop"](s, "v1", top, left, *size).steps)


def _flipped(s: State, *dims) -> Outcome:
    several = dims[0] if len(dims) == 1 and type(dims[0]) in (tuple, list) else dims
    steps: tuple[Any, ...] | None = ()
    for dim in {range(len(s.shape))[dim] - len(s.shape) for dim in several}:
        made = OPERATIONS[_FLIPS[dim]](s, "v1", *[[*range(s.channels)][::-1]] * (dim == -3))
        steps = None if steps is None or made.steps is None else (*steps, *made.steps)
    return Outcome(s._replace(kind="tensor"), steps)


_FLIPS = {-1: "hflip", -2: "vflip", -3: "permute_channels"}


_MADE: dict[str, Any] = {
    "__getitem__": _item,
    "as_subclass": lambda s, kind: outcome_of("as_subclass", s, "v1", (kind,), {}),
    "clone": lambda s: Outcome(s, ()),
    "cpu": lambda s: Outcome(s, (), same=True),
    "contiguous": lambda s: Outcome(s._replace(kind="tensor"), ()),
    "detach": lambda s: Outcome(s, ()),
    "flip": _flipped,
    "squeeze": _squeezed,
    "to": _to,
    "unsqueeze": _unsqueezed,
    **{to: partial(_cast, dtype=getattr(torch, to)) for to in ("bfloat16", "double", "float", "half", "int", "long")},
    **dict.fromkeys(("add", "__add__", "__radd__"), partial(computed, "add")),
    **dict.fromkeys(("sub", "subtract", "__sub__"), partial(computed, "sub")),
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), partial(computed, "mul")),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), partial(computed, "div")),
    "__rsub__": partial(computed, "rsub"),
}


_METHODS = frozenset((*_MADE, *_ANSWERS))
_OWN = _METHODS | {"_later", "_parts", "_how", "__torch_function__", "__torch_dispatch__"}


def _called(tensor: LazyTensor, name: str, args, kwargs) -> Any:
    """Returns what a method gives, later if possible."""
    later = tensor._later
    state = later.state
    if state is not None:
        try:
            if name in _ANSWERS:
                return _ANSWERS[name](state, *args, **kwargs)
            outcome = _MADE[name](state, *args, **kwargs)
        except Exception:  # the tensor's own method says what is wrong, or gives something else
            outcome = None
        if outcome is not None and outcome.same:
            return tensor
        if outcome is not None and outcome.steps is not None and outcome.state.kind != state.kind:
            outcome = outcome._replace(steps=(*outcome.steps, step("identity", outcome.state)))
        made = later.then(RecordedCall("", name, kept(args), kept(kwargs)), outcome)
        if made is not None:
            return later.notes.made(lazy_tensor(made))
    return getattr(later.value(f"uses the tensor's {name.strip('_')}"), name)(*args, **kwargs)


def _real(value, why: str) -> Any:
    """Arguments, in which lazy tensors are real."""
    kind = type(value)
    if issubclass(kind, LazyTensor):
        return value._later.value(why)
    if kind in (list, tuple):
        return kind([_real(one, why) for one in value])
    if kind is dict:
        return {name: _real(one, why) for name, one in value.items()}
    return value


def _name(function) -> str:
    """ "shape", not "__get__", of an attribute."""
    owner = getattr(function, "__self__", None)
    own = getattr(function, "__name__", type(function).__name__)
    name = getattr(owner, "__name__", "") if own in ("__get__", "__set__") else own
    return str(name).strip("_")


for _one in _METHODS:
    setattr(LazyTensor, _one, lambda self, *args, _one=_one, **kwargs: _called(self, _one, args, kwargs))
