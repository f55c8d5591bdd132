"""What to do so that DALI makes the images of a data set that is not known here, and all stays what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, Subset

from ..archives.archive import Archive
from .arrays import holds_arrays
from .hugging_face import DALIHuggingFace, is_hugging_faces
from .readers import reader_of

_NESTED = 3  # of data sets in data sets
_BATCHED = "write it as a transform, and dali_compat.register() what that does on a batch"
# by the beginning of the reason for which a data set of the user's is not asked
_REMEDIES = {
    "uses the tensor's": "leave the tensor as torchvision gives it, and do the rest in collate_fn, or on the batch",
    "sets the tensor's": "leave the tensor as torchvision gives it, and do the rest in collate_fn, or on the batch",
    "gives the tensor to": f"{_BATCHED}, or call it in collate_fn",
    "uses the image's": _BATCHED,
    "loads the image": _BATCHED,
    "sets the image's": _BATCHED,
    "keeps an image": "leave it to the loader to keep decoded images: cache=",
    "gives an image that is not RGB": "where it is to have three channels, image.convert('RGB')",
    "gives an image as it was opened": "where it is to have three channels, image.convert('RGB')",
    "gives an image with random changes": "give the tensors alone",
    "has __getitems__": "leave __getitems__ out, where __getitem__ gives the same",
    "has an iterator": "take a generator, such as random.Random, or the index",
}


def advice(dataset: Any) -> str:
    """The end of a sentence that says what to write instead; "" where nothing better is known."""
    kind = type(dataset)
    if is_hugging_faces(kind) and kind.__name__ == "Dataset":
        images = any(type(feature).__name__ == "Image" for feature in dataset.features.values())
        return "; make its tensors in dataset.with_transform(...): rows stay dictionaries" if images else ""
    for name, value in _inner(dataset):
        what = f"{kind.__name__} reads its {name} ({_names(value)}) sample by sample"
        index = " (return_index=True adds the index)" if getattr(_whole(value), "return_index", None) is False else ""
        rest = f"do the rest in transform, target_transform or collate_fn{index}"
        return f"; {what}: where each is made of one of its samples, give the loader {name} itself, and {rest}"
    return ""


def remedy_of(reason: str) -> str:
    """What to do about the reason for which a data set of the user's is not asked; "" where nothing keeps its data."""
    return next((remedy for begin, remedy in _REMEDIES.items() if reason.startswith(begin)), "")


def _inner(dataset: Any, depth: int = _NESTED) -> Iterator[tuple[str, Any]]:
    """What it holds that the loader takes, by its name there, the nearest first: ``inner``, ``inner.dataset``."""
    held = getattr(dataset, "__dict__", {})
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
