"""Data sets whose samples have masks, boxes, points and labels that are transformed together with the image."""

import random

import numpy as np
import torch
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.ops import masks_to_boxes
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F
from torchvision.transforms.v2 import functional as F2

TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
FILL = {tv_tensors.Image: (123, 117, 104), tv_tensors.Mask: 0, "others": 7}


class Joint(data.Dataset):
    """Photos with a mask, boxes and points that depend on the sample's index."""

    def __init__(self, folder: ImageFolder, transforms=None):
        self.paths = [path for path, _ in folder.samples]
        self.masks = [path.replace(".jpg", "_mask.png") for path in self.paths]
        self.transforms = transforms

    def __len__(self):
        return len(self.paths)

    def image(self, i):
        return Image.open(self.paths[i]).convert("RGB")

    def boxes(self, i, image):
        width, height = image.size
        rng = np.random.default_rng(i)
        corners = rng.random((1 + i % 4, 2)) * 0.5
        boxes = np.concatenate([corners, corners + 0.1 + rng.random(corners.shape) * 0.35], 1)
        boxes = torch.tensor(boxes * [width, height, width, height], dtype=torch.float32)
        return tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width))

    def __getitem__(self, i):
        image = self.image(i)
        target = {"boxes": self.boxes(i, image), "labels": torch.arange(1 + i % 4)}
        return self.transforms(image, target)


class WithMask(Joint):
    def __getitem__(self, i):
        mask = tv_tensors.Mask(Image.open(self.masks[i]))
        return self.transforms(self.image(i), mask)


class AsDict(Joint):
    """A nested dict with every type of tv_tensors."""

    def __getitem__(self, i):
        image = self.image(i)
        width, height = image.size
        points = torch.tensor([[3.0, 4.0], [width / 2, height / 3]])
        if hasattr(tv_tensors, "KeyPoints"):  # missing in older torchvision
            points = tv_tensors.KeyPoints(points, canvas_size=(height, width))
        sample = {
            "image": image,
            "mask": tv_tensors.Mask(Image.open(self.masks[i])),
            "target": {"boxes": self.boxes(i, image), "labels": torch.arange(1 + i % 4), "name": self.paths[i]},
            "points": points,
        }
        return self.transforms(sample)


class AllBoxFormats(Joint):
    """Boxes in a different format for each sample, including rotated ones if torchvision supports them."""

    def boxes(self, i, image):
        boxes, formats = super().boxes(i, image), [*tv_tensors.BoundingBoxFormat]
        to = formats[i % len(formats)]
        if getattr(tv_tensors, "is_rotated_bounding_format", lambda format: False)(to):
            boxes = F2.convert_bounding_box_format(boxes, new_format="CXCYWH")
            turned = torch.cat([boxes.as_subclass(torch.Tensor), 40.0 * torch.arange(len(boxes))[:, None]], 1)
            boxes = tv_tensors.BoundingBoxes(turned, format="CXCYWHR", canvas_size=boxes.canvas_size)
        return F2.convert_bounding_box_format(boxes, new_format=to)


class Instances(Joint):
    """A mask of each instance, read from one file, and the boxes of the masks."""

    def __getitem__(self, i):
        labels = torch.as_tensor(np.array(Image.open(self.masks[i])))
        numbers = labels.unique()[1:]
        masks = labels == numbers[:, None, None]
        boxes = tv_tensors.BoundingBoxes(masks_to_boxes(masks), format="XYXY", canvas_size=labels.shape)
        target = {"masks": tv_tensors.Mask(masks), "boxes": boxes, "labels": numbers.long()}
        image, target = self.transforms(F2.to_image(self.image(i)), target)
        return image, {**target, "area": target["masks"].flatten(1).sum(1)}


