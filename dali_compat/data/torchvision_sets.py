"""torchvision's own data sets of image files: where each keeps paths and targets.

A reader is for exactly one class. Its ``__getitem__`` must use the names that were read here, in torchvision 0.20 to
0.29; one that uses others is of a version that nobody has looked at. ImageNet, EuroSAT and Country211 are ImageFolders.
Those that keep their samples in other ways, as CelebA, INaturalist and Caltech101, or have other targets than class
numbers, are asked for each sample, as a data set of the user's own is (lazy/).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchvision
from torchvision import datasets

from ..errors import Unsupported
from ..inspection.objects import is_original
from .readers import Reader, add_reader, check_loader, reader_of

Names = frozenset[str]

EACH = frozenset(("transform", "target_transform"))
BOTH = frozenset(("transforms",))

# How a class opens a file, by the names that this takes
_WAYS = frozenset(("loader",)), frozenset(("Image", "open", "convert"))


def _names(function: Any) -> Names:
    """Attributes, functions and modules that its text uses."""
    return frozenset(getattr(getattr(function, "__code__", None), "co_names", ())) - {"PIL"}


def checker(own: Names, lists: tuple[str, ...]) -> Callable[[Any], None]:
    """Returns a function that raises Unsupported where a data set may give something else than its reader reads: its
    ``__getitem__`` uses its ``own`` names, and those that open the file. ``lists`` have an entry a sample."""

    def check(dataset: Any) -> None:
        kind = type(dataset)
        name, names = kind.__name__, _names(kind.__getitem__)
        if not names >= own or names - own not in _WAYS or not is_original(kind.__getitem__):
            what = f"{name}.__getitem__ of torchvision {torchvision.__version__}"
            raise Unsupported(f"{what} is not one that is known here")
        if hasattr(dataset, "__getitems__"):
            raise Unsupported(f"{name} has __getitems__")
        for attribute in (*lists, *(own & (EACH | BOTH))):
            if not hasattr(dataset, attribute):
                raise Unsupported(f"{name} has no {attribute!r}, as torchvision's {name} has")
        for attribute in lists:
            entries = getattr(dataset, attribute)
            if type(entries) is not list or len(entries) != len(dataset):
                raise Unsupported(f"{name}.{attribute} is not a list of {len(dataset)} entries, as torchvision's is")
        loader = getattr(dataset, "loader", None)
        if "loader" in names and (loader is not None or "open" not in names):
            check_loader(dataset, loader)
        reader: Any = reader_of(dataset)
        try:
            known = not len(dataset) or isinstance(reader.sample(dataset, 0)[0], (str, Path))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            known = False
        if not known:
            raise Unsupported(f"{name} does not hold its samples as torchvision's does")

    return check


def _reader(*lists: str, others: tuple[str, ...] = (), joint: bool = False) -> Reader:
    """Returns a reader of these attributes: a list of (path, target), or one of paths and one of targets. ``others``
    are further names that ``__getitem__`` uses."""
    names = (BOTH if joint else EACH) | {*lists, *others}
    return Reader(checker(names, lists), lambda dataset: tuple(getattr(dataset, name) for name in lists), joint=joint)


_kind: type
_of_two = datasets.CLEVRClassification, datasets.DTD, datasets.FGVCAircraft, datasets.Flowers102, datasets.Food101
for _kind in (*_of_two, datasets.SUN397):
    add_reader(_kind, _reader("_image_files", "_labels"))
for _kind in (datasets.Imagenette, datasets.StanfordCars, datasets.GTSRB, datasets.RenderedSST2):
    add_reader(_kind, _reader("_samples"))
add_reader(datasets.Places365, _reader("imgs", joint=True))

_pet_names = "append", "len", "tuple", "_bin_labels", "_segs", "_target_types"
_pets = _reader("_images", "_labels", others=_pet_names, joint=True)


def _check_pets(dataset: Any) -> None:
    _pets.check(dataset)
    if dataset._target_types != ["category"]:
        raise Unsupported(f"OxfordIIITPet has targets of types {dataset._target_types}, not of 'category' alone")


add_reader(datasets.OxfordIIITPet, _pets._replace(check=_check_pets))
