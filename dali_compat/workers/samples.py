"""Samples packed into one block of memory to travel between processes, and their conversion to torchvision's classes.

torch.multiprocessing uses a file descriptor for each tensor, and a batch of 512 pairs of views exceeds the usual limit.
It also stores the bytes in /dev/shm, which is small in containers.
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
"""A function that returns the bytes of a shared place as uint8."""


class Parcel(NamedTuple):
    """Packed samples.

    Attributes:
        values: the pickled samples, followed by the bytes of their tensors and arrays, as uint8; or their place in
            shared memory.
        sizes: sizes of these pieces in bytes. The start of each is aligned (shared_memory.aligned).
    """

    values: torch.Tensor | Place
    sizes: list[int]

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(map(aligned, self.sizes))

    def unpack(self, view: View | None = None) -> Any:
        """Return the samples. ``view`` returns the bytes in shared memory, which are copied."""
        pieces = _split(_own(self.values, view), self.sizes)
        text, *arrays = (array[:size] for array, size in zip(pieces, self.sizes, strict=True))
        return pickle.loads(text.data, buffers=arrays)


class Pieces:
    """Samples to be packed as a Parcel.

    Raises:
        Exception: a sample cannot be pickled; the error is pickle's.
    """

    def __init__(self, samples: Any):
        buffers: list[pickle.PickleBuffer] = []
        text = dumps(samples, buffers.append)
        self._pieces = [memoryview(text), *(buffer.raw() for buffer in buffers)]
        self._sizes = [piece.nbytes for piece in self._pieces]

    @property
    def size(self) -> int:
        """Number of bytes of the parcel."""
        return sum(map(aligned, self._sizes))

    def parcel(self, view: View | None = None, place: Place | None = None) -> Parcel:
        """Return the parcel, in new memory or in a large enough shared place, whose bytes ``view`` returns."""
        memory = _memory(self.size, view, place)
        for array, piece in zip(_split(memory, self._sizes), self._pieces, strict=True):
            array[: piece.nbytes] = piece
        return Parcel(memory if place is None else place, self._sizes)


def dumps(what: Any, buffer_callback: Callable | None = None) -> bytes:
    """Pickle like pickle.dumps, but reduce tensors to their bytes."""
    text = io.BytesIO()
    _Pickler(text, 5, buffer_callback=buffer_callback).dump(what)
    return text.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj):
        if type(obj) not in (torch.Tensor, tv_tensors.Image) or not is_plain(obj):
            return NotImplemented
        values = obj.as_subclass(torch.Tensor).contiguous()  # may keep odd strides if it has at most one element
        values = values.as_strided((values.numel(),), (1,)).view(torch.uint8).numpy()
        return _tensor, (values, obj.dtype, tuple(obj.shape), type(obj))


def _tensor(values: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], kind: type) -> torch.Tensor:
    return torch.from_numpy(values).view(dtype).view(shape).as_subclass(kind)


def _split(values: torch.Tensor, sizes: list[int]) -> list[np.ndarray]:
    ends = np.cumsum([aligned(size) for size in sizes], dtype=int)
    return np.split(values.numpy()[: ends[-1]], ends[:-1])


def is_plain(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is fully described by its bytes, dtype and shape."""
    odd = tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not odd and not vars(tensor)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Packed(NamedTuple):
    """Images of one kind and dtype, or other tensors of one dtype and shape.

    Attributes:
        values: (sum of sizes,) concatenated pixels, (H, W, C) of a PIL image or (C, H, W) of a tensor; or their place
            in shared memory.
        dtype: dtype of the values.
        shapes: shape of each image.
        kind: as in ImageSpec; "" for tensors that are not images.
        infos: the ``info`` of each PIL image; empty if there are none.
    """

    values: torch.Tensor | Place
    dtype: torch.dtype
    shapes: list[tuple[int, ...]]
    kind: str
    infos: Sequence[Any] = ()

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(map(math.prod, self.shapes)) * self.dtype.itemsize

    @property
    def spec(self) -> ImageSpec | None:
        """The ImageSpec of the images, with a size only if all sizes are equal; None if they are not images."""
        if not self.kind:
            return None
        channels = {shape[-1 if self.kind == "pil" else -3] for shape in self.shapes}
        sizes = {shape[-3:-1] if self.kind == "pil" else shape[-2:] for shape in self.shapes}
        height, width = sizes.pop()
        size = None if sizes else (height, width)
        return ImageSpec(self.kind, self.dtype, channels=channels.pop(), size=size)

    def unpack(self, view: View | None = None) -> list:
        """Return the samples, as Parcel.unpack() does."""
        made = split(_own(self.values, view).view(self.dtype), self.shapes)
        return as_samples(made, self.kind, self.infos) if self.kind else made


