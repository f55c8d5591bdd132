"""torchvision's data sets of detection and segmentation, with transforms of image and target together."""

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
from contract.test_joint import _leaves, unlike
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
    keys: object = None  # target_keys, of what is wrapped
    wrapped: bool = True


CASES = {
    "CocoDetection": Case(layouts.coco, BOTH),
    "CocoDetection, all but masks": Case(layouts.coco, BOTH, ("boxes", "labels", "area", "iscrowd", "bbox")),
    "CocoDetection as it is": Case(layouts.coco, BOTH, wrapped=False),
    "VOCDetection": Case(layouts.voc_detection, BOXES),
    "VOCDetection, all": Case(layouts.voc_detection, BOTH, "all"),
    "VOCSegmentation": Case(layouts.voc_segmentation, joint.SEGMENTATION),
    "VOCSegmentation as it is": Case(layouts.voc_segmentation, BOTH, wrapped=False),
    "OxfordIIITPet": Case(layouts.pets, joint.SEGMENTATION),
    "OxfordIIITPet as it is": Case(layouts.pets, BOTH, wrapped=False),
    "OxfordIIITPet, two targets": Case(layouts.pets_and_kinds, joint.SEGMENTATION),
    "Places365": Case(layouts.places, BOTH, wrapped=False),
    "Cityscapes": Case(layouts.cityscapes, joint.SEGMENTATION),
    "Cityscapes, instances": Case(layouts.cityscapes_instances, BOTH, wrapped=False),  # wrapped, torch refuses uint16
    "Cityscapes, polygons and colours": Case(layouts.cityscapes_polygons, BOTH, wrapped=False),
    "SBDataset": Case(layouts.sbd, joint.SEGMENTATION),
    "SBDataset, boundaries": Case(layouts.sbd_boundaries, BOTH, wrapped=False),
    "WIDERFace": Case(layouts.widerface, BOXES),
    "WIDERFace as it is": Case(layouts.widerface, BOTH, wrapped=False),
    "Kitti": Case(layouts.kitti, BOXES),
    "Kitti, all": Case(layouts.kitti, BOTH, "all"),
    "Kitti as it is": Case(layouts.kitti, BOTH, wrapped=False),
}


def made(case, root):
    dataset = case.layout(root)
    if isinstance(dataset, datasets.WIDERFace) and not case.wrapped:
        dataset.transform = case.transforms  # the image's alone
    else:
        dataset.transforms = case.transforms
    return datasets.wrap_dataset_for_transforms_v2(dataset, case.keys) if case.wrapped else dataset


@pytest.fixture
def old(tmp_path):
    """A folder for layouts; what was written just now is not left to DALI."""

    def written(case):
        dataset = made(case, tmp_path)
        time.sleep(0.05)
        return dataset

    return written


def compared(dataset, workers=0, exact=True, batch=4):
    """Samples of our loader, and of torch's under the same seed."""
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
def test_equal(old, name):
    """With exact=True to the last bit; by default all but images is, and these are near."""
    dataset = old(CASES[name])
    mine, theirs = compared(dataset)
    assert not unlike(mine, theirs), unlike(mine, theirs)[:3]
    mine, theirs = compared(dataset, exact=False)
    for one, other in zip(_leaves(mine), _leaves(theirs), strict=True):
        if isinstance(other, torch.Tensor) and other.ndim == 3 and type(other) is not tv_tensors.Mask:
            assert one.shape == other.shape and one.dtype == other.dtype and type(one) is type(other)
            assert (one.double() - other.double()).abs().mean() <= 0.02
        else:
            assert not unlike(one, other)


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_equal_with_workers(old, name):
    """What is fixed; what is drawn has other seeds there."""
    mine, theirs = compared(old(CASES[name]._replace(transforms=FIXED)), workers=2)
    assert not unlike(mine, theirs), unlike(mine, theirs)[:3]


def test_boxes_of_workers(old):
    """They know their format and canvas."""
    dataset = old(CASES["VOCDetection, all"]._replace(transforms=FIXED))
    boxes = next(iter(ours(dataset, 2, device="cpu", collate_fn=list, num_workers=1)))[0][1]["boxes"]
    assert type(boxes) is tv_tensors.BoundingBoxes and boxes.canvas_size == (40, 44)
