"""Transforms in another module that check the exact class of their input."""

import torch
from PIL import Image
from torchvision.transforms import functional as F


def is_plain_image(image):
    return type(image) is Image.Image


def equals_plain_image(image):
    return type(image) == Image.Image  # noqa: E721


def is_plain_tensor(value):
    return type(value) is torch.Tensor


CHECKS = {f"check_{number}": is_plain_image for number in range(40)}
TENSOR_CHECKS = {"plain": is_plain_tensor}


def flipped(image):
    return F.hflip(image) if equals_plain_image(image) else image


class Flip:
    def __call__(self, sample):
        sample["image"] = flipped(sample["image"])
        return sample


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, sample):
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class OneOf(Compose):
    def __call__(self, sample):
        return self.transforms[0](sample)
