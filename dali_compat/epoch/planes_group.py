"""Rows of a part whose JPEGs a GPU's engine takes: those that it decodes, DALI reading the files and kernels making
images of its planes; and those that it decodes beside DALI, to be compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.sources import PATHS, Form, overwritten
from ..data.verdicts import LIKELY
from ..engine.planes.engine import Decoding, EngineSilent, first_line
from ..engine.planes.files import Files, UncheckedFiles
from ..engine.planes.geometry import Planes, pixels_of, planes_of
from ..engine.planes.nvjpeg import EngineError, EngineMemoryError
from ..engine.planes.program import PlanesProgram
from ..engine.planes.verified import VerifiedEngine
from ..ops.draws import Arrays
from ..ops.image_by_image import run_all
from ..ops.kernels import rows_of
from ..plan import Plan, Step
from ..runtime.device import ViewBatches
from .decode import DaliGroup, PilGroup, RowImages, other_sizes, together
from .rows import Rows

if TYPE_CHECKING:
    from ..engine.dali.transfer import Received

_MOST, _SHARE = 2**29, 128  # bytes of planes, or of files, that a group may have, and as a part of the GPU's
_MOST_FILES = 2**16 - 1  # of a group: a launch of kernels has a dimension for them
_NO_MEMORY = "the GPU has no memory for its planes"


class ComparedGroup(DaliGroup):
    """Rows that DALI decodes, and the engine beside it: nobody has seen yet whether its pixels are the same. Where too
    much waits to be compared, they are not this time."""

    def __init__(self, batch: Rows, plan: Plan, rows: list[int], given: str, engine: VerifiedEngine):
        self._engine = engine
        super().__init__(batch, plan, rows, given, keeps=True)

    def _keep(self, decoded: Any, encoded: Any, sure: list[int]) -> None:
        """All pixels are there, whatever window a plan begins with."""
        if not sure or self._engine.is_behind:
            return
        facts = self._facts[sure]
        files = Files.of([np.asarray(encoded[i]) for i in sure], self._engine.device)
        if self._given != PATHS and (overwritten(self._sources).any() or not files.as_known(facts).all()):
            self._batch.forget([self._rows[i] for i in sure])  # somebody has written to the memory of their store
            return
        images = [decoded[i] for i in sure]
        if not np.array_equal([image.shape[:2] for image in images], facts["sizes"]):
            return
        put, marks = self._batch.words_to([self._rows[i] for i in sure]), facts["marks"]
        self._engine.compare(
            files, _places(facts), facts["chroma"], images, lambda decoders: put(files.checksums(marks) | decoders)
        )


class PlanesGroup:
    """Rows that the engine decodes. No other bytes reach it than those that it was seen to decode to Pillow's pixels,
    and intact ones that are like these: of others it might make anything, and write more pixels than there is room for.
    Where a file has others, PIL takes it, and it is looked at anew."""

    def __init__(self, batch: Rows, plan: Plan, rows: list[int], given: str, engine: VerifiedEngine):
        self._batch, self._plan, self._rows, self._given, self._engine = batch, plan, rows, given, engine
        at = np.array(rows)
        self._facts, self._words = batch.facts[at], batch.words[at]
        self._places = _places(self._facts)
        self._arrays = [batch.compute((*_planes(one), *one.after), at) for one in plan.chains]
        self._begun = False
        self._mine: np.ndarray = np.arange(len(rows))  # of the rows: those that the engine has
        self._planes: Decoding | None = None
        self._unchecked: UncheckedFiles | None = None
        self._others: DaliGroup | PilGroup | None = None
        if given == PATHS:
            self._pipeline = batch.epoch.pipeline(plan, len(rows), Form(PATHS, reads=True))
            self._ticket = self._pipeline.submit(batch.samples.paths(at), [])

    def decode(self) -> None:
        """When the files are read, or soon: the engine sets to work, unless too much is in flight."""
        if not self._begun and not self._engine.is_full:
            self._begin()

    def _begin(self) -> None:
        from ..engine.dali.pipeline import PipelineError  # here, for other routes do without DALI

        try:
            self._submit(self._copier())
        except PipelineError:  # of a file: this finds out which
            self._mine = self._mine[:0]
            self._others = DaliGroup(self._batch, self._plan, self._rows, self._given)
        self._begun = True  # at last: an interrupt may stop it

    def _submit(self, copy: Callable[[], Files]) -> None:
        """Has the engine begin."""
        try:
            self._unchecked = UncheckedFiles(copy, self._words, self._facts)
            self._planes = self._engine.submit(self._unchecked, self._places)
        except torch.OutOfMemoryError:
            self._engine.give_up(_NO_MEMORY)

    def _copier(self) -> Callable[[], Files]:
        """Returns what copies the files, into memory that nobody writes to while the engine reads it."""
        device = self._engine.device
        if self._given == PATHS:
            return partial(_copied, self._pipeline.receive(self._ticket), device)
        sources: list[Any] = [self._batch.sources[row] for row in self._rows]  # records
        return partial(_copied_records, sources, [source.bytes() for source in sources], device)

    def result(self, failures: dict[int, Exception]) -> RowImages:
        if not self._begun:
            self._begin()
        planes, made = self._received(), list[RowImages]()
        groups = [] if self._others is None else [self._others]
        if len(self._mine):
            images = None if planes is None else self._images(planes)
            if images is not None:
                made.append(([self._rows[i] for i in self._mine.tolist()], images))
            else:
                groups += self._as_before()
        return together([*made, *(group.result(failures) for group in groups)])

    def _received(self) -> torch.Tensor | None:
        """The planes; None where the engine has not made them. ``_mine`` is what it has looked at and decoded."""
        if self._planes is None:
            return None
        try:
            planes = self._planes.result()
            self._leave_out_changed()
            self._keep_likely()
            return planes
        except EngineError:  # comparing them anew tells of which file
            self._leave_out_changed()
            self._engine.doubt(self._facts["chroma"][self._mine])
            self._batch.words_to([self._rows[i] for i in self._mine.tolist()])(np.zeros(1, np.uint64))
        except EngineMemoryError:
            self._engine.give_up(_NO_MEMORY)
        except EngineSilent:
            self._engine.give_up()
        return None

    def _leave_out_changed(self) -> None:
        """PIL takes files that have other bytes by now."""
        assert self._planes is not None and self._planes.chosen is not None
        if len(self._planes.chosen) == len(self._mine):
            return
        changed = [self._rows[i] for i in np.setdiff1d(self._mine, self._planes.chosen).tolist()]
        self._mine = self._planes.chosen
        self._batch.forget(changed)
        self._others = PilGroup(self._batch, self._plan, changed)

    def _keep_likely(self) -> None:
        """The bytes that were decoded at their first sight are known from now on."""
        new = self._mine[self._words[self._mine] == 0]
        if len(new):
            assert self._unchecked is not None
            self._batch.words_to([self._rows[i] for i in new.tolist()])(self._unchecked.checksums[new] | LIKELY)

    def _as_before(self) -> list[DaliGroup | PilGroup]:
        """Returns what makes those rows without the engine; PIL says what is wrong with what somebody has
        overwritten."""
        gone = overwritten([self._batch.sources[self._rows[i]] for i in self._mine.tolist()])
        lost, sure = ([self._rows[i] for i in self._mine[chosen].tolist()] for chosen in (gone, ~gone))
        made: list[DaliGroup | PilGroup] = [DaliGroup(self._batch, self._plan, sure, self._given)] if sure else []
        return made + ([PilGroup(self._batch, self._plan, lost)] if lost else [])

    def _images(self, planes: torch.Tensor):
        """None where the kernels fail."""
        begun, places = [], self._places
        if len(self._mine) < len(self._words):
            places = places.only(self._mine)
        try:
            for one, arrays in zip(self._plan.chains, self._arrays, strict=True):
                program = PlanesProgram(one, self._of_mine(arrays[: len(_planes(one))]), places.sizes)
                begun.append(program(planes, places))
        except Exception as error:  # no memory; a compiler's: who decodes as before needs none
            self._engine.give_up(f"its kernels failed, {first_line(error)}")
            return None
        views = []
        for one, images, arrays in zip(self._plan.chains, begun, self._arrays, strict=True):
            views.append(run_all(one.after, images, self._of_mine(arrays[len(_planes(one)) :])))
            if other_sizes(views[-1], arrays.sizes[self._mine]).any():
                self._engine.give_up("its kernels gave an image of another size")
                return None
        return ViewBatches(views) if self._plan.views else views[0]

    def _of_mine(self, arrays: list[Arrays]) -> list[Arrays]:
        if len(self._mine) == len(self._words):
            return arrays
        return [rows_of(of_step, self._mine) for of_step in arrays]

    def discard(self) -> None:
        if self._given == PATHS:
            self._pipeline.discard(self._ticket)
        if self._planes is not None:
            self._planes.cancel()
        if self._others is not None:
            self._others.discard()


def _copied(received: Received, device: torch.device) -> Files:
    """Copies what DALI has read, which is its memory."""
    packed = received.packed()
    return Files.of(received.files(), device) if packed is None else Files.of_packed(*packed, device)


def _copied_records(sources: list[Any], read: list[np.ndarray], device: torch.device) -> Files:
    """Copies records, (length,) uint8 each, where nobody has written to their archive by now; an empty one has changed,
    too."""
    gone = overwritten(sources).tolist()
    return Files.of([data[: 0 if lost else None] for data, lost in zip(read, gone, strict=True)], device)


def _planes(plan: Plan) -> tuple[Step, ...]:
    """The steps that kernels do."""
    assert plan.planes is not None  # or nobody would have made a group
    return plan.planes


def bounded(rows: np.ndarray, facts: np.ndarray, memory: int) -> list[np.ndarray]:
    """Groups of rows whose planes fit what a group may have of a GPU's ``memory``."""
    if not len(rows):
        return []
    facts = facts[rows]
    bytes_ = np.maximum(_places(facts).bytes, facts["lengths"])
    number = (np.cumsum(bytes_) - 1) // min(_MOST, memory // _SHARE) + np.arange(len(rows)) // _MOST_FILES
    return np.split(rows, np.flatnonzero(np.diff(number)) + 1)


def as_many_as_fit(rows: np.ndarray, facts: np.ndarray, bytes_: int) -> np.ndarray:
    """The first rows, whose pixels are so many bytes at most."""
    rows = rows[:_MOST_FILES]
    return rows[np.cumsum(3 * facts["sizes"][rows].prod(1)) <= bytes_]


def _places(facts: np.ndarray) -> Planes:
    return planes_of(np.ascontiguousarray(facts["sizes"]), *pixels_of(facts["chroma"]))
