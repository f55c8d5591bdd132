"""Inputs and outputs of a pipeline: external sources, the arrays that DALI still uses, and torch tensors.

DALI copies its inputs, except images in memory. It releases those in one of its threads, which needs the GIL and blocks
the user's threads meanwhile. With some versions of Python, a process forked at that moment hangs (CPython issue
112275). With these versions, DALI copies images as well, in the calling thread.
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

_UNUSED = -1  # a ticket that is not in use
COPIES_IMAGES = sys.version_info < (3, 11, 10)  # first version with the fix


class InFlight(NamedTuple):
    """A batch submitted to DALI, which does not copy all of the arrays, or not immediately."""

    ticket: int
    arrays: list


class Feed:
    """Feeds DALI's external sources, and keeps the batches that DALI still uses, oldest first."""

    def __init__(self):
        self.next: InFlight | None = None
        self.flight: deque[InFlight] = deque()
        # for each source: its slice of a batch's arrays, and a queue of arrays of the next batches
        self._waiting: list[tuple[slice, deque]] = []

    def source(self, dtypes: list, ndim: list[int], layout: list[str] | None, stream=None, copies: bool = True) -> list:
        """Return nodes for the next arrays of a batch. ``copies``: DALI copies them. Arrays on the GPU are copied into
        one buffer on a CUDA ``stream``; DALI always does so, and warns if told not to copy."""
        if not dtypes:
            return []
        begin = self._waiting[-1][0].stop if self._waiting else 0
        self._waiting.append((slice(begin, begin + len(dtypes)), deque()))
        number = len(self._waiting) - 1
        nodes: Any = fn.external_source(
            lambda: self._take(number),  # not a bound method of the pipeline: the cycle would keep GPU memory allocated
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
        """Return the next batch's arrays for one source. The first schedule_run() calls each source ``depth`` times.
        The first call gets the batch; the others get one sample of it, whose result is dropped."""
        _, waiting = self._waiting[source]
        if not waiting:
            batch = self.next
            assert batch is not None  # set by submit()
            self.flight.append(batch)
            self.next = InFlight(_UNUSED, [array[:1] for array in batch.arrays])
            for part, queue in self._waiting:
                queue.append(batch.arrays[part])
        return waiting.popleft()


IMAGES = "images "
"""Prefix of the names of outputs that are pixels, followed by the number of a view."""


class Received(NamedTuple):
    """The outputs of a pipeline for a batch of N images."""

    # (N, H, W, C) or (N, C, H, W) on the device, in the layout of the plan's last step; a list of N if sizes differ;
    # ViewBatches of these if the plan has views; [] if the form only reads
    images: torch.Tensor | list[torch.Tensor] | ViewBatches
    # the images before the first step, (H, W, 3) each, if the form keeps them
    decoded: torch.Tensor | list[torch.Tensor] | None
    encoded: TensorListCPU | None  # DALI's list of the bytes of N files, if it has read files
    lengths: np.ndarray | None  # (N,) int64, lengths of these
    size_field: np.ndarray | None  # (N, SIZE_FIELD) uint8, the bytes that state the size, if files were also decoded

    @classmethod
    def from_outputs(cls, outputs: dict[str, Any], has_views: bool) -> Received:
        """Convert DALI's ``outputs``, by the names used in definition.py."""
        decoded = _tensors(outputs["decoded"]) if "decoded" in outputs else None
        lengths = outputs["lengths"].as_array()[:, 0] if "lengths" in outputs else None
        size_field = outputs["size_field"].as_array() if "size_field" in outputs else None
        images = [_tensors(output) for name, output in outputs.items() if name.startswith(IMAGES)]
        whole = _unshared(images) if has_views else images[0] if images else []
        return cls(whole, decoded, outputs.get("encoded"), lengths, size_field)

    def files(self) -> list[np.ndarray]:
        """Return the bytes of each file, (length,) uint8."""
        assert self.encoded is not None
        return [np.asarray(self.encoded[i]) for i in range(len(self.encoded))]

    def packed(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the concatenated bytes of all files, (bytes,) uint8, and ``lengths``, or None if they are not adjacent
        in DALI's memory."""
        assert self.encoded is not None and self.lengths is not None
        if not self.lengths[0]:
            return None
        total = int(self.lengths.sum())
        first, last = (np.asarray(self.encoded[i]) for i in (0, len(self.lengths) - 1))
        if first.ctypes.data + total != last.ctypes.data + len(last):
            return None
        return np.lib.stride_tricks.as_strided(first, (total,), (1,), writeable=False), self.lengths


def _unshared(images: list[torch.Tensor | list[torch.Tensor]]) -> ViewBatches:
    """Return views that do not share memory. DALI computes outputs that are the same for two views only once."""
    made: list[torch.Tensor | list[torch.Tensor]] = []
    known: set[int] = set()
    for view in images:
        first = view if isinstance(view, torch.Tensor) else view[0]
        if first.data_ptr() in known:
            view = view.clone() if isinstance(view, torch.Tensor) else [image.clone() for image in view]
        known.add(first.data_ptr())
        made.append(view)
    return ViewBatches(made)


def _tensors(outputs: Any):
    """Return DALI's output as torch tensors, without a copy."""
    if outputs.is_dense_tensor():
        return torch.from_dlpack(outputs.as_tensor())
    images = [outputs[i] for i in range(len(outputs))]
    if isinstance(outputs, TensorListCPU):  # capsules skip torch's checks of devices and versions
        images = [image.__dlpack__() for image in images]
    return list(map(torch.from_dlpack, images))
