"""Containers that choose, policies, and recipes of real programs."""

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from .case import FLOAT, case, of_pil

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
F32 = torch.float32
BILINEAR = InterpolationMode.BILINEAR

# ---- containers

CONTAINERS = {
    "RandomApply": lambda T: T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomHorizontalFlip()], 0.7),
    "RandomApply always": lambda T: T.RandomApply([T.RandomInvert(1)], p=1),
    "RandomApply never": lambda T: T.RandomApply([T.RandomInvert(1)], p=0),
    "RandomChoice": lambda T: T.RandomChoice(
        [T.RandomInvert(1), T.RandomHorizontalFlip(), T.ColorJitter(0.5), nn.Identity()]
    ),
    "RandomChoice weighted": lambda T: T.RandomChoice(
        [T.RandomInvert(1), T.RandomVerticalFlip(1), T.RandomSolarize(90, 1)], [5, 1, 3]
    ),
    "RandomOrder": lambda T: T.RandomOrder(
        [T.RandomInvert(), T.RandomPosterize(4), T.ColorJitter(0.5), T.RandomSolarize(100)]
    ),
    "nested": lambda T: T.RandomApply(
        [
            T.RandomChoice(
                [
                    T.RandomOrder([T.RandomSolarize(100, 0.7), T.ColorJitter(0.5)]),
                    T.Compose([T.RandomInvert(), T.Grayscale(3)]),
                ]
            ),
            T.RandomPosterize(3),
        ],
        0.8,
    ),
}
for name, make in CONTAINERS.items():
    of_pil(name, lambda T, m=make: [T.CenterCrop(64), m(T)])
    of_pil(f"{name} ragged", make, most=6)
    case(f"{name} of tensors", lambda T, m=make: [T.CenterCrop(64), T.PILToTensor(), m(T)])
of_pil("RandomChoice of one size", lambda T: [T.RandomChoice([T.CenterCrop(50), T.RandomCrop(50)]), T.RandomInvert()])

# ---- several views

case("FiveCrop", lambda T: T.FiveCrop(40), calls=True)
case("TenCrop of tensors", lambda T: [T.CenterCrop(60), T.PILToTensor(), T.TenCrop(40)], calls=True)
case(
    "FiveCrop, more",
    lambda T: [
        T.FiveCrop(40),
        T.ColorJitter(0.4, 0.4),
        T.ToImage(),
        T.ToDtype(F32, scale=True),
        T.Normalize(MEAN, STD),
    ],
    FLOAT,
    std=STD,
    calls=True,
    versions=[v2],
)


def _stacked(crops):
    return torch.stack([v1.functional.pil_to_tensor(crop) for crop in crops])


case("TenCrop, Lambda", lambda T: [T.TenCrop(40), T.Lambda(_stacked)], calls=True, versions=[v1])

# ---- policies

POLICIES = {
    **{f"AutoAugment {policy.value}": lambda T, p=policy: T.AutoAugment(p) for policy in v1.AutoAugmentPolicy},
    "AutoAugment bilinear": lambda T: T.AutoAugment(interpolation=BILINEAR, fill=(10, 200, 30)),
    "RandAugment": lambda T: T.RandAugment(),
    "RandAugment strong": lambda T: T.RandAugment(3, 14, interpolation=BILINEAR, fill=(10, 200, 30)),
    "TrivialAugmentWide": lambda T: T.TrivialAugmentWide(),
    "TrivialAugmentWide bilinear": lambda T: T.TrivialAugmentWide(interpolation=BILINEAR, fill=[10, 200, 30]),
    "AugMix": lambda T: T.AugMix(),
    "AugMix strong": lambda T: T.AugMix(
        10, 2, 4, 0.3, all_ops=False, interpolation=InterpolationMode.NEAREST, fill=[10, 200, 30]
    ),
}
for name, make in POLICIES.items():
    of_pil(name, lambda T, m=make: [T.CenterCrop((64, 75)), m(T)], most=24)
    of_pil(f"{name} ragged", make, most=6)
    if "fill" not in name:
        case(f"{name} of tensors", lambda T, m=make: [T.CenterCrop((64, 75)), T.PILToTensor(), m(T)], most=24)
of_pil("TrivialAugmentWide gray", lambda T: [T.Grayscale(), T.CenterCrop(64), T.TrivialAugmentWide()])

# ---- recipes


