"""Decoded images, kept within a budget, so that later epochs need not decode them."""

from __future__ import annotations

from typing import Any

import torch

from ..data.sources import PIXELS, PIXELS_ON_GPU, Record, Source, is_record
from ..runtime.device import free_memory
from ..runtime.forks import new_lock
from ..runtime.messages import in_bytes

_SHARE = 0.5  # of a GPU's free memory, where nobody asked for it: training needs the rest


class DecodedCache:
    """Images by their source. Whatever is in, stays in.

    A GPU's loader keeps them in the GPU's memory. From the host's, what a crop takes of an image is cut out by the CPU,
    and only that goes over: an H100 decodes JPEG faster (benchmarks/results).

    Args:
        budget: bytes (an int), or a share of the memory that is free (a float).
        device: of the loader. With ``exact`` it decides what an image's pixels are.
        exact: of the loader.
        place: "cpu" or "cuda", where images are kept. None is where the loader's device is, but for at most half of the
            memory that is free on a GPU.

    Attributes:
        settings: the arguments.
        bytes: of the images that are kept.
        full: an image had no room; nothing is added any more.
        form: of what get() gives (data/sources.py).
    """

    def __init__(self, budget: int | float, device: torch.device, exact: bool, place: str | None = None):
        self.settings = budget, device, exact, place
        self._images: dict[Source, Any] = {}
        self.bytes = 0
        self._lock = new_lock()  # iterators of several threads share it
        self.full = False
        self._place = device if place is None or place == device.type else torch.device("cpu")
        self.form = PIXELS if self._place.type == "cpu" else PIXELS_ON_GPU
        self._most: int | None = None
        if self._place.type == "cpu":
            self._settle()

    def _settle(self) -> None:
        """Settles how many bytes it may have; for a GPU not before the first images are there: CUDA may not have
        started."""
        budget, _, _, place = self.settings
        free = free_memory(self._place)
        self._most = budget if isinstance(budget, int) else int(budget * free)
        if place is None and self._place.type == "cuda":
            self._most = min(self._most, int(_SHARE * free))

    def get(self, source: Source):
        """(H, W, 3) uint8, for a pipeline of that form, or None where it is not here."""
        return self._images.get(source)

    def add(self, sources: list[Source], images) -> None:
        """Copies of the images that are new and fit: uint8 tensors (H, W, 3) on any device."""
        with self._lock:
            if self.full:
                return
            if self._most is None:
                self._place = images[0].device  # with its index
                self._settle()
            new: dict[Source, torch.Tensor] = {}
            size = self.bytes
            for source, image in zip(sources, images, strict=True):
                if source in self._images or source in new:
                    continue
                if size + image.numel() > self._most:
                    self.full = True
                    break
                size += image.numel()
                new[Record(source.store, source.index) if is_record(source) else source] = image
            try:
                self._images |= zip(new, _copies(list(new.values()), self._place), strict=True)
                self.bytes = size
            except (MemoryError, torch.cuda.OutOfMemoryError):  # others have taken what was free
                self.full = True

    def clear(self) -> None:
        """Free the images; no others come."""
        with self._lock:
            self._images, self.bytes, self.full = {}, 0, True

    def __str__(self) -> str:
        rest = "; it is full: the other images are decoded each time" if self.full else ""
        budget = self.settings[0]
        most = in_bytes(budget) if isinstance(budget, int) else f"{budget:.0%} of what is free"
        most = most if self._most is None else in_bytes(self._most)
        return (
            f"cache of decoded images in {'host memory' if self._place.type == 'cpu' else 'GPU memory'}: "
            f"{len(self._images):,} images, {in_bytes(self.bytes)} of {most}{rest}"
        )


def _copies(images: list[torch.Tensor], place: torch.device) -> list:
    """On the host NumPy arrays, on a GPU DALI's tensors, which its pipelines take without a word of Python about
    each."""
    if not images or not images[0].is_cuda:
        return [image.numpy().copy() for image in images]  # by NumPy: torch's threads would get in the way of DALI's
    flat = torch.cat([image.reshape(-1) for image in images]).to(place)  # one transfer for all
    parts = [
        part.view(image.shape)
        for part, image in zip(flat.split([image.numel() for image in images]), images, strict=True)
    ]
    if place.type == "cpu":
        return [part.numpy() for part in parts]
    from ..engine.dali.pipeline import without_copy

    torch.cuda.current_stream(place).synchronize()  # DALI reads on streams of its own
    return without_copy(parts)


def checked_budget(budget: int | float | None) -> int | float | None:
    """
    Raises:
        ValueError: it is no number of bytes and no share.
    """
    if budget is None or (type(budget) is int and budget > 0) or (type(budget) is float and 0 < budget <= 1):
        return budget
    raise ValueError(f"cache must be bytes (an int above 0) or a share of memory (a float in (0, 1]), got {budget!r}")


def checked_place(place: torch.device | str | None, device: torch.device | str | int | None) -> str | None:
    """
    Raises:
        ValueError: images cannot be kept there by a loader of this device.
    """
    if place is None:
        return None
    kind = str(place)
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"cache_device must be 'cpu', 'cuda' (the GPU that batches are on) or None, got {place!r}")
    if kind == "cuda" and str(device) == "cpu":
        raise ValueError("cache_device='cuda' needs batches on a GPU, but device is 'cpu'")
    return kind
