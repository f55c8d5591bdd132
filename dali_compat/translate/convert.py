"""From PIL image to tensor, between dtypes, and normalisation."""

from __future__ import annotations

import torch
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from ..plan import step
from .fidelity import EXACT, converted
from .geometry import version_of
from .registry import register
from .untranslatable import Untranslatable


@register(v1.ToTensor, v2.ToTensor)
def to_tensor(t, spec):
    if spec.kind != "pil":
        raise Untranslatable(t, "it takes PIL images, and gets a tensor here")
    tensor = spec.but(kind="tensor")
    dtype = torch.get_default_dtype()
    return (
        step("pil_to_tensor", tensor, fidelity=EXACT),
        step("to_dtype", tensor.but(dtype=dtype), dtype=dtype, like="v1", fidelity=converted),
    )


@register(v1.PILToTensor, v2.PILToTensor)
def pil_to_tensor(t, spec):
    if spec.kind != "pil":
        raise Untranslatable(t, "it takes PIL images, and gets a tensor here")
    return (step("pil_to_tensor", spec.but(kind="tensor"), fidelity=EXACT),)


@register(v1.ToPILImage, v2.ToPILImage, consumes="mode")
def to_pil_image(t, spec):
    if spec.kind == "pil" or t.mode is not None or spec.dtype not in (torch.uint8, torch.float32):
        raise Untranslatable(t, f"mode={t.mode} of {spec.kind} of {spec.dtype}")
    return (step("tensor_to_pil", spec.but(kind="pil", dtype=torch.uint8), fidelity=EXACT),)


@register(v2.ToImage)
def to_image(t, spec):
    return (step("pil_to_tensor" if spec.kind == "pil" else "identity", spec.but(kind="Image"), fidelity=EXACT),)


@register(v2.ToPureTensor)
def to_pure_tensor(t, spec):
    return () if spec.kind != "Image" else (step("identity", spec.but(kind="tensor"), fidelity=EXACT),)


@register(v1.ConvertImageDtype, v2.ConvertImageDtype, consumes="dtype")
def convert_image_dtype(t, spec):
    if spec.kind == "pil":
        if isinstance(t, v2.ConvertImageDtype):
            return ()  # v2 passes PIL images through
        raise Untranslatable(t, "it takes tensors, and gets a PIL image here", "put PILToTensor() before it")
    return _to_dtype(t, spec, t.dtype, like=version_of(t))


@register(v2.ToDtype, consumes="dtype scale")
def to_dtype(t, spec):
    dtype = t.dtype
    if isinstance(dtype, dict):
        kind = {"Image": tv_tensors.Image, "tensor": torch.Tensor}.get(spec.kind)
        if kind not in dtype and "others" not in dtype:
            raise Untranslatable(t, f"no dtype for a {spec.kind} image")
        dtype = dtype.get(kind, dtype.get("others"))
    if spec.kind == "pil" or dtype is None:
        return ()  # torchvision passes PIL images through
    return _to_dtype(t, spec, dtype, like="v2" if t.scale else "cast")


def _to_dtype(t, spec, dtype, like):
    if dtype == spec.dtype:
        return ()
    if not dtype.is_floating_point and dtype != torch.uint8:
        raise Untranslatable(t, f"dtype={dtype}", "use uint8 or a floating point type")
    return (step("to_dtype", spec.but(dtype=dtype), dtype=dtype, like=like, fidelity=converted),)


@register(v1.Normalize, v2.Normalize, consumes="mean std inplace")
def normalize(t, spec):
    if spec.kind == "pil" or not spec.dtype.is_floating_point:
        raise Untranslatable(
            t, "it takes floating point tensors", "put ToTensor(), or ToImage() and ToDtype(), before it"
        )
    mean, std = _per_channel(t, "mean", spec), _per_channel(t, "std", spec)
    if 0 in std:
        raise Untranslatable(t, "std has a zero")
    return (step("normalize", spec.but(normalized=True), mean=mean, std=std, fidelity=converted),)


def _per_channel(t, name, spec) -> tuple[float, ...]:
    value = getattr(t, name)
    values = tuple(float(v) for v in (value if hasattr(value, "__iter__") else (value,)))
    if len(values) == 1:
        values *= spec.channels
    if len(values) != spec.channels:
        raise Untranslatable(t, f"{name} has {len(values)} values for an image of {spec.channels} channels")
    return values
