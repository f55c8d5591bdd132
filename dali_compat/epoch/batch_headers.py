"""Keeps what is known of the files of one batch, and what the batch finds out about them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import numpy as np

from ..data.header import GRAY, PIL
from ..data.headers import Facts, Headers, headers_of
from ..data.lookup import Found, Listed, Tabled
from ..data.sources import Source
from ..data.verdicts import Verdicts
from .dali_epoch import DaliEpoch


class BatchHeaders:
    """The headers of a batch's files: those of its data sets (data/headers.py), by the rows of the batch.

    Attributes:
        facts: what is known of each row's file; look() sets it.
        words: (N,) uint64, what the epoch's JPEG engine is known to make of it (data/verdicts.py); likewise.
    """

    facts: Facts
    words: np.ndarray

    def __init__(self, epoch: DaliEpoch, samples: Listed | Tabled, count: int):
        self._epoch, self._samples, self._count = epoch, samples, count
        self._requested: list[tuple[Found, int]] = []
        self._forgotten: set[int] = set()  # rows

    def request(self, left_out: Collection[int]) -> bool:
        """Other processes begin to read those that nobody has read, but for rows that are left out. Whether there are
        any."""
        prefetcher = self._epoch.prefetcher
        if prefetcher is not None and isinstance(self._samples, Tabled):
            for found in self._samples.found():
                new = found.but(left_out).unknown()
                paths = [self._samples.source(row) for row in new.rows.tolist()]
                ticket = prefetcher.request(paths) if paths else None
                if ticket is not None:
                    self._requested.append((new, ticket))
        return bool(self._requested)

    def receive(self) -> None:
        """Takes what other processes have read, waiting for it."""
        prefetcher, requested = self._epoch.prefetcher, self._requested
        while requested:
            found, ticket = requested.pop()
            facts = None if prefetcher is None else prefetcher.result(ticket)
            if facts is not None:
                found.headers.add(found.index, found.keys, facts)

    def look(self, left_out: Collection[int], by_pil: bool) -> list[tuple[Found, np.ndarray]]:
        """Reads those that nobody has read. Gives the rows that each leaf of the data set has, but for those that are
        left out, and who decodes them (data/header.py). ``by_pil``: PIL, whatever else could."""
        made = []
        engine = self._epoch.engine
        self.facts, self.words = Facts.empty(self._count), np.zeros(self._count, np.uint64)
        for found in self._samples.found():
            if left_out:
                found = found.but(left_out)
            if not len(found.rows):
                continue
            facts = found.headers.facts(found.index, found.keys, partial(self._source_of, found.rows))
            if by_pil or getattr(found.leaf, "by_pil", False):
                facts.kinds[facts.kinds != GRAY] = PIL
            if len(found.rows) == self._count:  # in order
                self.facts = facts
            else:
                self.facts.put(found.rows, facts)
            if engine is not None:
                self.words[found.rows] = found.headers.verdicts(engine.name).words(found.index)
            made.append((found, facts.kinds))
        return made

    def _source_of(self, rows: np.ndarray, i: int) -> Source:
        return self._samples.source(int(rows[i]))

    def set_intact(self, rows: list[int]) -> None:
        """DALI and PIL read these files alike."""
        of_leaf: dict[int, list[int]] = {}
        for row in rows:
            of_leaf.setdefault(id(self._samples.places[row][0]), []).append(row)
        for rows in of_leaf.values():
            headers_of(self._samples.places[rows[0]][0]).set_intact([self._kept(row)[1] for row in rows])

    def use_pil(self, row: int) -> None:
        """PIL reads this file from now on: DALI has failed on it, or may read it otherwise."""
        headers, index = self._kept(row)
        headers.use_pil(index)

    def forget(self, rows: list[int]) -> None:
        """These files have changed: they are looked at anew."""
        for row in rows:
            headers, index = self._kept(row)
            headers.forget(index)

    def forget_once(self, rows: list[int]) -> bool:
        """forget(). False where it was called for all of these rows before, and has not helped."""
        self.forget(rows)
        before = self._forgotten.issuperset(rows)
        self._forgotten.update(rows)
        return not before

    def _kept(self, row: int) -> tuple[Headers, int]:
        """Returns where the header of a row's file is kept, and at which index."""
        leaf, local = self._samples.places[row]
        return headers_of(leaf), local % len(leaf)

    def words_to(self, rows: list[int]) -> Callable[[np.ndarray], None]:
        """Returns what keeps words about these rows' files. It may be called in any thread, and when the batch is
        gone."""
        assert self._epoch.engine is not None  # who else would ask
        places: list[tuple[Verdicts, np.ndarray, np.ndarray]] = []
        for found in self._samples.found():
            at = np.flatnonzero(np.isin(rows, found.rows))
            index = found.index[np.searchsorted(found.rows, np.array(rows)[at])]
            places.append((found.headers.verdicts(self._epoch.engine.name), index, at))

        def put(words: np.ndarray) -> None:
            for verdicts, index, at in places:
                verdicts.put(index, np.broadcast_to(words, len(rows))[at])

        return put
