"""Windows, flips, grayscale and conversions, which do not round."""

import torch
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from .case import FLOAT, SAME, case, of_pil

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
F32, U8 = torch.float32, torch.uint8

# ---- geometry

of_pil("decode", lambda T: nn.Identity())
of_pil("CenterCrop", lambda T: T.CenterCrop(50))
of_pil("CenterCrop odd", lambda T: T.CenterCrop((41, 58)))
of_pil("CenterCrop larger", lambda T: T.CenterCrop(201))
of_pil("CenterCrop wider", lambda T: T.CenterCrop((30, 300)))
of_pil("RandomCrop", lambda T: T.RandomCrop((48, 57)))
of_pil("RandomCrop padding", lambda T: T.RandomCrop(64, padding=5))
of_pil("RandomCrop paddings fill", lambda T: T.RandomCrop(64, padding=(3, 9, 4, 2), fill=(10, 200, 30)))
of_pil("RandomCrop pad_if_needed", lambda T: T.RandomCrop((120, 150), pad_if_needed=True, fill=77))
of_pil("RandomCrop pad_if_needed padding", lambda T: T.RandomCrop((120, 90), (2, 3), True, (1, 2, 3)))
of_pil("Pad", lambda T: T.Pad(7))
of_pil("Pad pair fill", lambda T: T.Pad((3, 11), fill=(10, 200, 30)))
of_pil("Pad two sides", lambda T: T.Pad((0, 11)))
of_pil("Pad gray", lambda T: [T.Grayscale(), T.Pad([3], fill=(9,))])
of_pil("Pad with colour after Grayscale", lambda T: [T.Grayscale(3), T.Pad(3, fill=(10, 200, 30))])
for mode in ("edge", "reflect", "symmetric"):
    of_pil(f"Pad {mode}", lambda T, m=mode: T.Pad((1, 12, 3, 4), padding_mode=m))
    of_pil(f"RandomCrop {mode}", lambda T, m=mode: T.RandomCrop(64, 6, padding_mode=m))
    of_pil(f"RandomCrop needed {mode}", lambda T, m=mode: T.RandomCrop((170, 110), None, True, 0, m))
