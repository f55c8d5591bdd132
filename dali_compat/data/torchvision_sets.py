"""Readers of torchvision's data sets of image files.

A reader is for exactly one class. It names the attributes that hold the paths and targets, and all other names that the
class's ``__getitem__`` uses in torchvision 0.20 to 0.29. If a class uses other names, it comes from an untested version
and is not supported.

ImageNet, EuroSAT and Country211 are ImageFolders. Other data sets, such as CelebA, are traced like custom data sets
(tracing/).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torchvision
from torchvision import datasets

from ..errors import Unsupported
from ..inspection.objects import is_original
from .readers import Reader, add_reader, check_loader, joint_transforms, reader_of

_SEPARATE = frozenset(("transform", "target_transform"))
_JOINT = frozenset(("transforms",))

# Names that __getitem__ uses to open a file: exactly one of these two sets.
_OPENING = frozenset(("loader",)), frozenset(("Image", "open", "convert"))


def _names(function: Any) -> frozenset[str]:
    """Return the names of all attributes, functions and modules in a function's code, except PIL."""
    return frozenset(getattr(getattr(function, "__code__", None), "co_names", ())) - {"PIL"}


def _reader_of_lists(*lists: str, others: tuple[str, ...] = (), joint: bool = False) -> Reader:
    """Return a reader for data sets that hold their samples in ``lists``.

    Args:
        lists: name of the attribute with a list of (path, target), or names of two attributes with the paths and the
            targets.
        others: other names that ``__getitem__`` uses.
        joint: whether ``__getitem__`` calls ``transforms`` with an image and its target.
    """
    own = (_JOINT if joint else _SEPARATE) | {*lists, *others}

    def check(dataset: Any) -> None:
        kind = type(dataset)
        name, names = kind.__name__, _names(kind.__getitem__)
        if not names >= own or names - own not in _OPENING or not is_original(kind.__getitem__):
            what = f"{name}.__getitem__ of torchvision {torchvision.__version__}"
            raise Unsupported(f"{what} is not supported by this version of dali_compat")
        if hasattr(dataset, "__getitems__"):
            raise Unsupported(f"{name} has __getitems__, which DALI would bypass; remove it to use DALI")
        for attribute in (*lists, *(_JOINT if joint else _SEPARATE)):
            if not hasattr(dataset, attribute):
                raise Unsupported(f"{name} has no attribute {attribute!r}, unlike torchvision's")
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
            raise Unsupported(f"the first sample of {name} has no path, unlike torchvision's")

    reader = Reader(check, lambda dataset: tuple(getattr(dataset, name) for name in lists))
    return reader._replace(transforms=joint_transforms) if joint else reader


_kind: type
_two_lists = datasets.CLEVRClassification, datasets.DTD, datasets.FGVCAircraft, datasets.Flowers102, datasets.Food101
for _kind in (*_two_lists, datasets.SUN397):
    add_reader(_kind, _reader_of_lists("_image_files", "_labels"))
for _kind in (datasets.Imagenette, datasets.StanfordCars, datasets.GTSRB, datasets.RenderedSST2):
    add_reader(_kind, _reader_of_lists("_samples"))
add_reader(datasets.Places365, _reader_of_lists("imgs", joint=True))

_pet_names = "append", "len", "tuple", "_bin_labels", "_segs", "_target_types"
_pets = _reader_of_lists("_images", "_labels", others=_pet_names, joint=True)


def _check_pets(dataset: Any) -> None:
    _pets.check(dataset)
    if dataset._target_types != ["category"]:
        raise Unsupported(f"OxfordIIITPet has target_types={dataset._target_types}; it must be ['category']")


add_reader(datasets.OxfordIIITPet, _pets._replace(check=_check_pets))
