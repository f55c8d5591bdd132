"""Conversions between PIL images, tensors and dtypes, and normalization."""

from __future__ import annotations

import functools

import torch
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional as F1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

from ..inspection.method_calls import Cast
from ..inspection.untranslatable import Untranslatable
from ..plan import EXACT, Options, Step, step
from ..runtime.device import to_device
from .arguments import per_channel, refuse_pil, refuse_tensors, version_of
from .kernels import define, kernel, run
from .translators import register


@register(v1.ToTensor, v2.ToTensor)
def translate_to_tensor(t, spec):
    refuse_tensors(t, spec, "")
    tensor = spec.but(kind="tensor")
    dtype = torch.get_default_dtype()
    return (step("pil_to_tensor", tensor), step("to_dtype", tensor.but(dtype=dtype), dtype=dtype, like="v1"))


@register(v1.PILToTensor, v2.PILToTensor)
def translate_pil_to_tensor(t, spec):
    refuse_tensors(t, spec, "")
    return (step("pil_to_tensor", spec.but(kind="tensor")),)


@register(v1.ToPILImage, v2.ToPILImage, consumes="mode")
def translate_to_pil_image(t, spec):
    if spec.kind == "pil" or t.mode is not None or spec.dtype not in (torch.uint8, torch.float32):
        raise Untranslatable(t, f"mode={t.mode} is not supported for a {spec.kind} of {spec.dtype}")
    return (step("tensor_to_pil", spec.but(kind="pil", dtype=torch.uint8)),)


@register(v2.ToImage)
def translate_to_image(t, spec):
    return (step("pil_to_tensor" if spec.kind == "pil" else "identity", spec.but(kind="Image")),)


@register(v2.ToPureTensor)
def translate_to_pure_tensor(t, spec):
    return () if spec.kind != "Image" else (step("identity", spec.but(kind="tensor")),)


@register(v1.ConvertImageDtype, v2.ConvertImageDtype, consumes="dtype")
def translate_convert_image_dtype(t, spec):
    if spec.kind == "pil":
        if isinstance(t, v2.ConvertImageDtype):
            return ()  # v2 passes PIL images through
        refuse_pil(t, spec, "PILToTensor()")
    return _to_dtype(t, spec, t.dtype, like=version_of(t))


@register(v2.ToDtype, consumes="dtype scale")
def translate_to_dtype(t, spec):
    dtype = t.dtype
    if isinstance(dtype, dict):
        kind = {"Image": tv_tensors.Image, "tensor": torch.Tensor}.get(spec.kind)
        if kind not in dtype and "others" not in dtype:
            raise Untranslatable(t, f"dtype has no entry for a {spec.kind} image")
        dtype = dtype.get(kind, dtype.get("others"))
    if spec.kind == "pil" or dtype is None:
        return ()  # torchvision passes PIL images through
    return _to_dtype(t, spec, dtype, like="v2" if t.scale else "cast")


def _to_dtype(t, spec, dtype, like):
    if dtype == spec.dtype:
        return ()
    if not dtype.is_floating_point and dtype != torch.uint8:
        raise Untranslatable(t, f"dtype={dtype} is not supported", "use uint8 or a floating point type")
    return (step("to_dtype", spec.but(dtype=dtype), dtype=dtype, like=like),)


@register(Cast, consumes="name")
def translate_cast(t, spec):
    if spec.kind not in ("tensor", "Image"):
        raise Untranslatable(t, "it takes tensors, but gets another kind of image here", "put it after the conversion")
    plain = spec.but(kind="tensor")
    dtype = getattr(torch, t.name)
    return _to_dtype(t, plain, dtype, like="cast") or translate_to_pure_tensor(t, spec)


