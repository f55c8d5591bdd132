"""Samples on their way between processes, in one piece of memory, and what images are to torchvision.

Left to torch.multiprocessing each tensor travels in a file descriptor of its own, and a batch of 512 pairs of views
needs more of them than a process may usually have; and /dev/shm, where it puts their bytes, is small in containers.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from ..plan import ImageSpec
from .shared_memory import Place, aligned, private

View = Callable[[Place], torch.Tensor]
"""Gives the bytes of a shared place, as uint8."""


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

    def unpack(self, view: View | None = None) -> Any:
        """The samples. They do not share memory that others use again: ``view`` gives what is shared."""
        pieces = _split(_own(self.values, view), self.sizes)
        text, *arrays = (array[:size] for array, size in zip(pieces, self.sizes, strict=True))
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

    def parcel(self, view: View | None = None, place: Place | None = None) -> Parcel:
        """In memory of its own, or in a shared place that is large enough, of which ``view`` gives the bytes."""
        memory = _memory(self.size, view, place)
        for array, piece in zip(_split(memory, self._sizes), self._pieces, strict=True):
            array[: piece.nbytes] = piece
        return Parcel(memory if place is None else place, self._sizes)


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


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Packed(NamedTuple):
    """Images of one kind and dtype, or tensors that are no images, of one dtype and shape.

    Attributes:
        values: (sum of sizes,) of all pixels, or where these are in shared memory; a PIL image's as (H, W, C), a
            tensor's as (C, H, W).
        dtype: of the values.
        shapes: of each image.
        kind: as in ImageSpec; "" where they are no images.
        infos: of PIL images, the ``info`` of each; empty where they have none.
    """

    values: torch.Tensor | Place
    dtype: torch.dtype
    shapes: list[tuple[int, ...]]
    kind: str
    infos: Sequence[Any] = ()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(math.prod, self.shapes)) * self.dtype.itemsize

    @property
    def spec(self) -> ImageSpec | None:
        """The ImageSpec of the images, with their size if it is one; None if they are no images."""
        if not self.kind:
            return None
        channels = {shape[-1 if self.kind == "pil" else -3] for shape in self.shapes}
        sizes = {shape[-3:-1] if self.kind == "pil" else shape[-2:] for shape in self.shapes}
        height, width = sizes.pop()
        size = None if sizes else (height, width)
        return ImageSpec(self.kind, self.dtype, channels=channels.pop(), size=size)

    def unpack(self, view: View | None = None) -> list:
        """The samples, as Parcel's."""
        made = split(_own(self.values, view).view(self.dtype), self.shapes)
        return as_samples(made, self.kind, self.infos) if self.kind else made


def split(values: torch.Tensor, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    """The images of a Packed."""
    return [part.view(shape) for part, shape in zip(values.split(list(map(math.prod, shapes))), shapes, strict=True)]


def pack(images, kind: str, infos: Sequence[Any] = (), view: View | None = None, place: Place | None = None) -> Packed:
    """``images``: tensor (N, C, H, W) or a list of (C, H, W), on any device; ``view``, ``place`` as Pieces.parcel()."""
    if kind == "pil":
        images = images.movedim(-3, -1) if isinstance(images, torch.Tensor) else [i.movedim(-3, -1) for i in images]
    shapes, dtype = [tuple(image.shape) for image in images], images[0].dtype
    memory = _memory(sum(map(math.prod, shapes)) * dtype.itemsize, view, place).view(dtype)
    if isinstance(images, torch.Tensor):
        copy(memory.view(images.shape), images)
    elif images[0].is_cuda:
        memory.copy_(torch.cat([image.reshape(-1) for image in images]))
    else:
        for one, image in zip(split(memory, shapes), images, strict=True):
            copy(one, image)
    return Packed(memory if place is None else place, dtype, shapes, kind, infos)


def _memory(size: int, view: View | None, place: Place | None) -> torch.Tensor:
    if place is None:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    assert view is not None
    return view(place)


def _own(values: torch.Tensor | Place, view: View | None) -> torch.Tensor:
    """The values; where they are in shared memory, a copy."""
    if not isinstance(values, Place):
        return values
    assert view is not None
    return private(view(values))


def copy(to: torch.Tensor, given: torch.Tensor) -> None:
    """Between devices without waiting, if the host's memory is page-locked and it is a GPU that gets it.

    On the CPU through NumPy: torch's threads wait for each other where DALI's keep the cores busy.
    """
    if to.is_cuda or given.is_cuda:
        to.copy_(given, non_blocking=to.is_cuda)
    else:
        np.copyto(_array(to), _array(given))


def _array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a tensor's bits: NumPy does not have every dtype."""
    return tensor.view(_BITS.get(tensor.itemsize, tensor.dtype)).numpy()


def as_samples(images: Sequence[torch.Tensor], kind: str, infos: Sequence[Any] = ()) -> list:
    """as_sample() of each; ``infos`` are empty, or those of the images."""
    return [as_sample(image, kind, info) for image, info in zip_longest(images, infos)]


def as_sample(image: torch.Tensor, kind: str, info: Any = None):
    """Returns what torchvision would hold: of a PIL image ``image`` is (H, W, C), of others (C, H, W)."""
    if kind == "pil":
        made = Image.fromarray(image.squeeze(-1).numpy() if image.shape[-1] == 1 else image.numpy())
        if info is not None:
            made.info = info.copy()
        return made
    if kind == "array":
        return image.cpu().numpy()
    return tv_tensors.Image(image) if kind == "Image" else image


def as_tensor(result) -> torch.Tensor:
    """(C, H, W) of a PIL image or a tensor."""
    if isinstance(result, Image.Image):
        pixels = torch.from_numpy(np.array(result))
        return pixels[None] if pixels.ndim == 2 else pixels.movedim(-1, 0)
    return result.as_subclass(torch.Tensor)


def infos_of(results: Sequence[Any]) -> list[Any]:
    """The ``info`` of PIL images, where any of them may have some; nothing of it is read."""
    infos = [getattr(result, "info", {}) for result in results]
    return infos if any(type(info) is not dict or info for info in infos) else []


def spec_of(result: Any) -> ImageSpec | None:
    """The image that a function has given, or None where it is something else (a tuple of views, a dict)."""
    if isinstance(result, Image.Image):
        channels = {"RGB": 3, "L": 1}.get(result.mode)
        return ImageSpec(channels=channels, size=result.size[::-1]) if channels else None
    if type(result) not in (torch.Tensor, tv_tensors.Image) or result.ndim != 3 or result.shape[0] not in (1, 3):
        return None
    if not is_plain(result):
        return None
    kind = "Image" if isinstance(result, tv_tensors.Image) else "tensor"
    return ImageSpec(kind, result.dtype, channels=result.shape[0], size=tuple(result.shape[1:]))


def kind_of(results: list) -> str | None:
    """The kind of a Packed of them; None where they are not alike."""
    specs = {spec and spec.but(size=None) for spec in map(spec_of, results)}
    if len(specs) != 1:
        return None
    spec = specs.pop()
    if spec is not None:
        return spec.kind
    tensors = all(type(result) is torch.Tensor and is_plain(result) for result in results)
    return "" if tensors and len({(result.shape, result.dtype) for result in results}) == 1 else None
