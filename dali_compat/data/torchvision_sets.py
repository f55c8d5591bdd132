"""torchvision's own data sets of image files: where each keeps paths and targets.

A reader is for exactly one class. Its ``__getitem__`` must use the names that were read here, in torchvision 0.20 to
0.29; one that uses others is of a version that nobody has looked at. ImageNet, EuroSAT and Country211 are ImageFolders.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchvision
from torchvision import datasets

from ..errors import Unsupported
from ..inspection.objects import is_original
from .readers import Reader, add_reader, check_loader, columns_of_pairs
from .sources import InItsMode

Names = frozenset[str]
Sample = Callable[[Any, Any], tuple[Any, Any]]

EACH = frozenset(("transform", "target_transform"))
BOTH = frozenset(("transforms",))

# How a class opens a file, by the names that this takes
_LOADER, _OPENED = frozenset(("loader",)), frozenset(("Image", "open"))
_CONVERTED = _OPENED | {"convert"}
_RGB = _LOADER, _CONVERTED
ITS_MODE = _OPENED, _OPENED | _LOADER


def _names(function: Any) -> Names:
    """Attributes, functions and modules that its text uses."""
    return frozenset(getattr(getattr(function, "__code__", None), "co_names", ())) - {"PIL"}


def _unknown(name: str) -> Unsupported:
    return Unsupported(f"{name} of torchvision {torchvision.__version__} is not one that is known here")


def checker(
    own: Names,
    lists: tuple[str, ...],
    sample: Sample,
    ways: tuple[Names, ...] = _RGB,
    types: tuple[str, tuple[str, ...]] | None = None,
) -> Callable[[Any], None]:
    """A function that raises Unsupported where a data set may give something else than its reader reads.

    Args:
        own: names that ``__getitem__`` uses beside those that open the file.
        lists: its attributes that are lists with an entry a sample.
        sample: of the reader.
        ways: how it may open a file.
        types: its attribute that lists the types of targets, and those that are known.
    """

    def check(dataset: Any) -> None:
        kind = type(dataset)
        name, names = kind.__name__, _names(kind.__getitem__)
        if not names >= own or names - own not in ways or not is_original(kind.__getitem__):
            raise _unknown(f"{name}.__getitem__")
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
        if types is not None:
            _check_types(dataset, *types)
        _check_first(dataset, sample)

    return check


def _check_types(dataset: Any, attribute: str, known: tuple[str, ...]) -> None:
    """
    Raises:
        Unsupported: it has no targets, or such of other types.
    """
    name, types = type(dataset).__name__, getattr(dataset, attribute, None)
    if not isinstance(types, list) or not types:
        raise Unsupported(f"{name} has no target types")
    for other in types:
        if other not in known:
            raise Unsupported(f"{name} has targets of type {other!r}; {' and '.join(map(repr, known))} are known")


def _check_first(dataset: Any, sample: Sample) -> None:
    """
    Raises:
        Unsupported: its first sample is not a path and a target.
    """
    try:
        known = not len(dataset) or isinstance(sample(dataset, 0)[0], (str, Path))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise Unsupported(f"{type(dataset).__name__} does not hold its samples as torchvision's does")


# ---- one list of paths and one of targets, or one of both


def _lists(dataset: Any) -> tuple[Any, Any]:
    return dataset._image_files, dataset._labels


def _of_lists(dataset: Any, index: Any) -> tuple[Any, Any]:
    return dataset._image_files[index], dataset._labels[index]


def _add_pairs(kind: type, pairs: str = "_samples", joint: bool = False) -> None:
    def sample(dataset: Any, index: Any) -> tuple[Any, Any]:
        path, target = getattr(dataset, pairs)[index]
        return path, target

    add_reader(
        kind,
        Reader(
            checker((BOTH if joint else EACH) | {pairs}, (pairs,), sample),
            sample,
            lists=lambda dataset: (getattr(dataset, pairs),),
            columns=lambda dataset: columns_of_pairs(getattr(dataset, pairs)),
            joint=joint,
        ),
    )


_kind: type
_check_lists = checker(EACH | {"_image_files", "_labels"}, ("_image_files", "_labels"), _of_lists)
_of_two = datasets.CLEVRClassification, datasets.DTD, datasets.FGVCAircraft, datasets.Flowers102, datasets.Food101
for _kind in (*_of_two, datasets.SUN397):
    add_reader(_kind, Reader(_check_lists, _of_lists, _lists, _lists))
for _kind in (datasets.Imagenette, datasets.StanfordCars, datasets.GTSRB, datasets.RenderedSST2):
    _add_pairs(_kind)
_add_pairs(datasets.Places365, "imgs", joint=True)


def _person(dataset: Any, index: Any) -> tuple[Any, Any]:
    return dataset.data[index], dataset.targets[index]


def _check_people(dataset: Any) -> None:
    """Its ``_loader`` was a method before torchvision had loaders for all."""
    _known(dataset)
    method = getattr(datasets.lfw._LFW, "_loader", None)
    if method is None or "_loader" in vars(dataset):
        check_loader(dataset, getattr(dataset, "_loader", None))
    elif _names(method) != _CONVERTED:
        raise _unknown("LFWPeople._loader")


_known = checker(EACH | {"data", "targets", "_loader"}, ("data", "targets"), _person, (frozenset(),))


def _people(dataset: Any) -> tuple[Any, Any]:
    return dataset.data, dataset.targets


add_reader(datasets.LFWPeople, Reader(_check_people, _person, _people, _people))


_JOIN = frozenset(("os", "path", "join"))
_SEVERAL = frozenset(("append", "len", "tuple"))  # targets


def _one_by_one(sample: Sample) -> Callable[[Any], tuple[Any, Any]]:
    """A function that gives all paths, and all targets."""

    def columns(dataset: Any) -> tuple[Any, Any]:
        pairs = [sample(dataset, index) for index in range(len(dataset))]
        return [path for path, _ in pairs], [target for _, target in pairs]

    return columns


def _together(targets: list[Any]) -> Any:
    """One as it is, several in a tuple."""
    return tuple(targets) if len(targets) > 1 else targets[0]


def _mode(dataset: Any) -> type[str]:
    """Without a loader, which is torchvision's for RGB, images are in the mode of their files."""
    used = "loader" in type(dataset).__getitem__.__code__.co_names  # only newer classes do
    return str if used and getattr(dataset, "loader", None) is not None else InItsMode


