"""The rows of a batch, with their files, headers and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..data.header import PIL
from ..data.headers import FACTS, Headers
from ..data.lookup import LeafRows, Samples, look_up
from ..data.readers import transforms_of
from ..data.sources import PATHS, Source, ctimes_of, fetch, is_object
from ..data.verdicts import Verdicts
from ..errors import ImageReadError, read_error, remedy_of
from ..ops.draws import ImageTooSmall
from ..randoms import Randoms
from ..runtime.decorators import named
from .decodable import DecodableRows
from .epoch import DaliEpoch


class Rows(DecodableRows):
    """The rows (images) of a batch from a data set of files. read_headers() sets ``facts`` and ``verdicts``.

    Args:
        samples, leaf_rows: the results of look_up().
        indices: indices from the sampler.
        begin: number of samples in earlier batches of the epoch.
        bad: the error, or its message, of each failed row. fail_rows() adds errors.
        tolerant: whether rows may fail while others continue.
    """

    def __init__(
        self,
        epoch: DaliEpoch,
        samples: Samples,
        leaf_rows: list[LeafRows],
        indices: Sequence[Any],
        begin: int,
        bad: dict[int, Exception | str],
        tolerant: bool,
    ):
        self.epoch, self.samples, self.leaf_rows, self.indices, self.begin = epoch, samples, leaf_rows, indices, begin
        self.bad, self.tolerant = bad, tolerant
        self._requested: list[tuple[LeafRows, int]] = []  # (rows, ticket) of requested headers

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sources(self) -> Sequence[Source]:
        return self.samples.sources

    def paths(self, rows: np.ndarray) -> list[Any]:
        sources = self.sources  # not a property's call for each row
        return [sources[row] for row in rows.tolist()]

    def name(self, row: int) -> str:
        return f"{self.sources[row]}, index {self.indices[row]}"

    def position(self, row: int) -> int:
        return self.epoch.rank_order.place_of(self.begin + row)

    def fail_rows(self, failures: dict[int, Exception]) -> None:
        """Record the errors in ``bad`` if rows may fail, otherwise raise the first error. Always raise errors of the
        operating system, such as too many open files."""
        of_system = {row: error for row, error in failures.items() if remedy_of(error)}
        if self.tolerant and not of_system:
            self.bad.update((row, _as_torchvision_error(error)) for row, error in failures.items())
        elif failures:
            row = min(of_system or failures)
            of_system = {}
            # popped to break a reference cycle through the traceback
            raise _as_torchvision_error(failures.pop(row))

    # ---- headers

    def request_headers(self) -> bool:
        """Let other processes read the headers that are not cached yet. Return True if any were requested."""
        prefetcher = self.epoch.prefetcher
        if prefetcher is not None:
            for found in [one for one in self.leaf_rows if one.input == PATHS]:
                new = found.but(self.bad).unknown()
                paths = self.paths(new.rows)
                ticket = prefetcher.request(paths) if paths else None
                if ticket is not None:
                    self._requested.append((new, ticket))
        return bool(self._requested)

    def receive_headers(self) -> None:
        """Wait for the headers requested by request_headers()."""
        prefetcher, requested = self.epoch.prefetcher, self._requested
        while requested:
            found, ticket = requested.pop()
            facts = None if prefetcher is None else prefetcher.result(ticket)
            if facts is not None:
                found.headers.add(found.index, found.keys, facts)

    def read_headers(self, by_pil: bool) -> list[tuple[LeafRows, np.ndarray]]:
        """Read missing headers, and set ``facts`` and ``verdicts``. Return (rows, their decoders) for each innermost
        data set, without failed rows. If ``by_pil`` is True, all decoders are PIL."""
        made = []
        engine, count = self.epoch.engine, len(self)
        self.facts, self.verdicts = np.zeros(count, FACTS), np.zeros(count, np.uint64)
        for found in self.leaf_rows:
            if self.bad:
                found = found.but(self.bad)
            if not len(found.rows):
                continue
            source = partial(self._source_of, found.rows)
            facts = found.headers.facts(found.index, found.keys, source, self._ctimes(found))
            if by_pil:
                facts["kinds"][:] = PIL
            if len(found.rows) == count:  # in order
                self.facts = facts
            else:
                self.facts[found.rows] = facts
            if engine is not None:
                self.verdicts[found.rows] = found.headers.verdicts(engine.name).get(found.index)
            made.append((found, facts["kinds"]))
        return made

    def _ctimes(self, found: LeafRows) -> np.ndarray | None:
        """Return the ctimes of the rows' files. Return None if the images are not files, and always on a GPU, because
        stat() would take too long."""
        if found.input != PATHS or self.epoch.route.device.type != "cpu":
            return None
        return ctimes_of(self.paths(found.rows))

    def _source_of(self, rows: np.ndarray, i: int) -> Source:
        return self.sources[int(rows[i])]

    def set_intact(self, rows: list[int]) -> None:
        for headers, index in self._headers_of(rows):
            headers.set_intact(index)

    def use_pil(self, row: int) -> None:
        for headers, index in self._headers_of([row]):
            headers.use_pil(index)

    def forget(self, rows: list[int]) -> None:
        for headers, index in self._headers_of(rows):
            headers.forget(index)

    def _headers_of(self, rows: list[int]) -> list[tuple[Headers, np.ndarray]]:
        """Return (Headers, the rows' indices in the Headers) for each innermost data set."""
        return [(found.headers, found.index[np.isin(found.rows, rows)]) for found in self.leaf_rows]

    def verdict_writer(self, rows: list[int]) -> Callable[[np.ndarray], None]:
        assert self.epoch.engine is not None  # only called for the engine's rows
        places: list[tuple[Verdicts, np.ndarray, np.ndarray]] = []
        for found in self.leaf_rows:
            at = np.flatnonzero(np.isin(rows, found.rows))
            index = found.index[np.searchsorted(found.rows, np.array(rows)[at])]
            places.append((found.headers.verdicts(self.epoch.engine.name), index, at))

        def put(words: np.ndarray) -> None:
            for verdicts, index, at in places:
                verdicts.put(index, np.broadcast_to(words, len(rows))[at])

        return put

    def numbers(self, begin: int, count: int) -> Randoms:
        return self.epoch.randoms(self.position(begin), count)


def _as_torchvision_error(error: Exception) -> Exception:
    """Convert an ImageTooSmall to the ValueError that torchvision raises. Return other errors unchanged."""
    return ValueError(str(error)) if isinstance(error, ImageTooSmall) else error


@named("find samples")
def rows_of(
    epoch: DaliEpoch,
    indices: list[Any],
    begin: int,
    bad: dict[int, Exception | str],
    is_substitute: bool = False,
) -> Rows:
    """Return the rows of a batch, with their targets. Read the bytes of images that are not files. The arguments
    are those of Rows and DaliBatch."""
    samples, leaf_rows = look_up(epoch.dataset, indices, epoch.folder, epoch.is_upright)
    transformed = any(transforms_of(found.leaf)[1] for found in leaf_rows)
    samples.targets = epoch.copied_targets(samples.targets, transformed)
    tolerant = is_substitute or epoch.errors.policy != "raise"
    rows = Rows(epoch, samples, leaf_rows, indices, begin, bad, tolerant)
    if any(found.input != PATHS for found in leaf_rows):
        _fetch(rows)
    if transformed:
        with epoch.worker_generators(begin):
            samples.targets = [_target(rows, row) for row in range(len(rows))]
    return rows


def _fetch(rows: Rows) -> None:
    fetcher, sources, chosen = rows.epoch.fetcher, rows.sources, list(range(len(rows)))
    if fetcher is not None:
        objects = [row for row in chosen if is_object(sources[row])]
        failed = fetcher.take([sources[row] for row in objects])  # type: ignore[misc]  # all are objects
        for number, error in failed.items():
            row = objects[number]
            rows.fail_rows({row: read_error(f"{error} (index {rows.indices[row]})", error)})
        chosen = [row for row in chosen if not is_object(sources[row])]
    try:
        fetch([sources[row] for row in chosen])
    except ImageReadError:
        for row in chosen:
            try:
                fetch([sources[row]])
            except ImageReadError as error:
                rows.fail_rows({row: error})


def _target(rows: Rows, row: int) -> Any:
    function, target = transforms_of(rows.samples.locations[row][0])[1], rows.samples.targets[row]
    if function is None or row in rows.bad:
        return target
    try:
        return function(target)
    except Exception as error:
        if not rows.epoch.errors.in_python:
            raise
        rows.fail_rows({row: error})
