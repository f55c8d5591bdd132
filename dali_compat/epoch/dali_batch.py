"""One batch on the DALI route.

start() finds the files, computes every per-sample argument and sets DALI to work. A batch consists of parts, the rows
that share a plan, and each of these of the rows that DALI decodes and those that go through PIL (dali_part.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..data.headers import DALI, PIL, headers_of
from ..data.parts import Images, locate, sample
from ..data.sources import BYTES, PATHS, Source, fetch, is_record
from ..draws import Arrays, ImageTooSmall, Randoms, compute
from ..engine.kernels import rows_of
from ..errors import ImageReadError, OutOfStep
from ..plan import Plan, Step
from .batch import Batch
from .dali_epoch import DaliEpoch
from .dali_part import DaliPart
from .on_error import NOTHING, reason_of
from .part import in_order, taken
from .substitute import Substitute, joined


class DaliBatch(Batch):
    """As Batch. ``stands_in``: for a sample of another batch, which could not be made. PIL reads it, so that it is the
    same whenever the other's error is found.

    Attributes:
        sources: of each row.
        bad: rows that cannot be made, and why: an error, or what it said when it was met first.
    """

    epoch: DaliEpoch
    indices: list[Any]
    places: list[tuple[Images, int]]
    sources: list[Source]
    pixels: list[Any]
    sizes: np.ndarray
    lengths: np.ndarray
    intact: np.ndarray

    def __init__(
        self, epoch: DaliEpoch, indices: list, position: int, error: Exception | None = None, stands_in: bool = False
    ):
        super().__init__(epoch, indices, position, error)
        self._stands_in = stands_in
        self._parts: list[DaliPart] = []
        self._substitutes: dict[int, Substitute] = {}
        self.bad: dict[int, Exception | str] = {}
        self._started = error is not None

    def start(self) -> None:
        """Once; errors wait for finish(), so that they reach the caller with the batch that they belong to."""
        if self._started:
            return
        self._started = True
        try:
            self._locate()
            self._group()
            if self.bad:
                self._substitute()
        except OutOfStep:
            raise
        except Exception as error:
            self._error = error

    def advance(self) -> None:
        """Once, after start(): functions without a translation begin to work. Errors wait, too."""
        try:
            if self._error is None:
                if self.epoch.errors.policy == "replace":
                    for part in self._parts:
                        part.look()
                    self._substitute()
                for part in self._parts:
                    part.advance()
        except OutOfStep:
            raise
        except Exception as error:
            self._error = error

    def alone(self) -> Any:
        """The image of a batch of one, before it is collated."""
        return self._outcome()[0]

    def forget_errors(self) -> None:
        super().forget_errors()
        self.bad, self._substitutes = {}, {}

    def discard(self) -> None:
        while self._parts:
            self._parts.pop().discard()
        while self._substitutes:
            self._substitutes.popitem()[1].discard()

    def give_up(self, row: int, error: Exception) -> None:
        """A row cannot be made: on_error decides what that means.

        Raises:
            Exception: the error.
        """
        if self._stands_in or self.epoch.errors.policy == "raise":
            try:
                raise error
            finally:
                del error  # it refers to its traceback, and that to this frame
        self.bad[row] = error

    def _images(self):
        """Of the rows that are not bad: (N, C, H, W), or a list of N where sizes differ, several parts made them, or
        they are no images."""
        made = taken(self._parts)
        return made[0][1] if len(made) == 1 else in_order(made)

    def _substitute(self) -> None:
        """Other samples set out to stand in for those that are known to be bad."""
        if self.epoch.errors.policy == "replace":
            for row in self.bad.keys() - self._substitutes.keys():
                self._substitutes[row] = Substitute(self.epoch, self.position(row), partial(self._standing_in, row))

    def _standing_in(self, row: int, index) -> DaliBatch:
        return DaliBatch(self.epoch, [index], self.position(row), stands_in=True)

    def _collate(self, images) -> Any:
        if self.bad:
            images = self._without_bad(images)
            if not len(self):
                return NOTHING
        return super()._collate(images)

    def _without_bad(self, images):
        errors, good = self.epoch.errors, [row for row in range(len(self)) if row not in self.bad]
        for row in sorted(self.bad):
            error, source = self.bad[row], self.sources[row]
            reason = error if isinstance(error, str) else reason_of(error)
            errors.add(str(source), self.indices[row], reason)
            if isinstance(error, ImageReadError):
                errors.remember(source, reason)
        if errors.policy == "skip":
            self.indices, self.places = [self.indices[i] for i in good], [self.places[i] for i in good]
            self.sources, self.targets = [self.sources[i] for i in good], [self.targets[i] for i in good]
            return images
        self._substitute()
        made = {row: self._substitutes[row].outcome() for row in self.bad}
        for row, (batch, _) in made.items():
            self.places[row], self.sources[row], self.targets[row] = batch.places[0], batch.sources[0], batch.targets[0]
        return joined(images, good, {row: image for row, (_, image) in made.items()})

    def _locate(self) -> None:
        self.places = [locate(self.epoch.dataset, index) for index in self.indices]
        pairs = [sample(part, local) for part, local in self.places]
        self.sources, self.targets = [source for source, _ in pairs], [target for _, target in pairs]
        errors = self.epoch.errors
        if errors.broken and not self._stands_in:
            self.bad |= {row: why for row, source in enumerate(self.sources) if (why := errors.known(source))}
        cache = self.epoch.route.cache
        self.pixels = [cache and cache.get(source) for source in self.sources]
        self._fetch([row for row, known in enumerate(self.pixels) if known is None])
        if any(part.target_transform for part, _ in self.places):
            with self._as_in_a_worker():
                self.targets = [self._target(row) for row in range(len(self))]

    def _fetch(self, rows: list[int]) -> None:
        try:
            fetch([self.sources[row] for row in rows])
        except ImageReadError:
            for row in rows:
                try:
                    fetch([self.sources[row]])
                except ImageReadError as error:
                    self.give_up(row, error)

    def _target(self, row: int) -> Any:
        function, target = self.places[row][0].target_transform, self.targets[row]
        if function is None or row in self.bad:
            return target
        try:
            return function(target)
        except Exception as error:
            if not self.epoch.errors.in_python:
                raise
            self.give_up(row, error)

    def _group(self) -> None:
        """Rows that share a plan, and among them those that share a decoder and what it is given."""
        by_folder: dict[int, list[int]] = {}
        for row, (folder, _) in enumerate(self.places):
            if row in self.bad:
                continue
            by_folder.setdefault(id(folder), []).append(row)
        rows_of: dict[Plan, dict[tuple[int, str], list[int]]] = {}
        self.sizes = np.empty((len(self), 2), np.int64)
        self.lengths, self.intact = np.empty(len(self), np.int64), np.empty(len(self), np.bool_)
        for rows in by_folder.values():
            folder = self.places[rows[0]][0]
            by_kind = rows_of.setdefault(self.epoch.route.plan_of(folder), {})
            indices = [self._header(row) for row in rows]
            headers = headers_of(folder)
            sizes, kinds = headers.look(indices, [self.sources[row] for row in rows])
            self.sizes[rows] = sizes
            self.lengths[rows], self.intact[rows] = headers.bytes(indices)
            if self._stands_in:
                kinds[:] = PIL
            for row, kind in zip(rows, kinds.tolist(), strict=True):
                by_kind.setdefault((kind, self._given(row, kind)), []).append(row)
        for plan, by_kind in rows_of.items():
            self._parts.append(part := DaliPart(self, plan))
            part.start(by_kind)

    def _given(self, row: int, kind: int) -> str:
        """What DALI is given of a row; what PIL decodes, it opens itself."""
        if kind != DALI:
            return ""
        if self.pixels[row] is not None:
            return self.epoch.route.cache.form  # type: ignore[union-attr]  # who else had them
        return BYTES if is_record(self.sources[row]) else PATHS

    def _header(self, row: int) -> int:
        """Where the headers of a row's folder keep it."""
        folder, local = self.places[row]
        return local % len(folder)

    def prefer_pil(self, row: int) -> None:
        """DALI has failed on this file, or may read it otherwise."""
        headers_of(self.places[row][0]).use_pil(self._header(row))

    def read_header_again(self, row: int) -> None:
        """The file has changed. For this batch PIL reads it."""
        headers_of(self.places[row][0]).forget(self._header(row))

    def set_intact(self, rows: list[int]) -> None:
        """DALI and PIL read these files alike."""
        of_folder: dict[int, list[int]] = {}
        for row in rows:
            of_folder.setdefault(id(self.places[row][0]), []).append(row)
        for rows in of_folder.values():
            headers_of(self.places[rows[0]][0]).set_intact([self._header(row) for row in rows])

    def compute(self, steps: tuple[Step, ...], rows: Sequence[int], sizes: np.ndarray | None = None) -> list[Arrays]:
        """Per-sample arguments of ``steps`` for these rows; a step's stream and a row's position decide the draws.
        ``sizes``, (len(rows), 2), where they are no longer those of the files."""
        return self._compute(steps, self.sizes[rows] if sizes is None else sizes, rows, 0, len(self))

    def compute_one(self, steps: tuple[Step, ...], row: int, size: tuple[int, int]) -> list[Arrays]:
        """The same for one image of a size, (height, width), without the dimension of rows."""
        arrays = self._compute(steps, np.array([size]), [0], row, 1)
        return [rows_of(values, 0) for values in arrays]

    def _compute(
        self, steps: tuple[Step, ...], sizes: np.ndarray, rows: Sequence[int], begin: int, count: int
    ) -> list[Arrays]:
        """``rows`` of ``count`` from row ``begin`` on."""
        try:
            return compute(steps, sizes, Randoms(self.epoch.seed, self.position(begin), count), rows)
        except ImageTooSmall as error:
            row = begin + rows[error.row]
            named = ValueError(f"{error} ({self.name(row)})")
            named.row = row  # type: ignore[attr-defined]  # dali_part.py looks there: the other rows can be made
            try:
                raise named from None
            finally:
                del named  # as in give_up()

    def name(self, row: int) -> str:
        return f"{self.sources[row]}, index {self.indices[row]}"
