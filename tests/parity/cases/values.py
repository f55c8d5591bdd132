"""Colour, filters and noise, which do not move pixels.

Each on a batch of equal sizes and image by image (ragged); on PIL images, including grayscale, and on tensors of uint8
and float32.
"""

import torch
from torchvision.transforms import v2

from dali_compat.ops.arguments import TORCHVISION

from .case import FLOAT, NEAR, SAME, case, of_pil

F32 = torch.float32

# Exact except for blurs, which sum in another order (.00008/1 measured)
VALUES = {
    "ColorJitter": lambda T: T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "ColorJitter strong": lambda T: T.ColorJitter((0, 3), (0, 3), (0, 3), 0.5),
    "ColorJitter brightness": lambda T: T.ColorJitter(brightness=0.7),
    "ColorJitter contrast": lambda T: T.ColorJitter(contrast=(0.2, 2)),
    "ColorJitter saturation": lambda T: T.ColorJitter(saturation=(0, 4)),
    "ColorJitter hue": lambda T: T.ColorJitter(hue=(-0.5, 0.5)),
    "RandomInvert": lambda T: T.RandomInvert(),
    "RandomPosterize": lambda T: T.RandomPosterize(3, p=0.7),
    "RandomPosterize 8": lambda T: T.RandomPosterize(8, p=1),
    "RandomSolarize": lambda T: T.RandomSolarize(100),
    "RandomSolarize half": lambda T: T.RandomSolarize(127.5, p=0.9),
    "RandomAdjustSharpness": lambda T: T.RandomAdjustSharpness(2.0),
    "RandomAdjustSharpness less": lambda T: T.RandomAdjustSharpness(0.3, p=1),
    "RandomAutocontrast": lambda T: T.RandomAutocontrast(),
    "RandomEqualize": lambda T: T.RandomEqualize(p=0.8),
    "GaussianBlur": lambda T: T.GaussianBlur(9, (0.1, 2.0)),
    "GaussianBlur flat": lambda T: T.GaussianBlur((3, 15), 4.0),
}
for name, make in VALUES.items():
    limits = NEAR if "Blur" in name else SAME
    of_pil(name, lambda T, m=make: [T.CenterCrop(64), m(T)], both=limits)
    of_pil(f"{name} gray", lambda T, m=make: [T.Grayscale(), T.CenterCrop((40, 51)), m(T)], both=limits, most=6)
    case(f"{name} of tensors", lambda T, m=make: [T.CenterCrop(64), T.PILToTensor(), m(T)], both=limits)
for name in (
    "ColorJitter",
    "RandomSolarize",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "GaussianBlur",
):
    limits = NEAR if "Blur" in name else SAME
    of_pil(f"{name} ragged", VALUES[name], both=limits, most=6)
    case(f"{name} of ragged tensors", lambda T, m=VALUES[name]: [T.PILToTensor(), m(T)], both=limits, most=6)

# Limits on floats: default; exact
FLOATS = {
    # hue and strong contrast amplify the last bit of DALI's conversion: .0000056/.0011
    "ColorJitter": (lambda T: T.ColorJitter(0.4, 0.4, 0.4, 0.1), (1e-5, 2e-3), SAME),
    "ColorJitter strong": (lambda T: T.ColorJitter((0, 3), (0, 3), (0, 3), 0.5), (1e-5, 2e-3), SAME),
    "RandomInvert": (lambda T: T.RandomInvert(), FLOAT, SAME),
    "RandomSolarize": (lambda T: T.RandomSolarize(0.4), FLOAT, SAME),
    "RandomAdjustSharpness": (lambda T: T.RandomAdjustSharpness(2.0), FLOAT, SAME),
    "RandomAutocontrast": (lambda T: T.RandomAutocontrast(), FLOAT, SAME),
    "GaussianBlur": (lambda T: T.GaussianBlur(9, (0.1, 2.0)), (3e-5, 3e-4), (3e-5, 3e-4)),  # .000019/.00017
}
for name, (make, *limits) in FLOATS.items():
    case(f"{name} of floats", lambda T, m=make: [T.CenterCrop(64), T.ToTensor(), m(T)], *limits)
