"""What to write instead of a data set that is not known here: one of our classes, with the user's own names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision.datasets.folder import is_image_file

from ..archives.archive import Archive
from .arrays import holds_arrays
from .hugging_face import DALIHuggingFace, is_hugging_faces
from .readers import reader_of

_NESTED = 3  # of data sets in data sets
_LOADERS = frozenset(("default_loader", "pil_loader"))


def advice(dataset: Any) -> str:
    """The end of a sentence that says what to write instead; "" where nothing better is known."""
    kind = type(dataset)
    if is_hugging_faces(kind) and kind.__name__ == "Dataset":
        images = [name for name, feature in dataset.features.items() if type(feature).__name__ == "Image"]
        line = "dali_compat.DALIHuggingFace(dataset, image={!r}, transform=...)"
        return f"; write {line.format(images[0])} instead of it" if images else ""
    for name, value in _inner(dataset):
        what = f"{kind.__name__} reads its {name} ({_names(value)}) sample by sample"
        index = " (return_index=True adds the index)" if getattr(_whole(value), "return_index", None) is False else ""
        rest = f"do the rest in transform, target_transform or collate_fn{index}"
        return f"; {what}: where each is made of one of its samples, give the loader {name} itself, and {rest}"
    if not _opens_images(kind) or len(_paths(dataset)) > 1:  # of masks, perhaps
        return ""
    return f"; where a sample is one image and its target, write {_line(dataset)} instead of it"


def _opens_images(kind: type) -> bool:
    """Whether a class opens images with PIL, in __getitem__ or in a method of its own that this calls. What others give
    is no PIL image, and the transforms take that."""
    names = set(_names_in(_code_of(kind, "__getitem__")))
    names.update(*(_names_in(_code_of(kind, name)) for name in names))
    return bool(names & _LOADERS) or names >= {"Image", "open"}


def _inner(dataset: Any, depth: int = _NESTED) -> Iterator[tuple[str, Any]]:
    """What it holds that the loader takes, by its name there, the nearest first: ``inner``, ``inner.dataset``."""
    held = _held(dataset)
    yield from ((name, value) for name, value in held.items() if _is_of_images(value))
    for name, value in held.items():
        if depth and isinstance(value, Dataset):
            yield from ((f"{name}.{below}", one) for below, one in _inner(value, depth - 1))


def _is_of_images(value: Any) -> bool:
    """Whether it is a data set that the loader takes, or Subsets of one, or several together."""
    value = _whole(value)
    if type(value) is ConcatDataset:
        return all(map(_is_of_images, value.datasets))
    return reader_of(value) is not None or isinstance(value, (Archive, DALIHuggingFace)) or holds_arrays(value)


def _whole(value: Any) -> Any:
    while type(value) is Subset:
        value = value.dataset
    return value


def _names(value: Any) -> str:
    """ "Subset of ImageFolder"."""
    whole = _whole(value)
    return type(whole).__name__ if whole is value else f"Subset of {type(whole).__name__}"


def _names_in(code: CodeType | None) -> Iterator[str]:
    """Names that a function uses, those within it included."""
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _names_in(constant)


def _code_of(kind: type, name: str) -> CodeType | None:
    return getattr(getattr(kind, name, None), "__code__", None)


def _held(dataset: Any) -> dict[str, Any]:
    return getattr(dataset, "__dict__", {})


def _paths(dataset: Any) -> list[str]:
    """Its attributes that are lists of image files."""
    return [name for name, value in _held(dataset).items() if _are_paths(value)]


def _line(dataset: Any) -> str:
    """A constructor's call, with attributes of the data set where they can be told."""
    held = _held(dataset)
    transform = next((f"dataset.{name}" for name in held if name in ("transform", "transforms")), "...")
    for name, value in held.items():
        if hasattr(value, "columns") and hasattr(value, "iloc"):
            return f"dali_compat.DALIImageTable(dataset.{name}, {_columns(value)}, root=..., transform={transform})"
    paths = next(iter(_paths(dataset)), None)
    count = len(held[paths]) if paths else -1
    targets = next((name for name, value in held.items() if name != paths and _are_targets(value, count)), None)
    given = f"dataset.{paths}" if paths else "paths", f"dataset.{targets}" if targets else "targets"
    return f"dali_compat.DALIImageList({', '.join(given)}, transform={transform})"


def _columns(frame: Any) -> str:
    """Which of a DataFrame's columns has the files."""
    first = {str(name): frame[name].iloc[0] for name in frame.columns} if len(frame) else {}
    files = next((name for name, value in first.items() if _is_path(value)), None)
    others = [name for name in first if name != files]
    target = repr(others[0]) if files and len(others) == 1 else "..."
    return f"image={files!r}, target={target}" if files else "image=..., target=..."


def _are_paths(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and _is_path(value[0])


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and is_image_file(str(value))


def _are_targets(value: Any, count: int) -> bool:
    """Whether they are as many as there are paths."""
    try:
        return not isinstance(value, (str, bytes, dict)) and len(value) == count
    except TypeError:
        return False
