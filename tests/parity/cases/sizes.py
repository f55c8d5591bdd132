"""Resizing. The comments next to the default's limits are measured values; exact=True equals torchvision.

On a GPU, floating-point sums have another order and may round to another level (ON_GPU).
"""

import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, _presets, v2

from .case import FLOAT, NEAR, SAME, case, of_pil

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
F32 = torch.float32
BICUBIC = InterpolationMode.BICUBIC
ON_GPU = {"gpu": (0.007, 2)}
FLOATS = {"gpu": (2e-5, 2e-4)}

of_pil("Resize to its own size", lambda T: [T.CenterCrop((70, 80)), T.Resize(70)])
of_pil("Resize 40", lambda T: T.Resize(40), (0.16, 15))  # .14/14
of_pil("Resize list", lambda T: T.Resize([40]), (0.16, 15))  # .14/14
of_pil("Resize pair", lambda T: T.Resize((64, 64)), (0.18, 9))  # .15/8
of_pil("Resize tall", lambda T: T.Resize((150, 30)), (0.25, 18))  # .22/17
of_pil("Resize up", lambda T: T.Resize(240), (0.2, 2))  # .18/1
of_pil("Resize max_size", lambda T: T.Resize(80, max_size=99), (0.18, 7))  # .16/6
of_pil("Resize to max_size", lambda T: T.Resize(None, max_size=99), (0.16, 7), versions=[v2])  # .14/6
FILTERED = {
    ("bicubic", 40): (0.17, 10),  # .15/9
    ("bicubic", (64, 64)): (0.19, 6),  # .17/5
    ("bicubic", 240): (0.22, 8),  # .20/7
    ("lanczos", 40): (0.17, 8),  # .15/7
    ("lanczos", (64, 64)): (0.19, 7),  # .17/6
    ("lanczos", 240): (0.24, 13),  # .21/12
    # a pixel's centre lies on the edge between two: .0095/23; .0016/26
    ("nearest", 40): (0.011, 25),
    ("nearest", (64, 64)): SAME,
    ("nearest-exact", 240): (0.0018, 28),
    # batched torch
    ("box", 40): SAME,
    ("hamming", (64, 64)): SAME,
}
for (filter, size), limits in FILTERED.items():
    of_pil(f"Resize {size} {filter}", lambda T, f=filter, s=size: T.Resize(s, InterpolationMode(f)), limits)
of_pil("Resize, CenterCrop", lambda T: [T.Resize(64), T.CenterCrop(56)], (0.17, 2))  # .15/1
of_pil("Resize, CenterCrop larger", lambda T: [T.Resize(64), T.CenterCrop(90)], (0.12, 9))  # .10/8
of_pil("Resize max_size, CenterCrop", lambda T: [T.Resize(80, max_size=90), T.CenterCrop(50)], (0.17, 2))  # .15/1
of_pil("Resize pair, CenterCrop", lambda T: [T.Resize((100, 80)), T.CenterCrop((90, 80))], (0.2, 8))  # .18/7
of_pil("Resize, RandomCrop", lambda T: [T.Resize(64), T.RandomCrop(56)], (0.17, 6))  # .15/5
of_pil("Resize, RandomCrop padding", lambda T: [T.Resize(64), T.RandomCrop(56, padding=8)], (0.15, 9))  # .14/8
of_pil("Resize, RandomResizedCrop", lambda T: [T.Resize(100), T.RandomResizedCrop(56)], (0.29, 5))  # .26/4
of_pil("Resize twice", lambda T: [T.Resize(100), T.Resize(56), T.CenterCrop(50)], (0.22, 2))  # .19/1
of_pil("Pad, Resize", lambda T: [T.Pad(10, 255), T.Resize((50, 50))], (0.098, 2))  # .089/1
of_pil("RandomResizedCrop", lambda T: T.RandomResizedCrop(56), (0.2, 9))  # .17/8
of_pil("RandomResizedCrop pair", lambda T: T.RandomResizedCrop((40, 70), (0.2, 0.5), (0.5, 2), BICUBIC), (0.23, 9))
# .21/8
of_pil("RandomResizedCrop wide", lambda T: T.RandomResizedCrop(56, (0.9, 1), (3, 4)), (0.2, 14))  # .18/13

# v1 converts tensors to float32 and rounds once; v2 rounds uint8 tensors between two passes, as Pillow does
TENSORS = {
    (v1, (64, 64)): (0.016, 9),  # .014/8
    (v1, (30, 150)): (0.041, 20),  # .037/19
    (v1, (264, 264)): (0.0011, 2),  # .0010/1
    (v1, (64, 64), BICUBIC): (0.017, 6),  # .015/5
    (v2, (64, 64)): (0.18, 9),  # .15/8
    (v2, (30, 150)): (0.14, 20),  # .12/19
    (v2, (264, 264)): (0.2, 2),  # .17/1
    (v2, (64, 64), BICUBIC): (0.19, 6),  # .17/5
}
for (T, *args), limits in TENSORS.items():
    case(
        f"uint8 tensor, Resize {args}",
        lambda T, a=args: [T.PILToTensor(), T.Resize(*a, antialias=True)],
        limits,
        versions=[T],
        **(ON_GPU if T is v1 else {}),
    )