def split(values: torch.Tensor, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    """Return the images of a Packed."""
    return [part.view(shape) for part, shape in zip(values.split(list(map(math.prod, shapes))), shapes, strict=True)]


def pack(images, kind: str, infos: Sequence[Any] = (), view: View | None = None, place: Place | None = None) -> Packed:
    """Pack a tensor (N, C, H, W) or a list of (C, H, W) from any device. ``view``, ``place``: as in Pieces.parcel()."""
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
    """Return the values, copied if they are in shared memory."""
    if not isinstance(values, Place):
        return values
    assert view is not None
    return private(view(values))


def copy(to: torch.Tensor, given: torch.Tensor) -> None:
    """Copy a tensor; asynchronously if it goes from page-locked memory to a GPU.

    CPU tensors are copied by NumPy, because torch's threads wait for each other while DALI's keep the cores busy.
    """
    if to.is_cuda or given.is_cuda:
        to.copy_(given, non_blocking=to.is_cuda)
    else:
        np.copyto(_array(to), _array(given))


def _array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's bits as an array, since NumPy lacks some dtypes."""
    return tensor.view(_BITS.get(tensor.itemsize, tensor.dtype)).numpy()


def as_samples(images: Sequence[torch.Tensor], kind: str, infos: Sequence[Any] = ()) -> list:
    """Return as_sample() of each image. ``infos`` may be empty."""
    return [as_sample(image, kind, info) for image, info in zip_longest(images, infos)]


def as_sample(image: torch.Tensor, kind: str, info: Any = None):
    """Return an image as torchvision's class. ``image`` is (H, W, C) for a PIL image, (C, H, W) otherwise."""
    if kind == "pil":
        made = Image.fromarray(image.squeeze(-1).numpy() if image.shape[-1] == 1 else image.numpy())
        if info is not None:
            made.info = info.copy()
        return made
    if kind == "array":
        return image.cpu().numpy()
    return tv_tensors.Image(image) if kind == "Image" else image


def as_tensor(result) -> torch.Tensor:
    """Return a PIL image or a tensor as a plain tensor (C, H, W)."""
    if isinstance(result, Image.Image):
        pixels = torch.from_numpy(np.array(result))
        return pixels[None] if pixels.ndim == 2 else pixels.movedim(-1, 0)
    return result.as_subclass(torch.Tensor)


def infos_of(results: Sequence[Any]) -> list[Any]:
    """Return the ``info`` of PIL images without reading its entries; [] if all are empty."""
    infos = [getattr(result, "info", {}) for result in results]
    return infos if any(type(info) is not dict or info for info in infos) else []


def spec_of(result: Any) -> ImageSpec | None:
    """Return the spec of a function's result; None if it is not an image, such as a tuple of views or a dict."""
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
    """Return the kind of a Packed of these results; None if they cannot be packed together."""
    specs = {spec and spec.but(size=None) for spec in map(spec_of, results)}
    if len(specs) != 1:
        return None
    spec = specs.pop()
    if spec is not None:
        return spec.kind
    tensors = all(type(result) is torch.Tensor and is_plain(result) for result in results)
    return "" if tensors and len({(result.shape, result.dtype) for result in results}) == 1 else None
