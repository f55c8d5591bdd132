"""torchvision's data sets of detection and segmentation, with transforms of image and target together."""

import time

import numpy as np
import pytest
import torch
from helpers import make_image
from PIL import Image
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2

from contract import joint_datasets as joint
from contract.both import ours, stock
from contract.test_joint import unlike
from contract.test_own_datasets import real, seeded

COUNT = 6
BOX = "<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"


@pytest.fixture(scope="module")
def voc(tmp_path_factory):
    """VOCdevkit/VOC2012, as torchvision has it."""
    root = tmp_path_factory.mktemp("voc")
    base = root / "VOCdevkit" / "VOC2012"
    for folder in ("ImageSets/Main", "ImageSets/Segmentation", "JPEGImages", "SegmentationClass", "Annotations"):
        (base / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        height, width = map(int, rng.integers(70, 130, 2))
        image = Image.fromarray(make_image(rng, height, width))
        image.save(base / "JPEGImages" / f"{number}.jpg", quality=90)
        mask = image.convert("L").point(lambda value: value // 13).convert("P")
        mask.save(base / "SegmentationClass" / f"{number}.png")
        boxes = "".join(BOX.format(name, 5, 6, width // 2, height - 3) for name in ("dog", "cat")[: 1 + number % 2])
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        (base / "Annotations" / f"{number}.xml").write_text(f"<annotation>{size}{boxes}</annotation>")
    for kind in ("Main", "Segmentation"):
        names = "\n".join(map(str, range(COUNT)))
        (base / "ImageSets" / kind / "train.txt").write_text(names)
    time.sleep(0.05)  # what was written just now is not left to DALI
    return root


def assert_as_torch(make, workers=0):
    loaders = []

    def mine(*args, **kwargs):
        loaders.append(ours(*args, exact=True, device="cpu", **kwargs))
        return loaders[-1]

    options = dict(shuffle=not workers, collate_fn=list, num_workers=workers)
    found = seeded(make(), 4, **options)(mine)
    expected = seeded(make(), 4, **options)(stock)
    assert not unlike(found, expected), unlike(found, expected)[:3]
    assert real(loaders[0]) == 0 and loaders[0].explain().startswith("DALI route")


def test_segmentation(voc):
    """As they are, with transforms of both; and wrapped."""

    def make(wrapped=True):
        dataset = datasets.VOCSegmentation(str(voc), "2012", "train", transforms=joint.SEGMENTATION)
        return datasets.wrap_dataset_for_transforms_v2(dataset)

    assert_as_torch(make)
    both = v2.Compose([v2.Resize((40, 40)), v2.RandomHorizontalFlip(), *joint.TO_FLOAT])
    assert_as_torch(lambda: datasets.VOCSegmentation(str(voc), "2012", "train", transforms=both))


def test_detection(voc):
    transforms = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomPhotometricDistort(),
            v2.RandomIoUCrop(),
            v2.RandomHorizontalFlip(),
            v2.Resize((48, 48)),
            v2.ToDtype(torch.float32, scale=True),
            v2.SanitizeBoundingBoxes(labels_getter=lambda inputs: inputs[1]["labels"]),
        ]
    )

    def make():
        dataset = datasets.VOCDetection(str(voc), "2012", "train", transforms=transforms)
        return datasets.wrap_dataset_for_transforms_v2(dataset, target_keys=["boxes", "labels"])

    assert_as_torch(make)


def test_workers(voc):
    fixed = v2.Compose([v2.Resize((40, 44)), v2.RandomHorizontalFlip(1.0), *joint.TO_FLOAT])

    def make():
        dataset = datasets.VOCDetection(str(voc), "2012", "train", transforms=fixed)
        return datasets.wrap_dataset_for_transforms_v2(dataset, target_keys="all")

    assert_as_torch(make, workers=1)
    boxes = next(iter(ours(make(), 2, device="cpu", collate_fn=list, num_workers=1)))[0][1]["boxes"]
    assert type(boxes) is tv_tensors.BoundingBoxes and boxes.canvas_size == (40, 44)
