"""DALIImageFolder, a replacement for torchvision's ImageFolder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.utils.data as data
from torchvision.datasets import ImageFolder, VisionDataset
from torchvision.datasets.folder import IMG_EXTENSIONS, default_loader

from ..archives.folder_index import cached_objects, cached_samples, index_file
from ..remote.objects import FolderAndSize, Objects, listed_objects
from ..remote.urls import is_url, redacted, without_scheme
from ..runtime.dataset_base import DatasetBase
from .sources import Upright, decoded, object_image


class DALIImageFolder(ImageFolder, DatasetBase, data.Dataset[tuple[Any, ...]]):
    """torchvision's ImageFolder. dali_compat.DataLoader decodes and transforms its images with DALI.

    ``dataset[i]`` is ``(transform(image), target_transform(class index))`` with a PIL image in RGB. The data set works
    in any loader.

    Args:
        root: folder of class folders of images (``root/dog/1.jpg``), or its URL, such as ``s3://bucket/train``
            (docs/object-storage.md).
        transform: takes a PIL image, usually a torchvision Compose.
        target_transform: takes the class index.
        loader: takes a path or URL and returns a PIL image. A custom loader runs in torch's workers. If it opens the
            image with Pillow, DALI decodes it, as for a custom data set.
        is_valid_file: takes a path and returns whether it belongs to the data set.
        allow_empty: whether class folders without images are valid.
        orient: rotate images according to their EXIF orientation, as ImageOps.exif_transpose() does.
        return_index: samples are (image, target, index), and batches are [images, labels, indices].
        index_cache: cache the list of files for later starts. True uses the user's cache folder. For another folder,
            pass its path, or its URL if ``root`` is a URL. The list of a local folder is used until the modification
            time of one of its folders changes. The list of a bucket is used until you delete it. The results of
            comparing a GPU's JPEG engine with the CPU are cached, too.
        storage_options: arguments of obstore.store.from_url for a URL, such as ``region`` and ``endpoint``. For a URL
            of the Hugging Face Hub (``hf://``), arguments of HfFileSystem.
        disk_cache: (folder, maximum size in bytes), to cache fetched objects on a local disk.

    Attributes:
        classes: names of the class folders, sorted.
        class_to_idx: {name: class index}.
        samples: list of (path, class index); ``imgs`` is the same list.
        targets: the class index of each sample.

    Raises:
        ValueError: index_cache is combined with is_valid_file; orient is combined with a custom loader; or a subclass
            that lists files itself gets index_cache or a URL.
        FileNotFoundError: ``root`` is missing or has no class folders, or a class folder has no images.
        ImportError: ``root`` is a URL, and obstore is not installed (the extra ``remote``).
        ImageReadError: a bucket cannot be listed.

    Examples:
        >>> dataset = DALIImageFolder("train", transform)
        >>> dataset.classes, len(dataset)
        (['cat', 'dog'], 8)
        >>> image, label = dataset[7]
        >>> image.shape, label
        (torch.Size([3, 32, 32]), 1)
    """

    orient = False
    _objects: Objects | None = None
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
        orient: bool = False,
        return_index: bool = False,
        index_cache: bool | str | Path = False,
        storage_options: Mapping[str, Any] | None = None,
        disk_cache: FolderAndSize | None = None,
    ) -> None:
        root = without_scheme(root)
        if is_url(root):
            self._objects = Objects(storage_options, disk_cache, orient)
        if is_url(root) or index_cache:
            self._list(root, is_valid_file, allow_empty, index_cache)
            VisionDataset.__init__(self, root, transform=transform, target_transform=target_transform)
            self.loader, self.extensions = loader, IMG_EXTENSIONS
        else:
            super().__init__(root, transform, target_transform, loader, is_valid_file, allow_empty)
        if orient and loader is not default_loader:
            raise ValueError("orient=True cannot be combined with loader=; call ImageOps.exif_transpose in your loader")
        if orient:
            self.orient = orient
        self.return_index = return_index

    def _list(
        self,
        root: str | Path,
        is_valid_file: Callable[[str], bool] | None,
        allow_empty: bool,
        index_cache: bool | str | Path,
    ) -> None:
        """List the folder or load the cached list. Set the attributes that ImageFolder's constructor sets."""
        lists = type(self).find_classes, type(self).make_dataset
        is_own = lists != (ImageFolder.find_classes, ImageFolder.make_dataset)
        if is_own and self._objects is not None:
            what = f"{type(self).__name__} overrides find_classes() or make_dataset()"
            raise ValueError(f"{what}, so it needs a local folder, not {redacted(str(root))}")
        if index_cache and (is_own or is_valid_file is not None):
            raise ValueError(
                "index_cache cannot be combined with is_valid_file, or with a subclass that overrides find_classes() "
                "or make_dataset(); leave index_cache out"
            )
        place = None if index_cache is True else index_cache or None
        if self._objects is None:
            found = cached_samples(root, allow_empty, place)
            self._index_file = index_file(root, place).absolute()
        elif index_cache:
            found = cached_objects(self._objects, str(root), allow_empty, place)
        else:
            found = listed_objects(self._objects, str(root), allow_empty, is_valid_file)
        self.classes, self.class_to_idx, self.samples = found
        self.imgs, self.targets = self.samples, [target for _, target in self.samples]

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        self._warn_if_torch_reads()
        if (self._objects is not None or self.orient) and self.loader is default_loader:
            path, target = self.samples[index]
            image = decoded(Upright(path)) if self._objects is None else object_image(self._objects, path)
            sample = self._transformed(image, target)
        else:
            sample = super().__getitem__(index)
        return (*sample, index) if self.return_index else sample
