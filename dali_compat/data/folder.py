"""DALIImageFolder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.utils.data as data
from torchvision.datasets import ImageFolder, VisionDataset
from torchvision.datasets.folder import IMG_EXTENSIONS, default_loader

from ..archives.folder_index import cached_samples, index_file
from ..ours import OurDataset


class DALIImageFolder(ImageFolder, OurDataset, data.Dataset[tuple[Any, ...]]):
    """torchvision.datasets.ImageFolder, decoded and transformed by DALI when a dali_compat.DataLoader iterates it.

    ``dataset[i]`` is torchvision's own ``(transform(image), target_transform(class index))`` of a PIL image in RGB, so
    it works in any other loader, too.

    Args:
        root: folder of class folders of images: ``root/dog/1.jpg``.
        transform: takes a PIL image, usually a torchvision Compose.
        target_transform: takes the class index.
        loader: takes a path and gives a PIL image. One of your own runs in torch's worker processes, not in DALI.
        is_valid_file: takes a path and tells whether it belongs to the data set.
        allow_empty: whether class folders without images are valid.
        return_index: samples are (image, target, index) and batches (images, labels, indices).
        index_cache: keep the list of files, so that a later start takes it from there while the folders' modification
            times say that it holds: True for the user's cache folder, or another folder's path. What a GPU's JPEG
            engine was seen to make of them is kept beside it.

    Attributes:
        classes: names of the class folders, sorted.
        class_to_idx: {name: class index}.
        samples: list of (path, class index); ``imgs`` is the same list.
        targets: the class index of each.

    Raises:
        ValueError: index_cache with something that makes lists of its own: is_valid_file, or a subclass.
        FileNotFoundError: ``root`` is missing, has no class folders, or one of them has no images.
    """

    _index_file: Path | None = None

    def __init__(
        self,
        root: str | Path,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] = default_loader,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        return_index: bool = False,
        index_cache: bool | str | Path = False,
    ) -> None:
        if index_cache:
            self._start_from_list(root, is_valid_file, allow_empty, None if index_cache is True else index_cache)
            VisionDataset.__init__(self, root, transform=transform, target_transform=target_transform)
            self.loader, self.extensions = loader, IMG_EXTENSIONS
        else:
            super().__init__(root, transform, target_transform, loader, is_valid_file, allow_empty)
        self.return_index = return_index

    def _start_from_list(
        self,
        root: str | Path,
        is_valid_file: Callable[[str], bool] | None,
        allow_empty: bool,
        place: str | Path | None,
    ) -> None:
        """The attributes that ImageFolder's constructor makes by listing the folder."""
        lists = type(self).find_classes, type(self).make_dataset
        if is_valid_file is not None or lists != (ImageFolder.find_classes, ImageFolder.make_dataset):
            raise ValueError("index_cache is for ImageFolder's own list: leave out is_valid_file, or index_cache")
        self.classes, self.class_to_idx, self.samples = cached_samples(root, IMG_EXTENSIONS, allow_empty, place)
        self.imgs, self.targets = self.samples, [target for _, target in self.samples]
        self._index_file = index_file(root, IMG_EXTENSIONS, place).absolute()

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        self._warn_if_torch_reads()
        sample = super().__getitem__(index)
        return (*sample, index) if self.return_index else sample
