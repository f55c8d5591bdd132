"""DALIHuggingFace, for data sets of Hugging Face's ``datasets``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch.utils.data as data
from numpy.typing import NDArray
from torchvision.datasets import VisionDataset

from ..errors import read_error
from ..runtime.dataset_base import DatasetBase
from .label_columns import Labels, labels_of, refuse_columns, refuse_rows
from .sources import Record, Source, Upright, image_of

_HOMES = {f"datasets.{name}" for name in ("arrow_dataset", "iterable_dataset", "dataset_dict")}


def is_from_hugging_face(one: Any) -> bool:
    """Return True if a class or function belongs to Hugging Face's ``datasets``."""
    return getattr(one, "__module__", "") in _HOMES


def remedy_for(dataset: Any) -> str:
    """Return advice on transforms if the data set is a Hugging Face Dataset of images, otherwise ""."""
    if not is_from_hugging_face(type(dataset)) or type(dataset).__name__ != "Dataset":
        return ""
    images = any(type(feature).__name__ == "Image" for feature in dataset.features.values())
    return "; create its tensors in dataset.with_transform(...), where rows remain dictionaries" if images else ""


class DALIHuggingFace(VisionDataset, DatasetBase, data.Dataset[tuple[Any, Any]]):  # type: ignore[type-arg]  # for new torchvisions
    """A data set of Hugging Face's ``datasets``. dali_compat.DataLoader decodes and transforms its images with DALI.
    DALI reads the encoded bytes in Arrow's memory, or the file if a row has only a path.

    ``dataset[i]`` is ``(transform(image), target_transform(target))`` with a PIL image in RGB, rotated according to its
    EXIF orientation. The effects of select(), shuffle(), filter() and train_test_split() are kept.

    Args:
        dataset: a ``datasets.Dataset``, such as one split. It must not be streamed.
        image: name of the column of images.
        target: name of the column of targets, or a list of names. Ints and ClassLabels are kept. Floats and vectors
            become float32. Text becomes class numbers, assigned in sorted order. None makes each target -1.
        transform: takes a PIL image, usually a torchvision Compose.
        target_transform: takes a target.

    Attributes:
        dataset: the argument ``dataset``.
        paths: paths of the images' files if the table contains no bytes; otherwise None.
        targets: a list of ints, or a float32 tensor whose rows are the targets.
        classes, class_to_idx: class names, and {name: number}; None if the targets have no names.

    Raises:
        TypeError: the data set is streamed, or is not a Dataset.
        ValueError: a column is missing or has an unsupported type; a row has no image or no target; or the data set has
            its own transform.
        ImageReadError (an OSError): an image cannot be decoded in ``dataset[i]``.

    Examples:
        >>> from datasets import Dataset, Image
        >>> table = Dataset.from_dict({"image": ["train/cat/0.jpg", "train/dog/0.jpg"], "label": [3, 5]})
        >>> dataset = DALIHuggingFace(table.cast_column("image", Image()), transform=transform)
        >>> dataset.targets
        [3, 5]
    """

    upright = True  # Records are rotated according to their EXIF orientation

    def __init__(
        self,
        dataset: Any,
        image: str = "image",
        target: str | Sequence[str] | None = "label",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(transform=transform, target_transform=target_transform)
        _check(dataset)
        self.dataset, self.image = dataset, image
        names = [] if target is None else [target] if isinstance(target, str) else list(target)
        refuse_columns([image, *names], list(dataset.features), "the data set")
        _check_image(dataset, image)
        labels = _labels(dataset, names, isinstance(target, str), len(self))
        self.targets, self.classes = labels.targets, labels.classes
        self.class_to_idx = self.classes and {name: number for number, name in enumerate(self.classes)}
        self._has_bytes, has_path = self._column.given()
        empty = np.flatnonzero(~(self._has_bytes | has_path)).tolist()
        refuse_rows(empty, f"no image in {image!r}", "row {}".format)
        self.paths = None if self._has_bytes.any() else list(map(self._column.path, range(len(self))))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("dataset", "image") and name in vars(self):
            raise AttributeError(f"{name} cannot be replaced; create another DALIHuggingFace")
        super().__setattr__(name, value)

    @functools.cached_property
    def _column(self) -> _Images:
        return _Images(self.dataset, self.image)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self._warn_if_torch_reads()
        row = self._row(index)
        source: Source = Record(self, row) if self.paths is None else Upright(self.paths[row])
        return self._transformed(image_of(source), self.target(row))

    def target(self, index: int) -> Any:
        """Return the target of the image at ``index``, before target_transform."""
        return self.targets[self._row(index)]

    def read(self, indices: Sequence[int]) -> list[NDArray[Any]]:
        """Return the encoded bytes of the images at ``indices`` as read-only uint8 arrays of shape (length,). They are
        views of Arrow's memory if possible.

        Raises:
            ImageReadError: a file cannot be read.
        """
        return [self._read(self._row(index)) for index in indices]

    def changed(self, indices: Sequence[int]) -> NDArray[Any]:
        """Return a bool array, False for all ``indices``, because Arrow files never change."""
        return np.zeros(len(indices), bool)

    def copied(self, index: int) -> bytes:
        """Return a copy of the encoded bytes of the image at ``index``. Raise ImageReadError as read() does."""
        return self._read(self._row(index)).tobytes()

    def _read(self, row: int) -> NDArray[Any]:
        try:
            image = self._column.bytes(row) if self._has_bytes[row] else np.fromfile(self._column.path(row), np.uint8)
        except OSError as error:
            raise read_error(f"cannot read {self.place(row)}: {error}", error) from error
        image.flags.writeable = False
        return image

    def place(self, index: int) -> str:
        """Return the row of the image at ``index``, and its file's path if known, for messages."""
        name = self._column.path(self._row(index))
        return f"row {self._row(index)} of {self.image!r}" + (f" ({name})" if name else "")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the views of Arrow's memory. A copy creates them again."""
        return {name: value for name, value in vars(self).items() if name != "_column"}


class _Images:
    """A column of images in Arrow's memory."""

    def __init__(self, dataset: Any, name: str):
        from pyarrow.compute import struct_field

        column = dataset.data.column(name)
        self._bytes, self._paths = struct_field(column, "bytes"), struct_field(column, "path")
        self._ends = np.cumsum([len(chunk) for chunk in column.chunks])
        self._values = [_values(chunk.field("bytes")) for chunk in column.chunks]
        indices = dataset._indices  # set by select(), shuffle() and others
        self._rows = None if indices is None else indices.column(0).to_numpy()

    def given(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return two bool arrays (N,): whether each row has bytes, and whether it has a path."""
        has_bytes, has_path = (field.is_valid().to_numpy() for field in (self._bytes, self._paths))
        return (has_bytes, has_path) if self._rows is None else (has_bytes[self._rows], has_path[self._rows])

    def bytes(self, row: int) -> NDArray[Any]:
        at = row if self._rows is None else int(self._rows[row])
        chunk = int(np.searchsorted(self._ends, at, side="right"))
        at -= int(self._ends[chunk - 1]) if chunk else 0
        offsets, values = self._values[chunk]
        return values[offsets[at] : offsets[at + 1]]

    def path(self, row: int) -> str:
        """Return the path of a row's file, or "" if the row has none."""
        return self._paths[row if self._rows is None else int(self._rows[row])].as_py() or ""


def _values(array: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (offsets, bytes) of all values of a binary array, as views. Raise ValueError for other Arrow types."""
    dtypes = {"binary": np.int32, "large_binary": np.int64, "null": np.int32}
    if str(array.type) not in dtypes:
        raise ValueError(f"images of Arrow type {array.type} are not supported")
    buffers = [np.zeros(0, np.uint8) if buffer is None else buffer for buffer in array.buffers()[1:]]
    if len(buffers) < 2 or not len(array):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets: NDArray[Any] = np.frombuffer(buffers[0], dtypes[str(array.type)])
    return offsets[array.offset : array.offset + len(array) + 1], np.frombuffer(buffers[1], np.uint8)


def _check(dataset: Any) -> None:
    """Raise TypeError if this is not a datasets.Dataset, and ValueError if it has its own transform."""
    kinds = {kind.__name__ for kind in type(dataset).__mro__ if is_from_hugging_face(kind)}
    if kinds & {"IterableDataset", "IterableDatasetDict"}:
        raise TypeError("a streamed data set has no random access; load it without streaming=True")
    if "DatasetDict" in kinds:
        raise TypeError(f"dataset is a DatasetDict; pass a split such as dataset[{next(iter(dataset), 'train')!r}]")
    if "Dataset" not in kinds:
        raise TypeError(f"dataset must be a datasets.Dataset, got {type(dataset).__name__}")
    if dataset.format["type"] == "custom":
        raise ValueError(
            "the data set has a transform (set_transform); call its reset_format() and pass the transform as transform="
        )


def _check_image(dataset: Any, name: str) -> None:
    """Raise ValueError unless the column ``name`` contains images that are decoded to RGB."""
    feature = dataset.features[name]
    if type(feature).__name__ != "Image":
        raise ValueError(f"column {name!r} is {feature}, not Image; call cast_column({name!r}, datasets.Image())")
    if getattr(feature, "mode", None) not in (None, "RGB"):
        raise ValueError(f"column {name!r} has images of mode {feature.mode!r}; cast it to datasets.Image(mode='RGB')")


def _labels(dataset: Any, names: list[str], single: bool, count: int) -> Labels:
    columns = [(name, dataset.with_format(None)[name][:]) for name in names]
    feature: Any = dataset.features[names[0]] if single else None
    labels = labels_of(columns, single, count, "row {}".format)
    return labels._replace(classes=list(feature.names)) if type(feature).__name__ == "ClassLabel" else labels
