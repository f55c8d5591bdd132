"""Decoded images, kept in host memory within a budget, so that later epochs need not decode them.

Host memory rather than the GPU's, which training needs: what a crop takes of an image is cut out by the CPU, and only
that goes over.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import torch

from .sources import Record, Source, is_record


class DecodedCache:
    """Images by their source. Whatever is in, stays in.

    Args:
        budget: bytes (an int), or a share of the memory that is free now (a float).
        device, exact: of the loader; they decide what an image's pixels are.

    Attributes:
        settings: the arguments.
        full: an image had no room; nothing is added any more.
    """

    def __init__(self, budget: int | float, device: str, exact: bool):
        self.settings = budget, device, exact
        self._budget = budget if isinstance(budget, int) else int(budget * free_memory())
        self._images: dict[Source, np.ndarray] = {}
        self._bytes = 0
        self._lock = threading.Lock()  # iterators of several threads share it
        self.full = False

    def get(self, source: Source) -> np.ndarray | None:
        """(H, W, 3) uint8, or None where it is not here."""
        return self._images.get(source)

    def add(self, sources: list[Source], images) -> None:
        """Copies of the images that are new and fit: uint8 tensors (H, W, 3) on any device."""
        with self._lock:
            new: dict[Source, torch.Tensor] = {}
            for source, image in zip(sources, images, strict=True):
                if source in self._images or source in new:
                    continue
                if self._bytes + image.numel() > self._budget:
                    self.full = True
                    break
                self._bytes += image.numel()
                new[Record(source.archive, source.index) if is_record(source) else source] = image
            self._images |= zip(new, _on_host(list(new.values())))

    def __str__(self) -> str:
        rest = "; it is full: the other images are decoded each time" if self.full else ""
        return (
            f"cache of decoded images in host memory: {len(self._images):,} images, {_size(self._bytes)} of "
            f"{_size(self._budget)}{rest}"
        )


def _on_host(images: list[torch.Tensor]) -> list[np.ndarray]:
    """Copies."""
    if images and images[0].is_cuda:  # one transfer for all
        flat = torch.cat([image.reshape(-1) for image in images]).cpu()
        parts = flat.split([image.numel() for image in images])
        return [part.view(image.shape).numpy() for part, image in zip(parts, images)]
    # by NumPy: torch's threads would get in the way of DALI's
    return [image.numpy().copy() for image in images]


def checked_budget(budget: int | float | None) -> int | float | None:
    """
    Raises:
        ValueError: it is no number of bytes and no share.
    """
    if budget is None or (type(budget) is int and budget > 0) or (type(budget) is float and 0 < budget <= 1):
        return budget
    raise ValueError(f"cache must be bytes (an int above 0) or a share of memory (a float in (0, 1]), got {budget!r}")


def free_memory() -> int:
    """Bytes of host memory that are free, for this machine and for this process's control group (Linux, v2)."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(meminfo["MemAvailable"].split()[0])
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - int(used)))


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
