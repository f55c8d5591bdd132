"""A pipeline's outputs as torch tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from nvidia.dali.tensors import TensorListCPU

from ...runtime.view_batches import ViewBatches

IMAGES = "images "
"""Names of outputs that are pixels, before the number of a view."""


class Received(NamedTuple):
    """A pipeline's outputs for a batch of N images.

    Attributes:
        images: (N, H, W, C) or (N, C, H, W) on the device, as the plan's last step lays it out, or a list of N where
            sizes differ; ViewBatches of these where the plan has views; [] where the form only reads.
        decoded: the same before the first step, (H, W, 3) each, where the form keeps them; else None.
        encoded: DALI's list of the N files' bytes, where it has read files; else None.
        lengths: (N,) int64, their numbers; None as ``encoded``.
        stated: (N, STATED) uint8, those that stand where the header states the size, where it has decoded them, too;
            else None.
    """

    images: torch.Tensor | list[torch.Tensor] | ViewBatches
    decoded: torch.Tensor | list[torch.Tensor] | None
    encoded: TensorListCPU | None
    lengths: np.ndarray | None
    stated: np.ndarray | None

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
