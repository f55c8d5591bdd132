"""Groups of rows that a GPU's JPEG engine decodes.

In a PlanesGroup, DALI reads the files, the engine decodes them to luma and chroma planes, and kernels convert these to
images. In a VerifyingGroup, DALI also decodes the files, to compare the pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.sources import PATHS, Form, overwritten
from ..data.verdicts import LIKELY
from ..engine.planes.engine import Decoding, EngineTimeout, first_line
from ..engine.planes.files import Files, UncheckedFiles
from ..engine.planes.geometry import PlaneLocations, pixels_of, planes_of
from ..engine.planes.nvjpeg import EngineError, EngineMemoryError
from ..engine.planes.program import PlanesProgram
from ..engine.planes.verified import VerifiedEngine
from ..ops.draws import Arrays
from ..ops.image_by_image import run_all
from ..ops.kernels import rows_of
from ..plan import Plan, Step
from ..runtime.device import ViewBatches
from .decodable import DecodableRows
from .decode import DaliGroup, PilGroup, RowImages, merged_results, wrong_sizes

if TYPE_CHECKING:
    from ..engine.dali.transfer import Received

# limits of a group's planes: bytes, and 1 / _SHARE of the GPU's memory
_MOST, _SHARE = 2**29, 128
_MOST_FILES = 2**16 - 1  # files of a group; CUDA limits this grid dimension
_NO_MEMORY = "the GPU has too little free memory for the planes"


class VerifyingGroup(DaliGroup):
    """Rows that DALI decodes. The JPEG engine decodes the same files for comparison, unless too many comparisons are
    pending."""

    keeps_decoded = True

    def __init__(self, batch: DecodableRows, plan: Plan, rows: list[int], given: str, engine: VerifiedEngine):
        self._engine = engine
        super().__init__(batch, plan, rows, given)

    def use_decoded(self, decoded: Any, encoded: Any, sure: list[int]) -> None:
        """Submit the files at the positions ``sure`` to the engine, and compare its pixels with ``decoded``, DALI's
        uncropped images."""
        if not sure or self._engine.is_behind:
            return
        facts = self._facts[sure]
        files = Files.from_arrays([np.asarray(encoded[i]) for i in sure], self._engine.device)
        if self._given != PATHS and (overwritten(self._sources).any() or not files.match(facts).all()):
            self._batch.forget([self._rows[i] for i in sure])  # their archive was overwritten
            return
        images = [decoded[i] for i in sure]
        if not np.array_equal([image.shape[:2] for image in images], facts["sizes"]):
            return
        put, hashes = self._batch.verdict_writer([self._rows[i] for i in sure]), facts["header_hashes"]
        self._engine.compare(
            files, _locations(facts), facts["chroma"], images, lambda decoders: put(files.checksums(hashes) | decoders)
        )


class PlanesGroup:
    """Rows that the JPEG engine decodes. PIL decodes files that have changed, because these might overflow the engine's
    buffers."""

    def __init__(self, batch: DecodableRows, plan: Plan, rows: list[int], given: str, engine: VerifiedEngine):
        self._batch, self._plan, self._rows, self._given, self._engine = batch, plan, rows, given, engine
        at = np.array(rows)
        self._facts, self._verdicts = batch.facts[at], batch.verdicts[at]
        self._locations = _locations(self._facts)
        self._arrays = [batch.compute((*_plane_steps(one), *one.after), at) for one in plan.chains]
        self._is_started = False
        self._own: np.ndarray = np.arange(len(rows))  # positions of the rows that the engine decodes
        self._planes: Decoding | None = None
        self._unchecked: UncheckedFiles | None = None
        self._other_group: DaliGroup | PilGroup | None = None
        if given == PATHS:
            self._pipeline = batch.epoch.pipeline(plan, len(rows), Form(PATHS, reads=True))
            self._ticket = self._pipeline.submit(batch.paths(at), [])

    def decode(self) -> None:
        """Submit the group's files to the engine. If the engine is full, result() submits them later."""
        if not self._is_started and not self._engine.is_full:
            self._begin()

    def _begin(self) -> None:
        from ..engine.dali.pipeline import PipelineError

        try:
            self._submit(self._copier())
        except PipelineError:  # reading a file failed; DaliGroup finds out which
            self._own = self._own[:0]
            self._other_group = DaliGroup(self._batch, self._plan, self._rows, self._given)
        self._is_started = True  # last, in case of an interrupt

    def _submit(self, copy: Callable[[], Files]) -> None:
        try:
            self._unchecked = UncheckedFiles(copy, self._verdicts, self._facts)
            self._planes = self._engine.submit(self._unchecked, self._locations)
        except torch.OutOfMemoryError:
            self._engine.disable(_NO_MEMORY)

    def _copier(self) -> Callable[[], Files]:
        """Return a function that copies the files to private memory."""
        device = self._engine.device
        if self._given == PATHS:
            return partial(_copied, self._pipeline.receive(self._ticket), device)
        sources: list[Any] = [self._batch.sources[row] for row in self._rows]  # records
        return partial(_copied_records, sources, [source.bytes() for source in sources], device)

    def result(self, failures: dict[int, Exception]) -> RowImages:
        if not self._is_started:
            self._begin()
        planes, made = self._received(), list[RowImages]()
        groups = [] if self._other_group is None else [self._other_group]
        if len(self._own):
            images = None if planes is None else self._images(planes)
            if images is not None:
                made.append(([self._rows[i] for i in self._own.tolist()], images))
            else:
                groups += self._without_engine()
        return merged_results([*made, *(group.result(failures) for group in groups)])

    def _received(self) -> torch.Tensor | None:
        """Return the planes, or None if the engine has failed. Remove changed files from ``_own``."""
        if self._planes is None:
            return None
        try:
            planes = self._planes.result()
            self._leave_out_changed()
            self._record_likely()
            return planes
        except EngineError:  # the engine rejects one of the files; the next comparison finds out which
            self._leave_out_changed()
            self._engine.compare_again(self._facts["chroma"][self._own])
            self._batch.verdict_writer([self._rows[i] for i in self._own.tolist()])(np.zeros(1, np.uint64))
        except EngineMemoryError:
            self._engine.disable(_NO_MEMORY)
        except EngineTimeout:
            self._engine.disable()
        return None

    def _leave_out_changed(self) -> None:
        """Remove changed files from ``_own`` (the engine's rows), and let PIL decode them."""
        assert self._planes is not None and self._planes.chosen is not None
        if len(self._planes.chosen) == len(self._own):
            return
        changed = [self._rows[i] for i in np.setdiff1d(self._own, self._planes.chosen).tolist()]
        self._own = self._planes.chosen
        self._batch.forget(changed)
        self._other_group = PilGroup(self._batch, self._plan, changed)

    def _record_likely(self) -> None:
        """Store the verdict LIKELY (not compared) for files that the engine has decoded for the first time."""
        new = self._own[self._verdicts[self._own] == 0]
        if len(new):
            assert self._unchecked is not None
            self._batch.verdict_writer([self._rows[i] for i in new.tolist()])(self._unchecked.checksums[new] | LIKELY)

    def _without_engine(self) -> list[DaliGroup | PilGroup]:
        """Return groups that decode the engine's rows without the engine. DALI decodes them, or PIL if the archive was
        overwritten."""
        gone = overwritten([self._batch.sources[self._rows[i]] for i in self._own.tolist()])
        lost, sure = ([self._rows[i] for i in self._own[chosen].tolist()] for chosen in (gone, ~gone))
        made: list[DaliGroup | PilGroup] = [DaliGroup(self._batch, self._plan, sure, self._given)] if sure else []
        return made + ([PilGroup(self._batch, self._plan, lost)] if lost else [])

    def _images(self, planes: torch.Tensor):
        """Return the transformed images, or None if the kernels fail."""
        begun, locations = [], self._locations
        if len(self._own) < len(self._verdicts):
            locations = locations.only(self._own)
        try:
            for one, arrays in zip(self._plan.chains, self._arrays, strict=True):
                program = PlanesProgram(one, self._own_arrays(arrays[: len(_plane_steps(one))]), locations.sizes)
                begun.append(program(planes, locations))
        except Exception as error:  # out of memory, or a compiler error
            self._engine.disable(f"its kernels failed ({first_line(error)})")
            return None
        views = []
        for one, images, arrays in zip(self._plan.chains, begun, self._arrays, strict=True):
            views.append(run_all(one.after, images, self._own_arrays(arrays[len(_plane_steps(one)) :])))
            if wrong_sizes(views[-1], arrays.sizes[self._own]).any():
                self._engine.disable("its kernels returned an image of another size")
                return None
        return ViewBatches(views) if self._plan.views else views[0]

    def _own_arrays(self, arrays: list[Arrays]) -> list[Arrays]:
        if len(self._own) == len(self._verdicts):
            return arrays
        return [rows_of(of_step, self._own) for of_step in arrays]

    def discard(self) -> None:
        if self._given == PATHS:
            self._pipeline.discard(self._ticket)
        if self._planes is not None:
            self._planes.cancel()
        if self._other_group is not None:
            self._other_group.discard()


