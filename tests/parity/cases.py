"""Every translated transform in its v1 and v2 class, and how near to torchvision it must come.

Limits are (mean, max) in levels of 0..255 over the drawn images of tests/helpers.py on the CPU backend: of the default,
and of exact=True. What was measured with DALI 2.4 and Pillow 13 stands in the comment (default; exact), the larger of v1
and v2. The large maxima sit in the outermost pixels, where Pillow drops filter taps that DALI clamps (PARITY.md).
"""

from dataclasses import dataclass
from typing import Callable

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, _presets, v2

SAME = (0, 0)  # decoding and geometry round nothing; torch's own kernels convert
FLOAT = (255e-6, 255e-6)  # DALI's float32 kernels: within 1e-6 of the range 0..1
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
F32, U8 = torch.float32, torch.uint8
BICUBIC = InterpolationMode.BICUBIC


@dataclass(frozen=True)
class Case:
    """A transform and its limits.

    Attributes:
        std: what normalisation divided by.
        levels: what one unit of the values is, where that is not the dtype's usual.
        border: a padding mode that DALI before 2.0 lacks.
        may_fall_back: an order of transforms that nobody writes; it may go to torchvision, but never be wrong.
    """

    name: str
    make: Callable
    default: tuple[float, float] = SAME
    exact: tuple[float, float] = SAME
    std: tuple[float, ...] | None = None
    levels: float | None = None
    border: str | None = None
    may_fall_back: bool = False

    def limits(self, exact: bool, device: str, dtype: torch.dtype) -> tuple[float, float]:
        mean, most = self.exact if exact else self.default
        if device == "cpu":
            return mean, most
        # CUDA contracts multiply-add; DALI's resize accumulates in another order
        rounding = 0 if dtype == U8 else 2 * 255 * torch.finfo(dtype).eps
        return 1.5 * mean + rounding, most + rounding + 2 * (mean > FLOAT[0])


CASES: list[Case] = []


def case(name: str, make: Callable, *limits, versions=(v1, v2), **options) -> None:
    """Adds a case for each version; ``make(T)`` gives the transforms of a Compose, or a transform."""
    for T in versions:

        def build(T=T):
            made = make(T)
            return T.Compose(made) if isinstance(made, list) else made

        CASES.append(Case(f"{'v1' if T is v1 else 'v2'} {name}", build, *limits, **options))


def of_pil(name, make, *limits, **options):
    """A transform of PIL images, or several, then PILToTensor."""
    case(name, lambda T: [*_list(make(T)), T.PILToTensor()], *limits, **options)


def _list(made):
    return made if isinstance(made, list) else [made]


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
of_pil("Pad gray", lambda T: [T.Grayscale(), T.Pad([3], fill=(9,))])
for mode in ("edge", "reflect", "symmetric"):
    of_pil(f"Pad {mode}", lambda T, m=mode: T.Pad((1, 12, 3, 4), padding_mode=m), border=mode)
    of_pil(f"RandomCrop {mode}", lambda T, m=mode: T.RandomCrop(64, 6, padding_mode=m), border=mode)
    of_pil(f"RandomCrop needed {mode}", lambda T, m=mode: T.RandomCrop((170, 110), None, True, 0, m), border=mode)
of_pil("RandomHorizontalFlip", lambda T: T.RandomHorizontalFlip())
of_pil("RandomVerticalFlip", lambda T: T.RandomVerticalFlip(0.3))
of_pil("flips", lambda T: [T.RandomVerticalFlip(), T.CenterCrop(50), T.RandomHorizontalFlip(0.8)])
case("flips of tensors", lambda T: [T.CenterCrop(50), T.PILToTensor(), T.RandomHorizontalFlip(), T.RandomVerticalFlip()])
case("crops of tensors", lambda T: [T.PILToTensor(), T.RandomCrop(52, padding=4, fill=9), T.CenterCrop(71), T.Pad(3, 5)])
case("crops of floats", lambda T: [T.ToTensor(), T.RandomCrop(52, padding=4, fill=0.4), T.CenterCrop(71)], FLOAT, FLOAT)
case("fill of floats", lambda T: [T.ToTensor(), T.Pad(2, (0.1, 0.7, 2.0)), T.CenterCrop(90)], FLOAT, FLOAT, versions=[v2])

# ---- colour

