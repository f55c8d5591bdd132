"""Every transform that translates, as measure.py measures it, and what becomes of torchvision's others."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import _presets, v2

from dali_compat.ops.translators import _TRANSLATORS

VERSIONS = {"v1": v1, "v2": v2}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# what reaches a transform when it is measured
TAKES = {
    "photo": "",
    "crop": "CenterCrop(224)",
    "gray crop": "CenterCrop(224), Grayscale()",
    "uint8 tensor": "CenterCrop(224), PILToTensor()",
    "float tensor": "CenterCrop(224), ToTensor()",
    "tv_tensor": "CenterCrop(224), ToImage()",
}


class Entry(NamedTuple):
    """A transform, or a recipe.

    Attributes:
        expression: how it is made, in the names of torchvision.transforms or of torchvision.transforms.v2.
        takes: what reaches it, one of TAKES.
    """

    expression: str
    takes: str = "crop"

    @property
    def name(self) -> str:
        return self.expression.split("(")[0]

    def made(self, version: str, first: tuple = ()) -> Any:
        """A Compose of what comes before it and itself."""
        return VERSIONS[version].Compose([*first, *self.before(version), _made(self.expression, version)])

    def before(self, version: str) -> list:
        return _made(f"[{TAKES[self.takes]}]", version)

    def versions(self) -> list[str]:
        """Those in which it has a translation."""
        return [version for version in VERSIONS if _names(version).get(self.name) in _TRANSLATORS]


def _made(expression: str, version: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # v2.ToTensor is deprecated
        return eval(expression, _names(version))


def _names(version: str) -> dict[str, Any]:
    others = {
        "ImageClassification": _presets.ImageClassification,
        "Sequential": nn.Sequential,
        "float32": torch.float32,
    }
    return others | {"MEAN": MEAN, "STD": STD} | vars(VERSIONS[version])


DECODING = Entry("PILToTensor()", "photo")
TRANSFORMS = (
    DECODING,
    # windows, flips and sizes
    Entry("CenterCrop(224)", "photo"),
    Entry("RandomCrop(224, padding=8, pad_if_needed=True)", "photo"),
    Entry("Pad(20, padding_mode='reflect')", "photo"),
    Entry("RandomZoomOut(side_range=(1, 2), p=1)", "photo"),
    Entry("FiveCrop(112)"),
    Entry("TenCrop(112)"),
    Entry("RandomHorizontalFlip()", "photo"),
    Entry("RandomVerticalFlip()", "photo"),
    Entry("Resize(256)", "photo"),
    Entry("RandomResizedCrop(224)", "photo"),
    Entry("ScaleJitter((256, 256), (0.8, 1.2))", "photo"),
    Entry("RandomShortestSize([224, 256, 288])", "photo"),
    Entry("RandomResize(224, 288)", "photo"),
    # warps
    Entry("RandomRotation(30, InterpolationMode.BILINEAR)"),
    Entry("RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10, InterpolationMode.BILINEAR)"),
    Entry("RandomPerspective(p=1)"),
    Entry("ElasticTransform()"),
    # colour and filters
    Entry("Grayscale(3)"),
    Entry("RandomGrayscale(0.5)"),
    Entry("RGB()", "gray crop"),
    Entry("ColorJitter(0.4, 0.4, 0.4, 0.1)"),
    Entry("RandomPhotometricDistort(p=1)"),
    Entry("RandomChannelPermutation()"),
    Entry("RandomInvert(p=1)"),
    Entry("RandomPosterize(4, p=1)"),
    Entry("RandomSolarize(128, p=1)"),
    Entry("RandomAdjustSharpness(2, p=1)"),
    Entry("RandomAutocontrast(p=1)"),
    Entry("RandomEqualize(p=1)"),
    Entry("GaussianBlur(23)"),
    Entry("JPEG((30, 90))"),
    # of tensors
    Entry("RandomErasing(p=1, value='random')", "float tensor"),
    Entry("GaussianNoise()", "float tensor"),
    # policies and containers
    Entry("AutoAugment()"),
    Entry("RandAugment()"),
    Entry("TrivialAugmentWide()"),
    Entry("AugMix()"),
    Entry("RandomApply([ColorJitter(0.4, 0.4, 0.4, 0.1)])"),
    Entry("RandomChoice([RandomInvert(), ColorJitter(0.4), GaussianBlur(9)])"),
    Entry("RandomOrder([RandomInvert(), ColorJitter(0.4), GaussianBlur(9)])"),
    Entry("Compose([RandomHorizontalFlip(), ColorJitter(0.4)])"),
    Entry("Sequential(RandomHorizontalFlip(), ColorJitter(0.4))"),
    Entry("ImageClassification(crop_size=224)", "photo"),
    # conversions
    Entry("Identity()"),
    Entry("ToTensor()"),
    Entry("ToImage()"),
    Entry("ToPureTensor()", "tv_tensor"),
    Entry("ToPILImage()", "uint8 tensor"),
    Entry("ConvertImageDtype(float32)", "uint8 tensor"),
    Entry("ToDtype(float32, scale=True)", "tv_tensor"),
    Entry("Normalize(MEAN, STD)", "float tensor"),
)

_TAIL = "ToTensor(), Normalize(MEAN, STD)"
_PRESET = (
    "Compose([RandomResizedCrop(224), RandomHorizontalFlip(), {}(interpolation=InterpolationMode.BILINEAR), "
    "PILToTensor(), ConvertImageDtype(float32), Normalize(MEAN, STD), RandomErasing(0.1)])"
)
# what people train with
RECIPES = {
    "ImageNet, evaluation": Entry(f"Compose([Resize(256), CenterCrop(224), {_TAIL}])", "photo"),
    "ImageNet, training": Entry(f"Compose([RandomResizedCrop(224), RandomHorizontalFlip(), {_TAIL}])", "photo"),
    "the same on tensors": Entry(
        "Compose([PILToTensor(), RandomResizedCrop(224), RandomHorizontalFlip(), ConvertImageDtype(float32), "
        "Normalize(MEAN, STD)])",
        "photo",
    ),
    "SimCLR": Entry(
        "Compose([RandomResizedCrop(224), RandomHorizontalFlip(), RandomApply([ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8), "
        f"RandomGrayscale(0.2), RandomApply([GaussianBlur(23)], 0.5), {_TAIL}])",
        "photo",
    ),
    "torchvision's preset with ta_wide": Entry(_PRESET.format("TrivialAugmentWide"), "photo"),
    "torchvision's preset with ra": Entry(_PRESET.format("RandAugment"), "photo"),
}

_LEAVES_IMAGES = "for boxes and key points; leaves images as they are, called sample by sample"
_NEEDS = "needs {}, which image folders do not have: torchvision, too, refuses images alone"
_BATCHES = "takes batches: call it on what the loader gives, on the GPU, or in `collate_fn`"
# torchvision's other transforms, and what becomes of them
OTHERS = {
    "Lambda": "your function is called sample by sample; what is around it stays translated",
    "Transform": "of a class of your own the same, unless a translation is [registered](#transforms-of-your-own)",
    "CutMix": _BATCHES,
    "MixUp": _BATCHES,
    "LinearTransformation": "called sample by sample; one matrix for all is a step of training, on the whole batch",
    "RandomIoUCrop": _NEEDS.format("bounding boxes"),
    "SanitizeBoundingBoxes": _NEEDS.format("bounding boxes"),
    "SanitizeKeyPoints": _NEEDS.format("key points"),
    "ClampBoundingBoxes": _LEAVES_IMAGES,
    "ClampKeyPoints": _LEAVES_IMAGES,
    "ConvertBoundingBoxFormat": _LEAVES_IMAGES,
    "SetClampingMode": _LEAVES_IMAGES,
    "UniformTemporalSubsample": "for videos",
}
