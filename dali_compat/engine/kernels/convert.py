"""Conversions are torchvision's own kernels, which take batches as they take images."""

from __future__ import annotations

import torch
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2

from ..device import to_device
from .registry import image_kernel, kernel


@kernel
def to_dtype(images, arrays, *, dtype, like):
    if like == "v1":  # ToTensor and ConvertImageDtype divide by 255, v2 multiplies by 1/255
        if images.is_cuda and images.dtype == torch.uint8 and dtype == torch.float32:  # as CUDA does, of a number
            return images.to(dtype) / torch.full((), 255.0, device=images.device)
        return v1.convert_image_dtype(images, dtype)
    return v2.to_dtype(images, dtype, scale=like == "v2")


@kernel
def normalize(images, arrays, *, mean, std):
    return v1.normalize(images, mean, std)


@kernel
def arithmetic(images, arrays, *, name):
    """torch's add, sub, mul, div or rsub, of each image and one number, or one a channel."""
    values = to_device(torch.from_numpy(arrays["values"]).to(images.dtype), images.device)
    return getattr(torch, name)(images, values.view(len(images), -1, 1, 1))


@kernel
def tensor_to_pil(images, arrays):
    """ToPILImage: of floating point images the product with 255 is truncated."""
    return images.mul(255).byte() if images.is_floating_point() else images


@kernel
def apply(images, arrays, *, function, spec, **args):
    """A function of one's own, registered by on_batch(); ``spec``: what it is said to give.

    Raises:
        ValueError: it gives images of another shape or dtype. What comes after has its windows for the shape that was
            said, and its arithmetic for the dtype: ToTensor divides uint8 by 255, and floats by nothing.
    """
    if "uniforms" in arrays:
        args["uniforms"] = to_device(arrays["uniforms"], images.device)
    if 0 in images.stride():  # gray in three channels: one plane, which nobody can write to
        images = images.clone()
    made = function(images, **args)
    said = len(images), spec.channels, *(spec.size or images.shape[-2:])
    if tuple(made.shape) != said or made.dtype != spec.dtype:
        name = getattr(function, "__qualname__", type(function).__name__)
        text = f"{name}() gives {tuple(made.shape)} of {made.dtype}, and its translation says {said} of {spec.dtype}"
        remedy = f"on_batch({name}, spec.but(size=(height, width), channels=..., dtype=...)) says what it gives"
        raise ValueError(f"{text}: {remedy}")
    return made


# ---- one image


@image_kernel("pil_to_tensor")
def pil_to_tensor_image(image, row):
    return v1.pil_to_tensor(image)


@image_kernel("tensor_to_pil")
def tensor_to_pil_image(image, row):
    return v1.to_pil_image(image)
