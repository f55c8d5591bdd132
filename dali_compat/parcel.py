"""What travels between processes: any samples, with all their tensors in one piece of shared memory.

Left to torch.multiprocessing each tensor travels in a file descriptor of its own, and a batch of 512 pairs of views
needs more of them than a process may usually have.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NamedTuple

import torch
from torchvision import tv_tensors

from .shared import aligned

_CLASSES = {"tensor": torch.Tensor, "Image": tv_tensors.Image}
_NAMES = {kind: name for name, kind in _CLASSES.items()}


class Parcel(NamedTuple):
    """Samples on their way.

    Attributes:
        text: the pickled samples; in the place of each tensor (class, begin in ``values``, dtype, shape).
        values: (sum of sizes,) uint8, the bytes of all tensors.
    """

    text: bytes
    values: torch.Tensor

    def unpack(self) -> Any:
        return _Unpickler(io.BytesIO(self.text), self.values).load()


def parcel(samples: Any) -> Parcel:
    """
    Raises:
        Exception: as pickle does where something cannot be pickled.
    """
    text = io.BytesIO()
    pickler = _Pickler(text)
    pickler.dump(samples)
    return Parcel(text.getvalue(), torch.cat(pickler.parts) if pickler.parts else torch.empty(0, dtype=torch.uint8))


class _Pickler(pickle.Pickler):
    def __init__(self, file):
        super().__init__(file)
        self.parts: list[torch.Tensor] = []
        self._end = 0
        self._known: dict[int, tuple] = {}  # by id(): one object twice stays one object
        self._alive: list[torch.Tensor] = []  # so that no other object gets the id

    def persistent_id(self, obj):
        if type(obj) not in _NAMES or not is_plain(obj):
            return None
        if id(obj) not in self._known:
            self._known[id(obj)] = _NAMES[type(obj)], self._end, obj.dtype, tuple(obj.shape)
            self._alive.append(obj)
            part = obj.as_subclass(torch.Tensor).contiguous().view(-1).view(torch.uint8)
            self.parts += [part, part.new_zeros(aligned(len(part)) - len(part))]
            self._end += len(part) + len(self.parts[-1])
        return self._known[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, values: torch.Tensor):
        super().__init__(file)
        self._values = values
        self._known: dict[tuple, torch.Tensor] = {}

    def persistent_load(self, pid):
        if pid not in self._known:
            name, begin, dtype, shape = pid
            count = dtype.itemsize * torch.Size(shape).numel()
            values = self._values[begin : begin + count].view(dtype).view(shape)
            self._known[pid] = values.as_subclass(_CLASSES[name])
        return self._known[pid]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes, dtype and shape are all there is to it."""
    odd = tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not odd and not vars(tensor)
