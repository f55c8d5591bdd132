"""Tensors with deferred pixels.

:class:`TracedTensor` is a wrapper subclass of torch.Tensor with shape, strides and dtype, but no data. It records the
calls of some methods. Any other operation computes the pixels first, in ``__torch_dispatch__``. torch does not dispatch
the methods in _WITHOUT_DISPATCHER, so they are replaced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import data
from torch.utils._pytree import tree_map
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torchvision import tv_tensors

from .calls import RecordedCall, copied_argument
from .cells import Cell, Join, copied_cell
from .convert import arithmetic
from .nodes import Node, record_reason
from .operations import OUTCOMES, Outcome, State, outcome_of


def tensor_of_cell(
    cell: Cell, strides: tuple[int, ...] | None = None, cls: type[TracedTensor] | None = None
) -> TracedTensor:
    """Return a new TracedTensor, or an object of its subclass ``cls``, with this cell."""
    result: TracedTensor = torch.Tensor._make_wrapper_subclass(
        cls or TracedTensor, cell.shape, strides=strides, storage_offset=cell.offset or None, dtype=cell.dtype
    )
    torch._C._set_throw_on_mutable_data_ptr(result)  # C++ raises instead of reading address 0
    result._cell = cell
    return result


class TracedTensor(torch.Tensor):
    _cell: Cell
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # a method in torch's stubs

    @property
    def _state(self) -> State | None:
        """State of the deferred pixels; None for a computed tensor and for a result of torch.stack, torch.cat or
        unsqueeze()."""
        cell = self._cell
        if cell.node is None or not cell.is_deferred:
            return None
        state = cell.node.state
        kind = _KIND_OF_CLASS[type(self)]
        return state if state.kind == kind else state._replace(kind=kind)

    def _materialize(self, reason: str = "") -> torch.Tensor:
        """Return the computed tensor as REAL_CLASS[type(self)], with the attributes of this object.

        In a trial, record ``reason`` if the pixels are not computed yet.
        """
        if self._cell.tensor is None and reason:
            record_reason(reason)
        result, attributes = self._cell.value(), vars(self)
        if type(self) is TracedTensor and len(attributes) == 1:
            return result
        result = result.as_subclass(REAL_CLASS[type(self)])
        vars(result).update((name, value) for name, value in attributes.items() if name != "_cell")
        return result

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set ``requires_grad``. Compute the pixels first if it is True."""
        if requires_grad:
            self._materialize("sets requires_grad")
        return super().requires_grad_(requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # deepcopy() copies the whole storage of a view, and keeps the strides
        can_clone = self._cell.is_deferred and self._cell.base is None and self.stride() == dense_strides(self)
        result = self.clone() if can_clone else copy.deepcopy(self._materialize("deep-copies a view of a tensor"), memo)
        memo[id(self)] = result
        return result

    def as_subclass(self, cls: Any) -> Any:
        traced = next((traced for traced, real in REAL_CLASS.items() if cls in (traced, real)), None)
        if traced is None or not self._cell.is_deferred:
            return self._materialize(f"converts a tensor to {getattr(cls, '__name__', cls)}").as_subclass(cls)
        return self if traced is type(self) else tensor_of_cell(self._cell, self.stride(), traced)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # no defaults in torch's stubs
        first = args[0] if args else None
        if func in _JOINS and not kwargs:
            result = deferred_join(first, args[1] if len(args) > 1 else 0, func is torch.ops.aten.cat.default)
            if result is not None:
                return result
        if isinstance(first, TracedTensor) and first._cell.is_deferred and not kwargs:
            if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
                return tensor_of_cell(first._cell, first.stride(), type(first))
            if len(args) == 2 and func.overloadpacket.__name__ in _BY_DISPATCH:
                return getattr(first, func.overloadpacket.__name__)(args[1])
        traced_by_id = dict[int, Any]()  # deferred tensors, by id of the computed tensor

        def materialize(x: Any) -> Any:
            if type(x) not in REAL_CLASS:
                return x
            value = _plain(x, func.overloadpacket.__name__)
            traced_by_id[id(value)] = x
            return value

        args, kwargs = tree_map(materialize, (args, kwargs or {}))
        # an in-place operation returns its argument
        return tree_map(lambda x: traced_by_id.get(id(x), x), func(*args, **kwargs))


class _TVTensorMethods:
    """Class methods of tv_tensors that return real tv_tensors instead of deferred ones."""

    __torch_function__ = vars(tv_tensors.TVTensor)["__torch_function__"]

    @classmethod
    def _wrap_output(cls, output: Any, args: Any = (), kwargs: Any = None) -> Any:
        return REAL_CLASS[cls]._wrap_output(output, args, kwargs)  # type: ignore[attr-defined]  # private

    @classmethod
    def wrap(cls, wrappee: torch.Tensor, like: Any, **kwargs: Any) -> Any:
        """Return ``wrappee`` as a tv_tensor of the real class of ``like``."""
        return wrappee.as_subclass(REAL_CLASS[type(like)])


TracedImage: Any = type("Image", (_TVTensorMethods, TracedTensor, tv_tensors.Image), {})
TracedMask: Any = type("Mask", (_TVTensorMethods, TracedTensor, tv_tensors.Mask), {})
TracedTensor.__name__ = "Tensor"  # user code may select a function by the name of the class
REAL_CLASS: dict[type, type[torch.Tensor]] = {
    TracedTensor: torch.Tensor,
    TracedImage: tv_tensors.Image,
    TracedMask: tv_tensors.Mask,
}
CLASS_OF_KIND: dict[str, type[TracedTensor]] = {"tensor": TracedTensor, "Image": TracedImage, "Mask": TracedMask}
_KIND_OF_CLASS = {cls: kind for kind, cls in CLASS_OF_KIND.items()}


def tensor_of(node: Node) -> TracedTensor:
    return tensor_of_cell(Cell(node, node.state.shape, node.state.dtype), node.strides, CLASS_OF_KIND[node.state.kind])


_JOINS = torch.ops.aten.stack.default, torch.ops.aten.cat.default


def deferred_join(tensors: Any, dim: int, is_cat: bool) -> TracedTensor | None:
    """Return the deferred result of torch.stack or torch.cat; None if the real function has to run."""
    if not tensors or len({(tuple(x.shape), x.dtype) for x in tensors}) > 1 or not tensors[0].ndim:
        return None
    cells = list(map(_input_cell, tensors))
    if not all(cells) or not any(cell.is_deferred for cell in cells) or len({cell.joins for cell in cells}) > 1:
        return None
    if any(cell.inputs and not cell.is_deferred for cell in cells):  # it may have been changed in place
        return None
    inputs = [copied_cell(one) for cell in cells for one in cell.inputs or (cell,)]
    shape = [*tensors[0].shape]
    if not -len(shape) - (not is_cat) <= dim < len(shape) + (not is_cat):
        return None
    join = Join(len(cells), dim % (len(shape) + (not is_cat)), is_cat)
    shape[join.dim : join.dim + is_cat] = [len(cells) * (shape[join.dim] if is_cat else 1)]
    return tensor_of_cell(Cell(None, tuple(shape), tensors[0].dtype, inputs, (*cells[0].joins, join)))


def _input_cell(x: torch.Tensor) -> Any:
    """Return the cell of an input of torch.stack or torch.cat; None if the input is unsupported."""
    if type(x) in REAL_CLASS:
        return x._cell  # type: ignore[attr-defined]  # a TracedTensor
    if type(x) is not torch.Tensor or x.device.type != "cpu" or x.requires_grad or x.layout != torch.strided:
        return None
    cell = Cell(None, tuple(x.shape), x.dtype)
    cell.tensor = x
    return cell


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(1, size)
    return tuple(reversed(strides))


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of the result of an elementwise operation on ``tensor``."""
    if tensor.is_contiguous():
        return tensor.stride()
    return torch.empty_like(torch.empty_strided(tensor.shape, tensor.stride(), device="meta")).stride()


def deferred_call(tensor: TracedTensor, call: RecordedCall, outcome: Outcome | None, strides: Any = None) -> Any:
    """Return the deferred result of a call; None if the call has to run."""
    node = tensor._cell.node
    if outcome is None or node is None:
        return None
    if outcome.is_same_object:
        return tensor
    if node.steps is None or outcome.steps is None:  # the original function may raise an error
        return None
    return tensor_of(node.then(call.with_copies(), outcome, strides))


# ---- methods that are recorded


def _arithmetic_method(name: str) -> Callable[..., Any]:
    op = name.strip("_")
    op = op[1:] if name.startswith("__i") or name in ("__radd__", "__rmul__") else op
    op = {"truediv": "div", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div"}.get(op, op)
    in_place = name.startswith("__i") or (name[-1] == "_" and name[:2] != "__")

    def method(self: TracedTensor, *args: Any, **kwargs: Any) -> Any:
        cell = self._cell
        if len(args) == 1 and not kwargs and (state := self._state) is not None:
            outcome = _outcome(arithmetic, op, state, args[0])
            if outcome is not None and not in_place:
                method_name = "__rsub__" if op == "rsub" else op
                result = deferred_call(self, RecordedCall(method_name, None, args), outcome, dense_strides(self))
                if result is not None:
                    return result
            elif outcome is not None and outcome.state.dtype == cell.dtype and _is_exclusive(self):
                assert cell.node is not None
                call = RecordedCall(op, None, (copied_argument(args[0]),))
                cell.node = cell.node.then(call, outcome, cell.node.strides)
                return self.as_subclass(torch.Tensor)
        function = getattr(_plain(self, name), name)
        result = function(*map(_plain, args), **{key: _plain(one) for key, one in kwargs.items()})
        return self if result is self._cell.tensor and type(self) is TracedTensor else result

    return method


def _is_exclusive(tensor: TracedTensor) -> bool:
    """Return True if an in-place change can be recorded: no other tensor shares the memory, and no stride is 0."""
    return not tensor._cell.is_shared and all(tensor.stride())


def _plain(value: Any, name: str = "") -> Any:
    """Return the computed tensor of a TracedTensor. Return any other value unchanged.

    In a trial, record that the operation ``name`` needs the pixels.
    """
    if type(value) not in REAL_CLASS:
        return value
    if name and value._cell.tensor is None:
        record_reason(f"uses the tensor's {name.strip('_')}")
    return value._cell.value()


def _outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome | None:
    try:
        outcome: Outcome | None = function(*args, **kwargs)
    except Exception:  # torch's method raises the error
        return None
    return outcome


_ARITHMETIC = frozenset(base + end for base in ("add", "sub", "mul", "div") for end in ("", "_"))
_BY_DISPATCH = _ARITHMETIC | {"flip"}  # torch functions that are deferred like the methods
_OPERATORS = [f"__{i}{base}__" for base in ("add", "sub", "mul", "truediv") for i in ("", "i")]
_OPERATORS += ["__radd__", "__rmul__", "__rsub__", "subtract", "multiply", "divide", "true_divide"]
for _name in (*_ARITHMETIC, *_OPERATORS):
    setattr(TracedTensor, _name, _arithmetic_method(_name))


# Functions that return the outcome of a method. If one returns None or raises an error, torch's method runs.


def _to(s: State, *args: Any, **kwargs: Any) -> Outcome | None:
    arguments: list[Any] = [("dtype" if isinstance(one, torch.dtype) else "device", one) for one in args]
    arguments += kwargs.items()
    if len(arguments) != 1:
        return None
    name, target = arguments[0]
    if name == "device" and torch.device(target) == torch.device("cpu"):
        return Outcome(s, (), is_same_object=True)
    outcome = outcome_of("to_dtype", s, "v1", (target,), {}) if name == "dtype" else None
    return outcome and outcome._replace(state=s._replace(dtype=target))


def _cast(s: State, dtype: torch.dtype) -> Outcome | None:
    outcome = _to(s, dtype)
    if outcome is None or outcome.is_same_object:
        return outcome
    return outcome._replace(state=outcome.state._replace(kind="tensor"))


def _flip(s: State, *dims: Any) -> Outcome:
    dims = dims[0] if len(dims) == 1 and type(dims[0]) in (tuple, list) else dims
    steps: tuple[Any, ...] | None = ()
    for dim in {range(len(s.shape))[dim] - len(s.shape) for dim in dims}:
        flipped = OUTCOMES[_FLIPS[dim]](s, "v1", *[[*range(s.channels)][::-1]] * (dim == -3))
        steps = None if steps is None or flipped.steps is None else (*steps, *flipped.steps)
    return Outcome(s._replace(kind="tensor"), steps)


_FLIPS = {-1: "hflip", -2: "vflip", -3: "permute_channels"}
_CASTS = "bfloat16", "double", "float", "half", "int", "long"
_METHODS: dict[str, Callable[..., Outcome | None]] = {
    "clone": lambda s: Outcome(s, ()),
    "cpu": lambda s: Outcome(s, (), is_same_object=True),
    "flip": _flip,
    "to": _to,
    **{name: partial(_cast, dtype=getattr(torch, name)) for name in _CASTS},
}


def _method(name: str, outcome_of_method: Callable[..., Outcome | None]) -> Callable[..., Any]:
    def method(self: TracedTensor, *args: Any, **kwargs: Any) -> Any:
        if (state := self._state) is not None:
            outcome = _outcome(outcome_of_method, state, *args, **kwargs)
            result = deferred_call(self, RecordedCall(name, None, args, kwargs), outcome, dense_strides(self))
            if result is not None:
                return self.as_subclass(torch.Tensor) if result is self and name != "to" else result
        return _computed(self, name, *args, **kwargs)

    return method


def _computed(tensor: TracedTensor, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call torch's method on the computed tensor. Return its result, or ``tensor`` for an in-place method."""
    real = tensor._materialize(f"uses the tensor's {name}")
    result = getattr(real, name)(*args, **kwargs)
    return tensor if result is real and type(tensor) is TracedTensor else result


for _name, _function in _METHODS.items():
    setattr(TracedTensor, _name, _method(_name, _function))


# ---- views


def view(tensor: TracedTensor, call: RecordedCall, outcome: Outcome, strides: tuple[int, ...]) -> TracedTensor:
    """Return the result of ``call`` as a deferred view of ``tensor``."""
    base = tensor._cell
    assert base.node is not None
    node = base.node.then(call, outcome)
    cell = Cell(node, outcome.state.shape, outcome.state.dtype)
    cell.set_base(base, call)
    for _, (_, _, _, _, top, left, *_) in outcome.steps or ():  # one crop; no step for the whole tensor
        cell.offset += int(top) * tensor.stride(-2) + int(left) * tensor.stride(-1)
    return tensor_of_cell(cell, strides, CLASS_OF_KIND[outcome.state.kind])


def _unsqueeze(self: TracedTensor, *args: Any, **kwargs: Any) -> Any:
    """Return a deferred view with a new first dimension of size 1."""
    dim = args[0] if len(args) == 1 and not kwargs else kwargs.get("dim") if not args and len(kwargs) == 1 else None
    if self._state is None or type(dim) is not int or dim not in (0, -1 - self.ndim):
        return self._materialize("uses the tensor's unsqueeze").unsqueeze(*args, **kwargs)
    base = self._cell
    # with the inputs and joins of torch.stack([self])
    cell = Cell(None, (1, *base.shape), base.dtype, (base,), (Join(1, 0, False),))
    cell.set_base(base, RecordedCall("unsqueeze", None, (0,)))
    strides = torch.empty_strided(self.shape, self.stride(), device="meta").unsqueeze(0).stride()
    return tensor_of_cell(cell, strides)


def _getitem(self: TracedTensor, index: Any) -> Any:
    if index is None:
        return self.unsqueeze(0)
    if (state := self._state) is not None:
        if (channels := _channel_index(index)) is not None:  # the result is not a view
            outcome = _outcome(OUTCOMES["permute_channels"], state, "v1", channels)
            if outcome is not None:
                outcome = outcome._replace(state=state._replace(kind="tensor"))
                result = deferred_call(self, RecordedCall("__getitem__", None, (index,)), outcome)
                if result is not None:
                    return result
        outcome = _outcome(_window, state, index)
        if outcome is not None:
            strides = torch.empty_strided(state.shape, self.stride(), device="meta")[index].stride()
            return view(self, RecordedCall("__getitem__", None, (index,)), outcome, strides)
    return self._materialize("uses the tensor's getitem")[index]


def _channel_index(index: Any) -> Any:
    """Return the list or int64 tensor of channel numbers in ``index``; None if ``index`` selects more than channels."""
    entries = list(index) if type(index) is tuple else [index]
    if len(entries) == 4 and entries[0] is ...:
        entries = entries[1:]
    first, *rest = entries or [...]
    is_list = type(first) is list or (type(first) is torch.Tensor and first.dtype == torch.int64)
    is_whole = all(one is ... or (type(one) is slice and one == slice(None)) for one in rest)
    return first if is_list and is_whole else None


def _window(s: State, index: Any) -> Outcome | None:
    """Return the Outcome of indexing with slices that select a window; None for another ``index``."""
    entries = index if type(index) is tuple else (index,)
    if not all(one is ... or type(one) is slice for one in entries) or len(s.shape) != 3:
        return None
    strides = contiguous(s.shape)
    cut = torch.empty_strided(s.shape, strides, device="meta")[index]
    after = s._replace(shape=tuple(cut.shape), kind="tensor")
    if cut.stride() != strides or len(cut) != s.channels or min(after.size) < 1:
        return None
    top, left = divmod(int(cut.storage_offset()), s.shape[2])
    steps = () if after.size == s.size else OUTCOMES["crop"](s, "v1", top, left, *after.size).steps
    return Outcome(after, steps)


def _contiguous(self: TracedTensor, *args: Any, **kwargs: Any) -> Any:
    if self._cell.is_deferred and not args and not kwargs:
        if self.is_contiguous():
            return self.as_subclass(torch.Tensor)
        if (state := self._state) is not None:
            result = deferred_call(self, RecordedCall("contiguous"), Outcome(state._replace(kind="tensor"), ()))
            if result is not None:
                return result
    return _computed(self, "contiguous", *args, **kwargs)


for _name, _function in (("__getitem__", _getitem), ("contiguous", _contiguous), ("unsqueeze", _unsqueeze)):
    setattr(TracedTensor, _name, _function)


# ---- methods that read memory without the dispatcher


_WITHOUT_DISPATCHER = """
__array__ __dlpack__ __dlpack_device__ __format__ __reduce_ex__ __repr__ _typed_storage data data_ptr detach_ is_shared
numpy pin_memory share_memory_ storage tolist untyped_storage
""".split()  # noqa: SIM905


def _materializing(name: str) -> Any:
    """Return a replacement for the method or property ``name`` that computes the pixels first."""
    reason = f"uses the tensor's {name.strip('_')}"
    if callable(getattr(torch.Tensor, name)):

        def method(self: TracedTensor, *args: Any, **kwargs: Any) -> Any:
            real = self._materialize(reason)
            return getattr(type(real), name)(real, *args, **kwargs)  # called on the class, which torch's errors name

        return method

    def replace(self: TracedTensor, value: Any) -> None:
        """Set the attribute of this tensor only, not of others that share its memory."""
        real = _plain(self, name).detach()
        setattr(real, name, _plain(value))
        self._cell = Cell(None, tuple(real.shape), real.dtype)
        self._cell.tensor = real

    return property(lambda self: getattr(self._materialize(reason), name), replace)


for _name in _WITHOUT_DISPATCHER:
    setattr(TracedTensor, _name, _materializing(_name))

# ---- default_collate


def _collate_traced(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
    return torch.stack(batch, 0)


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if any(type(one) in REAL_CLASS for one in batch):
        return torch.stack(batch, 0)  # collate_tensor_fn() would compute the pixels into shared memory
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def extend_default_collate() -> None:
    default_collate_fn_map.update(dict.fromkeys(REAL_CLASS, _collate_traced))
    if data.get_worker_info() is not None:
        default_collate_fn_map[torch.Tensor] = _collate