case(
    "RandomEqualize of floats",
    lambda T: [T.CenterCrop(64), T.ToTensor(), T.RandomEqualize(p=0.8)],
    FLOAT,
    versions=[v2],
)
case(
    "ColorJitter of half",
    lambda T: [
        T.CenterCrop(64),
        T.PILToTensor(),
        T.ConvertImageDtype(torch.float16),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    ],
    both=(0.003, 0.7),
)  # .0023/.62 in v2: five steps of half precision

# only in v2
of_pil("RandomPhotometricDistort", lambda T: [T.CenterCrop(64), T.RandomPhotometricDistort(p=0.7)], versions=[v2])
of_pil("RandomPhotometricDistort ragged", lambda T: T.RandomPhotometricDistort(), versions=[v2], most=6)
case(
    "RandomPhotometricDistort of tensors",
    lambda T: [T.ToImage(), T.CenterCrop(64), T.RandomPhotometricDistort()],
    versions=[v2],
)
case(
    "RandomPhotometricDistort of floats",
    lambda T: [T.CenterCrop(64), T.ToTensor(), T.RandomPhotometricDistort()],
    FLOAT,
    versions=[v2],
)
of_pil("RandomChannelPermutation", lambda T: [T.CenterCrop(64), T.RandomChannelPermutation()], versions=[v2])
case("RandomChannelPermutation of ragged tensors", lambda T: [T.ToImage(), T.RandomChannelPermutation()], versions=[v2])
of_pil("RGB", lambda T: [T.Grayscale(), T.CenterCrop(64), T.RGB(), T.RGB()], versions=[v2])
case("RGB of tensors", lambda T: [T.ToImage(), T.Grayscale(), T.RGB()], versions=[v2])

# ---- noise

for name, make in {
    "JPEG": lambda T: T.JPEG((5, 95)),
    "JPEG 50": lambda T: T.JPEG(50),
}.items():
    of_pil(name, lambda T, m=make: [T.CenterCrop(64), m(T)], versions=[v2])
    of_pil(f"{name} ragged", make, versions=[v2], most=6)
    case(f"{name} of tensors", lambda T, m=make: [T.ToImage(), T.CenterCrop(64), m(T)], versions=[v2])
case(
    "GaussianNoise",
    lambda T: [T.ToImage(), T.CenterCrop(64), T.ToDtype(F32, scale=True), T.GaussianNoise()],
    FLOAT,
    versions=[v2],
)
case(
    "GaussianNoise not clipped",
    lambda T: [T.ToImage(), T.CenterCrop(64), T.ToDtype(F32, scale=True), T.GaussianNoise(0.1, 0.4, clip=False)],
    FLOAT,
    versions=[v2],
)
NOISE = (1e-5, 1)  # logarithms and cosines of a GPU: .0000043/1
if TORCHVISION >= (0, 21):  # earlier versions refuse uint8
    case(
        "GaussianNoise of tensors",
        lambda T: [T.ToImage(), T.CenterCrop(64), T.GaussianNoise(0.05, 0.2)],
        versions=[v2],
        gpu=NOISE,
    )
    case("GaussianNoise ragged", lambda T: [T.ToImage(), T.GaussianNoise(0.05, 0.2)], versions=[v2], most=6, gpu=NOISE)

for name, make in {
    "RandomErasing": lambda T: T.RandomErasing(),
    "RandomErasing large": lambda T: T.RandomErasing(0.9, (0.3, 0.9), (0.2, 5), value=0.5, inplace=True),
    "RandomErasing colour": lambda T: T.RandomErasing(0.9, value=(0.1, 0.9, 0.3)),
    "RandomErasing random": lambda T: T.RandomErasing(0.9, value="random"),
}.items():
    case(name, lambda T, m=make: [T.CenterCrop(64), T.ToTensor(), m(T)], FLOAT)
    case(f"{name} ragged", lambda T, m=make: [T.ToTensor(), m(T)], FLOAT, most=6)
case("RandomErasing of bytes", lambda T: [T.CenterCrop(64), T.PILToTensor(), T.RandomErasing(0.9, value=(3, 200, 77))])
case(
    "RandomErasing of bytes random", lambda T: [T.CenterCrop(64), T.PILToTensor(), T.RandomErasing(0.9, value="random")]
)
case(
    "RandomErasing of gray",
    lambda T: [T.Grayscale(), T.CenterCrop(64), T.ToTensor(), T.RandomErasing(0.9, value=0.7)],
    FLOAT,
)
