"""Reads paths and targets of data sets of files: one small reader for each class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from torchvision import get_image_backend
from torchvision.datasets import DatasetFolder, folder
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.datasets.vision import StandardTransform

from ..errors import Unsupported
from ..inspection.objects import is_original
from .folder import DALIImageFolder
from .headers import IdentityWeakDict
from .hugging_face import DALIHuggingFace
from .image_table import DALIImageList
from .sources import Upright


class Reader(NamedTuple):
    """The functions that read a data set; each takes it."""

    check: Callable[[Any], None]  # raises Unsupported if samples may be more than these files, transformed
    held: Callable[[Any], tuple[Any, ...]]  # one list of (path, target), or paths, and targets in a list or a tensor
    taken: Callable[[Any], type[str]] = lambda dataset: str  # the type of its sources
    joint: bool = False  # ``__getitem__`` calls ``transforms`` with the image and its target

    def sample(self, dataset: Any, index: Any) -> tuple[Any, Any]:
        """Returns (path, target before target_transform), as ``__getitem__`` finds them."""
        held = self.held(dataset)
        if len(held) > 1:
            return held[0][index], held[1][index]
        path, target = held[0][index]
        return path, target

    def columns(self, dataset: Any) -> tuple[Sequence[Any], Any]:
        """Returns (paths, targets) of all samples; a tensor's rows may be the targets."""
        held = self.held(dataset)
        return (held[0], held[1]) if len(held) > 1 else columns_of_pairs(held[0])


_of_class: dict[type, Reader] = {}


def add_reader(kind: type, reader: Reader) -> None:
    """Registers a reader for data sets of exactly this class: a subclass may do something else."""
    _of_class[kind] = reader


def reader_of(dataset: Any) -> Reader | None:
    """None where none is known. It may still refuse the data set."""
    known = _of_class.get(type(dataset))
    if known is not None:
        return known
    if isinstance(dataset, DatasetFolder):
        return _FOLDER
    if isinstance(dataset, DALIHuggingFace):
        return _FILES_OF_ARROW if dataset.paths is not None else None
    return _LIST if isinstance(dataset, DALIImageList) else None


_turned: IdentityWeakDict[bool] = IdentityWeakDict()


def can_turn(dataset: Any) -> bool:
    """Returns whether its images are files, so that they can be turned when these are decoded."""
    return reader_of(dataset) is not None and getattr(dataset, "_objects", None) is None


def turn(dataset: Any, upright: bool) -> None:
    """Images of a data set are turned as their EXIF says, from now on, because its transform begins with that; or no
    longer."""
    _turned.put(dataset, upright)


def taken_of(dataset: Any, reader: Reader) -> type[str]:
    """Returns the type of the sources of a data set that this reader reads."""
    return Upright if _turned.get(dataset, bool) else reader.taken(dataset)


def known_class_of(dataset: Any) -> type | None:
    """The class of which a data set is a subclass, and that would be read itself."""
    return next((kind for kind in type(dataset).__mro__[1:] if kind in _of_class), None)


def transforms_of(dataset: Any) -> tuple[Any, Any]:
    """Returns its transform and target_transform, as ``__getitem__`` takes them. Raises Unsupported if it has one for
    both."""
    reader = _of_class.get(type(dataset))
    if reader is None or not reader.joint:
        return dataset.transform, dataset.target_transform
    both = dataset.transforms
    if both is None:
        return None, None
    if type(both) is not StandardTransform:
        name = type(dataset).__name__
        raise Unsupported(
            f"{name} has transforms=, of image and target together; give what is for images alone as transform="
        )
    return both.transform, both.target_transform


def check_loader(dataset: Any, loader: Any) -> None:
    """Raises Unsupported unless the loader is torchvision's own, of PIL images."""
    if loader in (default_loader, folder.pil_loader) and not is_original(folder.pil_loader):
        raise Unsupported("torchvision.datasets.folder.pil_loader, which opens the files, was replaced")
    if loader not in (default_loader, pil_loader) or not is_original(loader):
        name = type(dataset).__name__
        remedy = "write ImageFolder instead" if type(dataset) is DatasetFolder else "leave loader= out"
        raise Unsupported(f"{name} has a loader of its own; {remedy}, and do in transform what it does to the image")
    if loader is default_loader and get_image_backend() != "PIL":
        raise Unsupported(f"torchvision's image backend is {get_image_backend()!r}; DALI matches PIL")


def check_items(dataset: Any, *understood: Callable[..., Any]) -> None:
    """Raises Unsupported if its ``__getitem__`` is none of these, or it gives many samples at once."""
    name, items = type(dataset).__name__, type(dataset).__getitem__
    if items not in understood or not is_original(items):
        remedy = "move what it does into transform or target_transform"
        if isinstance(dataset, DatasetFolder):
            remedy += "; DALIImageFolder(..., return_index=True) gives the index, too"
        raise Unsupported(f"{name} overrides __getitem__; {remedy}")
    if hasattr(dataset, "__getitems__"):
        raise Unsupported(f"{name} has __getitems__")


def _check_folder(dataset: Any) -> None:
    check_items(dataset, DatasetFolder.__getitem__, DALIImageFolder.__getitem__)
    check_loader(dataset, dataset.loader)


def _check_list(dataset: Any) -> None:
    check_items(dataset, DALIImageList.__getitem__)
    check_loader(dataset, folder.pil_loader)


def columns_of_pairs(pairs: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Returns (paths, targets) of a list of (path, target). Raises TypeError for anything else."""
    if set(map(type, pairs)) != {tuple} or set(map(len, pairs)) != {2}:
        raise TypeError("no pairs")
    paths, targets = (tuple(map(itemgetter(column), pairs)) for column in (0, 1))  # zip() makes an iterator of each
    return paths, targets


_FOLDER = Reader(
    check=_check_folder,
    held=lambda dataset: (dataset.samples,),
    taken=lambda dataset: Upright if getattr(dataset, "orient", False) else str,
)
_LIST = Reader(check=_check_list, held=lambda dataset: (dataset.paths, dataset.targets))
_FILES_OF_ARROW = _LIST._replace(
    check=lambda dataset: check_items(dataset, DALIHuggingFace.__getitem__), taken=lambda dataset: Upright
)
