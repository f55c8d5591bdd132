"""A pipeline's inputs and outputs: external sources, and what DALI still uses of them; torch tensors.

DALI copies what it gets, but for images in memory. Where it does not, a thread of DALI's gives each array back to
Python. For that it needs the interpreter's lock, and the user's threads wait meanwhile. With some versions of Python a
process that is forked at that moment hangs (CPython's issue 112275): with these DALI copies images, too, in the calling
thread.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from nvidia.dali import fn
from nvidia.dali.tensors import TensorListCPU

from ...runtime.device import ViewBatches

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


IMAGES = "images "
"""Names of outputs that are pixels, before the number of a view."""


class Received(NamedTuple):
    """A pipeline's outputs for a batch of N images."""

    # (N, H, W, C) or (N, C, H, W) on the device, as the plan's last step lays it out; a list of N where sizes differ;
    # ViewBatches of these where the plan has views; [] where the form only reads
    images: torch.Tensor | list[torch.Tensor] | ViewBatches
    # the same before the first step, (H, W, 3) each, where the form keeps them
    decoded: torch.Tensor | list[torch.Tensor] | None
    encoded: TensorListCPU | None  # DALI's list of the N files' bytes, where it has read files
    lengths: np.ndarray | None  # (N,) int64, of these
    stated: np.ndarray | None  # (N, STATED) uint8, where the header states the size, where it has decoded them, too

    @classmethod
    def of(cls, outputs: dict[str, Any], has_views: bool) -> Received:
        """DALI's ``outputs``, by the names that definition.py gives them."""
        decoded = _tensors(outputs["decoded"]) if "decoded" in outputs else None
        lengths = outputs["lengths"].as_array()[:, 0] if "lengths" in outputs else None
        stated = outputs["stated"].as_array() if "stated" in outputs else None
        images = [_tensors(output) for name, output in outputs.items() if name.startswith(IMAGES)]
        whole = _apart(images) if has_views else images[0] if images else []
        return cls(whole, decoded, outputs.get("encoded"), lengths, stated)

    def files(self) -> list[np.ndarray]:
        """The bytes of each file, (length,) uint8."""
        assert self.encoded is not None
        return [np.asarray(self.encoded[i]) for i in range(len(self.encoded))]

    def packed(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the bytes of all files one after another, (bytes,) uint8, and ``lengths``; None where DALI's memory
        has them otherwise."""
        assert self.encoded is not None and self.lengths is not None
        if not self.lengths[0]:
            return None
        total = int(self.lengths.sum())
        first, last = (np.asarray(self.encoded[i]) for i in (0, len(self.lengths) - 1))
        if first.ctypes.data + total != last.ctypes.data + len(last):
            return None
        return np.lib.stride_tricks.as_strided(first, (total,), (1,), writeable=False), self.lengths


def _apart(images: list[torch.Tensor | list[torch.Tensor]]) -> ViewBatches:
    """Views in memory of their own: DALI computes once what is the same in two."""
    made: list[torch.Tensor | list[torch.Tensor]] = []
    known: set[int] = set()
    for view in images:
        first = view if isinstance(view, torch.Tensor) else view[0]
        if first.data_ptr() in known:
            view = view.clone() if isinstance(view, torch.Tensor) else [image.clone() for image in view]
        known.add(first.data_ptr())
        made.append(view)
    return ViewBatches(made)


def _tensors(outputs):
    """Torch's view of DALI's output, without a copy."""
    if outputs.is_dense_tensor():
        return torch.from_dlpack(outputs.as_tensor())
    return [torch.from_dlpack(outputs[i]) for i in range(len(outputs))]
