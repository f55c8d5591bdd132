"""torchvision's data sets that put paths together, or have several types of targets: as torchvision_sets.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torchvision import datasets

from .readers import Reader, add_reader
from .sources import InItsMode
from .torchvision_sets import BOTH, EACH, ITS_MODE, Sample, checker

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