_PET = {"category": "_labels", "binary-category": "_bin_labels"}


def _pet(dataset: Any, index: Any) -> tuple[Any, Any]:
    return dataset._images[index], _together([getattr(dataset, _PET[one])[index] for one in dataset._target_types])


_pet_lists = "_images", "_labels", "_bin_labels"
_pet_names = _SEVERAL | BOTH | {*_pet_lists, "_segs", "_target_types"}
add_reader(
    datasets.OxfordIIITPet,
    Reader(
        checker(_pet_names, _pet_lists, _pet, types=("_target_types", tuple(_PET))),
        _pet,
        lists=lambda dataset: (dataset._images, dataset._labels, dataset._bin_labels),
        columns=_one_by_one(_pet),
        fixed=lambda dataset: (tuple(dataset._target_types),),
        joint=True,
    ),
)


def _caltech101(dataset: Any, index: Any) -> tuple[Any, Any]:
    target, name = dataset.y[index], f"image_{dataset.index[index]:04d}.jpg"
    path = os.path.join(dataset.root, "101_ObjectCategories", dataset.categories[target], name)
    return path, _together([target for _ in dataset.target_type])


def _caltech256(dataset: Any, index: Any) -> tuple[Any, Any]:
    target, name = dataset.y[index], f"{dataset.y[index] + 1:03d}_{dataset.index[index]:04d}.jpg"
    return os.path.join(dataset.root, "256_ObjectCategories", dataset.categories[target], name), target


_caltech_names = EACH | _JOIN | {"categories", "index", "y", "root"}
_annotated = _caltech_names | _SEVERAL | {"annotation_categories", "target_type", "io", "loadmat", "scipy.io"}
_caltech_lists = "index", "y"


def _add_caltech(kind: type, sample: Sample, check: Callable[[Any], None]) -> None:
    add_reader(
        kind,
        Reader(
            check,
            sample,
            lists=lambda dataset: (dataset.index, dataset.y),
            columns=_one_by_one(sample),
            fixed=lambda dataset: (dataset.root, dataset.categories, *getattr(dataset, "target_type", ())),
            taken=_mode,
        ),
    )


_check_101 = checker(_annotated, _caltech_lists, _caltech101, ITS_MODE, ("target_type", ("category",)))
_add_caltech(datasets.Caltech101, _caltech101, _check_101)
_add_caltech(datasets.Caltech256, _caltech256, checker(_caltech_names, _caltech_lists, _caltech256, ITS_MODE))


def _species(dataset: Any, index: Any) -> tuple[Any, Any]:
    category, name = dataset.index[index]
    targets = [category if one == "full" else dataset.categories_map[category][one] for one in dataset.target_type]
    return os.path.join(dataset.root, dataset.all_categories[category], name), _together(targets)


_ranks = "full", "kingdom", "phylum", "class", "order", "family", "genus", "super"
_species_names = EACH | _JOIN | _SEVERAL | {"all_categories", "categories_map", "index", "root", "target_type"}
add_reader(
    datasets.INaturalist,
    Reader(
        checker(_species_names, ("index",), _species, ITS_MODE, ("target_type", _ranks)),
        _species,
        lists=lambda dataset: (dataset.index,),
        columns=_one_by_one(_species),
        fixed=lambda dataset: (dataset.root, dataset.all_categories, dataset.categories_map, *dataset.target_type),
        taken=_mode,
    ),
)

_FACE = {"attr": "attr", "identity": "identity", "bbox": "bbox", "landmarks": "landmarks_align"}


def _rows(dataset: Any, kind: str) -> Any:
    """Targets of a type: a tensor with a row a sample."""
    tensor = getattr(dataset, _FACE[kind])
    return tensor[:, 0] if kind == "identity" else tensor


def _face_path(dataset: Any, name: str) -> str:
    return os.path.join(dataset.root, dataset.base_folder, "img_align_celeba", name)


def _face(dataset: Any, index: Any) -> tuple[Any, Any]:
    targets = [_rows(dataset, one)[index] for one in dataset.target_type]
    return _face_path(dataset, dataset.filename[index]), _together(targets)


def _faces(dataset: Any) -> tuple[Any, Any]:
    if len(dataset.target_type) > 1:
        return _one_by_one(_face)(dataset)
    return [_face_path(dataset, name) for name in dataset.filename], _rows(dataset, dataset.target_type[0])


def _face_fixed(dataset: Any) -> tuple[Any, ...]:
    tensors = [getattr(dataset, _FACE[one]) for one in dataset.target_type]
    return (dataset.root, dataset.base_folder, *dataset.target_type, *tensors)


_face_names = EACH | _JOIN | _SEVERAL | {*_FACE.values(), "filename", "base_folder", "root", "target_type"}
add_reader(
    datasets.CelebA,
    Reader(
        checker(_face_names | {"ValueError"}, ("filename",), _face, ITS_MODE, ("target_type", tuple(_FACE))),
        _face,
        lists=lambda dataset: (dataset.filename,),
        columns=_faces,
        fixed=_face_fixed,
        taken=_mode,
    ),
)
