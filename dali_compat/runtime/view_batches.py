"""Images of samples that have several each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class ViewBatches(Sequence):
    """One batch for each view; as a sequence, the samples.

    Attributes:
        batches: (N, C, H, W) each, or a list of N.
        structure: of a sample: lists, tuples and dicts of numbers of views.
    """

    def __init__(self, batches: Sequence[Any], structure: Any = None):
        self.batches = list(batches)
        self.structure = tuple(range(len(self.batches))) if structure is None else structure

    def __len__(self) -> int:
        return len(self.batches[0])

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self.each(lambda batch: batch[row])
        return filled(self.structure, [batch[row] for batch in self.batches])

    def each(self, function: Callable[[Any], Any]) -> ViewBatches:
        """Returns what a function makes of every batch."""
        return ViewBatches(list(map(function, self.batches)), self.structure)


def filled(structure: Any, values: Sequence[Any]) -> Any:
    """The structure with values in place of their numbers."""
    if isinstance(structure, int):
        return values[structure]
    if isinstance(structure, dict):
        return {key: filled(one, values) for key, one in structure.items()}
    made = [filled(one, values) for one in structure]
    return type(structure)(*made) if hasattr(structure, "_fields") else type(structure)(made)
