"""Every translated transform, as measured by measure.py, and a note on each other transform of torchvision."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import _presets, v2

from dali_compat.ops.policy import AUGMENTATIONS
from dali_compat.ops.translators import _TRANSLATORS
from dali_compat.plan import Step

VERSIONS = {"v1": v1, "v2": v2}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# the kinds of input of a measured transform
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
        expression: An expression with the names of torchvision.transforms or torchvision.transforms.v2.
        takes: The kind of its input, one of TAKES.
    """

    expression: str
    takes: str = "crop"

    @property
    def name(self) -> str:
        return self.expression.split("(")[0]

    def made(self, version: str, first: tuple = ()) -> Any:
        """Return a Compose of the preceding conversions and the transform."""
        return VERSIONS[version].Compose([*first, *self.before(version), _made(self.expression, version)])

    def before(self, version: str) -> list:
        return _made(f"[{TAKES[self.takes]}]", version)

    def versions(self) -> list[str]:
        """Return the versions that have a translation."""
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
    # on tensors
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
# recipes that people train with
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

_LEAVES_IMAGES = "run sample by sample; they change only boxes and key points"
_NEEDS = "need boxes or key points, which image folders do not have; torchvision raises an error, too"
_CROPS = "run sample by sample"
_BATCHES = "take batches: [call them](#cutmix-and-mixup) on the loader's batches or in `collate_fn`"
# torchvision's other transforms, and how they are handled
OTHERS = {
    "Lambda": "a function that only applies translated transforms is translated; any other runs sample by sample",
    "Transform": "a subclass runs sample by sample, unless a translation is [registered](#custom-transforms)",
    "CutMix": _BATCHES,
    "MixUp": _BATCHES,
    "FiveCrop": _CROPS,
    "TenCrop": _CROPS,
    "LinearTransformation": "runs sample by sample; multiply the whole batch in the training step instead",
    "RandomIoUCrop": _NEEDS,
    "SanitizeBoundingBoxes": _NEEDS,
    "SanitizeKeyPoints": _NEEDS,
    "ClampBoundingBoxes": _LEAVES_IMAGES,
    "ClampKeyPoints": _LEAVES_IMAGES,
    "ConvertBoundingBoxFormat": _LEAVES_IMAGES,
    "SetClampingMode": _LEAVES_IMAGES,
    "UniformTemporalSubsample": "takes videos, not images",
}

# ---- answers to torchvision's draws, keyed by the name of the draw


