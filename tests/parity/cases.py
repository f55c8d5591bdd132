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
        # CUDA contracts multiply-add; DALI's resize accumulates in another order, so that ties of nearest fall otherwise
        # (.05 of 255 on average); the images are others there (conftest.py), and so are their rims
        rounding = 0 if dtype == U8 else 2 * 255 * torch.finfo(dtype).eps
        if "nearest" in self.name:
            return (0.08, 255) if mean else (0, 0)
        return 2 * mean + rounding, most + rounding + (8 if mean > FLOAT[0] else 0)


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
of_pil("Pad with colour after Grayscale", lambda T: [T.Grayscale(3), T.Pad(3, fill=(10, 200, 30))])
for mode in ("edge", "reflect", "symmetric"):
    of_pil(f"Pad {mode}", lambda T, m=mode: T.Pad((1, 12, 3, 4), padding_mode=m), border=mode)
    of_pil(f"RandomCrop {mode}", lambda T, m=mode: T.RandomCrop(64, 6, padding_mode=m), border=mode)
    of_pil(f"RandomCrop needed {mode}", lambda T, m=mode: T.RandomCrop((170, 110), None, True, 0, m), border=mode)
of_pil("RandomHorizontalFlip", lambda T: T.RandomHorizontalFlip())
of_pil("RandomVerticalFlip", lambda T: T.RandomVerticalFlip(0.3))
of_pil("flips", lambda T: [T.RandomVerticalFlip(), T.CenterCrop(50), T.RandomHorizontalFlip(0.8)])
case("flips of tensors", lambda T: [T.CenterCrop(50), T.PILToTensor(), T.RandomHorizontalFlip(), T.RandomVerticalFlip()])
case("crops of tensors", lambda T: [T.PILToTensor(), T.RandomCrop(52, padding=4, fill=9), T.CenterCrop(71), T.Pad(3, 5)])
case("crops of floats", lambda T: [T.ToTensor(), T.RandomCrop(52, padding=4, fill=0.4), T.CenterCrop(71)], FLOAT, FLOAT,
     may_fall_back=True)
case("fill of floats", lambda T: [T.ToTensor(), T.Pad(2, (0.1, 0.7, 2.0)), T.CenterCrop(90)], FLOAT, FLOAT, versions=[v2],
     may_fall_back=True)

# ---- colour

of_pil("Grayscale", lambda T: T.Grayscale())
of_pil("Grayscale 3", lambda T: T.Grayscale(3))
of_pil("RandomGrayscale", lambda T: T.RandomGrayscale(0.5))
of_pil("uniform Grayscale", lambda T: [T.CenterCrop(60), T.Grayscale()])
of_pil("uniform RandomGrayscale", lambda T: [T.CenterCrop(60), T.RandomGrayscale(0.5)])
of_pil("Grayscale ragged, Resize", lambda T: [T.Grayscale(), T.Resize((64, 64))], (0.18, 9), (0.023, 9))
of_pil("RandomGrayscale, Resize", lambda T: [T.RandomGrayscale(0.5), T.Resize((64, 64))], (0.17, 9), (0.022, 9))
# .15/8; .019/8. A resize alone keeps colours in DALI. Of tensors .014/9; .014/9 in v1 and .16/8; .022/8 in v2, floats .014/7.8
for T, *limits in ((v1, (0.016, 10), (0.016, 10)), (v2, (0.18, 9), (0.025, 9))):
    case("Grayscale of tensors, Resize", lambda T: [T.PILToTensor(), T.Grayscale(), T.Resize((64, 64), antialias=True)],
         *limits, versions=[T])
    case("RandomGrayscale of tensors, Resize", lambda T: [T.PILToTensor(), T.RandomGrayscale(0.5), T.Resize(64, antialias=True)],
         *limits, versions=[T])
case("RandomGrayscale of floats, Resize", lambda T: [T.ToTensor(), T.RandomGrayscale(0.5), T.Resize((64, 64), antialias=True)],
     (0.016, 9), (0.016, 9))
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
case("Normalize gray", lambda T: [T.Grayscale(), T.CenterCrop(50), T.ToTensor(), T.Normalize([0.5], [0.25])], FLOAT,
     std=[0.25])
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

case("nested Compose", lambda T: [T.Compose([T.CenterCrop(60), T.Compose([T.RandomHorizontalFlip()])]),
     T.Compose([T.ToTensor()])], FLOAT)
case("Sequential", lambda T: nn.Sequential(T.CenterCrop(60), nn.Sequential(nn.Identity(), T.RandomVerticalFlip()),
     v2.PILToTensor()))

# ---- resizing: limits, and what was measured, default; exact

