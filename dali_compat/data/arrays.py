"""In-memory data sets of uint8 images: DALIArrayDataset, and torchvision's CIFAR10, MNIST and others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as data
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import default_collate
from torchvision.datasets import CIFAR10, MNIST, QMNIST, STL10, SVHN, USPS, VisionDataset

from ..errors import Unsupported
from ..plan import ImageSpec
from ..runtime.dataset_base import DatasetBase
from .readers import check_items


class DALIArrayDataset(VisionDataset, DatasetBase, data.Dataset[tuple[Any, Any]]):  # type: ignore[type-arg]  # for new torchvisions
    """Images in memory and their targets, as in torchvision.datasets.CIFAR10.

    ``dataset[i]`` is ``(transform(image), target_transform(target))`` with a PIL image. The data set works in any
    loader. A dali_compat.DataLoader keeps the images on its device and transforms them there.

    Args:
        images: uint8 numpy array or CPU tensor with values from 0 to 255, of shape (N, H, W, 3), (N, H, W, 1) or (N, H,
            W).
        targets: a list, array or tensor of N targets.
        transform: takes a PIL image ("RGB", or "L" if there is one channel).
        target_transform: takes a target.

    Attributes:
        data, targets: the arguments ``images`` and ``targets``. To change pixels, assign a new array, because in-place
            changes may go unnoticed.

    Raises:
        TypeError: the images are neither an array nor a tensor.
        ValueError: the images have an unsupported dtype or shape, or there are more or fewer targets than images.

    Examples:
        >>> images = np.zeros((10, 40, 40, 3), np.uint8)
        >>> dataset = DALIArrayDataset(images, list(range(10)), transform)
        >>> images, targets = next(iter(DataLoader(dataset, batch_size=4, device="cpu")))
        >>> images.shape, targets
        (torch.Size([4, 3, 32, 32]), tensor([0, 1, 2, 3]))
    """

    def __init__(
        self,
        images: NDArray[Any] | torch.Tensor,
        targets: Sequence[Any] | NDArray[Any] | torch.Tensor,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(transform=transform, target_transform=target_transform)
        if not isinstance(images, (np.ndarray, torch.Tensor)):
            raise TypeError(f"images must be a numpy array or a tensor, got {type(images).__name__}")
        self.data, self.targets = images, targets
        try:
            images_of(self)
        except Unsupported as error:
            raise ValueError(str(error)) from None

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self._warn_if_torch_reads()
        image, target = self.data[index], self.targets[index]
        image = np.asarray(image)
        image = Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image)
        return self._transformed(image, target)

    def __len__(self) -> int:
        return len(self.data)


class _Layout(NamedTuple):
    """Storage of images and targets in one class of data sets."""

    kind: Any  # required type of ``data``
    shapes: tuple[str, ...]  # allowed shapes of ``data``; a digit is a number of channels
    targets: str = "targets"  # name of the attribute with the targets
    as_int: bool = True  # __getitem__ converts each target to int


# CIFAR100 is read like CIFAR10, and FashionMNIST, KMNIST and EMNIST like MNIST.
_LAYOUTS: dict[Any, _Layout] = {
    CIFAR10.__getitem__: _Layout(np.ndarray, ("NHW3", "NHW"), as_int=False),
    MNIST.__getitem__: _Layout(torch.Tensor, ("NHW",)),
    QMNIST.__getitem__: _Layout(torch.Tensor, ("NHW",), as_int=False),
    SVHN.__getitem__: _Layout(np.ndarray, ("N3HW",), "labels"),
    STL10.__getitem__: _Layout(np.ndarray, ("N3HW",), "labels"),
    USPS.__getitem__: _Layout(np.ndarray, ("NHW",)),
    DALIArrayDataset.__getitem__: _Layout((np.ndarray, torch.Tensor), ("NHW3", "NHW1", "NHW"), as_int=False),
}
_CLASSES = (CIFAR10, MNIST, SVHN, STL10, USPS, DALIArrayDataset)


def holds_arrays(dataset: data.Dataset[Any]) -> bool:
    """Return True for a DALIArrayDataset or a torchvision data set that holds its images in memory."""
    return isinstance(dataset, _CLASSES)


def images_of(dataset: Any) -> torch.Tensor:
    """Return all images as a uint8 tensor of shape (N, C, H, W), without a copy if possible.

    Raise Unsupported if the class overrides ``__getitem__``, if its images are unsupported, or if there are more or
    fewer targets than images.
    """
    name = type(dataset).__name__
    if not holds_arrays(dataset):
        raise Unsupported(f"{name} does not hold its images in memory, unlike another data set of the ConcatDataset")
    check_items(dataset, *_LAYOUTS)
    layout = _LAYOUTS[type(dataset).__getitem__]
    images, targets = dataset.data, getattr(dataset, layout.targets)
    if not isinstance(images, layout.kind) or str(images.dtype).removeprefix("torch.") != "uint8":
        raise Unsupported(
            f"{name}.data has type {type(images).__name__} and dtype {getattr(images, 'dtype', 'unknown')}; "
            f"expected type {getattr(layout.kind, '__name__', 'ndarray or Tensor')} and dtype uint8"
        )
    if isinstance(images, torch.Tensor) and images.device.type != "cpu":
        raise Unsupported(f"{name}.data is on {images.device}, where PIL cannot read it; move it to the CPU")
    nchw = _as_nchw(images if isinstance(images, torch.Tensor) else _as_tensor(images), layout.shapes)
    if nchw is None:
        raise Unsupported(f"{name}.data has the shape {tuple(images.shape)}, not {' or '.join(layout.shapes)}")
    if targets is None or len(targets) != len(images):
        count = "no" if targets is None else len(targets)
        raise Unsupported(f"{name} has {len(images)} images, but {count} targets; pass one target per image")
    return nchw


def _as_nchw(images: torch.Tensor, shapes: tuple[str, ...]) -> torch.Tensor | None:
    """Return images permuted to (N, C, H, W), or None if their shape is not one of ``shapes``."""
    if images.ndim == 3 and "NHW" in shapes:
        return images[:, None]
    if images.ndim == 4 and f"NHW{images.shape[3]}" in shapes:
        return images.permute(0, 3, 1, 2)
    if images.ndim == 4 and f"N{images.shape[1]}HW" in shapes:
        return images
    return None


def _as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the array's memory. Negative strides require a copy."""
    if any(stride < 0 for stride in array.strides):
        array = array.copy()  # np.ascontiguousarray does not copy an array of a single row
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about read-only arrays; the tensor is not written to
        return torch.from_numpy(np.asarray(array))


