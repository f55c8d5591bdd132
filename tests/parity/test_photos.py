"""Real photos: the numbers that README.md and DESIGN.md promise."""

import pytest
import torch
from parity.compare import assert_same, error
from parity.run import epoch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, _presets, v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PHOTOS = 54  # as many as the GPU machine gets

DECODE = v1.PILToTensor()
VAL = v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.ToTensor(), v1.Normalize(MEAN, STD)])
PRESET = _presets.ImageClassification(crop_size=224)
TRAIN = v1.Compose([v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)])
IDIOM = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(224), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

# (mean, max) in levels. CPU: measured in the comment, default; exact. GPU: one H100, 54 photos.
CPU = {
    "decode": (DECODE, None, [(0, 0), (0, 0)]),
    "val": (VAL, STD, [(9, 255), (9, 255)]),
    "preset": (PRESET, STD, [(9, 255), (9, 255)]),
    "train": (TRAIN, STD, [(9, 255), (9, 255)]),
    "idiom": (IDIOM, STD, [(9, 255), (9, 255)]),
    "pair": (v1.Compose([v1.Resize((224, 224)), v1.PILToTensor()]), None, [(9, 255), (9, 255)]),
    "256": (v1.Compose([v1.Resize(256), v1.PILToTensor()]), None, [(9, 255), (9, 255)]),
    "600": (v1.Compose([v1.Resize(600), v1.CenterCrop(500), v1.PILToTensor()]), None, [(9, 255), (9, 255)]),
    "max_size": (v1.Compose([v1.Resize(256, max_size=300), v1.PILToTensor()]), None, [(9, 255), (9, 255)]),
    "bicubic": (v1.Compose([v1.Resize(256, InterpolationMode.BICUBIC), v1.CenterCrop(224), v1.PILToTensor()]), None, [(9, 255), (9, 255)]),
    "lanczos": (v1.Compose([v1.Resize(256, InterpolationMode.LANCZOS), v1.CenterCrop(224), v1.PILToTensor()]), None, [(9, 255), (9, 255)]),
    "nearest": (v1.Compose([v1.Resize(256, InterpolationMode.NEAREST), v1.CenterCrop(224), v1.PILToTensor()]), None, [(9, 255), (9, 255)]),
}

if __name__ == "__main__":
    for k, (t, std, _) in CPU.items():
        print(k, *[str(error(*epoch("/work/shared/images/photos", t, "cpu", x, most=n), std)) for n in (54, 108) for x in (False, True)])