of_pil("Resize to its own size", lambda T: [T.CenterCrop((70, 80)), T.Resize(70)])
of_pil("Resize 40", lambda T: T.Resize(40), (0.16, 15), (0.039, 15))  # .14/14; .035/14
of_pil("Resize list", lambda T: T.Resize([40]), (0.16, 15), (0.039, 15))  # .14/14; .035/14
of_pil("Resize pair", lambda T: T.Resize((64, 64)), (0.18, 9), (0.022, 9))  # .15/8; .019/8
of_pil("Resize tall", lambda T: T.Resize((150, 30)), (0.25, 18), (0.06, 18))  # .22/17; .054/17
of_pil("Resize up", lambda T: T.Resize(240), (0.2, 2), (0.0081, 3))  # .18/1; .0073/2
of_pil("Resize max_size", lambda T: T.Resize(80, max_size=99), (0.18, 7), (0.015, 7))  # .16/6; .013/6
of_pil("Resize to max_size", lambda T: T.Resize(None, max_size=99), (0.16, 7), (0.014, 7), versions=[v2])  # .14/6; .012/6
FILTERED = {
    ("bicubic", 40): [(0.17, 10), (0.033, 10)],  # .15/9; .030/9
    ("bicubic", (64, 64)): [(0.19, 6), (0.02, 6)],  # .17/5; .018/5
    ("bicubic", 240): [(0.22, 8), (0.0081, 6)],  # .20/7; .0073/5
    ("lanczos", 40): [(0.17, 8), (0.041, 8)],  # .15/7; .037/7
    ("lanczos", (64, 64)): [(0.19, 7), (0.025, 5)],  # .17/6; .022/4
    ("lanczos", 240): [(0.24, 13), (0.017, 12)],  # .21/12; .015/11
    # a pixel's centre on the edge between two: .0095/23; .0016/26
    ("nearest", 40): [(0.011, 25), (0.011, 25)],
    ("nearest", (64, 64)): [SAME, SAME],
    ("nearest-exact", 240): [(0.0018, 28), (0.0018, 28)],
}
for (filter, size), limits in FILTERED.items():
    of_pil(f"Resize {size} {filter}", lambda T, f=filter, s=size: T.Resize(s, InterpolationMode(f)), *limits)
of_pil("Resize, CenterCrop", lambda T: [T.Resize(64), T.CenterCrop(56)], (0.17, 2), (0.0097, 2))  # .15/1; .0088/1
of_pil("Resize, CenterCrop larger", lambda T: [T.Resize(64), T.CenterCrop(90)], (0.12, 9), (0.015, 9))  # .10/8; .013/8
of_pil("Resize max_size, CenterCrop", lambda T: [T.Resize(80, max_size=90), T.CenterCrop(50)], (0.17, 2), (0.014, 2))
# .15/1; .012/1
of_pil("Resize pair, CenterCrop", lambda T: [T.Resize((100, 80)), T.CenterCrop((90, 80))], (0.2, 8), (0.019, 8))  # .18/7; .017/7
of_pil("Resize, RandomCrop", lambda T: [T.Resize(64), T.RandomCrop(56)], (0.17, 6), (0.011, 7))  # .15/5; .0095/6
of_pil("Resize, RandomCrop padding", lambda T: [T.Resize(64), T.RandomCrop(56, padding=8)], (0.15, 9), (0.014, 9))
# .14/8; .013/8
of_pil("Resize, RandomResizedCrop", lambda T: [T.Resize(100), T.RandomResizedCrop(56)], (0.29, 5), (0.039, 5))  # .26/4; .035/4
of_pil("Resize twice", lambda T: [T.Resize(100), T.Resize(56), T.CenterCrop(50)], (0.22, 2), (0.012, 2))  # .19/1; .011/1
of_pil("Pad, Resize", lambda T: [T.Pad(10, 255), T.Resize((50, 50))], (0.098, 2), (0.0016, 2))  # .089/1; .0014/1
of_pil("RandomResizedCrop", lambda T: T.RandomResizedCrop(56), (0.2, 9), (0.03, 8))  # .17/8; .027/7
of_pil("RandomResizedCrop pair", lambda T: T.RandomResizedCrop((40, 70), (0.2, 0.5), (0.5, 2), BICUBIC), (0.23, 9), (0.028, 9))
# .21/8; .025/8
of_pil("RandomResizedCrop wide", lambda T: T.RandomResizedCrop(56, (0.9, 1), (3, 4)), (0.2, 14), (0.032, 14))  # .18/13; .028/13

# v1 takes tensors to float32 and rounds once; v2 rounds uint8 tensors between two passes, as Pillow does
TENSORS = {
    (v1, (64, 64)): [(0.016, 9), (0.016, 9)],  # .014/8
    (v1, (30, 150)): [(0.041, 20), (0.041, 20)],  # .037/19
    (v1, (264, 264)): [(0.0011, 2), (0.0011, 2)],  # .0010/1
    (v1, (64, 64), BICUBIC): [(0.017, 6), (0.017, 6)],  # .015/5
    (v2, (64, 64)): [(0.18, 9), (0.023, 9)],  # .15/8; .020/8
    (v2, (30, 150)): [(0.14, 20), (0.047, 20)],  # .12/19; .042/19
    (v2, (264, 264)): [(0.2, 2), (0.012, 3)],  # .17/1; .011/2
    (v2, (64, 64), BICUBIC): [(0.19, 6), (0.023, 6)],  # .17/5; .020/5
}
for (T, *args), limits in TENSORS.items():
    case(f"uint8 tensor, Resize {args}", lambda T, a=args: [T.PILToTensor(), T.Resize(*a, antialias=True)], *limits, versions=[T])
case("float tensor, Resize", lambda T: [T.ToTensor(), T.Resize((64, 64), antialias=True)], (0.017, 8), (0.017, 8))  # .015/7.8
case("float tensor, Resize up", lambda T: [T.ToTensor(), T.Resize((264, 264), antialias=True)], (3e-5, 0.004), (3e-5, 0.004))
# .000023/.0033
case("preset", lambda T: _presets.ImageClassification(crop_size=56, resize_size=64), (0.17, 2), (0.0097, 2), versions=[v1],
     std=STD)
# .15/1; .0088/1
case("idiom", lambda T: [T.ToImage(), T.RandomResizedCrop(56), T.ToDtype(F32, scale=True), T.Normalize(MEAN, STD)], (0.2, 11),
     (0.031, 11), versions=[v2], std=STD)  # .18/10; .027/10
