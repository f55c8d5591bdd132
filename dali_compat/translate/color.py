"""Colour."""

from __future__ import annotations

import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from ..plan import draw, step
from .fidelity import EXACT
from .geometry import like_of
from .registry import register
from .untranslatable import Untranslatable
from .wrappers.standins import Convert


@register(v1.Grayscale, v2.Grayscale, consumes="num_output_channels")
def grayscale(t, spec):
    channels = t.num_output_channels
    if spec.channels == channels == 1:
        return ()
    if spec.channels == 1 and channels == 3 and (spec.kind == "pil" or isinstance(t, v2.Grayscale)):
        return (step("repeat_channels", spec.but(channels=3), fidelity=EXACT),)
    if spec.channels != 3 or channels not in (1, 3):  # v1 leaves tensors of one channel as they are
        raise Untranslatable(t, f"num_output_channels={channels} of an image of {spec.channels} channels")
    return (step("grayscale", spec.but(channels=channels), formula=_formula(spec), channels=channels, fidelity=EXACT),)


@register(v1.RandomGrayscale, v2.RandomGrayscale, consumes="p")
def random_grayscale(t, spec):
    if spec.channels == 1:
        return ()
    return (step("grayscale", spec, draw("bernoulli", p=t.p), formula=_formula(spec), channels=3, fidelity=EXACT),)


def _formula(spec) -> str:
    """PIL converts in 16-bit fixed point, torchvision on tensors in floating point with coarser weights."""
    if spec.kind == "pil":
        return "pil"
    return "float" if spec.dtype.is_floating_point else "tensor"


@register(v2.RGB)
def rgb(t, spec):
    if spec.channels == 3:
        return ()
    return (step("repeat_channels", spec.but(channels=3), fidelity=EXACT),)


@register(Convert, consumes="mode")
def convert(t, spec):
    if spec.kind != "pil":
        raise Untranslatable(t, "it is of PIL images, and gets a tensor here", "put it before the conversion")
    return rgb(t, spec) if t.mode == "RGB" else grayscale(v1.Grayscale(1), spec)


@register(v2.RandomChannelPermutation)
def random_channel_permutation(t, spec):
    return (step("permute_channels", spec, draw("channel_permutation", channels=spec.channels), fidelity=EXACT),)


@register(v1.RandomInvert, v2.RandomInvert, consumes="p")
def random_invert(t, spec):
    return (maybe(t, spec, "invert"),)


@register(v1.RandomPosterize, v2.RandomPosterize, consumes="bits p")
def random_posterize(t, spec):
    _refuse_floats_of_v1(t, spec)
    if spec.kind == "pil" and not 1 <= t.bits <= 8:
        raise Untranslatable(t, f"Pillow refuses bits={t.bits}, or makes the image black")
    return (maybe(t, spec, "posterize", bits=int(t.bits)),)


@register(v1.RandomSolarize, v2.RandomSolarize, consumes="threshold p")
def random_solarize(t, spec):
    if spec.kind != "pil" and not 0 <= t.threshold <= (255 if spec.dtype == torch.uint8 else 1):
        raise Untranslatable(t, f"threshold={t.threshold} is beyond the values of {spec.dtype}")
    return (maybe(t, spec, "solarize", threshold=float(t.threshold)),)


@register(v1.RandomAutocontrast, v2.RandomAutocontrast, consumes="p")
def random_autocontrast(t, spec):
    return (maybe(t, spec, "autocontrast"),)


@register(v1.RandomEqualize, v2.RandomEqualize, consumes="p")
def random_equalize(t, spec):
    _refuse_floats_of_v1(t, spec)
    return (maybe(t, spec, "equalize"),)


def _refuse_floats_of_v1(t, spec) -> None:
    if spec.dtype != torch.uint8 and not isinstance(t, v2.Transform):
        raise Untranslatable(t, f"torchvision takes uint8 tensors there, and this is one of {spec.dtype}")


def maybe(t, spec, op: str, **values):
    """An operation with probability t.p; ``values`` are the same for every sample."""
    return step(
        op, spec, draw("bernoulli_with", p=t.p, values=tuple(values.items())), like=like_of(t, spec), fidelity=EXACT
    )
