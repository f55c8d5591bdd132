"""Headers of unseen files. DALI's threads read them, and NumPy checks them, mostly without the interpreter's lock."""

from __future__ import annotations

import numpy as np

from ...data.baseline import BaselineJpegs
from ...data.headers import FACTS
from ...data.sources import Upright, when_written
from .pipeline import DecodePipeline, PipelineError

_FEW = 32  # files; one by one, fewer take less time


class HeaderReader:
    """Read headers with ``pipeline``, which only reads files. Close it with the epoch."""

    def __init__(self, pipeline: DecodePipeline):
        self.pipeline, self._written, self._helps = pipeline, dict[int, np.ndarray](), True

    def request(self, paths: list[str]) -> int | None:
        """Start reading files. Return a ticket, or None if they should be read one by one."""
        if not self._helps or not _FEW <= len(paths) <= self.pipeline.batch_size or isinstance(paths[0], Upright):
            return None
        written = when_written(paths)  # before the files are read, so that later changes are noticed
        ticket = self.pipeline.submit(paths, [])
        self._written[ticket] = written
        return ticket

    def result(self, ticket: int) -> np.ndarray | None:
        """Return the facts of a ticket's files; kinds are UNKNOWN for those to read one by one. None means all."""
        written = self._written.pop(ticket)
        try:
            received = self.pipeline.receive(ticket)  # owns the memory
        except PipelineError:  # for example, a file is missing
            return None
        if (packed := received.packed()) is None:
            return None
        memory, lengths = packed
        jpegs, facts = BaselineJpegs(memory, np.cumsum(lengths) - lengths, lengths), np.zeros(len(lengths), FACTS)
        facts[jpegs.known] = jpegs.facts(written)
        self._helps = bool(jpegs.known.mean() > 0.5)  # other formats would be read twice for nothing
        return facts
