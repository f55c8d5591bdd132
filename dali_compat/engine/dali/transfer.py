"""Input arrays of a DALI pipeline, and its outputs as torch tensors.

DALI copies all inputs except images that are already in memory. One of DALI's threads later acquires the GIL to release
these images. In some versions of Python before 3.11.10, a process that is forked at that moment hangs (CPython issue
112275). Before 3.11.10, DALI copies the images, too.
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

_UNUSED = -1  # ticket of a batch whose result is dropped
COPIES_IMAGES = sys.version_info < (3, 11, 10)  # first version with the fix


class InFlight(NamedTuple):
    """A submitted batch. It keeps the arrays alive, because DALI may not have copied them."""

    ticket: int
    arrays: list


class Feed:
    """Passes submitted batches to DALI's external sources, and stores the batches in flight, oldest first."""

    def __init__(self):
        self.next: InFlight | None = None
        self.flight: deque[InFlight] = deque()
        # for each source, its slice of a batch's arrays, and a queue of the slices that it returns next
        self._waiting: list[tuple[slice, deque]] = []

    def source(self, dtypes: list, ndim: list[int], copies: bool = True) -> list:
        """Create an external source for the next ``len(dtypes)`` arrays of a batch, and return its nodes.

        Args:
            dtypes, ndim: as in fn.external_source().
            copies: whether DALI copies the arrays.
        """
        if not dtypes:
            return []
        begin = self._waiting[-1][0].stop if self._waiting else 0
        self._waiting.append((slice(begin, begin + len(dtypes)), deque()))
        number = len(self._waiting) - 1
        nodes: Any = fn.external_source(
            lambda: self._take(number),  # a reference to the pipeline would be a cycle that keeps GPU memory allocated
            num_outputs=len(dtypes),
            batch=True,
            dtype=dtypes,
            ndim=ndim,
            no_copy=not copies,
        )
        return nodes

    def _take(self, source: int) -> list:
        """Return a source's arrays of the next batch.

        The first schedule_run() calls each source ``depth`` times. The first call returns the whole batch. The others
        return only its first sample, and their outputs are dropped.
        """
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
"""Prefix of the names of image outputs. The view's number follows it."""


class Received(NamedTuple):
    """The outputs of a pipeline for a batch of N images."""

    # (N, H, W, C) or (N, C, H, W) on the device; a list of N if sizes differ; ViewBatches if the plan has views; [] if
    # files are only read
    images: torch.Tensor | list[torch.Tensor] | ViewBatches
    # images before the first step, (H, W, 3) each, if the form keeps them
    decoded: torch.Tensor | list[torch.Tensor] | None
    encoded: TensorListCPU | None  # bytes of the N files, if DALI has read files
    lengths: np.ndarray | None  # (N,) int64, number of bytes of each file
    size_field: np.ndarray | None  # (N, SIZE_FIELD) uint8, header bytes with the image size, if files were also decoded

    @classmethod
    def from_outputs(cls, outputs: dict[str, Any], has_views: bool) -> Received:
        """Convert DALI's outputs, named as in define(), to tensors and arrays."""
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
        """Return the bytes of all files, (bytes,) uint8, and the length of each file, without a copy. Return None if
        the files are not adjacent in DALI's memory, or if the first is empty."""
        assert self.encoded is not None and self.lengths is not None
        if not self.lengths[0]:
            return None
        total = int(self.lengths.sum())
        first, last = (np.asarray(self.encoded[i]) for i in (0, len(self.lengths) - 1))
        if first.ctypes.data + total != last.ctypes.data + len(last):
            return None
        return np.lib.stride_tricks.as_strided(first, (total,), (1,), writeable=False), self.lengths


def _unshared(images: list[torch.Tensor | list[torch.Tensor]]) -> ViewBatches:
    """Return the images of each view, as copies if they share an earlier view's memory."""
    made: list[torch.Tensor | list[torch.Tensor]] = []
    known: set[int] = set()  # DALI computes identical outputs only once
    for view in images:
        first = view if isinstance(view, torch.Tensor) else view[0]
        if first.data_ptr() in known:
            view = view.clone() if isinstance(view, torch.Tensor) else [image.clone() for image in view]
        known.add(first.data_ptr())
        made.append(view)
    return ViewBatches(made)


def _tensors(outputs: Any):
    """Return a DALI output without a copy, as one tensor if all sizes are equal, otherwise as a list of tensors."""
    if outputs.is_dense_tensor():
        return torch.from_dlpack(outputs.as_tensor())
    images = [outputs[i] for i in range(len(outputs))]
    if isinstance(outputs, TensorListCPU):  # capsules skip torch's checks of devices and versions
        images = [image.__dlpack__() for image in images]
    return list(map(torch.from_dlpack, images))
