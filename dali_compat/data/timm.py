"""Reader of timm's ImageDataset over a folder. Does not import timm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ..errors import Unsupported
from ..inspection.objects import is_original
from .readers import Reader, add_reader, class_name_of

_IMAGE_DATASET = "timm.data.dataset.ImageDataset"
_FOLDER = "timm.data.readers.reader_image_folder.ReaderImageFolder"
_PLAIN = {"load_bytes": False, "input_img_mode": "RGB", "additional_features": None}


def is_timm_folder(dataset: Any) -> bool:
    """Return True if ``dataset`` is an ImageDataset that this module's reader supports."""
    if class_name_of(dataset) != _IMAGE_DATASET:
        return False
    try:
        _check(dataset)
    except Unsupported:
        return False
    return True


def _check(dataset: Any) -> None:
    if any(getattr(dataset, name, value) != value for name, value in _PLAIN.items()):
        raise Unsupported(f"timm's ImageDataset is supported only with the defaults of {', '.join(_PLAIN)}")
    reader: Any = getattr(dataset, "reader", None)
    if class_name_of(reader) != _FOLDER:
        raise Unsupported(
            f"timm's ImageDataset is supported only with a ReaderImageFolder, not with a {type(reader).__name__}"
        )
    if not all(is_original(type(one).__getitem__) for one in (dataset, reader)):
        raise Unsupported("__getitem__ of timm's ImageDataset, or of its reader, was replaced")


def _transforms(dataset: Any) -> tuple[Any, Any]:
    function = dataset.target_transform
    return dataset.transform, None if function is None else partial(_except_none, function)


def _except_none(function: Callable[[Any], Any], target: Any) -> Any:
    return -1 if target is None else function(target)


class _Reader(Reader):
    """Reader that replaces targets of None with -1 if there is no target_transform, as timm does."""

    def sample(self, dataset: Any, index: Any) -> tuple[Any, Any]:
        path, target = super().sample(dataset, index)
        return path, -1 if target is None and dataset.target_transform is None else target

    def at(self, dataset: Any, indices: Iterable[int]) -> tuple[list[Any], Any]:
        paths, targets = super().at(dataset, indices)
        if dataset.target_transform is None:
            targets = [-1 if target is None else target for target in targets]
        return paths, targets


add_reader(
    _IMAGE_DATASET,
    _Reader(check=_check, attributes=lambda dataset: (dataset.reader.samples,), transforms=_transforms),
)
