"""Pixels of deferred tensors, and deferred calls of torch.stack and torch.cat."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .calls import RecordedCall
from .nodes import Node


class Join(NamedTuple):
    """A call of torch.stack or torch.cat on ``number`` tensors."""

    number: int
    dim: int
    is_cat: bool


def join_rows(rows: torch.Tensor, joins: tuple[Join, ...]) -> torch.Tensor:
    """Return the result of nested calls of torch.stack and torch.cat on ``rows``. The innermost call comes first in
    ``joins``."""
    result = rows.reshape(*(join.number for join in reversed(joins)), *rows.shape[1:])
    for axis, join in zip(reversed(range(len(joins))), joins, strict=True):
        result = result.movedim(axis, axis + join.dim)
        result = result.flatten(axis + join.dim, axis + join.dim + 1) if join.is_cat else result
    return result.contiguous()


class Cell:
    """Storage of a deferred tensor and its aliases, such as the result of detach(). A view has a separate cell.

    Attributes:
        node: node of the pixels; None if the tensor was never deferred, or if it is computed from ``inputs``.
        inputs: copies of the cells that were stacked or concatenated; for the result of unsqueeze(), the cell of its
            base; otherwise empty.
        joins: the calls of torch.stack and torch.cat, the innermost first.
        tensor: the computed tensor; None while it is deferred.
        offset: storage offset of a view, in elements.
        base, call: for a view, the cell of its base, and the call that returns the view.
        views: views of this cell.
    """

    __slots__ = "__weakref__", "base", "call", "dtype", "inputs", "joins", "node", "offset", "shape", "tensor", "views"

    def __init__(
        self,
        node: Node | None,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        inputs: Sequence[Cell] = (),
        joins: tuple[Join, ...] = (),
    ):
        self.node, self.inputs, self.joins, self.shape, self.dtype = node, inputs, joins, shape, dtype
        self.tensor: torch.Tensor | None = None
        self.offset = 0
        self.base: Cell | None = None
        self.call: RecordedCall | None = None
        self.views: list[weakref.ref[Cell]] = []

    @property
    def is_deferred(self) -> bool:
        """True if the pixels are not computed yet."""
        # a view is computed if its base is, and a join if all its inputs are
        if self.tensor is not None or (self.base is not None and not self.base.is_deferred):
            return False
        return not self.inputs or any(cell.is_deferred for cell in self.inputs)

    @property
    def is_shared(self) -> bool:
        """True if an in-place change would affect other tensors."""
        return self.base is not None or any(ref() is not None for ref in self.views)

    def set_base(self, base: Cell, call: RecordedCall) -> None:
        """Make this the cell of a view that ``call`` returns for the tensor of ``base``."""
        self.base, self.call, self.offset = base, call, base.offset
        base.views.append(weakref.ref(self))

    def value(self) -> torch.Tensor:
        """Return the computed tensor. Compute it first if it is deferred."""
        if self.tensor is None:
            with torch._C.DisableTorchFunction():
                if self.base is not None:
                    assert self.call is not None
                    result = self.call.apply(self.base.value())
                elif self.inputs:
                    result = join_rows(torch.stack([cell.value() for cell in self.inputs]), self.joins)
                else:
                    assert self.node is not None
                    result = self.node.value()
                    if self.node.used:
                        result = unexpanded(result, result.stride()).clone().expand(result.shape)
                if self.tensor is None:
                    self.tensor = result
        return self.tensor


def unexpanded(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a view of ``x`` with size 1 in each dimension that has stride 0 in ``strides``."""
    return x[tuple(slice(None if stride else 1) for stride in strides)]


def copied_cell(cell: Cell) -> Cell:
    """Return a new cell with the same pixels. Later in-place changes to the tensor of ``cell`` do not affect it."""
    result = Cell(cell.node, cell.shape, cell.dtype)
    if cell.is_deferred:
        assert cell.node is not None
        cell.node.used = True
    else:
        result.tensor = cell.value().clone()
    return result
