"""The rows of a batch that share a plan, while they are decoded: a group for each decoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.header import DALI
from ..data.sources import DECODED
from ..ops.draws import ImageTooSmall
from ..ops.kernels import uniform
from ..plan import Plan
from ..runtime.device import ViewBatches
from .decode import DaliGroup, PilGroup, together
from .part import Given
from .planes_group import ComparedGroup, PlanesGroup, as_many_as_fit, bounded
from .rows import Rows


class RowsDecoding:
    """Rows of a batch that share a plan."""

    def __init__(self, batch: Rows, plan: Plan):
        self._batch, self._plan = batch, plan
        self._groups: list[DaliGroup | PlanesGroup | PilGroup] = []

    def start(self, by_kind: dict[tuple[int, str], np.ndarray]) -> None:
        """Submits rows to their decoders. ``by_kind``: rows, in order, by who decodes them (data/headers.py) and what
        DALI is given (data/sources.py)."""
        for (kind, given), rows in by_kind.items():
            if kind == DALI:
                turned = self._batch.facts["orientations"][rows] > 1
                for some in (rows,) if given in DECODED or not turned.any() else (rows[~turned], rows[turned]):
                    self._submit(DaliGroup, self._submit_to_engine(some, given), given)
            else:
                self._groups.append(PilGroup(self._batch, self._plan, rows.tolist()))

    def _submit_to_engine(self, rows: np.ndarray, given: str) -> np.ndarray:
        """A GPU's JPEG engine gets what it decodes to Pillow's pixels, and, beside DALI, some of what is to be
        compared. Returns the rows that are left."""
        engine, facts = self._batch.epoch.engine, self._batch.facts
        if engine is None or given in DECODED or not self._plan.from_planes:
            return rows
        takes = rows[engine.takes(facts["chroma"][rows], facts["sizes"][rows])]
        known, new = engine.shared_out(takes, facts["chroma"][takes], self._batch.words[takes])
        if len(new):
            new = as_many_as_fit(new, facts, engine.room)
        for several in bounded(known, facts, engine.memory):
            self._submit(PlanesGroup, several, given, engine=engine)
        self._submit(ComparedGroup, new, given, engine=engine)
        return np.setdiff1d(rows, np.concatenate([known, new]), assume_unique=True)

    def _submit(self, group: type[DaliGroup] | type[PlanesGroup], rows: np.ndarray, given: str, **options: Any) -> None:
        """Makes a group of those rows whose arguments can be computed."""
        left = rows.tolist()
        while left:
            try:
                self._groups.append(group(self._batch, self._plan, left, given, **options))
                return
            except ImageTooSmall as error:
                self._batch.give_up({error.row: error})
                left.remove(error.row)

    def decode(self) -> None:
        """A GPU's JPEG engine sets to work on what is read."""
        for group in self._groups:
            if isinstance(group, PlanesGroup):
                group.decode()

    def look(self) -> None:
        """Gives up rows that have failed already; others may still be at work."""
        for group in self._groups:
            if isinstance(group, PilGroup) and (failures := group.failed()):
                self._batch.give_up(failures)

    def result(self) -> Given:
        """Returns rows that could be decoded, and their images on the device; gives up the others."""
        made, failures = [], dict[int, Exception]()
        while self._groups:  # one that fails stays there, to be discarded
            made.append(self._groups[-1].result(failures))
            self._groups.pop()
        if failures:
            self._batch.give_up(failures)
        rows, images = together(made)
        if self._plan.views and not isinstance(images, ViewBatches):
            images = ViewBatches([uniform(list(of_view)) for of_view in zip(*images, strict=True)])
        elif isinstance(images, list) and images:
            images = uniform(images)
        return rows, images

    def discard(self) -> None:
        while self._groups:
            self._groups.pop().discard()
