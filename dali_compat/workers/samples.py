"""Serializes samples for other processes, in one piece of memory.

Left to torch.multiprocessing each tensor travels in a file descriptor of its own, and a batch of 512 pairs of views
needs more of them than a process may usually have; and /dev/shm, where it puts their bytes, is small in containers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torchvision import tv_tensors

from .shared_memory import Place, aligned, private


class Parcel(NamedTuple):
    """Samples on their way.

    Attributes:
        values: uint8: the pickled samples, and behind them the bytes of their tensors and arrays; or where these are in
            shared memory.
        sizes: of each of these pieces, in bytes. The next one begins where it may (shared.aligned).
    """

    values: torch.Tensor | Place
    sizes: list[int]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(aligned, self.sizes))

    def unpack(self, view: Callable[[Place], torch.Tensor] | None = None) -> Any:
        """The samples. They do not share memory that others use again: ``view`` gives what is shared."""
        values = self.values
        if isinstance(values, Place):
            assert view is not None
            values = private(view(values))
        text, *arrays = (array[:size] for array, size in zip(_split(values, self.sizes), self.sizes, strict=True))
        return pickle.loads(text.data, buffers=arrays)


class Pieces:
    """Samples that are about to become a Parcel.

    Raises:
        Exception: as pickle does where something cannot be pickled.
    """

    def __init__(self, samples: Any):
        buffers: list[pickle.PickleBuffer] = []
        text = dumps(samples, buffers.append)
        self._pieces = [memoryview(text), *(buffer.raw() for buffer in buffers)]
        self._sizes = [piece.nbytes for piece in self._pieces]

    @property
    def size(self) -> int:
        """Bytes of the parcel."""
        return sum(map(aligned, self._sizes))

    def parcel(self) -> Parcel:
        return self.parcel_in(torch.empty(self.size, dtype=torch.uint8, device="cpu"))

    def parcel_in(self, memory: torch.Tensor, place: Place | None = None) -> Parcel:
        """``memory``: uint8, and large enough; the ``place``'s, if it is shared."""
        for array, piece in zip(_split(memory, self._sizes), self._pieces, strict=True):
            array[: piece.nbytes] = piece
        return Parcel(memory if place is None else place, self._sizes)


def parcel(samples: Any) -> Parcel:
    """
    Raises:
        Exception: as pickle does where something cannot be pickled.
    """
    return Pieces(samples).parcel()


def dumps(what: Any, buffer_callback: Callable | None = None) -> bytes:
    """Pickles as pickle.dumps does, but tensors are no more than their bytes."""
    text = io.BytesIO()
    _Pickler(text, 5, buffer_callback=buffer_callback).dump(what)
    return text.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj):
        if type(obj) not in (torch.Tensor, tv_tensors.Image) or not is_plain(obj):
            return NotImplemented
        values = obj.as_subclass(torch.Tensor).contiguous()  # of one element or none it may keep any strides
        values = values.as_strided((values.numel(),), (1,)).view(torch.uint8).numpy()
        return _tensor, (values, obj.dtype, tuple(obj.shape), type(obj))


def _tensor(values: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], kind: type) -> torch.Tensor:
    return torch.from_numpy(values).view(dtype).view(shape).as_subclass(kind)


def _split(values: torch.Tensor, sizes: list[int]) -> list[np.ndarray]:
    ends = np.cumsum([aligned(size) for size in sizes], dtype=int)
    return np.split(values.numpy()[: ends[-1]], ends[:-1])


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether its bytes, dtype and shape are all there is to it."""
    odd = tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not odd and not vars(tensor)