def _preset(T, policy):
    """Return ClassificationPresetTrain of torchvision/references/classification/presets.py for PIL images."""
    return [
        T.RandomResizedCrop(64, interpolation=BILINEAR),
        T.RandomHorizontalFlip(0.5),
        policy,
        T.PILToTensor(),
        T.ConvertImageDtype(F32),
        T.Normalize(MEAN, STD),
        T.RandomErasing(0.5),
    ]


# Policies amplify rounding differences of the default's resize: one level flips a bit or is a step of equalization.
RECIPES = {
    "ra": (
        lambda T: T.RandAugment(interpolation=BILINEAR, magnitude=9),
        (0.42, 200),
    ),  # .18/149, and .35/147 with other random numbers
    "ta_wide": (lambda T: T.TrivialAugmentWide(interpolation=BILINEAR), (0.22, 200)),  # .16/84
    "augmix": (lambda T: T.AugMix(interpolation=BILINEAR, severity=3), (0.28, 200)),  # .23/134
    "imagenet": (
        lambda T: T.AutoAugment(T.AutoAugmentPolicy("imagenet"), interpolation=BILINEAR),
        (0.3, 255),
    ),  # .26/198
}
for name, (make, limits) in RECIPES.items():
    case(f"preset {name}", lambda T, m=make: _preset(T, m(T)), limits, std=STD, most=24)
case(
    "SimCLR",
    lambda T: [
        T.RandomResizedCrop(64),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        T.RandomGrayscale(0.2),
        T.RandomApply([T.GaussianBlur(23)], 0.5),
        T.ToTensor(),
        T.Normalize(MEAN, STD),
    ],
    (0.22, 12),
    (1e-5, 1.001),
    std=STD,
)  # .18/8; .0000068/1: the blur
case(
    "preset of tensors",
    lambda T: [
        T.PILToTensor(),
        T.RandomResizedCrop(64, antialias=True),
        T.RandomHorizontalFlip(),
        T.TrivialAugmentWide(interpolation=BILINEAR),
        T.ConvertImageDtype(F32),
        T.Normalize(MEAN, STD),
        T.RandomErasing(0.5),
    ],
    (0.22, 100),
    gpu=(0.006, 60),
    std=STD,
    versions=[v2],
)  # .18/9
case(
    "idiom",
    lambda T: [
        T.ToImage(),
        T.RandomResizedCrop((64, 64), antialias=True),
        T.RandomHorizontalFlip(),
        T.ColorJitter(0.4, 0.4, 0.4),
        T.ToDtype(F32, scale=True),
        T.Normalize(MEAN, STD),
        T.RandomErasing(0.25, value="random"),
        T.ToPureTensor(),
    ],
    (0.2, 12),
    gpu=(0.005, 6),
    std=STD,
    versions=[v2],
)  # .15/7


# ---- untranslated functions between transforms


def _darker(image):
    return image.point(lambda value: value // 2)


def _noisy(image):
    return image + torch.rand(1) * 0.1


def _tall(image):
    return image if image.shape[1] > image.shape[2] else image.transpose(1, 2)


case(
    "Lambda of PIL",
    lambda T: [
        T.RandomCrop(50),
        T.Lambda(_darker),
        T.RandomHorizontalFlip(),
        T.PILToTensor(),
        T.RandomErasing(value=7),
    ],
    calls=True,
)
case(
    "Lambda of PIL, a value a channel",
    lambda T: [T.CenterCrop(50), T.Lambda(_darker), T.PILToTensor(), T.RandomErasing(value=(7, 100, 200))],
    calls=True,
)
case(
    "Lambda that draws",
    lambda T: [T.RandomHorizontalFlip(), T.ToTensor(), T.Lambda(_noisy), T.RandomCrop(50), T.RandomErasing()],
    FLOAT,
    calls=True,
)
case(
    "Lambdas",
    lambda T: [
        T.RandomHorizontalFlip(),
        T.Lambda(_darker),
        T.RandomCrop((40, 50)),
        T.Lambda(_darker),
        T.RandomInvert(),
        T.PILToTensor(),
        T.Lambda(_tall),
    ],
    calls=True,
)
case(
    "RandomApply of a Lambda",
    lambda T: [T.CenterCrop(50), T.RandomApply([T.Lambda(_darker)]), T.RandomInvert(), T.PILToTensor()],
    calls=True,
)
