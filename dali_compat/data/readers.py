"""Readers of the paths and targets of data sets of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torchvision import get_image_backend
from torchvision.datasets import DatasetFolder, folder
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.datasets.vision import StandardTransform

from ..errors import Unsupported
from ..inspection.objects import is_original
from .folder import DALIImageFolder
from .hugging_face import DALIHuggingFace
from .image_table import DALIImageList
from .sources import Upright


class Reader(NamedTuple):
    """Functions for the data sets of one class. Each takes a data set, and checks it or returns its samples."""

    check: Callable[[Any], None]  # raises Unsupported unless ``dataset[i]`` is a file's transformed image
    # returns a tuple of one list of (path, target), or of a list of paths and a list or tensor of targets
    attributes: Callable[[Any], tuple[Any, ...]]
    source_type: Callable[[Any], type[str]] = lambda dataset: str  # returns str, or Upright to rotate images
    # returns (transform, target_transform), or raises Unsupported
    transforms: Callable[[Any], tuple[Any, Any]] = lambda dataset: (dataset.transform, dataset.target_transform)

    def sample(self, dataset: Any, index: Any) -> tuple[Any, Any]:
        """Return the (path, target before target_transform) of ``dataset[index]``."""
        attributes = self.attributes(dataset)
        if len(attributes) > 1:
            return attributes[0][index], attributes[1][index]
        path, target = attributes[0][index]
        return path, target

    def at(self, dataset: Any, indices: Iterable[int]) -> tuple[list[Any], Any]:
        """Return (paths, targets) of the samples at ``indices``. The targets may be a tensor. Raise TypeError
        unless the samples are in lists or tuples."""
        first, *others = self.attributes(dataset)
        targets = others[0] if others else first
        if type(first) not in (list, tuple) or type(targets) not in (list, tuple, torch.Tensor):
            raise TypeError("samples must be in lists")
        chosen = list(indices)
        entries = [first[i] for i in chosen]
        if others:
            return entries, targets[chosen] if type(targets) is torch.Tensor else [targets[i] for i in chosen]
        if set(map(type, entries)) != {tuple}:
            raise TypeError("samples must be tuples (path, target)")
        return [path for path, _ in entries], [target for _, target in entries]


_readers: dict[type | str, Reader] = {}


def add_reader(kind: type | str, reader: Reader) -> None:
    """Register a reader for a class, or for the class with this module and name. It is not used for subclasses, which
    may behave differently."""
    _readers[kind] = reader


def class_name_of(value: Any) -> str:
    """Return the module and name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def reader_of(dataset: Any) -> Reader | None:
    """Return the reader of a data set, or None. The reader's check() may still raise Unsupported."""
    known = _readers.get(type(dataset)) or _readers.get(class_name_of(dataset))
    if known is not None:
        return known
    if isinstance(dataset, DatasetFolder):
        return _FOLDER
    if isinstance(dataset, DALIHuggingFace):
        return _FILES_OF_ARROW if dataset.paths is not None else None
    return _LIST if isinstance(dataset, DALIImageList) else None


def can_rotate(dataset: Any) -> bool:
    """Return True if the decoder can rotate a data set's images according to their EXIF orientation."""
    return reader_of(dataset) is not None and getattr(dataset, "_objects", None) is None


def known_class_of(dataset: Any) -> type | None:
    """Return the first class with a reader among the bases of a data set's class, or None."""
    return next((kind for kind in type(dataset).__mro__[1:] if kind in _readers), None)


def transforms_of(dataset: Any) -> tuple[Any, Any]:
    """Return (transform, target_transform) as ``__getitem__`` applies them.

    Raise Unsupported if one function transforms the image and the target together.
    """
    reader = reader_of(dataset)
    return (dataset.transform, dataset.target_transform) if reader is None else reader.transforms(dataset)


def joint_transforms(dataset: Any) -> tuple[Any, Any]:
    """Return (transform, target_transform) of a data set that calls ``transforms`` with an image and its target."""
    both = dataset.transforms
    if both is None:
        return None, None
    if type(both) is not StandardTransform:
        name = type(dataset).__name__
        raise Unsupported(
            f"{name} has transforms=, which takes image and target; if it only changes images, pass it as transform="
        )
    return both.transform, both.target_transform


def check_loader(dataset: Any, loader: Any) -> None:
    """Raise Unsupported unless ``loader`` is torchvision's and returns PIL images."""
    if loader in (default_loader, folder.pil_loader) and not is_original(folder.pil_loader):
        raise Unsupported("torchvision.datasets.folder.pil_loader, which opens the files, was replaced")
    if loader not in (default_loader, pil_loader) or not is_original(loader):
        raise Unsupported(f"{type(dataset).__name__} has a custom loader; leave loader= out to use DALI")
    if loader is default_loader and get_image_backend() != "PIL":
        raise Unsupported(f"torchvision's image backend is {get_image_backend()!r}; DALI matches only PIL")


def check_items(dataset: Any, *understood: Callable[..., Any]) -> None:
    """Raise Unsupported if ``__getitem__`` is not in ``understood``, or if the data set has ``__getitems__``."""
    name, items = type(dataset).__name__, type(dataset).__getitem__
    if items not in understood or not is_original(items):
        raise Unsupported(f"{name} overrides __getitem__")
    if hasattr(dataset, "__getitems__"):
        raise Unsupported(f"{name} has __getitems__, which DALI would bypass; remove it to use DALI")


def _check_folder(dataset: Any) -> None:
    check_items(dataset, DatasetFolder.__getitem__, DALIImageFolder.__getitem__)
    check_loader(dataset, dataset.loader)


def _check_list(dataset: Any) -> None:
    check_items(dataset, DALIImageList.__getitem__)
    check_loader(dataset, folder.pil_loader)


_FOLDER = Reader(
    check=_check_folder,
    attributes=lambda dataset: (dataset.samples,),
    source_type=lambda dataset: Upright if getattr(dataset, "orient", False) else str,
)
_LIST = Reader(check=_check_list, attributes=lambda dataset: (dataset.paths, dataset.targets))
_FILES_OF_ARROW = _LIST._replace(
    check=lambda dataset: check_items(dataset, DALIHuggingFace.__getitem__), source_type=lambda dataset: Upright
)
