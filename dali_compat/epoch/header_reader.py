"""Headers of many files at once, in an epoch with many unseen files. DALI's threads read the files, and NumPy checks
them (data/baseline.py), so that the interpreter's lock is free most of the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..data.baseline import BaselineJpegs
from ..data.headers import FACTS
from ..data.sources import Upright, when_written

if TYPE_CHECKING:
    from ..engine.dali.pipeline import DecodePipeline

_FEW = 32  # files; read one by one, fewer take less time


class HeaderReader:
    """Requests return tickets. Results that are never fetched are dropped by close().

    Args:
        pipeline: only reads files. close() closes it.
    """

    def __init__(self, pipeline: DecodePipeline):
        self._pipeline = pipeline
        self._requested: dict[int, tuple[np.ndarray, bool]] = {}
        self._helps = True

    def request(self, paths: list[str]) -> int | None:
        """Start reading files of one kind, and return a ticket, or None if one should read them one by one."""
        if not self._helps or not _FEW <= len(paths) <= self._pipeline.batch_size:
            return None
        written = when_written(paths)  # before the files are read, so that later changes are noticed
        ticket = self._pipeline.submit(paths, [])
        self._requested[ticket] = written, isinstance(paths[0], Upright)
        return ticket

    def result(self, ticket: int) -> np.ndarray | None:
        """Return the facts of a ticket's files, with kinds of UNKNOWN for those to read one by one, or None if that
        applies to all."""
        from ..engine.dali.pipeline import PipelineError  # imported late: other routes do not need DALI

        written, upright = self._requested.pop(ticket)
        try:
            received = self._pipeline.receive(ticket)  # owns the memory
        except PipelineError:  # for example, a file is missing
            return None
        packed = received.packed()
        if packed is None:
            return None
        memory, lengths = packed
        jpegs = BaselineJpegs(memory, np.cumsum(lengths) - lengths, lengths, upright)
        facts = np.zeros(len(lengths), FACTS)
        facts[jpegs.known] = jpegs.facts(written)
        self._helps = bool(jpegs.known.mean() > 0.5)  # otherwise files of other formats would be read twice for nothing
        return facts

    def close(self) -> None:
        """Free the pipeline."""
        self._pipeline.close()