def spec_of(images: torch.Tensor) -> ImageSpec:
    """Return the ImageSpec of PIL images made from ``images`` (N, C, H, W)."""
    return ImageSpec("pil", channels=images.shape[1], size=(images.shape[2], images.shape[3]))


# ---- targets


def raw_targets(dataset: Any) -> Any:
    return getattr(dataset, _LAYOUTS[type(dataset).__getitem__].targets)


def target(dataset: Any, index: Any) -> Any:
    """Return the target of ``dataset[index]`` before target_transform. An invalid index raises the same error
    as ``dataset[index]``."""
    layout = _LAYOUTS[type(dataset).__getitem__]
    _, value = dataset.data[index], getattr(dataset, layout.targets)[index]
    if isinstance(dataset, QMNIST):
        return int(value[0]) if dataset.compat else value
    return int(value) if layout.as_int else value


def target_table(dataset: Any) -> torch.Tensor | None:
    """Return the targets as a tensor with one row per target. Return None if default_collate's result might differ in
    values or dtype."""
    targets = raw_targets(dataset)
    if isinstance(targets, (list, tuple)):
        kinds = set(map(type, targets))
        if len(kinds) != 1 or not issubclass(kinds.pop(), (int, np.integer)):
            return None
    if isinstance(targets, np.ma.MaskedArray) or not len(targets):
        return None
    try:
        with torch.device("cpu"):  # regardless of the default device
            table = _as_tensor(targets) if isinstance(targets, np.ndarray) else targets
            table = table if isinstance(table, torch.Tensor) else torch.as_tensor(table)
            first = default_collate([target(dataset, 0)])
    except (TypeError, ValueError, RuntimeError):
        return None
    if isinstance(dataset, QMNIST) and dataset.compat:
        table = table[:, 0]
    if _LAYOUTS[type(dataset).__getitem__].as_int and not table.is_floating_point():
        table = table.to(torch.int64)
    same = isinstance(first, torch.Tensor) and (first.dtype, first.shape) == (table.dtype, table[:1].shape)
    return table if same and torch.equal(first, table[:1]) else None
