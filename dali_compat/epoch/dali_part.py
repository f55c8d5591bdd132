"""Part of a batch on the DALI route: among its rows the groups that DALI decodes and those that PIL does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from ..data.header import DALI
from ..data.info import Info
from ..data.sources import DECODED
from ..plan import Plan
from ..runtime.device import ViewBatches
from .dali_group import DaliGroup
from .dali_owner import DaliOwner
from .part import Part, in_order, stacked, stacked_views, taken
from .pil_group import PilGroup
from .planes_group import Compared, PlanesGroup, as_many_as_fit, bounded

GroupT = TypeVar("GroupT", DaliGroup, PlanesGroup)


class DaliPart(Part[DaliOwner]):
    """Rows that share a plan, from files to what the plan gives."""

    def __init__(self, batch: DaliOwner, plan: Plan):
        super().__init__(batch, plan)
        self._groups: list[DaliGroup | PlanesGroup | PilGroup] = []
        self._before_call: Any = None  # what the plan's call gets, where on_error may need it again

    def start(self, by_kind: dict[tuple[int, str], np.ndarray]) -> None:
        """``by_kind``: rows, in order, by who decodes them (data/headers.py) and what DALI is given
        (data/sources.py)."""
        self.rows = merged(list(by_kind.values())).tolist()
        for (kind, given), rows in by_kind.items():
            if kind == DALI:
                rows = self._start_engine(rows, given)
                self._add(self._made(partial(DaliGroup, given=given), rows.tolist()))
            else:
                self._add(PilGroup(self.owner, self.plan, rows.tolist()))

    def _start_engine(self, rows: np.ndarray, given: str) -> np.ndarray:
        """A GPU's JPEG engine gets what it decodes to Pillow's pixels, and, beside DALI, some of what is to be
        compared. Returns the rows that are left."""
        engine, facts = self.owner.epoch.engine, self.owner.headers.facts
        if engine is None or given in DECODED or not self.plan.from_planes:
            return rows
        takes = rows[engine.takes(facts.chroma[rows], facts.sizes[rows])]
        known, new = engine.shared_out(takes, facts.chroma[takes], self.owner.headers.words[takes])
        if len(new):
            new = as_many_as_fit(new, facts, engine.room)
        for several in bounded(known, facts, engine.memory):
            self._add(self._made(partial(PlanesGroup, given=given, engine=engine), several.tolist()))
        self._add(self._made(partial(Compared, given=given, engine=engine), new.tolist()))
        return np.setdiff1d(rows, np.concatenate([known, new]), assume_unique=True)

    def _add(self, group: DaliGroup | PlanesGroup | PilGroup) -> None:
        if group.rows:
            self._groups.append(group)

    def _made(self, group: Callable[..., GroupT], rows: list[int]) -> GroupT:
        """A group of those rows whose arguments can be computed."""
        while True:
            try:
                return group(self.owner, self.plan, rows)
            except ValueError as error:
                if not hasattr(error, "row"):
                    raise
                self.owner.give_up(error.row, error)
                rows = [row for row in rows if row != error.row]

    def decode(self) -> None:
        """A GPU's JPEG engine sets to work on what is read."""
        for group in self._groups:
            if isinstance(group, PlanesGroup):
                group.decode()

    def look(self) -> None:
        """Returns whether PIL has failed already; it may still be at work."""
        for group in self._groups:
            group.look()

    def outcome(self):
        try:
            return super().outcome()
        except Exception as error:
            if not self._is_bad(error):
                raise
        return self._one_by_one()

    def _is_bad(self, error: Exception) -> bool:
        """Returns whether on_error is for it: an image is too small, or a function of the user's has raised it."""
        if self._before_call is None or hasattr(error, "workers_lost"):
            return False
        return self.owner.epoch.errors.in_python or hasattr(error, "row")

    def _one_by_one(self):
        """The results of rows that do not fail."""
        made: list[tuple[list[int], Any]] = []
        kept: list[int] = []
        images = self._before_call
        for i, row in enumerate(self.rows):
            part = DaliPart(self.owner, self.plan)
            part.rows = [row]
            try:
                part._begin(images[i : i + 1])
                outcome = part.outcome()
            except Exception as error:
                if not self._is_bad(error):
                    raise
                self.owner.give_up(row, error)
            else:
                made.append(([row], outcome))
                kept.append(row)
        self.rows = kept
        return in_order(made) if self.plan.views else stacked(made)

    def discard(self) -> None:
        while self._groups:
            self._groups.pop().discard()
        super().discard()

    def _infos(self):
        sources = self.owner.sources
        return [Info(sources[row]) for row in self.rows]

    def _images(self):
        """Returns what the steps before a call give, on the device. Leaves in ``rows`` those that are not given up."""
        made = taken(self._groups)
        self.rows = made[0][0] if len(made) == 1 else sorted(row for rows, _ in made for row in rows)
        whole = len(made) == 1 and isinstance(made[0][1], (torch.Tensor, ViewBatches))
        images = made[0][1] if whole else stacked_views(made) if self.plan.views else stacked(made)
        if self.plan.calls and self.owner.epoch.errors.policy != "raise":
            self._before_call = images
        return images


def merged(rows: list[np.ndarray]) -> np.ndarray:
    """All of them, in order."""
    return rows[0] if len(rows) == 1 else np.sort(np.concatenate(rows))