def answers(step: Step, row: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return (kind, value) pairs in the order of torchvision's requests; ``row`` has a step's arrays for one image.

    The kinds, and the functions that request them:

    - "coin": torch.rand, for a probability; "uniform": Tensor.uniform_; "whole": torch.randint
    - "order": torch.randperm, random.shuffle; "choice": random.choices, torch.multinomial
    - "window", "size": get_params or make_params of transforms that retry until a window fits; see dictation.py
    - "operation": a policy, as (name, magnitude); "dirichlet": AugMix
    - "noise": torch.randn_like; "field": torch.rand of ElasticTransform

    Raises:
        NotImplementedError: The draw has no answers here, or torchvision does not request it.
    """
    assert step.draw is not None  # the step is random
    if step.draw.name not in ANSWERS:
        raise NotImplementedError(f"draw_{step.draw.name} has no answers for torchvision: write them in {__file__}")
    return ANSWERS[step.draw.name](row, step)


def coin(yes) -> tuple[str, float]:
    """Return an answer to ``torch.rand(1) < p`` for any p."""
    return "coin", 0.0 if yes else 1.0


def _of_random_key(row, step):
    return [("field", (row["key"], axis)) for axis in (0, 1)] if step.op == "elastic" else [("noise", row["key"])]


def _of_affine_parameters(row, step):
    args = dict(step.draw.args)
    shears = len(args["shear"] or ()) // 2
    given = {"translate": 2 * (args["translate"] is not None), "scale": args["scale"] is not None, "shear": shears}
    values = [value for name, count in given.items() for value in np.atleast_1d(row[name])[:count]]
    return [("uniform", value) for value in (row["angle"], *values)]


def _of_color_jitter(row, step):
    factors = (row[name] for name in ("brightness", "contrast", "saturation", "hue") if name in row)
    return [("order", row["order"].tolist()), *(("uniform", factor) for factor in factors)]


def _of_photometric_distort(row, step):
    before, after = (float(row[f"contrast_{when}"]) for when in ("before", "after"))
    contrast = after if np.isnan(before) else before
    found: list[tuple[str, Any]] = []
    for factor in (row["brightness"], contrast, row["saturation"], row["hue"]):
        found += [coin(False)] if np.isnan(factor) else [coin(True), ("uniform", factor)]
    found.append(coin(not np.isnan(before)))
    order = row["order"].tolist()
    return found + ([coin(False)] if order[0] < 0 else [coin(True), ("order", order)])


def _of_operation(row, step):
    if not row.get("flag", 1):
        return [("operation", None)]
    return [("operation", (AUGMENTATIONS[row["which"]], float(row["magnitude"])))]


def _of_aug_mix(row, step):
    random_depth = dict(step.draw.args)["chain_depth"] <= 0
    # torchvision multiplies the chains' weights by the second of the first two; ours already contain that factor
    found = [("dirichlet", [row["mix"][0], 1.0]), ("dirichlet", row["mix"][1:].tolist())]
    for which, magnitudes in zip(row["which"], row["magnitude"].tolist(), strict=True):
        pairs = zip(which, magnitudes, strict=True)
        chain = [("operation", (AUGMENTATIONS[op], magnitude)) for op, magnitude in pairs if op >= 0]
        found += [*([("whole", len(chain))] if random_depth else []), *chain]
    return found


_FLAG: Any = lambda row, step: [coin(row["flag"])]  # noqa: E731
_WINDOW: Any = lambda row, step: [("window", row)]  # noqa: E731
_ORDER: Any = lambda row, step: [("order", row["order"].tolist())]  # noqa: E731
_SIZE: Any = lambda row, step: [("size", row["size"].astype(int).tolist())]  # noqa: E731
ANSWERS: dict[str, Callable[[dict[str, Any], Step], list[tuple[str, Any]]]] = {
    "bernoulli": _FLAG,
    "random_key": _of_random_key,
    # windows and sizes
    **dict.fromkeys(("random_crop", "random_resized_crop"), _WINDOW),
    # an unchanged image gets no border
    "zoom_out": lambda row, step: [coin(True), ("window", row)] if dict(step.draw.args)["p"] else [coin(False)],
    "erasing": lambda row, step: [coin(row["flag"]), *([("window", row)] if row["flag"] else [])],
    **dict.fromkeys(("scale_jitter", "random_shortest_size"), _SIZE),
    "random_resize": lambda row, step: [("whole", int(row["size"].min()))],
    # warps
    "rotation": lambda row, step: [("uniform", row["angle"])],
    "affine_parameters": _of_affine_parameters,
    "perspective_points": lambda row, step: [
        coin(row["flag"]),
        *(("whole", int(v)) for v in row["endpoints"].flat if row["flag"]),
    ],
    # colour, filters and noise
    "channel_permutation": _ORDER,
    "color_jitter": _of_color_jitter,
    "photometric_distort": _of_photometric_distort,
    "blur_sigma": lambda row, step: [("uniform", row["sigma"][0])],
    "jpeg_quality": lambda row, step: [("whole", int(row["quality"]))],
    # policies and containers
    **dict.fromkeys(("auto_augment", "rand_augment", "trivial_augment_wide"), _of_operation),
    "aug_mix": _of_aug_mix,
    "choice": lambda row, step: [("choice", int(row["choice"]))],
    "order": _ORDER,
}
