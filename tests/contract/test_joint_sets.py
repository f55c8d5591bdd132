"""torchvision's detection and segmentation data sets with joint transforms of image and target."""

import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2

from contract import joint_datasets as joint
from contract import joint_layouts as layouts
from contract.both import ours, stock
from contract.test_joint import _leaves, differences
from contract.test_own_datasets import real, seeded

BOTH = v2.Compose([v2.Resize((40, 40)), v2.RandomHorizontalFlip(), *joint.TO_FLOAT])
BOXES = v2.Compose(
    [
        v2.ToImage(),
        v2.RandomPhotometricDistort(),
        v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(),
        v2.Resize((48, 48)),
        v2.ToDtype(torch.float32, scale=True),
        v2.SanitizeBoundingBoxes(labels_getter=None),
    ]
)
FIXED = v2.Compose([v2.Resize((40, 44)), v2.RandomHorizontalFlip(1.0), *joint.TO_FLOAT])


class Case(NamedTuple):
    layout: Callable
    transforms: Callable
    keys: object = None  # target_keys for a wrapped data set
    wrapped: bool = True


CASES = {
    "CocoDetection": Case(layouts.coco, BOTH),
    "CocoDetection, all but masks": Case(layouts.coco, BOTH, ("boxes", "labels", "area", "iscrowd", "bbox")),
    "CocoDetection, not wrapped": Case(layouts.coco, BOTH, wrapped=False),
    "VOCDetection": Case(layouts.voc_detection, BOXES),
    "VOCDetection, all": Case(layouts.voc_detection, BOTH, "all"),
    "VOCSegmentation": Case(layouts.voc_segmentation, joint.SEGMENTATION),
    "VOCSegmentation, not wrapped": Case(layouts.voc_segmentation, BOTH, wrapped=False),
    "OxfordIIITPet": Case(layouts.pets, joint.SEGMENTATION),
    "OxfordIIITPet, not wrapped": Case(layouts.pets, BOTH, wrapped=False),
    "OxfordIIITPet, two targets": Case(layouts.pets_and_kinds, joint.SEGMENTATION),
    "Places365": Case(layouts.places, BOTH, wrapped=False),
    "Cityscapes": Case(layouts.cityscapes, joint.SEGMENTATION),
    "Cityscapes, instances": Case(layouts.cityscapes_instances, BOTH, wrapped=False),  # torch cannot wrap uint16
    "Cityscapes, polygons and colours": Case(layouts.cityscapes_polygons, BOTH, wrapped=False),
    "SBDataset": Case(layouts.sbd, joint.SEGMENTATION),
    "SBDataset, boundaries": Case(layouts.sbd_boundaries, BOTH, wrapped=False),
    "WIDERFace": Case(layouts.widerface, BOXES),
    "WIDERFace, not wrapped": Case(layouts.widerface, BOTH, wrapped=False),
    "Kitti": Case(layouts.kitti, BOXES),
    "Kitti, all": Case(layouts.kitti, BOTH, "all"),
    "Kitti, not wrapped": Case(layouts.kitti, BOTH, wrapped=False),
}


def make_dataset(case, root):
    dataset = case.layout(root)
    if isinstance(dataset, datasets.WIDERFace) and not case.wrapped:
        dataset.transform = case.transforms  # changes only the image
    else:
        dataset.transforms = case.transforms
    return datasets.wrap_dataset_for_transforms_v2(dataset, case.keys) if case.wrapped else dataset


@pytest.fixture
def make_aged_dataset(tmp_path):
    """Function that writes a data set and waits, because files written just now are not deferred."""

    def written(case):
        dataset = make_dataset(case, tmp_path)
        time.sleep(0.05)
        return dataset

    return written


def samples_of_both(dataset, workers=0, exact=True, batch=4):
    """Return the samples of our loader and of torch's under the same seed."""
    loaders = []

    def mine(*args, **kwargs):
        loaders.append(ours(*args, exact=exact, device="cpu", **kwargs))
        return loaders[-1]

    options = dict(shuffle=not workers, collate_fn=list, num_workers=workers)
    found = seeded(dataset, batch, **options)(mine)
    expected = seeded(dataset, batch, **options)(stock)
    assert real(loaders[0]) == 0 and loaders[0].explain().startswith("DALI route")
    return found, expected


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_samples_equal_torchs(make_aged_dataset, name):
    """exact=True gives bitwise equal samples; by default images are only close."""
    dataset = make_aged_dataset(CASES[name])
    mine, theirs = samples_of_both(dataset)
    assert not differences(mine, theirs), differences(mine, theirs)[:3]
    mine, theirs = samples_of_both(dataset, exact=False)
    for one, other in zip(_leaves(mine), _leaves(theirs), strict=True):
        if isinstance(other, torch.Tensor) and other.ndim == 3 and type(other) is not tv_tensors.Mask:
            assert one.shape == other.shape and one.dtype == other.dtype and type(one) is type(other)
            assert (one.double() - other.double()).abs().mean() <= 0.02
        else:
            assert not differences(one, other)


@pytest.mark.parametrize("name", list(CASES)[::7])
def test_samples_of_fixed_transforms_in_workers_equal_torchs(make_aged_dataset, name):
    """Random transforms use other seeds in workers."""
    mine, theirs = samples_of_both(make_aged_dataset(CASES[name]._replace(transforms=FIXED)), workers=2)
    assert not differences(mine, theirs), differences(mine, theirs)[:3]


def test_boxes_from_workers_keep_their_class_and_canvas(make_aged_dataset):
    dataset = make_aged_dataset(CASES["VOCDetection, all"]._replace(transforms=FIXED))
    boxes = next(iter(ours(dataset, 2, device="cpu", collate_fn=list, num_workers=1)))[0][1]["boxes"]
    assert type(boxes) is tv_tensors.BoundingBoxes and boxes.canvas_size == (40, 44)
