"""A helper: what torchvision's transforms do not do with several images of a sample, such as five crops."""

from __future__ import annotations

from typing import Any

from torchvision.transforms import v2
from torchvision.transforms.v2._auto_augment import _AutoAugmentBase

from ..plan import ImageSpec
from .untranslatable import Untranslatable
from .wrappers.objects import root


def refuse_of_views(transform: Any, spec: ImageSpec) -> None:
    """
    Raises:
        Untranslatable: torchvision's transform does not do with a tuple of images what it does with each.
    """
    if root(type(transform)) != "torchvision":
        return
    if not isinstance(transform, v2.Transform):
        raise Untranslatable(transform, "it takes one image, and gets several", "call it in a Lambda, of each")
    if isinstance(transform, _AutoAugmentBase):
        raise Untranslatable(transform, "torchvision refuses several images there", "put it before the crops")
    if spec.kind == "tensor":
        remedy = "put ToImage() in the place of ToTensor() or PILToTensor()"
        raise Untranslatable(transform, "of several tensors torchvision changes the first alone", remedy)
