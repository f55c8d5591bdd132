"""Several views of one image: written as one transform, and what torchvision's transforms do not do with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchvision.transforms import v2
from torchvision.transforms.v2._auto_augment import _AutoAugmentBase

from ..inspection.objects import root
from ..inspection.untranslatable import Untranslatable
from ..plan import ImageSpec


@dataclass(frozen=True, eq=False)
class Views:
    """Gives a list: what each of the transforms makes of the image."""

    transforms: tuple[Callable[[Any], Any], ...]

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]


def views(*transforms: Callable[[Any], Any]) -> Views:
    """A transform that gives a list of what each of ``transforms`` makes of an image: ``views(augment, augment)``.

    It is nothing but a callable, so torch's own loader takes it, too. In a batch of dali_compat's the views share one
    decode, and each has random numbers of its own.

    Args:
        *transforms: each takes a PIL image, usually a torchvision Compose.

    Raises:
        TypeError: there is none, or one cannot be called.

    Examples:
        >>> dataset = DALIImageFolder("train", views(transform, transform))
        >>> (first, second), labels = next(iter(DataLoader(dataset, batch_size=4, device="cpu")))
        >>> first.shape, second.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4, 3, 32, 32]))
    """
    if not transforms:
        raise TypeError("views() takes one transform for each view")
    for transform in transforms:
        if not callable(transform):
            raise TypeError(f"views() takes transforms, got {transform!r}")
    return Views(transforms)


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
