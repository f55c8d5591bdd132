"""Translator, draw and kernel of AugMix."""

from __future__ import annotations

import numpy as np
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F1
from torchvision.transforms import v2

from ..plan import draw, step
from ..runtime.device import to_device
from .arguments import version_of
from .draws import draws, integer_key, randint
from .kernels import as_tensor, image_kernel, kernel
from .policy import AUGMENTATIONS, augment, augmented, one_operation, space_of
from .translators import register
from .warp import TENSOR_MODES, warp_arguments


@register(v1.AugMix, v2.AugMix, consumes="severity mixture_width chain_depth alpha all_ops interpolation fill")
def translate_aug_mix(t, spec):
    names = ("severity", "mixture_width", "chain_depth", "alpha", "all_ops")
    chains = draw("aug_mix", **{name: getattr(t, name) for name in names}, like=version_of(t))
    how = warp_arguments(t, spec, TENSOR_MODES) | {"like": version_of(t)}  # AugMix mixes tensors, even for PIL images
    return (step("augmix", spec, chains, **how),)


def _aug_mix_uniforms(severity, mixture_width, chain_depth, alpha, all_ops, like) -> int:
    weights = 2 + mixture_width if alpha == 1 else 1
    return mixture_width * (1 + 3 * _deepest(chain_depth)) + weights


def _deepest(depth: int) -> int:
    """Return the maximum length of a chain: ``depth`` if it is positive, otherwise 3."""
    return depth if depth > 0 else 3


@draws(uniforms=_aug_mix_uniforms)
def draw_aug_mix(sizes, u, *, severity, mixture_width, chain_depth, alpha, all_ops, like):
    """Draw the operations of AugMix's chains, and the weights that mix their results.

    ``which`` (indices of operations) and ``magnitude`` are (N, mixture_width, depth). After the end of a chain,
    ``which`` is -1. ``mix`` (N, 1 + mixture_width) holds the weights of the original image and of each chain.
    """
    first, u = u[:, :mixture_width], u[:, mixture_width:]
    lengths = randint(first, 1, 4) if chain_depth <= 0 else np.full(first.shape, chain_depth)
    over = np.arange(_deepest(chain_depth)) >= lengths[..., None]
    count = over.shape[1] * over.shape[2]
    op, bins, sign = u[:, : 3 * count].reshape(len(sizes), 3, *over.shape[1:]).swapaxes(0, 1)
    # 10 bins is torchvision's _PARAMETER_MAX
    drawn = one_operation(space_of("AugMix", like, 10, all_ops), op, randint(bins, 0, severity), sign, sizes)
    return {
        "which": np.where(over, np.int32(-1), drawn["which"]),
        "magnitude": np.where(over, 0.0, drawn["magnitude"]),
        "mix": _mix(u[:, 3 * count :], alpha, mixture_width),
    }, sizes


def _mix(u, alpha, width) -> np.ndarray:
    """Return Dirichlet weights (N, 1 + width) of the original image and of each chain."""
    if alpha == 1:  # exponential variates
        gamma = -np.log1p(-u)
    else:  # a generator for each sample, seeded with ``u[:, 0]``
        generators = (np.random.Generator(np.random.Philox(key=one)) for one in integer_key(u[:, 0]).tolist())
        gamma = np.array([own.standard_gamma(alpha, 2 + width) for own in generators]).reshape(-1, 2 + width)
    gamma = np.maximum(gamma, np.finfo(np.float64).tiny)
    image_or_not, chains = _shares(gamma[:, :2]), _shares(gamma[:, 2:])
    return np.concatenate([image_or_not[:, :1], chains * image_or_not[:, 1:]], 1)


def _shares(gamma) -> np.ndarray:
    """Convert rows of gamma variates to Dirichlet variates in float32."""
    # as in torch, the variates are never 0 or 1
    least, most = np.finfo(np.float32).tiny, np.nextafter(np.float32(1), np.float32(0))
    return np.clip((gamma / gamma.sum(1, keepdims=True)).astype(np.float32), least, most)


@kernel(in_batches=True)
def augmix(images, arrays, *, interpolation, fill, like):
    """Mix each image with the results of its chains of operations, in float32."""
    which, magnitude = arrays["which"], arrays["magnitude"]
    n, width, depth = which.shape
    chains = images.repeat(width, 1, 1, 1)  # all first chains, then all second ones, ...
    for place in range(depth):
        rows = {"which": which[:, :, place].T.reshape(-1), "magnitude": magnitude[:, :, place].T.reshape(-1)}
        chains = augment(chains, rows, interpolation=interpolation, fill=fill, like=like, version=like)
    weights = to_device(arrays["mix"].T.copy(), images.device).view(1 + width, n, 1, 1, 1)
    mixed = images * weights[0]
    for weight, chain in zip(weights[1:], chains.split(n), strict=True):
        mixed.add_(chain * weight)
    return mixed.to(images.dtype)


@image_kernel("augmix")
def augmix_image(image, row, *, interpolation, fill, like):
    pixels = as_tensor(image)
    mixed = float(row["mix"][0]) * pixels[None]
    for weight, chain, magnitudes in zip(row["mix"][1:], row["which"], row["magnitude"], strict=True):
        made = pixels[None]
        for which, magnitude in zip(chain, magnitudes, strict=True):
            if which >= 0:
                made = augmented(made, AUGMENTATIONS[which], float(magnitude), interpolation, fill, like)
        mixed = mixed + float(weight) * made
    mixed = mixed[0].to(pixels.dtype)
    return F1.to_pil_image(mixed) if isinstance(image, Image.Image) else mixed
