"""The interface of a batch on the DALI route for its parts and their groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..data.sources import Source
from ..ops.draws import Arrays, Computed
from ..plan import Step
from .batch_headers import BatchHeaders
from .dali_epoch import DaliEpoch
from .part import Owner


class DaliOwner(Owner, Protocol):
    """A batch, for its parts and groups.

    Attributes:
        pixels: what a cache has of each row; empty where there is none.
        headers: what is known of each row's file.
    """

    pixels: list[Any]
    headers: BatchHeaders

    @property
    def epoch(self) -> DaliEpoch:
        """The epoch that the batch belongs to."""
        ...

    @property
    def sources(self) -> Sequence[Source]:
        """The source of each row's encoded image."""
        ...

    def paths(self, rows: np.ndarray) -> Any:
        """The paths of these rows, as a pipeline takes them."""
        ...

    def name(self, row: int) -> str:
        """The row's source and index, for a message."""
        ...

    def compute(
        self, steps: tuple[Step, ...], rows: Sequence[int] | np.ndarray, sizes: np.ndarray | None = None
    ) -> Computed:
        """Computes as Owner's does; without ``sizes`` with those of the files."""
        ...

    def compute_one(self, steps: tuple[Step, ...], row: int, size: tuple[int, int]) -> list[Arrays]:
        """compute() for one image of a size, without the dimension of rows."""
        ...

    def give_up(self, row: int, error: Exception) -> None:
        """A row cannot be made: on_error decides what that means."""
        ...
