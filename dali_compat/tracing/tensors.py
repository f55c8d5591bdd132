"""Tensors whose pixels are deferred.

:class:`TracedTensor` is a wrapper subclass of torch.Tensor with shape, strides and dtype, but no data. It records the
operations of METHODS. torch's dispatcher sends every other operation to ``__torch_dispatch__``, which computes the
pixels first. Methods that read memory without the dispatcher (_PAST_THE_DISPATCHER) do so as well.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils import data
from torch.utils._pytree import tree_map
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torchvision import tv_tensors

from .calls import RecordedCall, kept
from .convert import computed
from .nodes import Node, became_real
from .operations import OPERATIONS, Outcome, State, outcome_of


class Join(NamedTuple):
    """A torch.stack, or torch.cat, of ``number`` tensors along ``dim``."""

    number: int
    dim: int
    is_cat: bool


def together(rows: torch.Tensor, joins: tuple[Join, ...]) -> torch.Tensor:
    """Join all rows of a tensor."""
    made = rows.reshape(*(one.number for one in reversed(joins)), *rows.shape[1:])
    for axis, one in zip(reversed(range(len(joins))), joins, strict=True):
        made = made.movedim(axis, axis + one.dim)
        made = made.flatten(axis + one.dim, axis + one.dim + 1) if one.is_cat else made
    return made.contiguous()


class Cell:
    """Shared state of tensors with the same memory.

    Attributes:
        node: node of the pixels; None for a join or a real tensor.
        parts: the cells of a deferred torch.stack or torch.cat, which has no node.
        joins: how the parts are joined, the innermost join first.
        tensor: the computed tensor; None while it is deferred.
        offset: the tensor's storage offset, in elements; not 0 only for views.
        base: the cell that this one is a view of, by ``call``.
        views: views of this cell.
    """

    __slots__ = ("__weakref__", "base", "call", "dtype", "joins", "node", "offset", "parts", "shape", "tensor", "views")

    def __init__(
        self,
        node: Node | None,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        parts: Sequence[Cell] = (),
        joins: tuple[Join, ...] = (),
    ):
        self.node, self.parts, self.joins, self.shape, self.dtype = node, parts, joins, shape, dtype
        self.tensor: torch.Tensor | None = None
        self.offset = 0
        self.base: Cell | None = None
        self.call: RecordedCall | None = None
        self.views: list[weakref.ref[Cell]] = []

    @property
    def is_deferred(self) -> bool:
        """True if the pixels are not computed yet; for a join, those of at least one part."""
        if self.tensor is not None or (self.base is not None and not self.base.is_deferred):
            return False
        return not self.parts or any(part.is_deferred for part in self.parts)

    @property
    def is_shared(self) -> bool:
        """True if it is a view or has views, which an in-place change would have to update."""
        return self.base is not None or any(ref() is not None for ref in self.views)

    def value(self) -> torch.Tensor:
        """Return the tensor, computed if necessary."""
        if self.tensor is None:
            with torch._C.DisableTorchFunction():
                if self.parts:
                    made = together(torch.stack([part.value() for part in self.parts]), self.joins)
                elif self.base is not None:
                    assert self.call is not None
                    made = self.call.on(self.base.value())
                else:
                    assert self.node is not None
                    made = self.node.value()
                    made = made.clone() if self.node.used else made
                if self.tensor is None:
                    self.tensor = made
        return self.tensor


def tensor_with(
    cell: Cell, strides: tuple[int, ...] | None = None, kind: type[TracedTensor] | None = None
) -> TracedTensor:
    """Return a new tensor with this cell."""
    kind = kind or TracedTensor
    made: TracedTensor = torch.Tensor._make_wrapper_subclass(
        kind, cell.shape, strides=strides, storage_offset=cell.offset or None, dtype=cell.dtype
    )
    torch._C._set_throw_on_mutable_data_ptr(made)  # C++ raises instead of reading address 0
    made._cell = cell
    return made


class TracedTensor(torch.Tensor):
    """A tensor that is computed when its values are read."""

    _cell: Cell
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # a method in torch's stubs

    @property
    def _state(self) -> State | None:
        """The known state; None if the tensor is computed, or is a join."""
        cell = self._cell
        if cell.node is None or not cell.is_deferred:
            return None
        state = cell.node.state
        kind = _KIND[type(self)]
        return state if state.kind == kind else state._replace(kind=kind)

    def _real(self, why: str = "") -> torch.Tensor:
        """Return the computed tensor as the class that this one stands for."""
        if self._cell.tensor is None and why:
            became_real(why)
        made, own = self._cell.value(), vars(self)
        if type(self) is TracedTensor and len(own) == 1:
            return made
        made = made.as_subclass(REAL_CLASS[type(self)])
        vars(made).update((name, value) for name, value in own.items() if name != "_cell")
        return made

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Compute the tensor if it has to require gradients."""
        if requires_grad:
            self._real("asks for gradients")
        return super().requires_grad_(requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        is_whole = self._cell.is_deferred and self._cell.base is None  # torch copies the whole storage of a view
        made = self.clone() if is_whole else copy.deepcopy(self._real("deep-copies a view of a tensor"), memo)
        memo[id(self)] = made
        return made

    def as_subclass(self, cls: Any) -> Any:
        """Return the same tensor as another class."""
        kind = next((one for one, real in REAL_CLASS.items() if cls in (one, real)), None)
        if kind is None or not self._cell.is_deferred:
            return self._real(f"converts a tensor to {getattr(cls, '__name__', cls)}").as_subclass(cls)
        return self if kind is type(self) else tensor_with(self._cell, self.stride(), kind)

    def _computed(self, name: str) -> torch.Tensor:
        """Return the computed plain tensor, for a method."""
        if self._cell.tensor is None:
            became_real(f"uses the tensor's {name.strip('_')}")
        return self._cell.value()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # no defaults in torch's stubs
        first = args[0] if args else None
        if func in _JOINS and not kwargs:
            made = joined(first, args[1] if len(args) > 1 else 0, func is torch.ops.aten.cat.default)
            if made is not None:
                return made
        if isinstance(first, TracedTensor) and first._cell.is_deferred and not kwargs:
            if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
                return tensor_with(first._cell, first.stride(), type(first))
            if len(args) == 2 and func.overloadpacket.__name__ in _BY_DISPATCH:
                return getattr(first, func.overloadpacket.__name__)(args[1])
        why, computed = f"uses the tensor's {func.overloadpacket.__name__.strip('_')}", dict[int, Any]()

        def unwrap(x: Any) -> Any:
            if type(x) not in REAL_CLASS:
                return x
            if x._cell.tensor is None:
                became_real(why)
            made = x._cell.value()
            computed[id(made)] = x
            return made

        plain, named = tree_map(unwrap, (args, kwargs or {}))
        return tree_map(
            lambda x: computed.get(id(x), x), func(*plain, **named)
        )  # an in-place operation returns its argument


class _OfTorchvision:
    """Class methods that torchvision calls to wrap a result as a tv_tensor or a plain tensor."""

    __torch_function__ = vars(tv_tensors.TVTensor)["__torch_function__"]

    @classmethod
    def _wrap_output(cls, output: Any, args: Any = (), kwargs: Any = None) -> Any:
        return REAL_CLASS[cls]._wrap_output(output, args, kwargs)  # type: ignore[attr-defined]  # private

    @classmethod
    def wrap(cls, wrappee: torch.Tensor, like: Any, **kwargs: Any) -> Any:
        """Return a tensor of the class that ``like`` stands for."""
        return wrappee.as_subclass(REAL_CLASS[type(like)])


TracedImage: Any = type("Image", (_OfTorchvision, TracedTensor, tv_tensors.Image), {})
TracedMask: Any = type("Mask", (_OfTorchvision, TracedTensor, tv_tensors.Mask), {})
TracedTensor.__name__ = "Tensor"  # code may select a function by this name
REAL_CLASS: dict[type, type[torch.Tensor]] = {
    TracedTensor: torch.Tensor,
    TracedImage: tv_tensors.Image,
    TracedMask: tv_tensors.Mask,
}
KINDS: dict[str, type[TracedTensor]] = {"tensor": TracedTensor, "Image": TracedImage, "Mask": TracedMask}
_KIND = {kind: name for name, kind in KINDS.items()}


def tensor_of(node: Node) -> TracedTensor:
    """Return a new tensor with this node."""
    return tensor_with(Cell(node, node.state.shape, node.state.dtype), node.strides, KINDS[node.state.kind])


_JOINS = torch.ops.aten.stack.default, torch.ops.aten.cat.default


def joined(tensors: Any, dim: int, is_cat: bool) -> TracedTensor | None:
    """Return the deferred torch.stack, or torch.cat, of tensors of one shape.

    None if no tensor is deferred, or their shapes, dtypes or joins differ.
    """
    if not tensors or len({(tuple(x.shape), x.dtype) for x in tensors}) > 1 or not tensors[0].ndim:
        return None
    cells = list(map(_part, tensors))
    if not all(cells) or not any(cell.is_deferred for cell in cells) or len({cell.joins for cell in cells}) > 1:
        return None
    parts = [part for cell in cells for part in cell.parts or (cell,)]
    shape = [*tensors[0].shape]
    if not -len(shape) - (not is_cat) <= dim < len(shape) + (not is_cat):
        return None
    join = Join(len(cells), dim % (len(shape) + (not is_cat)), is_cat)
    shape[join.dim : join.dim + is_cat] = [len(cells) * (shape[join.dim] if is_cat else 1)]
    return tensor_with(Cell(None, tuple(shape), tensors[0].dtype, parts, (*cells[0].joins, join)))


def _part(x: torch.Tensor) -> Any:
    """Return the cell of a tensor to join; None if it is neither deferred nor a plain CPU tensor."""
    if type(x) in REAL_CLASS:
        return x._cell  # type: ignore[attr-defined]  # a TracedTensor
    if type(x) is not torch.Tensor or x.device.type != "cpu" or x.requires_grad or x.layout != torch.strided:
        return None
    cell = Cell(None, tuple(x.shape), x.dtype)
    cell.tensor = x
    return cell


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    made, stride = [], 1
    for side in reversed(shape):
        made.append(stride)
        stride *= max(1, side)
    return tuple(reversed(made))


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of the result of an elementwise operation."""
    if tensor.is_contiguous():
        return tensor.stride()
    return torch.empty_like(torch.empty_strided(tensor.shape, tensor.stride(), device="meta")).stride()


def recorded(tensor: TracedTensor, call: RecordedCall, outcome: Outcome | None, strides: Any = None) -> Any:
    """Return the deferred result of a call; None if the outcome or its steps are unknown."""
    node = tensor._cell.node
    if outcome is None or node is None:
        return None
    if outcome.same:
        return tensor
    if node.steps is None or outcome.steps is None:  # computed now, since it may raise
        return None
    return tensor_of(node.then(call.kept(), outcome, strides))


# ---- methods that are recorded


def _arithmetic(name: str) -> Callable[..., Any]:
    op = name.strip("_")
    op = op[1:] if name.startswith("__i") or name in ("__radd__", "__rmul__") else op
    op = {"truediv": "div", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div"}.get(op, op)
    in_place = name.startswith("__i") or (name[-1] == "_" and name[:2] != "__")

    def method(self: TracedTensor, *args: Any, **kwargs: Any) -> Any:
        cell = self._cell
        if len(args) == 1 and not kwargs and (state := self._state) is not None:
            outcome = _outcome(computed, op, state, args[0])
            if outcome is not None and not in_place:
                method_name = "__rsub__" if op == "rsub" else op
                made = recorded(self, RecordedCall(method_name, None, args), outcome, dense_strides(self))
                if made is not None:
                    return made
            elif outcome is not None and outcome.state.dtype == cell.dtype and not cell.is_shared:
                assert cell.node is not None
                cell.node = cell.node.then(RecordedCall(op, None, (kept(args[0]),)), outcome, cell.node.strides)
                return self.as_subclass(torch.Tensor)
        made = getattr(self._computed(name), name)(
            *map(_plain, args), **{key: _plain(one) for key, one in kwargs.items()}
        )
        return self if made is self._cell.tensor and type(self) is TracedTensor else made

    return method


def _plain(value: Any) -> Any:
    return value._cell.value() if type(value) in REAL_CLASS else value


def _outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome | None:
    try:
        made: Outcome | None = function(*args, **kwargs)
    except Exception:  # torch's method raises the error
        return None
    return made


_ARITHMETIC = frozenset(base + end for base in ("add", "sub", "mul", "div") for end in ("", "_"))
_BY_DISPATCH = _ARITHMETIC | {"flip"}  # torch functions that are recorded like the methods
_OPERATORS = [f"__{i}{base}__" for base in ("add", "sub", "mul", "truediv") for i in ("", "i")]
_OPERATORS += ["__radd__", "__rmul__", "__rsub__", "subtract", "multiply", "divide", "true_divide"]
for _name in (*_ARITHMETIC, *_OPERATORS):
    setattr(TracedTensor, _name, _arithmetic(_name))


def _to(s: State, *args: Any, **kwargs: Any) -> Outcome | None:
    given: list[Any] = [("dtype" if isinstance(one, torch.dtype) else "device", one) for one in args]
    given += kwargs.items()
    if len(given) != 1:
        return None
    name, target = given[0]
    if name == "device" and torch.device(target) == torch.device("cpu"):
        return Outcome(s, (), same=True)
    made = outcome_of("to_dtype", s, "v1", (target,), {}) if name == "dtype" else None
    return made and made._replace(state=s._replace(dtype=target))


def _cast(s: State, dtype: torch.dtype) -> Outcome | None:
    made = _to(s, dtype)
    return made if made is None or made.same else made._replace(state=made.state._replace(kind="tensor"))


def _flipped(s: State, *dims: Any) -> Outcome:
    several = dims[0] if len(dims) == 1 and type(dims[0]) in (tuple, list) else dims
    steps: tuple[Any, ...] | None = ()
    for dim in {range(len(s.shape))[dim] - len(s.shape) for dim in several}:
        made = OPERATIONS[_FLIPS[dim]](s, "v1", *[[*range(s.channels)][::-1]] * (dim == -3))
        steps = None if steps is None or made.steps is None else (*steps, *made.steps)
    return Outcome(s._replace(kind="tensor"), steps)


_FLIPS = {-1: "hflip", -2: "vflip", -3: "permute_channels"}
_CASTS = "bfloat16", "double", "float", "half", "int", "long"
METHODS: dict[str, Callable[..., Outcome | None]] = {
    "clone": lambda s: Outcome(s, ()),
    "cpu": lambda s: Outcome(s, (), same=True),
    "flip": _flipped,
    "to": _to,
    **{name: partial(_cast, dtype=getattr(torch, name)) for name in _CASTS},
}


def _method(name: str, outcome_of_method: Callable[..., Outcome | None]) -> Callable[..., Any]:
    def method(self: TracedTensor, *args: Any, **kwargs: Any) -> Any:
        if (state := self._state) is not None:
            outcome = _outcome(outcome_of_method, state, *args, **kwargs)
            made = recorded(self, RecordedCall(name, None, args, kwargs), outcome, dense_strides(self))
            if made is not None:
                return self.as_subclass(torch.Tensor) if made is self and name != "to" else made
        return getattr(self._real(f"uses the tensor's {name}"), name)(*args, **kwargs)

    return method


for _name, _function in METHODS.items():
    setattr(TracedTensor, _name, _method(_name, _function))


# ---- views


def view(tensor: TracedTensor, call: RecordedCall, outcome: Outcome, strides: tuple[int, ...]) -> TracedTensor:
    """Return a deferred view of a tensor."""
    base = tensor._cell
    assert base.node is not None
    node = base.node.then(call, outcome)
    cell = Cell(node, outcome.state.shape, outcome.state.dtype)
    cell.base, cell.call, cell.offset = base, call, base.offset
    for _, (_, _, _, _, top, left, *_) in outcome.steps or ():  # a window, or the whole tensor
        cell.offset += int(top) * tensor.stride(-2) + int(left) * tensor.stride(-1)
    base.views.append(weakref.ref(cell))
    return tensor_with(cell, strides, KINDS[outcome.state.kind])


def _getitem(self: TracedTensor, place: Any) -> Any:
    if (state := self._state) is not None:
        if (order := _order(place)) is not None:  # indexing with it copies
            outcome = _outcome(OPERATIONS["permute_channels"], state, "v1", order)
            if outcome is not None:
                outcome = outcome._replace(state=state._replace(kind="tensor"))
                made = recorded(self, RecordedCall("__getitem__", None, (place,)), outcome)
                if made is not None:
                    return made
        outcome = _outcome(_window, state, self.stride(), place)
        if outcome is not None:
            strides = torch.empty_strided(state.shape, self.stride(), device="meta")[place].stride()
            return view(self, RecordedCall("__getitem__", None, (place,)), outcome, strides)
    return self._real("uses the tensor's getitem")[place]


def _order(place: Any) -> Any:
    """Return the list or int64 tensor of an index that selects only channels of a (C, H, W) tensor, else None."""
    places = list(place) if type(place) is tuple else [place]
    if places[0] is ... and len(places) == 4:
        places = places[1:]
    first, *rest = places
    is_order = type(first) is list or (type(first) is torch.Tensor and first.dtype == torch.int64)
    is_whole = all(one is ... or (type(one) is slice and one == slice(None)) for one in rest)
    return first if is_order and is_whole else None


def _window(s: State, strides: tuple[int, ...], place: Any) -> Outcome | None:
    """Return the outcome of indexing with the slices of a window; None for any other index."""
    places = place if type(place) is tuple else (place,)
    if not all(one is ... or type(one) is slice for one in places) or len(s.shape) != 3:
        return None
    rows = torch.empty_strided(s.shape, (s.shape[1] * s.shape[2], s.shape[2], 1), device="meta")[place]
    after = s._replace(shape=tuple(rows.shape), kind="tensor")
    if rows.stride() != (s.shape[1] * s.shape[2], s.shape[2], 1) or len(rows) != s.channels or min(after.size) < 1:
        return None
    top, left = divmod(int(rows.storage_offset()), s.shape[2])
    steps = () if after.size == s.size else OPERATIONS["crop"](s, "v1", top, left, *after.size).steps
    return Outcome(after, steps)


def _contiguous(self: TracedTensor, *args: Any, **kwargs: Any) -> Any:
    if self._cell.is_deferred and not args and not kwargs:
        if self.is_contiguous():
            return self.as_subclass(torch.Tensor)
        if (state := self._state) is not None:
            made = recorded(self, RecordedCall("contiguous"), Outcome(state._replace(kind="tensor"), ()))
            if made is not None:
                return made
    return self._real("uses the tensor's contiguous").contiguous(*args, **kwargs)


for _name, _function in (("__getitem__", _getitem), ("contiguous", _contiguous)):
    setattr(TracedTensor, _name, _function)


# ---- methods that read memory without the dispatcher


_PAST_THE_DISPATCHER = """
__array__ __dlpack__ __dlpack_device__ __format__ __reduce_ex__ __repr__ _typed_storage data data_ptr detach_ is_shared
numpy pin_memory share_memory_ storage tolist untyped_storage
""".split()  # noqa: SIM905


def _forwarded(name: str) -> Any:
    why = f"uses the tensor's {name.strip('_')}"
    if callable(getattr(torch.Tensor, name)):

        def method(self: TracedTensor, *args: Any, **kwargs: Any) -> Any:
            real = self._real(why)
            return getattr(type(real), name)(real, *args, **kwargs)  # errors name the class, as in a user's call

        return method
    return property(
        lambda self: getattr(self._real(why), name), lambda self, value: setattr(self._real(why), name, value)
    )


for _name in _PAST_THE_DISPATCHER:
    setattr(TracedTensor, _name, _forwarded(_name))

# ---- default_collate


def _collated(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
    """Stack tensors, the first of which is deferred."""
    return torch.stack(batch, 0)


def _collated_in_a_worker(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stack tensors, some of which may be deferred; torch's function stacks real ones."""
    traced = any(type(one) in REAL_CLASS for one in batch)
    return torch.stack(batch, 0) if traced else collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def extend_default_collate() -> None:
    """Register deferred tensors in default_collate_fn_map."""
    default_collate_fn_map.update(dict.fromkeys(REAL_CLASS, _collated))
    if data.get_worker_info() is not None:
        default_collate_fn_map[torch.Tensor] = _collated_in_a_worker