@register(v1.Normalize, v2.Normalize, consumes="mean std inplace")
def translate_normalize(t, spec):
    if spec.kind == "pil" or not spec.dtype.is_floating_point:
        raise Untranslatable(
            t, "it requires floating point tensors", "put ToTensor(), or ToImage() and ToDtype(), before it"
        )
    mean, std = (tuple(map(float, per_channel(t, name, spec))) for name in ("mean", "std"))
    if 0 in std:
        raise Untranslatable(t, "std contains a zero")
    return (step("normalize", spec.but(normalized=True), mean=mean, std=std),)


define("pil_to_tensor", unchanged=True, commutes=True, image=lambda image, row: F1.pil_to_tensor(image))


def _fidelity(s: Step, by_dali: bool, options: Options, two_pass: bool) -> str:
    # DALI and fast CPU kernels multiply by a reciprocal, torchvision divides
    return "within 1e-6" if by_dali or not (options.exact or options.gpu) else EXACT


def _in_dali(s: Step, dtype: torch.dtype, options: Options) -> bool:
    return (dtype, s.gives.dtype) == (torch.uint8, torch.float32)


@kernel(commutes=True, converts=True, in_dali=_in_dali, fidelity=_fidelity)
def to_dtype(images, arrays, *, dtype, like):
    if like == "v1":  # ToTensor and ConvertImageDtype divide by 255, v2 multiplies by 1/255
        # CUDA multiplies by the reciprocal of a number, but divides by a tensor
        if images.is_cuda and images.dtype == torch.uint8 and dtype == torch.float32:
            return images.to(dtype) / torch.full((), 255.0, device=images.device)
        return F1.convert_image_dtype(images, dtype)
    return F2.to_dtype(images, dtype, scale=like == "v2")


@kernel(commutes=True, converts=True, fidelity=_fidelity)
def normalize(images, arrays, *, mean, std):
    return F1.normalize(images, mean, std)


define("crop_mirror_normalize")  # last step of a DALI pipeline, from translate/lower.py


@kernel(in_batches=True)
def arithmetic(images, arrays, *, name):
    """Apply the torch function ``name``, such as "add", to each image and its ``values``. There is one value per image,
    or one per channel."""
    values = to_device(torch.from_numpy(arrays["values"]).to(images.dtype), images.device)
    return getattr(torch, name)(images, values.view(len(images), -1, 1, 1))


@kernel(in_batches=True, image=lambda image, row: F1.to_pil_image(image))
def tensor_to_pil(images, arrays):
    """Convert images to uint8, as ToPILImage does. Floats are multiplied by 255 and truncated."""
    return images.mul(255).byte() if images.is_floating_point() else images


@kernel(in_batches=True, calls_user=True, fidelity=lambda *_: "yours, not measured")
def apply(images, arrays, *, function, spec, **args):
    """Call the user's ``function``, and return its output. Raise ValueError if the output does not have the shape and
    dtype of ``spec``."""
    if "uniforms" in arrays:
        args["uniforms"] = to_device(arrays["uniforms"], images.device)
    if 0 in images.stride():  # the function may write to the images, which an expanded gray image does not allow
        images = images.clone()
    made = function(images, **args)
    wanted = len(images), spec.channels, *(spec.size or images.shape[-2:])
    if tuple(made.shape) != wanted or made.dtype != spec.dtype:
        name = getattr(function, "__qualname__", type(function).__name__)
        gave = f"{name}() returned {tuple(made.shape)} of {made.dtype}"
        text = f"{gave}, but its translation declares {wanted} of {spec.dtype}"
        remedy = f"declare it as on_batch({name}, spec.but(size=(height, width), channels=..., dtype=...))"
        raise ValueError(f"{text}; {remedy}")
    return made


@functools.lru_cache(64)
def conversion_table(steps: tuple[Step, ...]) -> torch.Tensor:
    """Return the results of pixelwise steps for every uint8 value, as a CPU tensor (channels, 256). The tensor is
    cached and must not be modified."""
    channels = steps[0].gives.channels
    values = torch.arange(256, dtype=torch.uint8, device="cpu").view(1, 1, 16, 16).expand(1, channels, 16, 16)
    for one in steps:
        values = run(one, values, {})
    return values.reshape(channels, 256)
