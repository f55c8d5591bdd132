"""Feeds a pipeline's external sources, and keeps what DALI still uses.

DALI copies what it gets, but for images in memory. Where it does not, a thread of DALI's gives each array back to
Python. For that it needs the interpreter's lock, and the user's threads wait meanwhile. With some versions of Python a
process that is forked at that moment hangs (CPython's issue 112275): with these DALI copies images, too, in the calling
thread.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, NamedTuple

from nvidia.dali import fn

_NOBODYS = -1  # a ticket that nobody has
COPIES_IMAGES = sys.version_info < (3, 11, 10)  # the first without the fault


class InFlight(NamedTuple):
    """A batch in DALI's hands, which does not copy all of the arrays, or not at once."""

    ticket: int
    arrays: list


class Feed:
    """Feeds DALI's external sources, and keeps what DALI still uses, oldest first."""

    def __init__(self):
        self.next: InFlight | None = None
        self.flight: deque[InFlight] = deque()
        # of each source, which of a batch's arrays are its, and those of batches to come
        self._waiting: list[tuple[slice, deque]] = []

    def source(self, dtypes: list, ndim: list[int], layout: list[str] | None, stream=None, copies: bool = True) -> list:
        """Nodes of the next arrays of a batch; ``copies``: DALI copies them. Those on the GPU are copied to one place,
        on a CUDA ``stream``: DALI does so at any rate, and complains where it was told not to."""
        if not dtypes:
            return []
        begin = self._waiting[-1][0].stop if self._waiting else 0
        self._waiting.append((slice(begin, begin + len(dtypes)), deque()))
        number = len(self._waiting) - 1
        nodes: Any = fn.external_source(
            lambda: self._take(number),  # no method of the pipeline: a cycle would keep the GPU's memory for ever
            num_outputs=len(dtypes),
            batch=True,
            dtype=dtypes,
            ndim=ndim,
            layout=layout,
            device="gpu" if stream else "cpu",
            cuda_stream=stream,
            use_copy_kernel=stream is not None,
            no_copy=not copies,
        )
        return nodes

    def _take(self, source: int) -> list:
        """The next batch's arrays for one source. The first schedule_run() asks each source ``depth`` times. It gets
        the batch once; the other times it gets one sample of it, whose result nobody wants."""
        _, waiting = self._waiting[source]
        if not waiting:
            batch = self.next
            assert batch is not None  # submit() has set it
            self.flight.append(batch)
            self.next = InFlight(_NOBODYS, [array[:1] for array in batch.arrays])
            for part, queue in self._waiting:
                queue.append(batch.arrays[part])
        return waiting.popleft()
