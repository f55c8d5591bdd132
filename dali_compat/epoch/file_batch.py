"""A batch of files: where its samples are, their targets, and what is known of their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.base_datasets import Images
from ..data.lookup import Listed, Tabled, as_list, in_tables, look_up
from ..data.readers import transforms_of
from ..data.sources import Source, fetch, is_object
from ..errors import ImageReadError, read_error
from ..runtime.decorators import named
from .batch import Batch
from .batch_headers import BatchHeaders
from .dali_epoch import DaliEpoch


class FileBatch(Batch):
    """A batch of encoded images, in files or elsewhere. Who makes its images is its subclasses' affair, and they begin
    with ``bad`` empty.

    Attributes:
        pixels: what a cache has of each row; empty where there is none.
        headers: what is known of each row's file.
        bad: rows that cannot be made, and why: an error, or what it said when it was met first.
    """

    epoch: DaliEpoch
    indices: list[Any]
    pixels: list[Any]
    headers: BatchHeaders
    bad: dict[int, Exception | str]
    _samples_of: Listed | Tabled
    _stands_in = False  # for a sample of another batch, which could not be made
    _located = False

    @property
    def places(self) -> list[tuple[Images, int]]:  # type: ignore[override]  # made when somebody asks
        """(leaf of the data set, index there) of each row."""
        return self._samples_of.places

    @property
    def count(self) -> int:
        """The number of rows, which are images. A sample of a data set that is asked may have several
        (traced_batch.py)."""
        return len(self)

    @property
    def sources(self) -> Sequence[Source]:
        """The source of each row's encoded image."""
        return self._samples_of.sources

    def paths(self, rows: np.ndarray) -> Any:
        """The paths of these rows, as a pipeline takes them."""
        return self._samples_of.paths(rows)

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

    def name(self, row: int) -> str:
        """The row's source and index, for a message."""
        return f"{self.sources[row]}, index {self.indices[row]}"

    def sample_name(self, row: int) -> str:
        """Its file and index, unless a data set of the user's opens the file: that may open several, or none."""
        return self.name(row) if self.epoch.route.asker is None else super().sample_name(row)

    def _leaves(self) -> list[Images]:
        return self._samples_of.leaves

    def _locals(self) -> Any:
        return self._samples_of.locals

    @named("find samples")
    def _locate(self) -> None:
        """Finds where its samples are, and their targets."""
        self._located = True
        epoch, cache = self.epoch, self.epoch.route.cache
        tabled = None if cache is not None or self._stands_in else in_tables(epoch.dataset, self.indices, epoch.tables)
        self._samples_of = self._look_up() if tabled is None else tabled
        self.targets = self._samples_of.targets
        self.headers = BatchHeaders(epoch, self._samples_of, self.count)
        if epoch.errors.broken and not self._stands_in:
            self._leave_out_broken()
        self.pixels = [] if cache is None else [cache.get(source) for source in self.sources]
        if tabled is None:
            self._fetch([row for row in range(self.count) if not self.pixels or self.pixels[row] is None])
        if any(transforms_of(leaf)[1] for leaf in self._leaves()):
            self.targets = list(as_list(self.targets))
            with self._as_in_a_worker():
                self.targets = [self._target(row) for row in range(len(self))]

    def _look_up(self) -> Listed:
        """Its samples, one after another."""
        listed = look_up(self.epoch.dataset, self.indices, self.epoch.folder)
        listed.targets = self._as_in_its_copy(listed.targets, any(transforms_of(leaf)[1] for leaf in listed.leaves))
        return listed

    def _leave_out_broken(self) -> None:
        """Files that could not be read before."""
        errors = self.epoch.errors
        known = list(errors.broken)  # at once: another iterator's next() may add to it meanwhile
        broken = np.fromiter(map(hash, known), np.int64, len(known))
        for found in self._samples_of.found():
            for row in found.rows[np.isin(found.keys, broken)].tolist():
                why = errors.known(self._samples_of.source(row))
                if why is not None:
                    self.bad[row] = why

    def _fetch(self, rows: list[int]) -> None:
        fetcher = self.epoch.fetcher
        if fetcher is not None:
            objects = [row for row in rows if is_object(self.sources[row])]
            for number, error in fetcher.take([self.sources[row] for row in objects]).items():  # type: ignore[misc]  # all are
                row = objects[number]
                self.give_up(row, read_error(f"{error} (index {self.indices[row]})", error))
            rows = [row for row in rows if not is_object(self.sources[row])]
        try:
            fetch([self.sources[row] for row in rows])
        except ImageReadError:
            for row in rows:
                try:
                    fetch([self.sources[row]])
                except ImageReadError as error:
                    self.give_up(row, error)

    def _target(self, row: int) -> Any:
        function, target = transforms_of(self.places[row][0])[1], self.targets[row]
        if function is None or row in self.bad:
            return target
        try:
            return function(target)
        except Exception as error:
            if not self.epoch.errors.in_python:
                raise
            self.give_up(row, error)
