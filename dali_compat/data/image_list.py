"""DALIImageList."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.utils.data as data
from torchvision.datasets import VisionDataset, folder

from ..remote.objects import FolderAndSize, Objects
from ..remote.urls import are_urls, is_url, without_scheme
from ..runtime.dataset_base import OurDataset
from .sources import object_image

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

NO_TARGET = -1  # as torchvision's STL10 has it for images without a label


class DALIImageList(VisionDataset, OurDataset, data.Dataset[tuple[Any, Any]]):  # type: ignore[type-arg]  # of new torchvisions
    """Image files and their targets, decoded and transformed by DALI when a dali_compat.DataLoader iterates it.

    ``dataset[i]`` is ``(transform(image), target_transform(target))`` of a PIL image in RGB, as
    torchvision.datasets.ImageFolder gives it, so it works in any loader.

    Args:
        paths: of the files: str, bytes or PathLike; or URLs of objects, such as ``s3://bucket/1.jpg`` or
            ``https://host/1.jpg`` (docs/object-storage.md).
        targets: of each file: numbers, vectors, tensors, or whatever else default_collate or your collate_fn takes. A
            numpy array of whole numbers becomes a list of ints, any other array of numbers a tensor of its dtype. None:
            -1 for each.
        transform: takes a PIL image, usually a torchvision Compose.
        target_transform: takes a target.
        root: folder that relative paths begin at, or its URL.
        storage_options: of object storage: arguments of obstore.store.from_url, such as ``region`` and ``endpoint``.
        disk_cache: (folder, bytes): keeps fetched objects on a local disk (docs/object-storage.md).

    Attributes:
        paths: list of str.
        targets: a list, or a tensor whose rows are the targets.
        samples: list of (path, target), made of these two. Assign new ``paths`` and ``targets`` to change them.

    Raises:
        TypeError: paths are no paths.
        ValueError: there are more paths than targets, or fewer; some are URLs, and others are not.
        ImportError: they are URLs, and obstore is not installed: the extra ``remote``.
        OSError: in ``dataset[i]``, Pillow's, for a file that cannot be read; for an object an ImageReadError.

    Examples:
        >>> dataset = DALIImageList(["cat/0.jpg", "dog/0.jpg"], [0.25, 0.75], transform, root="train")
        >>> images, targets = next(iter(DataLoader(dataset, batch_size=2, device="cpu")))
        >>> targets
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """

    _objects: Objects | None = None

    def __init__(
        self,
        paths: Iterable[AnyPath],
        targets: Any = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        disk_cache: FolderAndSize | None = None,
    ) -> None:
        super().__init__(root, transform=transform, target_transform=target_transform)  # type: ignore[arg-type]  # None is its default
        self.paths = joined(paths, root)
        self.targets = [NO_TARGET] * len(self.paths) if targets is None else as_targets(targets)
        if are_urls(self.paths):
            self._objects = Objects(storage_options, disk_cache)
        if len(self.targets) != len(self.paths):
            raise ValueError(f"{len(self.paths)} paths and {len(self.targets)} targets")

    @property
    def samples(self) -> list[tuple[str, Any]]:
        """(path, target before target_transform) of each."""
        return list(zip(self.paths, self.targets, strict=True))

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self._warn_if_torch_reads()
        path = self.paths[index]
        image = folder.pil_loader(path) if self._objects is None else object_image(self._objects, path)
        return self._transformed(image, self.targets[index])

    def __len__(self) -> int:
        return len(self.paths)


def joined(paths: Iterable[AnyPath], root: str | os.PathLike[str] | None) -> list[str]:
    """Paths as text, behind a folder where they are relative.

    Raises:
        TypeError: one of them is no path.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"paths must be a sequence of paths, got one: {paths!r}")
    try:
        texts = [without_scheme(os.fsdecode(path)) for path in paths]
    except TypeError as error:
        raise TypeError(f"paths must be str, bytes or PathLike: {error}") from None
    folder = None if root is None else os.path.expanduser(without_scheme(os.fspath(root)))
    return texts if folder is None else [text if is_url(text) else os.path.join(folder, text) for text in texts]


def as_targets(targets: Any) -> Any:
    """A list, or a tensor of rows on the CPU."""
    if isinstance(targets, torch.Tensor):
        return targets.cpu()
    if hasattr(targets, "to_numpy"):  # a column of pandas
        targets = targets.to_numpy()
    if isinstance(targets, np.ndarray):
        if np.ma.is_masked(targets) or targets.dtype.kind in ("OSUiub" if targets.ndim == 1 else "OSU"):
            return targets.tolist()
        return torch.as_tensor(np.array(targets, targets.dtype.newbyteorder("=")), device="cpu")  # as torch takes it
    return [target.item() if isinstance(target, np.generic) else target for target in targets]