of_pil("Grayscale", lambda T: T.Grayscale())
of_pil("Grayscale 3", lambda T: T.Grayscale(3))
of_pil("RandomGrayscale", lambda T: T.RandomGrayscale(0.5))
of_pil("uniform Grayscale", lambda T: [T.CenterCrop(60), T.Grayscale()])
of_pil("uniform RandomGrayscale", lambda T: [T.CenterCrop(60), T.RandomGrayscale(0.5)])
of_pil("Grayscale ragged, Resize", lambda T: [T.Grayscale(), T.Resize((64, 64))], (0.18, 9), (0.023, 9))
case("Grayscale of tensors", lambda T: [T.PILToTensor(), T.Grayscale(), T.CenterCrop(60)])
case("uniform Grayscale of tensors", lambda T: [T.CenterCrop(60), T.PILToTensor(), T.Grayscale(3)])
case("RandomGrayscale of tensors", lambda T: [T.PILToTensor(), T.RandomGrayscale(0.5), T.CenterCrop(60)])
case("Grayscale of floats", lambda T: [T.ToTensor(), T.Grayscale(3), T.CenterCrop(60)], FLOAT, FLOAT)
case("uniform Grayscale of floats", lambda T: [T.CenterCrop(60), T.ToTensor(), T.Grayscale(3)], FLOAT, FLOAT)

# ---- conversions

case("ToTensor", lambda T: [T.CenterCrop(50), T.ToTensor()], FLOAT)
case("ToTensor ragged", lambda T: [T.ToTensor()], FLOAT)
case("Normalize", lambda T: [T.CenterCrop(50), T.ToTensor(), T.Normalize(MEAN, STD)], FLOAT, std=STD)
case("Normalize flipped", lambda T: [T.CenterCrop(50), T.ToTensor(), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)],
     FLOAT, std=STD)
case("Normalize ragged", lambda T: [T.ToTensor(), T.Normalize(MEAN, STD, inplace=True)], FLOAT, std=STD)
case("Normalize gray", lambda T: [T.Grayscale(), T.CenterCrop(50), T.ToTensor(), T.Normalize([0.5], [0.25])], FLOAT, std=[0.25])
case("Normalize twice", lambda T: [T.CenterCrop(50), T.ToTensor(), T.Normalize([0.5], [0.5]), T.Normalize(MEAN, STD)],
     std=[0.5 * s for s in STD])
case("Normalize, geometry", lambda T: [T.ToTensor(), T.Normalize(MEAN, STD), T.CenterCrop(50), T.Pad(3, fill=0.5)],
     FLOAT, FLOAT, std=STD, may_fall_back=True)
case("half, Normalize", lambda T: [T.CenterCrop(50), T.PILToTensor(), T.ConvertImageDtype(torch.float16),
     T.Normalize(MEAN, STD)], std=STD)
case("uint8, CenterCrop", lambda T: [T.ToTensor(), T.ConvertImageDtype(U8), T.CenterCrop(60)], may_fall_back=True)
for dtype in (torch.float16, torch.bfloat16, torch.float64, F32, U8):
    name = str(dtype).removeprefix("torch.")
    limits, options = FLOAT if dtype == F32 else SAME, {"may_fall_back": dtype not in (F32, U8)}
    case(f"to {name}", lambda T, d=dtype: [T.CenterCrop(50), T.PILToTensor(), T.ConvertImageDtype(d)], limits)
    case(f"ToDtype {name}", lambda T, d=dtype: [T.CenterCrop(50), T.ToImage(), T.ToDtype(d, scale=True)], limits, versions=[v2])
    case(f"unscaled {name}", lambda T, d=dtype: [T.CenterCrop(50), T.ToImage(), T.ToDtype(d)], versions=[v2], levels=1)
    case(f"{name}, geometry", lambda T, d=dtype: [T.PILToTensor(), T.ConvertImageDtype(d), T.Pad(3), T.CenterCrop(60)],
         limits, limits, **options)
    case(f"{name} and back", lambda T, d=dtype: [T.ToTensor(), T.CenterCrop(60), T.ConvertImageDtype(d), T.ConvertImageDtype(U8)])
    case(f"{name} to float32", lambda T, d=dtype: [T.PILToTensor(), T.ConvertImageDtype(d), T.CenterCrop(60),
         T.ConvertImageDtype(F32)], FLOAT, FLOAT, **options)
case("ToDtype dict", lambda T: [T.ToImage(), T.CenterCrop(50), T.ToDtype({tv_tensors.Image: F32, "others": None}, scale=True)],
     FLOAT, versions=[v2])
case("ToPureTensor", lambda T: [T.ToImage(), T.CenterCrop(50), T.ToDtype(F32, True), T.ToPureTensor()], FLOAT, versions=[v2])
case("Identity", lambda T: [T.Identity(), T.CenterCrop(50), T.ToImage()], versions=[v2])

# ---- containers

