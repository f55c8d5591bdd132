"""Rows of a part whose JPEGs a GPU's engine decodes: DALI reads the files, kernels make images of the planes."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch

from ..data.header import STATED
from ..data.headers import Facts
from ..data.sources import PATHS, Form, overwritten
from ..draws import Arrays
from ..engine.kernels import rows_of
from ..engine.planes.engine import Decoding, EngineSilent, Files, JpegEngine, pixels_of
from ..engine.planes.geometry import planes_of
from ..engine.planes.nvjpeg import EngineError
from ..engine.planes.program import Program
from ..engine.views import Views
from ..plan import Plan
from .dali_groups import DaliOwner, Decoded, Replayed, changed_since, for_pil
from .part import in_order, run

_MOST = 2**29  # bytes of planes that a group may have


class FromPlanes:
    """Rows whose files the engine takes, by their headers. Only bytes that are known to be intact reach it: it writes
    as many pixels as they say."""

    def __init__(self, batch: DaliOwner, plan: Plan, rows: list[int], given: str, engine: JpegEngine):
        self.batch, self.plan, self.rows, self._given, self._engine = batch, plan, rows, given, engine
        if not rows:
            return
        at = np.array(rows)
        self._facts = batch.facts.take(at)
        self._arrays = [batch.compute((*one.planes, *one.after), at) for one in plan.chains]
        self._sure = np.arange(len(rows))  # of the rows; the engine has no others
        self._planes: Decoding | None = None
        self._files: Files | None = None
        self._others: Replayed | Decoded | None = None
        if given == PATHS:
            self._pipeline = batch.epoch.pipeline(plan, len(rows), Form(PATHS, reads=True))
            self._ticket = self._pipeline.submit(batch.paths(at), [], self._facts.stated_at)

    def decode(self) -> None:
        """Once, when the files are read, or soon: the engine sets to work."""
        if self._files is not None or self._others is not None:
            return
        from ..engine.dali.pipeline import PipelineError  # here, for other routes do without DALI

        try:
            files = self._read()
        except PipelineError:  # of a file: this finds out which
            self._others, self._sure = Decoded(self.batch, self.plan, self.rows, self._given), self._sure[:0]
            return
        if len(self._sure):
            self._planes = self._engine.submit(files, self._places())
        self._files = files

    def _read(self) -> Files:
        """The files that are sure; PIL begins with the others."""
        batch, facts = self.batch, self._facts
        if self._given == PATHS:
            received = self._pipeline.receive(self._ticket)
            encoded: Any = received.encoded
            changed = changed_since(facts, received.lengths, received.stated)
            files = Files.of(encoded, received.lengths)
        else:
            sources: list[Any] = [batch.sources[row] for row in self.rows]  # records
            gone = overwritten(sources).tolist()  # an empty one has changed, too
            encoded = [source.bytes()[: 0 if lost else None] for source, lost in zip(sources, gone, strict=True)]
            stated = np.stack([_part(one, place) for one, place in zip(encoded, facts.stated_at.tolist(), strict=True)])
            files = Files.of(encoded)
            changed = changed_since(facts, files.lengths.astype(np.int64), stated)
        doubtful = for_pil(batch, self.rows, facts, encoded, changed)
        if doubtful.any():
            self._others = Replayed(batch, self.plan, [self.rows[i] for i in np.flatnonzero(doubtful).tolist()])
            self._sure = np.flatnonzero(~doubtful)
            files = files.only(self._sure)
        return files

    def _places(self):
        return planes_of(self._facts.sizes[self._sure], *pixels_of(self._facts.chroma[self._sure]))

    def outcome(self):
        """(N, C, H, W), or a list of N where sizes differ; Views of these."""
        self.decode()
        made: list[tuple[list[int], Any]] = []
        if self._planes is not None:
            planes = self._received()
            if planes is None:
                return self._as_before()
            images = self._images(planes)
            if self._others is None:
                return images
            made.append(([self.rows[i] for i in self._sure.tolist()], images))
        if self._others is not None:
            images = self._others.outcome()
            made.append((self._others.rows, images))
        self.rows = sorted(chain.from_iterable(rows for rows, _ in made))
        return made[0][1] if len(made) == 1 else in_order(made)

    def _received(self) -> torch.Tensor | None:
        """The planes; None where the engine has not made them."""
        assert self._planes is not None and self._files is not None
        try:
            try:
                planes = self._planes.result()
                return None if self._overwritten().any() else planes
            except EngineError:
                if self._overwritten().any():
                    return None
                refused = self._engine.refused(self._files, self._places())
                for i in refused or range(len(self._sure)):  # none by itself: they are not tried again
                    headers, index = self.batch.header(self.rows[self._sure[i]])
                    headers.use_dali(index)
        except EngineSilent:
            self._engine.give_up()
        return None

    def _overwritten(self) -> np.ndarray:
        """(N,) bool, of the rows that are sure: whose archive somebody has written to."""
        if self._given == PATHS:  # DALI has read them to memory of its own
            return np.zeros(len(self._sure), bool)
        return overwritten([self.batch.sources[self.rows[i]] for i in self._sure.tolist()])

    def _images(self, planes: torch.Tensor):
        places, views = self._places(), []
        for one, arrays in zip(self.plan.chains, self._arrays, strict=True):
            arrays = self._of_the_sure(arrays)
            begin = len(one.planes)
            program = Program(one, arrays[:begin], self._facts.sizes[self._sure])
            views.append(run(one.after, program(planes, places), arrays[begin:]))
        return Views(views) if self.plan.views else views[0]

    def _of_the_sure(self, arrays: list[Arrays]) -> list[Arrays]:
        if len(self._sure) == len(self._facts.chroma):
            return arrays
        return [rows_of(of_step, self._sure) for of_step in arrays]

    def _as_before(self):
        """Without the engine: DALI decodes them; PIL says what is wrong with those that somebody has overwritten."""
        gone = self._overwritten()
        lost, sure = ([self.rows[i] for i in self._sure[chosen].tolist()] for chosen in (gone, ~gone))
        groups: list[Any] = [Decoded(self.batch, self.plan, sure, self._given)] if sure else []
        if lost:
            groups.append(Replayed(self.batch, self.plan, lost))
        if self._others is not None:
            groups.append(self._others)
        made = [(group.outcome(), group) for group in groups]
        self.rows = sorted(chain.from_iterable(group.rows for _, group in made))
        return made[0][0] if len(made) == 1 else in_order([(group.rows, images) for images, group in made])

    def look(self) -> None:
        """The engine tells when it is asked."""

    def discard(self) -> None:
        if self._given == PATHS:
            self._pipeline.discard(self._ticket)
        if self._planes is not None:
            self._planes.cancel()
        if self._others is not None:
            self._others.discard()


def bounded(rows: np.ndarray, facts: Facts) -> list[np.ndarray]:
    """Groups of rows whose planes fit the memory that a group may have."""
    if not len(rows):
        return []
    bytes_ = planes_of(facts.sizes[rows], *pixels_of(facts.chroma[rows])).bytes
    number = (np.cumsum(bytes_) - 1) // _MOST
    return np.split(rows, np.flatnonzero(np.diff(number)) + 1)


def _part(data: np.ndarray, place: int) -> np.ndarray:
    """What states a JPEG's size, as fn.slice gives it: zeros behind the end."""
    part = np.zeros(STATED, np.uint8)
    given = data[place : place + STATED]
    part[: len(given)] = given
    return part
