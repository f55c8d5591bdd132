"""A cache of decoded images (``cache=``), so that later epochs need not decode them again."""

from __future__ import annotations

from typing import Any

import torch

from ..data.sources import PIXELS, PIXELS_ON_GPU, Record, Source, is_record
from ..runtime.device import free_memory
from ..runtime.forks import new_lock
from ..runtime.messages import in_bytes

_SHARE = 0.5  # default limit as a share of a GPU's free memory; training needs the rest


class DecodedCache:
    """A cache of decoded images, keyed by source. Images are never evicted.

    With a GPU, images are in GPU memory by default, because decoding JPEGs on an H100 is faster than cutting out crops
    on the CPU and transferring them (benchmarks/results).

    Args:
        budget, place: the loader's ``cache`` and ``cache_device``.
        device, exact: the loader's.
    """

    def __init__(self, budget: int | float, device: torch.device, exact: bool, place: str | None = None):
        self.settings = budget, device, exact, place
        self._images: dict[Source, Any] = {}
        self.bytes = 0  # size of the images
        self._lock = new_lock()  # iterators may run in several threads
        self.full = False  # whether an image did not fit; no more images are added then
        self._place = device if place is None or place == device.type else torch.device("cpu")
        self.form = PIXELS if self._place.type == "cpu" else PIXELS_ON_GPU  # form of the images from get()
        self._limit: int | None = None  # in bytes; None until _set_limit()
        if self._place.type == "cpu":
            self._set_limit()

    def _set_limit(self) -> None:
        """Compute the limit in bytes. For a GPU, CUDA must be initialized."""
        budget, _, _, place = self.settings
        free = free_memory(self._place)
        self._limit = budget if isinstance(budget, int) else int(budget * free)
        if place is None and self._place.type == "cuda":
            self._limit = min(self._limit, int(_SHARE * free))

    def get(self, source: Source):
        """Return the decoded image of a source, (H, W, 3) uint8, as a NumPy array or a DALI tensor on the GPU. Return
        None if it is not cached."""
        return self._images.get(source)

    def add(self, sources: list[Source], images) -> None:
        """Add copies of images, (H, W, 3) uint8 tensors on any device, until one does not fit."""
        with self._lock:
            if self.full:
                return
            if self._limit is None:
                self._place = images[0].device  # includes the index
                self._set_limit()
            new: dict[Source, torch.Tensor] = {}
            size = self.bytes
            for source, image in zip(sources, images, strict=True):
                if source in self._images or source in new:
                    continue
                if size + image.numel() > self._limit:
                    self.full = True
                    break
                size += image.numel()
                new[Record(source.store, source.index) if is_record(source) else source] = image
            try:
                self._images |= zip(new, _copies(list(new.values()), self._place), strict=True)
                self.bytes = size
            except (MemoryError, torch.cuda.OutOfMemoryError):  # other code has used the memory
                self.full = True

    def clear(self) -> None:
        """Free all images, and ignore later calls of add()."""
        with self._lock:
            self._images, self.bytes, self.full = {}, 0, True

    def __str__(self) -> str:
        rest = "; it is full: the other images are decoded each time" if self.full else ""
        budget = self.settings[0]
        most = in_bytes(budget) if isinstance(budget, int) else f"{budget:.0%} of the free memory"
        most = most if self._limit is None else in_bytes(self._limit)
        return (
            f"cache of decoded images in {'host memory' if self._place.type == 'cpu' else 'GPU memory'}: "
            f"{len(self._images):,} images, {in_bytes(self.bytes)} of {most}{rest}"
        )


def _copies(images: list[torch.Tensor], place: torch.device) -> list:
    """Return copies of images, as NumPy arrays on the host or DALI tensors on the GPU ``place``."""
    if not images or not images[0].is_cuda:
        return [image.numpy().copy() for image in images]  # torch's threads would compete with DALI's
    flat = torch.cat([image.reshape(-1) for image in images]).to(place)  # a single transfer
    parts = [
        part.view(image.shape)
        for part, image in zip(flat.split([image.numel() for image in images]), images, strict=True)
    ]
    if place.type == "cpu":
        return [part.numpy() for part in parts]
    from ..engine.dali.pipeline import without_copy

    torch.cuda.current_stream(place).synchronize()  # DALI reads on its own streams
    return without_copy(parts)


def checked_budget(budget: int | float | None) -> int | float | None:
    """Return ``budget``, the loader's argument ``cache``. Raise ValueError unless it is None, a positive number of
    bytes (int), or a share of the memory (float in (0, 1])."""
    if budget is None or (type(budget) is int and budget > 0) or (type(budget) is float and 0 < budget <= 1):
        return budget
    raise ValueError(f"cache must be bytes (an int above 0) or a share of memory (a float in (0, 1]), got {budget!r}")


def checked_cache_device(place: torch.device | str | None, device: torch.device | str | int | None) -> str | None:
    """Return the loader's ``cache_device`` as text, or None. Raise ValueError if it is invalid for a loader on
    ``device``."""
    if place is None:
        return None
    kind = str(place)
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"cache_device must be 'cpu', 'cuda' (the GPU that batches are on) or None, got {place!r}")
    if kind == "cuda" and str(device) == "cpu":
        raise ValueError("cache_device='cuda' needs batches on a GPU, but device is 'cpu'")
    return kind