case("nested Compose", lambda T: [T.Compose([T.CenterCrop(60), T.Compose([T.RandomHorizontalFlip()])]), T.Compose([T.ToTensor()])],
     FLOAT)
case("Sequential", lambda T: nn.Sequential(T.CenterCrop(60), nn.Sequential(nn.Identity(), T.RandomVerticalFlip()), v2.PILToTensor()))

# ---- resizing

of_pil("Resize to its own size", lambda T: [T.CenterCrop((70, 80)), T.Resize(70)])
of_pil("Resize 40", lambda T: T.Resize(40), (9, 255), (9, 255))
of_pil("Resize list", lambda T: T.Resize([40]), (9, 255), (9, 255))
of_pil("Resize pair", lambda T: T.Resize((64, 64)), (9, 255), (9, 255))
of_pil("Resize tall", lambda T: T.Resize((150, 30)), (9, 255), (9, 255))
of_pil("Resize up", lambda T: T.Resize(240), (9, 255), (9, 255))
of_pil("Resize max_size", lambda T: T.Resize(80, max_size=99), (9, 255), (9, 255))
of_pil("Resize to max_size", lambda T: T.Resize(None, max_size=99), (9, 255), (9, 255), versions=[v2])
for filter in ("bicubic", "lanczos", "nearest", "nearest-exact"):
    for size in (40, (64, 64), 240):
        of_pil(f"Resize {size} {filter}", lambda T, f=filter, s=size: T.Resize(s, InterpolationMode(f)), (9, 255), (9, 255))
of_pil("Resize, CenterCrop", lambda T: [T.Resize(64), T.CenterCrop(56)], (9, 255), (9, 255))
of_pil("Resize, CenterCrop larger", lambda T: [T.Resize(64), T.CenterCrop(90)], (9, 255), (9, 255))
of_pil("Resize max_size, CenterCrop", lambda T: [T.Resize(80, max_size=90), T.CenterCrop(50)], (9, 255), (9, 255))
of_pil("Resize pair, CenterCrop", lambda T: [T.Resize((100, 80)), T.CenterCrop((90, 80))], (9, 255), (9, 255))
of_pil("Resize, RandomCrop", lambda T: [T.Resize(64), T.RandomCrop(56)], (9, 255), (9, 255))
of_pil("Resize, RandomCrop padding", lambda T: [T.Resize(64), T.RandomCrop(56, padding=8)], (9, 255), (9, 255))
of_pil("Resize, RandomResizedCrop", lambda T: [T.Resize(100), T.RandomResizedCrop(56)], (9, 255), (9, 255))
of_pil("Resize twice", lambda T: [T.Resize(100), T.Resize(56), T.CenterCrop(50)], (9, 255), (9, 255))
of_pil("Pad, Resize", lambda T: [T.Pad(10, 255), T.Resize((50, 50))], (9, 255), (9, 255))
of_pil("RandomResizedCrop", lambda T: T.RandomResizedCrop(56), (9, 255), (9, 255))
of_pil("RandomResizedCrop pair", lambda T: T.RandomResizedCrop((40, 70), (0.2, 0.5), (0.5, 2), BICUBIC), (9, 255), (9, 255))
of_pil("RandomResizedCrop wide", lambda T: T.RandomResizedCrop(56, (0.9, 1), (3, 4)), (9, 255), (9, 255))
case("uint8 tensor, Resize", lambda T: [T.PILToTensor(), T.Resize((64, 64), antialias=True)], (9, 255), (9, 255))
case("uint8 tensor, Resize tall", lambda T: [T.PILToTensor(), T.Resize((30, 150), antialias=True)], (9, 255), (9, 255))
case("uint8 tensor, Resize up", lambda T: [T.PILToTensor(), T.Resize((264, 264), antialias=True)], (9, 255), (9, 255))
case("uint8 tensor, Resize bicubic", lambda T: [T.PILToTensor(), T.Resize((64, 64), BICUBIC, antialias=True)], (9, 255), (9, 255))
case("float tensor, Resize", lambda T: [T.ToTensor(), T.Resize((64, 64), antialias=True)], (9, 255), (9, 255))
case("float tensor, Resize up", lambda T: [T.ToTensor(), T.Resize((264, 264), antialias=True)], (9, 255), (9, 255))
case("preset", lambda T: _presets.ImageClassification(crop_size=56, resize_size=64), (9, 255), (9, 255), versions=[v1], std=STD)
case("idiom", lambda T: [T.ToImage(), T.RandomResizedCrop(56), T.ToDtype(F32, scale=True), T.Normalize(MEAN, STD)], (9, 255), (9, 255),
     versions=[v2], std=STD)
