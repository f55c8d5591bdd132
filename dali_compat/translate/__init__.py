"""Translate torchvision transforms into a plan. This package does not import DALI.

- chain: translates a transform, or a container of transforms, into steps, and writes the lines of explain().
- lower: assigns steps to DALI or torch. planes: selects steps that kernels run on the output of a JPEG engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..inspection.untranslatable import Untranslatable
from ..ops.translators import on_batch, register
from .chain import Chain, translate

__all__ = ["Chain", "Untranslatable", "on_batch", "register", "translate", "views"]


@dataclass(frozen=True, eq=False)
class Views:
    """The transform that views() returns."""

    transforms: tuple[Callable[[Any], Any], ...]

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]


def views(*transforms: Callable[[Any], Any]) -> Views:
    """Return a transform that makes a list of several views of an image, as in ``views(augment, augment)``.

    torch's own loader accepts the result, too. In dali_compat's batches, the views share one decoded image, and each
    view has its own random numbers.

    Args:
        *transforms: callables that take a PIL image, usually a torchvision Compose.

    Raises:
        TypeError: no transform is given, or one is not callable.

    Examples:
        >>> dataset = DALIImageFolder("train", views(transform, transform))
        >>> (first, second), labels = next(iter(DataLoader(dataset, batch_size=4, device="cpu")))
        >>> first.shape, second.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4, 3, 32, 32]))
    """
    if not transforms:
        raise TypeError("views() requires at least one transform")
    for transform in transforms:
        if not callable(transform):
            raise TypeError(f"views() requires callable transforms, got {transform!r}")
    return Views(transforms)