case("float tensor, Resize", lambda T: [T.ToTensor(), T.Resize((64, 64), antialias=True)], (0.017, 8), **FLOATS)
# .015/7.8
case(
    "float tensor, Resize up",
    lambda T: [T.ToTensor(), T.Resize((264, 264), antialias=True)],
    (3e-5, 0.004),
    gpu=(4e-5, 0.005),
)  # .000023/.0033
case(
    "preset", lambda T: _presets.ImageClassification(crop_size=56, resize_size=64), (0.17, 2), versions=[v1], std=STD
)  # .15/1
case(
    "idiom",
    lambda T: [T.ToImage(), T.RandomResizedCrop(56), T.ToDtype(F32, scale=True), T.Normalize(MEAN, STD)],
    (0.2, 11),
    versions=[v2],
    std=STD,
)  # .18/10

# ---- after grayscale: DALI keeps colours in a resize only

of_pil("Grayscale ragged, Resize", lambda T: [T.Grayscale(), T.Resize((64, 64))], (0.18, 9))
of_pil("RandomGrayscale, Resize", lambda T: [T.RandomGrayscale(0.5), T.Resize((64, 64))], (0.17, 9))
# .15/8; of tensors .014/9 in v1 and .16/8 in v2; of floats .014/7.8
for T, limits, on_gpu in ((v1, (0.016, 10), ON_GPU), (v2, (0.18, 9), {})):
    case(
        "Grayscale of tensors, Resize",
        lambda T: [T.PILToTensor(), T.Grayscale(), T.Resize((64, 64), antialias=True)],
        limits,
        versions=[T],
        **on_gpu,
    )
    case(
        "RandomGrayscale of tensors, Resize",
        lambda T: [T.PILToTensor(), T.RandomGrayscale(0.5), T.Resize(64, antialias=True)],
        limits,
        versions=[T],
        **on_gpu,
    )
case(
    "RandomGrayscale of floats, Resize",
    lambda T: [T.ToTensor(), T.RandomGrayscale(0.5), T.Resize((64, 64), antialias=True)],
    (0.016, 9),
    (2e-6, 7e-5),
    **FLOATS,
)  # 8e-7/4.6e-5: rounding of v1's grayscale

# ---- resizing of tensors that DALI does not compute as torchvision does: batched torch

for name, options in {
    "nearest": {"interpolation": InterpolationMode.NEAREST},
    "nearest-exact": {"interpolation": InterpolationMode.NEAREST_EXACT},
    "not antialiased": {"antialias": False},
    "bicubic not antialiased": {"interpolation": BICUBIC, "antialias": False},
}.items():
    # PyTorch's GPU kernels sum in another order: 10 of 110,000 values differ (9.1e-5 on an H200)
    gpu = None if name.startswith("nearest") else NEAR
    case(f"tensor, Resize {name}", lambda T, o=options: [T.PILToTensor(), T.Resize((50, 61), **o)], gpu=gpu)
    case(
        f"float tensor, Resize {name}",
        lambda T, o=options: [T.ToTensor(), T.RandomCrop(60), T.Resize((50, 61), **o)],
        FLOAT,
    )

# ---- sizes that v2 draws

DRAWN = {
    "RandomZoomOut": (lambda T: T.RandomZoomOut(), SAME),
    "RandomZoomOut fill": (lambda T: T.RandomZoomOut(fill=(10, 200, 30), side_range=(1.5, 2), p=0.8), SAME),
    "ScaleJitter": (lambda T: T.ScaleJitter((70, 80)), (0.2, 12)),  # .18/6
    "RandomShortestSize": (lambda T: T.RandomShortestSize([40, 50, 60]), (0.21, 12)),  # .19/11
    "RandomShortestSize max": (lambda T: T.RandomShortestSize(50, 70), (0.2, 12)),  # .18/11
    "RandomResize": (lambda T: T.RandomResize(40, 90), (0.2, 8)),  # .18/7
}
for name, (make, limits) in DRAWN.items():
    of_pil(name, make, limits, versions=[v2])
    case(f"{name} of tensors", lambda T, m=make: [T.ToImage(), m(T)], limits, versions=[v2], most=6)
    of_pil(f"uniform {name}", lambda T, m=make: [T.CenterCrop(64), m(T)], limits, versions=[v2], most=6)