def _copied(received: Received, device: torch.device) -> Files:
    packed = received.packed()
    return Files.from_arrays(received.files(), device) if packed is None else Files.from_packed(*packed, device)


def _copied_records(sources: list[Any], read: list[np.ndarray], device: torch.device) -> Files:
    """Return copies of the bytes ``read`` from archives. If an archive was overwritten, the copy of its record is
    empty, which marks the record as changed."""
    gone = overwritten(sources).tolist()
    return Files.from_arrays([data[: 0 if lost else None] for data, lost in zip(read, gone, strict=True)], device)


def _plane_steps(plan: Plan) -> tuple[Step, ...]:
    assert plan.planes is not None
    return plan.planes


def split_by_memory(rows: np.ndarray, facts: np.ndarray, memory: int) -> list[np.ndarray]:
    """Split rows into groups of limited size. ``memory`` is the GPU's memory in bytes."""
    if not len(rows):
        return []
    facts = facts[rows]
    bytes_ = np.maximum(_locations(facts).bytes, facts["lengths"])
    number = (np.cumsum(bytes_) - 1) // min(_MOST, memory // _SHARE) + np.arange(len(rows)) // _MOST_FILES
    return np.split(rows, np.flatnonzero(np.diff(number)) + 1)


def as_many_as_fit(rows: np.ndarray, facts: np.ndarray, bytes_: int) -> np.ndarray:
    """Return the first rows, at most _MOST_FILES, whose RGB pixels have at most ``bytes_`` bytes in total."""
    rows = rows[:_MOST_FILES]
    return rows[np.cumsum(3 * facts["sizes"][rows].prod(1)) <= bytes_]


def _locations(facts: np.ndarray) -> PlaneLocations:
    return planes_of(np.ascontiguousarray(facts["sizes"]), *pixels_of(facts["chroma"]))
