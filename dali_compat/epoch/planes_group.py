"""Rows of a part whose JPEGs a GPU's engine takes: those that it decodes, DALI reading the files and kernels making
images of its planes; and those that it decodes beside DALI, to be compared."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch

from ..data.headers import Facts
from ..data.sources import PATHS, Form, overwritten
from ..data.verdicts import checksums, hold
from ..draws import Arrays
from ..engine.kernels import rows_of
from ..engine.planes.engine import Decoding, EngineSilent, Files, JpegEngine
from ..engine.planes.geometry import Planes, pixels_of, planes_of
from ..engine.planes.nvjpeg import EngineError
from ..engine.planes.program import Program
from ..engine.planes.verified import VerifiedEngine
from ..engine.views import Views
from ..plan import Plan
from .dali_group import DaliGroup
from .dali_owner import DaliOwner
from .part import in_order, run
from .pil_group import PilGroup

_MOST = 2**29  # bytes of planes that a group may have


class Compared(DaliGroup):
    """Rows that DALI decodes, and the engine beside it: nobody has seen yet whether its pixels are the same. Where too
    much waits to be compared, they are not this time."""

    def __init__(self, batch: DaliOwner, plan: Plan, rows: list[int], given: str, engine: VerifiedEngine):
        self._engine = engine
        super().__init__(batch, plan, rows, given, keeps=True)

    def _keep(self, decoded: Any, encoded: Any, sure: list[int]) -> None:
        """All pixels are there, whatever window a plan begins with."""
        if not sure or self._engine.is_behind:
            return
        facts = self._facts.take(np.array(sure))
        files = Files.of([np.asarray(encoded[i]) for i in sure])
        if self._given != PATHS:  # in the memory of an archive, which somebody may write to
            files = Files.of([array.copy() for array in files.arrays])
            if overwritten(self._sources).any():
                return
        put = self.batch.headers.words_to([self.rows[i] for i in sure])
        self._engine.compare(
            files,
            _places(facts),
            [decoded[i] for i in sure],
            lambda decoders: put(checksums(files.arrays, facts.marks) | decoders),
        )


class PlanesGroup:
    """Rows that the engine decodes. No other bytes reach it than those that it was seen to decode to Pillow's pixels:
    of others it might make anything, and write more pixels than there is room for. Where a file has others, PIL takes
    it, and it is looked at anew."""

    def __init__(self, batch: DaliOwner, plan: Plan, rows: list[int], given: str, engine: JpegEngine):
        self.batch, self.plan, self.rows, self._given, self._engine = batch, plan, rows, given, engine
        if not rows:
            return
        at = np.array(rows)
        self._facts, self._words = batch.headers.facts.take(at), batch.headers.words[at]
        self._arrays = [batch.compute((*one.planes, *one.after), at) for one in plan.chains]
        self._begun = False
        self._mine = np.arange(len(rows))  # of the rows: those that the engine has
        self._planes: Decoding | None = None
        self._others: DaliGroup | PilGroup | None = None
        if given == PATHS:
            self._pipeline = batch.epoch.pipeline(plan, len(rows), Form(PATHS, reads=True))
            self._ticket = self._pipeline.submit(batch.paths(at), [])

    def decode(self) -> None:
        """When the files are read, or soon: the engine sets to work, unless too much is in flight."""
        if not self._begun and not self._engine.is_full:
            self._begin()

    def _begin(self) -> None:
        from ..engine.dali.pipeline import PipelineError  # here, for other routes do without DALI

        try:
            self._hand_over(Files.of(self._read()))
        except PipelineError:  # of a file: this finds out which
            self._mine = self._mine[:0]
            self._others = DaliGroup(self.batch, self.plan, self.rows, self._given)
        self._begun = True  # at last: an interrupt may stop it

    def _hand_over(self, files: Files) -> None:
        """To the engine what is its, to PIL what has changed."""
        same = hold(self._words, checksums(files.arrays, self._facts.marks))
        if not same.all():
            self._mine, changed = np.flatnonzero(same), [self.rows[i] for i in np.flatnonzero(~same).tolist()]
            files = files.only(self._mine)
            self.batch.headers.forget(changed)
            self._others = PilGroup(self.batch, self.plan, changed)
        if len(self._mine):
            try:
                self._planes = self._engine.submit(files, self._places())
            except torch.OutOfMemoryError:
                self._engine.give_up("the GPU has no memory for its planes")

    def _read(self) -> Any:
        """The files' bytes."""
        if self._given != PATHS:
            sources: list[Any] = [self.batch.sources[row] for row in self.rows]  # records
            gone = overwritten(sources).tolist()  # an empty one has changed, too
            return [source.bytes()[: 0 if lost else None] for source, lost in zip(sources, gone, strict=True)]
        return self._pipeline.receive(self._ticket).encoded

    def _places(self) -> Planes:
        return _places(self._facts.take(self._mine))

    def outcome(self):
        """(N, C, H, W), or a list of N where sizes differ; Views of these."""
        if not self._begun:
            self._begin()
        mine, made = [self.rows[i] for i in self._mine.tolist()], []
        groups: list[DaliGroup | PilGroup] = [] if self._others is None else [self._others]
        if mine:
            planes = self._received()
            if planes is not None:
                made.append((mine, self._images(planes)))
            else:
                groups += self._as_before()
        for group in groups:
            images = group.outcome()  # which may leave rows out
            made.append((group.rows, images))
        self.rows = sorted(chain.from_iterable(rows for rows, _ in made))
        return made[0][1] if len(made) == 1 else in_order(made)

    def _received(self) -> torch.Tensor | None:
        """The planes; None where the engine has not made them, or somebody has written to their archive meanwhile."""
        try:
            planes = None if self._planes is None else self._planes.result()
            return None if self._overwritten().any() else planes
        except EngineError:  # comparing them anew tells of which file
            self.batch.headers.words_to([self.rows[i] for i in self._mine.tolist()])(np.zeros(1, np.uint64))
        except EngineSilent:
            self._engine.give_up()
        return None

    def _overwritten(self) -> np.ndarray:
        """(N,) bool, of the rows that the engine has: whose archive somebody has written to."""
        if self._given == PATHS:  # DALI has read them to memory of its own
            return np.zeros(len(self._mine), bool)
        return overwritten([self.batch.sources[self.rows[i]] for i in self._mine.tolist()])

    def _as_before(self) -> list[DaliGroup | PilGroup]:
        """What makes those rows without the engine; PIL says what is wrong with what somebody has overwritten."""
        gone = self._overwritten()
        lost, sure = ([self.rows[i] for i in self._mine[chosen].tolist()] for chosen in (gone, ~gone))
        made: list[DaliGroup | PilGroup] = [DaliGroup(self.batch, self.plan, sure, self._given)] if sure else []
        return made + ([PilGroup(self.batch, self.plan, lost)] if lost else [])

    def _images(self, planes: torch.Tensor):
        places, views = self._places(), []
        for one, arrays in zip(self.plan.chains, self._arrays, strict=True):
            arrays = self._of_mine(arrays)
            begin = len(one.planes)
            program = Program(one, arrays[:begin], places.sizes)
            views.append(run(one.after, program(planes, places), arrays[begin:]))
        return Views(views) if self.plan.views else views[0]

    def _of_mine(self, arrays: list[Arrays]) -> list[Arrays]:
        if len(self._mine) == len(self._words):
            return arrays
        return [rows_of(of_step, self._mine) for of_step in arrays]

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
    number = (np.cumsum(_places(facts.take(rows)).bytes) - 1) // _MOST
    return np.split(rows, np.flatnonzero(np.diff(number)) + 1)


def as_many_as_fit(rows: np.ndarray, facts: Facts, bytes_: int) -> np.ndarray:
    """The first rows, whose pixels are so many bytes at most."""
    return rows[np.cumsum(3 * facts.sizes[rows].prod(1)) <= bytes_]


def _places(facts: Facts) -> Planes:
    return planes_of(facts.sizes, *pixels_of(facts.chroma))