class Pair(Joint):
    """v1 functions, called on image and mask with the same numbers."""

    def __getitem__(self, i):
        image, mask = self.image(i), Image.open(self.masks[i])
        short = random.randint(24, 40)
        image, mask = F.resize(image, short), F.resize(mask, short, interpolation=InterpolationMode.NEAREST)
        if random.random() < 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        if random.random() < 0.5:
            angle = random.uniform(-20, 20)
            image = F.rotate(image, angle, InterpolationMode.BILINEAR)
            mask = F.rotate(mask, angle, fill=255)
        width, height = image.size
        pad = max(0, 32 - height), max(0, 32 - width)
        image, mask = F.pad(image, [0, 0, pad[1], pad[0]]), F.pad(mask, [0, 0, pad[1], pad[0]], fill=255)
        window = T.RandomCrop.get_params(image, (32, 32))
        image, mask = F.crop(image, *window), F.crop(mask, *window)
        image = F.normalize(F.to_tensor(image), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
        return image, torch.as_tensor(np.array(mask), dtype=torch.int64)


class Tensors(Joint):
    """A mask converted to integers without reading its values."""

    def __getitem__(self, i):
        image, mask = F2.to_image(self.image(i)), tv_tensors.Mask(Image.open(self.masks[i]))
        window = v2.RandomCrop.get_params(image, (30, 28))
        image, mask = F2.crop(image, *window), F2.crop(mask, *window)
        return image, mask.squeeze(0).long()


class ReadsSize(Joint):
    """A data set that reads a size between two steps."""

    def __getitem__(self, i):
        image, mask = self.image(i), Image.open(self.masks[i])
        scale = random.uniform(0.6, 1.4)
        size = max(24, int(image.height * scale)), max(24, int(image.width * scale))
        image, mask = F.resize(image, size), F.resize(mask, size, F.InterpolationMode.NEAREST)
        top, left = random.randint(0, image.height - 24), random.randint(0, image.width - 24)
        image, mask = (one.crop((left, top, left + 24, top + 24)) for one in (image, mask))
        return F.to_tensor(image), F.pil_to_tensor(mask)


def _with_sanitize(*transforms):
    return v2.Compose([*transforms, v2.SanitizeBoundingBoxes(labels_getter=_labels)])


def _labels(inputs):
    """Return the labels of a pair or of a nested dict."""
    return inputs["target"]["labels"] if isinstance(inputs, dict) else inputs[1]["labels"]


SSD = _with_sanitize(
    v2.RandomPhotometricDistort(),
    v2.RandomZoomOut(fill=FILL),
    v2.RandomIoUCrop(),
    v2.RandomHorizontalFlip(),
    v2.Resize((40, 40)),
    *TO_FLOAT,
)
LSJ = _with_sanitize(
    v2.ToImage(),
    v2.ScaleJitter((48, 48), (0.3, 1.6)),
    v2.RandomCrop((48, 48), pad_if_needed=True, fill=FILL),
    v2.RandomHorizontalFlip(),
    v2.ToDtype(torch.float32, scale=True),
)
DETR = _with_sanitize(
    v2.RandomHorizontalFlip(),
    v2.RandomChoice(
        [
            v2.RandomShortestSize([24, 28, 32], max_size=60),
            v2.Compose(
                [
                    v2.RandomShortestSize([30, 36]),
                    v2.RandomCrop((24, 28), pad_if_needed=True),
                    v2.RandomShortestSize([24, 28, 32], max_size=60),
                ]
            ),
        ]
    ),
    *TO_FLOAT,
    v2.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
)
SEGMENTATION = v2.Compose(
    [
        v2.ToImage(),
        v2.RandomResize(24, 60),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop((32, 32), pad_if_needed=True, fill={tv_tensors.Image: 0, tv_tensors.Mask: 255}),
        v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
        v2.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    ]
)
WARPS = v2.Compose(
    [
        v2.RandomRotation(30, v2.InterpolationMode.BILINEAR),
        v2.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5, v2.InterpolationMode.BILINEAR),
        v2.RandomPerspective(0.3, p=0.5),
        v2.RandomVerticalFlip(),
        v2.RandomResizedCrop((32, 36)),
        *TO_FLOAT,
        v2.RandomErasing(p=0.7),
    ]
)
WARPS_OF_TENSORS = v2.Compose(
    [
        v2.ToImage(),
        v2.RandomRotation(30, v2.InterpolationMode.BILINEAR),
        v2.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5, v2.InterpolationMode.BILINEAR),
        v2.RandomApply([v2.GaussianBlur(5)]),
        v2.RandomApply([v2.ElasticTransform(20.0)], p=0.3),
        v2.CenterCrop((36, 38)),
        v2.RandomGrayscale(),
        v2.RandomPosterize(5),
        v2.ToDtype(torch.float32, scale=True),
    ]
)
