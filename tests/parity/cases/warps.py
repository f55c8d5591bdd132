"""Rotations and other warps. The default's limits are DALI's; with exact=True, batched torch or Pillow runs them."""

from torchvision.transforms import InterpolationMode

from .case import FLOAT, NEAR, OLD_DALI, SAME, case, of_pil

BILINEAR, BICUBIC = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
NEAREST = (1e-4, 100)  # DALI computes in float32, so that another pixel may be the nearest (.000003/1)
FILTERED = (0.0015, 2) if OLD_DALI else (2e-4, 2)  # .00097/1; .0001/1
RIMS = (0.01, 255)  # a pixel at the border may be outside (.006/164)

WARPS = {
    "RandomRotation": (lambda T: T.RandomRotation(30), NEAREST, SAME),
    "RandomRotation bilinear": (lambda T: T.RandomRotation((-180, 180), BILINEAR), FILTERED, SAME),
    "RandomRotation bicubic": (lambda T: T.RandomRotation(45, BICUBIC, fill=(10, 200, 30)), SAME, SAME),
    "RandomRotation expand": (lambda T: T.RandomRotation(60, expand=True), NEAREST, SAME),
    "RandomRotation expand bilinear": (lambda T: T.RandomRotation(60, BILINEAR, expand=True, fill=77), FILTERED, SAME),
    "RandomRotation center": (lambda T: T.RandomRotation(60, BILINEAR, center=(10, 20)), FILTERED, SAME),
    "RandomRotation right angle": (lambda T: T.RandomRotation((90, 90), BILINEAR), SAME, SAME),
    "RandomRotation right angle expand": (lambda T: T.RandomRotation((270, 270), BILINEAR, expand=True), SAME, SAME),
    "RandomAffine": (lambda T: T.RandomAffine(30), NEAREST, SAME),
    "RandomAffine bilinear": (
        lambda T: T.RandomAffine(30, (0.1, 0.2), (0.7, 1.4), (-20, 20, -10, 10), BILINEAR, fill=(10, 200, 30)),
        FILTERED,
        SAME,
    ),
    "RandomAffine bicubic": (lambda T: T.RandomAffine(0, (0.3, 0), (0.5, 2), 15, BICUBIC), SAME, SAME),
    "RandomAffine center": (lambda T: T.RandomAffine((20, 40), center=(0, 0), shear=(-5, 5, 0, 0)), NEAREST, SAME),
    "RandomPerspective": (lambda T: T.RandomPerspective(0.5, 0.8), RIMS, SAME),
    "RandomPerspective nearest": (
        lambda T: T.RandomPerspective(0.3, 0.8, InterpolationMode.NEAREST, fill=(10, 200, 30)),
        RIMS,
        SAME,
    ),
    "RandomPerspective bicubic": (lambda T: T.RandomPerspective(0.9, 0.8, BICUBIC, fill=9), SAME, SAME),
    # batched torch. The field is blurred in another order: .00002/1, and .00003/3 if another pixel is the nearest
    "ElasticTransform": (lambda T: T.ElasticTransform(70.0, 1.5), NEAR, NEAR),
    "ElasticTransform nearest": (
        lambda T: T.ElasticTransform(90.0, 2.0, InterpolationMode.NEAREST, fill=9),
        NEAREST,
        NEAREST,
    ),
    "ElasticTransform pair": (lambda T: T.ElasticTransform([20.0, 70.0], [1.0, 2.0], fill=(10, 200, 30)), NEAR, NEAR),
}
for name, (make, dali, torch) in WARPS.items():
    of_pil(name, lambda T, m=make: [T.CenterCrop((64, 75)), m(T)], dali, torch, rims=True)
    of_pil(f"{name} ragged", make, dali, torch, rims=True, most=6)
    if "bicubic" not in name:
        case(
            f"{name} of tensors",
            lambda T, m=make: [T.CenterCrop((64, 75)), T.PILToTensor(), m(T)],
            both=dali if "Elastic" in name else SAME,
            rims=True,
        )
for name in ("RandomRotation", "RandomAffine", "RandomPerspective", "ElasticTransform"):
    make, dali, torch = WARPS[name]
    of_pil(f"{name} gray", lambda T, m=make: [T.Grayscale(), T.CenterCrop((64, 75)), m(T)], dali, torch, rims=True)
    # error of the field, times the contrast: .00001/.003
    floats = [(3e-5, 0.006)] * 2 if "Elastic" in name else [FLOAT, SAME]
    case(f"{name} of floats", lambda T, m=make: [T.CenterCrop((64, 75)), T.ToTensor(), m(T)], *floats, rims=True)
of_pil("ElasticTransform by default", lambda T: [T.CenterCrop(50), T.ElasticTransform()], both=NEAR, most=4)
