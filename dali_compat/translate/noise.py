"""What hides, blurs or spoils pixels."""

from __future__ import annotations

from torchvision import transforms as v1
from torchvision.transforms import v2

from ..plan import draw, step
from ..versions import TORCHVISION
from .fidelity import EXACT, coded
from .geometry import like_of
from .registry import register
from .untranslatable import Untranslatable


@register(v1.RandomErasing, v2.RandomErasing, consumes="p scale ratio value inplace")
def random_erasing(t, spec):
    if spec.kind == "pil":
        if isinstance(t, v2.RandomErasing):
            raise Untranslatable(t, "on PIL images it does nothing but warn", "put it after ToImage() or ToTensor()")
        raise Untranslatable(t, "it takes tensors, and gets a PIL image here", "put it after ToTensor()")
    value = t.value
    if value is None or value == "random":
        value = None
    else:
        value = tuple(float(v) for v in value) if isinstance(value, (tuple, list)) else (float(value),)
        if len(value) not in (1, spec.channels):
            raise Untranslatable(t, f"value={t.value} for an image of {spec.channels} channels")
        value *= spec.channels // len(value)
    window = draw("erasing", p=t.p, scale=tuple(t.scale), ratio=tuple(t.ratio), random_value=value is None)
    return (step("erase", spec, window, value=value, fidelity=EXACT),)


@register(v2.GaussianNoise, consumes="mean sigma clip")
def gaussian_noise(t, spec):
    if spec.kind == "pil":
        raise Untranslatable(t, "it takes tensors, and gets a PIL image here", "put ToImage() before it")
    if not spec.dtype.is_floating_point and TORCHVISION < (0, 21):
        raise Untranslatable(
            t, "this torchvision's takes floating point alone", "put ToDtype(torch.float32, scale=True) before it"
        )
    return (step("gaussian_noise", spec, draw("random_key"), mean=t.mean, sigma=t.sigma, clip=t.clip, fidelity=EXACT),)


@register(v2.JPEG, consumes="quality")
def jpeg(t, spec):
    return (step("jpeg", spec, draw("jpeg_quality", quality=tuple(t.quality)), like=like_of(t, spec), fidelity=coded),)


@register(v1.LinearTransformation, v2.LinearTransformation, consumes="transformation_matrix mean_vector")
def linear_transformation(t, spec):
    if spec.kind == "pil":
        raise Untranslatable(t, "it takes tensors, and gets a PIL image here", "put ToTensor() before it")
    if spec.size and len(t.transformation_matrix) != spec.channels * spec.size[0] * spec.size[1]:
        raise Untranslatable(
            t, f"its matrix is for other images than {spec.channels} x {spec.size[0]} x {spec.size[1]}"
        )
    return (step("linear_transformation", spec, matrix=t.transformation_matrix, mean=t.mean_vector, fidelity=EXACT),)
