"""Policies: AutoAugment, RandAugment, TrivialAugmentWide, AugMix."""

from __future__ import annotations

from torchvision import transforms as v1
from torchvision.transforms import v2

from ..draws.policy import AUGMENTATIONS
from ..plan import Draw, Step, draw, step
from .fidelity import EXACT
from .geometry import fill_of, like_of, version_of
from .registry import register
from .warp import OF_TENSORS, warp_interpolation


@register(v1.AutoAugment, v2.AutoAugment, consumes="policy interpolation fill")
def auto_augment(t, spec):
    args = {"policy": t.policy.value, "like": version_of(t)}
    first, second = (_augment(t, spec, draw("auto_augment", **args, at=at)) for at in (0, 1))
    return first, second.but(shares=True)


@register(v1.RandAugment, v2.RandAugment, consumes="num_ops magnitude num_magnitude_bins interpolation fill")
def rand_augment(t, spec):
    args = {"magnitude": t.magnitude, "num_magnitude_bins": t.num_magnitude_bins, "like": version_of(t)}
    return [_augment(t, spec, draw("rand_augment", **args)) for _ in range(t.num_ops)]


@register(v1.TrivialAugmentWide, v2.TrivialAugmentWide, consumes="num_magnitude_bins interpolation fill")
def trivial_augment_wide(t, spec):
    args = {"num_magnitude_bins": t.num_magnitude_bins, "like": version_of(t)}
    return (_augment(t, spec, draw("trivial_augment_wide", **args)),)


@register(v1.AugMix, v2.AugMix, consumes="severity mixture_width chain_depth alpha all_ops interpolation fill")
def aug_mix(t, spec):
    names = ("severity", "mixture_width", "chain_depth", "alpha", "all_ops")
    chains = draw("aug_mix", **{name: getattr(t, name) for name in names}, like=version_of(t))
    # torchvision mixes tensors, of PIL images too
    return (step("augmix", spec, chains, **_args(t, spec, OF_TENSORS), like=version_of(t), fidelity=EXACT),)


def _augment(t, spec, drawn: Draw) -> Step:
    return step("augment", spec, drawn, **_args(t, spec), like=like_of(t, spec), version=version_of(t), fidelity=EXACT)


def _args(t, spec, allowed: tuple[str, ...] | None = None) -> dict:
    return {"names": AUGMENTATIONS, "interpolation": warp_interpolation(t, spec, allowed), "fill": fill_of(t, spec)}