of_pil("RandomHorizontalFlip", lambda T: T.RandomHorizontalFlip())
of_pil("RandomVerticalFlip", lambda T: T.RandomVerticalFlip(0.3))
of_pil("flips", lambda T: [T.RandomVerticalFlip(), T.CenterCrop(50), T.RandomHorizontalFlip(0.8)])
case(
    "flips of tensors", lambda T: [T.CenterCrop(50), T.PILToTensor(), T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
)
case(
    "crops of tensors", lambda T: [T.PILToTensor(), T.RandomCrop(52, padding=4, fill=9), T.CenterCrop(71), T.Pad(3, 5)]
)
case(
    "crops of floats",
    lambda T: [T.ToTensor(), T.RandomCrop(52, padding=4, fill=0.4), T.CenterCrop(71)],
    FLOAT,
    FLOAT,
    calls=True,
)
case(
    "fill of floats",
    lambda T: [T.ToTensor(), T.Pad(2, (0.1, 0.7, 2.0)), T.CenterCrop(90)],
    FLOAT,
    FLOAT,
    versions=[v2],
    calls=True,
)

# ---- colour

of_pil("Grayscale", lambda T: T.Grayscale())
of_pil("Grayscale 3", lambda T: T.Grayscale(3))
of_pil("RandomGrayscale", lambda T: T.RandomGrayscale(0.5))
of_pil("uniform Grayscale", lambda T: [T.CenterCrop(60), T.Grayscale()])
of_pil("uniform RandomGrayscale", lambda T: [T.CenterCrop(60), T.RandomGrayscale(0.5)])
case("Grayscale of tensors", lambda T: [T.PILToTensor(), T.Grayscale(), T.CenterCrop(60)])
case("uniform Grayscale of tensors", lambda T: [T.CenterCrop(60), T.PILToTensor(), T.Grayscale(3)])
case("RandomGrayscale of tensors", lambda T: [T.PILToTensor(), T.RandomGrayscale(0.5), T.CenterCrop(60)])
case("Grayscale of floats", lambda T: [T.ToTensor(), T.Grayscale(3), T.CenterCrop(60)], FLOAT, FLOAT)
case("uniform Grayscale of floats", lambda T: [T.CenterCrop(60), T.ToTensor(), T.Grayscale(3)], FLOAT, FLOAT)

# ---- conversions

case("ToTensor", lambda T: [T.CenterCrop(50), T.ToTensor()], FLOAT)
case("ToTensor ragged", lambda T: [T.ToTensor()], FLOAT)
case("Normalize", lambda T: [T.CenterCrop(50), T.ToTensor(), T.Normalize(MEAN, STD)], FLOAT, std=STD)
case(
    "Normalize flipped",
    lambda T: [T.CenterCrop(50), T.ToTensor(), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)],
    FLOAT,
    std=STD,
)
case("Normalize ragged", lambda T: [T.ToTensor(), T.Normalize(MEAN, STD, inplace=True)], FLOAT, std=STD)
case(
    "Normalize gray",
    lambda T: [T.Grayscale(), T.CenterCrop(50), T.ToTensor(), T.Normalize([0.5], [0.25])],
    FLOAT,
    std=[0.25],
)
case(
    "Normalize twice",
    lambda T: [T.CenterCrop(50), T.ToTensor(), T.Normalize([0.5], [0.5]), T.Normalize(MEAN, STD)],
    FLOAT,
    std=[0.5 * s for s in STD],
)
case(
    "Normalize, geometry",
    lambda T: [T.ToTensor(), T.Normalize(MEAN, STD), T.CenterCrop(50), T.Pad(3, fill=0.5)],
    FLOAT,
    FLOAT,
    std=STD,
    calls=True,
)
case(
    "Normalize, Pad",
    lambda T: [T.CenterCrop(50), T.ToTensor(), T.Normalize(MEAN, STD), T.Pad(3)],
    FLOAT,
    FLOAT,
    std=STD,
    calls=True,
)
case(
    "half, Normalize",
    lambda T: [T.CenterCrop(50), T.PILToTensor(), T.ConvertImageDtype(torch.float16), T.Normalize(MEAN, STD)],
    std=STD,
)
case("uint8, CenterCrop", lambda T: [T.ToTensor(), T.ConvertImageDtype(U8), T.CenterCrop(60)], calls=True)
for dtype in (torch.float16, torch.bfloat16, torch.float64, F32, U8):
    name = str(dtype).removeprefix("torch.")
    limits, options = FLOAT if dtype == F32 else SAME, {"calls": dtype not in (F32, U8)}
    case(f"to {name}", lambda T, d=dtype: [T.CenterCrop(50), T.PILToTensor(), T.ConvertImageDtype(d)], limits)
    case(
        f"ToDtype {name}",
        lambda T, d=dtype: [T.CenterCrop(50), T.ToImage(), T.ToDtype(d, scale=True)],
        limits,
        versions=[v2],
    )
    case(f"unscaled {name}", lambda T, d=dtype: [T.CenterCrop(50), T.ToImage(), T.ToDtype(d)], versions=[v2], levels=1)
    case(
        f"{name}, geometry",
        lambda T, d=dtype: [T.PILToTensor(), T.ConvertImageDtype(d), T.Pad(3), T.CenterCrop(60)],
        limits,
        limits,
        **options,
    )
    case(
        f"{name} and back",
        lambda T, d=dtype: [T.ToTensor(), T.CenterCrop(60), T.ConvertImageDtype(d), T.ConvertImageDtype(U8)],
    )
    case(
        f"{name} to float32",
        lambda T, d=dtype: [T.PILToTensor(), T.ConvertImageDtype(d), T.CenterCrop(60), T.ConvertImageDtype(F32)],
        FLOAT,
        FLOAT,
        **options,
    )
case(
    "ToDtype dict",
    lambda T: [T.ToImage(), T.CenterCrop(50), T.ToDtype({tv_tensors.Image: F32, "others": None}, scale=True)],
    FLOAT,
    versions=[v2],
)
case(
    "ToPureTensor",
    lambda T: [T.ToImage(), T.CenterCrop(50), T.ToDtype(F32, True), T.ToPureTensor()],
    FLOAT,
    versions=[v2],
)
case("Identity", lambda T: [T.Identity(), T.CenterCrop(50), T.ToImage()], versions=[v2])
case("ToPILImage", lambda T: [T.CenterCrop(50), T.PILToTensor(), T.ToPILImage(), T.RandomSolarize(90), T.PILToTensor()])
case("ToPILImage of floats", lambda T: [T.RandomCrop(50), T.ToTensor(), T.ToPILImage(), T.PILToTensor()])
case(
    "ToPILImage between levels",
    lambda T: [T.CenterCrop(50), T.ToTensor(), T.ColorJitter((0.7, 0.7)), T.ToPILImage(), T.PILToTensor()],
)
case("ToPILImage last", lambda T: [T.ToTensor(), T.RandomHorizontalFlip(), T.ToPILImage()])
case("PIL images", lambda T: [T.RandomCrop(40), T.RandomInvert()])

# ---- containers

case(
    "nested Compose",
    lambda T: [T.Compose([T.CenterCrop(60), T.Compose([T.RandomHorizontalFlip()])]), T.Compose([T.ToTensor()])],
    FLOAT,
)
case(
    "Sequential",
    lambda T: nn.Sequential(T.CenterCrop(60), nn.Sequential(nn.Identity(), T.RandomVerticalFlip()), v2.PILToTensor()),
)
